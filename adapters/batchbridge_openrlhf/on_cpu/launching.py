"""OpenRLHF's command line, `python -m openrlhf.cli.train_ppo_ray`, on CPU with scripted rollouts: files and options.

Nothing of OpenRLHF is edited. `batchbridge run` may stand before the command. Float32 and SGD, which the command line
does not offer, are injected; see `cpu`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from batchbridge.testing.tiny import ScriptedRollouts, tiny_policy, tiny_tokenizer

SITE = Path(__file__).parent / "_site"
"""The folder with `sitecustomize`: what reaches every process."""


def prepare(folder: Path, *, prompts: int = 12, seed: int = 0, script: ScriptedRollouts | None = None) -> None:
    """Writes the tiny policy, its tokenizer and `prompts` prompts of the script."""
    script = script or ScriptedRollouts()
    tiny_policy(seed).save_pretrained(folder / "policy")
    tiny_tokenizer().save_pretrained(folder / "policy")
    rows = [json.dumps({"input": script.prompt(index), "label": ""}) for index in range(prompts)]
    (folder / "prompts.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")


def options(folder: Path, ranks: int) -> dict[str, str]:
    """Options by name: GRPO's advantages on `ranks` CPU ranks, 4 prompts of 3 completions per rollout, 6 completions
    per optimizer step."""
    return {
        "actor.model_name_or_path": str(folder / "policy"),
        "data.prompt_dataset": str(folder / "prompts.jsonl"),
        "data.input_key": "input",
        "data.label_key": "label",
        "data.max_len": "64",
        "rollout.max_new_tokens": "24",
        "reward.remote_url": "scripted",
        "algo.advantage.estimator": "group_norm",
        "algo.kl.init_coef": "0",
        "actor.num_nodes": "1",
        "actor.num_gpus_per_node": str(ranks),
        "ref.num_gpus_per_node": str(ranks),
        "vllm.num_engines": "1",
        "vllm.sync_backend": "gloo",
        "ds.attn_implementation": "eager",
        "ds.zero_stage": "2",
        "actor.adam.lr": "6e-2",
        "actor.adam.weight_decay": "0",
        "actor.max_norm": "0",
        "actor.lr_scheduler": "constant",
        "actor.lr_warmup_ratio": "0",
        "rollout.batch_size": "4",
        "rollout.n_samples_per_prompt": "3",
        "rollout.micro_batch_size": "2",
        "train.batch_size": "6",
        "train.micro_batch_size": "1",
        "ckpt.output_dir": str(folder / "trained"),
        "ckpt.path": str(folder / "checkpoints"),
    }


def words(chosen: Mapping[str, str]) -> list[str]:
    """The command of these options, without the interpreter."""
    given = [word for name, value in chosen.items() for word in (f"--{name}", *value.split())]
    return ["-m", "openrlhf.cli.train_ppo_ray", *given]


def environment(
    folder: Path,
    ranks: int,
    *,
    optimizer: Literal["sgd", "adamw"] = "sgd",
    own: Mapping[str, str] = os.environ,
    site: Path = SITE,
    ray_folder: Path | None = None,
) -> dict[str, str]:
    """`own` with what the CPU, the scripted engine and a quiet, small Ray need. site: the folder of `sitecustomize`.
    ray_folder: Ray's, of a short path."""
    ray = {
        "num_cpus": 14,  # of Ray's bookkeeping: actors wait for what they ask for
        "num_gpus": 2 * ranks,
        "include_dashboard": False,
        "object_store_memory": 150_000_000,
        "_temp_dir": str(ray_folder or folder / "ray"),
    }
    return {
        **own,
        "PYTHONPATH": os.pathsep.join([str(site), *filter(None, [own.get("PYTHONPATH", "")])]),
        "BATCHBRIDGE_RAY": json.dumps(ray),
        "BATCHBRIDGE_FLOAT32": "1",
        "BATCHBRIDGE_OPTIMIZER": optimizer,
        "DS_ACCELERATOR": "cpu",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_CACHE": str(folder / "datasets"),
        "TOKENIZERS_PARALLELISM": "false",
        "TORCHDYNAMO_DISABLE": "1",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_DEDUP_LOGS": "0",
        "RAY_memory_monitor_refresh_ms": "0",
        "RAY_raylet_start_wait_time_s": "120",
        "RAY_worker_register_timeout_seconds": "300",
        "RAY_agent_register_timeout_ms": "180000",
        "RAY_enable_worker_prestart": "0",
        "RAY_prestart_worker_first_driver": "0",
        "RAY_worker_niceness": "0",  # Ray adds 15 by itself: on a busy machine such workers hardly run
    }
