"""Completions in the replay buffers of all ranks: which ones they are, and whether they are exactly the plan's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from batchbridge import BatchDrift, CannotAttach, Plan
from batchbridge.kit import CandidatePlan
from batchbridge_openrlhf.answers import is_as_answered
from batchbridge_openrlhf.images import shown
from batchbridge_openrlhf.turns import IDENTITY, ReplayedCompletion


def replayed(item: Any, index: int) -> ReplayedCompletion:
    """The completion of an experience at a place of the buffer. Raises `CannotAttach` where it has no identity."""
    if IDENTITY not in item.info:
        reason = "an experience without BatchBridge's identity reached the replay buffer; see `identify`"
        raise CannotAttach({"unplanned_batch": reason})
    rollout, prompt, position, sample, prompt_tokens = (int(value) for value in item.info[IDENTITY])
    return ReplayedCompletion(
        rollout,
        prompt,
        position,
        sample,
        prompt_tokens,
        all_tokens=len(item.sequences),
        tokens=int(item.action_mask.sum()),
        index=index,
        answered=is_as_answered(item),
        sees=bool(shown(item)),
    )


def one_rollout(held: Sequence[Sequence[ReplayedCompletion]], step: int) -> int:
    """The only rollout that the ranks hold completions of, before optimizer step `step`. Raises `BatchDrift` where they
    hold none, `CannotAttach` where they hold several."""
    rollouts = {row.rollout for share in held for row in share}
    if not rollouts:
        raise BatchDrift(step, "membership", "a model is to train, and no rank holds a completion for it")
    if len(rollouts) != 1:
        raise CannotAttach({"rollout": f"the replay buffers hold rollouts {sorted(rollouts)}; one at a time"})
    return rollouts.pop()


def by_row(
    plan: Plan, rollout: int, held: Sequence[Sequence[ReplayedCompletion]]
) -> dict[tuple[int, int], tuple[int, ReplayedCompletion]]:
    """(position, sample) to the rank that holds it and what it holds. Raises `BatchDrift` unless the ranks hold exactly
    the completions that the plan has for the rollout, as the engine answered them."""
    planned = plan.rollout(rollout)
    prompts: Sequence[int] = planned.prompts
    named = "prompt"
    if isinstance(plan, CandidatePlan):  # places are filled lowest number first
        named = "candidate"
        prompts = sorted({row.prompt for share in held for row in share})
        if len(prompts) != len(planned.prompts):
            said = f"rollout {rollout} came with {len(prompts)} groups for {len(planned.prompts)} places"
            raise BatchDrift(planned.generated_at_step, "membership", said)
    want = Counter(
        (position, prompt, sample)
        for position, prompt in enumerate(prompts)
        for sample in range(planned.completions_per_prompt)
    )
    have = Counter((row.position, row.prompt, row.sample) for share in held for row in share)
    if want != have:
        missing, extra = sorted((want - have).elements()), sorted((have - want).elements())
        raise BatchDrift(
            planned.generated_at_step,
            "membership",
            f"rollout {rollout} came without (position, {named}, sample) {missing[:3] or 'none'} "
            f"and with {extra[:3] or 'none'} that it does not have",
        )
    if others := sorted((row.prompt, row.sample) for share in held for row in share if not row.answered):
        said = "with other tokens or images, or another loss mask, than the engine's answers have"
        where = f"({named}, sample) {others[:3]}"
        raise BatchDrift(planned.generated_at_step, "membership", f"rollout {rollout} came {said}: {where}")
    return {row.row: (rank, row) for rank, share in enumerate(held) for row in share}
