"""What `check` says of a configuration, and what `wrap` then does with the trainer that TRL builds of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from batchbridge import CannotAttach, check, unwrap, wrap
from batchbridge.testing.tiny import tiny_policy
from batchbridge_trl.releases import has, lacks

SIZES = {"per_device_train_batch_size": 4, "num_generations": 4, "max_steps": 3, "bf16": False, "use_cpu": True}


def experts() -> Any:
    from transformers import Qwen2MoeConfig, Qwen2MoeForCausalLM

    config = Qwen2MoeConfig(
        vocab_size=64, hidden_size=16, intermediate_size=16, moe_intermediate_size=16, num_hidden_layers=1,
        shared_expert_intermediate_size=16, num_attention_heads=2, num_key_value_heads=2, num_experts=2,
        num_experts_per_tok=1, pad_token_id=0, eos_token_id=1, output_router_logits=True,
    )  # fmt: skip
    return Qwen2MoeForCausalLM(config)


def absolute() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=64, n_embd=16, n_layer=1, n_head=2, n_positions=64, pad_token_id=0, eos_token_id=1)
    return GPT2LMHeadModel(config)


SPANS = {"gradient_accumulation_steps": 2, "steps_per_generation": 3}
REFUSED: Mapping[str, tuple[Mapping[str, Any], Callable[[], Any]]] = {
    "top_entropy_quantile": ({"top_entropy_quantile": 0.5}, tiny_policy),
    "batch_scale_over_rollouts": ({"scale_rewards": "batch", **SPANS}, tiny_policy),
    "router_loss": ({}, experts),
    "absolute_positions": ({}, absolute),
    "no_step": ({"per_device_train_batch_size": 8}, tiny_policy),
}
NEW = {"top_entropy_quantile": "top_entropy_quantile"}
NEW |= {"router_loss": "aux_loss_enabled", "batch_scale_over_rollouts": "importance_sampling_level"}
"""Refusal to an attribute that came with what is refused."""


def foretold(tmp_path: Path, policy: Any, settings: Mapping[str, Any], prompts: int = 6) -> Any:
    """What `check` says of the settings, with the model in a folder."""
    policy.save_pretrained(tmp_path / "model")
    source = {**SIZES, **settings, "model_name_or_path": str(tmp_path / "model")}
    return check(source, framework="trl", world_size=1, dataset_size=prompts).enforcement


BONUS = {"entropy_coef": 0.1} if has(">=1.10") else {}


@pytest.mark.parametrize(
    "settings",
    [{}, SPANS, {"beta": 0.1, "num_iterations": 2}, BONUS],
    ids=["plain", "spans", "passes", "bonus"],
)
def test_what_is_called_enforced_is_wrapped(
    trainer: Callable[..., Any], tmp_path: Path, settings: Mapping[str, Any]
) -> None:
    said = foretold(tmp_path, tiny_policy(), settings)
    assert said.verdict == "enforced", said.to_dict()
    built = wrap(trainer(**{**SIZES, **settings}))
    assert built.batchbridge.evidence.grade == said.evidence
    unwrap(built)


@pytest.mark.parametrize("name", [name for name in REFUSED if not lacks(NEW.get(name, ""))])
def test_what_wrap_refuses_was_said_before(trainer: Callable[..., Any], tmp_path: Path, name: str) -> None:
    settings, policy = REFUSED[name]
    prompts = 1 if name == "no_step" else 6
    said = foretold(tmp_path, policy(), settings, prompts)
    with pytest.raises(CannotAttach) as error:
        wrap(trainer(policy=policy(), prompts=prompts, **{**SIZES, **settings}))
    assert name in error.value.reasons
    assert error.value.reasons.keys() <= {one.name for one in said.obstacles}
    assert said.verdict in ("refused", "unknown") if name != "router_loss" else said.verdict == "with_allow"
