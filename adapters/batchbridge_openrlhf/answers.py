"""The answer of an engine, and that nothing else is trained: the tokens of a completion, which of them are actions, and
the images that its prompt has.

An agent's answer is one completion in which an environment's tokens stand between the policy's own; its action ranges
say which are which. A fingerprint of all is taken where the answer arrives, and travels with the experience to the
replay buffer of the process that trains it, past everything that makes experiences, batches and padding.

Source: openrlhf 0.10.4 to 0.11.2 utils/agent.py, SamplesGenerator._process_response_into_experience.

Its own file: four modules use it.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Mapping
from typing import Any

from batchbridge_openrlhf.images import ImageTensors, fingerprint, shown

ANSWERED = "batchbridge_answered"
"""Key of an experience's `info`: the fingerprint of its answer."""


def prompt_tokens(answer: Mapping[str, Any]) -> int:
    """Tokens of an engine's answer that stand before the response."""
    ranges = answer["action_ranges"]
    return int(ranges[0][0]) if ranges else len(answer["observation_tokens"])


def mark(experience: Any, answer: Mapping[str, Any]) -> Any:
    """Puts the fingerprint of an answer beside the experience that was made of it, and returns the experience. What is
    cut off at the longest length is not trained."""
    import torch

    length = experience.sequences.shape[-1]
    ids = array("q", [int(token) for token in answer["observation_tokens"][:length]])
    actions = bytearray(length)
    for start, end in answer["action_ranges"]:
        actions[start:end] = b"\1" * len(actions[start:end])
    said = _fingerprint(ids.tobytes(), bytes(actions[1:]), answer.get("mm_train_inputs") or {})
    experience.info[ANSWERED] = torch.tensor([[said]])
    return experience


def is_as_answered(item: Any) -> bool:
    """Whether a completion in a replay buffer has the tokens, the mask and the images of its answer, where it has a
    fingerprint."""
    said = item.info.get(ANSWERED)
    if said is None:
        return True
    import torch

    ids, mask = item.sequences.cpu().to(torch.int64), item.action_mask.cpu().to(torch.uint8)
    return int(said) == _fingerprint(ids.numpy().tobytes(), mask.numpy().tobytes(), shown(item))


def _fingerprint(ids: bytes, mask: bytes, images: ImageTensors) -> int:
    return fingerprint(images, zlib.crc32(mask, zlib.crc32(ids)))
