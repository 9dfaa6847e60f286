"""The names under which functions and classes were written, whatever calls them since. Standard library only."""

from __future__ import annotations

import ast
import linecache
import sys
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType


def written_name(code: CodeType) -> str:
    """The dotted name of a function in its file, such as `Trainer.step` or `make.<locals>.inner`.

    Python 3.10 keeps it in no code: it is read off the file's text there. Where that is gone, or is another one, the
    answer is the last part of the name, which is nobody's but a plain function's.
    """
    if sys.version_info >= (3, 11):
        return code.co_qualname
    return _names(code.co_filename).get((code.co_firstlineno, code.co_name), code.co_name)


def has_base(thing: object, module: str, name: str) -> bool:
    """Whether an object is of the class `name` of `module`, or of one that is derived from it; nothing is imported."""
    return any((base.__module__, base.__name__) == (module, name) for base in type(thing).__mro__)


@lru_cache(maxsize=256)
def _names(file: str) -> dict[tuple[int, str], str]:
    """(first line, name) -> dotted name, of every function of a file; a function begins with its decorators."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    return dict(_functions(tree, ""))


def _functions(parent: ast.AST, before: str) -> Iterator[tuple[tuple[int, str], str]]:
    for node in ast.iter_child_nodes(parent):
        inside = before
        if isinstance(node, ast.ClassDef):
            inside = f"{before}{node.name}."
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            first = min(line.lineno for line in (node, *node.decorator_list))
            yield (first, node.name), f"{before}{node.name}"
            inside = f"{before}{node.name}.<locals>."
        yield from _functions(node, inside)
