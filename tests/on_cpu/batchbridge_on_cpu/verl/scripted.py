"""The stock entry of verl, `python -m verl.trainer.main_ppo`, on CPU with scripted rollouts, as tests run it.

    prepare(folder, prompts=12)
    subprocess.run(command(folder, 2), env=environment())

`batchbridge run` may stand before the command; see `batchbridge_verl.on_cpu.launching`.
"""

from __future__ import annotations

import functools
import importlib.metadata
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from batchbridge_verl.on_cpu import launching
from batchbridge_verl.on_cpu.launching import ADAMW, float32, overrides
from batchbridge_verl.settings import holds

__all__ = ["ADAMW", "float32", "overrides"]

MODULES = tuple(f"batchbridge_on_cpu.verl.{name}" for name in ("cpu", "cuts", "rollouts"))
"""What `import verl` imports in every process."""
_OPTIM = "actor_rollout_ref.actor.optim"
SGD = (f"{_OPTIM}.optimizer=SGD", f"{_OPTIM}.lr=0.1")
"""Overrides that name a run's optimizer."""
GREEDY = 4
"""The sample that is played where nothing is drawn: of no group of four."""
MAX_NORM = 1.0
"""To which verl's default clips a gradient."""


prepare = functools.partial(launching.prepare, agent="batchbridge_on_cpu.verl.agent.WatchedScriptedAgent")


def packed(sequence: int = 1, attention: str = "packed_cpu") -> list[str]:
    """Overrides for verl's default, rows laid end to end, on `sequence` ranks each (Ulysses); see `packed`. attention:
    transformers' name of it; its `sdpa` keeps rows apart by their position numbers, on one rank each."""
    actor = "actor_rollout_ref.actor."
    return [
        "actor_rollout_ref.model.use_remove_padding=True",
        f"++actor_rollout_ref.model.override_config.attn_implementation={attention}",
        f"{actor}ulysses_sequence_parallel_size={sequence}",
        f"{actor}fsdp_config.ulysses_sequence_parallel_size={sequence}",
    ]


ONE_STEP_OFF, APART = "verl.experimental.one_step_off_policy.main_ppo", "batchbridge_on_cpu.verl.apart"
"""verl's program, and the module of what it runs on here."""


def apart(folder: Path, ranks: int) -> list[str]:
    """What `ONE_STEP_OFF` needs beside `overrides`: one more device, for the engine, and a transport of weights. Writes
    the registration of its agent loop."""
    agent, rollout = folder / "apart.yaml", "actor_rollout_ref.rollout"
    agent.write_text(f"- name: scripted\n  _target_: {APART}_agent.Agent\n", encoding="utf-8")
    return [
        "hydra.searchpath=[pkg://verl.trainer.config]",  # its own is that of a checkout
        "actor_rollout_ref.hybrid_engine=False",
        "data.dataloader_num_workers=0",
        "rollout.nnodes=1",
        "rollout.n_gpus_per_node=1",
        f"{rollout}.checkpoint_engine.backend=files",
        f"{rollout}.checkpoint_engine.custom_backend_module={APART}",
        f"{rollout}.agent.agent_loop_config_path={agent}",
        "ray_kwargs.ray_init.num_cpus=30",
        f"ray_kwargs.ray_init.num_gpus={ranks + 1}",
    ]


FULLY_ASYNC, QUEUED = "verl.experimental.fully_async_policy.fully_async_main", "batchbridge_on_cpu.verl.queued"
"""verl's program, and the module of what it runs on here."""


def queued(folder: Path, ranks: int, prompts: int) -> list[str]:
    """What `FULLY_ASYNC` needs beside `overrides` and `apart`: sizes as it asserts them, two rollouts for each
    hand-over of weights, and each of `prompts` once."""
    agent = folder / "apart.yaml"
    words = apart(folder, ranks)
    # Its rollouter names the agent loop, whatever the default is; the default evaluates.
    names = "single_turn_agent", "scripted"
    agent.write_text("".join(f"- name: {name}\n  _target_: {APART}_agent.Agent\n" for name in names), encoding="utf-8")
    return [
        *words,
        "data.train_batch_size=0",
        "data.gen_batch_size=1",
        "async_training.require_batches=2",
        "async_training.trigger_parameter_sync_step=2",
        "async_training.staleness_threshold=0.5",
        f"rollout.total_rollout_steps={prompts}",
        "ray_kwargs.ray_init.num_cpus=60",
    ]


def command(folder: Path, ranks: int, *more: str, optimizer: Sequence[str] = ADAMW) -> list[str]:
    """The stock entry with `overrides` and `more`, on the workers that `BATCHBRIDGE_VERL_WORKERS` names."""
    words = [*overrides(folder, ranks, optimizer=optimizer), *(LEGACY if legacy_workers() else ())]
    return [sys.executable, "-m", "verl.trainer.main_ppo", *words, *more]


LEGACY = (
    "trainer.use_legacy_worker_impl=auto",
    "actor_rollout_ref.model.use_remove_padding=False",
    "++actor_rollout_ref.model.override_config.attn_implementation=eager",
)
"""Overrides for verl 0.7.1's default workers, on padded rows."""


def legacy_workers() -> bool:
    """Whether runs are on legacy workers: they are asked for, or the release has no others."""
    only = holds("<0.7.1", importlib.metadata.version("verl"))
    return only or os.environ.get("BATCHBRIDGE_VERL_WORKERS") == "legacy"


def environment(own: Mapping[str, str] = os.environ) -> dict[str, str]:
    """`own` with what the CPU platform, the scripted rollouts and a quiet, small Ray need."""
    return launching.environment(own, MODULES)
