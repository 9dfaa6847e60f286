"""How much code there is in which room, and what imports what: `python tests/repository/measures.py [--json]`.

A mirror, and no gate: docs/house.md says what each room is for, and what would be too much. With `--page` the picture
of that page is written anew.

A line of code holds something else than a comment, a docstring or nothing. A circle is a set of modules that import
each other, whether at import time, inside a function or for type checkers only. Standard library only; nothing is
imported.
"""

from __future__ import annotations

import ast
import io
import json
import sys
import tokenize
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PACKAGES = {path.name: path for folder in ("src", "adapters") for path in sorted((ROOT / folder).glob("*/"))}
"""Every package that is shipped, by name."""
SHORT, LONG = 30, 500
"""Lines of code below which a file is asked why it is one of its own, and above which it is hard to read."""
NO_CODE = frozenset(
    {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    | {tokenize.ENCODING}
)
FRAMEWORKS = ("trl", "verl", "easyr1", "openrlhf", "open_instruct", "open_r1")


def files(package: Path) -> list[Path]:
    """The modules of a package."""
    return sorted(package.rglob("*.py"))


def lines_of_code(file: Path) -> set[int]:
    """Numbers of the lines that hold code."""
    text = file.read_text(encoding="utf-8")
    found: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            found |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            found -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return found


def module_name(file: Path) -> str:
    """A module's dotted name."""
    parts = file.relative_to(_package(file).parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _package(file: Path) -> Path:
    return next(path for path in PACKAGES.values() if file.is_relative_to(path))


def imports(file: Path, known: Mapping[str, Path]) -> set[str]:
    """The modules of ours that a module imports, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name in known}
        elif isinstance(node, ast.ImportFrom):
            home = node.module or ""
            if node.level:  # relative: from the package that the file stands in, or one above it
                inside = [*file.relative_to(_package(file).parent).parent.parts]
                home = ".".join([*inside[: len(inside) - node.level + 1], *filter(None, [node.module])])
            for alias in node.names:
                whole = f"{home}.{alias.name}"
                found |= {whole if whole in known else home} & known.keys()
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            found |= {one.value for one in node.args if isinstance(one, ast.Constant)} & known.keys()
    return found - {module_name(file)}


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Sets of modules that reach each other, the largest first."""
    reached = {name: set(_reach(graph, name)) for name in graph}
    found = {frozenset({a} | {b for b in reached[a] if a in reached[b]}) for a in graph if a in reached[a]}
    return sorted((sorted(one) for one in found), key=lambda one: (-len(one), one))


def _reach(graph: Mapping[str, set[str]], start: str) -> Iterator[str]:
    seen: set[str] = set()
    pending = [*graph[start]]
    while pending:
        name = pending.pop()
        if name not in seen:
            seen.add(name)
            pending += graph.get(name, ())
            yield name


def every_module() -> dict[str, Path]:
    """Module -> file, of all packages."""
    return {module_name(file): file for path in PACKAGES.values() for file in files(path)}


def arrows() -> dict[str, set[str]]:
    """Module -> the modules of ours that it imports."""
    known = every_module()
    return {name: imports(file, known) for name, file in known.items()}


TOOLS = tuple(f"batchbridge.{name}" for name in ("address", "lazily", "renamed", "frozen", "distributions"))
"""Modules of the standard library alone, which know nothing of our field and stand in no picture."""
ROOMS = (
    "bashread",
    "pyread",
    *TOOLS,
    "batchbridge.errors",
    "batchbridge.meaning",
    "batchbridge.contract",
    "batchbridge.rules",
    "batchbridge.ledger",
    "batchbridge.reading",
    "batchbridge.running",
    "batchbridge.kit",
    "batchbridge.comparing",
    "batchbridge.common_texts",
    "batchbridge.diagnosis",
    "batchbridge.testing",
    "batchbridge.rule_page",
    "batchbridge.render",
    "batchbridge.reports",
    "batchbridge",
    "batchbridge.native_check",
    "batchbridge.playground",
    "batchbridge.cli",
    "batchbridge.__main__",
)
"""The rooms of the core. Each imports only from those before it, for type checkers included; `batchbridge` is the face
alone: `batchbridge/__init__.py`."""


UNDERSTOOD_FIRST = ("batchbridge.meaning", "batchbridge.contract", "batchbridge.rules", "batchbridge.reading")
"""What a reader needs before anything else, and what works without the rest."""


def room(module: str) -> str | None:
    """The room that a module stands in; None for an adapter's."""
    fitting = [name for name in ROOMS if module == name or (module.startswith(f"{name}.") and name != "batchbridge")]
    return max(fitting, key=len, default=None)


def picture() -> str:
    """Which room imports which, as a matrix: a cross in a row's column says that the row imports from the column.

    No cross stands right of the diagonal: nothing imports from a room that comes later.
    """
    crosses = {(room(name), room(to)) for name, found in arrows().items() for to in found}
    shown = [name for name in ROOMS if name not in (*TOOLS, "batchbridge.__main__")]
    lines = [f"{'':22}" + " ".join(f"{place:>2}" for place in range(1, len(shown) + 1))]
    for place, row in enumerate(shown, 1):
        marks = [" ." if column == row else " x" if (row, column) in crosses else "  " for column in shown]
        title = row.removeprefix("batchbridge.").replace("batchbridge", "batchbridge (face)")
        lines.append(f"{place:>2} {title:19}{' '.join(marks)}".rstrip())
    return "\n".join(lines)


PAGE = ROOT / "docs" / "house.md"
MARKS = ("<!-- written by tests/repository/measures.py --page -->\n```text\n", "\n```\n<!-- end -->")


def page(text: str) -> str:
    """A page with the picture as it is now between its marks."""
    before, rest = text.split(MARKS[0])
    _, after = rest.split(MARKS[1])
    return before + MARKS[0] + picture() + MARKS[1] + after


class Room(NamedTuple):
    """The size of a room. lines: of code. short, long: of its files, those below `SHORT` and above `LONG` lines."""

    lines: int
    files: int
    short: int
    long: int


def place_of(file: Path) -> str:
    """The room of a file: of the core one of `ROOMS`; of an adapter its package and the folder in it; or a plugin."""
    if "plugins" in file.relative_to(ROOT).parts[:1]:
        return f"plugins/{file.relative_to(ROOT).parts[1]}"
    if (known := room(module_name(file))) is not None:
        return known
    package = _package(file)
    return "/".join([package.name, *file.relative_to(package).parent.parts[:1]])


def rooms() -> dict[str, Room]:
    """Every room that is shipped, plugins included, with its size."""
    every = [file for package in PACKAGES.values() for file in files(package)]
    every += [file for plugin in sorted((ROOT / "plugins").glob("*/src")) for file in files(plugin)]
    sizes: dict[str, list[int]] = {}
    for file in every:
        sizes.setdefault(place_of(file), []).append(len(lines_of_code(file)))
    order = {name: place for place, name in enumerate(ROOMS)}
    return {
        name: Room(sum(found), len(found), sum(one < SHORT for one in found), sum(one > LONG for one in found))
        for name, found in sorted(sizes.items(), key=lambda item: (order.get(item[0], len(order)), item[0]))
    }


def without_reason() -> list[str]:
    """Modules of fewer than `SHORT` lines of code whose docstring does not say why they are files of their own."""
    every = [file for package in PACKAGES.values() for file in files(package)]
    every += [file for plugin in sorted((ROOT / "plugins").glob("*/src")) for file in files(plugin)]
    return [
        file.relative_to(ROOT).as_posix()
        for file in every
        if file.name != "__init__.py"
        and len(lines_of_code(file)) < SHORT
        and "Its own file: "
        not in " ".join((ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "").split())
    ]


def table(found: Mapping[str, Room]) -> list[str]:
    """The rooms and their sum as lines of text."""
    whole = Room(*(sum(each) for each in zip(*found.values(), strict=True)))
    head = f"{'lines':>7} {'files':>6} {f'< {SHORT}':>6} {f'> {LONG}':>6}  room"
    rows = {**found, "all that is shipped": whole}
    return [head, *("{0:>7,} {1:>6} {2:>6} {3:>6}  {name}".format(*size, name=name) for name, size in rows.items())]


def measured() -> dict[str, object]:
    """What imports what: circles, what adapters take of the core, and what one takes of another."""
    graph = arrows()
    adapters = {f"batchbridge_{name}" for name in FRAMEWORKS}
    from_adapters = {
        name: sorted({to for to in graph[name] if to.partition(".")[0] != name.partition(".")[0]})
        for name in graph
        if name.partition(".")[0] in adapters
    }
    core = {to for found in from_adapters.values() for to in found if to.partition(".")[0] == "batchbridge"}
    across = {
        f"{name} -> {to}"
        for name, found in from_adapters.items()
        for to in found
        if to.partition(".")[0] in adapters and not name.startswith("batchbridge_open_r1")
    }
    return {
        "circles": circles(graph),
        "modules of batchbridge that adapters import": sorted(core),
        "imports from one adapter into another": sorted(across),
    }


def main() -> None:
    if "--page" in sys.argv[1:]:
        PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
        return
    found, sizes = measured(), rooms()
    if "--json" in sys.argv[1:]:
        print(json.dumps({"rooms": {name: size._asdict() for name, size in sizes.items()}, **found}, indent=1))
        return
    print(*table(sizes), sep="\n")
    found = {f"files of fewer than {SHORT} lines without a reason in their docstring": without_reason(), **found}
    for name, value in found.items():
        assert isinstance(value, list)
        print(
            f"{name}: {len(value)}",
            *(f"  {' '.join(one) if isinstance(one, list) else one}" for one in value),
            sep="\n",
        )


if __name__ == "__main__":
    main()
