"""Two frameworks that do not exist: one that says everything, and one that says little."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, ClassVar

from batchbridge import Adapter, Finding, Reading, Spec, hookimpl
from batchbridge.contract.reading import Behaviour, Context, Defect, NativeRow, NativeStep, Provenance, Source, Written
from batchbridge.errors import CannotWrite, Problem
from batchbridge.kit.even_sizes import even_sizes
from batchbridge.meaning.findings import Fix, Where
from batchbridge.meaning.spec import (
    Carried,
    Horizon,
    Loss,
    LossTerm,
    MicroBatch,
    Objective,
    OptimizerStep,
    Rollout,
    Topology,
    walk,
)

BEHAVIOUR = Behaviour(
    order="as seeded",
    membership="consecutive blocks",
    denominator_scope="optimizer_step",
    denominator_formula="1 / T",
    lr_tick="every optimizer step",
    resume="exact",
    source="anything 1.0",
)


def plain_spec(world_size: int = 4, **changes: Any) -> Spec:
    """16 prompts of 8 completions, optimizer steps of 64: two steps per rollout."""
    spec = Spec(
        topology=Topology(world_size=world_size),
        rollout=Rollout(prompts_per_rollout=16, completions_per_prompt=8),
        optimizer_step=OptimizerStep(completions_per_step=64),
        micro_batch=MicroBatch(completions_per_device=4),
        loss=Loss(policy=LossTerm(aggregation="token_mean")),
        horizon=Horizon(epochs=1.0),
        objective=Objective(surrogate="ppo", kl_placement="none", kl_coefficient=0.0, entropy_coefficient=0.0),
        carried=Carried(learning_rate=1e-6),
    )
    return spec.replace(**{"order.seed": 1, **changes})


class AnyAdapter(Adapter):
    """Framework `anything`: its configuration is the specification itself, under the key `spec`."""

    framework: ClassVar[str] = "anything"
    versions: ClassVar[str] = ">=1,<2"
    behaviour: ClassVar[Behaviour] = BEHAVIOUR

    def detect(self, source: Source) -> float:
        return float("spec" in source.values)

    def read(self, source: Source, context: Context) -> Reading:
        findings, spec = list(source.problems), None
        try:
            spec = Spec.from_dict(source.values.get("spec", plain_spec().to_dict()))
        except ValueError as error:
            findings.append(Finding("BB-ANY-001", "error", "config", str(error), (Where("spec"),), (Fix("mend it"),)))
        if spec is not None and context.world_size is not None:
            spec = spec.replace(**{"topology.world_size": context.world_size})
        return Reading(
            framework=self.framework,
            framework_version=context.framework_version or "1.0",
            spec=spec,
            provenance={}
            if spec is None
            else {path: Provenance((f"spec.{path}",), value, "argument", "as said") for path, value, _ in walk(spec)},
            behaviour=None if spec is None else self.behaviour,
            findings=tuple(findings),
            native=dict(source.values),
            dataset_size=context.dataset_size,
        )

    def check(self, reading: Reading) -> Sequence[Finding]:
        return ()

    def write(self, spec: Spec, framework_version: str | None = None) -> Written:
        data = copy.deepcopy(spec.to_dict())
        return Written(values={"spec": data}, text={"json": "{}"}, framework_version="1.0")

    def native_steps(
        self, reading: Reading, dataset_size: int, response_tokens: Mapping[tuple[int, int], int]
    ) -> Iterator[NativeStep]:
        row = NativeRow(rollout=0, pass_index=0, prompt=0, sample=0, rank=0, micro_batch=0, weight=Fraction(1))
        yield NativeStep(index=0, rows=(row,))


class NarrowAdapter(AnyAdapter):
    """Framework `narrow`: fixed micro-batches, one kind of loss, epochs only; it refuses by canonical names."""

    framework: ClassVar[str] = "narrow"
    behaviour: ClassVar[Behaviour] = Behaviour(
        order="as seeded",
        membership="consecutive blocks",
        denominator_scope="micro_batch",
        denominator_formula="1 / T_m",
        lr_tick="every optimizer step",
        resume="exact",
        defects=(Defect(code="BB-NARROW-900", summary="forgets the seed on resume", source="narrow issue 1"),),
    )

    def detect(self, source: Source) -> float:
        return 0.0  # by name only: its files look like those of `anything`

    only: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "topology.tensor_parallel": (1,),
        "topology.pipeline_parallel": (1,),
        "topology.context_parallel": (1,),
        "micro_batch.tokens_per_device": (None,),
        "loss.policy.aggregation": ("token_mean", "sequence_mean"),
        "loss.policy.constant": (None,),
        "loss.kl": (None,),
        "loss.entropy": (None,),
        "optimizer_step.tokens_per_step": (None,),
        "optimizer_step.parts_per_rollout": (None,),
        "optimizer_step.micro_batches_per_step": (None,),
        "optimizer_step.step_may_span": ("none", "epoch"),
        "order.last_rollout": ("drop", "short"),
        "order.prompt_shuffle": ("none", "epoch_permutation"),
        "objective.kl_placement": (None, "none", "loss"),
        "objective.kl_estimator": (None, "k3"),
        "staleness.mode": ("sync",),
        "horizon.rollouts": (None,),
        "advantage.epsilon": (None, 1e-6),
        "open_terms": ((),),
    }

    def write(self, spec: Spec, framework_version: str | None = None) -> Written:
        problems = [
            Problem(
                (path,),
                f"{path} = {value}: narrow has {' or '.join(map(str, only))}",
                tuple({path: one} for one in only),
            )
            for path, only in self.only.items()
            if (value := _value(spec, path)) not in only
        ]
        step, micro = spec.optimizer_step.completions_per_step, spec.micro_batch.completions_per_device
        if step is None or micro is None or step % (micro * spec.topology.world_size):
            fields = (
                "optimizer_step.completions_per_step",
                "micro_batch.completions_per_device",
                "topology.world_size",
            )
            reason = (
                f"optimizer_step.completions_per_step = {step}: must be a multiple of "
                f"micro_batch.completions_per_device = {micro} x topology.world_size = {spec.topology.world_size}"
            )
            problems.append(Problem(fields, reason, tuple(even_sizes(spec, whole_rollouts=False))))
        if problems:
            raise CannotWrite(self.framework, problems)
        if spec.advantage.epsilon is None:
            spec = spec.replace(**{"advantage.epsilon": 1e-6})
        return super().write(spec)

    def check(self, reading: Reading) -> Sequence[Finding]:
        spec = reading.spec
        step = None if spec is None else spec.optimizer_step.completions_per_step
        if spec is None or step is None or step % spec.topology.world_size == 0:
            return ()
        text = f"{step} completions per step on {spec.topology.world_size} devices"
        return [Finding("BB-NARROW-001", "error", "construction", text, (Where("spec"),), (Fix("another size"),))]

    enforced_versions: ClassVar[str] = ">=1"

    def enforces(self, path: str, value: object) -> bool:
        return path == "order.last_rollout" and value in ("drop", "short", "pad")


def _value(spec: Spec, path: str) -> Any:
    value: Any = spec
    for name in path.split("."):
        value = getattr(value, name)
    return value


def reading_of(spec: Spec, adapter: AnyAdapter | None = None, dataset_size: int | None = None) -> Reading:
    """A reading of `spec` by `anything`, or another of these frameworks, checked."""
    from batchbridge.reading.read import read_source

    adapter = adapter or AnyAdapter()
    context = Context(world_size=spec.topology.world_size, dataset_size=dataset_size)
    return read_source(Source(values={"spec": spec.to_dict()}), adapter, context)


@hookimpl
def batchbridge_adapters() -> Iterable[type[Adapter]]:
    return [AnyAdapter, NarrowAdapter]
