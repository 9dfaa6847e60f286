"""The critic's training processes: every optimizer step of a `CriticPPOTrainer` is cut by the plan, measured, held
against it, as the policy's are.

OpenRLHF's critic is another model with a replay buffer, an optimizer and a schedule of its own, trained by the same
loop. So `OpenRlhfEngineLayer` is used as it is, over the critic's own steps (`critics_spec`); what differs is what is
measured: the gradient at the values, of half the squared error that is clipped (`OpenRlhfValueTap`).

Source: openrlhf 0.11.2 ppo_critic.CriticPPOTrainer, loss.ValueLoss, model._get_critic_model.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from batchbridge import BatchDrift, CannotAttach, Spec
from batchbridge.kit.measuring import Rows, Tap
from batchbridge.kit.patches import Patches
from batchbridge.kit.worker_layer import Seam
from batchbridge_openrlhf.engine import VALUE_CLIP, OpenRlhfEngineLayer
from batchbridge_openrlhf.probe import OpenRlhfLossProbe
from batchbridge_openrlhf.turns import facts_of
from batchbridge_openrlhf.watching import OpenRlhfStepInputs, OpenRlhfStepProbe

_EDGE = 1e-4
"""Relative distance of a value from its clipping bound, or of its two squared errors from each other, within which
either side may count: rounding decides there."""


DIVIDED = (
    "this DeepSpeed divides the gradients of the critic's layers by an optimizer step's micro-batches twice, those of "
    """its value head once (BB-ORL-069), which is not measured; take mode="enforce", which trains it as planned, or """
    "train.micro_batch_size = a step's completions per device, or openrlhf 0.11.2"
)


def divides_twice(engine: Any) -> bool:
    """Whether an engine divides the gradient at each of a model's outputs by its accumulation steps: hidden states are
    one of the critic's, and its values are made of them. Source: deepspeed 0.19.1 to 0.19.5
    engine._backward_prologue_per_tensor."""
    return hasattr(engine, "_scale_wrt_gas") and int(engine.gradient_accumulation_steps()) > 1


def value_losses(
    clip: float | None,
) -> Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]:
    """The halves of values' squared errors, or of the clipped values', whichever is larger, by token; see `Critic`."""

    def losses(values: torch.Tensor, old: torch.Tensor, returns: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        error = (values - returns).square()
        if clip is not None:
            error = torch.maximum(error, (old + (values - old).clamp(-clip, clip) - returns).square())
        return 0.5 * error

    return losses


class OpenRlhfValueTap(Tap):
    """A `Tap` on values: rows have returns in place of advantages, and old values in that of log-probabilities."""

    def __init__(self, spec: Spec, clip: float | None) -> None:
        super().__init__(spec.objective, surrogate=value_losses(clip))
        self._clip = clip

    def _on_edge(
        self, new: torch.Tensor, old: torch.Tensor, mask: torch.Tensor, advantages: torch.Tensor
    ) -> torch.Tensor:
        if self._clip is None:
            return torch.zeros_like(new, dtype=torch.bool)
        moved = (new - old).abs()
        free, held = (new - advantages).abs(), (old + (new - old).clamp(-self._clip, self._clip) - advantages).abs()
        bound = (moved - self._clip).abs() < _EDGE * self._clip
        even = (moved > self._clip) & ((free - held).abs() < _EDGE * torch.maximum(free, held))
        return (bound | even) & mask.bool()


class OpenRlhfCriticStepProbe(OpenRlhfStepProbe):
    """The measurement of one critic's steps."""

    who = "critic"

    def __init__(self, trainer: Any, spec: Spec, patches: Patches, clip: float | None) -> None:
        self._clip = clip
        super().__init__(trainer, spec, patches)

    @staticmethod
    def parts(trainer: Any) -> tuple[Any, Any]:
        """The critic, which is its engine."""
        return trainer.critic, trainer.critic

    def tap(self) -> Tap:
        """A new measurement of micro-batches."""
        return OpenRlhfValueTap(self._spec, self._clip)

    def inputs_of(self, items: Sequence[Any]) -> OpenRlhfStepInputs:
        """Returns and old values of experiences of one completion each."""
        return OpenRlhfStepInputs.of(items, advantages="returns", old="values", sampled=None, reference=None)

    def rows(self, given: OpenRlhfStepInputs, logprobs: torch.Tensor) -> Rows:
        """The rows of a micro-batch with these values, and what they are meant to train."""
        here = logprobs.device
        return Rows(mask=given.mask.to(here), advantages=given.advantages.to(here), old=given.old.to(here))

    def reachable(self, result: Any) -> Any:
        """The values behind the hooks that DeepSpeed has on what an engine made: some releases scale gradients there.
        It drops those hooks with what they are on."""
        made, *others = result
        seen = made.view_as(made)
        seen.batchbridge_made = made
        return (seen, *others)


class OpenRlhfCriticLayer(OpenRlhfEngineLayer):
    """The patches of one `CriticPPOTrainer`; its orders have `critics_spec` in place of the run's."""

    @staticmethod
    def parts(trainer: Any) -> tuple[Any, Any, Any, Any]:
        """The trainer's DeepSpeed engine, replay buffer, loss and schedule of the learning rate."""
        return trainer.critic, trainer.replay_buffer, trainer.critic_loss_fn, trainer.critic_scheduler

    def prepare(self) -> None:
        """Refuses what is not measured."""
        if not self._enforces and divides_twice(self._engine):
            raise CannotAttach({"critic_divided": DIVIDED})

    def seams(self) -> Iterable[Seam]:
        """The seams of the policy's trainer, and the critic's backward pass."""
        yield from super().seams()
        if self._enforces:
            whole = functools.partial(self._engine.backward, scale_wrt_gas=False)
            why = "the plan's denominators are whole"
            yield Seam(self._engine, "backward", whole, "not divided by accumulation steps", why)

    @property
    def _accumulation(self) -> int:
        """The number that `backward` divides a loss by, where it is patched."""
        return 1

    def watching(self) -> OpenRlhfStepProbe:
        """The measuring of the critic's steps."""
        # In observe and verify nothing is set, and the loss has its own.
        clip = self._orders.settings.get(VALUE_CLIP, self._loss.clip_eps)
        return OpenRlhfCriticStepProbe(self._trainer, self._orders.trained, self._patches, clip)

    def _probing(self) -> OpenRlhfLossProbe:
        return OpenRlhfCriticProbe(self._trainer, self._watched)

    def _update(self, *arguments: Any, **options: Any) -> Any:
        try:
            return super()._update(*arguments, **options)
        except BatchDrift as drift:
            values = drift.detail.replace("log-probabilities", "values")
            raise BatchDrift(drift.step, drift.aspect, f"the critic: {values}") from None

    @staticmethod
    def _told(item: Any, prompt_tokens: int) -> dict[str, Any]:
        """Returns stand where a policy has its advantages, values where it has old log-probabilities."""
        return facts_of(item, prompt_tokens, trained="returns", old="values")

    @staticmethod
    def _finite(status: dict[str, Any], real: int) -> dict[str, Any]:
        return {name: 0.0 if math.isnan(value) else value for name, value in status.items()}


class OpenRlhfCriticProbe(OpenRlhfLossProbe):
    """The probe of a critic's `training_step`, on made-up values."""

    model = "critic"

    def arguments(self, number: int) -> tuple[Any, ...]:
        """Arguments of `training_step` beside the micro-batch."""
        return number, None

    def _stand_in(self, tap: Tap, patches: Patches) -> Any:
        model = super()._stand_in(tap, patches)

        def backward(loss: torch.Tensor, *arguments: Any, **options: Any) -> None:
            loss.backward()

        patches.set(self._trainer.strategy, "backward", backward, what="a stand-in", why="probe")
        return model
