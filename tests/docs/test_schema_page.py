"""The generated tables of docs/schema.md. Refresh them with BATCHBRIDGE_UPDATE_GOLDEN=1, and read the difference."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import get_args

import pytest

from batchbridge.cli.schema import COLUMNS, field_rows
from batchbridge.comparing.effects import BY_FIELD
from batchbridge.meaning.advantages import RULED, group_advantages
from batchbridge.meaning.spec import SCHEMA, Advantage, every_field, field_type

GROUPS = ([1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 0.5, 0.0])


def _markdown(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _fields() -> str:
    rows = [(f"`{path}`", unit, values, default, meaning) for path, unit, values, default, meaning in field_rows()]
    return _markdown(COLUMNS, rows)


def _advantages() -> str:
    rows = []
    for baseline in RULED:
        for scale in get_args(field_type("advantage.scale")):
            found = group_advantages(GROUPS, Advantage(baseline=baseline, scale=scale, ddof=1))  # type: ignore[arg-type]
            rows.append(
                (f"`{baseline}`", f"`{scale}`", *(", ".join(f"{value:.3f}" for value in each) for each in found))
            )
    return _markdown(("baseline", "scale", *(", ".join(f"{reward:g}" for reward in group) for group in GROUPS)), rows)


TABLES = {"fields": _fields, "advantages": _advantages}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_what_the_code_says(name: str, repository: Path) -> None:
    page = repository / "docs" / "schema.md"
    text = page.read_text(encoding="utf-8")
    pattern = re.compile(
        rf"(<!-- written by tests/docs/test_schema_page.py {name} -->\n)(.*?)(<!-- end -->)", re.DOTALL
    )
    (found,) = pattern.findall(text)
    wanted = f"\n{TABLES[name]()}\n\n"
    if os.environ.get("BATCHBRIDGE_UPDATE_GOLDEN"):
        page.write_text(pattern.sub(lambda at: at[1] + wanted + at[3], text), encoding="utf-8")
    else:
        assert found[1] == wanted


def test_the_page_names_the_schema(repository: Path) -> None:
    assert f"`{SCHEMA}`" in (repository / "docs" / "schema.md").read_text(encoding="utf-8")


def test_every_field_stands_in_the_table_and_has_an_effect() -> None:
    paths = [path for path, _ in every_field()]
    assert [row[0] for row in field_rows()] == paths
    assert set(paths) == set(BY_FIELD)
