"""The measuring and the weighing of Unsloth's loss: the log-probabilities are reached where its autograd function takes
them.

Natively that function computes the gradient in its forward pass, and hands it on whatever comes back to it. With the
argument that Unsloth gives it under DeepSpeed alone (`upstream_scale`) it multiplies it by what comes back: a run that
is enforced gives it, one that is recorded or verified changes nothing. Its rows are as wide as completions and the
padding of prompts together, since each row's tokens are moved to the left, over its own padding.

Source: see `unsloth_code`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch

from batchbridge.kit import Objective
from batchbridge.kit.measuring import Rows, Tap
from batchbridge.kit.patches import Patches, temporarily
from batchbridge.kit.probing import ProbeBatch
from batchbridge.kit.step_probe import MEASURED
from batchbridge_trl.loss_terms import LossTerms
from batchbridge_trl.rows import loss_mask
from batchbridge_trl.unsloth_code import ACCUMULATED, LOSS, generated
from batchbridge_trl.watching import TrlStepProbe

_UPSTREAM = 11
"""The place of `upstream_scale` among the arguments of the autograd function behind the log-probabilities."""


SCORED = ("old_per_token_logps", "ref_per_token_logps")
"""Columns of a rollout that Unsloth scores in rows as wide as its loss's."""


class UnslothStepProbe(TrlStepProbe):
    """The measuring of the steps of a trainer of Unsloth's."""

    def __init__(self, trainer: Any, objective: Objective, patches: Patches) -> None:
        self._module: Any = generated(trainer)
        self._inputs: Mapping[str, Any] = {}
        self._leaf: Callable[[], torch.Tensor] | None = None
        """The maker of what stands in for log-probabilities while a loss is probed."""
        what = "the log-probabilities that it makes are reached"
        self._native_reached = patches.read(trainer, "compute_loss", self._reach, what=what, why=MEASURED)
        super().__init__(trainer, objective, patches)

    @property
    def hands_back(self) -> bool:
        """Whether the gradient of a loss's value reaches its log-probabilities: only where a run is enforced."""
        return self.terms is not None

    def _produce(self, *arguments: Any, **options: Any) -> Any:
        """Its loss asks this method for nothing: it is for old and reference log-probabilities."""
        return self._native_producer(*arguments, **options)

    def _reach(self, model: Any, inputs: Any, *arguments: Any, **options: Any) -> Any:
        """The loss, in whose span the autograd function is called with what is measured and weighed."""
        native, enforced = getattr(self._module, LOSS), self.terms is not None

        def apply(logprobs: torch.Tensor, *given: Any) -> Any:
            if not enforced:
                self._observation.read(self._watch, logprobs)
                return native.apply(logprobs, *given)
            logprobs = logprobs if self._leaf is None else self._leaf()
            assert self.terms is not None
            self.terms.weigh(logprobs)  # before the tap, which measures what comes of it
            self._watch(logprobs)
            return native.apply(logprobs, *given[:_UPSTREAM], 1.0, *given[_UPSTREAM + 1 :])

        self._inputs = inputs
        try:
            with (
                temporarily(self._module, **{LOSS: type("Reached", (), {"apply": staticmethod(apply)})}),
                self._as_planned(inputs) if enforced else contextlib.nullcontext(),
            ):
                return self._native_reached(model, inputs, *arguments, **options)
        finally:
            self._inputs = {}

    @contextlib.contextmanager
    def _as_planned(self, inputs: dict[str, Any]) -> Iterator[None]:
        """The span in which a micro-batch of the plan is trained. Unsloth makes the mask of completions anew from
        their tokens, but for the one of tools; it reads the loss type in its arguments; and its forward pass over
        prompts that rows share (prefix grouping) counts on whole groups in order, and is left out."""
        trainer = self._trainer
        inputs["tool_mask"] = loss_mask(inputs)
        width = inputs["completion_ids"].shape[1] + int(self._padding(inputs).max())
        for name in SCORED:
            inputs[name] = self._moved(inputs.get(name), width)
        with (
            temporarily(trainer.args, loss_type=trainer.loss_type),
            temporarily(getattr(self._module, ACCUMULATED), _pg_funcs=()),
        ):
            yield

    def _watch(self, logprobs: torch.Tensor) -> None:
        if self._expected is not None and torch.is_grad_enabled():
            self._tap.watch(logprobs, self._wide(self._expected, logprobs.shape[1]))

    def _wide(self, rows: Rows, width: int) -> Rows:
        """Rows of completions as the loss has them, `width` tokens each."""
        mask, old, reference = (self._moved(one, width) for one in (rows.mask, rows.old, rows.reference))
        assert mask is not None
        return replace(rows, mask=mask, old=old, reference=reference)

    def _padding(self, inputs: Mapping[str, Any]) -> torch.Tensor:
        """The padding of each row's prompt, in tokens."""
        padding: torch.Tensor = (inputs["prompt_ids"] == self._trainer.processing_class.pad_token_id).sum(1)
        return padding

    def _places(self, inputs: Mapping[str, Any], width: int) -> torch.Tensor:
        """The places of completion tokens in rows of `width` tokens. Raises `ValueError` where they do not fit."""
        padding, tokens = self._padding(inputs), inputs["completion_ids"].shape[1]
        if width < tokens + int(padding.max()):
            raise ValueError(f"Unsloth's loss takes rows of {width} tokens, not of {tokens + int(padding.max())}")
        return (width - tokens - padding)[:, None] + torch.arange(tokens, device=padding.device)

    def _moved(self, column: torch.Tensor | None, width: int) -> torch.Tensor | None:
        """A column of completions in rows of `width` tokens, as the loss of the micro-batch in hand has them. Natively
        it is as wide."""
        if column is None or column.shape[1] == width:
            return column
        places = self._places(self._inputs, width)
        return column.new_zeros((len(column), width)).scatter(1, places, column)

    def in_completions(self, output: Mapping[str, Any]) -> dict[str, Any]:
        """A rollout whose scored columns have the places of completions, as TRL's have."""
        found = dict(output)
        for name in SCORED:
            if found.get(name) is not None:
                found[name] = found[name].gather(1, self._places(output, found[name].shape[1]))
        return found

    @contextlib.contextmanager
    def leaf_in(self, tap: Tap, made: ProbeBatch, terms: LossTerms) -> Iterator[None]:
        """The span in which a loss is probed; see `TrlStepProbe.leaf_in`. The model runs all the same, on tokens that
        are made up, and nothing of it reaches the loss."""
        # Natively log-probabilities are no leaf: what is hooked here is to be measured below it.
        self._leaf = lambda: tap.leaf(made.logprobs, made.rows).clone()
        try:
            with torch.random.fork_rng():
                yield
        finally:
            self._leaf = None
