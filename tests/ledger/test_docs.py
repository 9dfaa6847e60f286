"""docs/ledger.md and the code say the same."""

from __future__ import annotations

from typing import get_args

import document_ledger
import pytest

from batchbridge.ledger_diff import Aspect


def test_the_generated_parts_of_the_page_are_what_the_code_writes():
    page = document_ledger.PAGE.read_text()
    assert page == document_ledger.filled(page), "run: python tests/ledger/document_ledger.py"


@pytest.mark.parametrize("aspect", get_args(Aspect))
def test_the_page_explains_every_aspect_of_a_difference(aspect):
    assert f"| `{aspect}` |" in document_ledger.PAGE.read_text()
