"""How much code there is, and what imports what: `python tests/repository/measures.py [--json]`.

With `--page` it writes the picture of docs/house.md anew.

A line of code holds something else than a comment, a docstring or nothing. "In functions and classes" leaves tables and
imports out. A circle is a set of modules that import each other, whether at import time, inside a function or for type
checkers only. Standard library only; nothing is imported.
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
LONGEST = 400
"""Lines of code that a file may have."""
FIRST = 4_300
"""Lines of code that one has to understand before anything else: meaning, contract, rules, reading."""
AIM, AIM_IN_FUNCTIONS = 28_000, {"trl": 1_300, "verl": 1_600, "openrlhf": 1_200, "open_instruct": 900, "easyr1": 700}
"""Lines of code that all packages but `NOT_COUNTED`, and the functions and classes of adapters, are to have without
what `FEATURES` brought."""
PLUGINS = {"nemo_rl": 600, "skyrl": 500, "prime_rl": 500}
"""Lines of code that the plugins of this repository may have."""
NO_CODE = frozenset(
    {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    | {tokenize.ENCODING}
)
FRAMEWORKS = ("trl", "verl", "easyr1", "openrlhf", "open_instruct", "open_r1")
NOT_COUNTED = ("batchbridge_history",)
"""A plugin about versions that nobody starts today."""


class Feature(NamedTuple):
    """What came after the aims were set: lines of code in all, and in functions and classes of adapters. Measured
    between the commits before and after it, so that what it replaced counts against it."""

    what: str
    lines: int
    in_functions: Mapping[str, int]


FEATURES = (
    Feature("TRL: FSDP, images, entropy bonuses, a router's loss; verl: packed rows", 1_036, {"trl": 402, "verl": 17}),
    Feature("verl: estimators without a word of the schema, programs of one's own", 101, {"verl": 11}),
    Feature(
        "check in CI, pages, shared settings of conversions, repairs, reports, schemas of files, notebooks, cards",
        6_163,
        {"trl": 146, "verl": 101, "easyr1": 59, "openrlhf": 27, "open_instruct": 19},
    ),
    Feature(
        "packed passes, micro-batches by measured cost, summaries and certificates of ledgers", 1_446, {"trl": 418}
    ),
    Feature(
        "images in EasyR1 and OpenRLHF, verl's shared prompts, ledgers of many ranks",
        791,
        {"verl": 251, "easyr1": 56, "openrlhf": 19, "trl": 11},
    ),
    Feature("OpenRLHF: candidates", 194, {"openrlhf": 143}),
    Feature("group filters in four frameworks, EasyR1's Ulysses", 416, {"open_instruct": 211, "easyr1": 48}),
    Feature("Open-Instruct: grpo.py, environments and tools, ranks that share sequences", 710, {"open_instruct": 483}),
    Feature(
        "critics, agents, ring attention, tensor parallelism, distillation, other engines, generation ahead",
        2_334,
        {"verl": 809, "openrlhf": 692},
    ),
    Feature(
        "losses that choose their tokens, fully_async_policy, EasyR1 0.3.0 and 0.3.1, attention kernels of a GPU",
        593,
        {"verl": 292, "easyr1": 78, "openrlhf": 15},
    ),
)


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


def lines_in_functions(file: Path) -> int:
    """Lines of code that stand in a function or a class."""
    spans: set[int] = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            spans |= set(range(first, (node.end_lineno or node.lineno) + 1))
    return len(spans & lines_of_code(file))


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


TOOLS = ("batchbridge.lazily", "batchbridge.frozen", "batchbridge.distributions")
"""Modules of the standard library alone, which know nothing of our field and stand in no picture."""
ROOMS = (
    "bashread",
    "batchbridge.pyread",
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
    "batchbridge.diagnosis",
    "batchbridge.testing",
    "batchbridge.rule_page",
    "batchbridge.render",
    "batchbridge.reports",
    "batchbridge",
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

    Lines of code stand beside it in hundreds, so that the page is rewritten when a room grows, not with every line.
    No cross stands right of the diagonal: nothing imports from a room that comes later.
    """
    crosses = {(room(name), room(to)) for name, found in arrows().items() for to in found}
    shown = [name for name in ROOMS if name not in (*TOOLS, "batchbridge.__main__")]
    count = dict.fromkeys(ROOMS, 0)
    for name, file in every_module().items():
        if (there := room(name)) is not None:
            count[there] += len(lines_of_code(file))
    lines = [f"{'':22}{'lines':>6}  " + " ".join(f"{place:>2}" for place in range(1, len(shown) + 1))]
    for place, row in enumerate(shown, 1):
        marks = [" ." if column == row else " x" if (row, column) in crosses else "  " for column in shown]
        title = row.removeprefix("batchbridge.").replace("batchbridge", "batchbridge (face)")
        size = max(100, round(count[row], -2))
        lines.append(f"{place:>2} {title:19}{size:>6,}  {' '.join(marks)}".rstrip())
    return "\n".join(lines)


PAGE = ROOT / "docs" / "house.md"
MARKS = ("<!-- written by tests/repository/measures.py --page -->\n```text\n", "\n```\n<!-- end -->")


def page(text: str) -> str:
    """A page with the picture as it is now between its marks."""
    before, rest = text.split(MARKS[0])
    _, after = rest.split(MARKS[1])
    return before + MARKS[0] + picture() + MARKS[1] + after


def measured() -> dict[str, object]:
    """All measures."""
    every = {name: files(path) for name, path in PACKAGES.items()}
    known, graph = every_module(), arrows()
    adapters = {f"batchbridge_{name}" for name in FRAMEWORKS}
    from_adapters = {
        name: sorted({to for to in graph[name] if to.partition(".")[0] != name.partition(".")[0]})
        for name in known
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
        "code": {name: sum(len(lines_of_code(file)) for file in found) for name, found in every.items()},
        "code, all but history": sum(
            len(lines_of_code(file)) for name, found in every.items() if name not in NOT_COUNTED for file in found
        ),
        "in functions and classes, outside rules and testing": {
            name: sum(
                lines_in_functions(file)
                for file in every[name]
                if not {"rules", "testing"} & set(file.relative_to(PACKAGES[name]).with_suffix("").parts)
            )
            for name in sorted(adapters)
        },
        "allowed with what features brought": {
            "code": AIM + sum(one.lines for one in FEATURES),
            **{
                f"batchbridge_{name}": aim + sum(one.in_functions.get(name, 0) for one in FEATURES)
                for name, aim in AIM_IN_FUNCTIONS.items()
            },
        },
        "to be understood before anything else": sum(
            len(lines_of_code(file)) for name, file in known.items() if room(name) in UNDERSTOOD_FIRST
        ),
        "plugins": {
            name: sum(len(lines_of_code(file)) for file in files(ROOT / "plugins" / f"batchbridge_{name}" / "src"))
            for name in PLUGINS
        },
        f"files above {LONGEST} lines of code": {
            str(file.relative_to(ROOT)): count
            for found in every.values()
            for file in found
            if (count := len(lines_of_code(file))) > LONGEST
        },
        "circles": circles(graph),
        "modules of batchbridge that adapters import": sorted(core),
        "imports from one adapter into another": sorted(across),
    }


def main() -> None:
    if "--page" in sys.argv[1:]:
        PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
        return
    found = measured()
    if "--json" in sys.argv[1:]:
        print(json.dumps(found, indent=1))
        return
    for name, value in found.items():
        if isinstance(value, dict):
            print(f"{name}:", *(f"  {value[key]:>7,}  {key}" for key in value), sep="\n")
        elif isinstance(value, list):
            print(
                f"{name}: {len(value)}",
                *(f"  {' '.join(one) if isinstance(one, list) else one}" for one in value),
                sep="\n",
            )
        else:
            print(f"{name}: {value:,}")


if __name__ == "__main__":
    main()
