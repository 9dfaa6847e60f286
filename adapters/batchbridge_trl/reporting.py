"""Every optimizer step's numbers in what the trainer logs: W&B, TensorBoard, trackio, or any other of its callbacks.

They are added to the dict that TRL's training loop hands to `trainer.log`, at its own logging steps, so that TRL's own
metrics, step numbers and loggers stay as they are.
"""

from __future__ import annotations

from typing import Any

import torch

from batchbridge.kit.packing import PackedRows
from batchbridge.kit.patches import Patches, temporarily
from batchbridge.kit.reporting import PaddingTokens, logged, with_patches
from batchbridge_trl.padding_free import END_TO_END
from batchbridge_trl.recording import TrlLayer

_EVALUATION = ("eval_", "test_")
"""The beginnings of the names of an evaluation's metrics. Source: transformers 4.52 to 5.23
integration_utils.rewrite_logs."""


def report(trainer: Any, attachment: Any) -> Any:
    """The attachment of a trainer that logs the numbers of its optimizer steps; see `Adapter.report`."""
    (layer,) = [one for one in trainer.callback_handler.callbacks if isinstance(one, TrlLayer)]
    patches = Patches()
    packed = any(change.what == END_TO_END for change in attachment.changes)
    counts = packed or attachment.request.budget is not None or attachment.request.finds_budget
    reporter = Reporter(trainer, layer, patches, counts=counts, packed=packed)
    return with_patches(attachment, patches, reporter.end)


class Reporter:
    """The patches of one trainer. counts: whether what its micro-batches take is counted: there is a token budget, or
    completions are packed, end to end."""

    def __init__(self, trainer: Any, layer: TrlLayer, patches: Patches, *, counts: bool, packed: bool = False) -> None:
        self._trainer, self._steps, self._packed = trainer, layer, packed
        self._computed = self._completions = self._prompt = self._response = 0
        why = "report_to"
        self._native_log = patches.set(trainer, "log", self._log, what="the numbers of steps are added", why=why)
        layer.failed = self._failed
        if counts:
            self._native_loss = patches.set(trainer, "_compute_loss", self._loss, what="padding is counted", why=why)
            layer.padding = self._padding

    def end(self) -> None:
        """Undoes what is not an attribute of the trainer."""
        self._steps.failed = lambda step: None
        self._steps.padding = lambda: None

    def _log(self, logs: dict[str, float], *arguments: Any, **options: Any) -> None:
        if not any(name.startswith(_EVALUATION) for name in logs):
            logs = {**logs, **logged(self._steps.taken())}
        self._native_log(logs, *arguments, **options)

    def _failed(self, step: int) -> None:
        """The step that ends the run is logged under its own number."""
        numbers = logged(self._steps.taken())
        if numbers:
            with temporarily(self._trainer.state, global_step=step + 1):
                self._native_log(numbers)

    # ---- padding

    def _loss(self, model: Any, inputs: Any) -> Any:
        if torch.is_grad_enabled():
            prompts, responses = inputs["prompt_mask"], inputs["completion_mask"]
            self._computed += self._read(inputs) if self._packed else prompts.numel() + responses.numel()
            trained = responses.sum(1)
            self._completions += int((trained > 0).sum())
            self._prompt = max(self._prompt, int(prompts.sum(1).max()))
            self._response = max(self._response, int(trained.max()))
        return self._native_loss(model, inputs)

    def _read(self, inputs: Any) -> int:
        """Tokens that a micro-batch without padding reads."""
        ids, masks = (
            torch.cat([inputs[f"{part}_{kind}"] for part in ("prompt", "completion")], 1) for kind in ("ids", "mask")
        )
        return int(PackedRows.of(ids, masks, inputs["completion_ids"].shape[1]).token_ids.numel())

    def _padding(self) -> PaddingTokens:
        """The padding of this rank's micro-batches since the last call."""
        found = PaddingTokens(self._computed, self._completions * (self._prompt + self._response))
        self._computed = self._completions = self._prompt = self._response = 0
        return found
