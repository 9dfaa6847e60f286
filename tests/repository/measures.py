"""How much code there is in which room, and what imports what: `python tests/repository/measures.py [--json]`.

A mirror, and no gate: docs/house.md says what each room is for, and what would be too much. With `--page` the picture
and the table of that page are written anew.

A line of code holds something else than a comment, a docstring or nothing. A circle is a set of modules that import
each other, whether at import time, inside a function or for type checkers only. Standard library only; nothing of ours
is imported but what says the commit.
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
SIZE_MARKS = ("<!-- written by tests/repository/measures.py --page, what lines buy -->\n", "\n<!-- end -->")


def page(text: str) -> str:
    """A page with the picture as it is now between its marks."""
    return _between(text, MARKS, picture())


def _between(text: str, marks: tuple[str, str], new: str) -> str:
    before, rest = text.split(marks[0])
    _, after = rest.split(marks[1], 1)
    return before + marks[0] + new + marks[1] + after


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


def shipped() -> list[Path]:
    """Every module that is shipped, plugins included."""
    every = [file for package in PACKAGES.values() for file in files(package)]
    return every + [file for plugin in sorted((ROOT / "plugins").glob("*/src")) for file in files(plugin)]


def rooms() -> dict[str, Room]:
    """Every room that is shipped, plugins included, with its size."""
    sizes: dict[str, list[int]] = {}
    for file in shipped():
        sizes.setdefault(place_of(file), []).append(len(lines_of_code(file)))
    order = {name: place for place, name in enumerate(ROOMS)}
    return {
        name: Room(sum(found), len(found), sum(one < SHORT for one in found), sum(one > LONG for one in found))
        for name, found in sorted(sizes.items(), key=lambda item: (order.get(item[0], len(order)), item[0]))
    }


def without_reason() -> list[str]:
    """Modules of fewer than `SHORT` lines of code whose docstring does not say why they are files of their own."""
    return [
        file.relative_to(ROOT).as_posix()
        for file in shipped()
        if file.name != "__init__.py"
        and len(lines_of_code(file)) < SHORT
        and "Its own file: "
        not in " ".join((ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "").split())
    ]


# ---- what lines buy

KIT = "batchbridge.kit."
KIT_READING = """
    __init__ argparse_adapter clipping command_line composed_yaml config_texts declared declared_settings error_texts
    even_sizes file_schema fingerprints frame function_forms hydra_overrides hydra_said hydra_settings inherited_files
    key_table kinds known_programs model_files native_steps near_names omegaconf omegaconf_kinds omegaconf_said
    omegaconf_settings own_copy parser_kinds pass_through records rule_table run_records schedules score_ranges
    shared_settings shipped_settings suggested_keys table_adapter token_budgets torch_random values versions writing
"""
"""Modules of the kit that adapters read and write configurations with."""
KIT_RUNNING = """
    allowing before_update carried_rows checkpoints code_names ddp_exchange deepspeed device_memory drift
    enforced_fields foreseen found_budgets gradient_origins gradient_sketches identified_rows joined_rows lifecycle
    measured_passes measuring
    model_inputs new_start objectives observing optimizer_groups own_terms packable packed_batches packing
    patches probing producers proven rank_ledger ranks refusals refused replicas reporting rollout_observer rounding
    row_digests step_cost step_driver step_probe ticked_schedule update_layer update_probe whole_state worker_layer
    workers workers_ray
"""
"""Modules of the kit that wrapped and observed runs consist of."""
ADAPTER_READING = """
    __init__ config settings settings_file settings_transformers tables declared values fields terms user_settings
    user_options recipe run meaning behaviour writing writing_carried outside forms sizes facts critic_words epochs
    world starting held given_arguments copies constructed file_schema texts composed installed before programs
    known_programs own_programs beside_trl whose_trainer forks overrides distillation ms_swift swift_commands
    swift_files unsloth in_place copied rules program
"""
"""Files and folders of adapters that `read`, `check`, `explain`, `diff`, `convert` and `doctor` ask."""
ADAPTER_RUNNING = """
    runtime attaching refusals live_refusals critic_refusals configured enforced legacy notes proven releases launched
    finished trying testing on_cpu engine trainer trainer_v0 trainer_v1 driver critic_engine learners feed queued
    asynchronous ahead apart other_engines observe watching probe recording reporting metrics sampling scoring rows
    columns inputs
    completions candidates candidates_v1 membership turns answers images exchange shares sharding sharing
    shared_prompts sequences rings weights carriers loss_terms reward_tap advantages clock checkpoints compute_time
    found_budget measured_passes
    padding_free deepspeed sharded_files own_methods swift_rows swift_steps unsloth_code unsloth_settings unsloth_steps
    whole copied_steps
"""
"""Files and folders of adapters that `run`, `wrap`, `observe` and `try` need."""
BOTH_SIDES = {"verl": "reading", "openrlhf": "running"}
"""The side of `critic.py`, by adapter: with verl it is what a configuration says, with OpenRLHF orders to workers."""


def side_of(file: Path) -> str:
    """The side of an adapter's file: "reading", "rules" or "running". Raises `LookupError` for a file that no list has,
    or two."""
    package = _package(file)
    name = file.relative_to(package).parts[0].removesuffix(".py")
    if name == "critic":
        return BOTH_SIDES[package.name.removeprefix("batchbridge_")]
    lists = {"reading": ADAPTER_READING, "running": ADAPTER_RUNNING}
    (side,) = _that_have(name, lists)
    return "rules" if name == "rules" else side


def _that_have(name: str, lists: Mapping[str, str]) -> list[str]:
    found = [side for side, names in lists.items() if name in names.split()]
    if len(found) != 1:
        raise LookupError(f"{name} is in {' and '.join(found) or 'none'} of {', '.join(lists)}: see measures.py")
    return found


AIM = 48_000
"""Lines that were aimed at, everything included."""
RECORDS = ("past_runs", "pickled", "trackio_runs", "wandb_runs", "recorded")
PROGRAMS, PAST_RUNS = "Python programs (`pyread`)", "what past runs left (`reading`)"
BOUGHT: Mapping[str, str] = {
    "meaning, contract, rules": "everything: what a batch is, and what an adapter answers",
    "ledger": "what each step trained, and its comparison with another run or with a plan",
    "files, scripts, texts (`reading`)": "reading any file: YAML, JSON, TOML, launch scripts, pasted text",
    PAST_RUNS: "reading a run that is over, from W&B, trackio or a pickled configuration",
    "shell scripts (`bashread`)": "launch scripts: only files of settings and the words of a command are read",
    PROGRAMS: "programs and notebooks: only files of settings are read",
    "starting runs (`running`)": "`wrap` and `run`",
    "kit, reading side": "nothing at once: each adapter would have its own Hydra, OmegaConf, argparse, kinds and rows",
    "kit, running side": "plan, probe, check of every step, resume, budgets and packing in running trainers",
    "comparing": "`diff`, `convert`, `scale`, `check --fix`",
    "doctor": "what an error text means",
    "check --native": "the words of a framework's own constructor",
    "testing": "the contract and the oracle, by which other people's adapters are right",
    "texts and pictures": "text, tables, HTML and pictures of what was found; Chinese",
    "playground": "the page that answers while one drags",
    "command line": "the commands, the language server, baselines, projects, new-adapter",
    "Open-R1": "Open-R1's recipes",
    "old releases": "errors of releases that users no longer start",
}
"""Groups of rooms that are shipped, and what a user would lose without each."""
OF_ROOMS: Mapping[str, str] = {
    "bashread": "shell scripts (`bashread`)",
    "pyread": PROGRAMS,
    "batchbridge.ledger": "ledger",
    "batchbridge.reading": "files, scripts, texts (`reading`)",
    "batchbridge.running": "starting runs (`running`)",
    "batchbridge.comparing": "comparing",
    "batchbridge.common_texts": "doctor",
    "batchbridge.diagnosis": "doctor",
    "batchbridge.native_check": "check --native",
    "batchbridge.testing": "testing",
    "batchbridge.rule_page": "texts and pictures",
    "batchbridge.render": "texts and pictures",
    "batchbridge.reports": "texts and pictures",
    "batchbridge.playground": "playground",
    "batchbridge.cli": "command line",
    "batchbridge.__main__": "command line",
    **dict.fromkeys((*TOOLS, "batchbridge", "batchbridge.errors"), "meaning, contract, rules"),
    **dict.fromkeys(("batchbridge.meaning", "batchbridge.contract", "batchbridge.rules"), "meaning, contract, rules"),
}
TITLES = {
    "trl": "TRL",
    "verl": "verl",
    "easyr1": "EasyR1",
    "openrlhf": "OpenRLHF",
    "open_instruct": "Open-Instruct",
    "areal": "AReaL (plugin)",
    "nemo_rl": "NeMo-RL (plugin)",
    "prime_rl": "prime-rl (plugin)",
    "skyrl": "SkyRL (plugin)",
    "slime": "slime (plugin)",
    "tinker": "Tinker (plugin, a target of `convert`)",
}
"""Frameworks whose sides the table has apart."""
SIDES = {
    "reading": "check, explain, diff and convert of its files",
    "rules": "its own errors, before a launch",
    "running": "`wrap`, `run` and ledgers of its trainers",
}

LESS: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("the plugins", tuple(name for name in TITLES.values() if "plugin" in name), ("reading", "rules", "running")),
    ("the running sides of EasyR1 and Open-Instruct", ("EasyR1", "Open-Instruct"), ("running",)),
    ("Python programs, past runs and the playground", (PROGRAMS, PAST_RUNS, "playground"), ("",)),
    ("errors of TRL, verl and OpenRLHF before a launch", ("TRL", "verl", "OpenRLHF"), ("rules",)),
    ("OpenRLHF's running side", ("OpenRLHF",), ("running",)),
    ("all that is left of EasyR1 and Open-Instruct", ("EasyR1", "Open-Instruct"), ("reading", "rules")),
    ("texts and pictures", ("texts and pictures",), ("",)),
)
"""What could go, one after the other, until the aim is met: words, rows, columns."""


def bought_by(file: Path) -> tuple[str, str]:
    """The row and the column of the tables that a shipped file counts in: a group of rooms and "", or a framework and a
    side. Raises `LookupError` for a file that nobody has placed."""
    if file.is_relative_to(ROOT / "plugins"):
        name = file.relative_to(ROOT / "plugins").parts[0].removeprefix("batchbridge_")
        side = next(iter(_that_have(file.stem, {"reading": ADAPTER_READING, "running": ADAPTER_RUNNING})))
        return TITLES[name], "rules" if file.stem == "rules" else side
    module = module_name(file)
    if (known := room(module)) is None:
        adapter = _package(file).name.removeprefix("batchbridge_")
        whole = {"open_r1": "Open-R1", "history": "old releases"}
        return (whole[adapter], "") if adapter in whole else (TITLES[adapter], side_of(file))
    if known == "batchbridge.kit":
        name = module.removeprefix(KIT).removeprefix("batchbridge.kit") or "__init__"
        (side,) = _that_have(name, {"reading": KIT_READING, "running": KIT_RUNNING})
        return f"kit, {side} side", ""
    if module.removeprefix("batchbridge.reading.") in RECORDS:
        return PAST_RUNS, ""
    if module in ("batchbridge.reading.python", "batchbridge.reading.program_files"):
        return PROGRAMS, ""
    return OF_ROOMS[known], ""


def bought() -> dict[tuple[str, str], int]:
    """Lines of code by row and column of the tables."""
    sizes: dict[tuple[str, str], int] = {}
    for file in shipped():
        place = bought_by(file)
        sizes[place] = sizes.get(place, 0) + len(lines_of_code(file))
    return sizes


def size_tables(sizes: Mapping[tuple[str, str], int]) -> str:
    """What lines buy, in two tables: groups of rooms, and frameworks by their sides."""
    lines = ["| group | lines | what a user would lose without it |", "|---|---:|---|"]
    lines += [f"| {name} | {sizes[name, '']:,} | {lost} |" for name, lost in BOUGHT.items()]
    lines += [f"| these together | {sum(sizes[name, ''] for name in BOUGHT):,} | |", ""]
    lines += ["| framework | reading side | rules | running side | all |", "|---|---:|---:|---:|---:|"]
    whole = {name: [sizes.get((name, side), 0) for side in SIDES] for name in TITLES.values()}
    whole["all frameworks"] = [sum(each) for each in zip(*whole.values(), strict=True)]
    for name, each in whole.items():
        lines.append(f"| {name} | {' | '.join(f'{one:,}' if one else '-' for one in each)} | {sum(each):,} |")
    lines += [f"| lost without it | {' | '.join(SIDES.values())} | the framework |", ""]
    left = sum(sizes.values())
    lines += [f"All that is shipped: {left:,} lines, {left - AIM:,} above the aim of {AIM:,}.", ""]
    lines += ["| without, one after the other | lines left | above the aim |", "|---|---:|---:|"]
    for words, rows, columns in LESS:
        left -= sum(sizes.get((row, column), 0) for row in rows for column in columns)
        lines.append(f"| {words} | {left:,} | {left - AIM:,} |")
    return "\n".join(lines)


def with_sizes(text: str) -> str:
    """A page with the tables of what lines buy, as of today; where no number has changed they keep their date."""
    from batchbridge_on_cpu.figures import measured_on

    tables = size_tables(bought())
    if tables in text:
        return text
    on = measured_on(ROOT)
    return _between(text, SIZE_MARKS, f"Lines of code on {on['commit']}, {on['date']}:\n\n{tables}")


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
        PAGE.write_text(with_sizes(page(PAGE.read_text(encoding="utf-8"))), encoding="utf-8")
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
