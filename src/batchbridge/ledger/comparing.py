"""The comparison of two ledgers: the first optimizer step that differs, and in what.

Two runs on equally many ranks that train the same write the same lines, which are found when the second ledger is
scanned. A step whose lines differ is decoded, its ranks are merged, and only then is it decided whether it differs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import repeat, zip_longest
from typing import Any, Literal, get_args

from batchbridge.errors import LedgerError
from batchbridge.ledger.reading import CountItems, Ledger, StepLines, merge, unlike, unwatched
from batchbridge.ledger.records import KEY
from batchbridge.ledger.scanning import untimed
from batchbridge.meaning.briefs import brief
from batchbridge.meaning.prompt_digest import unlike as unlike_prompts
from batchbridge.meaning.weights import Normaliser

LedgerAspect = Literal["order", "membership", "content", "weights", "advantage", "clock", "old_logprobs", "gradient"]
"""The aspect in which a step differs, the deepest cause first.

order: a rollout generates other prompts, or with the weights of another step. membership: the rollouts' prompts are the
same, the step trains other completions of them. content: a prompt's or completion's tokens, or how many are trained.
weights: what a response token's loss weighs. advantage: the advantages (exact: or the rewards). clock: learning rate,
its ticks, skipped steps, the number of steps. old_logprobs, gradient: compared with `exact` only.
"""

_Step = Mapping[str, Any]
_SHOWN = 3  # rows that a detail names
_ONLY_EXACT = ("gradient_norm", "old_logprobs", "reward")  # what is compared with `exact` only


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """One side of a comparison: its last start's header, and its optimizer steps `first_step` to `stop_step`
    (exclusive). incomplete: what its end lacks, or None. code: the grade of the framework's code, or None."""

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
    code: str | None = None


@dataclass(frozen=True, kw_only=True, repr=False)
class LedgerDiff:
    """The first difference between two ledgers, and how much of them is equal.

    steps_compared: optimizer steps found equal. step, aspect, detail: the first step that differs, or None. also:
    further aspects of that step, with details. not_compared: columns and scalars that were left out, and why.
    """

    equal: bool
    steps_compared: int
    step: int | None
    aspect: LedgerAspect | None
    detail: str | None
    also: Mapping[str, str]
    not_compared: Mapping[str, str]
    notes: tuple[str, ...]
    a: RunSummary
    b: RunSummary

    def __repr__(self) -> str:
        return brief(self, self.text().splitlines()[0])

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
            code = "" if run.code is None else f" (code: {run.code})"
            lines.append(
                f"  {name}: {run.framework} {run.framework_version}{code}, {run.mode}, world size {run.world_size}, "
                f"steps {run.first_step} to {run.stop_step} (exclusive), {run.folder}"
            )
        lines += [f"  note: {note}" for note in self.notes]
        lines += [f"  not compared: {name} ({reason})" for name, reason in self.not_compared.items()]
        return "\n".join(lines)


def compare(
    ledger_a: Ledger, ledger_b: Ledger, *, rtol: float, exact: bool, watch: CountItems = unwatched
) -> LedgerDiff:
    """The comparison of two scanned ledgers, for `batchbridge.ledger.diff`. ledger_b: scanned beside `ledger_a`, or
    slower."""
    comparison = _Comparison(rtol=rtol, exact=exact)
    a, b = _summary(ledger_a), _summary(ledger_b)
    start = max(a.first_step, b.first_step)
    compared, step = 0, start
    differences: dict[LedgerAspect, str] = {}
    for pair in watch(_pairs(ledger_a, ledger_b, start), max(a.stop_step, b.stop_step) - start):
        if pair is None:
            compared += 1
            continue
        one, other = pair
        if one is None or other is None:
            step, which = (one or other).step, "a" if one is None else "b"
            short = (a if one is None else b).incomplete
            differences = {"clock": f"run {which} ends before this step" + (f" ({short})" if short else "")}
            break
        step = one.step
        if one.lines != other.lines and untimed(one.lines) != untimed(other.lines):
            whole_a, whole_b = merge(one.parts()), merge(other.parts())
            differences = comparison.explain(whole_a, whole_b)
            if "membership" in differences:
                detail = _rollouts_differ(ledger_a, ledger_b, whole_a, whole_b)
                if detail:
                    differences["order"] = detail
            if differences:
                break
        compared += 1
    if not compared and not differences:
        raise LedgerError(f"no optimizer step that {ledger_b.folder} has, too: there is nothing to compare", a.folder)
    aspect = min(differences, key=get_args(LedgerAspect).index, default=None)
    return LedgerDiff(
        equal=aspect is None,
        steps_compared=compared,
        step=None if aspect is None else step,
        aspect=aspect,
        detail=None if aspect is None else differences[aspect],
        also={name: detail for name, detail in differences.items() if name != aspect},
        not_compared=comparison.not_compared,
        notes=(*_notes(a, b, start), *_other_prompts(ledger_a, ledger_b)),
        a=a,
        b=b,
    )


def _pairs(
    a: Ledger, b: Ledger, start: int
) -> Iterator[tuple[StepLines, StepLines] | tuple[None, StepLines] | tuple[StepLines, None] | None]:
    """The steps of two ledgers; None for one whose lines are the same in both, times left out."""
    while (same := b.alike_until(start)) > start:
        yield from repeat(None, same - start)
        start = same
    yield from zip_longest(a.steps(start), b.steps(start))


class _Comparison:
    """The rules of one comparison, and what it had to leave out."""

    def __init__(self, *, rtol: float, exact: bool) -> None:
        self.rtol, self.exact = rtol, exact
        self.not_compared = {} if exact else dict.fromkeys(_ONLY_EXACT, "compared with exact only")
        self._close = partial(math.isclose, rel_tol=rtol)

    # ---- the way that decides

    def explain(self, a: _Step, b: _Step) -> dict[LedgerAspect, str]:
        """Every aspect in which two merged steps differ, with its detail; "order" only as far as one step shows it."""
        found: dict[LedgerAspect, str] = {}
        keys_a, keys_b = _keys(a), _keys(b)
        if keys_a != keys_b:
            found["membership"] = _membership(keys_a, keys_b)
        else:
            found |= self._rows_differ(a, b, keys_a)
        clock = _joined(*(self._clock(a, b, name) for name in ("learning_rate", "skipped", "lr_tick")))
        if clock:
            found["clock"] = clock
        if self.exact and unlike(a["gradient_norm"], b["gradient_norm"]):
            found["gradient"] = f"gradient_norm {a['gradient_norm']} and {b['gradient_norm']}"
        return found

    def _rows_differ(self, a: _Step, b: _Step, keys: Sequence[tuple[int, ...]]) -> dict[LedgerAspect, str]:
        def unequal(name: str) -> str:
            return _rows(name, a[name], b[name], keys, _other_rows(a[name], b[name]))

        def apart(name: str) -> str:
            return _rows(name, a[name], b[name], keys, self._unequal_rows(name, a[name], b[name]))

        content = map(unequal, ("completion_fingerprint", "prompt_fingerprint", "response_tokens"))
        advantage = apart("advantage")
        reward = apart("reward") if self.exact or advantage else ""
        found: dict[LedgerAspect, str] = {
            "content": next(filter(None, content), ""),
            "order": unequal("generated_at_step"),
            "weights": self._weights(a, b, keys),
            "advantage": _joined(advantage, reward),
            "old_logprobs": unequal("old_logprobs") if self.exact else "",
        }
        return {aspect: detail for aspect, detail in found.items() if detail}

    def _unequal_rows(self, name: str, a: Sequence[Any], b: Sequence[Any]) -> list[int]:
        finite = [abs(value) for value in (*a, *b) if value is not None and math.isfinite(value)]
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

    def _weights(self, a: _Step, b: _Step, keys: Sequence[tuple[int, ...]]) -> str:
        """The difference of what two steps' completions weighed; empty where there is none, or none can be told.

        Compared are weights as they were applied; where a run did not record these, only the normalisers of its ranks.
        keys: names of the rows, for the text.
        """
        ranks = [step["disagreeing"].get("normaliser") for step in (a, b)]
        applied_a, applied_b = applied_weights(a), applied_weights(b)
        if applied_a is None or applied_b is None:
            if ranks[0] != ranks[1] and (a["weights"] is None) == (b["weights"] is None):
                return f"normalisers of the ranks: {ranks[0] or a['normaliser']} and {ranks[1] or b['normaliser']}"
            if applied_a is not applied_b:
                self.not_compared.setdefault("weights", "one run did not record what it applied")
            return ""
        said = list(map(all, zip(a["response_tokens"], b["response_tokens"], strict=True)))  # of no tokens: no weight
        rows = [i for i in self._unequal_rows("weights", applied_a, applied_b) if said[i]]
        if rows:
            detail = _rows("weight", applied_a, applied_b, keys, rows)
            return f"{detail}; normalisers {_normaliser_text(a)} and {_normaliser_text(b)}"
        one, other = _normaliser(a), _normaliser(b)
        if not one or not other or one.aggregation != other.aggregation or one.aggregation == "prompt_mean":
            return ""
        same = self._close(one.step_factor(), other.step_factor())
        return "" if same else f"normalisers {_normaliser_text(a)} and {_normaliser_text(b)}"

    def _clock(self, a: _Step, b: _Step, name: str) -> str:
        x, y = a[name], b[name]
        ranks = [step["disagreeing"].get(name) for step in (a, b)]
        if ranks[0] != ranks[1]:
            return f"{name}: the ranks have {ranks[0] or x} and {ranks[1] or y}"
        if (x is None) != (y is None) and not self.exact:
            self.not_compared.setdefault(name, "one run did not record it")
            return ""
        if not unlike(x, y) or (isinstance(x, float) and isinstance(y, float) and self._close(x, y)):
            return ""
        return f"{name} {x} and {y}"


def applied_weights(step: _Step) -> list[float] | None:
    """Each row's weight of one response token, as applied: the column, or else what the normaliser says; None where the
    step records neither, or ranks that record no weights disagree on the normaliser."""
    if step["weights"] is not None:
        return list(step["weights"])
    normaliser, tokens = _normaliser(step), step["response_tokens"]
    if normaliser is None:
        return None
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
    shared = normaliser.aggregation == "sequence_mean"
    return [(factor / count if shared else factor) if count else 0.0 for count in tokens]


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


def _joined(*details: str) -> str:
    return "; ".join(filter(None, details))


def _other_rows(a: Sequence[Any], b: Sequence[Any]) -> list[int]:
    """The rows whose values are not equal."""
    return [i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y]


def _rows(name: str, a: Sequence[Any], b: Sequence[Any], keys: Sequence[tuple[int, ...]], rows: Sequence[int]) -> str:
    """The differences in `rows` of a column; empty where these are none."""
    if not rows:
        return ""
    shown = ", ".join(f"{a[i]} and {b[i]} at {_name(keys[i])}" for i in rows[:_SHOWN])
    return f"{name} of {len(rows)} of {len(keys)} completions: {shown}" + (", ..." if len(rows) > _SHOWN else "")


def _normaliser(step: _Step) -> Normaliser | None:
    """The normaliser of a step; None where none is recorded, ranks disagree on it, or another hand wrote what none is
    made of."""
    if step["normaliser"] is None or "normaliser" in step["disagreeing"]:
        return None
    try:
        found = Normaliser(**step["normaliser"])
        by_prompt = found.aggregation == "prompt_mean" and found.prompts > 0
        return found if by_prompt or found.step_factor() >= 0 else None
    except (TypeError, ValueError, ArithmeticError):
        return None


def _normaliser_text(step: _Step) -> str:
    if "normaliser" in step["disagreeing"]:
        return "not common to the ranks"
    n = _normaliser(step)
    return "not recorded" if n is None else f"{n.aggregation} (B = {n.completions}, T = {n.tokens}, c = {n.constant})"


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
    try:
        return len(prompts) >= int(ledger.headers[-1]["spec"]["rollout"]["prompts_per_rollout"])
    except (KeyError, TypeError, ValueError):  # none, or a specification of another hand
        return False


def _prompts(ledger: Ledger, start: int, rollouts: set[int]) -> tuple[dict[int, set[int]], bool]:
    """(prompts of each rollout, whether the run ended before it went past them)."""
    last = max(rollouts)
    prompts: dict[int, set[int]] = {}
    for step in ledger.merged(start):
        if min(step["rollout"], default=0) > last:
            return prompts, False
        for rollout, prompt in zip(step["rollout"], step["prompt"], strict=True):
            if rollout in rollouts:
                prompts.setdefault(rollout, set()).add(prompt)
    return prompts, True


def grade_of(header: Mapping[str, Any]) -> str | None:
    """The grade of the framework's code in a header; None where an older version wrote it, or nothing is known."""
    evidence = header.get("evidence")
    grade = evidence.get("grade") if isinstance(evidence, dict) else None
    return grade if isinstance(grade, str) else None


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
        code=grade_of(header),
    )


def _other_prompts(a: Ledger, b: Ledger) -> Iterator[str]:
    """A note on two runs of one framework whose data sets have other prompts, or the same in another order."""
    one, other = a.headers[-1], b.headers[-1]
    mine, its = one.get("prompts"), other.get("prompts")
    same = one["framework"] == other["framework"] and one["dataset_size"] == other["dataset_size"]
    if same and mine is not None and its is not None and (change := unlike_prompts(mine, its)) is not None:
        yield f"the data sets differ: {change}"


def _notes(a: RunSummary, b: RunSummary, start: int) -> tuple[str, ...]:
    notes = [f"{name}: {run.incomplete}" for name, run in (("a", a), ("b", b)) if run.incomplete]
    if a.first_step != b.first_step:
        notes.append(f"a begins at step {a.first_step}, b at step {b.first_step}: compared from step {start}")
    if a.dataset_size != b.dataset_size:
        notes.append(f"dataset_size {a.dataset_size} and {b.dataset_size} (prompts)")
    if a.spec_digest != b.spec_digest:
        notes.append(f"specs differ: digests {a.spec_digest} and {b.spec_digest}")
    return tuple(notes)
