"""The uses of an object that a program builds: which of its attributes the program asks for, as its text says.

The text alone is asked, so that a part of the program that could not be evaluated counts, too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache

MOST_STEPS = 50
"""Names and functions that an object is followed through."""

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class Handed(Exception):
    """The object gets to where its uses are not seen: an argument, an attribute, a container, another module."""


class Uses:
    """The uses of the objects of one file. main: whether it is the program itself, whose names no other file has."""

    def __init__(self, tree: ast.Module, *, main: bool) -> None:
        self._tree, self._main = tree, main
        self._parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}

    def of(self, made: ast.expr) -> frozenset[str] | None:
        """The attributes that are asked of the object which an expression makes; None where it is handed on."""
        try:
            return frozenset(self._of(made, set()))
        except (Handed, RecursionError):
            return None

    def _of(self, node: ast.AST, seen: set[ast.AST]) -> Iterator[str]:
        if node in seen:
            return
        seen.add(node)
        if len(seen) > MOST_STEPS:
            raise Handed
        parent = self._parents.get(node)
        if isinstance(parent, ast.Attribute):
            yield parent.attr
        elif isinstance(parent, ast.IfExp) and node is not parent.test:
            yield from self._of(parent, seen)
        elif isinstance(parent, (ast.Assign, ast.AnnAssign)):
            if isinstance(self._parents.get(parent), ast.ClassDef):
                raise Handed
            targets = parent.targets if isinstance(parent, ast.Assign) else [parent.target]
            for target in targets:
                if not isinstance(target, ast.Name):
                    raise Handed
                yield from self._named(target, seen)
        elif isinstance(parent, ast.Return):
            yield from self._returned(parent, seen)
        elif not isinstance(parent, (ast.Expr, ast.Delete)) and not _only_asked(parent):
            raise Handed

    def _named(self, target: ast.Name, seen: set[ast.AST]) -> Iterator[str]:
        """The uses of a name, in whatever part of the file it is."""
        if not self._main and self._function_of(target) is None:
            raise Handed
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Name) and node.id == target.id and not isinstance(node.ctx, ast.Store):
                yield from self._of(node, seen)
            elif isinstance(node, (ast.Global, ast.Nonlocal)) and target.id in node.names and not self._main:
                raise Handed

    def _returned(self, node: ast.Return, seen: set[ast.AST]) -> Iterator[str]:
        """The uses of what a function of the file returns."""
        function = self._function_of(node)
        if function is None or not self._main or function.decorator_list:
            raise Handed
        if not isinstance(self._parents.get(function), ast.Module):
            raise Handed  # a method, or a function within one
        names = [one for one in ast.walk(self._tree) if isinstance(one, ast.Name) and one.id == function.name]
        for name in names:
            call = self._parents.get(name)
            if not isinstance(call, ast.Call) or call.func is not name:
                raise Handed
            yield from self._of(call, seen)
        if not names:
            raise Handed  # it is called from elsewhere

    def _function_of(self, node: ast.AST) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
        found = self._parents.get(node)
        while found is not None and not isinstance(found, _FUNCTIONS):
            found = self._parents.get(found)
        return found


def _only_asked(parent: ast.AST | None) -> bool:
    """Whether an expression is only held against another: `trainer is None`, `if trainer`."""
    return isinstance(parent, (ast.Compare, ast.If, ast.IfExp)) or (
        isinstance(parent, ast.UnaryOp) and isinstance(parent.op, ast.Not)
    )


@lru_cache(maxsize=64)
def uses_in(tree: ast.Module, main: bool) -> Uses:
    """The uses of a file, for all objects that are asked about."""
    return Uses(tree, main=main)
