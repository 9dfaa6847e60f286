"""A small framework and its adapter, for tests of everything between a user's input and the answer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

from batchbridge import Adapter, Finding, Reading, Spec, hookimpl
from batchbridge.contract.reading import Behaviour, Context, Defect, NativeRow, NativeStep, Provenance, Source, Written
from batchbridge.meaning.findings import Fix, Where
from batchbridge.meaning.spec import Horizon, Loss, LossTerm, OptimizerStep, Rollout, Topology

FIELDS = {
    "toy.devices": ("topology.world_size", 2),
    "toy.prompts": ("rollout.prompts_per_rollout", 4),
    "toy.group": ("rollout.completions_per_prompt", 2),
    "toy.step": ("optimizer_step.completions_per_step", 8),
    "toy.epochs": ("horizon.epochs", 1),
}
"""Native key to canonical field and default."""


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


class ToyAdapter(Adapter):
    framework = "toy"
    versions = ">=1,<3"
    enforced_versions = "==2.*"

    def detect(self, source: Source) -> float:
        keys = [key for key, _ in flat(source.values)]
        return float(any(key.startswith("toy.") for key in keys))

    def read(self, source: Source, context: Context) -> Reading:
        native = {key: default for key, (_, default) in FIELDS.items()}
        findings, provenance = [], {}
        said = dict(flat(source.values))
        for key, value in said.items():
            where = (Where(key=key, value=value, file=self._file(source, key), line=source.lines.get(key)),)
            if key not in FIELDS:
                findings.append(Finding("BB-TOY-001", "error", "config", f"{key} is unknown", where))
            elif not isinstance(value, int):
                findings.append(Finding("BB-TOY-002", "error", "config", f"{key} must be a whole number", where))
            else:
                native[key] = value
        if context.world_size is not None:
            native["toy.devices"] = context.world_size
        for key, (path, _) in FIELDS.items():
            line = source.lines.get(key)
            if key not in said:
                provenance[path] = Provenance((), native[key], "default", "default of toy 2.0")
            elif line is None:
                provenance[path] = Provenance((key,), native[key], "argument", "argument")
            else:
                file = str(source.path)
                provenance[path] = Provenance((key,), native[key], "file", f"{file}:{line}", file, line)
        spec = Spec(
            topology=Topology(world_size=native["toy.devices"]),
            rollout=Rollout(prompts_per_rollout=native["toy.prompts"], completions_per_prompt=native["toy.group"]),
            optimizer_step=OptimizerStep(completions_per_step=native["toy.step"]),
            loss=Loss(policy=LossTerm(aggregation="token_mean")),
            horizon=Horizon(epochs=native["toy.epochs"]),
        ).replace(**{"order.seed": 7})
        return Reading(
            framework="toy",
            framework_version=context.framework_version or "2.0",
            spec=spec,
            provenance=provenance,
            behaviour=Behaviour(
                order="as the dataset has it",
                membership="consecutive blocks",
                denominator_scope="micro_batch",
                denominator_formula="1 / T",
                lr_tick="every optimizer step",
                resume="from the last step",
                defects=(Defect(code="BB-TOY-900", summary="forgets the seed", source="toy issue 1"),),
            ),
            findings=tuple(findings),
            native=native,
        )

    def check(self, reading: Reading) -> Sequence[Finding]:
        step, devices = reading.native["toy.step"], reading.native["toy.devices"]
        if not devices or step % devices == 0:
            return ()
        origin = reading.provenance["optimizer_step.completions_per_step"]
        return [
            Finding(
                "BB-TOY-003",
                "error",
                "first_rollout",
                f"toy.step = {step} (completions) is not a multiple of {devices} devices",
                (Where(key="toy.step", value=step, file=origin.file, line=origin.line),),
                (Fix(f"toy.step = {step - step % devices}", {"toy.step": step - step % devices}),),
                native='AssertionError "uneven"',
                source="toy 2.0, Trainer.split",
            )
        ]

    def write(self, spec: Spec, framework_version: str | None = None) -> Written:
        values = {"toy.prompts": spec.rollout.prompts_per_rollout}
        return Written(values=values, text={"yaml": f"toy:\n  prompts: {values['toy.prompts']}\n"})

    def native_steps(
        self, reading: Reading, dataset_size: int, response_tokens: Mapping[tuple[int, int], int]
    ) -> Iterator[NativeStep]:
        row = NativeRow(rollout=0, pass_index=0, prompt=0, sample=0, rank=0, micro_batch=0, weight=Fraction(1))
        yield NativeStep(index=0, rows=(row,))

    @staticmethod
    def _file(source: Source, key: str) -> str | None:
        return str(source.path) if key in source.lines else None


@hookimpl
def batchbridge_adapters() -> Iterable[type[Adapter]]:
    return [ToyAdapter]
