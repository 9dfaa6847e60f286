"""Builds the pages of `docs/rules`, one for each rule, from the adapters' tables: `python docs/make_rules.py [FOLDER]`.

They are part of the site and of no commit. A page is what `batchbridge rule CODE` prints. Its configuration is that of
`examples.json` beside the adapter's rules, which `tests/repository/rule_examples.py` takes from the adapters' tests.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from batchbridge.render.rule import page as shown
from batchbridge.rule_page import RulePage, known_codes, known_rules, rule

FOLDER = Path(__file__).with_name("rules")
OURS = ("trl", "verl", "easyr1", "openrlhf", "open_instruct")
"""Other frameworks' rules are their plugins' to show."""
START = """\
# Rules

One page for each rule: `batchbridge rule CODE` prints it. The pages are built from the adapters' tables, and a test
executes every configuration and its fixes.
"""


def pages() -> dict[str, str]:
    """Name of each file to its text."""
    whose = known_rules()
    known = [page for code in known_codes() if whose.get(code, OURS[0]) in OURS and (page := rule(code)) is not None]
    return {"index.md": "\n".join(index(known)) + "\n"} | {f"{page.code}.md": escaped(shown(page)) for page in known}


def index(known: list[RulePage]) -> Iterator[str]:
    """A table for each beginning of codes."""
    yield START
    for beginning, group in groupby(known, key=lambda page: page.code.rpartition("-")[0]):
        yield from (f"## {beginning or 'Every framework'}", "", "| code | an example of it |", "|---|---|")
        for page in group:
            said = page.summary or next((row.native for row in page.rows if isinstance(row.native, str)), "")
            yield f"| [{page.code}]({page.code}.md) | {marks(' '.join(said.split()))} |"
        yield ""


def escaped(text: str) -> str:
    """A page as Markdown: outside of blocks of code no text is a mark."""
    parts = text.split("```")
    return "```".join(part if place % 2 else marks(part, table=False) for place, part in enumerate(parts))


def marks(text: str, *, table: bool = True) -> str:
    """A text without marks."""
    text = re.sub(r"[*`\[]|(?<!\w)_|_(?!\w)", r"\\\g<0>", text.replace("<", "&lt;"))
    return text.replace("|", "\\|") if table else text


def build(folder: Path) -> None:
    """Writes every page into a folder, and removes those of rules that are gone."""
    folder.mkdir(parents=True, exist_ok=True)
    made = pages()
    for file in folder.glob("*.md"):
        if file.name not in made:
            file.unlink()
    for name, text in made.items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    build(Path(*sys.argv[1:]) if sys.argv[1:] else FOLDER)
