"""What PocketRay's settings mean. Pure: nothing here imports PocketRay, Ray or torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from batchbridge import Behaviour, Fix, Reading, Source
from batchbridge.kit import Context, NativeStep, Row, token_weights
from batchbridge.kit.key_table import Codes, Key
from batchbridge.kit.kinds import natural, one_of, real
from batchbridge.kit.rule_table import BUILDING, SILENT, Rules, nearest_fixes, says
from batchbridge.kit.table_adapter import TableAdapter

AVERAGES = {"token": "token_mean", "sequence": "sequence_mean"}
KEYS = (
    Key("prompts", natural, 4, "rollout.prompts_per_rollout", unit="prompts"),
    Key("samples", natural, 4, "rollout.completions_per_prompt", unit="completions"),
    Key("step", natural, 8, "optimizer_step.completions_per_step", unit="completions"),
    Key("passes", natural, 1, "optimizer_step.passes_per_rollout"),
    Key("micro", natural, 2, "micro_batch.completions_per_device", unit="completions"),
    Key("workers", natural, 2, "topology.world_size"),
    Key("average", one_of(*AVERAGES), "token", "loss.policy.aggregation", AVERAGES),
    Key("clip", real(0), 0.2, ("objective.clip_low", "objective.clip_high")),
    Key("lr", real(0), 0.01, "carried.learning_rate"),
    Key("epochs", real(0), 1.0, "horizon.epochs"),
)
"""Every setting: its kind, its default, and the canonical field that it decides alone."""
CONSTANTS = {
    "advantage.epsilon": 1e-6,
    "advantage.ddof": 1,
    "order.prompt_shuffle": "none",
    "order.last_optimizer_step": "error",
    "objective.surrogate": "ppo",
    "objective.ratio_level": "token",
    "objective.old_logprobs": "rollout_start",
    "objective.kl_placement": "none",
    "objective.kl_coefficient": 0.0,
    "objective.entropy_coefficient": 0.0,
    "objective.nonfinite_step": "apply",
    "carried.lr_schedule": "constant",
    "carried.optimizer": "sgd",
    "carried.weight_decay": 0.0,
    "carried.max_gradient_norm": 0.0,
    "carried.precision": "fp32",
}
"""What PocketRay's code fixes. Source: pocketray 1.0."""


RULES = Rules[Mapping[str, Any]]()


def _even(native: Mapping[str, Any]) -> tuple[Fix, ...]:
    sizes = ("step", "prompts", "samples", "workers")
    return nearest_fixes(native, sizes, lambda now: _uneven_steps(now) is None and _uneven_shares(now) is None)[:3]


@RULES.add(BUILDING, "BB-RAY-010", "prompts", "samples", "step", fixes=_even)
@says("ValueError: a rollout does not split into equal steps", "pocketray 1.0 Driver.__init__")
def _uneven_steps(native: Mapping[str, Any]) -> str | None:
    total, step = native["prompts"] * native["samples"], native["step"]
    if total % step == 0:
        return None
    return f"prompts x samples = {total} (completions of a rollout) are not a multiple of step = {step} (completions)"


@RULES.add(BUILDING, "BB-RAY-011", "step", "workers", fixes=_even)
@says("ValueError: a step does not split into equal shares of the workers", "pocketray 1.0 Driver.__init__")
def _uneven_shares(native: Mapping[str, Any]) -> str | None:
    step, workers = native["step"], native["workers"]
    return None if step % workers == 0 else f"step = {step} (completions) is not a multiple of workers = {workers}"


@RULES.add(SILENT, "BB-RAY-012", "micro", "workers", fixes=lambda native: (Fix("wrap the driver"),))
@says("trains it", "pocketray 1.0 Replica.factor")
def _cut(native: Mapping[str, Any]) -> str | None:
    share, micro = native["step"] // native["workers"], native["micro"]
    whole = native["workers"] == 1 and micro >= share
    if whole or (native["average"] == "sequence" and (share % micro == 0 or micro > share)):
        return None
    return (
        f"{micro} completions are averaged at a time, and then those means: the gradient depends on micro and workers"
    )


class PocketRayAdapter(TableAdapter):
    """Framework `pocketray`."""

    framework = "pocketray"
    distribution = "pocketray"
    versions = "==1.0"
    writes = "1.0"
    enforced_versions = "==1.0"
    runtime = "pocketray_batchbridge.runtime:RUNTIME"
    keys = KEYS
    constants = CONSTANTS
    codes = Codes.of("BB-RAY")
    trainers = frozenset({("pocketray", "Driver")})
    rules = RULES

    def behaviour_of(self, native: Mapping[str, Any], version: str) -> Behaviour:
        """A worker averages each micro-batch by itself."""
        return Behaviour(
            order="the dataset's",
            membership="a rollout's completions, cut in their order",
            denominator_scope="micro_batch",
            denominator_formula="the micro-batch's tokens (or sequences), then the mean over micro-batches and workers",
            lr_tick="constant",
            resume="none",
            source="pocketray 1.0 Replica.factor, average_gradients",
        )

    def enforces(self, path: str, value: object) -> bool:
        """What `attach` takes from a plan; see `pocketray_batchbridge.driver`."""
        return path in ("optimizer_step.rollout_shuffle", "order.prompt_shuffle", "order.seed")

    def native_steps(
        self, reading: Reading, dataset_size: int, response_tokens: Mapping[tuple[int, int], int]
    ) -> Iterator[NativeStep]:
        """Consecutive completions in consecutive shares, weighed by micro-batch."""
        for step in super().native_steps(reading, dataset_size, response_tokens):
            assert reading.spec is not None, "the steps of a run that is open are refused above"
            term = dataclasses.replace(reading.spec.loss.policy, denominator_scope="micro_batch")
            rows = [
                Row(tokens=response_tokens[row.prompt, row.sample], micro_batch=(row.rank, row.micro_batch))
                for row in step.rows
            ]
            weighed = zip(step.rows, token_weights(term, rows), strict=True)
            yield NativeStep(
                index=step.index, rows=tuple(dataclasses.replace(row, weight=weight) for row, weight in weighed)
            )

    def hooks(self) -> Mapping[str, str]:
        """Ray's workers belong to the launch, and a driver is wrapped before it trains."""
        return {"ray": "batchbridge.kit:reach_workers", "pocketray": "pocketray_batchbridge.launched:driver"}

    def source_of(self, trainer: object) -> tuple[Source, Context]:
        """Its settings, and the prompts that it has."""
        settings, prompts = trainer.settings, trainer.prompts  # type: ignore[attr-defined]  # a Driver
        return Source(values=settings), Context(dataset_size=len(prompts))
