"""The commands of a script as they are written, each with the conditions that it stands under, whether or not it runs.

For a person who is told that nothing runs: what would, and what keeps it from running. Nothing is expanded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from bashread.syntax import WORDS, clauses, parse
from bashread.values import NotBash

if TYPE_CHECKING:
    from tree_sitter import Node

MAX_DEPTH = 200
"""Deepest nesting of nodes that is looked into."""


class WrittenCommand(NamedTuple):
    """A command of a script: its words in the script's own spelling, without the quotes around them, its line, and the
    conditions, outermost first (`if [ -z "$MODEL" ]`, `unless [ -d data ]`)."""

    words: tuple[str, ...]
    line: int
    conditions: tuple[str, ...]


def written_commands(text: str) -> Iterator[WrittenCommand]:
    """Every command of a script, in the order of their places, but for those of whose output it makes words; nothing
    where the text is not bash."""
    source, root = parse(text.encode("utf-8", "replace"))
    yield from _commands(root, source, (), 0)


def _commands(node: Node, source: bytes, under: tuple[str, ...], depth: int) -> Iterator[WrittenCommand]:
    if depth > MAX_DEPTH or node.type in ("command_substitution", "process_substitution"):
        return
    if node.type == "command":
        parts = [child for child in node.children if child.type == "command_name" or child.type in WORDS]
        words = (_raw(child, source).strip("\"'") for child in parts)
        yield WrittenCommand(tuple(words), node.start_point[0] + 1, under)
        return
    for child, further in _below(node, source):
        yield from _commands(child, source, (*under, further) if further else under, depth + 1)


def _below(node: Node, source: bytes) -> Iterator[tuple[Node, str]]:
    """The nodes inside a node, each with the condition that this node puts it under; empty: none."""
    if node.type in ("if_statement", "elif_clause"):
        try:
            condition, body, rest = clauses(node)
        except NotBash:
            return
        said = " ".join(_raw(one, source) for one in condition if one.is_named)
        yield from ((child, f"if {said}") for child in body)
        yield from ((child, f"unless {said}") for child in rest)
    elif node.type == "list" and len(named := [child for child in node.children if child.is_named]) == 2:
        word = "if" if any(child.type == "&&" for child in node.children) else "unless"
        yield named[0], ""
        yield named[1], f"{word} {_raw(named[0], source)}"
    elif node.type == "case_statement":
        subject = node.child_by_field_name("value")
        for item in (child for child in node.children if child.type == "case_item"):
            shape = item.child_by_field_name("value")
            if subject is not None and shape is not None:
                yield from ((c, f"if {_raw(subject, source)} is {_raw(shape, source)}") for c in item.children)
    else:
        yield from ((child, "") for child in node.children)


def _raw(node: Node, source: bytes) -> str:
    return " ".join(source[node.start_byte : node.end_byte].decode("utf-8", "replace").replace("\\\n", " ").split())
