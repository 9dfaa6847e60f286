"""A certificate: what a run trained, in one JSON document, and whether a ledger says the same.

It is made of the ledger alone, and holds digests over the ledger's records: whoever has both can tell whether either
was changed. It proves that they agree, not who made them: nothing is signed. docs/ledger.md describes the document.

Records are streamed, one optimizer step at a time.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from batchbridge.errors import LedgerError, PlanError
from batchbridge.ledger.membership import as_planned, is_small
from batchbridge.ledger.numbers import StepNumbers
from batchbridge.ledger.reading import Ledger, RankLine, StepLines, decode
from batchbridge.ledger.records import COLUMNS, FLOATS, KEY, SCALARS
from batchbridge.ledger.scanning import start_of
from batchbridge.meaning.candidates import CandidatePlan, plan_of
from batchbridge.meaning.plan import Plan
from batchbridge.meaning.spec import Spec

SCHEMA = "batchbridge-certificate/1"
WIDEST_TOLERANCE = 2.0**-6
"""Relative drift that rounding explains in the widest case, bfloat16; a step beyond it is not verified."""
PARTS = 1024
"""Most parts that the records are cut into, each with a digest of its own: a changed record is named by its part."""
RANGES = 100
"""Most ranges of skipped steps that are listed."""
DEPARTURES = 8
_MODES = ("enforce", "verify")
"""Modes in which no step is recorded that was not held against the plan."""
_FLOAT_SCALARS = ("learning_rate", "gradient_norm")
_COPIED = ("started", "at_step", "world_size", "mode", "framework", "framework_version", "dataset_size", "spec_digest")
"""Fields that a certificate takes from a header as they are."""


def certificate(folder: Path | str) -> dict[str, Any]:
    """The claims that the ledger in `folder` certifies, JSON types. Raises `LedgerError`."""
    ledger = Ledger(folder)
    if ledger.stop_step <= ledger.first_step:
        raise LedgerError("no optimizer step that all ranks recorded: there is nothing to certify", ledger.folder)
    try:
        return sealed(_Making(ledger).claims())
    except (ValueError, RecursionError) as error:
        if isinstance(error, LedgerError):
            raise
        raise LedgerError(f"a header holds what JSON cannot say: {error}", ledger.folder) from None


def sealed(claims: Mapping[str, Any]) -> dict[str, Any]:
    """Claims with their schema before them, and their digest behind."""
    document = {"schema": SCHEMA, **claims}
    return {**document, "digest": digest_of(document)}


def digest_of(document: Mapping[str, Any]) -> str:
    """32 hex digits for a certificate without its digest: BLAKE2b of its sorted JSON."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return _digest(text.encode()).hexdigest()


_digest = partial(hashlib.blake2b, digest_size=16)


def canonical(record: Mapping[str, Any], part: RankLine) -> bytes:
    """One rank's step record as it is digested: sorted keys, rows sorted by rollout, pass, prompt and sample, floats as
    Python writes them, "nan", "inf" and "-inf" for what JSON lacks. Spaces, orders and spellings of a line say nothing.

    part: where it stands. Raises `LedgerError` for NaN in what no reader looks at.
    """
    rows = list(zip(*(record[name] for name in (*KEY, "completion_fingerprint")), strict=True))
    order = sorted(range(len(rows)), key=rows.__getitem__)
    told: dict[str, Any] = {name: record[name] for name in SCALARS}
    for name in _FLOAT_SCALARS:
        told[name] = _spelled(told[name])
    for name in COLUMNS:
        values = record[name]
        if values is not None:
            values = [_spelled(values[place]) if name in FLOATS else values[place] for place in order]
        told[name] = values
    try:
        return json.dumps(told, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        raise LedgerError(f"the record cannot be digested: {error}", part.file, part.number) from None


def _spelled(value: Any) -> Any:
    return repr(value) if isinstance(value, float) and not math.isfinite(value) else value


# ---- making


class _Start:
    """One start of the run: what its headers say, and the plan that its steps are held against."""

    def __init__(self, headers: Sequence[Mapping[str, Any]]) -> None:
        self.headers, self.header = list(headers), headers[0]
        alike = [{**header, "rank": None} for header in headers]
        problems = ["the headers of its ranks differ"] if any(header != alike[0] for header in alike) else []
        self.spec: Spec | None = None
        self.plan: Plan | None = None
        self.total: int | None = None
        """Optimizer steps that the plan has."""
        try:
            self.spec = Spec.from_dict(self.header.get("spec"))  # type: ignore[arg-type]  # it looks at what it is given
            if self.spec.digest() != self.header["spec_digest"]:
                problems.append("its spec has another digest than its header says")
            self.plan = plan_of(self.spec, self.header["dataset_size"])
            self.total = self.plan.total_optimizer_steps
        except PlanError as error:
            problems.append(f"its spec has no plan: {error}")
        except (ValueError, ArithmeticError, RecursionError) as error:
            problems.append(f"its spec cannot be read: {error}")
        if self.header["mode"] not in _MODES:
            problems.append(f"mode {self.header['mode']} holds no step against the plan")
        self.problem = next(iter(problems), None)
        """The reason why the start's steps cannot be held against the plan."""

    def claims(self) -> dict[str, Any]:
        """JSON types."""
        evidence = self.header.get("evidence")
        said = evidence if isinstance(evidence, dict) else {}
        return {
            **{name: self.header[name] for name in _COPIED},
            "code": None if not said else {"grade": said.get("grade"), "releases": said.get("labels")},
            "headers_digest": digest_of({"headers": self.headers}),
        }

    def recomputes(self) -> bool:
        """Whether its plan says which prompts a step trains, in numbers that are computed at once."""
        return self.plan is not None and not isinstance(self.plan, CandidatePlan) and is_small(self.plan)


@dataclass
class _Making:
    """The certificate of one ledger, and what is added up over its steps."""

    ledger: Ledger
    starts: dict[str, _Start] = field(init=False)
    last: _Start | None = None
    sizes: set[int] = field(default_factory=set)
    completions: int = 0
    response_tokens: int = 0
    skipped: int = 0
    ranges: list[list[int]] = field(default_factory=list)
    verified: int = 0
    unseen: int = 0
    recomputed: int = 0
    drift: float | None = None
    drift_step: int | None = None
    departures: list[dict[str, Any]] = field(default_factory=list)
    departed: int = 0

    def __post_init__(self) -> None:
        headers = defaultdict[str, list[Mapping[str, Any]]](list)  # in the order of rank 0's file
        for header in (header for file in self.ledger.files for header in file.headers):
            headers[_name(start_of(header))].append(header)
        self.starts = {name: _Start(found) for name, found in headers.items()}

    def skip(self, step: int) -> None:
        self.skipped += 1
        if self.ranges and self.ranges[-1][1] == step - 1:
            self.ranges[-1][1] = step
        elif len(self.ranges) < RANGES:
            self.ranges.append([step, step])

    def depart(self, step: int, why: str) -> None:
        self.departed += 1
        if len(self.departures) < DEPARTURES:
            self.departures.append({"step": step, "what": why})

    def claims(self) -> dict[str, Any]:
        ledger = self.ledger
        total = ledger.stop_step - ledger.first_step
        size = 1 << (-(-total // PARTS) - 1).bit_length()  # steps of a part
        parts: list[dict[str, Any]] = []
        part, whole, count, world_sizes = _digest(), _digest(), 0, set()
        for lines in ledger.steps(ledger.first_step):
            digest = _digest()
            records = []
            for one in lines.parts():
                records.append(decode(one))
                text = canonical(records[-1], one)
                digest.update(b"%d:%d:" % (one.rank, len(text)) + text)
            part.update(digest.digest())
            count += len(records)
            world_sizes.add(len(records))
            self._look(lines, records)
            if (lines.step - ledger.first_step + 1) % size == 0 or lines.step + 1 == ledger.stop_step:
                first = parts[-1]["stop"] if parts else ledger.first_step
                parts.append({"first": first, "stop": lines.step + 1, "digest": part.hexdigest()})
                whole.update(part.digest())
                part = _digest()
        starts = self.starts.values()
        return {
            "specs": {one.header["spec_digest"]: None if one.spec is None else one.spec.to_dict() for one in starts},
            "starts": [start.claims() for start in starts],
            "steps": {
                "first": ledger.first_step,
                "stop": ledger.stop_step,
                "planned": None if self.last is None else self.last.total,
                "skipped": self.skipped,
                "skipped_ranges": self.ranges,
                "incomplete": ledger.incomplete,
            },
            "world_sizes": sorted(world_sizes),
            "completions": self.completions,
            "completions_per_step": [min(self.sizes), max(self.sizes)],
            "response_tokens": self.response_tokens,
            "verification": {
                "every_step": self.verified == total,
                "steps": self.verified,
                "membership_recomputed": self.recomputed,
                "without_a_weight": self.unseen,
                "largest_drift": _spelled(self.drift),
                "largest_drift_step": self.drift_step,
                "departures": self.departed,
                "first_departures": self.departures,
            },
            "records": {"count": count, "digest": whole.hexdigest(), "parts": parts},
        }

    def _look(self, lines: StepLines, records: Sequence[Mapping[str, Any]]) -> None:
        """Adds one step, and holds it against the plan of its start."""
        step, start = lines.step, self.starts[_name(lines.sources[0][1].start)]
        self.last = start
        rows = [row for record in records for row in _rows(record)]
        term = None if start.spec is None else start.spec.loss.policy
        numbers = StepNumbers.of(step, term, rows)
        self.completions += numbers.completions
        self.response_tokens += numbers.response_tokens
        self.sizes.add(numbers.completions)
        if any(record["skipped"] is True for record in records):
            self.skip(step)
        if numbers.drift is None:
            self.unseen += 1
        elif self.drift is None or numbers.drift > self.drift:
            self.drift, self.drift_step = numbers.drift, step
        if start.problem is not None:
            return self.depart(step, start.problem)
        if start.total is not None and step >= start.total:
            return self.depart(step, "the plan ends before it")
        if start.recomputes():
            self.recomputed += 1
            assert start.plan is not None, "recomputes looks at this"
            if not as_planned(records, start.plan.step(step).members):
                return self.depart(step, "it trains other completions than the plan says")
        if numbers.drift is not None and numbers.drift > WIDEST_TOLERANCE:
            return self.depart(step, "a completion weighs otherwise than the plan says")
        self.verified += 1
        return None


def _rows(record: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    """(rollout, prompt, response tokens, weight) of a rank's completions."""
    weights = record["weights"] or [None] * len(record["rollout"])
    return zip(record["rollout"], record["prompt"], record["response_tokens"], weights, strict=True)


def _name(start: tuple[Any, ...]) -> str:
    """A start's name; its id may be any JSON."""
    return repr(start)


# ---- checking


@dataclass(frozen=True)
class Verified:
    """The result of a check. differences: each claim that does not hold, by its place in the document, the first
    `LISTED` of them; count: of all. ledger: whether there was one to hold the claims against."""

    differences: tuple[str, ...]
    count: int
    ledger: bool

    LISTED = 20

    @property
    def holds(self) -> bool:
        """Whether no claim was found wrong."""
        return not self.count


def verify(document: Any, folder: Path | str | None) -> Verified:
    """Holds a certificate against itself and, where a ledger is given, against that. Raises `LedgerError` for a ledger
    that cannot be read; whatever is wrong with the document is a difference.

    document: decoded JSON, of whatever kind.
    """
    found = list(_of_itself(document))
    if isinstance(document, dict) and folder is not None:
        expected = certificate(folder)
        named = {line.partition(":")[0] for line in found}
        told = _differences({**document, "digest": None}, {**expected, "digest": None}, "")
        found += [line for line in told if line.partition(":")[0] not in named]
    return Verified(tuple(found[: Verified.LISTED]), len(found), folder is not None)


def _of_itself(document: Any) -> Iterator[str]:
    """The faults that can be seen in a document alone."""
    if not isinstance(document, dict):
        yield f"certificate: it is not a JSON object but {type(document).__name__}"
        return
    if document.get("schema") != SCHEMA:
        yield f"schema: {_short(document.get('schema'))}, not {SCHEMA}"
    try:
        own = digest_of({name: value for name, value in document.items() if name != "digest"})
    except (ValueError, RecursionError) as error:
        yield f"digest: the document cannot be digested: {error}"
    else:
        if document.get("digest") != own:
            yield f"digest: {_short(document.get('digest'))}, but the document's is {own}: it was changed"
    specs = document.get("specs")
    for name, told in specs.items() if isinstance(specs, dict) else ():
        try:
            if (is_of := Spec.from_dict(told).digest()) != name:
                yield f"specs.{_short(name)}: the spec's digest is {is_of}"
        except (ValueError, ArithmeticError, RecursionError) as error:
            yield f"specs.{_short(name)}: no spec: {_short(str(error))}"


def _differences(told: Any, found: Any, path: str) -> Iterator[str]:
    """Every leaf that differs. told: by the document. found: in the ledger."""
    if isinstance(told, dict) and isinstance(found, dict):
        for name in [*found, *(name for name in told if name not in found)]:
            place = f"{path}.{name}" if path else str(name)
            if name not in told:
                yield f"{_short(place)}: missing; the ledger says {_short(found[name])}"
            elif name not in found:
                yield f"{_short(place)}: {_short(told[name])}, which no ledger says"
            else:
                yield from _differences(told[name], found[name], place)
    elif path == "records.parts" and isinstance(told, list) and isinstance(found, list):
        yield from _parts(told, found)
    elif isinstance(told, list) and isinstance(found, list):
        for index, (mine, other) in enumerate(zip(told, found, strict=False)):
            yield from _differences(mine, other, f"{path}[{index}]")
        if len(told) != len(found):
            yield f"{path}: {len(told)} entries; the ledger has {len(found)}"
    elif type(told) is not type(found) or told != found:
        yield f"{path}: {_short(told)}; the ledger says {_short(found)}"


def _parts(told: Sequence[Any], found: Sequence[Any]) -> Iterator[str]:
    """Records that were changed, are missing or were added, by their steps."""
    mine = {_span(part): part for part in told if isinstance(part, dict)}
    theirs = {_span(part): part for part in found}
    if len(mine) != len(told):
        yield "records.parts: an entry is not part, or stands there twice"
    if [span for span in mine if span in theirs] != [span for span in theirs if span in mine]:
        yield "records.parts: the entries are in another order"
    for span, part in theirs.items():
        steps = f"step {span[0]}" if span[1] == span[0] + 1 else f"steps {span[0]} to {span[1] - 1}"
        if span not in mine:
            yield f"records.parts: {steps} in the ledger, and not in the certificate"
        elif mine[span] != part:
            yield f"records.parts: a record of {steps} is another one in the ledger"
    for own in mine:
        if own not in theirs:
            yield f"records.parts: steps {_short(own[0])} to {_short(own[1])} (exclusive) are not in the ledger"


def _span(part: Mapping[str, Any]) -> tuple[Any, Any]:
    first, stop = part.get("first"), part.get("stop")
    return (first, stop) if type(first) is int and type(stop) is int else (repr(first), repr(stop))


def _short(value: Any) -> str:
    """The first 60 characters, at most, of a value, which may be of any kind and size."""
    if isinstance(value, dict | list):
        return f"{type(value).__name__} of {len(value)}"
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 200:
        return "a number of more than 60 digits"
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
