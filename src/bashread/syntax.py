"""The output of tree-sitter's bash grammar, where it is not what one would expect."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from bashread.values import NotBash

if TYPE_CHECKING:
    from tree_sitter import Node

WORDS = frozenset(
    {
        *("word", "string", "raw_string", "ansi_c_string", "translated_string", "concatenation", "number"),
        *("simple_expansion", "expansion", "command_substitution", "arithmetic_expansion", "brace_expression"),
        *("process_substitution", "extglob_pattern", "regex", "array", "$", "test_operator", "==", "=", "!="),
        *("variable_name", "special_variable_name", "file_descriptor", "=~"),
    }
)
"""The kinds of nodes that are a word of a command, or a part of one."""


def parse(source: bytes) -> tuple[bytes, Node]:
    """A script (UTF-8), and the root of its syntax tree; parts that are not bash are ERROR nodes.

    The grammar takes `a=1 b=2` and the line below for one command, as it does `a | b | c` and `d && e`: a semicolon is
    put between them.
    """
    import tree_sitter

    parser = tree_sitter.Parser(tree_sitter.Language(_grammar()))
    for _ in range(_ROUNDS):
        root = parser.parse(_OUTSIDE_ASCII.sub(_stand_in, source)).root_node
        ends = [0, *sorted(_ends_inside(root, source)), len(source)]
        if len(ends) == 2:
            break
        source = b";".join(source[start:end] for start, end in pairwise(ends))
    return source, root


_ROUNDS = 8
_NO_PARTS = ("comment", "file_redirect")


def _ends_inside(root: Node, source: bytes) -> Iterator[int]:
    """The places inside commands where a line, and so the command, ends."""
    left = [root]
    while left:
        node = left.pop()
        if node.start_point[0] < node.end_point[0]:
            left += node.children
            parts = [one for one in node.children if node.type == "command" and one.type not in _NO_PARTS]
            for part, after in pairwise(parts):
                if b"\n" in source[part.end_byte : after.start_byte].replace(b"\\\n", b""):
                    yield part.end_byte


def _grammar() -> object:
    """Bash's grammar. Its extension is loaded alone where it stands where it always did: the package around it imports
    much that nobody here asks for."""
    package = importlib.util.find_spec("tree_sitter_bash")
    folders = None if package is None else package.submodule_search_locations
    found = importlib.machinery.PathFinder.find_spec("tree_sitter_bash._binding", folders)
    if folders is None or found is None or found.loader is None:
        import tree_sitter_bash

        return tree_sitter_bash.language()
    binding = importlib.util.module_from_spec(found)
    found.loader.exec_module(binding)
    return binding.language()


_OUTSIDE_ASCII = re.compile(rb"[\x80-\xff]+")


def _stand_in(found: re.Match[bytes]) -> bytes:
    """A stand-in of as many bytes of section signs, which are in a word as every character outside ASCII is to bash.

    The grammar of tree-sitter-bash 0.25.1 asks C's `isdigit`, whose table ends at 255 (beyond it the process may die),
    and takes Unicode's other blanks for blanks.
    """
    signs, odd = divmod(len(found[0]), 2)
    return "\N{SECTION SIGN}".encode() * signs + b"_" * odd


def assignments(nodes: Sequence[Node]) -> tuple[list[tuple[Node, int]], list[Node]]:
    """The assignments among `nodes`, each with its value's end (the grammar takes the end of some for words), and the
    other nodes."""
    found: list[tuple[Node, int]] = []
    rest: list[Node] = []
    for node in nodes:
        if node.type == "variable_assignment":
            found.append((node, node.end_byte))
        elif found and node.start_byte == found[-1][1] and node.type in (*WORDS, "command_name"):
            found[-1] = (found[-1][0], node.end_byte)
        else:
            rest.append(node)
    return found, rest


def beyond(redirect: Node) -> list[Node]:
    """The grammar counts every word after `> file` to the redirection; only the first is its destination."""
    words = [child for child in redirect.children if child.type in WORDS and child.type != "file_descriptor"]
    pipe = next((child.start_byte for child in redirect.children if piped(child)), redirect.end_byte)
    words = [child for child in words if child.start_byte < pipe]
    first = words[:1]
    while len(words) > len(first) and words[len(first)].start_byte == first[-1].end_byte:
        first.append(words[len(first)])
    return words[len(first) :]


def piped(node: Node) -> bool:
    """Whether a node is the pipe behind `<<EOF 2>&1`, which the grammar does not understand."""
    parent = node.parent
    return node.text == b"|" and parent is not None and parent.type == "file_redirect"


def clauses(node: Node) -> tuple[list[Node], list[Node], list[Node]]:
    """(condition, body, elif and else clauses) of an `if` or `elif`."""
    then = next((child for child in node.children if child.type == "then"), None)
    if then is None:
        raise NotBash("an if is not read")
    rest = [child for child in node.children if child.type in ("elif_clause", "else_clause")]
    condition = [child for child in node.children if child.end_byte <= then.start_byte]
    body = [child for child in node.children if child.start_byte >= then.end_byte and child not in rest]
    return condition, body, rest
