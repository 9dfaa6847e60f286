"""Bash's grammar in a browser: tree-sitter's own WebAssembly build, behind those names of its Python binding that
`bashread` uses. The page's worker installs it; nothing else does."""

from __future__ import annotations

import importlib.machinery
import json
import sys
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import accumulate
from types import ModuleType
from typing import Any

from batchbridge.playground.pasted_text import kind_of_text

ParserInBrowser = Callable[[str], str]
"""The syntax tree of a text, as JSON: type, from, to (in UTF-16), rows and columns, flags, fields with children."""
_NAMED, _MISSING, _ERROR = 1, 2, 4


def has_shell(question: str) -> bool:
    """Whether a question (JSON) has a text that only bash's grammar reads."""
    asked = json.loads(question)
    texts = (asked.get(key) for key in ("text", "other"))
    return any(isinstance(text, str) and kind_of_text(text) == "shell" for text in texts)


class BrowserNode:
    """A node of a syntax tree, as `tree_sitter.Node`. Places are counted in bytes."""

    def __init__(self, told: Sequence[Any], places: Sequence[int], source: bytes) -> None:
        self.type, start, end, *points, flags, children = told
        self.start_byte, self.end_byte = places[start], places[end]
        self.start_point, self.end_point = tuple(points[:2]), tuple(points[2:])
        self.is_named, self.is_missing = bool(flags & _NAMED), bool(flags & _MISSING)
        self.has_error = bool(flags & _ERROR)
        self._fields = [name for name, _ in children]
        self.children = [BrowserNode(child, places, source) for _, child in children]
        self._source = source

    @cached_property
    def text(self) -> bytes:
        """The part of the source that it spans."""
        return self._source[self.start_byte : self.end_byte]

    def child_by_field_name(self, name: str) -> BrowserNode | None:
        """The first child of a field."""
        return next((child for field, child in zip(self._fields, self.children, strict=True) if field == name), None)


class BrowserTree:
    """A syntax tree, as `tree_sitter.Tree`."""

    def __init__(self, root: BrowserNode) -> None:
        self.root_node = root


class BrowserParser:
    """A parser, as `tree_sitter.Parser`; `Language` is a name for what the browser has already."""

    parse_text: ParserInBrowser

    def __init__(self, language: object) -> None:
        pass

    def parse(self, source: bytes) -> BrowserTree:
        """The tree of a text that `bashread` has made free of what is above U+00FF."""
        text = source.decode()
        places = [0, *accumulate(len(character.encode()) for character in text)]
        return BrowserTree(BrowserNode(json.loads(type(self).parse_text(text)), places, source))


def install(parse: ParserInBrowser) -> None:
    """Puts the browser's grammar where `bashread` looks for tree-sitter."""
    BrowserParser.parse_text = staticmethod(parse)
    binding, grammar = ModuleType("tree_sitter"), ModuleType("tree_sitter_bash")
    for module in (binding, grammar):
        module.__spec__ = importlib.machinery.ModuleSpec(module.__name__, None)
        sys.modules[module.__name__] = module
    vars(binding).update(Parser=BrowserParser, Language=lambda grammar: grammar, Node=BrowserNode)
    vars(grammar).update(language=lambda: None)
