"""The completions of a rollout as rows that can be moved, kept, trimmed and put together into micro-batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from accelerate.utils import gather_object

from batchbridge.kit import Length
from batchbridge.kit.measuring import Rows
from batchbridge.kit.probing import ProbeBatch
from batchbridge_trl.images import TYPES, Pictures, together

Kind = Literal["prompt", "completion", "row"]

COLUMNS: Mapping[str, tuple[Kind, float]] = {
    # name in the trainer's rollout dict: (left-padded over prompt tokens, right-padded over completion tokens, or one
    # value per row; padding value). Source: trl 0.18.0 to 1.16.0, GRPOTrainer._generate_and_score_completions.
    "prompt_ids": ("prompt", 0),
    "prompt_mask": ("prompt", 0),
    "completion_ids": ("completion", 0),
    "completion_mask": ("completion", 0),
    "tool_mask": ("completion", 0),
    "old_per_token_logps": ("completion", 0.0),
    "ref_per_token_logps": ("completion", 0.0),
    "sampling_per_token_logps": ("completion", 0.0),
    "importance_sampling_ratio": ("completion", 1.0),
    "advantages": ("row", 0.0),
    # Over prompt and completion; of the latter all zero, and not kept.
    "token_type_ids": ("prompt", 0),
    "mm_token_type_ids": ("prompt", 0),
}
DROPPED = frozenset({"num_items_in_batch"})
"""Keys of the rollout dict that are replaced: the token count of the whole rollout."""

Tensors = dict[str, torch.Tensor]


@dataclass
class RolloutRows:
    """What one rank knows of one rollout.

    index: the rollout. tensors: padded columns of the rows that this rank holds. slots: position in the rollout's
    generation order -> row of `tensors`. For every position of the rollout, held here or not: response_tokens (whose
    loss mask is 1), prompt_tokens and completion_tokens (attended or not), and facts, plain values for the ledger.
    pictures: the image tensors of a model that reads images.
    """

    index: int
    tensors: Tensors
    slots: dict[int, int]
    response_tokens: list[int]
    prompt_tokens: list[int]
    completion_tokens: list[int]
    facts: list[dict[str, Any]]
    pictures: Pictures | None = None

    def images(self, position: int) -> int:
        """Images of the completion at `position`."""
        return 0 if self.pictures is None else self.pictures.counts["num_images"][position]

    def length(self, position: int) -> Length:
        """Tokens that a forward pass over the completion at `position` reads."""
        return Length(self.prompt_tokens[position], self.completion_tokens[position])

    def keep(self, positions: set[int]) -> None:
        """Forgets the rows at other positions. One row always stays: fillers are copies of it."""
        kept = sorted(positions & self.slots.keys()) or sorted(self.slots)[:1]
        if len(kept) == len(self.slots):
            return
        device = next(iter(self.tensors.values())).device
        rows = torch.tensor([self.slots[position] for position in kept], device=device)
        self.tensors = {name: tensor.index_select(0, rows) for name, tensor in self.tensors.items()}
        self.slots = {position: row for row, position in enumerate(kept)}

    def state(self) -> dict[str, Any]:
        """Tensors on the CPU and plain values: what a checkpoint stores."""
        return {
            "index": self.index,
            "tensors": {name: tensor.cpu() for name, tensor in self.tensors.items()},
            "slots": dict(self.slots),
            "response_tokens": self.response_tokens,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "facts": self.facts,
            "pictures": None if self.pictures is None else self.pictures.state(),
        }

    @classmethod
    def from_states(cls, states: Sequence[Mapping[str, Any]], device: torch.device) -> RolloutRows:
        """The rollout from what one or more ranks stored of it: every row that at least one of them held."""
        slots: dict[int, int] = {}
        picked: list[list[int]] = []
        for state in states:
            new = {position: row for position, row in state["slots"].items() if position not in slots}
            slots |= {position: len(slots) + number for number, position in enumerate(new)}
            picked.append(list(new.values()))
        tensors = {
            name: torch.cat([state["tensors"][name][rows] for state, rows in zip(states, picked, strict=True)])
            for name in states[0]["tensors"]
        }
        kept: dict[str, Any] = {"slots": slots, "tensors": {name: each.to(device) for name, each in tensors.items()}}
        if states[0].get("pictures") is not None:
            kept["pictures"] = Pictures.from_states([state["pictures"] for state in states], device)
        return cls(**{**states[0], **kept})


class MicroBatch(dict[str, Any]):
    """The trainer's `inputs` for one micro-batch, and the factor that makes its native loss a share of the step's.

    micro_batches: of this rank's part of the step. per_token: share of one response token in a mean over all of the
    step's, times the ranks, over which gradients are averaged.
    most_rows: rows, fillers included, of the rank that has most of them in this turn. expected: what its rows shall
    train; None while a loss is probed.
    """

    factor: float = 1.0
    micro_batches: int = 1
    per_token: float = 0.0
    most_rows: int = 0
    expected: Rows | None = None


def known_columns(output: Mapping[str, Any]) -> Tensors:
    """The columns of `COLUMNS` in a rollout dict; None stands for a column that is not there (trl 0.18 and 0.19)."""
    return {name: output[name] for name in output if name in COLUMNS and output[name] is not None}


def columns_of(output: Mapping[str, Any], rows: int) -> Tensors:
    """The known columns of a rollout dict. Raises `ValueError` naming a key that is not known to be per completion."""
    unknown = sorted(set(output) - COLUMNS.keys() - DROPPED)
    if unknown:
        raise ValueError(f"the rollout carries {', '.join(unknown)}, which is not known to split by completion")
    columns = known_columns(output)
    for name in TYPES:
        if name in columns:
            columns[name] = columns[name][:, : columns["prompt_ids"].shape[1]]
    for name, tensor in columns.items():
        if len(tensor) != rows:
            raise ValueError(f"the rollout's {name} has {len(tensor)} rows for {rows} completions")
    return columns


def _to_width(tensor: torch.Tensor, width: int, kind: Kind, padding: float) -> torch.Tensor:
    """Pads or trims dimension 1 to `width`, on the left for prompts and on the right for completions."""
    have = tensor.shape[1]
    if have >= width:
        return tensor[:, have - width :] if kind == "prompt" else tensor[:, :width]
    amount = (width - have, 0) if kind == "prompt" else (0, width - have)
    return torch.nn.functional.pad(tensor, amount, value=padding)


def gather(accelerator: Any, columns: Tensors, *, pictured: bool) -> Tensors:
    """Every rank's rows of every column, in rank order. Collective. pictured: a rank whose rows have no image may lack
    columns."""
    if accelerator.num_processes == 1:
        return columns
    gathered = {}
    if pictured:
        for name in sorted(set(gather_object(list(columns))) - columns.keys()):
            columns[name] = torch.zeros_like(columns["prompt_ids"])
        columns = {name: columns[name] for name in COLUMNS if name in columns}
    for name, tensor in columns.items():
        kind, padding = COLUMNS[name]
        if tensor.dim() > 1:
            widest = int(accelerator.gather(torch.tensor([tensor.shape[1]], device=tensor.device)).max())
            tensor = _to_width(tensor, widest, kind, padding)
        gathered[name] = accelerator.gather(tensor.contiguous())
    return gathered


def assemble(
    picks: Sequence[tuple[RolloutRows, int] | None],
    filler: tuple[RolloutRows, int],
    pad_token: int,
    width_multiple: int | None,
) -> MicroBatch:
    """One micro-batch from (rollout, position) picks, trimmed to its own longest prompt and completion.

    `None` is a filler row: a copy of `filler` whose loss mask and advantage are zero.
    """
    chosen = [pick if pick is not None else filler for pick in picks]
    parts: list[Tensors] = []
    for rollout, position in chosen:
        row = rollout.slots[position]
        parts.append({name: tensor[row : row + 1] for name, tensor in rollout.tensors.items()})
    prompt_width = _round_up(max(rollout.prompt_tokens[position] for rollout, position in chosen), width_multiple)
    completion_width = _round_up(
        max(rollout.completion_tokens[position] for rollout, position in chosen), width_multiple
    )
    batch = MicroBatch()
    for part in parts:  # of a rollout without any image
        for name in TYPES:
            if name not in part and any(name in other for other in parts):
                part[name] = torch.zeros_like(part["prompt_ids"])
    for name in parts[0]:
        kind, padding = COLUMNS[name]
        if name in ("prompt_ids", "completion_ids"):
            padding = pad_token
        tensors = [part[name] for part in parts]
        # A column of width 1 in every rollout is one value per row, unless every completion has a single token.
        if kind != "row" and tensors[0].dim() > 1 and (kind == "prompt" or any(part.shape[1] > 1 for part in tensors)):
            width = prompt_width if kind == "prompt" else completion_width
            tensors = [_to_width(tensor, width, kind, padding) for tensor in tensors]
        batch[name] = torch.cat(tensors)
        if name in TYPES:
            batch[name] = torch.nn.functional.pad(batch[name], (0, completion_width))
    batch.update(together((rollout.pictures, position) for rollout, position in chosen))
    for row, pick in enumerate(picks):
        if pick is None:
            for name in ("completion_mask", "tool_mask", "advantages"):
                if name in batch:
                    batch[name][row] = 0
    return batch


def made_up(probe: ProbeBatch) -> MicroBatch:
    """A micro-batch for a probe of the loss, whose log-probabilities no model makes: any tokens do."""
    rows = len(probe.lengths)
    batch = MicroBatch(
        prompt_ids=torch.ones((rows, 2), dtype=torch.long, device=probe.mask.device),
        prompt_mask=torch.ones((rows, 2), dtype=torch.long, device=probe.mask.device),
        completion_ids=torch.ones_like(probe.mask),
        completion_mask=probe.mask.clone(),
        advantages=probe.advantages.clone(),
        importance_sampling_ratio=torch.ones_like(probe.logprobs),
    )
    if probe.old is not None:
        batch["old_per_token_logps"] = batch["sampling_per_token_logps"] = probe.old.clone()
    if probe.reference is not None:
        batch["ref_per_token_logps"] = probe.reference.clone()
    return batch


def with_rows(tensor: torch.Tensor, batch: MicroBatch) -> torch.Tensor:
    """A metric of one value per row as long as on the rank with most rows, NaN where this rank has none.

    TRL gathers such metrics, and gathering needs equal lengths; it reads them with nanmin and nanmax. Source: trl
    0.20.0 to 1.16.0, GRPOTrainer._compute_loss, clip_ratio/low_min and clip_ratio/high_max.
    """
    if tensor.dim() != 1 or len(tensor) != len(batch["completion_ids"]) or len(tensor) == batch.most_rows:
        return tensor
    return torch.nn.functional.pad(tensor, (0, batch.most_rows - len(tensor)), value=torch.nan)


def loss_mask(columns: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """1 where a completion token is trained, shape (rows, completion width)."""
    mask = columns["completion_mask"]
    return mask * columns["tool_mask"] if "tool_mask" in columns else mask


def _round_up(width: int, multiple: int | None) -> int:
    return width if not multiple else -(-width // multiple) * multiple
