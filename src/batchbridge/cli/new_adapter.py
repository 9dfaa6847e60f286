"""`batchbridge new-adapter`: the beginning of an adapter, from a configuration of its framework."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from batchbridge.cli.main import FINE, INVALID

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

from collections.abc import Mapping
from typing import Any

from batchbridge import Behaviour, Spec
from batchbridge.kit.key_table import Codes, Key
from batchbridge.kit.kinds import {kinds}
from batchbridge.kit.table_adapter import TableAdapter
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


class {title}Adapter(TableAdapter):
    """Framework `{name}`."""

    framework = "{name}"
    distribution = "{name}"  # TODO: its name on PyPI, or None
    versions = ">={release}"  # TODO: the versions whose settings these are
    newest_version = "{release}"
    keys = KEYS
    constants = CONSTANTS
    codes = Codes.of("BB-{upper}")
{interpolates}
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
@click.option("--from", "file", required=True, type=click.Path(), help="A configuration file of the framework.")
@click.option("--release", default="1.0", show_default=True, help="The framework version that it was written for.")
@click.option("--into", "folder", default=".", show_default=True, type=click.Path(), help="Where the package goes.")
def command(name: str, file: str, release: str, folder: str) -> int:
    """Write a package NAME: the file's keys as rows with guessed kinds, the plugin, and its contract test.

    The canonical fields that no row says yet stand beside the rows. docs/tutorial.md says how to go on.
    """
    from batchbridge.contract import plugins
    from batchbridge.reading.files import load_source

    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        near = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_") if name[:1].isalpha() else "my_rl"
        raise click.UsageError(f"NAME {name!r}: lower case, digits and underscores, such as {near}")
    if name in plugins.adapters():
        raise click.UsageError(f"NAME {name!r}: an adapter of that name is installed")
    source = load_source(file)
    wrong = [f"{one.code} {one.message}" for one in source.problems if one.severity == "error"]
    if wrong or not source.values:
        click.echo(f"{file}: {'; '.join(wrong) or 'it says no setting'}", err=True)
        if any("BB010" in one or "BB042" in one for one in wrong):
            click.echo(
                "--from takes settings, as YAML, JSON or TOML: write the command's options into such a file", err=True
            )
        return INVALID
    place = Path(folder, f"{name}_adapter")
    if place.exists():
        raise click.UsageError(f"{place} exists already; --into names another folder")
    made = package(name, release, source.values, Path(file).name)
    (place / "tests" / "configurations").mkdir(parents=True)
    for path, text in made.items():
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_text(text, encoding="utf-8")
    suffix = Path(file).suffix or ".yaml"
    (place / "tests" / "configurations" / f"first{suffix}").write_bytes(Path(file).read_bytes())
    click.echo(f"{place}: pip install -e {place} && pytest {place}/tests tells what is left to say")
    return FINE


def package(name: str, release: str, values: Mapping[str, Any], file: str) -> dict[str, str]:
    """Path -> text of every file of a new adapter's package."""
    from batchbridge.kit.key_table import settings_in
    from batchbridge.kit.kinds import WrongValue
    from batchbridge.kit.omegaconf import Resolver, typed

    said = dict(settings_in(values))
    led = dict(said)  # to values, by interpolations
    for key in said:
        with contextlib.suppress(WrongValue):
            led[key] = typed(Resolver(said).get(key))
    kinds = {key: kind_of(value) for key, value in led.items()}
    fields = list(canonical_fields())
    words = {
        "name": name,
        "dashed": name.replace("_", "-"),
        "title": "".join(part.capitalize() for part in name.split("_")),
        "upper": name.replace("_", "").upper(),
        "release": release,
        "rows": "".join(f"    Key({literal(key)}, {kinds[key]}, {literal(value)}),\n" for key, value in led.items()),
        "interpolates": ""
        if led == said
        else "    interpolates = True  # `${...}` and 1e-6, as OmegaConf reads them\n",
        "kinds": ", ".join(sorted({word for kind in kinds.values() for word in re.findall(r"[a-z]+", kind)})),
        "fields": "\n".join(f"- {path}{'*' if needed else ''} ({said})" for path, said, needed in fields),
        "needed": ", ".join(path for path, _, needed in fields if needed and path != "topology.world_size"),
        "values": "".join(["{\n", *(f"    {literal(key)}: {literal(value)},\n" for key, value in said.items()), "}"]),
        "file": file,
    }
    return {
        "pyproject.toml": PYPROJECT.format(**words),
        f"src/{name}_batchbridge/__init__.py": PLUGIN.format(**words),
        f"src/{name}_batchbridge/config.py": CONFIG.format(**words),
        "tests/test_adapter.py": TEST.format(**words),
    }


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
