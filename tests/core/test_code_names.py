"""A function's name is the one that it was written under, on every Python."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

from batchbridge.kit import code_names, proven

MODULES = (code_names, proven, functools, ast)


def as_another(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def around(*arguments: Any) -> Any:
        return function(*arguments)

    return around


class Home:
    """Functions of every kind."""

    @staticmethod
    def plain() -> None: ...

    @as_another
    def decorated(self) -> None: ...

    def outer(self) -> Callable[[], None]:
        if self:

            def inner() -> None: ...

        return inner


def name(function: Any) -> str:
    return code_names.written_name(function.__code__)


def test_a_name_has_the_classes_and_functions_around_it() -> None:
    assert name(Home.plain) == "Home.plain"
    assert name(Home().outer()) == "Home.outer.<locals>.inner"


def test_a_decorator_that_takes_the_name_over_is_told_from_the_function() -> None:
    assert Home.decorated.__qualname__ == "Home.decorated"
    assert name(Home.decorated) == "as_another.<locals>.around"
    assert name(Home.decorated.__wrapped__) == "Home.decorated"  # type: ignore[attr-defined]


def test_of_a_file_that_is_gone_a_method_has_no_whole_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that it is nobody's recorded method."""
    scope: dict[str, Any] = {}
    exec(compile("class A:\n    def step(self): ...\n", "gone.py", "exec"), scope)
    monkeypatch.setattr("sys.version_info", (3, 10))
    assert name(scope["A"].step) == "step"


def codes(code: CodeType) -> Iterator[CodeType]:
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield one
            yield from codes(one)


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_the_text_of_a_file_says_what_newer_pythons_keep(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    file = str(module.__file__)
    whole = compile(Path(file).read_text(encoding="utf-8"), file, "exec")
    made = [one for one in codes(whole) if not one.co_name.startswith("<") and hasattr(one, "co_qualname")]
    defined = {node.lineno for node in ast.walk(ast.parse(Path(file).read_text(encoding="utf-8"))) if is_class(node)}
    functions = [one for one in made if one.co_firstlineno not in defined]
    if not functions:
        pytest.skip("this Python keeps no such names")
    kept = [one.co_qualname for one in functions]  # type: ignore[attr-defined]
    monkeypatch.setattr("sys.version_info", (3, 10))
    assert [code_names.written_name(one) for one in functions] == kept


def is_class(node: ast.AST) -> bool:
    return isinstance(node, ast.ClassDef)
