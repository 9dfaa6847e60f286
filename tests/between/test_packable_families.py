"""Families whose passes can be packed: one list, whichever adapter reads it."""

from __future__ import annotations

import ast
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from batchbridge.kit.packable import FAMILIES, not_packable


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


def test_trls_list_of_families_is_the_kits(repository: Path) -> None:
    """TRL's adapter has the list in code that its recorded runs are of."""
    tree = ast.parse((repository / "adapters/batchbridge_trl/padding_free.py").read_text(encoding="utf-8"))
    (own,) = (
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "FAMILIES"
    )
    assert own == FAMILIES
