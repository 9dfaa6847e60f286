"""What reaches the optimizer of a `GRPOTrainer`: measured in every step, in every mode.

Three places, none of which knows a loss formula of TRL's: the log-probabilities that the loss is made of (a hook on the
tensor), one small parameter (its own gradients against what the optimizer finds), and the optimizer itself, whose last
moment before the update is where everything is held against the plan, after every callback.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from batchbridge.errors import LostGradient
from batchbridge.measuring import Measured, Rows, Tap, Witness, all_reduce_over
from batchbridge.objectives import Surrogate
from batchbridge.patching import Patches
from batchbridge.probing import ProbeBatch
from batchbridge.spec import Objective
from batchbridge_trl import rows as rows_module

PRODUCERS = ("_get_per_token_logps_and_entropies", "_get_per_token_logps")
"""Where log-probabilities are made, newest name first: the first that the trainer has is hooked. Its result is the
tensor, or a tuple that begins with it. Source: trl 1.16.0; trl 0.18.0 has the second."""


class Watch:
    """The measuring of one trainer's steps.

    objective: of the run, as the loss computes it.
    """

    def __init__(self, trainer: Any, objective: Objective, patches: Patches) -> None:
        self._trainer = trainer
        self._surrogate = surrogates(trainer).get(objective.surrogate or "")
        self.objective = objective
        self.tap = Tap(objective, surrogate=self._surrogate)
        self._expected: Rows | None = None
        self._witness: Witness | None = None
        self._clipping = 1.0
        self._handle: Any = None
        self.producer = next(name for name in PRODUCERS if hasattr(trainer, name))
        self._native_producer = getattr(trainer, self.producer)
        self._native_clip = trainer.accelerator.clip_grad_norm_
        why = "what a step trains is measured"
        patches.set(trainer, self.producer, self._produce, what="log-probabilities hooked", why=why)
        patches.set(trainer.accelerator, "clip_grad_norm_", self._clip, what="recorded", why=why)

    # ---- log-probabilities

    @contextlib.contextmanager
    def expecting(self, rows: Rows) -> Iterator[None]:
        """While a micro-batch's loss is computed: what its rows are meant to train."""
        self._expected = rows
        try:
            yield
        finally:
            self._expected = None

    def _produce(self, *arguments: Any, **options: Any) -> Any:
        result = self._native_producer(*arguments, **options)
        if self._expected is not None:
            self.tap.watch(result if isinstance(result, torch.Tensor) else result[0], self._expected)
        return result

    def take(self) -> list[list[Measured]]:
        """The micro-batches since the last call; weights as canonical: ranks add up. Raises `LostGradient`."""
        accelerator = self._trainer.accelerator
        scaler = accelerator.scaler.get_scale() if accelerator.scaler is not None else 1.0
        return self.tap.take(scale=accelerator.num_processes * scaler)

    # ---- between backward and the optimizer

    def begin(self, optimizer: Any, before_update: Callable[[], None]) -> bool:
        """At the start of training: `before_update` runs as the last thing before every update. False where the
        optimizer offers no such place (an engine of its own)."""
        self.end()
        self.tap.drop()
        inner = getattr(optimizer, "optimizer", optimizer)
        if not isinstance(inner, torch.optim.Optimizer):
            return False
        self._handle = inner.register_step_pre_hook(lambda *_: before_update())
        chosen = None if self._is_sharded else Witness.choose(list(self._trainer.model.named_parameters()))
        if chosen is not None:
            self._witness = Witness(chosen[1], all_reduce_over())
        return True

    def end(self) -> None:
        """At the end of training: takes the hooks off."""
        for hook in (self._handle, self._witness):
            if hook is not None:
                hook.remove()
        self._handle = self._witness = None

    @property
    def _is_sharded(self) -> bool:
        return bool(self._trainer.is_deepspeed_enabled or self._trainer.is_fsdp_enabled)

    def _clip(self, parameters: Any, max_norm: Any, norm_type: Any = 2) -> Any:
        norm = self._native_clip(parameters, max_norm, norm_type)
        # Source: torch.nn.utils.clip_grad_norm_, whose factor has this epsilon.
        limit = float(max_norm)
        self._clipping = min(1.0, limit / (float(norm) + 1e-6)) if math.isfinite(limit) and norm is not None else 1.0
        return norm

    def objection(self) -> str | None:
        """What happened to the step's gradient after backward; None where nothing did. Collective."""
        clipping, self._clipping = self._clipping, 1.0
        if self._witness is None:
            return None
        factor = self._witness.compare(self._witness.parameter.grad)
        return factor.objection(clipping / self._trainer.accelerator.num_processes)


def rows_of(trainer: Any, inputs: Mapping[str, torch.Tensor], advantages: torch.Tensor | None = None) -> Rows:
    """What the rows of a loss's `inputs` are meant to train. Copies: the loss may change what it was given.

    Source: trl 1.9.1 and 1.16.0, GRPOTrainer._compute_loss.
    """
    mask = rows_module.loss_mask(inputs).clone()
    advantages = inputs["advantages"].clone() if advantages is None else advantages
    old = inputs.get("old_per_token_logps")
    reference = inputs.get("ref_per_token_logps") if trainer.beta else None
    ratio = inputs.get("importance_sampling_ratio") if trainer.use_vllm else None
    if getattr(trainer, "loss_type", None) == "vespo":
        ratio = None  # it is inside of that surrogate
    return Rows(
        mask=mask,
        advantages=advantages if advantages.dim() > 1 else advantages[:, None],
        old=None if old is None else old.clone(),
        reference=None if reference is None else reference.clone(),
        multiplier=_multiplier(trainer, inputs, mask, None if ratio is None else ratio.clone()),
    )


def _multiplier(
    trainer: Any, inputs: Mapping[str, torch.Tensor], mask: torch.Tensor, ratio: torch.Tensor | None
) -> torch.Tensor | Callable[[torch.Tensor], torch.Tensor] | None:
    """TRL's correction towards the sampler, and its mask of sequences that are too far off, which needs the current
    log-probabilities."""
    threshold = getattr(trainer, "off_policy_mask_threshold", None)
    if threshold is None:
        return ratio
    advantages, old = inputs["advantages"].clone(), inputs.get("old_per_token_logps")
    sampled = inputs.get("sampling_per_token_logps", old)

    def factor(current: torch.Tensor) -> torch.Tensor:
        kept = trainer.get_off_policy_mask(
            advantages=advantages if advantages.dim() > 1 else advantages[:, None],
            per_token_logps=current,
            sampling_per_token_logps=current if sampled is None else sampled,
            mask=mask,
            off_policy_threshold=threshold,
        )
        return kept if ratio is None else kept * ratio

    return factor


def surrogates(trainer: Any) -> dict[str, Surrogate]:
    """TRL's own surrogates, for which the schema has names and no formulas. Source: trl 1.9.1 and 1.16.0,
    GRPOTrainer._compute_loss (sapo) and get_gamma_weights (vespo)."""

    def sapo(new: torch.Tensor, old: torch.Tensor, advantages: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        args = trainer.args
        temperature = torch.where(advantages > 0, args.sapo_temperature_pos, args.sapo_temperature_neg)
        gate = torch.sigmoid(temperature * ((new - old).exp() - 1)) * 4 / temperature
        return -gate * advantages

    def vespo(new: torch.Tensor, old: torch.Tensor, advantages: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        args = trainer.args
        log_weight = ((new - old).detach() * mask).sum(-1, keepdim=True).clamp(math.log(1e-8), 20.0)
        power = torch.where(advantages >= 0, args.vespo_k_pos, args.vespo_k_neg)
        decay = torch.where(advantages >= 0, args.vespo_lambda_pos, args.vespo_lambda_neg).clamp(min=1e-4)
        gamma = (decay + power * log_weight - decay * log_weight.exp()).exp()
        return -gamma.nan_to_num(nan=0.0, posinf=0.0) * advantages * new

    return {"sapo": sapo, "vespo": vespo}


@contextlib.contextmanager
def leaf_in(trainer: Any, producer: str, tap: Tap, made: ProbeBatch) -> Iterator[None]:
    """While a loss is probed: its log-probabilities are the probe's. Entropies are zeros; the router loss has none."""
    native = vars(trainer).get(producer)

    def produce(*arguments: Any, **options: Any) -> Any:
        leaf = tap.leaf(made.logprobs, made.rows)
        return leaf if producer == PRODUCERS[-1] else (leaf, torch.zeros_like(made.logprobs), None)

    setattr(trainer, producer, produce)
    try:
        yield
    finally:
        if native is None:
            delattr(trainer, producer)
        else:
            setattr(trainer, producer, native)


@contextlib.contextmanager
def quiet(trainer: Any, micro_batches: int) -> Iterator[None]:
    """While a loss is probed: the trainer believes to train, in windows of `micro_batches`, and logs nothing of it."""
    metrics = {mode: {name: list(values) for name, values in part.items()} for mode, part in trainer._metrics.items()}
    window = vars(trainer).get("current_gradient_accumulation_steps")
    training, trainer.model.training = trainer.model.training, True
    trainer.current_gradient_accumulation_steps = micro_batches
    try:
        yield
    finally:
        trainer.model.training = training
        if window is None:
            del trainer.current_gradient_accumulation_steps
        else:
            trainer.current_gradient_accumulation_steps = window
        for mode, part in metrics.items():
            trainer._metrics[mode].clear()
            trainer._metrics[mode].update(part)


def lost(error: LostGradient) -> str:
    """What a lost gradient means, for the person who trains."""
    return f"{error}: an engine or a callback took it away"
