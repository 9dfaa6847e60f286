"""docs/ledger.md and the code say the same."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import document_ledger
import pytest

from batchbridge.cli.main import main
from batchbridge.ledger.comparing import LedgerAspect


def test_the_generated_parts_of_the_page_are_what_the_code_writes():
    page = document_ledger.PAGE.read_text()
    assert page == document_ledger.filled(page), "run: python tests/ledger/document_ledger.py"


@pytest.mark.parametrize("aspect", get_args(LedgerAspect))
def test_the_page_explains_every_aspect_of_a_difference(aspect):
    assert f"| `{aspect}` |" in document_ledger.PAGE.read_text()


def examples() -> list[str]:
    """The page's Python, in order."""
    return re.findall(r"^```python\n(.*?)^```$", document_ledger.PAGE.read_text(), re.MULTILINE | re.DOTALL)


def test_the_page_s_first_example_reads_two_runs(ledger, monkeypatch, capsys):
    monkeypatch.chdir(ledger("runA").parent)
    ledger("runB")
    exec(compile(examples()[0], "docs/ledger.md", "exec"), {})
    assert capsys.readouterr().out.startswith("0 4 0.001\n1 4 0.001\n")


def test_the_page_s_second_example_reads_exported_runs_with_pyarrow(ledger, monkeypatch, capsys):
    pytest.importorskip("pyarrow", reason="the extra parquet")
    monkeypatch.chdir(ledger("runA", world_size=2).parent)
    ledger("runB")
    Path("exported").mkdir()
    for run in ("runA", "runB"):
        assert main(["ledger", "export", run, "--parquet", f"exported/{run}.parquet"]) == 0
    capsys.readouterr()
    (_, second) = examples()
    exec(compile(second, "docs/ledger.md", "exec"), {})
    assert capsys.readouterr().out == (
        "[{'step': 2, 'response_tokens_sum': 20}, {'step': 3, 'response_tokens_sum': 20}]\n"
    )
