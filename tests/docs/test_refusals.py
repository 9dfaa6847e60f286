"""The table of what is refused, in the page of each framework, is that of the rows that `check` and `wrap` ask."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from batchbridge.contract import plugins
from batchbridge_on_cpu.scripts import module_at


@pytest.fixture(scope="module")
def tables(repository: Path) -> ModuleType:
    return module_at(repository / "docs" / "make_refusals.py", "make_refusals")


def test_the_tables_are_what_the_rows_say_now(tables: ModuleType) -> None:
    for page, text in tables.pages().items():
        assert page.read_text(encoding="utf-8") == text, "python docs/make_refusals.py"


def test_every_framework_whose_trainers_are_wrapped_has_a_table(tables: ModuleType) -> None:
    wrapped = {adapter.runtime for adapter in plugins.adapters().values() if adapter.runtime}
    assert wrapped == {plugins.adapters()[name].runtime for name in tables.FRAMEWORKS}  # Open-R1's are TRL's
    for name in tables.FRAMEWORKS:
        rows = plugins.adapters()[name]._runtime().refusals
        allowed = {row.name for row in rows if row.allowable}
        lines = tables.table(name).splitlines()[2:]
        assert [line.split("`")[1] for line in lines] == [row.name for row in rows]
        assert {line.split("`")[1] for line in lines if line.endswith("| yes |")} == allowed
