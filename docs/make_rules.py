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

from batchbridge.render.findings import KINDS, PHASES
from batchbridge.render.rule import page as shown
from batchbridge.render.rule import whose
from batchbridge.rule_page import EVERY_FRAMEWORK, RulePage, known_codes, known_rules, rule

FOLDER = Path(__file__).with_name("rules")
OURS = ("trl", "verl", "easyr1", "openrlhf", "open_instruct")
"""Other frameworks' rules are their plugins' to show."""
ORDER = (EVERY_FRAMEWORK, *OURS)
START = """\
# Rules

One page for each rule: `batchbridge rule CODE` prints it. Rules of every framework come first, then those of each one,
errors before warnings and notes. The pages are built from the adapters' tables, and a test
executes every configuration and its fixes.
"""


def pages() -> dict[str, str]:
    """Name of each file to its text."""
    owners = known_rules()
    known = [page for code in known_codes() if owners.get(code, OURS[0]) in OURS and (page := rule(code)) is not None]
    return {"index.md": "\n".join(index(known)) + "\n"} | {f"{page.code}.md": escaped(shown(page)) for page in known}


def index(known: list[RulePage]) -> Iterator[str]:
    """A table for each framework, the most severe rules first."""
    yield START
    grouped = sorted(known, key=lambda page: (ORDER.index(whose(page)), KINDS.index(page.kind), page.code))
    for framework, group in groupby(grouped, key=whose):
        yield from (f"## {framework.capitalize()}" if framework == EVERY_FRAMEWORK else f"## {framework}", "")
        yield from ("| code | what is wrong | severity | noticed |", "|---|---|---|---|")
        for page in group:
            noticed = "" if page.phase is None else "never" if page.phase == "never" else PHASES[page.phase]
            yield f"| [{page.code}]({page.code}.md) | {marks(page.title)} | {page.kind} | {noticed} |"
        yield ""


def escaped(text: str) -> str:
    """A page as Markdown: outside of blocks of code no text is a mark."""
    parts = text.split("```")
    return "```".join(part if place % 2 else marks(part, table=False) for place, part in enumerate(parts))


_MARKS = re.compile(r"[*`\[]|(?<![^\W_])_+|_+(?![^\W_])")
"""What Markdown would take for a mark; of underscores those at a word's ends, every one of `__post_init__`."""


def marks(text: str, *, table: bool = True) -> str:
    """A text without marks."""
    text = re.sub(_MARKS, lambda found: "".join(f"\\{mark}" for mark in found[0]), text.replace("<", "&lt;"))
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
