"""LoRA over weights of four bits, on bitsandbytes' kernels for CPUs. `nox -s trl_full` installs bitsandbytes."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model

from batchbridge import wrap
from batchbridge.testing.tiny import tiny_policy
from batchbridge_trl.testing import Captured, gradient_errors, scripted_trainer

pytestmark = [
    pytest.mark.skipif(find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed: nox -s trl_full"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # bitsandbytes' use of torch
]
LORA = {"r": 4, "target_modules": ["q_proj", "v_proj"], "init_lora_weights": "gaussian", "task_type": "CAUSAL_LM"}


def quantised(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    tiny_policy().save_pretrained(folder)
    four_bits = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32)
    return AutoModelForCausalLM.from_pretrained(folder, quantization_config=four_bits, device_map="cpu")


def over(weights: Any) -> Any:
    """LoRA over a plain policy with these weights."""
    plain = tiny_policy()
    plain.load_state_dict(weights.state_dict())
    return get_peft_model(plain, LoraConfig(**LORA))


@pytest.mark.parametrize("adapters", [torch.float32, torch.bfloat16])
def test_qlora_has_the_gradient_of_lora_over_the_weights_that_the_four_bits_stand_for(
    tmp_path: Path, adapters: torch.dtype
) -> None:
    """TRL makes the adapters bf16: what is measured there is rounded to that."""
    policy = quantised(tmp_path / "policy")
    assert type(policy.model.layers[0].mlp.up_proj).__name__ == "Linear4bit"
    sizes = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "num_iterations": 2}
    lora = {"peft_config": LoraConfig(**LORA), "learning_rate": 0.1}
    built = scripted_trainer(tmp_path / "run", policy=policy, **lora, **sizes)
    trained = [parameter for parameter in built.model.parameters() if parameter.requires_grad]
    assert {parameter.dtype for parameter in trained} == {torch.bfloat16}
    for parameter in trained:
        parameter.data = parameter.data.to(adapters)
    wrap(built)
    captured = Captured(built.model)
    built.add_callback(captured)
    built.train()
    plan, states, errors = built.batchbridge.plan, captured.states, {}
    for name, weights in {"stood for": quantised(tmp_path / "policy").dequantize(), "before": tiny_policy()}.items():
        frozen = over(weights).state_dict()
        captured.states = [frozen | {key: state[key] for key in frozen if ".lora_" in key} for state in states]
        errors[name] = gradient_errors(
            captured, plan.spec, plan=plan, policy=lambda weights=weights: over(weights), steps=4
        )
    rounding = 0.0 if adapters is torch.float32 else 2.0**-6
    assert all(each.error <= max(each.bar, rounding) for each in errors["stood for"])
    assert all(each.error > 10 * max(each.bar, rounding) for each in errors["before"]), "control: before quantising"
