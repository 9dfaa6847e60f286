"""A `GRPOTrainer` that draws from vLLM's CPU build, colocated with it, and is wrapped: from prompts to the optimizer.

A server does not run here: TRL hands it weights over NCCL.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

import pytest
import torch

os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
os.environ |= {"ACCELERATE_USE_CPU": "true", "TRL_EXPERIMENTAL_SILENCE": "1"}

from batchbridge import wrap
from batchbridge.ledger import diff, read_steps
from batchbridge.testing.oracle import Sample, double, logprobs, relative_error, step_gradient
from batchbridge.testing.tiny import ScriptedRollouts, tiny_policy, tiny_tokenizer
from batchbridge_trl import rows
from batchbridge_trl.testing import Captured

pytestmark = pytest.mark.filterwarnings("ignore")
PROMPTS, GROUP, LONGEST = 4, 4, 12


def trainer(folder: Path, **arguments: Any) -> Any:
    from datasets import Dataset
    from transformers import AutoModelForCausalLM
    from trl import GRPOConfig, GRPOTrainer
    from trl.generation import vllm_generation
    from vllm import LLM, _custom_ops

    # TRL has no setting for either: what vLLM compiles takes minutes on a CPU, and it makes float32 weights bf16.
    vllm_generation.LLM = functools.partial(LLM, enforce_eager=True, dtype="float32")
    # With oneDNN vLLM packs weights on a CPU and keeps none that TRL's could be copied over: it works as without it.
    _custom_ops._supports_onednn = False
    tiny_policy(width=256).save_pretrained(folder / "policy")  # heads of 64: what vLLM's attention takes on a CPU
    tiny_tokenizer().save_pretrained(folder / "policy")
    settings: dict[str, Any] = {
        "output_dir": str(folder / "run"), "use_cpu": True, "bf16": False, "report_to": [], "save_strategy": "no",
        "logging_strategy": "steps", "logging_steps": 1, "disable_tqdm": True, "num_generations": GROUP,
        "max_completion_length": LONGEST, "learning_rate": 1e-2, "lr_scheduler_type": "constant", "max_grad_norm": 0.0,
        "optim": "sgd", "beta": 0.0, "use_vllm": True, "vllm_mode": "colocate", "vllm_max_model_length": 64,
        "vllm_importance_sampling_mode": "token_truncate", "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2, "max_steps": 4,
    }  # fmt: skip
    script = ScriptedRollouts()

    def distinct(prompts: Any, completions: Any, completion_ids: list[list[int]], **others: Any) -> list[float]:
        return [len(set(ids)) + 0.1 * ids[0] for ids in completion_ids]

    return GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(folder / "policy", dtype=torch.float32),
        args=GRPOConfig(**settings | arguments),
        train_dataset=Dataset.from_dict({"prompt": [script.prompt(index) for index in range(PROMPTS)]}),
        processing_class=tiny_tokenizer(), reward_funcs=distinct,
    )  # fmt: skip


@pytest.fixture
def rollouts(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, torch.Tensor]]:
    """What each rollout came to, as TRL hands it to training."""
    native, seen = rows.columns_of, []

    def kept(output: Any, count: int) -> Any:
        seen.append({name: value.clone() for name, value in output.items() if isinstance(value, torch.Tensor)})
        return native(output, count)

    monkeypatch.setattr(rows, "columns_of", kept)
    return seen


def test_a_run_on_vllm_trains_its_plan_with_vllms_own_log_probabilities(
    tmp_path: Path, rollouts: list[dict[str, torch.Tensor]]
) -> None:
    built = wrap(trainer(tmp_path), ledger=tmp_path / "ledger")
    captured = Captured(built.model)
    built.add_callback(captured)
    built.train()
    steps = list(read_steps(tmp_path / "ledger"))
    assert len(steps) == built.state.global_step == built.batchbridge.plan.total_optimizer_steps == 4
    assert all(weight is None or weight > 0 for step in steps for weight in step["weights"])
    ratios = torch.cat([rollout["importance_sampling_ratio"].flatten() for rollout in rollouts])
    assert 0 < float((ratios - 1).abs().max()) < 1e-2, "vLLM's own log-probabilities, of the same weights"
    # The first step, of what vLLM drew for it, in float64.
    first, policy = rollouts[0], double(tiny_policy(width=256))
    policy.load_state_dict({name: value.double() for name, value in captured.states[0].items()})
    samples = []
    for row in range(len(first["completion_ids"])):
        prompt = first["prompt_ids"][row][first["prompt_mask"][row].bool()].tolist()
        completion = first["completion_ids"][row][first["completion_mask"][row].bool()].tolist()
        made = Sample(
            prompt=prompt, completion=completion, loss_mask=[1] * len(completion), group=row // GROUP,
            advantage=float(first["advantages"][row]),
        )  # fmt: skip
        old = logprobs(policy, made).detach()
        said = first["sampling_per_token_logps"][row][: len(completion)].double()
        samples.append(Sample(**{**vars(made), "old_logprobs": old, "multiplier": (old - said).exp().clamp(max=3.0)}))
    spec = built.batchbridge.plan.spec
    expected = step_gradient(policy, samples, term=spec.loss.policy, objective=spec.objective)
    assert relative_error(captured.gradients[0], expected) < 1e-5
    swapped = [
        Sample(**{**vars(one), "advantage": other.advantage}) for one, other in zip(samples, samples[::-1], strict=True)
    ]
    control = step_gradient(policy, swapped, term=spec.loss.policy, objective=spec.objective)
    assert relative_error(captured.gradients[0], control) > 1e-3, "negative control: other advantages"


def test_another_split_draws_the_same_completions_and_another_seed_others(tmp_path: Path) -> None:
    """With weights that stay as they are: rounding would otherwise draw another token some day."""
    runs = {
        "4x2": {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2},
        "1x8": {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 8},
        "seed": {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "seed": 7},
    }
    for name, sizes in runs.items():
        built = wrap(trainer(tmp_path / name, learning_rate=0.0, **sizes), ledger=tmp_path / f"{name} ledger")
        built.train()
        assert "seed of its own" not in built.batchbridge.report()
    assert diff(tmp_path / "4x2 ledger", tmp_path / "1x8 ledger").equal
    assert not diff(tmp_path / "4x2 ledger", tmp_path / "seed ledger").equal
