"""Prompts that a group shares, in verl's FSDP engine: `batchbridge run --padding free`.

With `use_remove_padding` verl lays the rows of a micro-batch end to end, each behind its own copy of the prompt. Here
each prompt is read once per micro-batch, its completions behind it (`batchbridge.kit.packing`), in training, old and
reference log-probabilities. verl's functions stay: they are handed one row, the completion tokens in order, and what
they make of it (log-probabilities, entropy) is put at its place among verl's rows; a prompt's own places hold 0, which
verl's loss and trainers cut off.

Source: verl 0.9.1 workers/engine/fsdp/transformer_impl.py, workers/engine/utils.py, workers/utils/padding.py.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch

from batchbridge import BatchDrift
from batchbridge.kit import Length, partition_packed
from batchbridge.kit.identified_rows import STEP
from batchbridge.kit.packable import ROUGH, TOLERANCE, not_packable
from batchbridge.kit.packing import PackedModel, PackedRows, attending, language_model
from batchbridge.kit.patches import Patches, rebound
from batchbridge_verl.watching import ROW

ENGINE = "FSDPEngineWithLMHead"
INPUTS = frozenset({"input_ids", "attention_mask", "position_ids"})
OUTPUTS = frozenset({"temperature_is_one", "pad_size", "input_ids_rmpad_rolled", "temperature_rmpad"})
"""Outputs that verl hands its model, and itself, for text; anything else is not known here."""


def objection(engine: Any) -> str | None:
    """The reason why the passes of this worker's engine cannot share prompts; None where they can."""
    if type(engine).__name__ != ENGINE:
        return f"{type(engine).__name__} is another engine than verl's FSDP engine"
    if hasattr(engine.module, "peft_config"):
        return "LoRA is not proven here"
    try:
        model = language_model(engine.module)
    except ValueError as error:
        return str(error)
    return not_packable(model.config)


class SharedPrompts:
    """The passes of one engine."""

    def __init__(self, engine: Any, patches: Patches) -> None:
        self._engine, self._module = engine, engine.module
        self._implementation = language_model(engine.module).config._attn_implementation
        self._compared, self._plain = False, False
        self._places: torch.Tensor | None = None
        own = engine.forward_backward_batch
        self._cut_here = types.MethodType(rebound(own.__func__, prepare_micro_batches=self._cut), engine)
        self._native: dict[str, Callable[..., Any]] = {}
        for name, value in (
            ("forward_backward_batch", self._batch),
            ("forward_step", self._step),
            ("prepare_model_inputs", self._inputs),
            ("prepare_model_outputs", self._outputs),
        ):
            what, why = "each prompt once, its completions behind it", "padding"
            self._native[name] = patches.set(engine, name, value, what=what, why=why)

    def _batch(self, data: Any, loss_function: Any, forward_only: bool = False) -> Any:
        from verl.utils import tensordict_utils as tu

        if not forward_only and ROW not in data.keys():  # noqa: SIM118 - a TensorDict iterates over its rows
            # No step of the plan's: what the loss is probed with, whose micro-batches are counted.
            return self._native["forward_backward_batch"](data, loss_function, forward_only=forward_only)
        dynamic = tu.get(data, "use_dynamic_bsz", default=True)
        try:
            with attending(self._implementation):  # in backward passes, too
                return self._cut_here(data, loss_function, forward_only=forward_only)
        finally:
            tu.assign_non_tensor(data, use_dynamic_bsz=dynamic)

    def _cut(self, data: Any, dp_group: Any = None, same_micro_num_in_dp: bool = True) -> tuple[list[Any], Any]:
        """A stand-in for verl's cut: its own cap, each prompt counted once, and groups together. Collective."""
        from verl.utils import tensordict_utils as tu

        responses = _response_lengths(data).tolist()
        rows = [row.tolist() for row in data["input_ids"].unbind()]
        lengths = [Length(len(row) - own, own) for row, own in zip(rows, responses, strict=True)]
        prompts = [tuple(row[: length.prompt]) for row, length in zip(rows, lengths, strict=True)]
        dynamic = tu.get(data, "use_dynamic_bsz", default=True)
        cap = int(tu.get(data, "max_token_len_per_gpu" if dynamic else "micro_batch_size_per_gpu"))
        tokens, rows_each = (cap, None) if dynamic else (None, cap)
        (hand,) = partition_packed(
            lengths, prompts, ranks=1, tokens_per_device=tokens, completions_per_device=rows_each
        )
        cut = [[item for item in part if item is not None] for part in hand]
        most = torch.tensor([len(cut)], device=data["input_ids"].device)
        torch.distributed.all_reduce(most, op=torch.distributed.ReduceOp.MAX, group=dp_group)
        while len(cut) < int(most):  # ranks run the model together; every one has as many rows
            part = max(cut, key=len)
            cut.remove(part)
            cut += [part[: len(part) // 2], part[len(part) // 2 :]]
        micro_batches = [tu.index_select_tensor_dict(data, part) for part in cut]
        tu.assign_non_tensor(data, use_dynamic_bsz=True)  # so that verl puts what comes back into the rows' order
        return micro_batches, cut

    def _step(self, micro_batch: Any, loss_function: Any, forward_only: bool) -> Any:
        if not self._compared:
            self._compared = True
            self._compare(micro_batch)
        return self._pass(micro_batch, loss_function, forward_only)

    def _pass(self, micro_batch: Any, loss_function: Any, forward_only: bool) -> Any:
        try:
            return self._native["forward_step"](micro_batch, loss_function=loss_function, forward_only=forward_only)
        finally:
            self._engine.module = self._module

    def _inputs(self, micro_batch: Any) -> Any:
        inputs, outputs = self._native["prepare_model_inputs"](micro_batch)
        if self._plain:
            return inputs, outputs
        unknown = {*inputs} - INPUTS | {*outputs} - OUTPUTS
        if unknown or outputs["pad_size"]:
            raise ValueError(f'padding="free" does not know {", ".join(sorted(unknown)) or "padded rows"}')
        rows, places = laid_out(micro_batch, inputs["position_ids"])
        self._places = places
        self._engine.module = packed = PackedModel(self._module, rows)
        # The row ends with an output that predicts nothing: to verl it is padding.
        more = torch.cat([places, places[-1:]])
        labels = {name: outputs[name][more] for name in ("input_ids_rmpad_rolled", "temperature_rmpad")}
        return {"input_ids": packed.token_ids}, {**outputs, **labels, "pad_size": 1}

    def _outputs(self, output: Any, output_args: Any, micro_batch: Any, logits_processor_func: Any) -> Any:
        from verl.utils import tensordict_utils as tu

        native = self._native["prepare_model_outputs"]
        if self._plain:
            return native(output, output_args, micro_batch, logits_processor_func)
        places, ids = self._places, micro_batch["input_ids"]
        assert places is not None, "inputs come before outputs"
        row = tu.index_select_tensor_dict(micro_batch, [0])
        ends = torch.tensor([0, len(places)], device=places.device)
        row["input_ids"] = torch.nested.nested_tensor_from_jagged(ids.values()[places], ends)
        made = {}
        for name, values in native(output, output_args, row, logits_processor_func).items():
            whole = values.values().new_zeros(ids.values().shape).index_put((places,), values.values())
            made[name] = torch.nested.nested_tensor_from_jagged(whole, ids.offsets())
        return made

    def _compare(self, micro_batch: Any) -> None:
        """Holds up to three of the first micro-batch's rows, neighbours of a group among them, against verl's own pass.
        Raises `BatchDrift`."""
        from verl.utils import tensordict_utils as tu

        rows = sorted({0, 1, len(micro_batch) - 1} & {*range(len(micro_batch))})
        few = tu.index_select_tensor_dict(micro_batch, rows)
        found = []
        with torch.no_grad(), _evaluated(self._module):
            for self._plain in (True, False):
                _, output = self._pass(few, None, True)
                found.append(output["model_output"]["log_probs"].values())
        _, places = laid_out(few, None)
        off = float((found[0] - found[1])[places.to(found[0].device)].abs().max())
        kind = getattr(self._engine, "_autocast_dtype", torch.float32)
        if not off <= TOLERANCE.get(str(kind), ROUGH):
            raise BatchDrift(
                int(tu.get(micro_batch, STEP, default=0) or 0),
                "padding",
                f"with prompts shared, log-probabilities are {off:.2g} from verl's own, so that this model reads such "
                'rows otherwise: wrap with padding="padded"',
            )


def laid_out(micro_batch: Any, position_ids: torch.Tensor | None) -> tuple[PackedRows, torch.Tensor]:
    """A micro-batch's rows with each prompt once; and of each of their targets the place among verl's packed tokens
    whose output is its prediction. position_ids: verl's own, (1, tokens), where they are to be looked at.

    Raises `ValueError` where a row's positions do not count from 0.
    """
    ids, responses = micro_batch["input_ids"], _response_lengths(micro_batch)
    starts, sizes = ids.offsets()[:-1], ids.offsets().diff()
    responses = responses.to(sizes)
    prompts = sizes - responses
    row = torch.repeat_interleave(torch.arange(len(sizes), device=ids.device), sizes)
    position = torch.arange(len(row), device=ids.device) - starts[row]
    if position_ids is not None and not torch.equal(position_ids[0], position.to(position_ids)):
        raise ValueError('padding="free" takes rows whose positions count from 0')
    before, after = int(prompts.max()), int(responses.max())
    column = position + before - prompts[row]
    padded = ids.values().new_zeros((len(sizes), before + after))
    mask = torch.zeros_like(padded)
    padded[row, column], mask[row, column] = ids.values(), 1
    rows = PackedRows.of(padded, mask, after)
    return rows, starts[rows.rows] + prompts[rows.rows] - 1 + rows.columns


def _response_lengths(data: Any) -> torch.Tensor:
    """The length of each row's response. The V1 trainer sends nested tensors, the V0 trainer padded ones."""
    responses = data["responses"]
    if responses.is_nested:
        return responses.offsets().diff()
    return data["attention_mask"][:, data["prompts"].shape[1] :].sum(1)


@contextlib.contextmanager
def _evaluated(module: Any) -> Iterator[None]:
    training = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(training)
