"""The terms of TRL's loss that do not pass through the log-probabilities: an entropy bonus, and a router's loss.

TRL makes each a mean of its own over a micro-batch. The factor that turns a micro-batch's policy loss into its share of
the step's is none of theirs: it stands at the gradient of the log-probabilities (`LossTerms.weigh`). A hook on the
tensor that each term is made of (entropies by token, the router's loss by micro-batch) turns the gradient that arrives
there into the term's own share, and keeps what it was: a loss that weighs the term otherwise, or leaves it out, is seen
before the update. Values are not touched, so that TRL's metrics and the controller of an adaptive bonus see what they
see natively.

Source: trl 1.10.0 to 1.16.0, GRPOTrainer._compute_loss; the router's loss since 1.7.0.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from batchbridge.kit.rounding import TOLERANCE
from batchbridge_trl import releases
from batchbridge_trl.rows import TrlMicroBatch, loss_mask

CONTROLLER = ("entropy_coef", "_last_world_entropy", "_entropy_window_stats")
"""Attributes of the trainer that an adaptive bonus goes on from."""


@dataclass
class _Seen:
    """A tensor that a term is made of. wanted: the gradient that its share of the step is, in the tensor's shape."""

    name: str
    wanted: torch.Tensor
    found: torch.Tensor | None = None

    def share(self, tensor: torch.Tensor, scale: torch.Tensor | float) -> None:
        """Hooks the tensor: its gradient is `scale` times what arrives."""

        def arrive(gradient: torch.Tensor) -> torch.Tensor:
            own = gradient * scale
            self.found = own.detach() if self.found is None else self.found + own.detach()
            return own.to(gradient.dtype)

        tensor.register_hook(arrive)


@dataclass
class LossTerms:
    """The terms of one trainer's loss beside the policy's and the KL term, as a wrapped run shares them out.

    bonus, router: whether the trainer has them.
    """

    trainer: Any
    bonus: bool = field(init=False)
    router: bool = field(init=False)

    def __post_init__(self) -> None:
        self.bonus = bool(releases.value(self.trainer, "_entropy_bonus_enabled"))
        self.router = bool(releases.value(self.trainer, "aux_loss_enabled"))
        self._coefficient = self.trainer.entropy_coef if self.bonus else 0.0
        self._router_coefficient = self.trainer.router_aux_loss_coef if self.router else 0.0
        self._seen: list[_Seen] = []
        self._micro: TrlMicroBatch | None = None
        self._missing: list[torch.Tensor] = []

    @contextlib.contextmanager
    def shared(self, micro: TrlMicroBatch) -> Iterator[list[torch.Tensor]]:
        """The span in which a micro-batch's loss is computed. What is put into the list that it gives belongs to the
        loss's value, which the factor scaled wrongly, and has no gradient."""
        self._micro, self._missing = micro, []
        try:
            yield self._missing
        finally:
            self._micro = None

    def made(self, result: Any) -> None:
        """Hooks what TRL's method for log-probabilities has made for a micro-batch's loss."""
        if self._micro is not None and (self.bonus or self.router) and torch.is_grad_enabled():
            _, entropies, router_loss = result
            self._missing += self._watch(self._micro, entropies, router_loss)

    def weigh(self, logprobs: torch.Tensor) -> None:
        """Has the gradient that arrives at a micro-batch's log-probabilities be that of its share of the step's loss:
        what else the loss is made of is not multiplied by the factor."""
        if self._micro is not None and logprobs.requires_grad:
            share = self._micro.factor / self._micro.own_share
            logprobs.register_hook(lambda gradient: gradient * share)

    @property
    def times(self) -> float:
        """The factor of the gradient between TRL's loss of the micro-batch in hand and its log-probabilities;
        see `weigh`."""
        return 1.0 if self._micro is None else float(self._micro.factor / self._micro.own_share)

    def value_of(self, made: Any, mask: torch.Tensor, coefficient: float) -> torch.Tensor | float:
        """The part of the value of TRL's loss of a micro-batch that these terms have. made: what its method for
        log-probabilities gave. mask: 1 per trained token. coefficient: of the bonus, as `applied`."""
        if made is None or not (self.bonus or self.router):
            return 0.0
        _, entropies, router_loss = made
        turns = self.trainer.current_gradient_accumulation_steps
        value: torch.Tensor | float = 0.0
        if self.bonus:
            kind = torch.promote_types(entropies.dtype, torch.float32)
            trained = mask.to(kind)
            value = -coefficient * (entropies.detach() * trained).sum() / trained.sum().clamp(min=1.0) / turns
        if self.router:
            value = value + self._router_coefficient * router_loss.detach() / turns
        return value

    def _watch(
        self, micro: TrlMicroBatch, entropies: torch.Tensor, router_loss: torch.Tensor
    ) -> Iterator[torch.Tensor]:
        turns = micro.micro_batches
        if self.bonus:
            mask = loss_mask(micro).to(torch.promote_types(entropies.dtype, torch.float32))
            coefficient = self.applied()
            seen = _Seen("the entropy bonus", -coefficient * micro.per_token * mask)
            # Natively the mean over the micro-batch's own tokens, over the micro-batches, times the step's factor.
            tokens = mask.sum().clamp(min=1.0)
            scale = micro.per_token * tokens * turns / micro.factor
            if entropies.requires_grad:
                seen.share(entropies, scale * micro.factor / micro.own_share)
            self._seen.append(seen)
            native = coefficient * micro.factor * (entropies.detach() * mask).sum() / tokens / turns
            yield native - native * scale
        if self.router:
            coefficient = self._router_coefficient
            seen = _Seen("the router's loss", torch.full_like(router_loss.detach(), coefficient / turns))
            seen.share(router_loss, 1 / micro.own_share)
            self._seen.append(seen)
            yield router_loss.detach() * (coefficient / turns) * (1 - micro.factor)

    def applied(self) -> float:
        """The bonus's coefficient in this step. An adaptive one is the trainer's own state, and is off while the policy
        has more entropy than its target; another one is what it was when the trainer was wrapped."""
        trainer = self.trainer
        if not self.bonus or not trainer.use_adaptive_entropy:
            return float(self._coefficient)
        return float(trainer.entropy_coef) if trainer._last_world_entropy <= trainer.args.entropy_target else 0.0

    def drop(self) -> None:
        """Forgets what was seen."""
        self._seen.clear()

    def objection(self) -> str | None:
        """The objection to the terms since the last call that are not their share of the step; None without one."""
        seen, self._seen = self._seen, []
        for each in seen:
            found = torch.zeros_like(each.wanted) if each.found is None else each.found.to(each.wanted.dtype)
            kind = each.wanted.dtype if each.found is None else each.found.dtype
            most = float(each.wanted.abs().max())
            off = float((found - each.wanted).abs().max())
            if not off <= TOLERANCE.get(kind, TOLERANCE[torch.float32]) * max(most, 1e-30):
                share = f"{off / most:.2g} of its share" if most else f"{off:.2g}, where it has no share"
                return f"{each.name} reached the gradient otherwise than the step's tokens say: off by {share}"
        return None

    def state(self) -> dict[str, Any]:
        """The part of an adaptive bonus that a checkpoint stores: TRL's own has nothing of it."""
        if not self.bonus or not self.trainer.use_adaptive_entropy:
            return {}
        return {name: getattr(self.trainer, name) for name in CONTROLLER[:2]}

    def load(self, state: dict[str, Any]) -> None:
        """Goes on from what `state` said."""
        for name, value in state.items():
            setattr(self.trainer, name, value)


def with_value(tensor: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """A tensor that has this value, and the gradient of `tensor`."""
    found: torch.Tensor = _WithValue.apply(tensor, value)
    return found


class _WithValue(torch.autograd.Function):  # type: ignore[misc]  # torch is untyped here
    """`with_value`, forward and backward."""

    @staticmethod
    def forward(context: Any, tensor: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """The value."""
        return value.clone()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        """The gradient, as it arrives."""
        return gradient, None
