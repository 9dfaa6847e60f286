"""The output of tree-sitter's bash grammar, where it is not what one would expect."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import re
from collections.abc import Callable
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


def parse(source: bytes) -> Node:
    """The root of the syntax tree of a script (UTF-8); parts that are no bash are ERROR nodes."""
    import tree_sitter

    language = tree_sitter.Language(_grammar())
    return tree_sitter.Parser(language).parse(_OUTSIDE_ASCII.sub(_stand_in, source)).root_node


def _grammar() -> object:
    """Bash's grammar. Its extension is loaded alone where it stands where it always did: the package around it imports
    archives, temporary files and random numbers, for what nobody here asks it."""
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

    The grammar of tree-sitter-bash 0.25.1 hands characters to C's `isdigit`, whose table ends at 255 (it reads memory
    beyond it, and the process may die), and takes Unicode's other blanks for blanks.
    """
    signs, odd = divmod(len(found[0]), 2)
    return "\N{SECTION SIGN}".encode() * signs + b"_" * odd


def beyond(redirect: Node) -> list[Node]:
    """The grammar counts every word after `> file` to the redirection; only the first is its destination."""
    words = [child for child in redirect.children if child.type in WORDS and child.type != "file_descriptor"]
    first = words[:1]
    while len(words) > len(first) and words[len(first)].start_byte == first[-1].end_byte:
        first.append(words[len(first)])
    return words[len(first) :]


def clauses(node: Node) -> tuple[list[Node], list[Node], list[Node]]:
    """(condition, body, elif and else clauses) of an `if` or `elif`."""
    then = next((child for child in node.children if child.type == "then"), None)
    if then is None:
        raise NotBash("an if is not read")
    rest = [child for child in node.children if child.type in ("elif_clause", "else_clause")]
    condition = [child for child in node.children if child.end_byte <= then.start_byte]
    body = [child for child in node.children if child.start_byte >= then.end_byte and child not in rest]
    return condition, body, rest


def assigned(node: Node, raw: Callable[[Node], str]) -> set[str]:
    """Every variable that something inside `node` sets."""
    found, left = set(), [node]
    while left:
        one = left.pop()
        if one.type == "variable_assignment" and (name := one.child_by_field_name("name")) is not None:
            found.add(raw(name).partition("[")[0])
        left += one.children
    return found
