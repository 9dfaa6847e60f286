"""docs/trl.md and the runtime agree; run as a script, this file rewrites the page's table of refusals."""

from __future__ import annotations

from pathlib import Path

from batchbridge_trl.refusals import REFUSALS

PAGE = Path(__file__).parents[4] / "docs" / "trl.md"
HEAD = "| name | why | can be allowed |\n|---|---|---|\n"


def table() -> str:
    rows = [f"| {each.name} | {each.reason} | {'yes' if each.allowable else 'no'} |" for each in REFUSALS]
    return HEAD + "\n".join(rows) + "\n"


def test_the_page_lists_every_refusal() -> None:
    assert table() in PAGE.read_text(encoding="utf-8")


if __name__ == "__main__":
    before, _, after = PAGE.read_text(encoding="utf-8").partition(HEAD)
    PAGE.write_text(before + table() + "\n" + after.partition("\n\n")[2], encoding="utf-8")
