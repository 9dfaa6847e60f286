"""The JSON Schema of a framework's own configuration file, from the rows that read it, for editors.

    file_schema("trl", "0.18.0", nested({"num_generations": setting(row)}))

Draft-07, which yaml-language-server knows best. A schema says no where reading finds one of three things: a key that is
not a setting, a value that is not of its key's kind, and a word that is not one of a setting's. Numbers that do not go
together stay with `batchbridge check`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from batchbridge.kit.key_table import Key
from batchbridge.kit.kinds import or_null_schema
from batchbridge.kit.omegaconf import FINITE
from batchbridge.kit.versions import joined_ranges
from batchbridge.meaning.spec import Quantity, every_field

Schema = dict[str, Any]
INTERPOLATION: Mapping[str, Any] = {"type": "string", "pattern": "\\$\\{"}
"""A text that holds one of OmegaConf's `${...}`."""
MISSING = "???"
"""OmegaConf's word for a value that is still to be said."""
LONGEST = 60
"""Characters of a default that a description names; an editor shows descriptions alone."""
LEAF: Mapping[str, Any] = {"maxProperties": 0}
"""Any value that has no keys of its own."""


class ChoiceWords(NamedTuple):
    """The words of a setting; others are refused, or where the framework takes further ones, these are offered."""

    words: Sequence[Any]
    only: bool = True


def setting(
    row: Key, words: ChoiceWords | None = None, *, decides: str | None = None, interpolates: bool = False
) -> Schema:
    """The schema of one setting's value, with its default and its meaning for a person.

    decides: what it decides where no canonical field says it; see `Adapter.decides`. interpolates: `${...}` may stand
    in place of a value, and `???` of one that may be null.
    """
    schema: Schema = dict(row.kind.schema)
    if "pattern" in schema and row.kind.expected != row.kind.name.rstrip("?"):
        schema["patternErrorMessage"] = f"expected {row.kind.expected}"
    if words is None and isinstance(row.values, Mapping) and "string" in schema.get("type", ""):
        words = ChoiceWords([word for word in row.values if isinstance(word, str)], only=False)
    if words is not None and words.words:
        offered = {"enum": list(words.words)}
        offered = dict(or_null_schema(offered)) if row.kind.takes(None) else offered
        schema = offered if words.only else {"anyOf": [offered, schema]}
    if interpolates and schema:
        may_miss = row.kind.takes(None) or row.default == MISSING
        texts = [{"const": MISSING}] if may_miss else []
        if "number" in schema.get("type", ()) and "string" not in schema["type"]:
            texts.append({"type": "string", "pattern": f"^({FINITE})$"})  # OmegaConf reads 1e-6 as a number
        schema = {"anyOf": [schema, INTERPOLATION, *texts]}
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
    if row.default is not None and len(default := _word(row.default)) <= LONGEST:
        parts.append(f"Default: {default or 'an empty text'}.")
    said = " ".join(part for part in parts if part)
    found: Schema = {"description": said} if said else {}
    if row.fields:
        found["x-field"] = row.fields[0] if len(row.fields) == 1 else list(row.fields)
    return found | ({"x-unit": unit} if unit else {})


def refused(why: str) -> Schema:
    """The schema of a key that this version does not take."""
    return {"not": {}, "description": f"{why}.", "deprecationMessage": why, "doNotSuggest": True}


def nested(
    leaves: Mapping[str, Schema], free: Collection[str] = (), *, strict: Collection[str] | None = None
) -> Schema:
    """The schema of a mapping whose settings have dotted names; keys that are none of these are refused.

    free: groups that take any other key, with those below them. strict: groups ("grpo.") that alone refuse one.
    """
    root: Schema = {"type": "object", "additionalProperties": False}
    for key in sorted(leaves):
        *groups, name = key.split(".")
        known = _at(root, groups).setdefault("properties", {})
        known[name] = {**known.get(name, {}), **leaves[key]}
    for group in free:
        _open(_at(root, group.split(".")))
    if strict is not None:
        _open(root, strict=tuple(strict))
    return root


def _at(root: Schema, groups: Iterable[str]) -> Schema:
    """The schema of a group, which is made where it is missing."""
    node = root
    for group in groups:
        made = {"type": "object", "additionalProperties": False}
        node = node.setdefault("properties", {}).setdefault(group, made)
    return node


def _open(node: Schema, path: str = "", strict: tuple[str, ...] = ()) -> None:
    """Lets a group, and those below it that are not strict, take any key."""
    if path not in strict:
        node.pop("additionalProperties", None)
        for name, part in node.get("properties", {}).items():
            _open(part, f"{path}{name}.", strict)


def changed(schema: Schema, group: Callable[[Schema], Schema], leaf: Callable[[Schema], Schema]) -> Schema:
    """A mapping's schema with every group and every setting in it changed."""
    parts = schema.get("properties", {}).items()
    made = {name: group(changed(part, group, leaf)) if "properties" in part else leaf(part) for name, part in parts}
    return {**schema, "properties": made}


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
        yield key, refused(f"{name} has no setting {key}; {of} has it under {' and '.join(joined_ranges(versions))}")


def _word(value: Any) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


@cache
def _quantities() -> Mapping[str, Quantity]:
    return dict(every_field())
