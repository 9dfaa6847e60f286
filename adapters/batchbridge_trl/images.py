"""The image tensors of a rollout, by completion: kept where they were made until it is known which rank trains them.

TRL keeps them flat over images or tiles, or padded by completion, in a layout of its own for each family of models, and
splits them itself; what it splits is taken as it comes. Every rank knows how many images a completion has and what
shapes its tensors have; the tensors themselves go from the rank that generated a completion to the ranks that train it,
and to no other (`exchange`).

Source: trl 1.16.0, GRPOTrainer._generate_and_score_completions and _get_per_token_logps_and_entropies,
trainer/utils.py split_pixel_values_by_grid.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from accelerate.utils import gather_object

from batchbridge import CannotAttach
from batchbridge.kit.patches import temporarily
from batchbridge_trl.exchange import RowRoute, move
from batchbridge_trl.sharding import loaded_in_shards

TENSORS = (
    "pixel_values",
    "image_grid_thw",
    "image_position_ids",
    "pixel_attention_mask",
    "spatial_shapes",
    "image_sizes",
)
"""Keys of a rollout dict whose rows are images, patches, tiles or completions, by the layout."""
COUNTS = ("num_images", "num_tiles")
"""Keys with one number per completion."""

TYPES = ("token_type_ids", "mm_token_type_ids")
"""Keys that say which tokens are of images, over prompt and completion."""


class ImageLayout(NamedTuple):
    """A completion's part of one tensor. by_row: the layout has one row for each completion."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    by_row: bool


@dataclass
class RolloutImages:
    """The image tensors of one rollout's completions, by position in the generation order.

    counts: of each completion, by key of `COUNTS`. forms: of each completion's tensors, by key of `TENSORS`; empty
    where it has no image. held: the tensors that this rank has.
    """

    counts: dict[str, list[int]]
    forms: list[dict[str, ImageLayout]]
    held: dict[int, dict[str, torch.Tensor]] = field(default_factory=dict)

    @classmethod
    def of_rollout(
        cls, seen: Sequence[tuple[Mapping[str, int], dict[str, ImageLayout]]], held: dict[int, dict[str, torch.Tensor]]
    ) -> RolloutImages:
        """Pictures from what every rank has told of its completions, by position. held: this rank's."""
        names = dict.fromkeys(name for counts, _ in seen for name in counts)
        # A rank whose images are all of one tile does not count tiles.
        counts = {name: [each.get(name, each["num_images"]) for each, _ in seen] for name in names}
        return cls(counts, [forms for _, forms in seen], held)

    @classmethod
    def of_rows(cls, rows: Sequence[tuple[dict[str, int], dict[str, torch.Tensor], frozenset[str]]]) -> RolloutImages:
        """Pictures from what `taken` found, on one rank."""
        seen = [(counts, forms_of(pieces, by_row)) for counts, pieces, by_row in rows]
        return cls.of_rollout(seen, {place: pieces for place, (_, pieces, _) in enumerate(rows)})

    def exchange(self, route: RowRoute, device: torch.device) -> None:
        """Brings the images of the rows on `route` to the ranks that train them. Collective."""
        for name in [name for name in TENSORS if any(name in forms for forms in self.forms)]:

            def piece(position: int, name: str = name) -> torch.Tensor:
                return self.held.get(position, {}).get(name, torch.empty(0, dtype=torch.uint8, device=device))

            def size(position: int, name: str = name) -> int:
                form = self.forms[position].get(name)
                return 0 if form is None else math.prod(form.shape) * form.dtype.itemsize

            for position, arrived in move(route, piece, size, device).items():
                if (form := self.forms[position].get(name)) is not None:
                    own = arrived.clone().view(form.dtype).view(form.shape)
                    self.held.setdefault(position, {})[name] = own

    def keep(self, positions: set[int]) -> None:
        """Forgets the tensors of other completions."""
        self.held = {position: held for position, held in self.held.items() if position in positions}

    def state(self) -> dict[str, Any]:
        """The part of the pictures that a checkpoint stores."""
        held = {place: {name: one.cpu() for name, one in each.items()} for place, each in self.held.items()}
        forms = [{name: tuple(form) for name, form in each.items()} for each in self.forms]
        return {"counts": self.counts, "forms": forms, "held": held}

    @classmethod
    def from_states(cls, states: Sequence[Mapping[str, Any]], device: torch.device) -> RolloutImages:
        """Pictures from what one or more ranks stored: every tensor that at least one of them held."""
        held = {
            place: {name: one.to(device) for name, one in each.items()}
            for state in states
            for place, each in state["held"].items()
        }
        forms = [{name: ImageLayout(*form) for name, form in each.items()} for each in states[0]["forms"]]
        return cls(states[0]["counts"], forms, held)


def reads_images(trainer: Any) -> bool:
    """Whether the trainer's processor could have images to read."""
    from transformers import ProcessorMixin

    return bool(getattr(trainer, "_is_vlm", False)) or isinstance(trainer.processing_class, ProcessorMixin)


@contextlib.contextmanager
def logged_by_all(trainer: Any, rows: Sequence[Mapping[str, Any]]) -> Iterator[None]:
    """The span in which a rollout is generated: TRL gathers its pictures for its log on those ranks alone whose rows
    have any, so that ranks would wait for each other; where they differ, none is logged. Collective."""

    def has_image(row: Mapping[str, Any]) -> bool:
        parts = [part for message in row["prompt"] if isinstance(message, dict) for part in message["content"]]
        inside = any(isinstance(part, dict) and part.get("type") == "image" for part in parts)
        return bool(inside or row.get("images") or row.get("image") is not None)

    differ = len(set(gather_object([any(map(has_image, rows))]))) > 1
    with temporarily(trainer, **({"log_multimodal": False} if differ else {})):
        yield


def require_images_of_all(trainer: Any, forms: Sequence[dict[str, ImageLayout]]) -> None:
    """Refusal (`CannotAttach`) of ranks that gather the parts of the model that read images where some would never run
    them: one of their completions has no image."""
    accelerator = trainer.accelerator
    plugin = getattr(accelerator.state, "deepspeed_plugin", None)
    sharded = plugin.zero_stage == 3 if plugin is not None else trainer.is_fsdp_enabled or loaded_in_shards(trainer)
    if accelerator.num_processes > 1 and sharded and any(forms) and not all(forms):
        reason = (
            "a completion of this rollout has no image and others have: under ZeRO-3 and FSDP a rank that does not "
            "read images leaves those waiting that do; leave such prompts out, or train under DDP or ZeRO-2"
        )
        raise CannotAttach({"images": reason})


def taken(output: dict[str, Any], rows: int) -> list[tuple[dict[str, int], dict[str, torch.Tensor], frozenset[str]]]:
    """Takes the image tensors out of a rollout dict, by completion: its counts, its tensors (none without an image),
    and the names of those that have a row for every completion."""
    from trl.trainer.utils import split_pixel_values_by_grid

    counts = {name: output.pop(name) for name in COUNTS if output.get(name) is not None}
    counts.setdefault("num_images", [0] * rows)
    tensors = {name: output.pop(name) for name in TENSORS if output.get(name) is not None}
    # Idefics' and SmolVLM's: a row for each completion, which TRL takes for one for each image where they are as many.
    by_row = (
        frozenset(tensors) if "pixel_attention_mask" in tensors and "spatial_shapes" not in tensors else frozenset()
    )
    split = tensors if by_row else split_pixel_values_by_grid({**tensors, **counts})
    found = []
    for row in range(rows):
        pieces = {name: split[name][row : row + 1] if name in by_row else split[name][row] for name in tensors}
        has = counts["num_images"][row] > 0
        found.append(({name: each[row] for name, each in counts.items()}, pieces if has else {}, by_row))
    return found


def forms_of(pieces: Mapping[str, torch.Tensor], by_row: frozenset[str]) -> dict[str, ImageLayout]:
    """The forms of a completion's tensors, which every rank knows."""
    return {name: ImageLayout(tuple(one.shape), one.dtype, name in by_row) for name, one in pieces.items()}


def together(chosen: Iterable[tuple[RolloutImages | None, int]]) -> dict[str, Any]:
    """The image tensors of a micro-batch's completions as TRL hands them to its loss; nothing where none has an image.

    What a completion lacks is zeros where the layout has a row for each; what was padded to the most images or patches
    of one rank's rollout is padded to the most of the micro-batch.
    """
    chosen = list(chosen)
    known = [{} if pictures is None else pictures.held.get(place, {}) for pictures, place in chosen]
    forms = [{} if pictures is None else pictures.forms[place] for pictures, place in chosen]
    batch: dict[str, Any] = {}
    for name in dict.fromkeys(name for each in forms for name in each):
        like = next(each[name] for each in known if name in each)
        by_row = any(each[name].by_row for each in forms if name in each)
        empty = like.new_zeros((1, *like.shape[1:]))
        pieces = [each.get(name, empty) for each in known if name in each or by_row]
        sizes = [max(piece.shape[place] for piece in pieces) for place in range(1, like.dim())]
        batch[name] = torch.cat([_padded(piece, sizes) for piece in pieces])
    if batch:
        for name in COUNTS:
            if any(pictures is not None and name in pictures.counts for pictures, _ in chosen):
                own = [{} if pictures is None else pictures.counts for pictures, _ in chosen]
                places = [place for _, place in chosen]
                batch[name] = [
                    counts.get(name, counts["num_images"])[place] if counts else 0
                    for counts, place in zip(own, places, strict=True)
                ]
    return batch


def _padded(piece: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    """A tensor with zeros at the end of every dimension but the first."""
    missing = [size - have for size, have in zip(sizes, piece.shape[1:], strict=True)]
    amounts = [amount for each in reversed(missing) for amount in (0, each)]
    return torch.nn.functional.pad(piece, amounts) if any(missing) else piece
