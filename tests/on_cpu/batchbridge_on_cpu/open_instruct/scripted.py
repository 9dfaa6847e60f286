"""Open-Instruct's own grpo_fast.py, from its command line to its end, on CPUs with scripted completions.

`prepare` writes policy, tokenizer and prompts; `command` is what a user would type, `environment` what makes it run
here: `_site` on PYTHONPATH reaches every process. What is replaced: see `cpu` and `engines`. For tests.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from batchbridge.testing.tiny import ScriptedRollouts, tiny_policy, tiny_tokenizer

SITE = Path(__file__).parent / "_site"
RAY = {"num_cpus": 48, "num_gpus": 4, "include_dashboard": False, "object_store_memory": 200_000_000}
"""Options of `ray.init`: devices are names here."""


def prepare(folder: Path, *, prompts: int) -> None:
    """Writes the tiny policy with its tokenizer, and a dataset of scripted prompts as Open-Instruct takes them."""
    policy = folder / "policy"
    tiny_policy().save_pretrained(policy)
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    tokenizer.save_pretrained(policy)
    dataset(folder / "data", prompts=prompts)


def dataset(data: Path, *, prompts: int, more: Mapping[str, Any] | None = None) -> None:
    """Writes a dataset of scripted prompts; more: further columns."""
    script = ScriptedRollouts()
    data.mkdir(parents=True, exist_ok=True)
    (data / "README.md").write_text("Scripted prompts.\n", encoding="utf-8")
    rows = [
        {
            "messages": [{"role": "user", "content": script.prompt(index)}],
            "ground_truth": ["1"],
            "dataset": ["scripted"],
            **(more or {}),
        }
        for index in range(prompts)
    ]
    (data / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def command(checkout: Path, folder: Path, settings: Mapping[str, object]) -> list[str]:
    """The command line of a run in `folder`, with `settings` beside those that name its files."""
    given = {
        "model_name_or_path": folder / "policy",
        "dataset_mixer_list": f"{folder / 'data'} 1.0",
        "dataset_mixer_list_splits": "train",
        "dataset_local_cache_dir": folder / "cache",
        "output_dir": folder / "output",
        "push_to_hub": False,
        "with_tracking": False,
        "try_auto_save_to_beaker": False,
        "try_launch_beaker_eval_jobs_on_weka": False,
        "enable_queue_dashboard": False,
        "attn_implementation": "torch",
        **settings,
    }
    words = [word for key, value in given.items() for word in (f"--{key}", *str(value).split())]
    return [sys.executable, str(checkout / "open_instruct" / "grpo_fast.py"), *words]


def environment(checkout: Path, short: Path, **more: str) -> dict[str, str]:
    """The environment of a run. short: a folder for Ray whose path is short (its sockets have at most 107 bytes)."""
    paths = [str(SITE), str(checkout), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "BATCHBRIDGE_RAY": json.dumps({**RAY, "_temp_dir": str(short)}),
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_DEDUP_LOGS": "0",
        "RAY_memory_monitor_refresh_ms": "0",
        "RAY_worker_register_timeout_seconds": "300",
        "RAY_agent_register_timeout_ms": "180000",
        "RAY_enable_worker_prestart": "0",
        "RAY_prestart_worker_first_driver": "0",
        "RAY_worker_niceness": "0",  # Ray adds 15 by itself: on a busy machine such workers hardly run
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_CACHE": str(short / "datasets"),
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONDONTWRITEBYTECODE": "",  # a run has ten processes: what one has compiled the others take
        "OMP_NUM_THREADS": "1",
        **more,
    }
