"""Completions in a replay buffer, by their identity, and what an optimizer step makes of them."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from batchbridge.kit import Length, Normaliser, StepPlan
from batchbridge.kit.workers import TrainedRow, facts

if TYPE_CHECKING:
    from batchbridge_openrlhf.watching import OpenRlhfStepInputs

IDENTITY = "batchbridge"
"""Key of an experience's `info`: which completion it is, five integers per row. See `identify`."""
NOBODY = (-1,) * 5
"""The identity of a filler row."""
NO_TOKEN = 1e-9
"""Tokens that a micro-batch without any reports: upstream divides its metrics by them."""


@dataclass(frozen=True)
class ReplayedCompletion:
    """One completion in someone's replay buffer, as every rank knows it. prompt: see `identify`. index: its place
    there. answered: whether its tokens, mask and images are those of the engine's answer, see `answers`."""

    rollout: int
    prompt: int
    position: int
    sample: int
    prompt_tokens: int
    all_tokens: int
    tokens: int
    index: int
    answered: bool = True
    sees: bool = False
    """Whether its prompt has images."""

    @property
    def row(self) -> tuple[int, int]:
        return self.position, self.sample

    @property
    def length(self) -> Length:
        return Length(self.prompt_tokens, self.all_tokens - self.prompt_tokens)


@dataclass(frozen=True)
class PlannedStep:
    """One step as it will run: its plan, its denominators, and how many micro-batches; none where it has no token.
    silent: this rank's rows of such a step, by their places in the buffer."""

    step: StepPlan
    normaliser: Normaliser
    micro_batches: int
    silent: tuple[int, ...] = ()


def identify(experience: Any, *, rollout: int, prompt: int, position: int, sample: int, prompt_tokens: int) -> Any:
    """Marks an experience of one completion before it is appended to a replay buffer, and returns it.

    rollout: from 0 over the run. prompt: index in the dataset, or the candidate's number where a `CandidatePlan` is
    followed. position: the prompt's place in its rollout, as the plan has it. sample: the completion's number in its
    group. prompt_tokens: tokens before the response.
    """
    import torch

    experience.info[IDENTITY] = torch.tensor([[rollout, prompt, position, sample, prompt_tokens]])
    return experience


def filler_of(item: Any) -> Any:
    """A row that weighs nothing: the experience of one completion with an empty mask, and nobody's."""
    import torch

    filler = copy.copy(item)
    filler.action_mask = torch.zeros_like(item.action_mask)
    filler.info = {**item.info, IDENTITY: torch.tensor(NOBODY)}
    return filler


def name_passes(rows: Iterable[TrainedRow], step: StepPlan, completions_per_prompt: int) -> None:
    """Gives an optimizer step's rows the passes that the plan counts: what one pass drops does not shift the next one's
    number."""
    passes: dict[int, deque[int]] = {}
    for member, place in zip(step.members, step.positions, strict=True):
        passes.setdefault(place, deque()).append(member.pass_index)
    for row in rows:
        if left := passes.get(row.position * completions_per_prompt + row.sample):
            row.pass_index = left.popleft()


NO_FACTS: Mapping[str, Any] = dict.fromkeys(
    ("prompt_fingerprint", "completion_fingerprint", "reward", "advantage", "old_logprobs")
)


class ExperienceCompanions:
    """Companions of a micro-batch's experience; upstream would move plain tensors and lists to a device.

    items: the experiences of one completion each. inputs: what they are meant to train.
    """

    def __init__(self, items: Sequence[Any], given: OpenRlhfStepInputs) -> None:
        self.items, self.inputs = items, given


def facts_of(
    item: Any, prompt_tokens: int, *, trained: str = "advantages", old: str = "action_log_probs"
) -> dict[str, Any]:
    """Facts for the ledger about one completion's experience; see `batchbridge.kit.workers.facts`. trained, old:
    columns of what its tokens are trained towards, and of what was before."""
    ids, reward = item.sequences.tolist(), item.info.get("reward")
    # The mask and the log-probabilities are about the token after each position.
    return facts(
        prompt=ids[:prompt_tokens],
        completion=ids[prompt_tokens:],
        trained=getattr(item, trained)[item.action_mask.bool()].tolist(),
        old_logprobs=getattr(item, old)[prompt_tokens - 1 :].float().tolist(),
        reward=None if reward is None else float(reward),
    )
