"""The input of the optimizer of a `GRPOTrainer`: measured in every step, in every mode.

Two places, neither of which knows a loss formula of TRL's: the log-probabilities that the loss is made of (a hook on
the tensor), and one small parameter (its own gradients against what the optimizer finds).
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from accelerate.utils import recursively_apply

from batchbridge.kit import Objective, Surrogate
from batchbridge.kit.ddp_exchange import exchange_of
from batchbridge.kit.deepspeed import sketches_of_deepspeed
from batchbridge.kit.gradient_sketches import Sketches, sketches_of
from batchbridge.kit.measuring import Measured, Rows, Tap
from batchbridge.kit.own_terms import beside
from batchbridge.kit.patches import Patches, temporarily
from batchbridge.kit.probing import ProbeBatch
from batchbridge.kit.step_probe import MEASURED, StepProbe, whole_norm
from batchbridge_trl import releases
from batchbridge_trl import rows as rows_module
from batchbridge_trl.loss_terms import CONTROLLER, LossTerms
from batchbridge_trl.releases import LogprobMethod


class TrlStepProbe(StepProbe):
    """The measuring of one trainer's steps."""

    def __init__(self, trainer: Any, objective: Objective, patches: Patches) -> None:
        self._trainer = trainer
        super().__init__(objective, patches)
        self._expected: Rows | None = None
        self._reference: torch.Tensor | None = None
        self._made: Any = None
        """The output of TRL's method for log-probabilities, for the loss that is being computed."""
        self.idle = False
        """Whether the step has no token to train: no gradient was made, and the optimizer is left alone."""
        self.terms: LossTerms | None = None
        """The loss's terms beside the policy's and the KL term, where a run shares them out."""
        self.producer = releases.producer()
        self.gradient_norm: float | None = None
        """The step's gradient norm before clipping; None where neither TRL nor transformers asks for it."""
        self.hook_logprobs()
        recorded = functools.partial(patches.read, what="recorded", exchanges=True)  # a sharded model's norm
        self._native_clip = recorded(trainer.accelerator, "clip_grad_norm_", self._clip, why=MEASURED)
        if releases.has(releases.HAS_GET_GRAD_NORM, "transformers"):
            self._native_norm = recorded(trainer, "_get_grad_norm", self._norm, why="ledger")

    def hook_logprobs(self) -> None:
        """Has log-probabilities, and the loss that is made of them, pass through here."""
        trainer, made = self._trainer, "log-probabilities hooked"
        self._native_producer = self._patches.read(trainer, self.producer.name, self._produce, what=made, why=MEASURED)
        self._native_loss = self.hear_loss(trainer, "compute_loss", self._loss)

    @property
    def hands_back(self) -> bool:
        """Whether the gradient of a loss's value reaches its log-probabilities, as autograd has it."""
        return True

    def in_completions(self, output: Mapping[str, Any]) -> dict[str, Any]:
        """A rollout whose columns have the places of its completions."""
        return dict(output)

    def leaf_in(self, tap: Tap, made: ProbeBatch, terms: LossTerms) -> contextlib.AbstractContextManager[None]:
        """The span in which a loss is probed: its log-probabilities are the probe's."""
        return leaf_in(self._trainer, self.producer, tap, made, terms)

    def surrogates(self) -> dict[str, Surrogate]:
        """TRL's own, of the trainer's settings."""
        return surrogates(self._trainer)

    # ---- log-probabilities

    def made_by(self, other: Callable[[Any], Any]) -> None:
        """Lets another method make the log-probabilities: what `other` gives for TRL's own."""
        self._native_producer = other(self._native_producer)

    @contextlib.contextmanager
    def expecting(self, rows: Rows) -> Iterator[None]:
        """The span in which a micro-batch's loss is computed: what its rows are meant to train."""
        self._expected = rows
        try:
            yield
        finally:
            self._expected = None

    def _produce(self, *arguments: Any, **options: Any) -> Any:
        result = self._native_producer(*arguments, **options)
        if self.terms is not None:
            self.terms.made(result)
            self.terms.weigh(self.producer.logprobs(result))  # before the tap, which measures what comes of it
        if self._expected is not None:
            logprobs = self.producer.logprobs(result)
            if torch.is_grad_enabled():
                self._made = result
                self._tap.watch(logprobs, self._expecting_reference(logprobs))
            elif self._reference is not None:
                self._reference.copy_(logprobs)
        return result

    def _loss(self, model: Any, inputs: Any, *arguments: Any, **options: Any) -> Any:
        terms = LossTerms(self._trainer) if self.terms is None else self.terms
        coefficient = terms.applied()  # of an adaptive bonus, which the loss moves on
        try:
            loss = self._native_loss(model, inputs, *arguments, **options)
            if self._expected is not None and self.hands_back:
                beside = terms.value_of(self._made, self._expected.mask, coefficient)
                self._tap.returned(loss, times=terms.times, beside=beside)
        finally:
            self._made = None
        return loss

    def _expecting_reference(self, logprobs: torch.Tensor) -> Rows:
        """The expected rows; where they lack the reference policy's log-probabilities, with a tensor for them: trl 0.18
        makes them inside of its loss, after the policy's."""
        rows = self._expected
        assert rows is not None
        self._reference = None
        if rows.reference is None and self.objective.kl_placement == "loss":
            self._reference = torch.zeros_like(logprobs.detach())
            rows = dataclasses.replace(rows, reference=self._reference)
        return rows

    def take(self) -> list[list[Measured]]:
        """The micro-batches since the last call; weights as canonical: ranks add up. Raises `LostGradient`."""
        accelerator = self._trainer.accelerator
        scaler = accelerator.scaler.get_scale() if accelerator.scaler is not None else 1.0
        return self._tap.take(scale=accelerator.num_processes * scaler)

    # ---- between backward and the optimizer

    def begin(self) -> None:
        """The start of training, when the model is as it will be trained."""
        self.watch_gradients(self._sketches_of_run)

    def _sketches_of_run(self) -> Sketches | None:
        model = self._trainer.model
        if self.engine is not None:
            return sketches_of_deepspeed(model)
        return sketches_of(model, lambda: exchange_of(self._trainer.model_wrapped))

    @property
    def engine(self) -> Any:
        """DeepSpeed's engine, which sums up gradients and updates by itself; None without one, and before training."""
        return getattr(getattr(self._trainer.accelerator, "deepspeed_engine_wrapped", None), "engine", None)

    def drop(self) -> None:
        """Forgets what was seen since the last step."""
        super().drop()
        if self.terms is not None:
            self.terms.drop()

    def end(self) -> None:
        """The end of training: the hooks are taken off."""
        if self._sketches is not None:
            self._sketches.remove()
            self._sketches = None

    def _clip(self, parameters: Any, max_norm: Any, norm_type: Any = 2) -> Any:
        norm = self._native_clip(parameters, max_norm, norm_type)
        if self.engine is not None:
            norm = (
                self.engine.get_global_grad_norm()
            )  # it has clipped already; before 1.8 Accelerate does not hand it on
        elif norm is not None:
            self.clipped(norm, max_norm)
        self.gradient_norm = None if norm is None else float(whole_norm(norm))
        return norm

    def _norm(self, model: Any, grad_norm: Any = None) -> Any:
        norm = self._native_norm(model, grad_norm=grad_norm)
        self.gradient_norm = None if norm is None else float(whole_norm(norm))
        return norm

    def objections(self) -> list[str]:
        """Errors about the loss's other terms, and about a change of the step's gradient after backward. Collective."""
        beside = None if self.terms is None else self.terms.objection()
        scaler, ranks = self._trainer.accelerator.scaler, self._trainer.accelerator.num_processes
        scale = 1.0 if scaler is None else float(scaler.get_scale())
        changed = self.gradient_objections(1 / ranks / scale, self._trainer.optimizer if self.engine is None else None)
        return changed if beside is None else [beside, *changed]


def rows_of(trainer: Any, inputs: Mapping[str, torch.Tensor], advantages: torch.Tensor | None = None) -> Rows:
    """The rows of a loss's `inputs`, and what they are meant to train. Copies: the loss may change what it was given.

    Source: trl 0.18.0 to 1.16.0, GRPOTrainer._compute_loss.
    """
    mask = rows_module.loss_mask(inputs).clone()
    advantages = inputs["advantages"].clone() if advantages is None else advantages
    old = inputs.get("old_per_token_logps")
    reference = inputs.get("ref_per_token_logps") if trainer.beta else None
    ratio = inputs.get("importance_sampling_ratio") if trainer.use_vllm else None
    if ratio is not None and getattr(trainer, "loss_type", None) == "vespo":
        # It is inside of that surrogate's sum of log ratios, as one towards the sampler's log-probabilities.
        old, ratio = None if old is None else old - ratio.log().clamp(math.log(1e-8), 20.0), None
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
        kept = trainer.get_off_policy_mask(  # in this order in every release; the third has two names
            advantages if advantages.dim() > 1 else advantages[:, None],
            current,
            current if sampled is None else sampled,
            mask,
            threshold,
        )
        return kept if ratio is None else kept * ratio

    return factor


def surrogates(trainer: Any) -> dict[str, Surrogate]:
    """TRL's own surrogates, for which the schema has names and no formulas. Source: trl 0.26.0 and 1.0.0 to 1.16.0,
    GRPOTrainer._compute_loss (sapo) and get_gamma_weights (vespo)."""

    def sapo(new: torch.Tensor, old: torch.Tensor, advantages: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        args = trainer.args
        temperature = torch.where(advantages > 0, args.sapo_temperature_pos, args.sapo_temperature_neg)
        gate = torch.sigmoid(temperature * ((new - old).exp() - 1)) * 4 / temperature
        return -gate * advantages

    def vespo(new: torch.Tensor, old: torch.Tensor, advantages: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        args = trainer.args
        log_ratio = (new - old).detach().clamp(-20.0, 20.0)
        log_weight = (log_ratio * mask).sum(-1, keepdim=True).clamp(math.log(1e-8), 20.0)
        power = torch.where(advantages >= 0, args.vespo_k_pos, args.vespo_k_neg)
        decay = torch.where(advantages >= 0, args.vespo_lambda_pos, args.vespo_lambda_neg).clamp(min=1e-4)
        gamma = (decay + power * log_weight - decay * log_weight.exp()).exp()
        return -gamma.nan_to_num(nan=0.0, posinf=0.0) * advantages * new

    return {"sapo": sapo, "vespo": vespo}


@contextlib.contextmanager
def leaf_in(trainer: Any, producer: LogprobMethod, tap: Tap, made: ProbeBatch, terms: LossTerms) -> Iterator[None]:
    """The span in which a loss is probed: its log-probabilities are the probe's. Entropies and a router's loss are
    zeros."""

    def produce(*arguments: Any, **options: Any) -> Any:
        entropies, router_loss = torch.zeros_like(made.logprobs), made.logprobs.new_zeros(())
        if not torch.is_grad_enabled():  # trl 0.18 scores the reference policy inside of its loss
            return producer.returned(made.reference, entropies)
        other = entropies.requires_grad_() if terms.bonus else beside(entropies, "entropies")
        # Natively log-probabilities are no leaf: what is hooked here is to be measured below it.
        leaf = tap.leaf(made.logprobs, made.rows)
        logprobs = leaf.clone()
        terms.weigh(logprobs)
        result = producer.returned(logprobs, other, router_loss.requires_grad_())
        terms.made(result)
        return result

    with temporarily(trainer, **{producer.name: produce}):
        yield


@contextlib.contextmanager
def window(trainer: Any, micro_batches: int) -> Iterator[None]:
    """The span in which a step runs: its micro-batches are the accumulation window, and what one rollout was cut into,
    wherever TRL and transformers read either to divide the loss; and Accelerate does not divide it once more.

    Source: accelerate 1.4.0 to 1.15.0 Accelerator.backward, whose divisor transformers 5.2 to 5.4 set to
    args.gradient_accumulation_steps, and other releases to 1; transformers 4.52.3 Trainer.training_step
    (args.gradient_accumulation_steps), 4.56.2 to 5.23.0 the same (current_gradient_accumulation_steps, and so trl since
    0.22.0); trl since 1.9.1 GRPOTrainer._compute_loss (times that over args.steps_per_generation).
    """
    with (
        temporarily(trainer.accelerator, gradient_accumulation_steps=1),
        temporarily(trainer.args, gradient_accumulation_steps=micro_batches, steps_per_generation=micro_batches),
        temporarily(trainer, current_gradient_accumulation_steps=micro_batches),
    ):
        yield


@contextlib.contextmanager
def alone(trainer: Any) -> Iterator[None]:
    """The span in which a loss is probed on each rank alone: what ranks gather and reduce is made up of this rank's
    values, once per rank; and backward is torch's, where DeepSpeed's engine, which training makes first, would run it.

    Every rank probes the same, so that it is what they would exchange; but a loss that fails on one of them leaves no
    other waiting. Source: accelerate 1.4.0 to 1.15.0, Accelerator.gather, gather_for_metrics, reduce and backward.
    """
    accelerator = trainer.accelerator
    ranks = accelerator.num_processes

    def gather(tensor: Any, *_: Any, **__: Any) -> Any:
        return recursively_apply(lambda one: torch.cat([one[None] if one.dim() == 0 else one] * ranks), tensor)

    def reduce(tensor: Any, reduction: str = "sum", scale: float = 1.0) -> Any:
        times = (ranks if reduction == "sum" else 1) * scale
        return recursively_apply(lambda one: one if reduction == "none" else one * times, tensor)

    local: dict[str, Any] = {}
    if ranks > 1:
        local = {"gather": gather, "gather_for_metrics": gather, "reduce": reduce}
    if trainer.is_deepspeed_enabled:
        local["backward"] = lambda loss, **options: loss.backward()
    with temporarily(accelerator, **local):
        yield


@contextlib.contextmanager
def quiet(trainer: Any) -> Iterator[None]:
    """The span in which a loss is probed in the trainer's own step: nothing of it is counted, timed or logged."""
    metrics = {mode: {name: list(values) for name, values in part.items()} for mode, part in trainer._metrics.items()}
    names = ("_step", "_current_train_step_time", *CONTROLLER)
    counters = {name: vars(trainer)[name] for name in names if name in vars(trainer)}
    training = [(module, module.training) for module in trainer.model.modules()]
    try:
        # A schedule-free optimizer would be switched to its training weights. TRL times its own functions, and would
        # log that to trackio before training has opened it. Source: trl 1.16.0 extras/profiling.py.
        with temporarily(trainer, **counters, optimizer=None), temporarily(trainer.args, report_to=[]):
            yield
    finally:
        for module, was in training:
            module.training = was
        for mode, part in metrics.items():
            trainer._metrics[mode].clear()
            trainer._metrics[mode].update(part)
