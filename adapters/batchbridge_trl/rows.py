"""The completions of a rollout as rows that can be moved, kept, trimmed and put together into micro-batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from batchbridge import CannotAttach
from batchbridge.kit import Length
from batchbridge.kit.measuring import Rows
from batchbridge.kit.probing import ProbeBatch
from batchbridge_trl.exchange import FACTS_BYTES, CompletionPlaces, RowRoute, move, pack_facts, unpack_facts
from batchbridge_trl.images import TYPES, RolloutImages, together

PaddingSide = Literal["prompt", "completion", "row"]

COLUMNS: Mapping[str, tuple[PaddingSide, float]] = {
    # name in the trainer's rollout dict: (left-padded over prompt tokens, right-padded over completion tokens, or one
    # value per row; padding value). Source: trl 0.18.0 to 1.16.0, GRPOTrainer._generate_and_score_completions.
    "prompt_ids": ("prompt", 0),
    "prompt_mask": ("prompt", 0),
    "completion_ids": ("completion", 0),
    "completion_mask": ("completion", 0),
    "tool_mask": ("completion", 0),
    "old_per_token_logps": ("completion", 0.0),
    "ref_per_token_logps": ("completion", -1e4),  # exp(reference - policy) stays finite, whatever pads the policy
    "sampling_per_token_logps": ("completion", 0.0),
    "importance_sampling_ratio": ("completion", 1.0),
    "advantages": ("row", 0.0),
    # Over prompt and completion; of the latter all zero, and not kept.
    "token_type_ids": ("prompt", 0),
    "mm_token_type_ids": ("prompt", 0),
}
DROPPED = frozenset({"num_items_in_batch", "max_left_pad"})
"""Keys of the rollout dict that are replaced (the token count of the whole rollout), or that no loss reads (Unsloth's
padding of its prompts)."""

TensorsByName = dict[str, torch.Tensor]


DTYPES = (torch.int64, torch.int32, torch.bool, torch.float32, torch.bfloat16, torch.float16, torch.float64)
"""Kinds of number that a column may have: ranks tell each other by their place here."""


@dataclass
class TrlRolloutRows:
    """The rows of one rollout, as far as one rank knows them.

    index: the rollout. tensors: padded columns of the rows that this rank holds. slots: position in the rollout's
    generation order -> row of `tensors`. For every position of the rollout, held here or not: response_tokens (whose
    loss mask is 1), prompt_tokens and completion_tokens (attended or not). facts: of the rows that are held, plain
    values for the ledger. pictures: the image tensors of a model that reads images. places: who holds what.

    Positions after the plan's are repeated prompts that make ranks generate equally many: at most fillers.
    """

    index: int
    tensors: TensorsByName
    slots: dict[int, int]
    response_tokens: list[int]
    prompt_tokens: list[int]
    completion_tokens: list[int]
    facts: dict[int, dict[str, Any]]
    pictures: RolloutImages | None = None
    places: CompletionPlaces = field(default_factory=lambda: CompletionPlaces([], []))

    def images(self, position: int) -> int:
        """Images of the completion at `position`."""
        return 0 if self.pictures is None else self.pictures.counts["num_images"][position]

    def length(self, position: int) -> Length:
        """Tokens that a forward pass over the completion at `position` reads."""
        return Length(self.prompt_tokens[position], self.completion_tokens[position])

    def share_out(self, wanted: Sequence[set[int]], later: set[int], rank: int, device: torch.device) -> None:
        """Sends every row to the ranks that train it, and forgets those that this rank needs no more. Collective.

        wanted: positions, by rank, of the rows that each trains in steps whose shares are known. later: positions of
        the rows of steps that wait for another rollout: they stay where they were generated. One row always stays:
        fillers are copies of it.
        """
        stays = later if len(wanted) == 1 else self.places.waiting(later, rank)
        route = None if len(wanted) == 1 else self.places.share_out(wanted, rank)
        arriving = set() if route is None else set(route.arriving)
        kept = sorted((wanted[rank] | stays) & (self.slots.keys() | arriving)) or sorted(self.slots)[:1]
        if self.pictures is not None:
            if route is not None:
                self.pictures.exchange(route, device)
            self.pictures.keep(set(kept))
        if route is None:
            self._keep(kept)
            return
        for name in [name for name in COLUMNS if name in self.tensors]:
            self.tensors[name] = self._column(name, route, kept, device)
        packed = move(route, lambda position: pack_facts(self.facts[position]), lambda _: FACTS_BYTES, device)
        self.facts |= {position: unpack_facts(each) for position, each in packed.items()}
        self.facts = {position: self.facts[position] for position in kept}
        self.slots = {position: row for row, position in enumerate(kept)}

    def _keep(self, kept: Sequence[int]) -> None:
        """Forgets the rows at other positions."""
        if len(kept) == len(self.slots):
            return
        device = next(iter(self.tensors.values())).device
        rows = torch.tensor([self.slots[position] for position in kept], device=device)
        self.tensors = {name: tensor.index_select(0, rows) for name, tensor in self.tensors.items()}
        self.facts = {position: self.facts[position] for position in kept}
        self.slots = {position: row for row, position in enumerate(kept)}

    def _column(self, name: str, route: RowRoute, kept: Sequence[int], device: torch.device) -> torch.Tensor:
        """The column of the rows that this rank holds from now on, as wide as their longest. Collective."""
        kind, padding = COLUMNS[name]
        old, tokens = self.tensors[name], self.prompt_tokens if kind == "prompt" else self.completion_tokens
        by_token = kind != "row" and (kind == "prompt" or old.shape[1] > 1)  # see `made_alike`

        def width(position: int) -> int:
            return tokens[position] if by_token else 1

        def piece(position: int) -> torch.Tensor:
            row = old[self.slots[position]].view(-1)
            return row[len(row) - width(position) :] if kind == "prompt" else row[: width(position)]

        arrived = move(route, piece, lambda position: width(position) * old.element_size(), device)
        shape = (len(kept), max([2, *map(width, kept)] if by_token else [1]))
        new = torch.full(shape, padding, dtype=old.dtype, device=old.device)
        for row, position in enumerate(kept):
            values = arrived[position].view(old.dtype) if position in arrived else piece(position)
            new[row, slice(shape[1] - len(values), None) if kind == "prompt" else slice(len(values))] = values
        return new if old.dim() > 1 else new.view(-1)

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
            "places": self.places.state(),
        }

    @classmethod
    def from_states(
        cls, states: Sequence[Mapping[str, Any]], device: torch.device, ranks: int, *, everyone: bool
    ) -> TrlRolloutRows:
        """The rollout from what one or more ranks stored of it: every row that at least one of them held.

        everyone: all of `ranks` ranks read the same states, so that each holds every row. Raises `CannotAttach` where
        images were stored by a version that left open who holds them.
        """
        slots: dict[int, int] = {}
        picked: list[list[int]] = []
        facts: dict[int, Any] = {}
        for state in states:
            new = {position: row for position, row in state["slots"].items() if position not in slots}
            slots |= {position: len(slots) + number for number, position in enumerate(new)}
            picked.append(list(new.values()))
            facts |= {position: state["facts"][position] for position in new}
        tensors = {}
        for name, (kind, padding) in COLUMNS.items():
            if name in states[0]["tensors"]:
                parts = [state["tensors"][name][rows] for state, rows in zip(states, picked, strict=True)]
                if parts[0].dim() > 1:
                    widest = max(part.shape[1] for part in parts)
                    parts = [_to_width(part, widest, kind, padding) for part in parts]
                tensors[name] = torch.cat(parts).to(device)
        kept: dict[str, Any] = {"slots": slots, "tensors": tensors, "facts": facts}
        if states[0].get("pictures") is not None:
            if "places" not in states[0]:
                reason = "an earlier version wrote it with images, and not which rank holds them: resume with that one"
                raise CannotAttach({"resume": f"rollout {states[0]['index']} of the checkpoint: {reason}"})
            kept["pictures"] = RolloutImages.from_states([state["pictures"] for state in states], device)
        if everyone or "places" not in states[0]:  # earlier versions kept every row of later steps on every rank
            kept["places"] = CompletionPlaces.everywhere(len(states[0]["response_tokens"]), ranks)
        else:
            kept["places"] = CompletionPlaces.from_state(states[0]["places"])
        return cls(**{**states[0], **kept})


class TrlMicroBatch(dict[str, Any]):
    """The trainer's `inputs` for one micro-batch, and the factor that makes its native loss a share of the step's.

    own_share: the factor of what the loss has beside the terms of TRL's, so that a step has as much of it as natively.
    micro_batches: of this rank's part of the step. per_token: share of one response token in a mean over all of the
    step's, times the ranks, over which gradients are averaged.
    most_rows: rows, fillers included, of the rank that has most of them in this turn. expected: what its rows should
    train; None while a loss is probed.
    """

    factor: float = 1.0
    own_share: float = 1.0
    micro_batches: int = 1
    per_token: float = 0.0
    most_rows: int = 0
    expected: Rows | None = None


def known_columns(output: Mapping[str, Any]) -> TensorsByName:
    """The columns of `COLUMNS` in a rollout dict; None stands for a column that is not there (trl 0.18 and 0.19)."""
    return {name: output[name] for name in output if name in COLUMNS and output[name] is not None}


def columns_of(output: Mapping[str, Any], rows: int) -> TensorsByName:
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
    # What scores by tokens leaves zeros where nothing is read.
    if (reference := columns.get("ref_per_token_logps")) is not None:
        padding = COLUMNS["ref_per_token_logps"][1]
        columns["ref_per_token_logps"] = reference.masked_fill(columns["completion_mask"] == 0, padding)
    return columns


def _to_width(tensor: torch.Tensor, width: int, kind: PaddingSide, padding: float) -> torch.Tensor:
    """Pads or trims dimension 1 to `width`, on the left for prompts and on the right for completions."""
    have = tensor.shape[1]
    if have >= width:
        return tensor[:, have - width :] if kind == "prompt" else tensor[:, :width]
    amount = (width - have, 0) if kind == "prompt" else (0, width - have)
    return torch.nn.functional.pad(tensor, amount, value=padding)


def made_alike(
    accelerator: Any, columns: TensorsByName, lengths: Sequence[tuple[int, int, int]]
) -> tuple[TensorsByName, list[tuple[int, int, int]]]:
    """This rank's columns in the form that all ranks give them, and the lengths of every rank's completions, in rank
    order. Collective.

    lengths: of this rank's completions (response, prompt and completion tokens). A column of one value per row has
    width 1, any other at least 2, on every rank. Raises `ValueError`, on every rank, for a column that only some have,
    and for one of different kinds of number; image token types are zeros where a rank's rows have no image.
    """
    if accelerator.num_processes == 1:
        return columns, list(lengths)
    forms = [0 if name not in columns else _form(columns[name]) for name in COLUMNS]
    flat = [number for each in lengths for number in each] + forms
    told = accelerator.gather(torch.tensor(flat, dtype=torch.int32, device=accelerator.device))
    everyone = told.view(accelerator.num_processes, -1).tolist()
    alike = {}
    for place, name in enumerate(COLUMNS, start=3 * len(lengths)):
        found = {each[place] for each in everyone}
        numbers = {(form - 1) // 2 for form in found if form}
        if not numbers:
            continue
        if len(numbers) > 1 or (0 in found and name not in TYPES):
            how = "is of different kinds on different ranks" if len(numbers) > 1 else "is there on some ranks alone"
            raise ValueError(f"the rollout's {name} {how}")
        column = columns.get(name)
        if column is None:
            column = torch.zeros_like(columns["prompt_ids"], dtype=DTYPES[numbers.pop()])
        kind, padding = COLUMNS[name]
        if kind == "row" and column.dim() > 1:
            raise ValueError(f"the rollout's {name} has shape {tuple(column.shape)}: one value per completion travels")
        by_token = kind != "row" and (kind == "prompt" or any(form and (form - 1) % 2 for form in found))
        alike[name] = _to_width(column, 2, kind, padding) if by_token and column.shape[1] < 2 else column
    known = [each[3 * row : 3 * row + 3] for each in everyone for row in range(len(lengths))]
    return alike, [(response, prompt, completion) for response, prompt, completion in known]


def _form(column: torch.Tensor) -> int:
    """The word of a rank about a column that it has: its kind of number, and whether it is wider than one value."""
    if column.dtype not in DTYPES:
        raise ValueError(f"a column of the rollout is of {column.dtype}, which is not known to travel between ranks")
    wide = column.dim() > 1 and column.shape[1] > 1
    return 1 + 2 * DTYPES.index(column.dtype) + int(wide)


def assemble(
    picks: Sequence[tuple[TrlRolloutRows, int] | None],
    filler: tuple[TrlRolloutRows, int],
    pad_token: int,
    width_multiple: int | None,
) -> TrlMicroBatch:
    """One micro-batch from (rollout, position) picks, trimmed to its own longest prompt and completion.

    `None` is a filler row: a copy of `filler` whose loss mask and advantage are zero.
    """
    chosen = [pick if pick is not None else filler for pick in picks]
    parts: list[TensorsByName] = []
    for rollout, position in chosen:
        row = rollout.slots[position]
        parts.append({name: tensor[row : row + 1] for name, tensor in rollout.tensors.items()})
    prompt_width = _round_up(max(rollout.prompt_tokens[position] for rollout, position in chosen), width_multiple)
    completion_width = _round_up(
        max(rollout.completion_tokens[position] for rollout, position in chosen), width_multiple
    )
    batch = TrlMicroBatch()
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


def made_up(probe: ProbeBatch, *, token: int = 1) -> TrlMicroBatch:
    """A micro-batch for a probe of the loss, whose log-probabilities no model makes: any token does but the padding."""
    rows = len(probe.lengths)
    batch = TrlMicroBatch(
        prompt_ids=torch.full((rows, 2), token, device=probe.mask.device),
        prompt_mask=torch.ones((rows, 2), dtype=torch.long, device=probe.mask.device),
        completion_ids=torch.full_like(probe.mask, token),
        completion_mask=probe.mask.clone(),
        advantages=probe.advantages.clone(),
        importance_sampling_ratio=torch.ones_like(probe.logprobs),
    )
    if probe.old is not None:
        batch["old_per_token_logps"] = batch["sampling_per_token_logps"] = probe.old.clone()
    if probe.reference is not None:
        batch["ref_per_token_logps"] = probe.reference.clone()
    return batch


def with_rows(tensor: torch.Tensor, batch: TrlMicroBatch) -> torch.Tensor:
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
