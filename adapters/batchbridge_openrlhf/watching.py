"""The measurement of one training process: what its loss gives each token, and what DeepSpeed makes of the gradients.

Two places, neither of which knows a denominator of OpenRLHF's: the log-probabilities that the policy makes (a hook on
the tensor: denominators, DeepSpeed's accumulation and the factor for its ranks are all in the gradient that arrives
there), and one small parameter (its own gradients of every micro-batch against what DeepSpeed's optimizer finds).

Source: openrlhf 0.11.2 ActorPPOTrainer.training_step, Actor.forward, PolicyLoss.forward, compute_approx_kl; deepspeed
0.19.6 utils.safe_get_full_grad.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from batchbridge.measuring import Factor, Measured, Rows, Tap, Witness, all_reduce_over
from batchbridge.patching import Patches
from batchbridge.spec import Objective, Spec
from batchbridge.weights import Normaliser

FURTHEST = 20.0
"""Log of a token's ratio beyond which OpenRLHF's loss has no gradient. Source: PolicyLoss.forward."""
UNBIASED = "_unbiased_gradient"
"""End of the name of a KL estimator whose gradient is that of k2 times the ratio. Source: compute_approx_kl."""


class OtherInputs(RuntimeError):
    """A policy that was run on other tokens, or with another loss mask, than the replay buffer has."""


@dataclasses.dataclass(frozen=True)
class Given:
    """A micro-batch as the replay buffer has it before it is trained: copies, padded on the right.

    All of shape (rows, tokens), on the CPU; ids, attention: one token wider. sampled: the sampler's log-probabilities;
    None where there are none.
    """

    ids: torch.Tensor
    attention: torch.Tensor
    mask: torch.Tensor
    advantages: torch.Tensor
    old: torch.Tensor
    sampled: torch.Tensor | None
    reference: torch.Tensor | None

    @classmethod
    def of(cls, items: Sequence[Any]) -> Given:
        """Of experiences of one completion each."""

        def column(name: str) -> Any:
            values = [getattr(item, name, None) for item in items]
            if any(value is None for value in values):
                return None
            return torch.nn.utils.rnn.pad_sequence(values, batch_first=True).detach()

        return cls(
            ids=column("sequences"),
            attention=column("attention_mask"),
            mask=column("action_mask"),
            advantages=column("advantages"),
            old=column("action_log_probs"),
            sampled=column("rollout_log_probs"),
            reference=column("base_action_log_probs"),
        )

    def is_of(self, ids: Any, mask: Any) -> torch.Tensor | bool:
        """Whether these are the micro-batch's tokens, but for padding, and its loss mask. A tensor, so that nobody
        waits for a device before the step is whole."""
        if not isinstance(ids, torch.Tensor) or not isinstance(mask, torch.Tensor):
            return False
        if ids.shape != self.ids.shape or mask.shape != self.mask.shape:
            return False
        padding = self.attention.to(ids.device) == 0
        return ((ids == self.ids.to(ids.device)) | padding).all() & (mask == self.mask.to(mask.device)).all()


class Watch:
    """The measurement of one trainer's steps. spec: what its loss computes."""

    def __init__(self, trainer: Any, spec: Spec, patches: Patches) -> None:
        self._engine, self._spec = trainer.actor.model, spec
        self.objective = _measurable(spec.objective)
        self._tap = Tap(self.objective)
        self._shares: list[torch.Tensor] = []
        self._expected: Given | None = None
        self._sound: list[torch.Tensor | bool] = []
        """Of each micro-batch, whether the policy was run on what the buffer has."""
        self._witness: Witness | None = None
        self._native_forward = trainer.actor.forward
        patches.set(
            trainer.actor,
            "forward",
            self._forward,
            what="log-probabilities hooked",
            why="what a step trains is measured",
        )
        chosen = Witness.choose(list(self._engine.module.named_parameters()), size=_whole_size)
        if chosen is not None:
            self._witness = Witness(chosen[1], all_reduce_over(), apart=True)

    def close(self) -> None:
        """Takes the hook off the parameter."""
        if self._witness is not None:
            self._witness.remove()

    @property
    def ranks(self) -> int:
        """Processes that DeepSpeed averages gradients over."""
        return int(torch.distributed.get_world_size())

    # ---- log-probabilities

    @contextlib.contextmanager
    def expecting(self, given: Given) -> Iterator[None]:
        """While a micro-batch is trained: what its rows are meant to train."""
        self._expected = given
        try:
            yield
        finally:
            self._expected = None

    def _forward(self, *arguments: Any, **options: Any) -> Any:
        result = self._native_forward(*arguments, **options)
        if self._expected is not None:
            made = result if isinstance(result, torch.Tensor) else result[0]
            # OpenRLHF multiplies log-probabilities with the mask, so that a token that was taken out of it looks like
            # one that is clipped.
            ids, mask = (
                arguments[place] if len(arguments) > place else options.get(name)
                for place, name in enumerate(("sequences", "action_mask"))
            )
            self._sound.append(made.shape == self._expected.mask.shape and self._expected.is_of(ids, mask))
            if made.shape == self._expected.mask.shape:
                self._tap.watch(made, self.rows(self._expected, made))
        return result

    def rows(self, given: Given, logprobs: torch.Tensor) -> Rows:
        """What the rows of a micro-batch are meant to train, beside its log-probabilities.

        Where the policy term is a mean over sequences, the KL term's weight is known when the step is whole; see
        `take`.
        """

        def here(tensor: torch.Tensor | None) -> torch.Tensor | None:
            return None if tensor is None else tensor.to(logprobs.device)

        mask, sampled = given.mask.to(logprobs.device), here(given.sampled)
        old = given.old.to(logprobs.device)
        if self._spec.objective.old_logprobs == "sampler" and sampled is not None:
            old = sampled
        share: torch.Tensor | None = None
        if self._has_kl_term:
            if (self._spec.objective.kl_estimator or "").endswith(UNBIASED):
                share = _ratio_of_unbiased(logprobs.detach(), old)
            if self._spec.loss.policy.aggregation != "token_mean":
                tokens = mask.sum(1, keepdim=True).to(old.dtype)
                share = tokens if share is None else share * tokens
                self._shares.append(share)
        return Rows(
            mask=mask,
            advantages=given.advantages.to(logprobs.device),
            old=old,
            reference=here(given.reference) if self._has_kl_term else None,
            multiplier=self._multiplier(mask, given.old.to(logprobs.device), sampled),
            kl_share=share,
        )

    @property
    def _has_kl_term(self) -> bool:
        return self.objective.kl_placement == "loss" and bool(self.objective.kl_coefficient)

    @property
    def needs_denominators(self) -> bool:
        """Whether `take` must be told the step's numbers of tokens and completions."""
        return self._has_kl_term and self._spec.loss.policy.aggregation != "token_mean"

    def _multiplier(
        self, mask: torch.Tensor, old: torch.Tensor, sampled: torch.Tensor | None
    ) -> torch.Tensor | Callable[[torch.Tensor], torch.Tensor] | None:
        if self._spec.objective.ratio_level == "sequence":
            return None
        named = self._spec.objective.sampler_correction
        correction = None if named is None or sampled is None else _correction(named, mask, old, sampled)

        def factor(new: torch.Tensor) -> torch.Tensor:
            inside = ((new - old).abs() <= FURTHEST).to(new.dtype)
            return inside if correction is None else inside * correction

        return factor

    def take(self, normaliser: Normaliser) -> list[list[Measured]]:
        """The micro-batches since the last call; weights as canonical: ranks add up. Raises `LostGradient`,
        `OtherInputs`.

        normaliser: the step's tokens and completions; only looked at where `needs_denominators`.
        """
        self.settle(normaliser)
        sound, self._sound = self._sound, []
        if not all(map(bool, sound)):
            self._tap.drop()
            raise OtherInputs("the policy was run on other tokens, or with another loss mask, than the rollout has")
        return self._tap.take(scale=self.ranks * self._loss_scale)

    def settle(self, normaliser: Normaliser) -> None:
        """Gives the KL terms of the micro-batches since the last call their weight over that of the policy term:
        1 / T over 1 / (B L), of T tokens, B completions and a completion's L tokens."""
        for share in self._shares:
            share.mul_(normaliser.completions / max(normaliser.tokens, 1))
        self._shares.clear()

    @property
    def _loss_scale(self) -> float:
        """fp16's, which DeepSpeed multiplies the loss with inside of backward."""
        return float(getattr(self._engine.optimizer, "loss_scale", 1.0) or 1.0)

    def drop(self) -> None:
        """Forgets the micro-batches since the last `take`."""
        self._tap.drop()
        self._shares.clear()
        self._sound.clear()
        if self._witness is not None:
            self._witness.drop()

    # ---- between backward and the update

    def factor(self) -> Factor | None:
        """What became of the step's gradients after backward: DeepSpeed shall have averaged them over the ranks, and
        nothing else. None where no parameter is trained. Collective."""
        if self._witness is None:
            return None
        from deepspeed.utils import safe_get_full_grad

        return self._witness.compare(safe_get_full_grad(self._witness.parameter))


def _whole_size(parameter: torch.Tensor) -> int:
    """Values of a parameter; under ZeRO-3 a rank holds a part. Source: deepspeed 0.19.6 partition_parameters."""
    return int(getattr(parameter, "ds_numel", parameter.numel()))


def _measurable(objective: Objective) -> Objective:
    """The objective with a KL estimator whose gradient has a formula."""
    if (objective.kl_estimator or "").endswith(UNBIASED):
        return dataclasses.replace(objective, kl_estimator="k2", kl_clamp=None)
    return objective


def _ratio_of_unbiased(new: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
    from openrlhf.models.utils import KL_IS_WEIGHT_CLIP

    return (new.float() - old.float()).exp().clamp(max=KL_IS_WEIGHT_CLIP)


def _correction(named: str, mask: torch.Tensor, old: torch.Tensor, sampled: torch.Tensor) -> torch.Tensor | None:
    """The factor of each token's loss that corrects towards the sampler, by the canonical name of the correction and
    its bounds (`meaning.sampler_correction`). Source: openrlhf 0.11.2 PolicyLoss.forward."""
    read = re.fullmatch(r"(token|sequence)_(truncate|mask|geometric_mask|binary_kl_mask|tv_mask) \[(.+), (.+)\]", named)
    if read is None:
        return None
    unit, kind, low, high = read[1], read[2], 0.0 if read[3] == "-" else float(read[3]), float(read[4])
    log_ratio = old - sampled
    ratio = log_ratio.exp()
    if kind == "truncate":
        return ratio.clamp(min=low, max=high)
    p, q = sampled.exp().clamp(1e-6, 1 - 1e-6), old.exp().clamp(1e-6, 1 - 1e-6)
    seen = log_ratio
    if kind == "binary_kl_mask":
        seen = p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()
    elif kind == "tv_mask":
        seen = (p - q).abs()
    if unit == "sequence":
        seen = (seen * mask).sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1)
    if kind in ("mask", "geometric_mask"):
        seen = seen.exp()
    return torch.where((seen >= low) & (seen <= high), ratio, torch.zeros_like(ratio))
