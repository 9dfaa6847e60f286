"""A probe of a trainer's own loss before training: micro-batches of made-up log-probabilities, and what they must give.

An adapter runs the framework's loss code, of this version and this subclass, on each `ProbeBatch` with a leaf in place
of the model's log-probabilities (`measuring.Tap.leaf`), backward included, and hands the tap to `verdict`. No model
runs and no parameter gets a gradient. Rows are ragged, cut unevenly, and one is a filler: where all rows or all
micro-batches are alike, every way to average looks the same. Imports torch; knows no framework.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from batchbridge.errors import CannotAttach, LostGradient
from batchbridge.kit.measuring import Measured, Rows, Tap
from batchbridge.kit.objectives import clip_bounds
from batchbridge.meaning.spec import LossTerm, Objective
from batchbridge.meaning.weights import Normaliser, Row, token_weights

CUT: tuple[tuple[int, ...], ...] = ((1, 3, 0), (7, 4, 2))
"""Response tokens of the rows of each micro-batch; 0: a filler row, whose loss mask and advantage are zero."""
WIDTH = 8
"""Tokens that every row is padded to."""
ADVANTAGES = (0.5, -1.25, 0.0, 2.0, -0.75, 1.5)
"""The advantages of the rows, in order."""
_LENGTHS = [tokens for part in CUT for tokens in part]
_ROWS = [Row(tokens=tokens, group=place, padding=not tokens) for place, tokens in enumerate(_LENGTHS)]
TOKENS = sum(_LENGTHS)
"""Response tokens of the probe's optimizer step."""
COMPLETIONS = sum(tokens > 0 for tokens in _LENGTHS)
"""Completions of the probe's optimizer step; the filler is none."""


@dataclass(frozen=True, kw_only=True)
class ProbeBatch:
    """One micro-batch of a probe. lengths: response tokens per row. mask, logprobs, old, reference: (rows, WIDTH).
    advantages: (rows,). old: None where the probe's ratios are one; reference: None without a KL term in the loss."""

    lengths: tuple[int, ...]
    mask: torch.Tensor
    advantages: torch.Tensor
    logprobs: torch.Tensor
    old: torch.Tensor | None
    reference: torch.Tensor | None

    @property
    def rows(self) -> Rows:
        """The rows of a probe, and what they are meant to train."""
        return Rows(mask=self.mask, advantages=self.advantages[:, None], old=self.old, reference=self.reference)


def batches(objective: Objective, *, off_policy: bool, device: torch.device | None = None) -> Iterator[ProbeBatch]:
    """The micro-batches of one probed optimizer step. off_policy: ratios on both sides of every clipping bound, instead
    of ratios of one."""
    ratios, start = torch.tensor(_ratios(objective)), 0
    penalised = objective.kl_placement == "loss" and bool(objective.kl_coefficient)
    for part in CUT:
        rows = range(start, start + len(part))
        start += len(part)
        mask = torch.tensor([[1] * tokens + [0] * (WIDTH - tokens) for tokens in part])
        # Every row meets other ratios first, so that both signs of the advantage meet all of them.
        places = torch.tensor([[(row * 3 + token) % len(ratios) for token in range(WIDTH)] for row in rows])
        logprobs = -1.0 - 0.125 * (places % 4)
        yield ProbeBatch(
            lengths=part,
            mask=mask.to(device),
            advantages=torch.tensor([ADVANTAGES[row] for row in rows], device=device),
            logprobs=logprobs.to(device),
            old=(logprobs - ratios[places].log()).to(device) if off_policy else None,
            reference=(logprobs + 0.5 - 0.25 * (places % 3)).to(device) if penalised else None,
        )


def _ratios(objective: Objective) -> list[float]:
    found = [1.0, 0.5, 2.0, 5.0]
    for bound in (*clip_bounds(objective), objective.dual_clip):
        if bound and bound < 1e6:
            found += [0.95 * bound, 1.05 * bound]
    return found


def verdict(taps: Sequence[Tap], term: LossTerm, *, scale: float = 1.0, remedy: str) -> None:
    """The check (`CannotAttach`) that each tap's two micro-batches were trained with the weights of `term`.

    taps: one per probed optimizer step, every micro-batch of `batches` watched in order. scale: see `Tap.take`. remedy:
    what the user can do instead, as the end of a sentence.
    """
    wanted = [float(weight) for weight in token_weights(term, _ROWS)]
    shown: set[int] = set()
    for tap in taps:
        try:
            found = [row for part in tap.take(scale=scale) for row in part]
        except LostGradient as error:
            raise CannotAttach({"weight_probe": f"the trainer's loss gives no gradient: {error}; {remedy}"}) from None
        shown |= {place for place, row in enumerate(found) if row.weight is not None}
        if (why := _objection(found, wanted)) is not None:
            raise CannotAttach({"weight_probe": f"{why} ({term.aggregation}); {remedy}"})
    # A completion whose ratio is its sequence's may be clipped as a whole, but never in the probe of ratios of one.
    if hidden := [length for place, length in enumerate(_LENGTHS) if length and place not in shown]:
        reason = f"the trainer's own loss gives a completion of {hidden[0]} tokens no gradient"
        raise CannotAttach({"weight_probe": f"{reason} ({term.aggregation}); {remedy}"})


def remedy_with(own: str) -> str:
    """The user's way out where a loss is not the plan's, as the end of a sentence. own: the framework's own
    losses, in words."""
    return (
        "a loss of your own cannot be enforced unless it weighs tokens as the plan does: wrap with "
        f'mode="observe" to record what it does, or use {own}'
    )


@contextlib.contextmanager
def made_up_run(what: str, remedy: str) -> Iterator[None]:
    """The span in which native code runs on made-up micro-batches; where it does not, that is a refusal
    (`CannotAttach`). what: the beginning of a sentence that says what did not run on what."""
    try:
        yield
    except CannotAttach:
        raise
    except Exception as error:
        cause = f"{type(error).__name__}: {error}"
        reason = f"{what} ({cause}), so its weights cannot be measured; {remedy}"
        raise CannotAttach({"weight_probe": reason}) from error


def normaliser(term: LossTerm) -> Normaliser:
    """The denominators of the probed optimizer step."""
    return Normaliser.of(term, _ROWS)


def _objection(found: Sequence[Measured], wanted: Sequence[float]) -> str | None:
    if len(found) != len(wanted):
        return f"the trainer's loss took {len(found)} rows of log-probabilities where {len(wanted)} were given"
    for place, (row, weight) in enumerate(zip(found, wanted, strict=True)):
        if row.departure > row.tolerance:
            return (
                "the trainer's own loss is not the objective that its configuration says: the gradient of a "
                f"completion's tokens differs from it by {row.departure:.2g} of the largest"
            )
        if weight and row.weight is not None and abs(row.weight / weight - 1) > row.tolerance:
            return (
                f"the trainer's own loss gives a token of a completion of {_LENGTHS[place]} tokens the weight "
                f"{row.weight:.6g} in its optimizer step, and the plan {weight:.6g}"
            )
    return None
