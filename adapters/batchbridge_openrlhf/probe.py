"""A probe of an `ActorPPOTrainer`'s own loss before training: its `training_step`, of this version and this subclass,
on made-up log-probabilities in place of the policy's.

No model runs and no parameter gets a gradient. Stand-ins for as long as the probe runs: the policy, and of the strategy
the backward pass (a plain one that divides by the accumulation steps, as DeepSpeed's does) and the update.
Source: openrlhf 0.11.2 ActorPPOTrainer.training_step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch

from batchbridge import Spec
from batchbridge.kit import Normaliser
from batchbridge.kit.measuring import Tap
from batchbridge.kit.patches import Patches
from batchbridge.kit.probing import ProbeBatch, batches, made_up_run, normaliser, remedy_with, verdict
from batchbridge_openrlhf.watching import OpenRlhfStepInputs, OpenRlhfStepProbe

REMEDY = remedy_with("one of OpenRLHF's losses")


class OpenRlhfLossProbe:
    """The probe of one trainer's loss. kl_coefficient: what its `training_step` is called with."""

    model = "actor"
    """The attribute of the trainer that a stand-in takes the place of."""

    def __init__(self, trainer: Any, watch: OpenRlhfStepProbe, kl_coefficient: float = 0.0) -> None:
        self._trainer, self._watch, self._kl_coefficient = trainer, watch, kl_coefficient

    def hold_against(
        self,
        spec: Spec,
        training_step: Callable[..., Any],
        layout: Callable[[Normaliser, int], Mapping[str, Sequence[Any]]],
    ) -> None:
        """Refusal (`CannotAttach`) of a trainer whose own loss does not give tokens the weights of `spec`.

        training_step: the trainer's own. layout: what the replay buffer says of an optimizer step with these
        denominators and so many micro-batches, by attribute.
        """
        watch, step = self._watch, normaliser(spec.loss.policy)
        taps = []
        for off_policy in (False, True):
            tap = watch.tap()
            made = list(batches(watch.objective, off_policy=off_policy, device=watch.engine.device))
            patches = Patches()
            try:
                model = self._stand_in(tap, patches)
                # A critic's step asks for the share of a router's loss whether it has one or not.
                said = {**layout(step, len(made)), "dynamic_sample_loss_scale": [1.0] * len(made)}
                for name, values in said.items():
                    patches.set(self._trainer.replay_buffer, name, list(values), what="the probe's", why="probe")
                for number, batch in enumerate(made):
                    model.next = batch
                    self._train(training_step, batch, number)
            finally:
                patches.undo()
            watch.settle(step)
            taps.append(tap)
        verdict(taps, spec.loss.policy, scale=watch.ranks, remedy=REMEDY)

    def leaf(self, batch: ProbeBatch, tap: Tap) -> torch.Tensor:
        """The log-probabilities that a model would have made of the micro-batch, watched."""
        return tap.leaf(batch.logprobs, self._watch.rows(self.inputs_of(batch), batch.logprobs))

    def arguments(self, number: int) -> tuple[Any, ...]:
        """Arguments of `training_step` beside the micro-batch, of its number in the step."""
        return self._kl_coefficient, number, None

    def inputs_of(self, batch: ProbeBatch) -> OpenRlhfStepInputs:
        """The values that the rows of the micro-batch are meant to train."""
        old = batch.logprobs if batch.old is None else batch.old
        rows, width = batch.mask.shape
        ids = torch.ones(rows, width + 1, dtype=torch.long, device=batch.mask.device)
        return OpenRlhfStepInputs(
            ids=ids,
            attention=torch.ones_like(ids),
            mask=batch.mask,
            advantages=batch.advantages[:, None] * batch.mask,
            old=old,
            sampled=old,
            reference=batch.reference,
        )

    def experience(self, batch: ProbeBatch) -> Any:
        """A micro-batch as OpenRLHF's replay buffer makes it; its tokens are one token, which nothing reads."""
        from openrlhf.trainer.ppo_utils.experience import Experience

        given = self.inputs_of(batch)
        return Experience(
            sequences=given.ids,
            attention_mask=given.attention,
            action_mask=given.mask.clone(),
            action_log_probs=given.old.clone(),
            rollout_log_probs=given.old.clone(),
            base_action_log_probs=given.old.clone() if batch.reference is None else batch.reference.clone(),
            advantages=given.advantages.clone(),
            values=given.old.clone(),
            returns=given.advantages.clone(),
            info={},
        )

    def _train(self, training_step: Callable[..., Any], batch: ProbeBatch, number: int) -> None:
        with made_up_run("the trainer's own training_step did not run on a made-up micro-batch", REMEDY):
            training_step(self.experience(batch), *self.arguments(number))

    def _stand_in(self, tap: Tap, patches: Patches) -> _Model:
        model, strategy = _Model(self, tap), self._trainer.strategy
        accumulation = int(self._watch.engine.gradient_accumulation_steps())

        def backward(loss: torch.Tensor, *arguments: Any, **options: Any) -> None:
            (loss / accumulation).backward()

        for target, name, value in (
            (self._trainer, self.model, model),
            (strategy, "backward", backward),
            (strategy, "optimizer_step", lambda *arguments, **options: None),
            (strategy, "moving_average", lambda *arguments, **options: None),
            (strategy, "get_grad_norm", lambda *arguments, **options: 0.0),
        ):
            patches.set(target, name, value, what="a stand-in", why="probe")
        return model


class _Model:
    """A stand-in for the model that is trained: the log-probabilities of the micro-batch that comes next; entropies and
    the router's loss are zero."""

    def __init__(self, probe: OpenRlhfLossProbe, tap: Tap) -> None:
        self._probe, self._tap = probe, tap
        self.next: ProbeBatch | None = None

    def train(self) -> None:
        """The training mode of a module, which does nothing here."""

    def __call__(self, *arguments: Any, **options: Any) -> tuple[torch.Tensor, Any]:
        assert self.next is not None, "the probe says what comes next"
        made = self._probe.leaf(self.next, self._tap)
        zeros = torch.zeros_like(made)
        return made, SimpleNamespace(entropy=zeros, aux_loss=zeros.sum())
