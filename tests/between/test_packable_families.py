"""Families whose passes can be packed: one list, whichever adapter reads it."""

from __future__ import annotations

import ast
from pathlib import Path

from batchbridge.kit.packable import FAMILIES


def test_trls_list_of_families_is_the_kits(repository: Path) -> None:
    """TRL's adapter has the list in code that its recorded runs are of."""
    tree = ast.parse((repository / "adapters/batchbridge_trl/padding_free.py").read_text(encoding="utf-8"))
    (own,) = (
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "FAMILIES"
    )
    assert own == FAMILIES
