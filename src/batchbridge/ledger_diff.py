"""Comparing two ledgers: the first optimizer step that differs, and in what.

Steps are compared twice. `surely_equal` looks at the columns' bytes, pairs rows that the runs placed on other ranks,
and parses only floats that are spelled differently; nearly every step of two equal runs ends there. Whatever it does
not recognise as equal goes to `explain`, which decodes the step and alone decides.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import zip_longest
from operator import itemgetter
from typing import Any, Literal, get_args

from batchbridge.ledger import COLUMNS, KEY, SCALARS, LedgerError
from batchbridge.ledger_reading import Ledger, Part, decode, merge
from batchbridge.weights import Normaliser

Aspect = Literal["order", "membership", "content", "weights", "advantage", "clock", "old_logprobs", "gradient"]
"""In what a step differs, the deepest cause first.

order: a rollout generates other prompts, or with the weights of another step. membership: the rollouts' prompts are the
same, the step trains other completions of them. content: a prompt's or completion's tokens, or how many are trained.
weights: what a response token's loss weighs. advantage: the advantages (exact: or the rewards). clock: learning rate,
its ticks, skipped steps, the number of steps. old_logprobs, gradient: compared with `exact` only.
"""

_Step = Mapping[str, Any]
_ONLY_EXACT = ("gradient_norm", "old_logprobs", "reward")
_MARKERS = {name: f',"{name}":'.encode() for name in COLUMNS}
_SHOWN = 3  # rows that a detail names


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """One side of a comparison: its last start's header, and its optimizer steps `first_step` to `stop_step`
    (exclusive). incomplete: what its end lacks, or None."""

    folder: str
    framework: str
    framework_version: str
    mode: str
    spec_digest: str
    dataset_size: int
    world_size: int
    first_step: int
    stop_step: int
    incomplete: str | None


@dataclass(frozen=True, kw_only=True)
class LedgerDiff:
    """What `diff` found.

    steps_compared: optimizer steps found equal. step, aspect, detail: the first step that differs, or None. also:
    further aspects of that step, with details. not_compared: columns and scalars that were left out, and why.
    """

    equal: bool
    steps_compared: int
    step: int | None
    aspect: Aspect | None
    detail: str | None
    also: Mapping[str, str]
    not_compared: Mapping[str, str]
    notes: tuple[str, ...]
    a: RunSummary
    b: RunSummary

    def to_dict(self) -> dict[str, Any]:
        """JSON types."""
        return asdict(self)

    def text(self) -> str:
        """The result for a person: the verdict first, then what else there is to know."""
        if self.equal:
            lines = [f"equal: {self.steps_compared} optimizer steps"]
        else:
            lines = [f"different at optimizer step {self.step}: {self.aspect}", f"  {self.detail}"]
            lines += [f"  also {aspect}: {detail}" for aspect, detail in self.also.items()]
            lines.append(f"  {self.steps_compared} optimizer steps before it are equal")
        for name, run in (("a", self.a), ("b", self.b)):
            lines.append(
                f"  {name}: {run.framework} {run.framework_version}, {run.mode}, world size {run.world_size}, "
                f"steps {run.first_step} to {run.stop_step} (exclusive), {run.folder}"
            )
        lines += [f"  note: {note}" for note in self.notes]
        lines += [f"  not compared: {name} ({reason})" for name, reason in self.not_compared.items()]
        return "\n".join(lines)


def compare(ledger_a: Ledger, ledger_b: Ledger, *, rtol: float, exact: bool) -> LedgerDiff:
    """See `batchbridge.ledger.diff`."""
    comparison = _Comparison(rtol=rtol, exact=exact)
    a, b = _summary(ledger_a), _summary(ledger_b)
    start = max(a.first_step, b.first_step)
    compared, step = 0, start
    differences: dict[Aspect, str] = {}
    pairs = zip_longest(ledger_a.parts(start), ledger_b.parts(start))
    for one, other in pairs:
        if one is None or other is None:
            step, which = (one or other)[0], "a" if one is None else "b"
            short = (a if one is None else b).incomplete
            differences = {"clock": f"run {which} ends before this step" + (f" ({short})" if short else "")}
            break
        step = one[0]
        if not comparison.surely_equal(one[1], other[1]):
            differences = comparison.explain(merge(one[1]), merge(other[1]))
            if "membership" in differences:
                detail = _rollouts_differ(ledger_a, ledger_b, merge(one[1]), merge(other[1]))
                if detail:
                    differences["order"] = detail
            if differences:
                break
        compared += 1
    aspect = min(differences, key=get_args(Aspect).index, default=None)
    return LedgerDiff(
        equal=aspect is None,
        steps_compared=compared,
        step=None if aspect is None else step,
        aspect=aspect,
        detail=None if aspect is None else differences[aspect],
        also={name: detail for name, detail in differences.items() if name != aspect},
        not_compared=comparison.not_compared,
        notes=_notes(a, b, start),
        a=a,
        b=b,
    )


class _Comparison:
    """The rules of one comparison, and what it had to leave out."""

    def __init__(self, *, rtol: float, exact: bool) -> None:
        self.rtol, self.exact = rtol, exact
        self.not_compared = {} if exact else dict.fromkeys(_ONLY_EXACT, "compared with exact only")
        self._close = partial(math.isclose, rel_tol=rtol)

    # ---- the fast way

    def surely_equal(self, parts_a: Sequence[Part], parts_b: Sequence[Part]) -> bool:
        """True only where `explain` would find nothing; False says nothing."""
        if len(parts_a) == len(parts_b) and all(a.line == b.line for a, b in zip(parts_a, parts_b, strict=True)):
            return True
        raw_a, raw_b = _raw_step(parts_a), _raw_step(parts_b)
        if raw_a is None or raw_b is None or not self._scalars_agree(raw_a[0], raw_b[0]):
            return False
        columns_a, columns_b = raw_a[1], raw_b[1]
        try:
            order = _pairing(columns_a, columns_b)
        except ValueError:  # columns of different length: explain names file and line
            return False
        if order == ():
            return False
        pick = None if order is None else itemgetter(*order)
        rows = _count(columns_a["rollout"])
        for name in COLUMNS:
            if name in KEY or (name in _ONLY_EXACT and not self.exact):
                continue
            one, other = columns_a[name], columns_b[name]
            if one == other and (pick is None or _constant(one, rows)):
                continue
            if one is None or other is None:  # weights: both left to the normaliser, or one only
                if one is not other:
                    return False
                continue
            values_a, values_b = one.split(b","), other.split(b",")
            if len(values_a) != len(values_b):
                return False
            picked = values_a if pick is None else list(pick(values_a))
            if picked != values_b and (self.exact or not self._floats_agree(name, picked, values_b)):
                return False
        return True

    def _scalars_agree(self, heads_a: Sequence[_Step], heads_b: Sequence[_Step]) -> bool:
        a, b = heads_a[0], heads_b[0]
        ranks_agree = all(
            head[name] == own[name]
            for own, heads in ((a, heads_a), (b, heads_b))
            for head in heads[1:]
            for name in SCALARS
            if name != "gradient_norm"
        )
        rates = a["learning_rate"], b["learning_rate"]
        return (
            ranks_agree
            and all(a[name] == b[name] for name in ("normaliser", "skipped", "lr_tick"))
            and (rates[0] == rates[1] or (all(isinstance(r, float) for r in rates) and self._close(*rates)))
            and (not self.exact or a["gradient_norm"] == b["gradient_norm"])
        )

    def _floats_agree(self, name: str, a: Sequence[bytes], b: Sequence[bytes]) -> bool:
        if name not in ("advantage", "weights"):
            return False
        try:
            floats_a, floats_b = list(map(float, a)), list(map(float, b))
        except ValueError:  # null, "nan"
            return False
        return self._numbers_agree(name, floats_a, floats_b)

    def _numbers_agree(self, name: str, a: Sequence[float], b: Sequence[float]) -> bool:
        """Weights agree relatively, each. Advantages are differences of rewards: relatively to the step's largest."""
        if name == "weights":
            return all(map(self._close, a, b))
        slack = self.rtol * max(map(abs, a), default=0.0)
        return all(map(partial(math.isclose, rel_tol=self.rtol, abs_tol=slack), a, b))

    # ---- the way that decides

    def explain(self, a: _Step, b: _Step) -> dict[Aspect, str]:
        """Every aspect in which two merged steps differ, with its detail; "order" only as far as one step shows it."""
        found: dict[Aspect, str] = {}
        keys_a, keys_b = _keys(a), _keys(b)
        if keys_a != keys_b:
            found["membership"] = _membership(keys_a, keys_b)
        else:
            found |= self._rows_differ(a, b, keys_a)
        clock = [self._clock(a, b, name) for name in ("learning_rate", "skipped", "lr_tick")]
        if any(clock):
            found["clock"] = "; ".join(filter(None, clock))
        if self.exact and _unlike(a["gradient_norm"], b["gradient_norm"]):
            found["gradient"] = f"gradient_norm {a['gradient_norm']} and {b['gradient_norm']}"
        return found

    def _rows_differ(self, a: _Step, b: _Step, keys: Sequence[tuple[int, ...]]) -> dict[Aspect, str]:
        found: dict[Aspect, str] = {}
        for name in ("completion_fingerprint", "prompt_fingerprint", "response_tokens"):
            rows = [i for i, (x, y) in enumerate(zip(a[name], b[name], strict=True)) if x != y]
            if rows:
                found.setdefault("content", _rows(name, a[name], b[name], keys, rows))
        name = "generated_at_step"
        rows = [i for i, (x, y) in enumerate(zip(a[name], b[name], strict=True)) if x != y]
        if rows:
            found["order"] = _rows(name, a[name], b[name], keys, rows)
        weights = self._weights(a, b, keys)
        if weights:
            found["weights"] = weights
        for name in ("advantage", "reward"):
            if name == "reward" and not (self.exact or "advantage" in found):
                continue
            rows = self._unequal_rows(name, a[name], b[name])
            if rows:
                detail = _rows(name, a[name], b[name], keys, rows)
                found["advantage"] = "; ".join(filter(None, (found.get("advantage"), detail)))
        if self.exact:
            name = "old_logprobs"
            rows = [i for i, (x, y) in enumerate(zip(a[name], b[name], strict=True)) if x != y]
            if rows:
                found["old_logprobs"] = _rows(name, a[name], b[name], keys, rows)
        return found

    def _unequal_rows(self, name: str, a: Sequence[Any], b: Sequence[Any]) -> list[int]:
        finite = [abs(value) for value in a if value is not None and math.isfinite(value)]
        slack = 0.0 if name == "weights" else self.rtol * max(finite, default=0.0)
        rows = []
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            if (x is None) != (y is None) and not self.exact:
                self.not_compared.setdefault(name, "one run did not record it for some completions")
            elif x is None or y is None:
                if x is not y:
                    rows.append(i)
            elif not (x == y or (x != x and y != y) or math.isclose(x, y, rel_tol=self.rtol, abs_tol=slack)):
                rows.append(i)
        return rows

    def _weights(self, a: _Step, b: _Step, keys: Sequence[tuple[int, ...]]) -> str | None:
        ranks = [step["disagreeing"].get("normaliser") for step in (a, b)]
        applied_a, applied_b = applied_weights(a), applied_weights(b)
        if applied_a is None or applied_b is None:
            if ranks[0] != ranks[1] and (a["weights"] is None) == (b["weights"] is None):
                return f"normalisers of the ranks: {ranks[0] or a['normaliser']} and {ranks[1] or b['normaliser']}"
            if applied_a is not applied_b:
                self.not_compared.setdefault("weights", "one run did not record what it applied")
            return None
        rows = [i for i in self._unequal_rows("weights", applied_a, applied_b) if a["response_tokens"][i]]
        if rows:
            detail = _rows("weight", applied_a, applied_b, keys, rows)
            return f"{detail}; normalisers {_normaliser_text(a)} and {_normaliser_text(b)}"
        one, other = a["normaliser"], b["normaliser"]
        if one and other and not any(ranks) and one["aggregation"] == other["aggregation"] != "prompt_mean":
            factors = _normaliser(a).step_factor(), _normaliser(b).step_factor()
            if not self._close(*factors):
                return f"normalisers {_normaliser_text(a)} and {_normaliser_text(b)}"
        return None

    def _clock(self, a: _Step, b: _Step, name: str) -> str | None:
        x, y = a[name], b[name]
        ranks = [step["disagreeing"].get(name) for step in (a, b)]
        if ranks[0] != ranks[1]:
            return f"{name}: the ranks have {ranks[0] or x} and {ranks[1] or y}"
        if (x is None) != (y is None) and not self.exact:
            self.not_compared.setdefault(name, "one run did not record it")
            return None
        if not _unlike(x, y) or (isinstance(x, float) and isinstance(y, float) and self._close(x, y)):
            return None
        return f"{name} {x} and {y}"


def applied_weights(step: _Step) -> list[float] | None:
    """Each row's weight of one response token, as applied: the column, or else what the normaliser says; None where the
    step records neither, or ranks that record no weights disagree on the normaliser."""
    if step["weights"] is not None:
        return list(step["weights"])
    if step["normaliser"] is None or "normaliser" in step["disagreeing"]:
        return None
    normaliser, tokens = _normaliser(step), step["response_tokens"]
    if normaliser.aggregation == "prompt_mean":
        groups = list(zip(step["rollout"], step["prompt"], strict=True))
        group_tokens: Counter[tuple[int, int]] = Counter()
        for group, count in zip(groups, tokens, strict=True):
            group_tokens[group] += count
        return [
            1.0 / (normaliser.prompts * group_tokens[group]) if count else 0.0
            for group, count in zip(groups, tokens, strict=True)
        ]
    factor = normaliser.step_factor()
    if normaliser.aggregation == "sequence_mean":
        return [factor / count if count else 0.0 for count in tokens]
    return [factor if count else 0.0 for count in tokens]


# ---- raw lines


def _raw_step(parts: Sequence[Part]) -> tuple[list[_Step], dict[str, bytes | None]] | None:
    """(each rank's scalars, each column's bytes over all ranks); None where a line is not as `Writer` writes it."""
    heads: list[_Step] = []
    pieces: dict[str, list[bytes]] = {name: [] for name in COLUMNS}
    weightless = False
    for part in parts:
        line = part.line
        place = line.find(_MARKERS["rollout"])
        try:
            heads.append(json.loads(line[:place] + b"}"))
            for name, marker in _MARKERS.items():
                place = line.index(marker, place) + len(marker)
                if line[place] == 0x5B:  # [
                    stop = line.index(b"]", place)
                    pieces[name].append(line[place + 1 : stop])
                    place = stop
                elif name == "weights":
                    weightless = weightless or bool(pieces["rollout"][-1])
                else:
                    return None
        except (ValueError, IndexError):
            return None
        if set(SCALARS) - set(heads[-1]):
            return None
    columns: dict[str, bytes | None] = {name: b",".join(filter(None, raw)) for name, raw in pieces.items()}
    if weightless:
        if columns["weights"]:
            return None  # some ranks give weights, others do not: merge says where
        columns["weights"] = None
    return heads, columns


def _pairing(a: Mapping[str, bytes | None], b: Mapping[str, bytes | None]) -> Sequence[int] | None:
    """For each row of `b` the row of `a` with the same key; None if they lie in the same order, () if rows do not pair
    one to one (a completion may be trained twice in a step: left to `explain`)."""
    if all(a[name] == b[name] for name in KEY):
        return None
    rows = _count(a["rollout"])
    if rows != _count(b["rollout"]):
        return ()
    varying = [name for name in KEY if not (a[name] == b[name] and _constant(a[name], rows))]
    keys_a = list(zip(*((a[name] or b"").split(b",") for name in varying), strict=True))
    keys_b = list(zip(*((b[name] or b"").split(b",") for name in varying), strict=True))
    place = dict(zip(keys_a, range(rows), strict=True))
    try:
        order = [place[key] for key in keys_b]
    except KeyError:
        return ()
    return order if len(place) == rows == len(set(order)) and rows > 1 else ()


def _count(raw: bytes | None) -> int:
    return raw.count(b",") + 1 if raw else 0


def _constant(raw: bytes | None, rows: int) -> bool:
    first = (raw or b"").partition(b",")[0]
    return (first + b",") * rows == (raw or b"") + b","


# ---- details


def _keys(step: _Step) -> list[tuple[int, ...]]:
    return list(zip(*(step[name] for name in KEY), strict=True))


def _name(key: tuple[int, ...]) -> str:
    return f"(rollout {key[0]}, pass {key[1]}, prompt {key[2]}, sample {key[3]})"


def _membership(keys_a: Iterable[tuple[int, ...]], keys_b: Iterable[tuple[int, ...]]) -> str:
    count_a, count_b = Counter(keys_a), Counter(keys_b)
    texts = []
    for name, only in (("a", count_a - count_b), ("b", count_b - count_a)):
        rows = sorted(only.elements())
        shown = ", ".join(map(_name, rows[:_SHOWN])) + (", ..." if len(rows) > _SHOWN else "")
        texts.append(f"{len(rows)} completions only in {name}" + (f": {shown}" if rows else ""))
    return "; ".join(texts)


def _rows(name: str, a: Sequence[Any], b: Sequence[Any], keys: Sequence[tuple[int, ...]], rows: Sequence[int]) -> str:
    shown = ", ".join(f"{a[i]} and {b[i]} at {_name(keys[i])}" for i in rows[:_SHOWN])
    return f"{name} of {len(rows)} of {len(keys)} completions: {shown}" + (", ..." if len(rows) > _SHOWN else "")


def _normaliser(step: _Step) -> Normaliser:
    return Normaliser(**step["normaliser"])


def _normaliser_text(step: _Step) -> str:
    ranks = step["disagreeing"].get("normaliser")
    if ranks or step["normaliser"] is None:
        return "not common to the ranks" if ranks else "not recorded"
    n = step["normaliser"]
    return f"{n['aggregation']} (B = {n['completions']}, T = {n['tokens']}, c = {n['constant']})"


def _unlike(x: Any, y: Any) -> bool:
    return bool(x != y) and not (x != x and y != y)


def _rollouts_differ(ledger_a: Ledger, ledger_b: Ledger, a: _Step, b: _Step) -> str | None:
    """Whether the rollouts of a differing step generate different prompts: reads both runs from the first step that
    trains on them to the last, because one step may show a part of a rollout only."""
    rollouts = set(a["rollout"]) | set(b["rollout"])
    if not rollouts:
        return None
    start = min([*a["generated_at_step"], *b["generated_at_step"], a["step"]])
    prompts_a, ended_a = _prompts(ledger_a, start, rollouts)
    prompts_b, ended_b = _prompts(ledger_b, start, rollouts)
    for rollout in sorted(rollouts):
        one, other = prompts_a.get(rollout, set()), prompts_b.get(rollout, set())
        if one == other:
            continue
        # A run that ended inside the rollout shows some of its prompts only.
        cut_a, cut_b = ended_a and not _whole(ledger_a, one), ended_b and not _whole(ledger_b, other)
        if (cut_a and one < other) or (cut_b and other < one):
            continue
        only_a, only_b = sorted(one - other)[:_SHOWN], sorted(other - one)[:_SHOWN]
        return (
            f"rollout {rollout} has {len(one)} prompts in a and {len(other)} in b; "
            f"only in a: {only_a or 'none'}, only in b: {only_b or 'none'} (at most {_SHOWN} shown)"
        )
    return None


def _whole(ledger: Ledger, prompts: set[int]) -> bool:
    size = ledger.headers[-1].get("spec", {}).get("rollout", {}).get("prompts_per_rollout")
    return size is not None and len(prompts) >= size


def _prompts(ledger: Ledger, start: int, rollouts: set[int]) -> tuple[dict[int, set[int]], bool]:
    """(prompts of each rollout, whether the run ended before it went past them)."""
    last = max(rollouts)
    prompts: dict[int, set[int]] = {}
    for _, parts in ledger.parts(start):
        records = [decode(part) for part in parts]
        if min((rollout for record in records for rollout in record["rollout"]), default=0) > last:
            return prompts, False
        for record in records:
            for rollout, prompt in zip(record["rollout"], record["prompt"], strict=True):
                if rollout in rollouts:
                    prompts.setdefault(rollout, set()).add(prompt)
    return prompts, True


def _summary(ledger: Ledger) -> RunSummary:
    if not ledger.headers:
        raise LedgerError("no header: the run was killed before it began", ledger.files[0].path)
    header = ledger.headers[-1]
    return RunSummary(
        folder=str(ledger.folder),
        **{
            name: header[name]
            for name in ("framework", "framework_version", "mode", "spec_digest", "dataset_size", "world_size")
        },
        first_step=ledger.first_step,
        stop_step=ledger.stop_step,
        incomplete=ledger.incomplete,
    )


def _notes(a: RunSummary, b: RunSummary, start: int) -> tuple[str, ...]:
    notes = [f"{name}: {run.incomplete}" for name, run in (("a", a), ("b", b)) if run.incomplete]
    if a.first_step != b.first_step:
        notes.append(f"a begins at step {a.first_step}, b at step {b.first_step}: compared from step {start}")
    if a.dataset_size != b.dataset_size:
        notes.append(f"dataset_size {a.dataset_size} and {b.dataset_size} (prompts)")
    if a.spec_digest != b.spec_digest:
        notes.append(f"specs differ: digests {a.spec_digest} and {b.spec_digest}")
    return tuple(notes)
