"""Operations on plain values, as Python does them: operators, functions that are known, and methods of texts. Each is
bounded: no setting is a text of megabytes or a power of a thousand."""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import Any

from pyread.values import LONGEST_TEXT, MOST_ITEMS, Undecided, bounded, named, plain, text_of

_BINARY: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.BitOr: operator.or_,
    ast.BitAnd: operator.and_,
}
_COMPARED: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda left, right: left in right,
    ast.NotIn: lambda left, right: left not in right,
}
_UNARY: Mapping[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}
FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    **{kind.__name__: kind for kind in (int, float, str, bool, list, tuple, set, dict)},
    "len": len,
    "min": min,
    "max": max,
    "round": round,
    "abs": abs,
    "sum": sum,
    "sorted": sorted,
    "any": any,
    "all": all,
    "range": range,
    "enumerate": enumerate,
    "zip": zip,
    "reversed": reversed,
    "math.ceil": math.ceil,
    "math.floor": math.floor,
    "math.prod": math.prod,
    "math.sqrt": math.sqrt,
    "pathlib.Path": str,
    "os.fspath": str,
    "os.path.expanduser": str,
    "os.path.abspath": str,
    "print": lambda *_: None,
}
"""Functions that are known; they are called with plain values only."""
TEXT_METHODS = frozenset(
    {
        *("lower", "upper", "strip", "lstrip", "rstrip", "replace", "split", "rsplit", "startswith", "endswith"),
        *("removeprefix", "removesuffix", "join", "title", "format"),
    }
)
"""Methods of a text that are known."""
MAPPING_METHODS = frozenset({"get", "keys", "values", "items", "copy", "pop", "setdefault"})
"""Methods of a mapping that are known, beside `update`."""
LONGEST_FORM = 8
"""Characters of a format specification; a longer one is not a setting's."""
_WIDE = re.compile(rf":[^}}]{{{LONGEST_FORM + 1},}}")


def binary(node: ast.BinOp, left: Any, right: Any) -> Any:
    """The value of `left OP right`; a list or mapping may hold unknown values. Raises `Undecided`."""
    act = _BINARY.get(type(node.op))
    if act is operator.truediv and isinstance(left, str) and isinstance(right, str):
        return str(PurePosixPath(left, right))
    if act is operator.or_ and isinstance(left, dict) and isinstance(right, dict):
        return {**left, **right}
    if act is operator.add and isinstance(left, list) and isinstance(right, list):
        return left + right
    left, right = plain(left), plain(right)
    if act is operator.pow and not (isinstance(right, (int, float)) and abs(right) < 1_000):
        act = None
    if act is operator.mul and isinstance(left, (str, list, tuple)) and len(left) * right > MOST_ITEMS:
        act = None
    if act is operator.mod and isinstance(left, str):
        act = None
    if act is None:
        raise Undecided(named(text_of(node)))
    return act(left, right)


def negated(node: ast.UnaryOp, value: Any) -> Any:
    """The value of a sign before a plain value. Raises `Undecided`."""
    act = _UNARY.get(type(node.op))
    if act is None:
        raise Undecided(named(text_of(node)))
    return act(value)


def compares(op: ast.cmpop, left: Any, right: Any) -> bool:
    """Whether a comparison holds; a container that is searched may hold unknown values. Raises `Undecided`."""
    searched = isinstance(op, (ast.In, ast.NotIn)) and isinstance(right, (dict, list, tuple, set))
    return _COMPARED[type(op)](plain(left), right if searched else plain(right))


def called(name: str, positional: list[Any], keywords: dict[str, Any]) -> Any:
    """The value of a call of one of `FUNCTIONS`. Raises `Undecided`, and what the function raises."""
    if name in ("list", "tuple", "dict", "len", "enumerate", "zip", "reversed"):  # which may hold unknown values
        return _listed(FUNCTIONS[name](*positional, **keywords))
    return _listed(FUNCTIONS[name](*plain(positional), **plain(keywords)))


def called_on_text(node: ast.Call, text: str, method: str, positional: list[Any], keywords: dict[str, Any]) -> Any:
    """The value of a method of a text. Raises `Undecided`."""
    wide = len(text) > MOST_ITEMS or (method == "format" and _WIDE.search(text))
    if wide or (method == "replace" and len(text) * len(str(positional[-1])) > LONGEST_TEXT):
        raise Undecided(named(text_of(node)))
    return getattr(text, method)(*plain(positional), **plain(keywords))


def _listed(value: Any) -> Any:
    """`value`, or the list of what an iterator gives."""
    if isinstance(value, range):
        return list(bounded(value[:10_001])) if len(value) else []
    return list(value) if isinstance(value, (enumerate, zip, reversed)) else value
