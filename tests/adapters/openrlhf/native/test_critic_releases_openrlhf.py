"""A critic before OpenRLHF 0.11.2, with the DeepSpeed that those releases require: why `critic_release` refuses it.

Their DeepSpeed divides the gradient at each of a model's outputs by the micro-batches of an optimizer step, and hidden
states are one of the critic's outputs (BB-ORL-069): its layers' gradients are divided twice, its value head's once.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from typing import Any

import pytest
from packaging.version import Version

pytestmark = pytest.mark.skipif(
    Version(importlib.metadata.version("openrlhf")) >= Version("0.11.2"), reason="of earlier releases"
)


@pytest.mark.by_hand
def test_alone_a_critic_misses_the_bar_where_a_step_has_several_micro_batches(
    run: Callable[..., dict[str, Any]], record: Callable[..., None]
) -> None:
    """Without accumulation, as DeepSpeed counts dynamic batches, it meets the bar under ZeRO-3, which loses nothing."""
    found = run("critics", 1)["natively"]
    assert found["ZeRO-2"] > 1e4
    assert found["ZeRO-3, dynamic"] <= 1
    record("gae, alone, ZeRO-2, several micro-batches", of_the_bar=found["ZeRO-2"])
