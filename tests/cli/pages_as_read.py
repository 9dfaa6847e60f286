"""A page as a reader without a browser sees it: what is wrong with its tree, and what it says."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"br", "wbr", "meta", "link", "hr", "img", "input"}
LANDMARKS = ("header", "nav", "main", "footer")
NAMES = {"a", "button", "summary", "th", "h1", "h2", "h3", "title"}
"""Elements that need words."""


@dataclass
class Element:
    """An element: its name, attributes, children, and text in order."""

    name: str
    attributes: dict[str, str]
    parts: list[Element | str] = field(default_factory=list)

    @property
    def children(self) -> list[Element]:
        return [part for part in self.parts if isinstance(part, Element)]

    @property
    def text(self) -> str:
        return " ".join("".join(part if isinstance(part, str) else f"{part.text} " for part in self.parts).split())

    def all(self, *names: str) -> Iterator[Element]:
        for child in self.children:
            if not names or child.name in names:
                yield child
            yield from child.all(*names)


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.root = Element("document", {})
        self.open = [self.root]
        self.wrong: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if len({name for name, _ in attrs}) != len(attrs):
            self.wrong.append(f"<{tag}> has an attribute twice")
        made = Element(tag, {name: value or "" for name, value in attrs})
        self.open[-1].parts.append(made)
        if tag not in VOID:
            self.open.append(made)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        if self.open[-1].name != tag:
            self.wrong.append(f"</{tag}> closes <{self.open[-1].name}>")
        else:
            self.open.pop()

    def handle_data(self, data: str) -> None:
        self.open[-1].parts.append(data)

    def handle_comment(self, data: str) -> None:
        self.wrong.append(f"a comment: {data[:40]}")


def read(page: str) -> Element:
    """The page's tree."""
    reader = _Reader()
    reader.feed(page)
    reader.close()
    return reader.root


def faults(page: str) -> list[str]:
    """What is wrong with a page: its tree, ids, headings, landmarks, names, and whatever could load or run."""
    reader = _Reader()
    reader.feed(page)
    reader.close()
    found = [*reader.wrong, *(f"<{element.name}> is never closed" for element in reader.open[1:])]
    elements = list(reader.root.all())
    ids = Counter(element.attributes["id"] for element in elements if "id" in element.attributes)
    found += [f"id {name} twice" for name, count in ids.items() if count > 1]
    for element in elements:
        said = element.attributes
        for name in ("aria-describedby", "aria-labelledby"):
            found += [f"{name}={one} leads nowhere" for one in said.get(name, "").split() if one not in ids]
        if element.name == "a" and said.get("href", "").lstrip("#") not in ids:
            found.append(f"a link to {said.get('href')}")
        found += [f"{name} of <{element.name}>" for name in said if name.startswith("on") or name in ("style", "src")]
        if element.name in ("script", "iframe", "img", "object", "embed", "link", "form", "base", "image", "use"):
            found.append(f"<{element.name}>")
        if element.name in NAMES and not element.text:
            found.append(f"<{element.name}> without words")
        if element.name == "svg":
            children = element.children
            named = bool(children) and children[0].name == "title" and bool(children[0].text)
            if said.get("role") != "img" or not named:
                found.append("a picture without a name")
        if element.name == "th" and "scope" not in said:
            found.append(f"a header cell of nothing: {element.text}")
    levels = [int(element.name[1]) for element in elements if element.name in ("h1", "h2", "h3", "h4")]
    if levels.count(1) != 1:
        found.append(f"{levels.count(1)} h1")
    found += [f"h{there} after h{here}" for here, there in itertools.pairwise(levels) if there > here + 1]
    for name in LANDMARKS:
        if not any(element.name == name for element in elements):
            found.append(f"no {name}")
    (html,) = reader.root.all("html")
    if not html.attributes.get("lang"):
        found.append("no language")
    return found
