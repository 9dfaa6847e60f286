"""The weight that each response token's loss gets in one optimizer step, exactly.

The gradient of a step is `sum_i sum_t w[i,t] * d loss[i,t]`; ranks add up. In every aggregation all tokens of one
completion share one weight, so a step's weights are one number per completion. `fractions.Fraction` by default, so
that two frameworks can be compared without a tolerance; `step_factors` gives the floats that a trainer multiplies with.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from batchbridge.meaning.spec import LossTerm

WEIGHT_FORMULAS: Mapping[str, str] = {
    "token_mean": "1 / T (T: response tokens)",
    "sequence_mean": "1 / (B L) (B: completions, L: its completion's response tokens)",
    "sequence_sum": "1 / B (B: completions)",
    "sequence_sum_over_constant": "1 / (B c) (B: completions, c: a constant)",
    "token_sum": "1",
    "prompt_mean": "1 / (P T) (P: prompts, T: response tokens of its prompt's completions)",
}
"""Aggregation -> the weight of a response token, in words."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One completion of an optimizer step, as far as its weight depends on it.

    tokens: response tokens whose loss mask is 1, after truncation and tool masks. group: its prompt. rank and
    micro_batch: where it ran (micro_batch is unique across ranks). rollout: where it was generated. padding: a row that
    only fills a batch; it never weighs anything and never counts.
    """

    tokens: int
    group: Hashable = 0
    rank: Hashable = 0
    micro_batch: Hashable = 0
    rollout: Hashable = 0
    padding: bool = False


def token_weights(term: LossTerm, rows: Sequence[Row], *, rollout_rows: Sequence[Row] | None = None) -> list[Fraction]:
    """The weight of one response token of each row (0 for rows without tokens, and for padding).

    `rollout_rows`: all completions of the rollouts that the step draws from; needed for `denominator_scope` "rollout",
    where each row is weighed as the average step of its rollout. Raises `ValueError` when the term lacks its constant
    or `rollout_rows` is missing.
    """
    if term.aggregation == "sequence_sum_over_constant" and not term.constant:
        raise ValueError("loss.policy.constant: sequence_sum_over_constant needs it")
    counted = [row for row in rows if _counts(term, row)]
    scope = term.denominator_scope
    if scope == "optimizer_step":
        parts, share = dict.fromkeys(map(_whole, counted), Fraction(1)), _whole
        population = counted
    elif scope == "rollout":
        if rollout_rows is None:
            raise ValueError("denominator_scope rollout: needs all completions of the rollouts")
        population, share = [row for row in rollout_rows if _counts(term, row)], _rollout
        # Each rollout's own denominator, rescaled from its size to the step's: what an average step of it would have.
        parts = {key: Fraction(size, max(len(counted), 1)) for key, size in Counter(map(_rollout, population)).items()}
    else:
        population, share = counted, _rank if scope == "rank" else _micro_batch
        keys = {share(row) for row in rows if not row.padding}
        parts = dict.fromkeys(keys, Fraction(1, len(keys)))
    completions: Counter[Hashable] = Counter(map(share, population))
    tokens: Counter[Hashable] = Counter()
    group_tokens: Counter[Hashable] = Counter()
    groups: dict[Hashable, set[Hashable]] = {}
    for row in population:
        tokens[share(row)] += row.tokens
        group_tokens[share(row), row.group] += row.tokens
        groups.setdefault(share(row), set()).add(row.group)
    inverse: Callable[[Hashable, Row], int] = {
        "token_mean": lambda key, row: tokens[key],
        "sequence_mean": lambda key, row: completions[key] * row.tokens,
        "sequence_sum": lambda key, row: completions[key],
        "sequence_sum_over_constant": lambda key, row: completions[key] * (term.constant or 0),
        "token_sum": lambda key, row: 1,
        "prompt_mean": lambda key, row: len(groups[key]) * group_tokens[key, row.group],
    }[term.aggregation]
    weights = []
    for row in rows:
        if row.padding or not row.tokens:
            weights.append(Fraction(0))
        elif term.aggregation == "token_sum":
            weights.append(Fraction(1))
        else:
            weights.append(parts[share(row)] / inverse(share(row), row))
    return weights


@dataclass(frozen=True, kw_only=True)
class Normaliser:
    """The denominators of one optimizer step at canonical scope: `B` completions and `T` response tokens."""

    aggregation: str
    completions: int
    tokens: int
    constant: int | None = None
    prompts: int = 0

    @classmethod
    def of(cls, term: LossTerm, rows: Sequence[Row]) -> Normaliser:
        """The normaliser of a step, counted over its rows: padding never, empty completions as `count_empty` says."""
        counted = [row for row in rows if _counts(term, row)]
        return cls(
            aggregation=term.aggregation,
            completions=len(counted),
            tokens=sum(row.tokens for row in counted),
            constant=term.constant,
            prompts=len({row.group for row in counted}),
        )

    def step_factor(self) -> float:
        """The factor of a micro-batch's plain sum, once the aggregation's own mean over a completion's tokens
        (sequence_mean) is taken: 1/T, 1/B, 1/(B c) or 1. 0.0 when the step has no token: there is no update."""
        if not self.tokens:
            return 0.0
        if self.aggregation == "token_mean":
            return 1.0 / self.tokens
        if self.aggregation in ("sequence_mean", "sequence_sum"):
            return 1.0 / self.completions
        if self.aggregation == "sequence_sum_over_constant":
            if not self.constant:
                raise ValueError("loss.policy.constant: sequence_sum_over_constant needs it")
            return 1.0 / (self.completions * self.constant)
        if self.aggregation == "token_sum":
            return 1.0
        raise ValueError(f"{self.aggregation} has no single factor: its weights differ between prompts")


def _counts(term: LossTerm, row: Row) -> bool:
    return not row.padding and (term.count_empty or row.tokens > 0)


def _whole(row: Row) -> Hashable:
    return "step"


def _rollout(row: Row) -> Hashable:
    return row.rollout


def _rank(row: Row) -> Hashable:
    return row.rank


def _micro_batch(row: Row) -> Hashable:
    return row.micro_batch
