"""Figures in a page: numbers that were measured or counted, and stand outside of what a script writes.

Numbers in words, and numbers without a unit or a noun behind them, are not looked for.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from make_figures import BLOCK

N = r"(?<![\w.,/+=-])(?!20\d\d\b)(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?"
"""A number that is not part of a version, a date, a fraction or a word."""
UNITS_OF_TIME = r"(?:ms|s|µs|h|min|(?:milli|micro|nano)?seconds?|minutes?|hours?|days?)"
UNITS_OF_MEMORY = r"(?:[kKMGT]i?B|(?:kilo|mega|giga|tera)bytes?)"
COUNTED = (
    r"(?:tests?|recipes|scripts|commands?(?: lines)?|configurations|verdicts|cases|inputs|comparisons|objectives"
    r"|releases|settings|checkouts|disagreements|differences|counterexamples|policies|figures|findings|controls"
    r"|lines of code)"
)
KINDS = {
    "a share": rf"{N} ?(?:%|percent\b|per cent\b)",
    "a factor": rf"{N}(?: to {N})? times\b|{N} ?x (?:faster|slower|smaller|larger)",
    "a duration": rf"{N} ?{UNITS_OF_TIME}\b(?!\^)",
    "memory": rf"{N} ?{UNITS_OF_MEMORY}\b",
    "a rate": rf"{N} [\w-]+(?:/s\b| (?:per|a) (?:second|core)\b)",
    "an error": r"(?<![\w.])\d(?:\.\d+)?e[-+]\d+",
    "a ratio": r"(?<![\w.])0\.\d+ (?:of (?:the|its|their|a|native)\b|\(0\.\d+ to)|\bratios? (?:is|are|of) \d\.\d+\b",
    "a part of a number": rf"{N} (?:of|out of) (?:the |all )?\d[\d,]*\b(?!\.)",
    "a count": rf"{N} (?:[\w-]+ ){{0,2}}?{COUNTED}\b",
}
"""What a figure looks like."""
BOUND = r"\b(?:bar|bound|limit|tolerance)s?(?: is| are)?(?: of|:)? "
"""A number that code or a test enforces is named: a bar of 1e-5, the limit of 1 MiB."""
NO_FIGURES = {
    "code": r"`[^`\n]+`",
    "a link's address": r"\]\([^)\s]*\)",
    "a bar, bound, limit or tolerance": rf"{BOUND}{N}(?:e-\d+)?(?: ?(?:%|{UNITS_OF_TIME}\b|{UNITS_OF_MEMORY}\b))?",
    "a fault that a test plants": rf"\b(?:off by|weighs|weight) {N} %(?: more)?|{N} % (?:larger|more)\b",
    "a bound of a count": rf"\b(?:at most|up to|more than) {N} (?:[\w-]+ ){{0,2}}{COUNTED}",
}
"""Kinds of numbers that are none: settings, versions and formulas are written as code."""
BARS = re.compile(r"^(?:bar|tolerance|limit)$")
"""Heads of a table's columns whose cells are bars."""
WHOLE = re.compile(r"[Ww]ritten by\s+`(?:python )?(\S+\.py)")
"""How a page that a script writes whole says so in its first lines."""


def writer_of(page: str) -> str | None:
    """The script that a page names in its first ten lines as the writer of all of it, or None."""
    found = WHOLE.search("\n".join(page.splitlines()[:10]))
    return None if found is None or BLOCK.search(page) else found[1]


def blank(found: re.Match[str]) -> str:
    """As many blanks, on as many lines."""
    return re.sub(r"[^\n]", " ", found[0])


def without_bars(page: str) -> str:
    """The page without the cells of columns that have bars."""
    lines, columns = page.split("\n"), set[int]()
    for number, line in enumerate(lines):
        if not line.lstrip().startswith("|"):
            columns = set()
            continue
        cells = re.split(r"(?<!\\)\|", line)
        if number == 0 or not lines[number - 1].lstrip().startswith("|"):
            columns = {place for place, cell in enumerate(cells) if BARS.match(cell.strip())}
        lines[number] = "|".join(" " * len(cell) if place in columns else cell for place, cell in enumerate(cells))
    return "\n".join(lines)


def on_lines(pattern: str) -> str:
    """The pattern with any white space, line ends included, in place of its blanks."""
    return pattern.replace(" ?", r"\s*").replace(" ", r"\s+")


def prose(page: str) -> str:
    """A page with blanks in place of blocks, of fenced code and of numbers that are not figures."""
    page = BLOCK.sub(blank, page)
    page = re.sub(r"(?ms)^( *)```.*?^\1```$", blank, page)
    page = without_bars(page)
    for pattern in NO_FIGURES.values():
        page = re.sub(on_lines(pattern), blank, page)
    return page


def figures(page: str) -> Iterator[tuple[int, str, str]]:
    """(line from 1, kind, text) of every figure of a page that no script writes, in the order of its lines."""
    if writer_of(page) is not None:
        return
    text, found = prose(page), {}
    for kind, pattern in KINDS.items():
        for match in re.finditer(on_lines(pattern), text):
            found.setdefault(match.start(), (text.count("\n", 0, match.start()) + 1, kind, " ".join(match[0].split())))
    yield from (found[place] for place in sorted(found))
