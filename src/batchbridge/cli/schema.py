"""`batchbridge schema`: JSON Schemas of the canonical specification, of a framework's own file, and of what commands
print for `--json`; or a table of the specification's fields, or of the file's keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

import click

from batchbridge.cli._input import frameworks_for_completion, named_framework, versions_for_completion
from batchbridge.cli._output import keep, overwrite_option, writing
from batchbridge.cli.main import FINE

if TYPE_CHECKING:
    from batchbridge.contract.adapter import Adapter

COLUMNS = ("field", "unit", "values", "default", "meaning")
KEY_COLUMNS = ("key", "field", "unit", "default", "meaning")
_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def json_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of `Spec.to_dict()`; units stand in `x-unit`, and unknown fields are refused."""
    from pydantic import TypeAdapter

    from batchbridge.meaning.spec import SCHEMA, Spec

    schema = TypeAdapter(Spec).json_schema()
    schema["$schema"] = _DIALECT
    schema["$id"] = f"urn:batchbridge:schema:{SCHEMA.replace('/', ':')}"
    schema["title"] = f"BatchBridge specification ({SCHEMA})"
    schema["properties"] = {"schema": {"const": SCHEMA, "description": "Name of this schema."}, **schema["properties"]}
    for group in (schema, *schema["$defs"].values()):
        group["additionalProperties"] = False
    return schema


def output_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of what every command prints for `--json`; names that are not in it may be added."""
    import json
    from importlib.resources import files

    from batchbridge.cli._exit_codes import EXIT_MEANINGS
    from batchbridge.render.json import LAYOUT

    table = json.loads((files("batchbridge.render") / "json_output.json").read_text("utf-8"))
    spec = json_schema()
    inner = spec.pop("$defs")
    spec = {name: part for name, part in spec.items() if not name.startswith("$")}
    envelope = {
        "layout": {"const": LAYOUT},
        "tool_version": {"type": "string", "description": "Of BatchBridge."},
        "command": {"enum": list(table["results"])},
        "results": {"type": "array", "description": "One for each input; see the command's branch below."},
        "exit_code": {"enum": list(EXIT_MEANINGS), "description": "Of the command: the worst of its results."},
        "exit_meaning": {"enum": list(EXIT_MEANINGS.values())},
        "error": {"type": ["string", "null"], "description": "Why results are missing; null: none is."},
    }
    branches = []
    for command, result in table["results"].items():
        beside = table["beside"].get(command, {})
        then = {"properties": {"results": {"items": {"$ref": f"#/$defs/{result}"}}, **beside}, "required": list(beside)}
        branches.append({"if": {"properties": {"command": {"const": command}}}, "then": then})
    return {
        "$schema": _DIALECT,
        "$id": f"urn:batchbridge:schema:{LAYOUT.replace('/', ':')}",
        "title": f"What batchbridge prints for --json ({LAYOUT})",
        "type": "object",
        "properties": envelope,
        "required": list(envelope),
        "allOf": branches,
        "$defs": {
            **table["definitions"],
            "Spec": spec,
            **inner,
        },
    }


def field_rows() -> Iterator[tuple[str, str, str, str, str]]:
    """A row of `COLUMNS` for every canonical field, in schema order."""
    from dataclasses import MISSING

    from batchbridge.meaning.fields import options
    from batchbridge.meaning.spec import Quantity, default_of, every_field, field_type
    from batchbridge.render.text import one_line

    def values(path: str, quantity: Quantity) -> str:
        kinds = options(field_type(path))
        low, high = quantity.minimum, quantity.maximum
        bounds = "" if low is None else f" from {low:g}" + ("" if high is None else f" to {high:g}")
        words = [
            ", ".join(get_args(option)) if get_origin(option) is Literal else _KINDS.get(option, "names") + bounds
            for option in kinds
            if option is not type(None)
        ]
        return " or ".join([*words, *(["unset"] if type(None) in kinds else [])])

    for path, quantity in every_field():
        default = default_of(path)
        shown = (
            "(needed)"
            if default is MISSING
            else str(default).lower()
            if isinstance(default, bool)
            else one_line(default)
        )
        yield path, quantity.unit, values(path, quantity), shown, quantity.meaning


def key_rows(schema: Mapping[str, Any]) -> Iterator[tuple[str, str, str, str, str]]:
    """A row of `KEY_COLUMNS` for every setting in a framework's file, by that file's schema; of all its branches."""
    import json

    found: dict[str, Mapping[str, Any]] = {}
    pending = [("", part) for part in (*schema.get("definitions", {}).values(), schema)]
    while pending:
        above, part = pending.pop()
        for name, inner in part.get("properties", {}).items():
            if "properties" in inner:
                pending.append((f"{above}{name}.", inner))
            elif inner.get("not") != {}:  # else a key that is gone
                found[f"{above}{name}"] = inner
    for key, part in sorted(found.items()):
        default = part.get("default", "(none)")
        shown = default if isinstance(default, str) else json.dumps(default)
        yield key, part.get("x-field", ""), part.get("x-unit", ""), shown, part.get("description", "")


_KINDS = {int: "whole number", float: "number", str: "text", bool: "true, false"}


@click.command("schema", short_help="Print a JSON Schema: of the specification, a file, or of --json.")
@click.option(
    "--framework",
    metavar="NAME",
    shell_complete=frameworks_for_completion,
    help="The schema of this framework's own configuration file, for editors.",
)
@click.option(
    "--framework-version",
    metavar="VERSION",
    shell_complete=versions_for_completion,
    help="Default: the one installed, pinned here, or the newest known.",
)
@click.option(
    "--table", is_flag=True, help="Print a table instead: one row per field or key, with unit, default and meaning."
)
@click.option("--json-output", is_flag=True, help="Print the schema of the commands' --json output.")
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Default: standard output.")
@overwrite_option
def command(
    framework: str | None,
    framework_version: str | None,
    table: bool,
    json_output: bool,
    output: Path | None,
    overwrite: bool,
) -> int:
    """Print the JSON Schema of the canonical batch specification: the "spec" of explain --json, with units.

    With --framework: of the framework's own YAML file in one version, every key with what it takes, its default, unit
    and meaning. An editor with yaml-language-server completes and checks a file by it whose first line names it:

    \b
      # yaml-language-server: $schema=FILE
    """
    if json_output and (framework is not None or table):
        raise click.UsageError("give --json-output without --framework and --table")
    if framework_version is not None and framework is None:
        raise click.UsageError("--framework-version needs --framework NAME")
    if output is not None:
        keep("-o", output, overwrite)
    if table:
        from batchbridge.cli._tables import table_for_stdout

        columns, rows = COLUMNS, field_rows()
        if framework is not None:
            columns, rows = KEY_COLUMNS, key_rows(_file_schema(framework, framework_version))
        text = table_for_stdout()(columns, list(rows))
    else:
        from batchbridge.render.json import dumps

        if framework is not None:
            text = dumps(_file_schema(framework, framework_version))
        else:
            text = dumps(output_schema() if json_output else json_schema())
    if output is None:
        click.echo(text)
        return FINE
    from batchbridge.comparing.edit_file import save

    with writing(f"-o {output}"):
        save(f"{text}\n", output)
    return FINE


def _file_schema(framework: str, version: str | None) -> Mapping[str, Any]:
    """The schema of a framework's file; on standard error which version was taken where nobody named one."""
    from batchbridge.contract import plugins

    name = named_framework("--framework", framework)
    adapter = plugins.adapters()[name]
    why = "the version that was asked for"
    if version is None:
        version, why = _version(adapter)
    if version is None:
        raise click.UsageError(f"--framework {name}: name the version with --framework-version; {why}")
    try:
        found = adapter.file_schema(version)
    except ValueError as error:
        raise click.UsageError(f"--framework-version {version:.40}: {error}") from None
    if found is None:
        raise click.UsageError(f"--framework {name}: {adapter.no_file or 'its adapter makes no schema of a file'}")
    if version not in (title := str(found.get("title", name))):
        why = f"{version:.40} is newer than all that are known, and read as this one"
    click.echo(f"{title}: {why}", err=True)
    return found


def _version(adapter: Adapter) -> tuple[str | None, str]:
    """The version that the project says, that is installed, that the repository pins, or the newest; and which."""
    from batchbridge.cli._project import project
    from batchbridge.contract.reading import Context, Source
    from batchbridge.reading.pins import pinned

    if version := project(None).settings.get("framework_version"):
        return str(version), "as the project's settings say"
    if version := adapter.read(Source(), Context()).framework_version:
        return version, "the installed version"
    if adapter.distribution and (pin := pinned(Path.cwd() / "here", adapter.distribution)):
        return pin.version, f"{pin.place} pins it"
    newest = adapter.newest_version or next(reversed(adapter.releases), None)
    return newest, "the newest that is known; --framework-version chooses another"
