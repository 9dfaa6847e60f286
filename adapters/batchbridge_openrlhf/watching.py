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
import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from batchbridge import Spec
from batchbridge.kit import Normaliser, Objective
from batchbridge.kit.deepspeed import sketches_of_deepspeed, smallest_of_deepspeed, whole_gradient
from batchbridge.kit.measuring import Measured, Rows, Witness, all_reduce_over
from batchbridge.kit.patches import Patches
from batchbridge.kit.step_probe import MEASURED, StepProbe
from batchbridge_openrlhf.images import are_shown, together
from batchbridge_openrlhf.rings import RankRings, averaging

FURTHEST = 20.0
"""Log of a token's ratio beyond which OpenRLHF's loss has no gradient. Source: PolicyLoss.forward."""
UNBIASED = "_unbiased_gradient"
"""End of the name of a KL estimator whose gradient is that of k2 times the ratio. Source: compute_approx_kl."""


class OtherInputs(RuntimeError):
    """A policy that was run on other tokens or images, or with another loss mask, than the replay buffer has."""


@dataclasses.dataclass(frozen=True)
class OpenRlhfStepInputs:
    """A micro-batch as the replay buffer has it before it is trained: copies, padded on the right.

    All of shape (rows, tokens), on the CPU; ids, attention: one token wider. sampled: the sampler's log-probabilities;
    None where there are none. images: see `images.together`.
    """

    ids: torch.Tensor
    attention: torch.Tensor
    mask: torch.Tensor
    advantages: torch.Tensor
    old: torch.Tensor
    sampled: torch.Tensor | None
    reference: torch.Tensor | None
    images: Mapping[str, torch.Tensor] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(
        cls,
        items: Sequence[Any],
        *,
        advantages: str = "advantages",
        old: str = "action_log_probs",
        sampled: str | None = "rollout_log_probs",
        reference: str | None = "base_action_log_probs",
    ) -> OpenRlhfStepInputs:
        """The values of experiences of one completion each, by the names of their columns; None: none."""

        def column(name: str | None) -> Any:
            if name is None:
                return None
            values = [getattr(item, name, None) for item in items]
            if any(value is None for value in values):
                return None
            return torch.nn.utils.rnn.pad_sequence(values, batch_first=True).detach()

        return cls(
            ids=column("sequences"),
            attention=column("attention_mask"),
            mask=column("action_mask"),
            advantages=column(advantages),
            old=column(old),
            sampled=column(sampled),
            reference=column(reference),
            images=together(items),
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


class OpenRlhfStepProbe(StepProbe):
    """The measurement of one trainer's steps. spec: what its loss computes."""

    who = "policy"

    def __init__(self, trainer: Any, spec: Spec, patches: Patches) -> None:
        model, self.engine = self.parts(trainer)
        self._spec, self._shares_of_a_rollout = spec, RankRings.of(trainer).replicas
        super().__init__(measurable(spec.objective), patches)
        self._shares: list[torch.Tensor] = []
        self._expected: OpenRlhfStepInputs | None = None
        self._model, self._temperature = model, getattr(model, "temperature", None)
        self._hotter: list[Any] = []
        """Temperatures that the model had in a forward pass, where they were others than at the attach."""
        self._sound: list[torch.Tensor | bool] = []
        """Pairs per micro-batch: whether the policy was run on the tokens, and on the images, that the buffer has."""
        made = "log-probabilities hooked"
        self._native_forward = patches.read(model, "forward", self._forward, what=made, why=MEASURED)
        self._native_backward = self.hear_loss(self.engine, "backward", self._backward)
        self._args, self._output, self._entropy = trainer.args, None, None
        """The model's output beside log-probabilities, and the sum of its entropies."""
        self.routers_share = 1.0
        """The share of the router's loss in the micro-batch's."""
        if self.who == "policy" and not self._observation.observes:
            self._hear_entropies(patches)
        module, group = self.engine.module, averaging(trainer)
        self.watch_gradients(lambda: sketches_of_deepspeed(module, group))
        self._witness: Witness | None = None
        if self._observation.observes and (chosen := smallest_of_deepspeed(module)) is not None:
            # Nobody stops such a run: the ledger should say of which micro-batches the gradients were lost.
            self._witness = Witness(chosen[1], all_reduce_over(group), apart=True)

    @staticmethod
    def parts(trainer: Any) -> tuple[Any, Any]:
        """The part that makes log-probabilities, and its DeepSpeed engine."""
        return trainer.actor, trainer.actor.model

    def inputs_of(self, items: Sequence[Any]) -> OpenRlhfStepInputs:
        """The values that experiences of one completion each are meant to train."""
        return OpenRlhfStepInputs.of(items)

    def close(self) -> None:
        """Takes the hook off the parameter that is watched."""
        if self._witness is not None:
            self._witness.remove()

    @property
    def ranks(self) -> int:
        """Shares that a rollout is dealt out in: what a loss is multiplied with against DeepSpeed's averaging."""
        return self._shares_of_a_rollout

    # ---- log-probabilities

    @contextlib.contextmanager
    def expecting(self, given: OpenRlhfStepInputs) -> Iterator[None]:
        """The span in which a micro-batch is trained: what its rows are meant to train."""
        self._expected = given
        try:
            yield
        finally:
            self._expected = None

    def _forward(self, *arguments: Any, **options: Any) -> Any:
        result = self._native_forward(*arguments, **options)
        if self._expected is not None:
            if (now := getattr(self._model, "temperature", None)) != self._temperature:
                self._hotter.append(now)
            result = self.reachable(result)
            made = result if isinstance(result, torch.Tensor) else result[0]
            # OpenRLHF multiplies log-probabilities with the mask, so that a token that was taken out of it looks like
            # one that is clipped.
            ids, mask = (
                arguments[place] if len(arguments) > place else options.get(name)
                for place, name in enumerate(("sequences", "action_mask"))
            )
            alike = made.shape == self._expected.mask.shape and self._expected.is_of(ids, mask)
            self._sound += [alike, are_shown(self._expected.images, options)]
            if made.shape == self._expected.mask.shape:
                self._tap.watch(made, self.rows(self._expected, made))
                self._output, self._entropy = None if result is made else result[1], None
        return result

    def _backward(self, loss: Any, *arguments: Any, **options: Any) -> Any:
        if self._expected is not None and self.knows_values:
            self._tap.returned(loss, beside=self._beside())
        return self._native_backward(loss, *arguments, **options)

    @property
    def knows_values(self) -> bool:
        """Whether the value of the loss is that of its formula here; not where a KL estimate has a gradient of its
        own (`UNBIASED`)."""
        return not (self._spec.objective.kl_estimator or "").endswith(UNBIASED)

    def _beside(self) -> Any:
        """The part of the loss's value that terms with names of their own have, the entropy bonus and the router's
        loss; None: nobody knows it."""
        args = self._args.actor
        value: Any = 0.0
        if router := getattr(args, "aux_loss_coef", 0):
            value = getattr(self._output, "aux_loss", 0.0) * router * self.routers_share
        if bonus := getattr(args, "entropy_coef", None) if self.who == "policy" else None:
            value = None if self._entropy is None else value - self._entropy * bonus
        return value.detach() if isinstance(value, torch.Tensor) else value

    def _hear_entropies(self, patches: Patches) -> None:
        """Has the sum of a micro-batch's entropies be kept as OpenRLHF's own function makes it."""
        from openrlhf.trainer.ray import ppo_actor

        native = getattr(ppo_actor, "aggregate_loss", None)
        if native is None:
            return

        @functools.wraps(native)
        def heard(values: Any, *arguments: Any, **options: Any) -> Any:
            total = native(values, *arguments, **options)
            if self._expected is not None and values is not None:
                self._hear(values, total)
            return total

        patches.set(ppo_actor, "aggregate_loss", heard, what="the entropies' sum is recorded", why=MEASURED)

    def _hear(self, values: torch.Tensor, total: torch.Tensor) -> None:
        entropies = getattr(self._output, "entropy", None)
        if entropies is not None and values.untyped_storage().data_ptr() == entropies.untyped_storage().data_ptr():
            self._entropy = total.detach()

    def reachable(self, result: Any) -> Any:
        """The output of a model, where nothing of DeepSpeed's stands between its gradient and the loss."""
        return result

    def temperatures(self) -> list[str]:
        """Objections to the temperature of the step's log-probabilities."""
        found, self._hotter = self._hotter, []
        said = f"the {self.who}'s temperature was {self._temperature} when it was wrapped, and is"
        return [
            f"{said} {one}: its log-probabilities are other ones than the rollout was generated with" for one in found
        ]

    def rows(self, given: OpenRlhfStepInputs, logprobs: torch.Tensor) -> Rows:
        """The rows of a micro-batch with these log-probabilities, and what they are meant to train; see `rows_of`."""
        rows = rows_of(self._spec, given, logprobs.detach())
        if self.needs_denominators and rows.kl_share is not None:
            self._shares.append(rows.kl_share)
        return rows

    @property
    def needs_denominators(self) -> bool:
        """Whether `take` must be told the step's numbers of tokens and completions."""
        return _has_kl_term(self._spec) and self._spec.loss.policy.aggregation != "token_mean"

    def take(self, normaliser: Normaliser) -> list[list[Measured]]:
        """The micro-batches since the last call; weights as canonical: ranks add up. Raises `LostGradient`,
        `OtherInputs`.

        normaliser: the step's tokens and completions; only looked at where `needs_denominators`.
        """
        self.settle(normaliser)
        sound, self._sound = self._sound, []
        if not all(map(bool, sound)):
            self._tap.drop()
            raise OtherInputs(
                f"the {self.who} was run on other tokens or images, or with another loss mask, than the rollout has"
            )
        return self._tap.take(scale=self.ranks * self._loss_scale * self._divided_later)

    def settle(self, normaliser: Normaliser) -> None:
        """Gives the KL terms of the micro-batches since the last call their weight over that of the policy term:
        1 / T over 1 / (B L), of T tokens, B completions and a completion's L tokens."""
        for share in self._shares:
            share.mul_(normaliser.completions / max(normaliser.tokens, 1))
        self._shares.clear()

    @property
    def _loss_scale(self) -> float:
        """The loss scale of fp16, which DeepSpeed multiplies the loss with inside of backward."""
        return float(getattr(self.engine.optimizer, "loss_scale", 1.0) or 1.0)

    @property
    def _divided_later(self) -> float:
        """DeepSpeed's accumulation steps, where its division by them is not part of the gradient at log-probabilities:
        until 0.19.5 it is made at the model's output, since 0.19.6 at the loss. Source: engine.backward,
        _backward_prologue_per_tensor."""
        at_output = getattr(self.engine, "_scale_wrt_gas", False)
        return float(self.engine.gradient_accumulation_steps()) if at_output else 1.0

    def drop(self) -> None:
        """Forgets the micro-batches since the last `take`."""
        super().drop()
        if self._witness is not None:
            self._witness.drop()
        self._shares.clear()
        self._sound.clear()

    # ---- between backward and the update

    def reached(self, expected: float, micro_batches: int) -> list[float]:
        """The share of each micro-batch's gradient that the optimizer finds, of a run that is observed alone; 1 of any
        other, which ends where it is none. expected: what DeepSpeed should do to the sum of all ranks'. Collective."""
        if self._witness is None:
            return [1.0] * micro_batches
        return self._witness.compare(whole_gradient(self._witness.parameter)).applied(expected, micro_batches)


def measurable(objective: Objective) -> Objective:
    """The objective with a KL estimator whose gradient has a formula."""
    if (objective.kl_estimator or "").endswith(UNBIASED):
        return dataclasses.replace(objective, kl_estimator="k2", kl_clamp=None)
    return objective


def rows_of(spec: Spec, given: OpenRlhfStepInputs, logprobs: torch.Tensor) -> Rows:
    """The rows of a micro-batch and what they are meant to train by `spec`, beside its log-probabilities, on their
    device.

    Where the policy term is a mean over sequences, `kl_share` still lacks completions over tokens of the step.
    """

    def here(tensor: torch.Tensor | None) -> torch.Tensor | None:
        return None if tensor is None else tensor.to(logprobs.device)

    mask, scored, sampled = given.mask.to(logprobs.device), given.old.to(logprobs.device), here(given.sampled)
    old = sampled if spec.objective.old_logprobs == "sampler" and sampled is not None else scored
    share: torch.Tensor | None = None
    if _has_kl_term(spec):
        if (spec.objective.kl_estimator or "").endswith(UNBIASED):
            share = _ratio_of_unbiased(logprobs, scored)
        if spec.loss.policy.aggregation != "token_mean":
            tokens = mask.sum(1, keepdim=True).to(scored.dtype)
            share = tokens if share is None else share * tokens
    return Rows(
        mask=mask,
        advantages=given.advantages.to(logprobs.device),
        old=old,
        reference=here(given.reference) if _has_kl_term(spec) else None,
        multiplier=None if spec.objective.ratio_level == "sequence" else _multiplier(spec, mask, scored, sampled),
        kl_share=share,
    )


def _has_kl_term(spec: Spec) -> bool:
    return spec.objective.kl_placement == "loss" and bool(spec.objective.kl_coefficient)


def _multiplier(
    spec: Spec, mask: torch.Tensor, old: torch.Tensor, sampled: torch.Tensor | None
) -> Callable[[torch.Tensor], torch.Tensor]:
    named = spec.objective.sampler_correction
    correction = None if named is None or sampled is None else _correction(named, mask, old, sampled)

    def factor(new: torch.Tensor) -> torch.Tensor:
        inside = ((new - old).abs() <= FURTHEST).to(new.dtype)
        return inside if correction is None else inside * correction

    return factor


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
