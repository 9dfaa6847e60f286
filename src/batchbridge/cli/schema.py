"""`batchbridge schema`: the JSON Schema of the canonical specification, from its own annotations."""

from __future__ import annotations

from typing import Any

import click


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


@click.command("schema", short_help="Print the specification's JSON Schema.")
def command() -> int:
    """Print the JSON Schema of the canonical batch specification: the "spec" of explain --json, with units."""
    from batchbridge.render import json

    click.echo(json.dumps(json_schema()))
    return 0
