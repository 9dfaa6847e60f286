"""Our verdict and numbers for a configuration, held against what EasyR1's own code said of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from batchbridge.contract.reading import Context
from batchbridge.reading.files import load_source
from batchbridge.reading.read import read_source
from batchbridge_easyr1.config import EasyR1Adapter

PHASES = ("config", "construction", "worker_start", "first_rollout", "optimizer_step")
NUMBERS = {
    # EasyR1's own number -> ours
    "completions_per_device_per_step": "completions_per_device_per_step",
    "completions_per_rollout": "completions_per_rollout",
    "optimizer_steps_per_rollout": "optimizer_steps_per_rollout",
    "completions_per_step_and_device": "completions_per_device_per_step",
}


def disagreements(version: str, row: Mapping[str, Any]) -> list[str]:
    """What differs between us and `row`, a recorded line; empty where nothing does."""
    context = Context(framework_version=version, dataset_size=row["prompts"])
    reading = read_source(load_source(row["settings"]), EasyR1Adapter(), context)
    errors = [found for found in reading.findings if found.severity == "error" and found.phase in PHASES]
    phase = min((found.phase for found in errors), key=PHASES.index, default=None)
    mine = ", ".join(f"{found.code} ({found.phase}: {found.message})" for found in errors) or "nothing wrong"
    said = f"{row['phase']}: {row['error']}: {row['message']}"
    if phase != row["phase"]:
        return [f"EasyR1 {version} said {said}; we said {mine}"]
    if phase is not None:
        named = any(row["error"] in (found.native or "") for found in errors if found.phase == phase)
        if phase != "config" and not named:
            return [f"EasyR1 {version} said {said}; we named {[found.native for found in errors]}"]
        return []
    if reading.spec is None or reading.derived is None:
        return []
    ours = {name: reading.derived[field] for name, field in NUMBERS.items()}
    ours["training_steps"] = EasyR1Adapter().read(load_source(row["settings"]), context).run.training_steps
    portion, prompts = reading.spec.rollout.prompts_per_generation_batch, reading.spec.rollout.prompts_per_rollout
    # What becomes of generation batches that do not divide a rollout is EasyR1's own: the plan leaves the totals open.
    left_over = portion is not None and prompts is not None and prompts % portion
    known = None if left_over and reading.spec.horizon.rollouts is None else ours["training_steps"]
    assert reading.derived["total_rollouts"] == known
    if reading.spec.micro_batch.completions_per_device is not None:
        ours["micro_batches_per_step"] = reading.derived["gradient_accumulation_steps"]
    return [
        f"{name}: EasyR1 {row['numbers'][name]}, we {value}"
        for name, value in ours.items()
        if row["numbers"][name] != value
    ]
