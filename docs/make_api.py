"""Builds `api.md`: every public name with its signature, read from the source. `python docs/make_api.py [FILE]`

The page is part of the site and of no commit.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"
PAGE = Path(__file__).with_name("api.md")
START = """\
# The API

Every public name with its signature and what its docstring says, built from the code. Users need `batchbridge`; authors
of adapters `batchbridge.kit`, its modules and `batchbridge.testing` ([plugins](plugins.md) says how they go together).

"""
Value = ast.Assign | ast.AnnAssign
Definition = ast.FunctionDef | ast.ClassDef | Value
LONGEST = 300
"""Characters of a value that are shown; of a longer one, its beginning."""
TESTING = ("laws", "attaching", "plugin", "tiny", "oracle", "equivalence", "snapshots", "trajectories")
"""Modules of `batchbridge.testing` that others use; the rest is the contract's own."""
NOT_SHOWN = ("TypeVar(", "ParamSpec(")


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


def defined(module: str) -> dict[str, tuple[Definition, str]]:
    """A module's public functions, classes and values, by name, and what is said of each."""
    body, found = tree(module).body, {}
    for node, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = (node, ast.get_docstring(node, clean=False) or "")
        elif isinstance(node, Value) and node.value is not None and not ast.unparse(node.value).startswith(NOT_SHOWN):
            said = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
            targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
            found |= {ast.unparse(target): (node, str(said)) for target in targets}
    return {name: known for name, known in found.items() if name.isidentifier() and not name.startswith("_")}


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
        if isinstance(part, ast.FunctionDef) and (part.name == "__call__" or not part.name.startswith("_")):
            is_property = any(ast.unparse(one).endswith("property") for one in part.decorator_list)
            shown = f": {ast.unparse(part.returns)}" if is_property and part.returns else f"{signature(part)}"
            yield f"    {part.name}{shown}"


def code_of(name: str, node: Definition) -> str:
    """A name as code: a signature, a class with its members, or a value."""
    if isinstance(node, ast.FunctionDef):
        return f"{name}{signature(node)}"
    if isinstance(node, ast.ClassDef):
        bases = ", ".join(map(ast.unparse, node.bases))
        return "\n".join([f"class {name}({bases})" if bases else f"class {name}", *members(node)])
    kind = f": {ast.unparse(node.annotation)}" if isinstance(node, ast.AnnAssign) else ""
    value = ast.unparse(node.value) if node.value is not None else ""
    return f"{name}{kind} = {value if len(value) <= LONGEST else value[:LONGEST] + ' ...'}"


def entry(name: str, node: Definition, said: str) -> str:
    """A name as code, and its docstring: of a function the part before `Args:`, of a class its methods' as well."""
    said = inspect.cleandoc(said).partition("\n\nArgs:")[0]
    code = f"```text\n{code_of(name, node)}\n```"
    methods = "\n".join(f"- `{method}`: {about}" for method, about in methods_of(node))
    return "\n\n".join([f"### {name}", code, in_prose(said), *([in_prose(methods)] if methods else [])]) + "\n"


def in_prose(said: str) -> str:
    """A docstring as Markdown. Indented blocks are examples; angle brackets would be read as HTML."""
    return said.replace("<", "&lt;").replace("*", "\\*")


def methods_of(node: Definition) -> Iterator[tuple[str, str]]:
    """The public methods of a class, each with its docstring's first paragraph."""
    for part in node.body if isinstance(node, ast.ClassDef) else ():
        if isinstance(part, ast.FunctionDef) and not part.name.startswith("_"):
            said = inspect.cleandoc(ast.get_docstring(part) or "").partition("\n\n")[0]
            if said:
                yield part.name, " ".join(said.split())


def of_package(package: str) -> Iterator[str]:
    """The entries of what a package exports, sorted by name."""
    for name, module in sorted(exported(package)):
        while name not in (known := defined(module)):
            module = dict(exported(module))[name]  # a package that has it from a module of its own
        yield entry(name, *known[name])


def modules(package: str) -> list[str]:
    """A package's public modules."""
    names = sorted(file.stem for file in SOURCE.joinpath(*package.split(".")).glob("*.py"))
    return [f"{package}.{name}" for name in names if not name.startswith("_")]


def of_module(module: str) -> Iterator[str]:
    """What a module is for, and its entries in their order."""
    said = inspect.cleandoc(ast.get_docstring(tree(module)) or "").partition("\n\n")[0].replace("<", "&lt;")
    yield f"## {module}\n\n{said}\n"
    for name, (node, about) in defined(module).items():
        yield entry(name, node, about)


def page() -> str:
    """The whole page."""
    parts = [START.rstrip() + "\n"]
    for package in ("batchbridge", "batchbridge.kit"):
        parts += [f"## {package}\n", *of_package(package)]
    for module in modules("batchbridge.kit"):
        parts += of_module(module)
    parts += ["## batchbridge.testing\n", *of_package("batchbridge.testing")]
    for name in TESTING:
        parts += of_module(f"batchbridge.testing.{name}")
    return "\n".join(parts)


if __name__ == "__main__":
    file = Path(*sys.argv[1:]) if sys.argv[1:] else PAGE
    file.write_text(page(), encoding="utf-8")
