"""Settings that Python source declares, by its syntax tree: dataclasses with their defaults, and `add_argument` calls.

Nothing is imported. Only the files that a class's own imports name are read, inside one root. A default that is no
constant is `OPEN`: it is declared, and what it is, only running the code would tell.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from batchbridge.kit.shipped_settings import OPEN as OPEN

MAX_BYTES = 4 << 20
_DEEPEST = 12
_KINDS = {"int": "int", "float": "float", "bool": "bool", "str": "str"}
_LISTS = frozenset({"list", "tuple", "set", "List", "Tuple", "Sequence"})
_GROUPS = frozenset({"dict", "Dict", "Mapping"})


class DeclaredSetting(NamedTuple):
    """One setting. kind: "int", "float", "bool", "str", "list", "dict", "flag" (an option without a value, that is then
    true), "flag_off", or "any". words: how many an option takes, None: any number. choices: empty where there are none.
    annotation: a field's type, as it stands in the code.
    """

    kind: str
    default: Any = None
    optional: bool = False
    words: int | None = 1
    choices: tuple[Any, ...] = ()
    annotation: ast.expr | None = None


# ---- options


def declared_options(file: Path) -> dict[str, DeclaredSetting]:
    """Option to what every `add_argument("--option", ...)` in a file declares of it, also in a loop over constants."""
    found: dict[str, DeclaredSetting] = {}
    tree = parsed(file)
    for node, names in _calls(tree, {}) if tree is not None else ():
        if not isinstance(node.func, ast.Attribute):
            continue
        if node.func.attr == "add_argument":
            for option in node.args:
                name = _constant(option, names)
                if isinstance(name, str) and name.startswith("--"):
                    found[name.removeprefix("--")] = _option(node, names)
        elif node.func.attr == "set_defaults":
            for word in node.keywords:
                if word.arg in found:
                    found[str(word.arg)] = found[str(word.arg)]._replace(default=_constant(word.value, names))
    return found


def _calls(node: ast.AST, names: Mapping[str, Any]) -> Iterator[tuple[ast.Call, Mapping[str, Any]]]:
    """Every call below a node, with the names of the loops over constants around it."""
    if isinstance(node, ast.Call):
        yield node, names
    if isinstance(node, ast.For) and isinstance(node.target, ast.Name):
        values = _constant(node.iter, names)
        if isinstance(values, list | tuple):
            for value in values:
                for one in node.body:
                    yield from _calls(one, {**names, node.target.id: value})
            return
    for child in ast.iter_child_nodes(node):
        yield from _calls(child, names)


def _option(call: ast.Call, names: Mapping[str, Any]) -> DeclaredSetting:
    said = {word.arg: word.value for word in call.keywords if word.arg is not None}
    action = _constant(said["action"], names) if "action" in said else "store"
    if action in ("store_true", "store_false"):
        off = action == "store_false"
        return DeclaredSetting(
            "flag_off" if off else "flag", _constant(said["default"], names) if "default" in said else off
        )
    default = _constant(said["default"], names) if "default" in said else None
    kind = _KINDS.get(said["type"].id, "any") if "type" in said and isinstance(said["type"], ast.Name) else "str"
    kind = "any" if "type" in said and not isinstance(said["type"], ast.Name) else kind
    number = _constant(said["nargs"], names) if "nargs" in said else 1
    choices = _constant(said["choices"], names) if "choices" in said else ()
    listed = tuple(choices) if isinstance(choices, list | tuple) else ()
    words = number if isinstance(number, int) else None
    return DeclaredSetting(kind, default, default is None, words, listed)


# ---- parameters

REQUIRED, OPTIONAL, BY_NAME, ANY_NAME = "required", "optional", "by name", "**"
"""Kinds of parameters; `BY_NAME`: optional, and by its name alone."""


def declared_parameters(file: Path, name: str) -> dict[str, str]:
    """Parameter to its kind, of the constructor that the class `name` of a file has itself; empty where it has none, or
    where a decorator may take other ones."""
    tree = parsed(file)
    classes = [one for one in tree.body if isinstance(one, ast.ClassDef) and one.name == name] if tree else []
    functions = [one for node in classes for one in node.body if isinstance(one, ast.FunctionDef)]
    made = next((one for one in functions if one.name == "__init__"), None)
    if made is None or made.decorator_list or made.args.vararg is not None:
        return {}
    takes = made.args
    first = [one.arg for one in (*takes.posonlyargs, *takes.args)][1:]
    needed = len(first) - len(takes.defaults)
    found = {one: REQUIRED if at < needed else OPTIONAL for at, one in enumerate(first)}
    for one, default in zip(takes.kwonlyargs, takes.kw_defaults, strict=True):
        found[one.arg] = REQUIRED if default is None else BY_NAME
    return found | ({ANY_NAME: ANY_NAME} if takes.kwarg is not None else {})


# ---- dataclasses


def declared_fields(root: Path, file: Path, name: str, *, nested: bool = True) -> dict[str, DeclaredSetting]:
    """Field to what the dataclass `name`, as `file` has or imports it, declares of it, inherited ones included. nested:
    fields that are dataclasses are followed, with dotted names. root: the folder that holds the package."""
    return dict(_fields(root, file, name, nested, 0))


def classes_parsed(file: Path) -> list[str]:
    """Names, as written, of the classes that a program hands to a parser of dataclasses: `TrlParser((A, B))`, say."""
    tree = parsed(file)
    return [] if tree is None else list(_classes_parsed(tree))


@lru_cache(maxsize=64)
def _classes_parsed(tree: ast.Module) -> tuple[str, ...]:
    found: dict[str, None] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args and "Parser" in _last(node.func):
            first = node.args[0]
            for one in first.elts if isinstance(first, ast.Tuple | ast.List) else (first,):
                if isinstance(one, ast.Name | ast.Attribute):
                    found[ast.unparse(one)] = None
    return tuple(found)


def _fields(root: Path, file: Path, name: str, nested: bool, depth: int) -> Iterator[tuple[str, DeclaredSetting]]:
    place = _class(root, file, name, depth)
    if place is None or depth > _DEEPEST:
        return
    where, node = place
    for base in reversed(node.bases):
        yield from _fields(root, where, ast.unparse(base), nested, depth + 1)
    for one in node.body:
        if not (isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)):
            continue
        kind, optional, cls = _kind(one.annotation)
        if kind == "ClassVar":
            continue
        inner = dict(_fields(root, where, cls, nested, depth + 1)) if nested and cls else {}
        if inner:
            yield from ((f"{one.target.id}.{key}", value) for key, value in inner.items())
        else:
            default = None if one.value is None else _default(one.value)
            yield one.target.id, DeclaredSetting(kind, default, optional or default is None, annotation=one.annotation)


def _kind(annotation: ast.expr) -> tuple[str, bool, str]:
    """The kind, whether None is one, and the name of the class where it is none of Python's own."""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        try:
            annotation = ast.parse(annotation.value, mode="eval").body
        except SyntaxError:
            return "any", True, ""
    if isinstance(annotation, ast.BinOp):
        left, right = annotation.left, annotation.right
        if isinstance(right, ast.Constant) and right.value is None:
            kind, _, cls = _kind(left)
            return kind, True, cls
        return "any", True, ""
    if isinstance(annotation, ast.Subscript):
        outer = _last(annotation.value)
        if outer == "Optional":
            kind, _, cls = _kind(annotation.slice)
            return kind, True, cls
        known = "list" if outer in _LISTS else "dict" if outer in _GROUPS else outer if outer == "ClassVar" else "any"
        return known, False, ""
    name = _last(annotation)
    if name in _KINDS:
        return _KINDS[name], False, ""
    known = "list" if name in _LISTS else "dict" if name in _GROUPS else "any"
    return known, False, name if known == "any" and name not in ("Any", "Literal") else ""


def _default(value: ast.expr) -> Any:
    if isinstance(value, ast.Call) and _last(value.func) == "field":
        said = {word.arg: word.value for word in value.keywords}
        if "default" in said:
            return _constant(said["default"])
        if "default_factory" in said:
            made = said["default_factory"]
            made = made.body if isinstance(made, ast.Lambda) else made
            return {"list": [], "dict": {}}.get(_last(made), OPEN) if isinstance(made, ast.Name) else _constant(made)
        return None
    return _constant(value)


def _constant(node: ast.expr, names: Mapping[str, Any] = MappingProxyType({})) -> Any:
    """The value of an expression of constants, and of `names`; `OPEN` where it is none."""
    if isinstance(node, ast.Name):
        return names.get(node.id, OPEN)
    if isinstance(node, ast.JoinedStr):
        parts = [_constant(one.value if isinstance(one, ast.FormattedValue) else one, names) for one in node.values]
        return OPEN if OPEN in parts else "".join(map(str, parts))
    if isinstance(node, ast.IfExp) and isinstance(node.test, ast.Compare) and isinstance(node.test.ops[0], ast.Eq):
        left, right = (_constant(one, names) for one in (node.test.left, node.test.comparators[0]))
        return OPEN if OPEN in (left, right) else _constant(node.body if left == right else node.orelse, names)
    made = {"int": int, "float": float}.get(_last(node.func)) if isinstance(node, ast.Call) else None
    try:
        if made is not None and isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords:
            return made(ast.literal_eval(node.args[0]))
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError, OverflowError):
        return OPEN


def _last(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


# ---- files


def _class(root: Path, file: Path, name: str, depth: int) -> tuple[Path, ast.ClassDef] | None:
    """The class that `name` is in a file, with the file that defines it."""
    tree = parsed(file)
    if tree is None or depth > _DEEPEST or not name:
        return None
    module, _, inner = name.rpartition(".")
    if module:
        other = next(filter(None, (_imported(root, file, node, module) for node in tree.body)), None)
        return None if other is None else _class(root, other, inner, depth + 1)
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return file, node
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            for one in node.names:
                if (one.asname or one.name) == name and (other := _module(root, file, node)) is not None:
                    return _class(root, other, one.name, depth + 1)
    return None


def _imported(root: Path, file: Path, node: ast.stmt, name: str) -> Path | None:
    """The file of the module that a statement imports as `name`."""
    if not isinstance(node, ast.Import | ast.ImportFrom):
        return None
    for one in node.names:
        if (one.asname or one.name) != name:
            continue
        if isinstance(node, ast.Import):
            return _module(root, file, ast.ImportFrom(one.name, [], 0))
        inside = f"{node.module}.{one.name}" if node.module else one.name
        return _module(root, file, ast.ImportFrom(inside, [], node.level))
    return None


def _module(root: Path, file: Path, node: ast.ImportFrom) -> Path | None:
    """The file of the module that names are imported from; None where it is outside the root."""
    parts = (node.module or "").split(".") if node.module else []
    above = (folder for folder in file.parents if folder.is_relative_to(root))
    bases: Iterable[Path] = (file.parents[node.level - 1],) if node.level else (*above, root, root / "src")
    for base in bases:
        path = base.joinpath(*parts)
        for found in (path.with_suffix(".py") if parts else path / "__init__.py", path / "__init__.py"):
            if found.is_file() and found.resolve().is_relative_to(root.resolve()):
                return found
    return None


def parsed(file: Path) -> ast.Module | None:
    """The syntax tree of a program or of a notebook's cells, the same one until the file changes; None where it cannot
    be read."""
    try:
        status = file.stat()
        return None if status.st_size > MAX_BYTES else _tree(file, status.st_mtime_ns, status.st_size)
    except (OSError, ValueError):
        return None


@lru_cache(maxsize=64)
def _tree(file: Path, changed_ns: int, size: int) -> ast.Module | None:
    from batchbridge.reading.python import python_text

    try:
        return ast.parse(python_text(file) if file.suffix == ".ipynb" else file.read_bytes())
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return None


def as_default(declared: Mapping[str, DeclaredSetting], key: str, known: Any) -> Any:
    """The default that a copy declares of a key; what is `known` where it declares none, or none that is constant."""
    one = declared.get(key)
    return known if one is None or one.default is OPEN else one.default
