"""`batchbridge schema`: JSON Schemas of the canonical specification, of a framework's own file, and of what commands
print for `--json`; or a table of the specification's fields."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

import click

if TYPE_CHECKING:
    pass

COLUMNS = ("field", "unit", "values", "default", "meaning")
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

    from batchbridge.render.json import EXIT_MEANINGS, LAYOUT

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
            "Spec": {name: part for name, part in spec.items() if name[0] != "$"},
            **inner,
        },
    }


def field_rows() -> Iterator[tuple[str, str, str, str, str]]:
    """A row of `COLUMNS` for every canonical field, in schema order."""
    from dataclasses import MISSING

    from batchbridge.meaning.spec import Quantity, default_of, every_field, field_type
    from batchbridge.render.text import one_line

    def values(path: str, quantity: Quantity) -> str:
        kind = field_type(path)
        options = (kind,) if get_origin(kind) in (Literal, tuple) or not get_args(kind) else get_args(kind)
        low, high = quantity.minimum, quantity.maximum
        bounds = "" if low is None else f" from {low:g}" + ("" if high is None else f" to {high:g}")
        words = [
            ", ".join(get_args(option)) if get_origin(option) is Literal else _KINDS.get(option, "names") + bounds
            for option in options
            if option is not type(None)
        ]
        return " or ".join([*words, *(["unset"] if type(None) in options else [])])

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


_KINDS = {int: "whole number", float: "number", str: "text", bool: "true, false"}


@click.command("schema", short_help="Print a JSON Schema: of the specification, a file, or of --json.")
@click.option("--table", is_flag=True, help="A table of the specification's fields: unit, values, default, meaning.")
@click.option("--json-output", is_flag=True, help="The schema of what commands print for --json.")
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Default: standard output.")
@click.option("--overwrite", is_flag=True, help="Replace FILE of -o where it exists.")
def command(table: bool, json_output: bool, output: Path | None, overwrite: bool) -> int:
    """Print the JSON Schema of the canonical batch specification: the "spec" of explain --json, with units."""
    from batchbridge.render import json

    if table:
        from batchbridge.cli._tables import table_for_stdout

        click.echo(table_for_stdout()(COLUMNS, list(field_rows())))
    else:
        click.echo(json.dumps(output_schema() if json_output else json_schema()))
    return 0
