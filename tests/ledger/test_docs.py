"""docs/ledger.md and the code say the same."""

from __future__ import annotations

import re
from typing import get_args

import document_ledger
import pytest

from batchbridge.ledger.comparing import Aspect


def test_the_generated_parts_of_the_page_are_what_the_code_writes():
    page = document_ledger.PAGE.read_text()
    assert page == document_ledger.filled(page), "run: python tests/ledger/document_ledger.py"


@pytest.mark.parametrize("aspect", get_args(Aspect))
def test_the_page_explains_every_aspect_of_a_difference(aspect):
    assert f"| `{aspect}` |" in document_ledger.PAGE.read_text()


def test_the_page_s_example_reads_two_runs(ledger, monkeypatch, capsys):
    monkeypatch.chdir(ledger("runA").parent)
    ledger("runB")
    (block,) = re.findall(r"^```python\n(.*?)^```$", document_ledger.PAGE.read_text(), re.MULTILINE | re.DOTALL)
    exec(compile(block, "docs/ledger.md", "exec"), {})
    assert capsys.readouterr().out.startswith("0 4 0.001\n1 4 0.001\n")
