"""Writes the table of what works with what, in docs/frameworks.md and README.md: `python docs/make_works_with.py`.

Each cell is what `batchbridge check` says of a small configuration with that feature switched on: whether `batchbridge
run` and `wrap` would follow it, or the name under which they refuse it. Where a model, a dataset or Python code
decides, and no configuration does, the cell is written here, with the place that proves it.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import batchbridge

ROOT = Path(__file__).parents[1]
NAMES = {
    "trl": "TRL, Open-R1",
    "verl": "verl",
    "easyr1": "EasyR1",
    "openrlhf": "OpenRLHF",
    "open_instruct": "Open-Instruct",
}
VERSIONS = {
    "trl": "1.16.0",
    "verl": "0.9.1",
    "easyr1": "0.3.3.dev0",
    "openrlhf": "0.11.2",
    "open_instruct": "2026.8.20",
}
BASE: dict[str, dict[str, Any]] = {
    "trl": {"per_device_train_batch_size": 8, "num_generations": 8},
    "verl": {
        "algorithm.adv_estimator": "grpo",
        "data.train_batch_size": 64,
        "actor_rollout_ref.actor.ppo_mini_batch_size": 64,
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 8,
        "actor_rollout_ref.rollout.name": "vllm",
        "actor_rollout_ref.rollout.n": 8,
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": 8,
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": 8,
        "critic.ppo_micro_batch_size_per_gpu": 8,
        "trainer.n_gpus_per_node": 8,
    },
    "easyr1": {
        "data.rollout_batch_size": 64,
        "worker.actor.global_batch_size": 64,
        "worker.critic.global_batch_size": 64,
        "worker.rollout.n": 8,
        "trainer.n_gpus_per_node": 8,
    },
    "openrlhf": {
        "algo.advantage.estimator": "group_norm",
        "reward.remote_url": "http://localhost:1",
        "train.batch_size": 64,
        "rollout.batch_size": 8,
        "rollout.n_samples_per_prompt": 8,
        "actor.num_gpus_per_node": 8,
        "vllm.num_engines": 8,
    },
    "open_instruct": {
        "filter_zero_std_samples": False,
        "num_unique_prompts_rollout": 8,
        "num_samples_per_prompt_rollout": 8,
        "num_learners_per_node": [8],
    },
}
ZERO = "distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: %d}\nnum_processes: 8\n"
FSDP = "distributed_type: FSDP\nfsdp_config: {fsdp_version: 2}\nnum_processes: 8\n"
NONE = "-"
"""The framework has no such thing, or none that a configuration switches on."""
PARALLEL = "actor_rollout_ref.actor.ulysses_sequence_parallel_size"

Cell = Mapping[str, Any] | str
"""Settings beside `BASE`, an accelerate file for TRL, or the cell itself."""
FEATURES: dict[str, dict[str, Cell]] = {
    "generation with vLLM": {
        "trl": {"use_vllm": True},
        "verl": {},
        "easyr1": {},
        "openrlhf": {},
        "open_instruct": {},
    },
    "generation with SGLang": {"verl": {"actor_rollout_ref.rollout.name": "sglang"}},
    "FSDP": {
        "trl": FSDP,
        "verl": {"actor_rollout_ref.actor.strategy": "fsdp2"},
        "easyr1": {},
        "open_instruct": {"script": "grpo.py"},
    },
    "DeepSpeed ZeRO-2": {"trl": ZERO % 2, "openrlhf": {"ds.zero_stage": 2}, "open_instruct": {"deepspeed_stage": 2}},
    "DeepSpeed ZeRO-3": {"trl": ZERO % 3, "openrlhf": {"ds.zero_stage": 3}, "open_instruct": {"deepspeed_stage": 3}},
    "Megatron": {"verl": {"actor_rollout_ref.actor.strategy": "megatron"}},
    "LoRA": {
        "trl": {"use_peft": True},
        "verl": {"actor_rollout_ref.model.lora_rank": 8},
        "easyr1": {"worker.actor.model.lora.rank": 8},
        "openrlhf": {"ds.lora.rank": 8},
    },
    "bf16": {
        "trl": {"bf16": True},
        "verl": {},
        "easyr1": {},
        "openrlhf": {"ds.param_dtype": "bf16"},
        "open_instruct": {},
    },
    "fp16": {
        "trl": {"fp16": True, "bf16": False},
        "verl": {"actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype": "fp16"},
        "openrlhf": {"ds.param_dtype": "fp16"},
    },
    "images": {
        "trl": "[yes](trl.md#images), since 1.16",
        "verl": "[yes](verl.md#images), where every prompt has one",
        "easyr1": {"worker.actor.model.model_path": "Qwen/Qwen2.5-VL-7B-Instruct"},
        "openrlhf": "[yes](openrlhf.md#images), where every prompt has one",
    },
    "tools, several turns": {
        "trl": "[yes](trl.md#works-with)",
        "verl": {"actor_rollout_ref.rollout.multi_turn.enable": True},
        "openrlhf": "[yes](openrlhf.md#agents), without images",
        "open_instruct": "[yes](open_instruct.md#limits)",
    },
    "generation that runs ahead (async)": {
        "trl": "no: [trainer_copy](trl.md#what-is-refused)",
        "verl": {"trainer.v1.trainer_mode": "colocate_async"},
        "openrlhf": "[observed](openrlhf.md#asynchronous-training)",
        "open_instruct": "[yes, within `async_steps`](open_instruct.md)",
    },
    "group filter (dynamic sampling)": {
        "verl": {"algorithm.filter_groups.enable": True},
        "easyr1": {"algorithm.online_filtering": True},
        "openrlhf": {"algo.dynamic_filtering_enable": True},
        "open_instruct": {"filter_zero_std_samples": True},
    },
    "micro-batches cut by tokens": {
        "trl": "[--tokens-per-device](trl.md#token-budgets)",
        "verl": {"actor_rollout_ref.actor.use_dynamic_bsz": True},
        "easyr1": {"worker.actor.dynamic_batching": True},
        "openrlhf": {"train.dynamic_batch_enable": True},
        "open_instruct": "packed by itself",
    },
    "sequence parallelism": {
        "trl": "no: [context_parallel](trl.md#what-is-refused)",
        "verl": {PARALLEL: 2},
        "easyr1": {"worker.actor.ulysses_size": 2},
        "openrlhf": "yes, [its kernels not run](openrlhf.md#ring-attention)",
        "open_instruct": {"sequence_parallel_size": 2, "deepspeed_stage": 3},
    },
    "tensor parallelism": {
        "verl": {
            "actor_rollout_ref.actor.strategy": "megatron",
            "actor_rollout_ref.actor.megatron.tensor_model_parallel_size": 2,
        },
        "openrlhf": "[yes](openrlhf.md#tensor-parallelism), up to ZeRO-2",
    },
    "KL penalty in the loss": {
        "trl": {"beta": 0.04},
        "verl": {"actor_rollout_ref.actor.use_kl_loss": True},
        "easyr1": {"algorithm.use_kl_loss": True},
        "openrlhf": {"algo.kl.use_loss": True},
        "open_instruct": {"beta": 0.05},
    },
    "entropy bonus": {
        "trl": {"entropy_coef": 0.01},
        "verl": {"actor_rollout_ref.actor.entropy_coeff": 0.01},
        "openrlhf": {"actor.entropy_coef": 0.01},
    },
    "a critic (PPO)": {
        "verl": {"algorithm.adv_estimator": "gae"},
        "openrlhf": {"algo.advantage.estimator": "gae"},
    },
    "a critic's warm-up": {
        "verl": {"algorithm.adv_estimator": "gae", "trainer.critic_warmup": 3},
        "openrlhf": {"algo.advantage.estimator": "gae", "critic.freezing_steps": 1},
    },
    "old log-probabilities of the sampler": {"verl": {"algorithm.rollout_correction.bypass_mode": True}},
}
SHORT = ("FSDP", "DeepSpeed ZeRO-3", "LoRA", "images", "tools, several turns", "generation that runs ahead (async)")
"""Rows of README.md's table."""


def verdict(framework: str, cell: Cell) -> str:
    """A cell: "yes", "with --allow NAME", or "no" with the names of what refuses it."""
    if isinstance(cell, str) and not cell.startswith("distributed_type"):
        return cell
    settings = dict(BASE[framework])
    said = {"framework": framework, "version": VERSIONS[framework], "dataset_size": 8000}
    if isinstance(cell, str):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "accelerate.yaml").write_text(cell, encoding="utf-8")
            Path(folder, "run.sh").write_text(
                "trl grpo --config recipe.yaml --accelerate_config accelerate.yaml\n", encoding="utf-8"
            )
            Path(folder, "recipe.yaml").write_text(
                "".join(f"{key}: {value}\n" for key, value in settings.items()), encoding="utf-8"
            )
            found = batchbridge.check(Path(folder, "run.sh"), **said)
    else:
        found = batchbridge.check({**settings, **cell}, world_size=8, **said)
    foreseen = found.enforcement
    if found.reading.verdict != "valid" or foreseen is None:
        raise ValueError(f"{framework}: {cell}: {found}")
    # Open-Instruct's own runs are asynchronous; a --spec makes them synchronous, and then they have a plan.
    names = [one.name for one in foreseen.obstacles if one.certain]
    if framework == "open_instruct" and names == ["plan"]:
        return "yes, with a `--spec`"
    names = [name for name in names if name != "plan"] or names
    if not names:
        return "yes"
    shown = ", ".join(f"`{name}`" for name in names)
    return f"with `--allow {names[0]}`" if foreseen.verdict == "with_allow" else f"no: {shown}"


def rows() -> dict[str, dict[str, str]]:
    """Feature -> framework -> cell."""
    return {
        feature: {name: verdict(name, cells.get(name, NONE)) for name in NAMES} for feature, cells in FEATURES.items()
    }


def table(found: Mapping[str, Mapping[str, str]], prefix: str = "") -> str:
    """Rows as Markdown; `prefix` goes before the pages that they link to."""
    lines = [
        f"| feature | {' | '.join(f'{name} {VERSIONS[key]}' for key, name in NAMES.items())} |",
        f"|---{'|---' * len(NAMES)}|",
        *(f"| {feature} | {' | '.join(cells.values())} |" for feature, cells in found.items()),
    ]
    return re.sub(r"\]\((\w)", rf"]({prefix}\1", "\n".join(lines))


def pages() -> dict[Path, str]:
    """The two files, as they should be."""
    found = rows()
    filled = {}
    for name, text in (
        ("docs/frameworks.md", table(found)),
        ("README.md", table({feature: found[feature] for feature in SHORT}, "docs/")),
    ):
        page = (ROOT / name).read_text(encoding="utf-8")
        pattern = r"(?s)(<!-- written by docs/make_works_with.py -->\n).*?(<!-- end -->)"
        if len(re.findall(pattern, page)) != 1:
            raise ValueError(f"{name}: the table's place is missing")
        filled[ROOT / name] = re.sub(pattern, lambda at, text=text: f"{at[1]}\n{text}\n\n{at[2]}", page)
    return filled


if __name__ == "__main__":
    for page, text in pages().items():
        page.write_text(text, encoding="utf-8")
