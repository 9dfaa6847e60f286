"""What `explain --memory` counts, held against real models: parameters, and the bytes that training them keeps."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from batchbridge.kit import memory, model_size
from batchbridge.meaning.spec import Topology

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 97,
}


def model(kind: str, **more: Any) -> Any:
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **{**SIZES, **more}))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", sorted(model_size.TYPES))
def test_parameters_are_counted_from_the_configuration(kind: str, tied: bool) -> None:
    made = model(kind, tie_word_embeddings=tied)
    assert model_size.parameters(made.config.to_dict()) == sum(each.numel() for each in made.parameters())


@pytest.mark.parametrize("more", [{"attention_bias": True}, {"mlp_bias": True}])
def test_llamas_biases_are_counted(more: dict[str, bool]) -> None:
    made = model("llama", **more)
    assert model_size.parameters(made.config.to_dict()) == sum(each.numel() for each in made.parameters())


def test_qwen3s_biases_are_counted() -> None:
    made = model("qwen3", attention_bias=True)
    assert model_size.parameters(made.config.to_dict()) == sum(each.numel() for each in made.parameters())


def test_a_step_of_adam_keeps_what_is_said_and_no_byte_more() -> None:
    made = model("qwen2")
    optimizer = torch.optim.AdamW(made.parameters())
    words = torch.arange(12).reshape(2, 6)
    made(input_ids=words, labels=words).loss.backward()
    optimizer.step()
    parameters = list(made.parameters())
    kept = [*parameters, *(each.grad for each in parameters)]
    kept += [state[name] for state in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
    held = sum(each.numel() * each.element_size() for each in kept)
    count = sum(each.numel() for each in parameters)
    said = dict(memory.parameter_bytes(count, Topology(world_size=1)))
    assert said["not sharded (DDP)"][0] == held
    assert set(optimizer.state[parameters[0]]) == {"exp_avg", "exp_avg_sq", "step"}  # "step": a number a parameter


def test_logits_take_at_least_what_is_said() -> None:
    made = model("qwen2").to(torch.bfloat16)
    logits = made(input_ids=torch.arange(12).reshape(2, 6)).logits
    micro = memory.MicroBatch(tokens=12, completion_tokens=12, completions=2, prompt=0, completion=6)
    assert memory.logit_bytes(micro, SIZES["vocab_size"]) == logits.numel() * logits.element_size()
