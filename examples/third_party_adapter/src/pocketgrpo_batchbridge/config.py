"""What PocketGRPO's settings mean. Pure: nothing here imports PocketGRPO or torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from batchbridge import Behaviour, Fix, Reading, Source, Spec
from batchbridge.kit import Context, LossTerm, NativeRow, NativeStep, Row, token_weights
from batchbridge.kit.key_table import Codes, Key, Unsayable
from batchbridge.kit.kinds import natural, one_of, real, whole
from batchbridge.kit.rule_table import BUILDING, SILENT, Rules, nearest_fixes, says
from batchbridge.kit.table_adapter import TableAdapter
from batchbridge.kit.values import FieldValue, by

KEYS = (
    Key("groups", natural, 4, "rollout.prompts_per_rollout", unit="prompts per batch"),
    Key("samples", natural, 4, "rollout.completions_per_prompt", unit="completions per prompt"),
    Key("updates", natural, 1, unit="optimizer steps per batch"),
    Key("reuse", natural, 1, "optimizer_step.passes_per_rollout", unit="passes over a batch"),
    Key("micro", natural, 4, "micro_batch.completions_per_device", unit="completions"),
    Key(
        "average",
        one_of("token", "sequence"),
        "token",
        "loss.policy.aggregation",
        {"token": "token_mean", "sequence": "sequence_mean"},
    ),
    Key("clip", real(0), 0.2, ("objective.clip_low", "objective.clip_high")),
    Key("lr", real(0), 0.01, "carried.learning_rate"),
    Key("epochs", real(0), 1.0, "horizon.epochs"),
    Key("seed", whole(), 0, "order.seed"),
)
"""Every setting: its kind, its default, and the canonical field that it decides alone."""
CONSTANTS = {
    "advantage.epsilon": 1e-6,
    "advantage.ddof": 1,
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
"""What PocketGRPO's code fixes. Source: pocketgrpo 1.0 PocketTrainer."""


RULES = Rules[Mapping[str, Any]]()


def _even(native: Mapping[str, Any]) -> tuple[Fix, ...]:
    return nearest_fixes(native, ("updates", "groups", "samples"), lambda now: _uneven(now) is None)[:3]


@RULES.add(BUILDING, "BB-POCKET-010", "groups", "samples", "updates", fixes=_even)
@says("ValueError: a batch does not split into equal updates", "pocketgrpo 1.0 PocketTrainer.__init__")
def _uneven(native: Mapping[str, Any]) -> str | None:
    total, updates = native["groups"] * native["samples"], native["updates"]
    if total % updates == 0:
        return None
    return f"groups x samples = {total} (completions per batch) do not split into updates = {updates} equal steps"


@RULES.add(SILENT, "BB-POCKET-011", "micro", fixes=lambda native: (Fix("wrap the trainer"),))
@says("trains it", "pocketgrpo 1.0 PocketTrainer.share")
def _cut(native: Mapping[str, Any]) -> str | None:
    step = native["groups"] * native["samples"] // native["updates"]
    if native["micro"] >= step:
        return None
    return f"each micro-batch of {native['micro']} completions is averaged by itself: the gradient depends on micro"


class PocketAdapter(TableAdapter):
    """Framework `pocketgrpo`."""

    framework = "pocketgrpo"
    distribution = "pocketgrpo"
    versions = "==1.0"
    writes = "1.0"
    enforced_versions = "==1.0"
    runtime = "pocketgrpo_batchbridge.runtime:RUNTIME"
    keys = KEYS
    constants = CONSTANTS
    codes = Codes.of("BB-POCKET")
    rules = RULES
    devices = 1

    def derive(self, native: Mapping[str, Any]) -> Mapping[str, FieldValue]:
        """A batch is cut into equal steps."""
        size = native["groups"] * native["samples"] // native["updates"]
        formula = "groups x samples / updates (completions)"
        return {
            "optimizer_step.completions_per_step": by(size, formula, "groups", "samples", "updates"),
        }

    def restate(self, spec: Spec) -> Mapping[str, Any]:
        """The number of steps that a batch is cut into."""
        total, size = spec.completions_per_rollout, spec.optimizer_step.completions_per_step
        if not total or not size or total % size:
            path = "optimizer_step.completions_per_step"
            raise Unsayable(f"{path} = {size}: a batch of {total} completions is cut into equal steps", path)
        return {"updates": total // size}

    def behaviour_of(self, native: Mapping[str, Any], version: str) -> Behaviour:
        """PocketGRPO averages each micro-batch by itself."""
        return Behaviour(
            order="Python's shuffle, keyed by seed + epoch",
            membership="a batch's completions, cut in their order",
            denominator_scope="micro_batch",
            denominator_formula="the micro-batch's tokens (or sequences), then the mean over micro-batches",
            lr_tick="constant",
            resume="none",
            source="pocketgrpo 1.0 PocketTrainer",
        )

    def enforces(self, path: str, value: object) -> bool:
        """What `attach` takes from a plan; see `pocketgrpo_batchbridge.runtime`."""
        return path in ("optimizer_step.rollout_shuffle", "order.prompt_shuffle")

    def native_steps(
        self, reading: Reading, dataset_size: int, response_tokens: Mapping[tuple[int, int], int]
    ) -> Iterator[NativeStep]:
        """PocketGRPO's own order: Python's generator, keyed by seed and epoch."""
        if reading.spec is None:
            raise ValueError("the settings leave the run open")
        import random

        native, term = reading.native, reading.spec.loss.policy
        size = native["groups"] * native["samples"] // native["updates"]
        per_epoch, index = dataset_size // native["groups"], 0
        for batch in range(int(native["epochs"] * per_epoch)):
            epoch, place = divmod(batch, per_epoch)
            order = list(range(dataset_size))
            random.Random(native["seed"] + epoch).shuffle(order)
            prompts = order[place * native["groups"] :][: native["groups"]]
            everyone = [(prompt, sample) for prompt in prompts for sample in range(native["samples"])]
            for turn in range(native["reuse"]):
                for first in range(0, len(everyone), size):
                    part = everyone[first : first + size]
                    rows = [
                        Row(tokens=response_tokens[both], group=both[0], micro_batch=number // native["micro"])
                        for number, both in enumerate(part)
                    ]
                    weights = token_weights(_by_micro_batch(term), rows)
                    yield NativeStep(
                        index=index,
                        rows=tuple(
                            NativeRow(
                                rollout=batch,
                                pass_index=turn,
                                prompt=prompt,
                                sample=sample,
                                rank=0,
                                micro_batch=number // native["micro"],
                                weight=weight,
                            )
                            for number, ((prompt, sample), weight) in enumerate(zip(part, weights, strict=True))
                        ),
                    )
                    index += 1

    def owns(self, trainer: object) -> bool:
        return type(trainer).__module__.partition(".")[0] == "pocketgrpo"

    def source_of(self, trainer: object) -> tuple[Source, Context]:
        settings, prompts = trainer.settings, trainer.prompts  # type: ignore[attr-defined]  # a PocketTrainer
        return Source(values=settings), Context(world_size=1, dataset_size=len(prompts))


def _by_micro_batch(term: LossTerm) -> LossTerm:
    return LossTerm(aggregation=term.aggregation, denominator_scope="micro_batch")
