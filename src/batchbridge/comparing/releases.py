"""One configuration under every known release of its framework: where it is valid, and what changes at which."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from batchbridge.comparing.differences import compare
from batchbridge.contract import plugins
from batchbridge.contract.reading import Reading
from batchbridge.meaning.findings import Verdict
from batchbridge.reading.read import read


@dataclass(frozen=True, kw_only=True)
class Span:
    """Consecutive releases that judge a configuration alike, from `first` to `last`.

    changes: canonical field to its values before and from `first` on. errors: what is wrong, in the words of `last`.
    """

    first: str
    last: str
    verdict: Verdict
    changes: dict[str, tuple[Any, Any]]
    errors: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON types."""
        return {**vars(self), "changes": {field: list(values) for field, values in self.changes.items()}}


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A configuration under all known releases. spans: oldest first. reading: of the newest release in which it is
    valid; of the newest one where it is valid in none."""

    spans: tuple[Span, ...]
    reading: Reading

    @property
    def verdict(self) -> Verdict:
        """ "valid" or "invalid" where every release agrees on that."""
        verdicts = {span.verdict for span in self.spans}
        return verdicts.pop() if len(verdicts) == 1 else "undecided"

    def lines(self) -> Iterator[str]:
        """A line for each span, for a person."""
        names = [span.first if span.first == span.last else f"{span.first} to {span.last}" for span in self.spans]
        for name, span in zip(names, self.spans, strict=True):
            said = [f"{field}: {_short(a)} before, {_short(b)} now" for field, (a, b) in span.changes.items()]
            yield f"  {name.ljust(max(map(len, names)))}  {span.verdict:<9}  {'; '.join([*span.errors, *said])}".rstrip()


def judged(source: object, framework: str, **said: Any) -> Judged | None:
    """`source` under every known release of `framework`; None where it has none. said: arguments of `read`."""
    adapter = plugins.adapters().get(framework)
    readings = [
        (v, read(source, framework=framework, version=v, **said)) for v in (adapter.releases if adapter else ())
    ]
    if not readings:
        return None
    spans: list[Span] = []
    before: Reading | None = None
    for version, reading in readings:
        errors = tuple(_errors(reading))
        changes = {} if before is None else {d.field: (d.a, d.b) for d in compare(before, reading).differences}
        changes = {field: values for field, values in changes.items() if not field.startswith(("native.", "outside."))}
        last = spans[-1] if spans else None
        same = last is not None and last.verdict == reading.verdict and not changes
        if last and same and _alike(last.errors, last.last) == _alike(errors, version):
            spans[-1] = Span(**{**vars(last), "last": version, "errors": errors})
        else:
            spans.append(Span(first=version, last=version, verdict=reading.verdict, changes=changes, errors=errors))
        before = reading if reading.spec is not None else before
    valid = [reading for _, reading in readings if reading.verdict == "valid"]
    return Judged(spans=tuple(spans), reading=(valid or [reading for _, reading in readings])[-1])


def _errors(reading: Reading) -> Iterator[str]:
    """What keeps a reading from being valid, errors before what is open; of several with one code, all keys at once."""
    wrong = [found for found in reading.findings if found.undecided or found.severity == "error"]
    for code in dict.fromkeys(found.code for found in wrong):
        alike = [found for found in wrong if found.code == code]
        keys = ", ".join(
            dict.fromkeys(str(found.where[0].key) for found in alike if found.where and found.where[0].key)
        )
        yield f"{code} {keys if len(alike) > 1 and keys else alike[0].message}"


def _alike(errors: tuple[str, ...], version: str) -> tuple[str, ...]:
    """Errors without the release that they name, and that of what it is read with."""
    return tuple(re.sub(r"\d+(\.\d+)+", "", error.replace(version, "")) for error in errors)


def _short(value: object) -> str:
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
