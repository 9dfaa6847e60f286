"""The result of a comparison of two readings, and its differences one by one."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, Literal

from batchbridge.contract.reading import Reading
from batchbridge.frozen import dataclass
from batchbridge.meaning.briefs import brief, many
from batchbridge.meaning.findings import Finding

DifferenceKind = Literal["differs", "unknown", "same"]
"""The kind of a difference. differs: another meaning. unknown: one side does not say. same: other values, and yet no
difference in meaning."""
ComparisonVerdict = Literal["equivalent", "not equivalent", "undecided", "invalid"]


@dataclass(frozen=True)
class Difference:
    """Two values of one field. `a` and `b` in the field's unit; `from_a` and `from_b` say where they come from.

    `field` is canonical (`rollout.prompts_per_rollout`), or begins with `native.` where the frameworks' own runs
    differ, with `outside.` where it is a native key that no canonical field comes from, or of two frameworks the
    word that they share for such keys (`outside.model`), and with `setting.` where it is a native key whose meaning is
    not known, since a side is undecided or invalid.
    """

    field: str
    aspect: str
    unit: str
    a: Any
    b: Any
    kind: DifferenceKind
    reason: str
    from_a: str = ""
    from_b: str = ""

    @property
    def subject(self) -> str:
        """The field, for a person; of a known defect its rule, of a setting its own name."""
        return self.field.removeprefix("setting.").replace("native.defect.", "known defect ")

    def to_dict(self) -> dict[str, Any]:
        """JSON types."""
        return dataclasses.asdict(self)


@dataclass(frozen=True, kw_only=True, repr=False)
class Comparison:
    """Two readings held against each other.

    differences: ranked, the largest effect first; where a side has no meaning, the settings that differ, in the
    order of the sides. cannot_tell: fields that one side leaves open. no_difference: other
    values with the same meaning. derived: (name, unit, a, b) of derived numbers that differ. left_open: what the
    frameworks decide by timing or random state, a's then b's; it does not count. not_compared: given native keys that
    no canonical field comes from, of two frameworks that share no word for them. example_devices: where a side does not
    say its devices, the number for which all this holds, as an example: no verdict rests on it.
    """

    a: Reading
    b: Reading
    differences: tuple[Difference, ...] = ()
    cannot_tell: tuple[Difference, ...] = ()
    no_difference: tuple[Difference, ...] = ()
    derived: tuple[tuple[str, str, Any, Any], ...] = ()
    left_open: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    not_compared: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    example_devices: int | None = None

    def __repr__(self) -> str:
        sides = f"{self.a.framework} with {self.b.framework}"
        return brief(self, sides, self.verdict, self._counted)

    def __str__(self) -> str:
        sides = f"{self.a.framework} with {self.b.framework}"
        return "; ".join([f"{sides}: {self.verdict}, {self._counted}", *self.missing])

    @property
    def _counted(self) -> str:
        if not self.missing:
            return many(self.differences, "difference")
        return f"not compared, {many(self.differences, 'different setting')}" if self.differences else "not compared"

    @property
    def missing(self) -> tuple[str, ...]:
        """The reasons why nothing is compared, each once, a sentence for a person: what keeps a side from a meaning.
        Empty where both sides have one, and then no difference means that there is none."""
        if self.example_devices is not None:
            return ()
        sides = [(name, side) for name, side in (("A", self.a), ("B", self.b)) if side.spec is None]
        said: dict[str, list[str]] = {}
        for name, side in sides:
            for why in missing(side.findings) or ("its meaning is not known",):
                said.setdefault(why, []).append(name)
        return tuple(f"{' and '.join(dict.fromkeys(names))}: {text}" for text, names in said.items())

    def _repr_html_(self) -> str:
        from batchbridge.meaning import notebook  # only notebooks ask

        listed = (*self.differences, *self.cannot_tell)
        rows = [(one.kind, one.field, one.a, one.b, one.unit, one.reason) for one in listed]
        return notebook.fragment(str(self), notebook.table(("kind", "field", "A", "B", "unit", "why"), rows))

    @property
    def verdict(self) -> ComparisonVerdict:
        """ "invalid" or "undecided" where a reading is; else what the differences say."""
        verdicts = {self.a.verdict, self.b.verdict}
        if "invalid" in verdicts:
            return "invalid"
        if "undecided" in verdicts or self.a.spec is None or self.b.spec is None:
            return "undecided"
        if self.differences:
            return "not equivalent"
        return "undecided" if self.cannot_tell else "equivalent"

    def to_dict(self) -> dict[str, Any]:
        """JSON types: verdict, a, b (framework, framework_version, verdict), and the lists of this class."""
        return {
            "verdict": self.verdict,
            **{
                side: {
                    "framework": reading.framework,
                    "framework_version": reading.framework_version,
                    "verdict": reading.verdict,
                    "findings": [finding.to_dict() for finding in reading.findings],
                }
                for side, reading in (("a", self.a), ("b", self.b))
            },
            "differences": [difference.to_dict() for difference in self.differences],
            "cannot_tell": [difference.to_dict() for difference in self.cannot_tell],
            "no_difference_in_meaning": [difference.to_dict() for difference in self.no_difference],
            "derived": [dict(zip(("name", "unit", "a", "b"), row, strict=True)) for row in self.derived],
            "left_open_natively": {"a": list(self.left_open[0]), "b": list(self.left_open[1])},
            "example_devices": self.example_devices,
            "not_compared": {"a": list(self.not_compared[0]), "b": list(self.not_compared[1])},
        }


def missing(findings: Iterable[Finding]) -> tuple[str, ...]:
    """The reasons why a reading has no meaning, each with its code, a sentence for a person."""
    open_ones = (found for found in findings if found.undecided or found.severity == "error")
    return tuple(dict.fromkeys(f"{found.code} {' '.join(found.message.split())}" for found in open_ones))
