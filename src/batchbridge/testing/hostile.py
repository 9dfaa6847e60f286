"""Inputs that no configuration should hold. Enumerated, so that a failure names its input and repeats."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from batchbridge.contract.reading import Source


def _deep() -> Any:
    """A value of 200 mappings in each other."""
    value: Any = 1
    for _ in range(200):
        value = {"x": [value]}
    return value


_DEEP = _deep()
HOSTILE: Mapping[str, Any] = {
    "none": None,
    "empty text": "",
    "text": "not a number",
    "text with a number": "1e400",
    "control characters": "\x00\n\ud7ff",
    "long text": "9" * 5000,
    "interpolation": "${oc.env:HOME}",
    "true": True,
    "zero": 0,
    "negative": -1,
    "huge": 10**40,
    "float": 2.5,
    "nan": float("nan"),
    "infinity": float("inf"),
    "list": [1, [2, [3]]],
    "empty list": [],
    "mapping": {"a": {"b": None}, "": 1},
    "deep": _DEEP,
    "object": object(),
    "bytes": b"\xff\xfe",
}
"""Values that no configuration should hold, by name."""

HOSTILE_SOURCES: Mapping[str, Source] = {
    "empty": Source(),
    "foreign object": Source(native=object()),
    "class": Source(native=int),
    "missing file": Source(path=Path("/nonexistent/recipe.yaml")),
    "odd arguments": Source(argv=("", "--", "=", "--=1", "--a", "--a=b=c", "a.b.c=", "\x00", "+x=1", "~y")),
    "keys that are not text": Source(values={1: 2, None: 3, ("a",): 4}),  # type: ignore[dict-item]  # hostile on purpose
    "odd keys": Source(values={"": 1, ".": 2, "..a": 3, "a.": 4, "a..b": 5, "é\n": 6}),
    "lines of other keys": Source(values={"x": 1}, lines={"y": 3}),
}
"""Whole inputs that are nobody's configuration, by name."""


FOREIGN: Mapping[str, Source] = {
    "trl": Source(values={"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "num_generations": 8}),
    "verl": Source(values={"data.train_batch_size": 64, "actor_rollout_ref.rollout.n": 8, "trainer.total_epochs": 1}),
    "openrlhf": Source(values={"rollout.batch_size": 128, "rollout.n_samples_per_prompt": 8, "train.batch_size": 128}),
    "open_instruct": Source(values={"num_unique_prompts_rollout": 8, "num_samples_per_prompt_rollout": 4, "beta": 0.0}),
    "easyr1": Source(values={"data": {"rollout_batch_size": 512}, "worker": {"actor": {"global_batch_size": 128}}}),
}
"""A configuration of each framework that BatchBridge itself reads."""


class HostileObject:
    """An object of which every attribute raises."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"attribute {name}")
