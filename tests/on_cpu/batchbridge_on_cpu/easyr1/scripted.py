"""The stock entry of EasyR1, `python -m verl.trainer.main`, on CPU with scripted rollouts.

    prepare(folder, prompts=12)
    subprocess.run(command(folder, 2), env=environment(folder, checkout, ranks=2), cwd=folder)

Nothing of EasyR1 is edited. `batchbridge run` may stand before the command.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from batchbridge.testing.tiny import ScriptedRollouts, tiny_policy, tiny_tokenizer
from batchbridge_on_cpu.easyr1.workers import PROMPT_TOKENS, RESPONSE_TOKENS, SETTINGS
from batchbridge_on_cpu.verl import scripted

SITE = Path(__file__).parent / "_site"
"""The folder whose `sitecustomize` brings the CPU platform into every process."""


def prepare(folder: Path, *, prompts: int = 12, seed: int = 0) -> None:
    """Writes the tiny policy, its tokenizer and `prompts` prompts of the script; a prompt's answer is its index."""
    tiny_policy(seed).save_pretrained(folder / "policy")
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
    tokenizer.save_pretrained(folder / "policy")
    script = ScriptedRollouts()
    rows = [{"prompt": script.prompt(index), "answer": str(index)} for index in range(prompts)]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "prompts.jsonl").write_text(text, encoding="utf-8")


def arguments(folder: Path, ranks: int) -> list[str]:
    """GRPO in float32 on `ranks` CPU ranks, 6 prompts of 4 completions per rollout, 3 prompts per optimizer step."""
    settings = {
        **SETTINGS,
        "data.train_files": folder / "prompts.jsonl",
        "data.val_files": folder / "prompts.jsonl",
        "data.rollout_batch_size": 6,
        "data.max_prompt_length": PROMPT_TOKENS,
        "data.max_response_length": RESPONSE_TOKENS,
        "data.filter_overlong_prompts": False,
        "worker.actor.model.model_path": folder / "policy",
        "worker.actor.global_batch_size": 3,
        "worker.actor.micro_batch_size_per_device_for_update": 2,
        "worker.actor.micro_batch_size_per_device_for_experience": 2,
        "worker.actor.dynamic_batching": False,
        "worker.actor.optim.lr": 1e-2,
        "worker.actor.clip_ratio_high": 0.2,
        "worker.rollout.n": 4,
        "worker.rollout.val_override_config.n": 1,
        "worker.reward.reward_function": f"{Path(__file__).with_name('rollouts.py')}:reward",
        "trainer.nnodes": 1,
        "trainer.n_gpus_per_node": ranks,
        "trainer.logger": "[console]",
        "trainer.val_before_train": False,
        "trainer.val_freq": -1,
        "trainer.save_freq": -1,
        "trainer.find_last_checkpoint": False,
        "trainer.save_checkpoint_path": folder / "checkpoints",
    }
    return [f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in settings.items()]


def command(folder: Path, ranks: int, *more: str) -> list[str]:
    """The stock entry with `arguments` and `more`."""
    return [sys.executable, "-m", "verl.trainer.main", *arguments(folder, ranks), *more]


def environment(
    folder: Path,
    checkout: Path,
    *,
    ranks: int,
    optimizer: Literal["sgd", "adamw"] = "adamw",
    own: Mapping[str, str] = os.environ,
) -> dict[str, str]:
    """`own` with EasyR1 on the path, the CPU platform, scripted rollouts, and a quiet, small Ray; see `steps`."""
    made = scripted.environment(own)
    for name in ("VERL_USE_EXTERNAL_MODULES", "VERL_ENGINE_DEVICE"):
        made.pop(name)
    paths = [str(SITE), str(checkout), *filter(None, [own.get("PYTHONPATH", "")])]
    here = {
        "BATCHBRIDGE_CPU_RANKS": str(ranks),
        "BATCHBRIDGE_CPU_RAY": str(folder / "ray"),
        "BATCHBRIDGE_OPTIMIZER": optimizer,
        "GLOO_SOCKET_IFNAME": "lo",
    }
    return {**made, **here, "PYTHONPATH": os.pathsep.join(paths)}
