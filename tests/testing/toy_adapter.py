"""A complete adapter for a framework that does not exist: small enough to read, whole enough for the contract."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from batchbridge.contract.adapter import Adapter
from batchbridge.contract.reading import (
    Behaviour,
    Context,
    Defect,
    NativeRow,
    NativeStep,
    Provenance,
    Reading,
    Source,
    Written,
)
from batchbridge.errors import CannotWrite, PlanError, Problem
from batchbridge.kit.rule_table import BUILDING, SILENT, Rule
from batchbridge.meaning.findings import Finding, Fix, Where
from batchbridge.meaning.plan import Plan
from batchbridge.meaning.spec import (
    Carried,
    Horizon,
    Loss,
    LossTerm,
    OptimizerStep,
    Order,
    Rollout,
    Spec,
    Topology,
    walk,
)
from batchbridge.meaning.weights import Row, token_weights

RULES = (
    BUILDING("BB-TOY-010", lambda native: None, ("step", "devices"), native="AssertionError", source="toy 1.0"),
    SILENT("BB-TOY-020", lambda native: None, ("rate",), native="learns nothing", source="toy 1.0"),
)
"""What toy finds wrong, as a table tells it; `ToyAdapter.check` finds it."""
LOSSES = {"mean": "token_mean", "sum": "token_sum"}
DEFAULTS: Mapping[str, Any] = {
    "prompts": 4,
    "samples": 2,
    "step": 8,
    "epochs": 1,
    "rate": 0.5,
    "loss": "mean",
    "seed": 0,
}
FIELDS = {
    "rollout.prompts_per_rollout": "prompts",
    "rollout.completions_per_prompt": "samples",
    "optimizer_step.completions_per_step": "step",
    "horizon.epochs": "epochs",
    "carried.learning_rate": "rate",
    "loss.policy.aggregation": "loss",
    "order.seed": "seed",
    "topology.world_size": "devices",
}
"""Canonical field to native key."""


class ToyAdapter(Adapter):
    """Framework `toy`, versions 1 and 2."""

    framework: ClassVar[str] = "toy"
    versions: ClassVar[str] = ">=1,<3"

    def detect(self, source: Source) -> float:
        return len(set(source.values) & set(DEFAULTS)) / len(DEFAULTS)

    def read(self, source: Source, context: Context) -> Reading:
        findings, version = list(source.problems), context.framework_version or "2.0"
        native, spec = {**DEFAULTS, "devices": None}, None
        said = {} if context.world_size is None else {"devices": context.world_size}
        if version not in ("1.0", "2.0"):
            where = (Where("toy version", version),)
            text = f"toy {version} is not known"
            findings.append(Finding("BB-TOY-001", "error", "config", text, where, (Fix("toy 2.0"),)))
            return Reading(framework="toy", framework_version=version, findings=tuple(findings))
        if said and source.values.get("devices", context.world_size) != context.world_size:
            text, where = f"devices: {context.world_size} were asked for", (Where("devices", source.values["devices"]),)
            findings.append(Finding("BB-TOY-005", "error", "config", text, where, (Fix("one of the two"),)))
        for key, value in {**said, **source.values}.items():
            if key not in native:
                text, where = f"{key!r} is not a key of toy", (Where(str(key), None, "toy.yaml"),)
                findings.append(Finding("BB-TOY-002", "error", "config", text, where, (Fix("leave it out"),)))
            elif not fits(key, value):
                text, where = f"{key} = {value!r:.50} is not a value for it", (Where(key, repr(value)[:50]),)
                findings.append(
                    Finding("BB-TOY-003", "error", "config", text, where, (Fix(f"{DEFAULTS.get(key, 8)}"),))
                )
            else:
                native[key] = value
        if native["devices"] is None:
            text = "devices: not said"
            findings.append(Finding("BB-TOY-004", "warning", "config", text, (Where("devices"),), undecided=True))
        if not findings:
            spec = spec_of(native)
        provenance = {}
        if spec is not None:
            for path, value, _ in walk(spec):
                key = FIELDS.get(path)
                origin = "derived" if key is None else "argument" if key in source.values else "default"
                line = source.lines.get(key)
                provenance[path] = Provenance(
                    () if key is None else (key,),
                    native.get(key, value),
                    origin if line is None else "file",
                    f"{key or 'always so'} of toy {version}",
                    None if line is None else str(source.path),
                    line,
                )
        idle = Defect(code="BB-TOY-020", summary="nothing is learnt", source="toy")
        behaviour = Behaviour(
            order="as seeded", membership="as planned", denominator_scope="optimizer_step", denominator_formula="T",
            lr_tick="optimizer step", resume="exact", source="toy",
            defects=() if native["rate"] else (idle,),
        )  # fmt: skip
        return Reading(
            framework="toy", framework_version=version, spec=spec, provenance=provenance,
            behaviour=None if spec is None else behaviour, findings=tuple(findings), native=native,
            dataset_size=context.dataset_size,
            given={
                key: Where(key, value, None if source.path is None else str(source.path), source.lines.get(key))
                for key, value in source.values.items() if key in native
            },
        )  # fmt: skip

    def rows(self) -> Sequence[Rule[Any]]:
        return RULES

    def check(self, reading: Reading) -> Sequence[Finding]:
        if reading.spec is not None and not reading.native["rate"]:
            fixes = (Fix("rate = 1", {"rate": 1}),)
            return [Finding("BB-TOY-020", "warning", "never", "nothing is learnt", (Where("rate", 0),), fixes)]
        if reading.spec is None or reading.native["step"] % reading.native["devices"] == 0:
            return []
        step, devices = reading.native["step"], reading.native["devices"]
        text = f"step = {step} (completions) is not a multiple of devices = {devices}"
        where, nearest = (Where("step", step), Where("devices", devices)), math.ceil(step / devices) * devices
        fix = Fix(f"step = {nearest}", {"step": nearest})
        return [Finding("BB-TOY-010", "error", "construction", text, where, (fix,), source="toy 1.0")]

    def write(self, spec: Spec, framework_version: str | None = None) -> Written:
        if spec.carried.learning_rate is None:  # unknown: toy's default is as good as any
            spec = spec.replace(**{"carried.learning_rate": DEFAULTS["rate"]})
        given = spec.values
        names = {ours: native for native, ours in LOSSES.items()}
        values = {key: given[path] for path, key in FIELDS.items()}
        values["loss"] = names.get(values["loss"], values["loss"])
        paths = {key: path for path, key in FIELDS.items()}
        bad = [Problem((paths[key],), f"{key} = {value!r}") for key, value in values.items() if not fits(key, value)]
        if bad:
            raise CannotWrite(self.framework, bad)
        said = spec_of(values)
        if said != spec:
            theirs = said.values
            paths = sorted(path for path in {*given, *theirs} if given.get(path) != theirs.get(path))
            raise CannotWrite(self.framework, [Problem((path,), f"{path} = {given.get(path)!r}") for path in paths])
        return Written(values=values, text={"yaml": "".join(f"{key}: {value}\n" for key, value in values.items())})

    def native_steps(
        self, reading: Reading, dataset_size: int, response_tokens: Mapping[tuple[int, int], int]
    ) -> Iterator[NativeStep]:
        assert reading.spec is not None
        try:
            plan = Plan(reading.spec, dataset_size)
        except PlanError as error:
            raise ValueError(error.reason) from error
        world_size = reading.spec.topology.world_size
        for step in plan.steps():
            tokens = [response_tokens[member.prompt, member.sample] for member in step.members]
            weights = token_weights(reading.spec.loss.policy, [Row(tokens=count) for count in tokens])
            yield NativeStep(
                index=step.index,
                rows=tuple(
                    NativeRow(
                        rollout=member.rollout, pass_index=member.pass_index, prompt=member.prompt,
                        sample=member.sample, rank=i % world_size, micro_batch=i, weight=weight,
                    )
                    for i, (member, weight) in enumerate(zip(step.members, weights, strict=True))
                ),
            )  # fmt: skip


def fits(key: str, value: Any) -> bool:
    """Whether toy takes `value` for `key`."""
    if key == "loss":
        return isinstance(value, str) and value in LOSSES
    if key in ("epochs", "rate"):
        return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e6
    return isinstance(value, int) and not isinstance(value, bool) and (key == "seed" or 1 <= value < 10**9)


def spec_of(native: Mapping[str, Any]) -> Spec:
    """What toy's settings mean."""
    return Spec(
        topology=Topology(world_size=native["devices"]),
        rollout=Rollout(prompts_per_rollout=native["prompts"], completions_per_prompt=native["samples"]),
        optimizer_step=OptimizerStep(completions_per_step=native["step"]),
        loss=Loss(policy=LossTerm(aggregation=LOSSES[native["loss"]])),
        horizon=Horizon(epochs=float(native["epochs"])),
        order=Order(seed=native["seed"]),
        carried=Carried(learning_rate=float(native["rate"])),
    )
