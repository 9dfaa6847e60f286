"""Families whose passes can be packed: one list for every adapter."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from batchbridge.kit.packable import FAMILIES, not_packable, not_proven


def model(**changed: Any) -> Any:
    """A configuration as transformers has it, as far as packing asks."""
    said = {"attention_dropout": 0.0, **{name: value for name, value in changed.items() if "drop" in name}}
    made = {"model_type": FAMILIES[0], "_attn_implementation": "sdpa", "to_dict": lambda: said}
    return SimpleNamespace(**{**made, **changed})


def test_a_plain_model_of_every_family_is_read_in_packed_passes() -> None:
    assert [not_packable(model(model_type=family)) for family in FAMILIES] == [None] * len(FAMILIES)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"model_type": "gpt2"}, "of the family gpt2"),
        ({"_attn_implementation": "eager"}, "attention is eager"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding window"),
        ({"sliding_window": 64}, "sliding window"),
        ({"rope_parameters": {"rope_type": "dynamic"}}, "of kind dynamic"),
        ({"attention_dropout": 0.1}, "attention_dropout"),
    ],
)
def test_a_model_that_packed_passes_would_change_is_not(changed: dict[str, Any], reason: str) -> None:
    assert reason in (not_packable(model(**changed)) or "")
    of_an_adapter = {"_attn_implementation", "attention_dropout"}  # TRL's packs flash attention, and takes dropout
    assert (not_proven(model(**changed)) is None) == (changed.keys() <= of_an_adapter)
