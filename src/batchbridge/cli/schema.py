"""`batchbridge schema`: the canonical specification, as JSON Schema or a table of fields, from its annotations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

import click

COLUMNS = ("field", "unit", "values", "default", "meaning")


def json_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of `Spec.to_dict()`; units stand in `x-unit`, and unknown fields are refused."""
    from pydantic import TypeAdapter

    from batchbridge.meaning.spec import SCHEMA, Spec

    schema = TypeAdapter(Spec).json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = f"BatchBridge specification ({SCHEMA})"
    schema["properties"] = {"schema": {"const": SCHEMA, "description": "Name of this schema."}, **schema["properties"]}
    for group in (schema, *schema["$defs"].values()):
        group["additionalProperties"] = False
    return schema


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


@click.command("schema", short_help="Print the specification's JSON Schema, or its fields.")
@click.option("--table", is_flag=True, help="A table of every field: unit, values, default, meaning.")
def command(table: bool) -> int:
    """Print the JSON Schema of the canonical batch specification: the "spec" of explain --json, with units."""
    from batchbridge.render import json

    if table:
        from batchbridge.cli._tables import table_for_stdout

        click.echo(table_for_stdout()(COLUMNS, list(field_rows())))
    else:
        click.echo(json.dumps(json_schema()))
    return 0
