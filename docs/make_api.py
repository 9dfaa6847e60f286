"""Writes `api.md`: every public name with its signature, read from the source. `python docs/make_api.py`"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"
PAGE = Path(__file__).with_name("api.md")
START = """\
# The API

Every public name with its signature and what its docstring says, from the code (`python docs/make_api.py`; a test holds
the page against it). Users need `batchbridge`; authors of adapters `batchbridge.kit`, its modules and
`batchbridge.testing` ([plugins](plugins.md) says how they go together).

"""
Definition = ast.FunctionDef | ast.ClassDef


def tree(module: str) -> ast.Module:
    """The syntax tree of a module."""
    place = SOURCE.joinpath(*module.split("."))
    file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    return ast.parse(file.read_text(encoding="utf-8"))


def exported(package: str) -> Iterator[tuple[str, str]]:
    """(name, module that has it) of what a package declares for type checkers and loads on use."""
    for node in tree(package).body:
        declared = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for imported in node.body if declared else [node]:
            if isinstance(imported, ast.ImportFrom) and (imported.module or "").startswith("batchbridge."):
                yield from ((alias.asname or alias.name, str(imported.module)) for alias in imported.names)


def defined(module: str) -> dict[str, Definition]:
    """A module's public functions and classes, by name."""
    found = {node.name: node for node in tree(module).body if isinstance(node, Definition)}
    return {name: node for name, node in found.items() if not name.startswith("_")}


def signature(node: ast.FunctionDef) -> str:
    """What follows the name: arguments with their types and defaults, and the result's type."""
    given = ast.unparse(node.args)
    bound = [argument.arg for argument in node.args.args[:1]] in (["self"], ["cls"])
    given = given.partition(", ")[2] if bound else given
    return f"({given})" + ("" if node.returns is None else f" -> {ast.unparse(node.returns)}")


def members(node: ast.ClassDef) -> Iterator[str]:
    """The lines of a class: its fields, then its public methods."""
    for part, after in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(part, ast.AnnAssign) and not ast.unparse(part.target).startswith("_"):
            said = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and after.value.value
            about = f"  # {' '.join(said.split())}" if isinstance(said, str) else ""
            yield f"    {ast.unparse(part)}{about}"
    for part in node.body:
        if isinstance(part, ast.FunctionDef) and not part.name.startswith("_"):
            is_property = any(ast.unparse(one).endswith("property") for one in part.decorator_list)
            shown = f": {ast.unparse(part.returns)}" if is_property and part.returns else f"{signature(part)}"
            yield f"    {part.name}{shown}"


def entry(name: str, node: Definition) -> str:
    """A name's signature as code, and its docstring: of a function the part before `Args:`."""
    said = inspect.cleandoc(ast.get_docstring(node, clean=False) or "").partition("\n\nArgs:")[0]
    # Indented blocks of docstrings are examples; angle brackets would be read as HTML.
    said = said.replace("<", "&lt;").replace("*", "\\*")
    if isinstance(node, ast.FunctionDef):
        code = f"{name}{signature(node)}"
    else:
        bases = ", ".join(map(ast.unparse, node.bases))
        code = "\n".join([f"class {name}({bases})" if bases else f"class {name}", *members(node)])
    return f"### {name}\n\n```text\n{code}\n```\n\n{said}\n"


def of_package(package: str) -> Iterator[str]:
    """The entries of what a package exports, sorted by name."""
    for name, module in sorted(exported(package)):
        found = defined(module).get(name)
        if found is not None:
            yield entry(name, found)


def modules(package: str) -> list[str]:
    """A package's public modules."""
    names = sorted(file.stem for file in SOURCE.joinpath(*package.split(".")).glob("*.py"))
    return [f"{package}.{name}" for name in names if not name.startswith("_")]


def page() -> str:
    """The whole page."""
    parts = [START.rstrip() + "\n"]
    for package in ("batchbridge", "batchbridge.kit"):
        parts += [f"## {package}\n", *of_package(package)]
    for module in [*modules("batchbridge.kit"), "batchbridge.testing.contract", "batchbridge.testing.attaching"]:
        said = inspect.cleandoc(ast.get_docstring(tree(module)) or "").partition("\n\n")[0].replace("<", "&lt;")
        entries = [entry(name, node) for name, node in defined(module).items()]
        parts += [f"## {module}\n\n{said}\n", *entries] if entries else []
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
