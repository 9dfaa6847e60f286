"""A probe of an `ActorPPOTrainer`'s own loss before training: its `training_step`, of this version and this subclass,
on made-up log-probabilities in the place of the policy's.

No model runs and no parameter gets a gradient. Stand-ins for as long as the probe runs: the policy, and of the strategy
the backward pass (a plain one that divides by the accumulation steps, as DeepSpeed's does) and the update.
Source: openrlhf 0.11.2 ActorPPOTrainer.training_step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch

from batchbridge import CannotAttach, Spec
from batchbridge.kit import Normaliser
from batchbridge.kit.measuring import Tap
from batchbridge.kit.patches import Patches
from batchbridge.kit.probing import ProbeBatch, batches, normaliser, verdict
from batchbridge_openrlhf.watching import Given, Watch

REMEDY = (
    "a loss of your own cannot be enforced unless it weighs tokens as the plan does: wrap with "
    """mode="observe" to record what it does, or use one of OpenRLHF's losses"""
)


def hold_loss_against(
    spec: Spec,
    trainer: Any,
    watch: Watch,
    *,
    training_step: Callable[..., Any],
    kl_coefficient: float,
    layout: Callable[[Normaliser, int], Mapping[str, Sequence[Any]]],
) -> None:
    """Raises `CannotAttach` unless the trainer's own loss gives tokens the weights of `spec`.

    training_step: the trainer's own. kl_coefficient: what it is called with. layout: what the replay buffer says of an
    optimizer step with these denominators and so many micro-batches, by attribute.
    """
    device, step = trainer.actor.model.device, normaliser(spec.loss.policy)
    taps = []
    for off_policy in (False, True):
        tap, made = Tap(watch.objective), list(batches(watch.objective, off_policy=off_policy, device=device))
        patches = Patches()
        try:
            policy = _stand_in(trainer, watch, tap, patches)
            for name, values in layout(step, len(made)).items():
                patches.set(trainer.replay_buffer, name, list(values), what="the probe's", why="probe")
            for number, batch in enumerate(made):
                policy.next = batch
                _train(training_step, batch, kl_coefficient, number)
        finally:
            patches.undo()
        watch.settle(step)
        taps.append(tap)
    verdict(taps, spec.loss.policy, scale=watch.ranks, remedy=REMEDY)


def _train(training_step: Callable[..., Any], batch: ProbeBatch, kl_coefficient: float, number: int) -> None:
    try:
        training_step(_experience(batch), kl_coefficient, number, None)
    except Exception as error:
        reason = (
            f"the trainer's own training_step did not run on a made-up micro-batch ({type(error).__name__}: {error}), "
            f"so its weights cannot be measured; {REMEDY}"
        )
        raise CannotAttach({"weight_probe": reason}) from error


class _Policy:
    """In the place of the `Actor`: the log-probabilities of the micro-batch that comes next; entropies and the router's
    loss are zero."""

    def __init__(self, watch: Watch, tap: Tap) -> None:
        self._watch, self._tap = watch, tap
        self.next: ProbeBatch | None = None

    def train(self) -> None:
        """As a module's."""

    def __call__(self, *arguments: Any, **options: Any) -> tuple[torch.Tensor, Any]:
        assert self.next is not None, "the probe says what comes next"
        values = self.next.logprobs
        made = self._tap.leaf(values, self._watch.rows(_given(self.next), values))
        zeros = torch.zeros_like(values)
        return made, SimpleNamespace(entropy=zeros, aux_loss=zeros.sum())


def _stand_in(trainer: Any, watch: Watch, tap: Tap, patches: Patches) -> _Policy:
    policy, strategy = _Policy(watch, tap), trainer.strategy
    accumulation = int(trainer.actor.model.gradient_accumulation_steps())

    def backward(loss: torch.Tensor, *arguments: Any, **options: Any) -> None:
        (loss / accumulation).backward()

    for target, name, value in (
        (trainer, "actor", policy),
        (strategy, "backward", backward),
        (strategy, "optimizer_step", lambda *arguments, **options: None),
        (strategy, "moving_average", lambda *arguments, **options: None),
        (strategy, "get_grad_norm", lambda *arguments, **options: 0.0),
    ):
        patches.set(target, name, value, what="a stand-in", why="probe")
    return policy


def _given(batch: ProbeBatch) -> Given:
    old = batch.logprobs if batch.old is None else batch.old
    rows, width = batch.mask.shape
    ids = torch.ones(rows, width + 1, dtype=torch.long, device=batch.mask.device)
    return Given(
        ids=ids,
        attention=torch.ones_like(ids),
        mask=batch.mask,
        advantages=batch.advantages[:, None] * batch.mask,
        old=old,
        sampled=old,
        reference=batch.reference,
    )


def _experience(batch: ProbeBatch) -> Any:
    """As OpenRLHF's replay buffer makes it of the micro-batch; its tokens are one token, which nothing reads."""
    from openrlhf.trainer.ppo_utils.experience import Experience

    given = _given(batch)
    return Experience(
        sequences=given.ids,
        attention_mask=given.attention,
        action_mask=given.mask.clone(),
        action_log_probs=given.old.clone(),
        rollout_log_probs=given.old.clone(),
        base_action_log_probs=given.old.clone() if batch.reference is None else batch.reference.clone(),
        advantages=given.advantages.clone(),
        info={},
    )
