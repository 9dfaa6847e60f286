"""Writes the table of what `wrap` refuses by name, in the page of each framework: `python docs/make_refusals.py`.

The rows are those that `check` and `wrap` ask (`Runtime.refusals` of each adapter).
"""

from __future__ import annotations

import re
from pathlib import Path

from batchbridge.contract import plugins

ROOT = Path(__file__).parents[1]
FRAMEWORKS = ("trl", "verl", "openrlhf", "easyr1", "open_instruct")
MARK = "written by docs/make_refusals.py"


def table(framework: str) -> str:
    """The rows of one framework's refusals as Markdown."""
    rows = plugins.adapters()[framework]._runtime().refusals
    cells = [(one.name, _cell(one.reason), _cell(one.remedy), "yes" if one.allowable else "no") for one in rows]
    head = ["| name | why | way out, where the reason names none | can be allowed |", "|---|---|---|---|"]
    return "\n".join([*head, *(f"| `{name}` | {why} | {way} | {allowed} |" for name, why, way, allowed in cells)])


def _cell(text: str) -> str:
    return re.sub(r"([|<>*_])", r"\\\1", text)


def pages() -> dict[Path, str]:
    """The pages, as they should be."""
    filled = {}
    for framework in FRAMEWORKS:
        page = ROOT / "docs" / f"{framework}.md"
        text, pattern = page.read_text(encoding="utf-8"), rf"(?s)(<!-- {MARK} -->\n).*?(<!-- end -->)"
        if len(re.findall(pattern, text)) != 1:
            raise ValueError(f"{page}: the table's place is missing")
        made = table(framework)
        filled[page] = re.sub(pattern, lambda at, made=made: f"{at[1]}\n{made}\n\n{at[2]}", text)
    return filled


if __name__ == "__main__":
    for page, text in pages().items():
        page.write_text(text, encoding="utf-8")
