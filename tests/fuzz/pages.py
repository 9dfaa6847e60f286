"""Pages and notebook fragments of readings whose every text is hostile: none may become a part of the page."""

from __future__ import annotations

import importlib.util
import random
import re
from html.parser import HTMLParser
from typing import Any

import ledgers
import mutation

from batchbridge.comparing.differences import compare
from batchbridge.contract.reading import Behaviour, Defect, Provenance, Reading
from batchbridge.meaning.findings import Finding, Fix, Where
from batchbridge.meaning.spec import walk

INSTALLED = all(importlib.util.find_spec(name) is not None for name in ("jinja2", "vl_convert"))
"""Whether pages can be made: the extra `html`."""
PIECES = (
    *("<script>alert(1)</script>", "</script>", "</style>", "</title>", "<img src=x onerror=alert(1)>", "<!--", "-->"),
    *(
        '" onmouseover="x',
        "' onfocus='x",
        "<svg onload=x>",
        "&lt;",
        "&#60;b&#62;",
        "<![CDATA[",
        "]]>",
        "<?php",
        "&amp;",
    ),
    *(
        "{{ 7 * 7 }}",
        "{% include 'x' %}",
        "{#",
        "#}",
        "javascript:x",
        "<a href=//x>",
        "\x00",
        "\x1b[2J",
        "\u202e",
        "<b",
    ),
)
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
VOID = {"br", "wbr", "meta"}
FORBIDDEN = {"script", "img", "iframe", "object", "embed", "link", "base", "form", "input", "b", "use", "image"}
ATTRIBUTES = ("src", "srcset", "style", "action", "xlink:href")


class WrongPage(AssertionError):
    """A text that became a part of a page."""


class _Tags(HTMLParser):
    """Raises where the tree is not a tree, or has what our templates do not write."""

    def __init__(self, cells: bool) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.allowed = {"style"} if cells else set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in FORBIDDEN:
            raise WrongPage(f"<{tag}>")
        for name, value in attrs:
            if name.startswith("on") or (name in ATTRIBUTES and name not in self.allowed):
                raise WrongPage(f"{name} of <{tag}>")
            if name == "href" and not (value or "").startswith("#"):
                raise WrongPage(f"a link to {value}")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            raise WrongPage(f"</{tag}> closes nothing")

    def handle_comment(self, data: str) -> None:
        raise WrongPage(f"a comment: {data[:40]!r}")

    def handle_pi(self, data: str) -> None:
        raise WrongPage(f"an instruction: {data[:40]!r}")


def check(page: str, *, cells: bool = False) -> None:
    """Raises `WrongPage`. cells: a notebook's fragment, whose cells have a style."""
    if control := CONTROL.search(page):
        raise WrongPage(f"control character {control.group()!r}")
    page.encode("utf-8")
    tags = _Tags(cells)
    tags.feed(page)
    tags.close()
    if tags.open:
        raise WrongPage(f"<{tags.open[-1]}> is never closed")


def make(rng: random.Random) -> tuple[Reading, str]:
    """A reading all of whose texts are hostile, and a file's name."""

    def text() -> str:
        parts = [rng.choice(PIECES) if rng.random() < 0.7 else mutation.piece(rng) for _ in range(rng.randint(1, 4))]
        return "".join(parts)[: 1 << 12]

    where = (Where(text(), text(), text(), rng.choice((None, 3))), Where(text(), None))
    finding = Finding(text(), rng.choice(("error", "warning")), "never", text(), where, (Fix(text()),), text(), text())
    spec = ledgers.SPEC.replace(open_terms=(text(), text()))
    path = rng.choice([path for path, _, _ in walk(spec)])
    kind = rng.choice(("file", "argument", "default", "derived"))
    origin = Provenance((text(), text()), text(), kind, text(), rng.choice((None, text())), 3)
    behaviour = Behaviour(
        order=text(),
        membership=text(),
        denominator_scope="rank",
        denominator_formula=text(),
        lr_tick=text(),
        resume=text(),
        defects=(Defect(code=text(), summary=text(), source=text()),),
        undecided=(text(),),
        source=text(),
    )
    reading = Reading(
        framework=text(),
        framework_version=text(),
        spec=spec,
        provenance={path: origin},
        behaviour=behaviour,
        findings=(finding,),
        dataset_size=rng.choice((None, 64)),
    )
    return reading, text()


def act(made: tuple[Reading, str]) -> Any:
    """Every form of HTML that there is of it."""
    reading, name = made
    other = Reading(framework="trl", framework_version="1.16.0", spec=ledgers.SPEC)
    found = compare(reading, other)
    for one in (reading, reading.spec, found):
        check(one._repr_html_(), cells=True)
    if INSTALLED:
        from batchbridge.render import html

        check(html.explanation(name, reading))
        check(html.comparison((name, name), found))
