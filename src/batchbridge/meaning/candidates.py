"""The plan of a run whose rollouts are filled while it runs: rewards (a group filter) or timing (staleness) decide
which prompts are trained on, and everything else is planned.

Candidates are the prompts in the plan's order, epoch after epoch without a gap, numbered from 0; the trainer offers
them in that order. A rollout has `prompts_per_rollout` places, filled with the candidates that were kept, lowest number
first. Which places an optimizer step trains, in which pass and order, and the learning rate's clock are as without a
filter; so is the number of rollouts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from batchbridge.errors import PlanError
from batchbridge.meaning.lengths import with_one_length
from batchbridge.meaning.plan import Plan, RolloutPlan
from batchbridge.meaning.spec import Spec, Staleness

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray


class CandidatePlan(Plan):
    """A plan over places: `rollout(r).prompts` and the members of steps name places of rollout r, 0 to P - 1.

    asked: the spec as it was given; `spec` is what is planned of it. Raises `PlanError` where `asked` leaves open more
    than a group filter or staleness does.
    """

    members_are = "place"

    def __init__(self, asked: Spec, dataset_size: int) -> None:
        closed = asked.replace(**{"rollout.group_filter": "none", "staleness": Staleness()})
        horizon = asked.horizon
        if horizon.lengths.keys() != {"optimizer_steps"}:
            without_steps = closed.replace(**{"horizon.optimizer_steps": None})
            rollouts = Plan(with_one_length(without_steps, dataset_size), dataset_size).total_rollouts
            horizon = replace(horizon, rollouts=rollouts, epochs=None)
        # No rollout ends with an epoch: the next one's candidates fill its places.
        filled = closed.replace(**{"order.last_rollout": "wrap", "horizon": horizon})
        super().__init__(with_one_length(filled, dataset_size), dataset_size)
        self.asked = asked

    @property
    def undecided(self) -> Mapping[str, str]:
        """The questions that the run decides, by the field of `asked` that leaves it open."""
        found = {}
        if (kind := self.asked.rollout.group_filter) != "none":
            found["rollout.group_filter"] = f"{kind}: rewards decide which candidates fill a rollout's places"
        if (mode := self.asked.staleness.mode) != "sync":
            found["staleness.mode"] = (
                f"{mode}: timing decides which candidates fill a rollout's places, and which weights generated them"
            )
        return found

    def candidates(self, start: int, stop: int) -> tuple[int, ...]:
        """The prompts of candidates `start` to `stop` (exclusive): indices in the dataset."""
        return tuple(self._prompt(*divmod(number, self.dataset_size)) for number in range(start, stop))

    def candidate_seeds(self, start: int, stop: int) -> tuple[int, ...]:
        """The sampling seed of each candidate's sample 0; see `Plan.sampling_seed`."""
        epochs = (number // self.dataset_size for number in range(start, stop))
        prompts = zip(self.candidates(start, stop), epochs, strict=True)
        return tuple(self.sampling_seed(prompt, 0, epoch=epoch) for prompt, epoch in prompts)

    def sampling_seeds(self, rollout: int) -> tuple[int, ...]:
        """Refusal (`PlanError`) of seeds that are not known before the run; see `candidate_seeds`."""
        raise PlanError("; ".join(f"{path} = {why}" for path, why in self.undecided.items()))

    def rollout(self, index: int) -> RolloutPlan:
        """The places of rollout `index`, each for every sample of one candidate."""
        places = super().rollout(index)
        return replace(places, epoch=0, prompts=tuple(range(self.prompts_per_rollout)))

    def step_of(self, prompt: int, sample: int, *, epoch: int = 0, pass_index: int = 0) -> int | None:
        """Refusal (`PlanError`) of a step that is not known before the run."""
        raise PlanError("; ".join(f"{path} = {why}" for path, why in self.undecided.items()))

    def _rollout_span(self, index: int) -> tuple[int, int, int]:
        _, start, prompts = super()._rollout_span(index)
        return 0, start, prompts  # the epoch of a place is its candidate's

    def _prompts_array(self, rollout: int) -> NDArray[numpy.int64]:
        import numpy as np

        return np.arange(self.prompts_per_rollout, dtype=np.int64)


def plan_of(spec: Spec, dataset_size: int) -> Plan:
    """The plan of `spec`: a `CandidatePlan` where a group filter or staleness leaves membership to the run. Of several
    lengths, the one that ends first counts.

    Raises `PlanError` as `Plan` does.
    """
    closed = spec.rollout.group_filter == "none" and spec.staleness.mode == "sync"
    return Plan(with_one_length(spec, dataset_size), dataset_size) if closed else CandidatePlan(spec, dataset_size)


def keyed(spec: Spec) -> Spec:
    """A specification whose order of prompts, where nothing fixes it, has a key all the same: for the plan of an
    unwrapped run, whose sizes, passes and clock are held, and whose order is not."""
    order = spec.order
    open_key = order.prompt_shuffle == "epoch_permutation" and order.seed is None
    return spec.replace(**{"order.seed": 0}) if open_key else spec
