"""`batchbridge new-adapter`: the beginning of an adapter, from a configuration of its framework."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import click

from batchbridge.cli.main import FINE, INVALID

if TYPE_CHECKING:
    from batchbridge.contract.reading import Source
    from batchbridge.kit.declared_settings import DeclaredSetting

PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "batchbridge-{dashed}"
version = "0.1.0"
requires-python = ">=3.10"
dependencies = ["batchbridge"]

[project.entry-points.batchbridge]
{name} = "{name}_batchbridge"

[tool.hatch.build.targets.wheel]
packages = ["src/{name}_batchbridge"]
"""
PLUGIN = '''\
"""BatchBridge's plugin for {name}."""

from batchbridge import AdapterEntry, hookimpl


@hookimpl
def batchbridge_adapters():
    return [AdapterEntry("{name}", "{name}_batchbridge.config:{title}Adapter")]
'''
CONFIG = '''\
"""What {name}'s settings mean. Nothing here imports {name}."""

from __future__ import annotations
{standard}
from collections.abc import Mapping
{resources}from typing import Any

from batchbridge import Behaviour, {facts}Spec
{base}
from batchbridge.kit.values import FieldValue

KEYS = (
{rows})
"""Every setting. TODO: check each kind (it is guessed from one value) and default, and name the canonical field that a
setting decides alone: Key("train.lr", real(0), 1e-6, "carried.learning_rate"). {name}'s own configuration class has the
settings that this file does not give.

Canonical fields without a row, with their units; those marked * every run needs (the devices may stay
--world-size's). What several settings say together goes into `derive`, what {name}'s code fixes into `CONSTANTS`:

{fields}
"""
CONSTANTS: dict[str, Any] = {{}}
{options}

class {title}Adapter({parent}):
    """Framework `{name}`."""

    framework = "{name}"
    distribution = "{name}"  # TODO: its name on PyPI, or None
    versions = ">={release}"  # TODO: the versions whose settings these are
    newest_version = "{release}"
    keys = KEYS
    constants = CONSTANTS
    codes = Codes.of("BB-{upper}")
{interpolates}{command}
    def derive(self, native: Mapping[str, Any]) -> Mapping[str, FieldValue]:
        """What several settings say together."""
        raise ValueError("TODO: say {needed}")

    def restate(self, spec: Spec) -> Mapping[str, Any]:
        """The settings behind `derive`."""
        return {{}}

    def behaviour_of(self, native: Mapping[str, Any], version: str) -> Behaviour:
        """What {name} really does; see `batchbridge.Behaviour`."""
        return Behaviour(
            order="TODO",
            membership="TODO",
            denominator_scope="optimizer_step",
            denominator_formula="TODO",
            lr_tick="TODO",
            resume="TODO",
            source="TODO: the file and symbol that you read",
        )
'''
TEST = '''\
"""The contract that every adapter keeps."""

from pathlib import Path

from batchbridge import Source
from batchbridge.kit import Context
from batchbridge.testing import AdapterContract, InvalidCase, ValidCase
from {name}_batchbridge.config import {title}Adapter

VALUES = {values}
CONTEXT = Context(framework_version="{release}", world_size=8, dataset_size=64)


class Test{title}Adapter(AdapterContract):
    adapter_class = {title}Adapter
    framework_modules = ("{name}",)
    unknown_version = "0.0"
    written_version = "{release}"
    # TODO: `spec`, what the first case means, written down from {name}'s documentation.
    # TODO: `meanings`, other words and defaults with what they change in that case.
    # TODO: then `batchbridge.testing.EvidenceContract` with {name}'s own functions: nothing else sees a misreading that
    # stands in `spec`, too.
    valid = (ValidCase(name="{file}", source=Source(values=VALUES), context=CONTEXT, spec=None),)
    invalid = (
        InvalidCase(
            name="a stranger",
            source=Source(values={{"no_such_setting": 1}}),
            context=CONTEXT,
            codes=("BB-{upper}-004",),
        ),
    )
    corpus = Path(__file__).parent / "configurations"  # real ones: each is read and written back
'''


@click.command("new-adapter", short_help="Begin an adapter for another framework.")
@click.argument("name")
@click.option(
    "--from",
    "file",
    required=True,
    type=click.Path(),
    help="A configuration file of the framework, or a launch script.",
)
@click.option(
    "--options",
    "sources",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False),
    help="A source file of the framework that declares its options; of a launch script; repeat.",
)
@click.option("--release", default="1.0", show_default=True, help="The framework version that it was written for.")
@click.option("--into", "folder", default=".", show_default=True, type=click.Path(), help="Where the package goes.")
def command(name: str, file: str, sources: tuple[str, ...], release: str, folder: str) -> int:
    """Write a package NAME: the file's keys as rows with guessed kinds, the plugin, and its contract test.

    The canonical fields that no row says yet stand beside the rows. docs/tutorial.md says how to go on. Of a launch
    script the rows are the options of its longest command; --options reads the names of all others out of the
    framework's argparse calls, of which nothing is run.
    """
    from batchbridge.contract import plugins
    from batchbridge.kit.declared_settings import declared_options
    from batchbridge.reading.files import SCRIPTS, load_source

    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        near = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_") if name[:1].isalpha() else "my_rl"
        raise click.UsageError(f"NAME {name!r}: lower case, digits and underscores, such as {near}")
    if name in plugins.adapters():
        raise click.UsageError(f"NAME {name!r}: an adapter of that name is installed")
    started = command_in(Path(file)) if Path(file).suffix.lower() in SCRIPTS else None
    if sources and started is None:
        raise click.UsageError("--options is for a launch script with a command of options (--from run.sh)")
    source = load_source(file) if started is None else started.source
    wrong = [f"{one.code} {one.message}" for one in source.problems if one.severity == "error"]
    if wrong or not source.values:
        click.echo(f"{file}: {'; '.join(wrong) or 'it says no setting'}", err=True)
        return INVALID
    place = Path(folder, f"{name}_adapter")
    if place.exists():
        raise click.UsageError(f"{place} exists already; --into names another folder")
    declared = {option: one for path in sources for option, one in declared_options(Path(path)).items()}
    made = package(name, release, source.values, Path(file).name, started, declared)
    (place / "tests" / "configurations").mkdir(parents=True)
    for path, text in made.items():
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_text(text, encoding="utf-8")
    suffix = Path(file).suffix or ".yaml"
    (place / "tests" / "configurations" / f"first{suffix}").write_bytes(Path(file).read_bytes())
    click.echo(f"{place}: pip install -e {place} && pytest {place}/tests tells what is left to say")
    return FINE


@dataclasses.dataclass(frozen=True)
class ScriptCommand:
    """The command of a script whose options a new adapter begins with. start: its words before the options, and
    whether the launcher says the devices. source: its options."""

    start: tuple[str, ...]
    launched: tuple[str, ...]
    source: Source


def command_in(script: Path) -> ScriptCommand | None:
    """The command of a script with the most options; None: it has none, or cannot be read. What the script leaves open
    is no value."""
    from bashread import read_script
    from batchbridge.contract.reading import Source
    from batchbridge.reading.arguments import parse_arguments
    from batchbridge.reading.documents import read_text
    from batchbridge.reading.launchers import programs
    from batchbridge.reading.yaml_json import RefusedFile

    try:
        read = read_script(read_text(script, str(script)), {"PWD": "."}, str(script))
    except RefusedFile:
        return None
    found = [program for one in read.commands for program in programs(list(one.words))]
    most = max(found, key=lambda one: sum(word.startswith("--") for word in one.argv), default=None)
    first = None if most is None else next((n for n, word in enumerate(most.argv) if word.startswith("--")), None)
    if most is None or first is None:
        return None
    said = parse_arguments(most.argv[first:])
    values = {key: _number(said[key]) for key in said if not (isinstance(said[key], str) and "$" in said[key])}
    devices = tuple(name for name in ("nproc_per_node", "num_processes") if name in most.launcher)
    return ScriptCommand(tuple(most.argv[:first]), devices, Source(values=values, argv=tuple(most.argv)))


def _number(value: Any) -> Any:
    """A word as the number that it is to most parsers: `1e-6` is text to YAML."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def package(
    name: str,
    release: str,
    values: Mapping[str, Any],
    file: str,
    started: ScriptCommand | None = None,
    declared: Mapping[str, DeclaredSetting] = MappingProxyType({}),
) -> dict[str, str]:
    """Path -> text of every file of a new adapter's package. started: the command that the values are options of.
    declared: every option that the framework's source declares."""
    from batchbridge.kit.key_table import settings_in
    from batchbridge.kit.kinds import WrongValue
    from batchbridge.kit.omegaconf import Resolver, typed

    said = dict(settings_in(values))
    led = dict(said)  # to values, by interpolations
    for key in said:
        with contextlib.suppress(WrongValue):
            led[key] = typed(Resolver(said).get(key))
    led |= {key: declared[key].default for key in led if key in declared and _is_plain(declared[key].default)}
    kinds = {key: declared_kind(declared[key], said[key]) if key in declared else kind_of(led[key]) for key in led}
    words_of = {option: _words(one) for option, one in declared.items()}
    words_of |= {key: 0 if said[key] is True else 1 for key in said if key not in words_of} if started else {}
    fields = list(canonical_fields())
    words = {
        "name": name,
        "dashed": name.replace("_", "-"),
        "title": "".join(part.capitalize() for part in name.split("_")),
        "upper": name.replace("_", "").upper(),
        "release": release,
        "rows": "".join(f"    Key({literal(key)}, {kinds[key]}, {literal(value)}),\n" for key, value in led.items()),
        **_of_base(name, started),
        "interpolates": ""
        if started is not None or led == said
        else "    interpolates = True  # `${...}` and 1e-6, as OmegaConf reads them\n",
        "fields": "\n".join(f"- {path}{'*' if needed else ''} ({said})" for path, said, needed in fields),
        "needed": ", ".join(path for path, _, needed in fields if needed and path != "topology.world_size"),
        "values": "".join(["{\n", *(f"    {literal(key)}: {literal(value)},\n" for key, value in said.items()), "}"]),
        "file": file,
    }
    used = ", ".join(
        sorted(
            {
                word
                for kind in kinds.values()
                for word in re.findall(r"[a-z_]+(?=[(,)]|$)", re.sub(r'"[^"]*"', "", kind))
            }
        )
    )
    words["base"] = words["base"].format(kinds=used)
    more = {f"src/{name}_batchbridge/options.json": f"{json.dumps(dict(sorted(words_of.items())), indent=1)}\n"}
    return {
        **(more if started is not None else {}),
        "pyproject.toml": PYPROJECT.format(**words),
        f"src/{name}_batchbridge/__init__.py": PLUGIN.format(**words),
        f"src/{name}_batchbridge/config.py": CONFIG.format(**words),
        "tests/test_adapter.py": TEST.format(**words),
    }


def _of_base(name: str, started: ScriptCommand | None) -> dict[str, str]:
    """The parts of `CONFIG` that a file and a command do not share."""
    if started is None:
        base = (
            "from batchbridge.kit.key_table import Codes, Key\nfrom batchbridge.kit.kinds import {kinds}\n"
            "from batchbridge.kit.table_adapter import TableAdapter"
        )
        empty = dict.fromkeys(("standard", "resources", "facts", "options", "command"), "")
        return {"base": base, "parent": "TableAdapter", **empty}
    base = (
        "from batchbridge.kit.argparse_adapter import ArgparseAdapter, arities\n"
        "from batchbridge.kit.key_table import Codes, Key\nfrom batchbridge.kit.kinds import {kinds}"
    )
    start = " ".join(started.start)
    program = re.escape(started.start[-1]) if started.start else name
    launched = {one: one for one in started.launched}
    command = f"    start = {literal(start)}  # TODO: with its launcher\n    options = arities(OPTIONS)\n"
    command += f"    tells = TELLS\n    launched = {literal(launched)}  # TODO: rows for the launcher's numbers\n"
    command += "    ignores_unknown = False  # TODO: true for parse_known_args\n"
    command += '    parser = "TODO: release, file and function of the parser"\n'
    options = (
        'OPTIONS: Mapping[str, int] = json.loads((files(__package__) / "options.json").read_text("utf-8"))\n'
        '"""Every option of the parser, and how many words it takes (-1: any number)."""\n'
        f'TELLS = DetectionFacts(own={{}}, programs={{r"(^|/){program}$": 0.96}})\n'
        '"""TODO: the program, and options that only this framework has, with what each adds to the certainty."""\n'
    )
    return {
        "standard": "\nimport json",
        "resources": "from importlib.resources import files\n",
        "facts": "DetectionFacts, ",
        "base": base,
        "parent": "ArgparseAdapter",
        "options": options,
        "command": command,
    }


def declared_kind(one: DeclaredSetting, value: Any) -> str:
    """The kind of an option, as an expression: by its declaration, and by the value that a script gives where that says
    more."""
    if one.kind in ("flag", "flag_off"):
        return "flag"
    if one.words != 1:
        return "anything"
    if one.choices and all(isinstance(word, str) for word in one.choices):
        kind = f"one_of({', '.join(map(literal, one.choices))})"
    elif one.kind == "int":
        kind = kind_of(value) if isinstance(value, int) and not isinstance(value, bool) else "whole()"
    else:
        kind = {"float": "real()", "str": "text"}.get(one.kind, "anything")
    return f"optional({kind})" if one.default is None and kind != "anything" else kind


def _words(one: DeclaredSetting) -> int:
    """The number of words that an option takes, as `batchbridge.kit.argparse_adapter.arities` has it."""
    return 0 if one.kind in ("flag", "flag_off") else -1 if one.words is None else one.words


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, float, str))


def kind_of(value: Any) -> str:
    """The kind that takes a value, as an expression over `batchbridge.kit.kinds`; a guess from this one value."""
    if isinstance(value, bool):
        return "flag"
    if isinstance(value, int):
        return "natural" if value > 0 else "count" if value == 0 else "whole()"
    if isinstance(value, float):
        return "real()"
    if isinstance(value, str):
        return "text"
    return "optional(anything)" if value is None else "anything"


def literal(value: Any) -> str:
    """A value as Python writes it, text in the quotes that formatters take; what Python has no words for (a date) is
    its text."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{literal(key)}: {literal(one)}' for key, one in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(literal, value))}]"
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return repr(value) if isinstance(value, int | float | None) else json.dumps(str(value), ensure_ascii=False)


def canonical_fields() -> Iterator[tuple[str, str, bool]]:
    """(field, unit and meaning, whether every run needs it) of the schema; of the loss, the policy term's, and no
    critic's."""
    from batchbridge.meaning.spec import default_of, every_field

    for path, quantity in every_field():
        if not path.startswith(("loss.kl.", "loss.entropy.", "critic.")):
            yield path, f"{quantity.unit}: {quantity.meaning}", default_of(path) is dataclasses.MISSING
