"""A release of next week, by the files of the installed OpenRLHF: measured where its loss is written otherwise, refused
by the function's name where its control flow is."""

from __future__ import annotations

from pathlib import Path

import pytest

from batchbridge.kit.proven import evidence_here
from batchbridge_on_cpu.next_release import with_a_statement_more
from batchbridge_openrlhf.proven import CODE

OPENRLHF = CODE.packages[0]
STEP = next((file, names[0]) for file, names in OPENRLHF.control.items() if names)


@pytest.mark.parametrize(
    ("file", "function", "grade"), [("models/loss.py", "PolicyLoss.forward", "measured"), (*STEP, "refused")]
)
def test_a_function_that_is_written_otherwise_is_named(tmp_path: Path, file: str, function: str, grade: str) -> None:
    changed = with_a_statement_more(OPENRLHF, tmp_path, file, function)
    found = evidence_here(CODE.used(), folders={OPENRLHF.name: changed})
    assert found.grade == grade
    assert {"measured": found.loss, "refused": found.control}[grade] == (f"openrlhf {file}: {function}",)


def test_the_installed_code_is_proven() -> None:
    assert evidence_here(CODE.used()).grade == "proven"
