"""The JSON Schema of a framework's own configuration file, from the rows that read it, for editors.

    file_schema("trl", "0.18.0", nested({"num_generations": setting(row)}))

Draft-07, which yaml-language-server knows best. A schema says no where reading finds one of three things: a key that is
no setting, a value that is not of its key's kind, and a word that is none of a setting's. Numbers that do not go
together stay with `batchbridge check`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from batchbridge.kit.key_table import Key
from batchbridge.kit.kinds import or_null_schema
from batchbridge.meaning.spec import Quantity, every_field

Schema = dict[str, Any]
INTERPOLATION: Mapping[str, Any] = {"type": "string", "pattern": "\\$\\{"}
"""A text that holds one of OmegaConf's `${...}`."""
MISSING = "???"
"""OmegaConf's word for a value that is still to be said."""
LEAF: Mapping[str, Any] = {"maxProperties": 0}
"""Any value that has no keys of its own."""


class Words(NamedTuple):
    """The words of a setting; others are refused, or where the framework takes further ones, these are offered."""

    words: Sequence[Any]
    only: bool = True


def setting(row: Key, words: Words | None = None, *, decides: str | None = None, interpolates: bool = False) -> Schema:
    """The schema of one setting's value, with its default and its meaning for a person.

    decides: what it decides where no canonical field says it; see `Adapter.decides`. interpolates: `${...}` may stand
    in the place of a value, and `???` of one that may be null.
    """
    schema: Schema = dict(row.kind.schema)
    if words is None and isinstance(row.values, Mapping) and "string" in schema.get("type", ""):
        words = Words([word for word in row.values if isinstance(word, str)], only=False)
    if words is not None and words.words:
        offered = {"enum": list(words.words)}
        offered = dict(or_null_schema(offered)) if row.kind.takes(None) else offered
        schema = offered if words.only else {"anyOf": [offered, schema]}
    if interpolates and schema:
        may_miss = row.kind.takes(None) or row.default == MISSING
        schema = {"anyOf": [schema, INTERPOLATION, *([{"const": MISSING}] if may_miss else [])]}
        schema |= {} if may_miss else {"not": {"const": MISSING}}
    return {**described(row, decides), **schema, "default": row.default}


def described(row: Key, decides: str | None = None) -> Schema:
    """`description`, with the unit, and where one canonical field comes of it, `x-field` and `x-unit`."""
    known = _quantities()
    quantities = [known[path] for path in row.fields if path in known]
    meaning = row.meaning or " ".join(quantity.meaning for quantity in quantities)
    unit = row.unit or (quantities[0].unit if len(quantities) == 1 and not isinstance(row.values, Mapping) else "")
    parts = [meaning or (f"Decides {decides}." if decides else "")]
    parts += [f"Unit: {unit}." if unit not in ("", "kind", "1") else ""]
    if isinstance(row.values, Mapping):
        parts.append("; ".join(f"{_word(ours)}: {_word(theirs)}" for ours, theirs in row.values.items()) + ".")
    said = " ".join(part for part in parts if part)
    found: Schema = {"description": said} if said else {}
    if row.fields:
        found["x-field"] = row.fields[0] if len(row.fields) == 1 else list(row.fields)
    return found | ({"x-unit": unit} if unit else {})


def refused(why: str) -> Schema:
    """The schema of a key that this version does not take."""
    return {"not": {}, "description": f"{why}.", "deprecationMessage": why, "doNotSuggest": True}


def nested(leaves: Mapping[str, Schema], free: Collection[str] = ()) -> Schema:
    """The schema of a mapping whose settings have dotted names; other keys are refused but in the groups `free`."""
    root = _group()
    for key in sorted(leaves):
        node = root
        *groups, name = key.split(".")
        for group in groups:
            node = node.setdefault("properties", {}).setdefault(group, _group())
        known = node.setdefault("properties", {})
        known[name] = {**known.get(name, {}), **leaves[key]}
    for path in free:
        node = root
        for group in filter(None, path.split(".")):
            node = node.setdefault("properties", {}).setdefault(group, {"type": "object"})
        _open(node)
    return root


def file_schema(framework: str, version: str, body: Schema, *, title: str = "") -> Schema:
    """The whole schema of a file, `body` being that of its settings."""
    name = f"{title or framework} {version}"
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "$id": f"urn:batchbridge:schema:{framework}:{version}",
        "$comment": "First line of a YAML file that is held against this: # yaml-language-server: $schema=PATH",
        "title": f"Configuration of {name}",
        "description": f"Settings of {name}, from BatchBridge's tables.",
        **body,
    }


def choice(options: Iterable[tuple[Schema, Schema]], otherwise: Schema) -> Schema:
    """The schema of the first condition that a file meets."""
    found = otherwise
    for condition, schema in reversed(list(options)):
        found = {"if": condition, "then": schema, "else": found}
    return found


def has(path: str, schema: Mapping[str, Any]) -> Schema:
    """The condition that a file has a key (dotted), and a value there that fits."""
    made = dict(schema)
    for name in reversed(path.split(".")):
        made = {"type": "object", "required": [name], "properties": {name: made}}
    return made


def elsewhere(rows: Iterable[Key], known: Collection[str], name: str, of: str) -> Iterator[tuple[str, Schema]]:
    """Keys that are settings in other versions only, each refused with the versions that have it.

    name: the framework with its version ("trl 0.18.0"). of: what the versions are of ("trl").
    """
    ranges: dict[str, list[str]] = {}
    for row in rows:
        if row.key not in known and not row.fixed:
            ranges.setdefault(row.key, []).append(row.versions)
    for key, versions in ranges.items():
        yield key, refused(f"{key} is no setting of {name}; it is one under {of} {' and '.join(versions)}")


def _open(node: Schema) -> None:
    """Lets a group and those below it take any key."""
    node.pop("additionalProperties", None)
    for part in node.get("properties", {}).values():
        _open(part)


def _group() -> Schema:
    return {"type": "object", "additionalProperties": False}


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) or value is None else str(value)


@cache
def _quantities() -> Mapping[str, Quantity]:
    return dict(every_field())
