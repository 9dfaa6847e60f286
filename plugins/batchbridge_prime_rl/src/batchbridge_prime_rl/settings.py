"""prime-rl's settings. `settings.json` is the table: each field of RLConfig with its kind, its default (null also where
it has none, or where it follows another) and the canonical field that it decides alone. Where prime-rl has alternatives
under one name (`type`), the rows are those of all. `declared` are those that decide nothing here. `constants` are what
its code fixes: rl/loss.py, rl/train.py, model.py, StandardSampler, TrainSamplingConfig.

Source: prime-rl 0.8.0 (v0.8.1.dev67, 559b44772) packages/prime-rl-configs, configs/*.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from batchbridge.kit.key_table import Key, recorded
from batchbridge.kit.kinds import Kind, WrongValue

FACTS: Mapping[str, Any] = json.loads(Path(__file__).with_name("settings.json").read_text(encoding="utf-8"))
SOURCES = "orchestrator.train.source"
SAMPLING = "orchestrator.train.sampling"
EXTRA = f"{SAMPLING}.extra_body"
PRUNING = "orchestrator.train.filter_zero_advantages"
BATCH, TOKENS, GROUP = "orchestrator.batch_size", "orchestrator.token_batch_size", "orchestrator.group_size"
AGE = "orchestrator.max_off_policy_steps"
ALGORITHM, PENALTY, ROLES = "orchestrator.algo.type", "orchestrator.algo.length_penalty", "orchestrator.algo.roles"
OPTIMIZERS = (("sgd", "momentum"), ("sgd", "nesterov"), ("muon", "mu"))
DECAY = "orchestrator.algo.decay"
LOSS, SCHEDULER, NORM = "trainer.loss", "trainer.scheduler", "trainer.optim.max_norm"
STEPS, LENGTHS = "trainer.max_steps", ("orchestrator.seq_len", "trainer.model.seq_len")
DEPLOYED, TRAINING, NODES, PER_NODE = (
    f"deployment.{name}" for name in ("type", "num_train_gpus", "num_train_nodes", "gpus_per_node")
)


def _tables(value: Any) -> Any:
    if isinstance(value, list) and all(isinstance(one, Mapping) for one in value):
        return value
    raise WrongValue("a list of tables")


_TABLES = Kind("tables", "a list of tables", _tables, {"type": "array", "items": {"type": "object"}})
KEYS = (
    *recorded(FACTS["settings"]),
    Key(SOURCES, _TABLES, [], meaning="environments, with settings of their own"),
)
"""The rows by key: of two for one key the later counts."""
DECLARED = tuple(recorded(FACTS["declared"]))
NAMES = frozenset(row.key for row in (*DECLARED, *KEYS))
_FOLLOWED = ("ckpt.", "log.", "model.", "monitors.", "resume.", "rollout_transport.", "tokenizer.", "weight_broadcast.")
SHARED = {"max_steps": (STEPS, "orchestrator.max_steps"), "seq_len": LENGTHS} | {
    key: tuple(part for part in (f"trainer.{key}", f"orchestrator.{key}") if part in NAMES)
    for key in sorted(NAMES)
    if key.startswith(_FOLLOWED)
}
"""Settings of the run, and those of its parts that follow them. Source: validation.propagate_shared_fields,
RLConfig.auto_setup_weight_broadcast, auto_setup_resume."""
SECTIONS = frozenset(row[:at] for row in NAMES for at, letter in enumerate(row) if letter == ".")
"""Tables: an empty one says nothing here."""
