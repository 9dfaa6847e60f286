"""Padding-free passes in a `GRPOTrainer`: `wrap(trainer, padding="free")`.

TRL's own method for log-probabilities stays, of whatever release: it is handed one row, the completion tokens of a
micro-batch in order, and a model that reads the packed rows (`batchbridge.kit.packing`). What comes back is put at its
place among the padded rows that TRL's loss and the measuring of each step know.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import Any

import torch

from batchbridge import BatchDrift
from batchbridge.kit import Request
from batchbridge.kit.packable import ROUGH, TOLERANCE, not_proven
from batchbridge.kit.packing import ATTENTION, PackedModel, PackedRows, attending, language_model
from batchbridge_trl.ms_swift import is_swift
from batchbridge_trl.releases import LogprobMethod

END_TO_END = "completions end to end"
"""The name of this change of a trainer."""


def objection(trainer: Any) -> str | None:
    """The reason why no pass of this trainer's models can be packed, and the way out; None where it can."""
    if find_spec("transformers.masking_utils") is None:
        return "this transformers makes attention masks inside its models: use 4.53 or later"
    if is_swift(trainer):
        return "ms-swift's own method for log-probabilities takes rows otherwise than TRL's"
    models = [trainer.model, *([trainer.ref_model] if trainer.ref_model is not None else [])]
    for model in models:
        try:
            config = language_model(model).config
        except ValueError as error:
            return str(error)
        if (why := _of_config(config)) is not None:
            return why
    if any(getattr(one, "is_prompt_learning", False) for one in getattr(trainer.model, "peft_config", {}).values()):
        return "prompts that PEFT learns are put before each row by PEFT itself: use LoRA"
    if trainer.args.torch_compile:
        return "a compiled model would be compiled again for each layout: set torch_compile=False"
    return None


def _of_config(config: Any) -> str | None:
    if (why := not_proven(config)) is not None:
        return why
    if config._attn_implementation not in ATTENTION:
        named = " or ".join(ATTENTION)
        return f"attention is {config._attn_implementation}: load the model with attn_implementation {named}"
    return None


class PaddingFree:
    """The packed passes of one trainer."""

    def __init__(self, trainer: Any, producer: LogprobMethod) -> None:
        self._trainer, self._producer = trainer, producer
        self._implementation = language_model(trainer.model).config._attn_implementation
        self._native: Any = None
        self._compared = False

    @classmethod
    def asked(cls, trainer: Any, request: Request, producer: LogprobMethod) -> PaddingFree | None:
        """The packing asked for; None where rows are padded: the request says it, or "auto" with an objection."""
        if request.padding == "padded" or objection(trainer) is not None:
            return None
        return cls(trainer, producer)

    def attending(self) -> contextlib.AbstractContextManager[None]:
        """The span in which a micro-batch is trained, its backward pass included."""
        return attending(self._implementation)

    def in_place_of(self, native: Any) -> Any:
        """The method that makes log-probabilities, as TRL calls it."""
        self._native = native
        return self._produce

    def _produce(
        self,
        model: Any,
        input_ids: Any,
        attention_mask: Any,
        logits_to_keep: int,
        batch_size: Any = None,
        **others: Any,
    ) -> Any:
        """Shapes as in TRL: (rows, prompt + completion width) in, (rows, `logits_to_keep`) out."""
        unknown = [name for name, value in others.items() if value is not None and not name.startswith("compute_")]
        if unknown:
            raise ValueError(f'padding="free" does not know how to pack {", ".join(sorted(unknown))}')
        if torch.is_grad_enabled() and not self._compared:
            self._compared = True
            self._compare(model, input_ids, attention_mask, logits_to_keep)
        return self._packed(model, input_ids, attention_mask, logits_to_keep, **others)

    def _packed(self, model: Any, input_ids: Any, attention_mask: Any, width: int, **others: Any) -> Any:
        rows = PackedRows.of(input_ids, attention_mask, width)
        seen = PackedModel(model, rows)
        ids = seen.token_ids
        # What is differentiated is read until its backward pass is over: `attending_to` around both.
        with contextlib.nullcontext() if torch.is_grad_enabled() else self.attending():
            result = self._native(seen, ids, torch.ones_like(ids), ids.shape[1] - 1, **others)
        parts = (result,) if self._producer.values == 1 else result
        # The router's loss, which comes third, is one number.
        made = [part if part is None or part.dim() < 2 else rows.padded(part, len(input_ids), width) for part in parts]
        return made[0] if self._producer.values == 1 else tuple(made)

    def _compare(self, model: Any, input_ids: Any, attention_mask: Any, width: int) -> None:
        """Holds up to four of the first micro-batch's rows against TRL's own padded pass. Raises `BatchDrift`.

        Every rank does, where ranks run the model together.
        """
        chosen = _two_of_a_prompt_and_others(input_ids[:, :-width].tolist(), attention_mask.sum(1).tolist())
        ids, mask = input_ids[chosen], attention_mask[chosen]
        training = model.training
        model.eval()
        try:
            with torch.no_grad():
                free = self._producer.logprobs(self._packed(model, ids, mask, width))
                padded = self._producer.logprobs(self._native(model, ids, mask, width))
        finally:
            model.train(training)
        off = float(((free - padded) * mask[:, -width:]).abs().max())
        kind = torch.get_autocast_dtype(ids.device.type) if self._autocast else next(model.parameters()).dtype
        if not off <= TOLERANCE.get(str(kind), ROUGH):
            raise BatchDrift(
                self._trainer.state.global_step,
                "padding",
                f"a packed pass gives log-probabilities that are {off:.2g} from a padded one's, so that this model "
                'reads packed rows otherwise than padded ones: wrap with padding="padded"',
            )

    @property
    def _autocast(self) -> bool:
        return self._trainer.accelerator.mixed_precision not in (None, "no")


def _two_of_a_prompt_and_others(prompts: Sequence[Sequence[int]], tokens: Sequence[int]) -> list[int]:
    """Two rows that share a prompt, where any do, and two more; short ones."""
    rows = sorted(range(len(tokens)), key=tokens.__getitem__)
    first = next((row for row in rows if prompts.count(prompts[row]) > 1), rows[0])
    together = [row for row in rows if prompts[row] == prompts[first]][:2]
    return together + [row for row in rows if row not in together][:2]


@contextlib.contextmanager
def attending_to(free: PaddingFree | None) -> Iterator[None]:
    """The span in which a micro-batch is trained; `free`: None where it is padded."""
    with contextlib.nullcontext() if free is None else free.attending():
        yield
