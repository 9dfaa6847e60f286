"""A probe of a learner's own loss before training: its step, on made-up log-probabilities in the model's place.

No model runs and no parameter gets a gradient. Stand-ins for as long as the probe runs: the model's log-probabilities,
and what the learner has for the update (`Learner.rehearse`). Two passes over the probe's rows: in the first every
ratio is one; its log-probabilities are the second one's old ones.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from typing import Any

import torch

from batchbridge import Spec
from batchbridge.kit.patches import Patches
from batchbridge.kit.probing import ProbeBatch, batches, made_up_run, normaliser, remedy_with, verdict
from batchbridge_open_instruct.learners import Learner
from batchbridge_open_instruct.watching import OpenInstructStepProbe
from batchbridge_open_instruct.writing import denominator

REMEDY = remedy_with("one of Open-Instruct's losses")


def hold_loss_against(spec: Spec, learner: Learner, watch: OpenInstructStepProbe) -> None:
    """Refusal (`CannotAttach`) of a learner whose own loss does not give tokens the weights of `spec`. Collective."""
    term = spec.loss.policy
    made = list(batches(watch.objective, off_policy=True, device=learner.device))
    first, second = watch.tap(), watch.tap()
    watch.leaves(
        [
            *((first, part, dataclasses.replace(part.rows, old=None)) for part in made),
            *((second, part, part.rows) for part in made),
        ]
    )
    patches = Patches()
    try:
        with made_up_run("the learner's step did not run on a made-up batch", REMEDY):
            _arguments(learner, watch, made, denominator(normaliser(term)), patches)
            learner.rehearse({"batch": _batch(made), "metrics": {}}, patches)
    finally:
        watch.leaves(())
        watch.references_of_probe = None
        patches.undo()
    # Every rank brings the probe's tokens: where the step's tokens are counted over ranks, the factor for the ranks
    # cancels against it.
    scale = 1.0 if term.aggregation == "token_mean" else float(watch.shared.ranks)
    verdict([first, second], term, scale=scale, remedy=REMEDY)


def _arguments(
    learner: Learner, watch: OpenInstructStepProbe, made: Sequence[ProbeBatch], said: str, patches: Patches
) -> None:
    args = copy.copy(learner.args)
    args.num_epochs, args.loss_denominator = 2, said
    if learner.references:
        watch.references_of_probe = [part.logprobs if part.reference is None else part.reference for part in made]
    patches.set(*learner.holder, args, what="a stand-in", why="probe")


def _batch(made: Sequence[ProbeBatch]) -> Any:
    """A batch as the data preparation actor makes it; its tokens are one token, which nothing reads. The sampler's
    log-probabilities are the old ones: a correction towards it is one."""
    from open_instruct.data_types import CollatedBatchData

    def shifted(values: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.pad(values, (1, 0))

    ids = [torch.ones_like(shifted(part.mask), dtype=torch.long) for part in made]
    return CollatedBatchData(
        query_responses=ids,
        attention_masks=ids,
        position_ids=[one.cumsum(1) - 1 for one in ids],
        advantages=[shifted(part.advantages[:, None] * part.mask) for part in made],
        response_masks=[shifted(part.mask).bool() for part in made],
        vllm_logprobs=[shifted(part.logprobs if part.old is None else part.old) for part in made],
    )
