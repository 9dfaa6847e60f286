"""SkyRL's settings. `settings.json` is the table: each field of SkyRLTrainConfig with its kind, its default (null for a
path in the user's home, and for one that follows another setting) and, where it has one of its own, its canonical
field; `declared`, those that decide nothing here; `later` and `declared_later`, what later releases added or gave
another default; `constants`, what its code fixes (FSDPStrategy._fsdp_init_train_model, utils.validate_batch_sizes);
`critic`, what a critic has beside its sizes; `follows`, which setting one follows (SkyRLTrainConfig.__post_init__);
what several settings say together; the modules that start a trainer, each with a name for what its own code does to
rewards, or with itself where it registers estimators or losses; settings that the schema has no field for, with the
setting and values that they need to act (`open`); and what others of these decide, the first pattern that fits
(`outside`).

Source: skyrl 0.3.0 (f5bc3b78d) and 0.4.0 train/config/config.py, and what each row names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from batchbridge.kit.key_table import Key, Unsayable, recorded, recorded_together
from batchbridge.kit.kinds import count, natural, text
from batchbridge.kit.schedules import schedule_text

FACTS: Mapping[str, Any] = json.loads(Path(__file__).with_name("settings.json").read_text(encoding="utf-8"))
ENTRIES: Mapping[str, str] = FACTS["entries"]
OUTSIDE: Mapping[str, str] = FACTS["outside"]
"""Effects of settings that the schema has no field for, by their patterns; see `Adapter.decides`."""
MAIN = "skyrl.train.entrypoints.main_base"
FULLY_ASYNC, LOOKAHEAD = "examples.train.fully_async.main_fully_async", "examples.train.async.main_async"
ENDLESS = 1_000_000
"""Epochs that no run reaches: how a run that only `max_training_steps` ends is written."""
SCHEDULES: Sequence[str] = FACTS["schedules"]
"""Schedules that need no arguments: none are handed on. Source: FSDPStrategy._fsdp_init_train_model, transformers."""


def _whole(canonical: float | None) -> int:
    """The value; `Unsayable` where the schema has no word. Where nothing is said: none."""
    if canonical is not None and canonical % 1:
        raise Unsayable("SkyRL counts it whole")
    return int(canonical or 0)


def _scheduler(canonical: str | None) -> str:
    found = [name for name in SCHEDULES if schedule_text(name) == (canonical or "constant")]
    return found[0] if found else str(canonical)


def _epochs(native: int) -> float | None:
    return None if native >= ENDLESS else float(native)


_SCHEDULER, _WARMUP = (f"trainer.policy.optimizer_config.{name}" for name in ("scheduler", "num_warmup_steps"))
KEYS = (
    *recorded(FACTS["settings"]),
    Key(_SCHEDULER, text, SCHEDULES[0], "carried.lr_schedule", (schedule_text, _scheduler)),
    Key(_WARMUP, count, 0, "carried.warmup_steps", (float, _whole), unit="optimizer steps"),
    Key("trainer.epochs", natural, 1, "horizon.epochs", (_epochs, _whole)),
    *(row._replace(versions=versions) for versions, table in FACTS["later"].items() for row in recorded(table)),
)
"""The rows by key: of two for one key the later counts."""
DECLARED = (
    *recorded(FACTS["declared"]),
    *(
        row._replace(versions=versions)
        for versions, table in FACTS["declared_later"].items()
        for row in recorded(table)
    ),
)
TOGETHER = tuple(recorded_together(FACTS["together"]))
KNOWN = {
    row.keys[0].rpartition(".")[2]: [ours[0] for ours in row.values if ours[0] is not ...] for row in TOGETHER[1:4]
}
"""Names that loss_reduction, advantage_estimator and policy_loss_type have rows for."""


@cache
def full(end: str) -> str:
    """The setting whose key ends so: "loss_reduction". Raises `ValueError` where it is not exactly one."""
    (found,) = {row.key for row in KEYS if row.key == end or row.key.endswith(f".{end}")}
    return str(found)


class SkyRLRun(dict[str, Any]):
    """Native values, also by the ends of their keys: run["loss_reduction"]; None where a release has no such key."""

    def __missing__(self, end: str) -> Any:
        return self.get(full(end))
