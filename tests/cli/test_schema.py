"""The printed JSON Schema describes exactly what `explain --json` prints as the spec, with units."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from batchbridge import Spec, read
from batchbridge.meaning.spec import walk

jsonschema = pytest.importorskip("jsonschema", reason="the schema is checked against the jsonschema package")

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def schema(run: Run) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(run("schema")[1])
    return loaded


@pytest.fixture
def spec(run: Run, recipe: Path) -> dict[str, Any]:
    reading = read(recipe)
    assert reading.spec is not None
    return reading.spec.to_dict()


def test_the_schema_is_a_json_schema(schema: dict[str, Any]) -> None:
    jsonschema.Draft202012Validator.check_schema(schema)


def test_a_spec_validates(schema: dict[str, Any], spec: dict[str, Any]) -> None:
    jsonschema.validate(spec, schema)


@pytest.mark.parametrize(
    ("group", "field", "value"),
    [
        ("rollout", "prompts_per_rollout", 0),
        ("rollout", "prompts_per_rollout", "4"),
        ("rollout", "group_filter", "some"),
        ("rollout", "batch_size", 4),
        ("carried", "beta1", 1.5),
        ("topology", "world_size", None),
    ],
)
def test_what_breaks_a_bound_or_a_type_does_not_validate(
    schema: dict[str, Any], spec: dict[str, Any], group: str, field: str, value: object
) -> None:
    spec[group][field] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(spec, schema)


def test_every_field_has_its_unit(schema: dict[str, Any], spec: dict[str, Any]) -> None:
    missing = []
    for path, _, quantity in walk(Spec.from_dict(spec)):
        node = schema
        for name in path.split("."):
            reference = node.get("$ref") or next((one["$ref"] for one in node.get("anyOf", ()) if "$ref" in one), None)
            node = schema["$defs"][reference.rpartition("/")[2]] if reference else node
            node = node["properties"][name]
        if node.get("x-unit") != quantity.unit:
            missing.append(path)
    assert missing == []
