"""What PocketGRPO's settings mean. Pure: nothing here imports PocketGRPO or torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from batchbridge import (
    Adapter,
    Attachment,
    Behaviour,
    CannotWrite,
    Finding,
    Fix,
    Problem,
    Provenance,
    Reading,
    Source,
    Spec,
    Where,
    Written,
)
from batchbridge.kit import (
    Advantage,
    Carried,
    Context,
    Horizon,
    Loss,
    LossTerm,
    MicroBatch,
    NativeRow,
    NativeStep,
    Objective,
    OptimizerStep,
    Order,
    Request,
    Rollout,
    Row,
    Topology,
    Variable,
    neighbours,
    token_weights,
    walk,
)
from batchbridge.kit.near_names import near_names
from batchbridge.kit.rule_table import Rule, defects, findings
from batchbridge.kit.versions import holds, installed, unknown_version
from batchbridge.kit.writing import objections

DEFAULTS: Mapping[str, Any] = {
    "groups": 4,
    "samples": 4,
    "updates": 1,
    "reuse": 1,
    "micro": 4,
    "average": "token",
    "clip": 0.2,
    "lr": 0.01,
    "epochs": 1,
    "seed": 0,
}
AVERAGES = {"token": "token_mean", "sequence": "sequence_mean"}
FIELDS = {
    "rollout.prompts_per_rollout": "groups",
    "rollout.completions_per_prompt": "samples",
    "optimizer_step.completions_per_step": "updates",
    "optimizer_step.passes_per_rollout": "reuse",
    "micro_batch.completions_per_device": "micro",
    "loss.policy.aggregation": "average",
    "objective.clip_low": "clip",
    "objective.clip_high": "clip",
    "carried.learning_rate": "lr",
    "horizon.epochs": "epochs",
    "order.seed": "seed",
}
"""Canonical field to the setting that it comes from; every other field is fixed by PocketGRPO's code."""


def _uneven(native: Mapping[str, Any]) -> str | None:
    total, updates = native["groups"] * native["samples"], native["updates"]
    if total % updates == 0:
        return None
    return f"groups x samples = {total} (completions per batch) do not split into updates = {updates} equal steps"


def _even(native: Mapping[str, Any]) -> tuple[Fix, ...]:
    sizes = [Variable(name, native[name]) for name in ("updates", "groups", "samples")]
    found = neighbours(sizes, lambda now: now["groups"] * now["samples"] % now["updates"] == 0)
    return tuple(Fix(", ".join(f"{key} = {value}" for key, value in fix.items()), fix) for fix in found[:3])


def _cut(native: Mapping[str, Any]) -> str | None:
    step = native["groups"] * native["samples"] // native["updates"]
    if native["micro"] >= step:
        return None
    return f"each micro-batch of {native['micro']} completions is averaged by itself: the gradient depends on micro"


RULES: tuple[Rule[Mapping[str, Any]], ...] = (
    Rule(
        "BB-POCKET-010",
        "error",
        "construction",
        _uneven,
        ("groups", "samples", "updates"),
        native="ValueError: a batch does not split into equal updates",
        source="pocketgrpo 1.0 PocketTrainer.__init__",
        fixes=_even,
    ),
    Rule(
        "BB-POCKET-011",
        "warning",
        "never",
        _cut,
        ("micro",),
        native="trains it",
        source="pocketgrpo 1.0 PocketTrainer.share",
        fixes=lambda native: (Fix("wrap the trainer"),),
    ),
)


class PocketAdapter(Adapter):
    """Framework `pocketgrpo`."""

    framework: ClassVar[str] = "pocketgrpo"
    distribution: ClassVar[str | None] = "pocketgrpo"
    versions: ClassVar[str] = "==1.0"
    enforced_versions: ClassVar[str] = "==1.0"

    def detect(self, source: Source) -> float:
        known = DEFAULTS.keys() & {key for key in source.values if isinstance(key, str)}
        return len(known) / max(len(source.values), 1)

    def read(self, source: Source, context: Context) -> Reading:
        version = context.framework_version or installed(self.distribution)
        problems = list(source.problems)
        if version is None or not holds(self.versions, version):
            codes = ("BB-POCKET-001", "BB-POCKET-002")
            problems.append(unknown_version("pocketgrpo", version, known="1.0", newest="1.0", codes=codes))
            return Reading(framework=self.framework, framework_version=version, findings=tuple(problems))
        if context.world_size not in (None, 1):
            where = (Where("world size", context.world_size),)
            text = f"{context.world_size} devices: pocketgrpo trains on one"
            problems.append(Finding("BB-POCKET-003", "error", "config", text, where, (Fix("use 1 device"),)))
        native, given = dict(DEFAULTS), {}
        file = None if source.path is None else str(source.path)
        strangers = [key for key in source.values if key not in DEFAULTS]
        near = near_names((key for key in strangers if isinstance(key, str)), DEFAULTS, cutoff=0.6)
        for key, value in source.values.items():
            place = Where(str(key)[:60], _short(value), file if key in source.lines else None, source.lines.get(key))
            if key in strangers:
                fixes = tuple(Fix(f"write {name}", {str(key): None, name: value}) for name in near.get(key, ()))
                text = f"{key!r:.60} is no setting of pocketgrpo"
                problems.append(Finding("BB-POCKET-004", "error", "config", text, (place,), fixes))
            elif not _fits(key, value):
                text = f"{key} = {value!r:.60} is no value for it"
                fix = Fix(f"{key} = {DEFAULTS[key]}, the default", {key: DEFAULTS[key]})
                problems.append(Finding("BB-POCKET-005", "error", "config", text, (place,), (fix,)))
            else:
                native[key], given[key] = value, place
        spec = None
        if not any(finding.severity == "error" for finding in problems) and _uneven(native) is None:
            spec = _spec_of(native)
        return Reading(
            framework=self.framework,
            framework_version=version,
            spec=spec,
            provenance={} if spec is None else _provenance(spec, native, given, version),
            behaviour=None if spec is None else _behaviour(native, version),
            findings=tuple(problems),
            native=native,
            given=given,
            dataset_size=context.dataset_size,
        )

    def check(self, reading: Reading) -> Sequence[Finding]:
        if not reading.native or reading.framework_version is None:
            return []
        return findings(RULES, reading.native, reading.framework_version, lambda keys: reading.where(*keys))

    def write(self, spec: Spec, framework_version: str | None = None) -> Written:
        said = {path: value for path, value, _ in walk(spec)}
        names = {ours: theirs for theirs, ours in AVERAGES.items()}
        values = {key: said.get(path) for path, key in FIELDS.items()}
        values["average"] = names.get(str(values["average"]), values["average"])
        total, size = spec.completions_per_rollout, spec.optimizer_step.completions_per_step
        values["updates"] = total // size if total and size and total % size == 0 else None
        values |= {key: DEFAULTS[key] for key in ("clip", "lr", "seed", "micro") if values[key] is None}
        problems = [
            Problem((path,), f"{path} = {said.get(path)!r}")
            for path, key in FIELDS.items()
            if not _fits(key, values[key])
        ]
        world = spec.topology.world_size
        if world not in (None, 1):
            problems.append(Problem(("topology.world_size",), f"{world} devices: pocketgrpo trains on one"))
        if not problems:
            context = Context(framework_version="1.0", world_size=world)
            problems = list(objections(self, spec, values, context))
        if problems:
            raise CannotWrite(self.framework, problems)
        text = "".join(f"{key}: {value}\n" for key, value in values.items())
        return Written(values=values, text={"yaml": text}, framework_version="1.0")

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

    def attach(self, trainer: object, request: Request) -> Attachment:
        from pocketgrpo_batchbridge.runtime import attach

        return attach(trainer, request)


def _fits(key: str, value: object) -> bool:
    if key == "average":
        return isinstance(value, str) and value in AVERAGES
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    if key in ("clip", "lr", "epochs"):
        return 0 <= value < 1e6
    return isinstance(value, int) and (abs(value) < 1 << 31 if key == "seed" else 1 <= value < 1 << 31)


def _short(value: object) -> object:
    return value if isinstance(value, (int, float)) and abs(value) < 1e30 else f"{value!r:.60}"


def _spec_of(native: Mapping[str, Any]) -> Spec:
    return Spec(
        topology=Topology(world_size=1),
        rollout=Rollout(prompts_per_rollout=native["groups"], completions_per_prompt=native["samples"]),
        optimizer_step=OptimizerStep(
            completions_per_step=native["groups"] * native["samples"] // native["updates"],
            passes_per_rollout=native["reuse"],
        ),
        micro_batch=MicroBatch(completions_per_device=native["micro"]),
        loss=Loss(policy=LossTerm(aggregation=AVERAGES[native["average"]])),  # type: ignore[arg-type]  # two of them
        advantage=Advantage(epsilon=1e-6, ddof=1),
        order=Order(seed=native["seed"], last_optimizer_step="error"),
        horizon=Horizon(epochs=float(native["epochs"])),
        objective=Objective(
            surrogate="ppo",
            ratio_level="token",
            clip_low=float(native["clip"]),
            clip_high=float(native["clip"]),
            old_logprobs="rollout_start",
            kl_placement="none",
            kl_coefficient=0.0,
            entropy_coefficient=0.0,
            nonfinite_step="apply",
        ),
        carried=Carried(
            learning_rate=float(native["lr"]),
            lr_schedule="constant",
            optimizer="sgd",
            weight_decay=0.0,
            max_gradient_norm=0.0,
            precision="fp32",
        ),
    )


def _provenance(
    spec: Spec, native: Mapping[str, Any], given: Mapping[str, Where], version: str
) -> Mapping[str, Provenance]:
    told = {}
    for path, value, _ in walk(spec):
        key = FIELDS.get(path)
        if key is None:
            told[path] = Provenance((), value, "derived", f"so in the code of pocketgrpo {version}")
        else:
            told[path] = Provenance.of(key, native[key], given.get(key), default=f"default of pocketgrpo {version}")
    return told


def _behaviour(native: Mapping[str, Any], version: str) -> Behaviour:
    return Behaviour(
        order="Python's shuffle, keyed by seed + epoch",
        membership="a batch's completions, cut in their order",
        denominator_scope="micro_batch",
        denominator_formula="the micro-batch's tokens (or sequences), then the mean over micro-batches",
        lr_tick="constant",
        resume="none",
        defects=defects(RULES, native, version),
        source="pocketgrpo 1.0 PocketTrainer",
    )


def _by_micro_batch(term: LossTerm) -> LossTerm:
    return LossTerm(aggregation=term.aggregation, denominator_scope="micro_batch")
