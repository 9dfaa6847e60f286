"""Images of prompts: what a completion is shown beside its tokens, and that it is shown its own.

OpenRLHF keeps what a processor made of a prompt's images (pixels, their grids) with each completion, and puts those of
a micro-batch end to end: which row a pixel belongs to is decided by their order alone, and a policy that is shown
others, or none, trains without a word.

Source: openrlhf 0.10.4 to 0.11.2 experience.Experience.mm_train_inputs, vlm_utils.merge_mm_train_inputs,
ActorPPOTrainer.training_step.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from batchbridge import CannotAttach

ImageTensors = Mapping[str, Any]
"""The tensors that a processor made of images, by the name of the policy's argument; nothing without images."""


def shown(item: Any) -> ImageTensors:
    """The images that one completion's experience has for the policy to see."""
    kept = getattr(item, "mm_train_inputs", None) or [None]
    return (kept if isinstance(kept, Mapping) else kept[0]) or {}


def together(items: Iterable[Any]) -> dict[str, Any]:
    """The images that the completions of a micro-batch are shown, end to end: copies on the CPU."""
    import torch

    parts: dict[str, list[Any]] = {}
    for item in items:
        for name, value in shown(item).items():
            parts.setdefault(name, []).append(torch.as_tensor(value).cpu())
    return {name: torch.cat(values) for name, values in parts.items()}


def fingerprint(images: ImageTensors, start: int) -> int:
    """A number that images have in common with themselves alone, begun at `start`, which stays without any."""
    import torch

    for name in sorted(images):
        value = torch.as_tensor(images[name]).detach().cpu().contiguous()
        start = zlib.crc32(f"{name} {tuple(value.shape)} {value.dtype}".encode(), start)
        start = zlib.crc32(value.reshape(-1).view(torch.uint8).numpy(), start)
    return start


def are_shown(given: Mapping[str, Any], arguments: Mapping[str, Any]) -> Any:
    """Whether a policy is called with these images and no others: a tensor, so that nobody waits for a device.

    arguments: its named ones.
    """
    import torch

    named = {name for name, value in arguments.items() if isinstance(value, torch.Tensor)} - _OWN
    if named != given.keys() or any(given[name].shape != arguments[name].shape for name in named):
        return False
    alike = [(given[name].to(arguments[name].device) == arguments[name]).all() for name in sorted(named)]
    return torch.stack(alike).all() if alike else True


_OWN = {"sequences", "action_mask", "attention_mask"}
"""Arguments of a policy that are tensors without images, too. Source: Actor.forward."""


def hold_all_or_none(sees: Collection[bool], *, ranks: int, zero: int) -> None:
    """Refusal (`CannotAttach`) of a run where some completions have images and others have none, and a step would
    suffer for it. sees: whether those so far have. zero: DeepSpeed's stage."""
    if len(sees) < 2 or (ranks == 1 and zero < 3):
        return
    raise CannotAttach(
        {
            "images": "some prompts have images and others none: on several ranks, one whose micro-batch has none does "
            "not run the part of the policy that sees, and takes no part in what the others exchange; under ZeRO-3 a "
            "step without images applies the last gradient of that part again (deepspeed 0.19.6). Give every prompt an "
            "image, or none, or train on one rank with ds.zero_stage 2"
        }
    )
