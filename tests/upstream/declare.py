"""The `declared.json` of an adapter: the settings that each known release declares, read as text from its files.

    python tests/upstream/declare.py [--check] trl trl==1.17.0 transformers==5.23.0 ...
    python tests/upstream/declare.py openrlhf openrlhf==0.11.2=UNPACKED/openrlhf

A release is fetched with pip, or is the package in an unpacked folder, of a checkout say; those on record that are not
named stay as they are. Nothing is imported: the reader is the one that reads a user's own copy. `--check` writes
nothing; exit code 1 says that a named release declares otherwise than the file has it.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.version import Version
from record import fetched

from batchbridge.kit.composed_yaml import composed
from batchbridge.kit.declared_settings import (
    DeclaredSetting,
    classes_parsed,
    declared_fields,
    declared_options,
    declared_parameters,
)
from batchbridge.kit.key_table import settings_in
from batchbridge.kit.shipped_settings import ShippedTable

ROOT = Path(__file__).parents[2] / "adapters"
_PLAIN = ("int", "float", "bool", "str", "dict")


@dataclass(frozen=True)
class TableOf:
    """One table. package: whose releases these are. read: setting to its row, of the folder that holds the package.
    before: its releases are those before this one, which only copies have; empty: no such table has its own."""

    name: str
    package: str
    read: Callable[[Path], Mapping[str, list[Any]] | None]
    before: str = ""


def fields_of(*places: str) -> Callable[[Path], dict[str, list[Any]]]:
    """The fields of the first class that is there, of `file.py: Class` words: name to [type, default]."""

    def read(root: Path) -> dict[str, list[Any]]:
        for place in places:
            file, _, name = place.partition(": ")
            own = own_fields(root / file, name)
            found = declared_fields(root, root / file, name, nested=False)
            if found := {**{key: found[key] for key in own}, **found}:  # what it inherits stands behind
                return {key: [type_of(one), jsonable(one.default)] for key, one in found.items() if key[0] != "_"}
        return {}

    return read


def nested_fields_of(file: str, name: str) -> Callable[[Path], dict[str, list[Any]]]:
    """The fields of a class and of the classes below it: dotted name to [kind, default], ? where it may be null."""

    def read(root: Path) -> dict[str, list[Any]]:
        found = declared_fields(root, root / file, name)
        return {
            key: [f"{one.kind}?" if one.optional else one.kind, jsonable(one.default)] for key, one in found.items()
        }

    return read


def own_fields(file: Path, name: str) -> list[str]:
    """The fields that a class of a file declares itself."""
    body = ast.parse(file.read_text("utf-8")).body if file.is_file() else []
    nodes = [one for node in body if isinstance(node, ast.ClassDef) and node.name == name for one in node.body]
    return [one.target.id for one in nodes if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)]


def options_of(file: str) -> Callable[[Path], dict[str, list[Any]]]:
    """The options of a parser: name to [kind, default, choices]."""

    def read(root: Path) -> dict[str, list[Any]]:
        found = declared_options(root / file)
        return {key: [option_kind(one), _default(one), *_choices(one)] for key, one in found.items()}

    return read


def parsed_by(file: str) -> Callable[[Path], dict[str, list[Any]] | None]:
    """The fields of the dataclasses that a script hands to its parser: name to [type, default]; None without script."""

    def read(root: Path) -> dict[str, list[Any]] | None:
        if not (root / file).is_file():
            return None
        found: dict[str, DeclaredSetting] = {}
        for name in classes_parsed(root / file):
            found |= declared_fields(root, root / file, name, nested=False)
        return {key: [type_of(one), jsonable(one.default)] for key, one in found.items() if key[0] != "_"}

    return read


def parameters_of(file: str, name: str) -> Callable[[Path], dict[str, list[Any]]]:
    """The parameters of a class's constructor: name to [kind, None], in order."""

    def read(root: Path) -> dict[str, list[Any]]:
        return {key: [kind, None] for key, kind in declared_parameters(root / file, name).items()}

    return read


def composed_of(folder: str, name: str) -> Callable[[Path], dict[str, list[Any]]]:
    """The settings of a configuration that Hydra composes of a folder: dotted name to [kind, default], interpolations
    as they stand."""

    def read(root: Path) -> dict[str, list[Any]]:
        tree, _ = composed([root / folder], name)
        return {key: [kind_of_value(value), value] for key, value in settings_in(tree)}

    return read


def kind_of_value(value: Any) -> str:
    """The word for the kind of a value in YAML."""
    return type(value).__name__ if isinstance(value, bool | int | float | list | dict) else "str" if value else "any"


def _default(one: DeclaredSetting) -> Any:
    """The default; of an option that takes numbers, as it holds them."""
    value = jsonable(one.default)
    if one.kind != "float" or isinstance(value, str | bool | None):
        return value
    return [float(number) for number in value] if isinstance(value, list) else float(value)


def _choices(one: DeclaredSetting) -> list[Any]:
    return [list(one.choices)] if one.choices else []


def option_kind(one: DeclaredSetting) -> str:
    """The word for what an option takes: one value, "pair" or "texts" of two, "floats" or "words" of any number."""
    if one.kind in ("flag", "flag_off") or one.words == 1:
        return one.kind
    if one.words == 2:
        return "pair" if one.kind == "float" else "texts"
    return "floats" if one.kind == "float" else "words"


def type_of(field: DeclaredSetting) -> str:
    """The words for a field's type: `int`, `float?`, `list[str]?`, `=eos|=period`; `dict` also where text may stand for
    one, and a question mark also where None is the default."""
    every = _members(field.annotation)
    optional = "None" in every or field.default is None
    names = dict.fromkeys(name for name in every if name not in ("None", *(("str",) if "dict" in every else ())))
    words = "|".join(names if any(name.startswith("=") for name in names) else sorted(names)) or "any"
    return f"{words}?" if optional else words


def _members(node: ast.expr | None) -> list[str]:
    if isinstance(node, ast.Constant):
        return ["None"] if node.value is None else _members(ast.parse(str(node.value), mode="eval").body)
    if isinstance(node, ast.BinOp):
        return [*_members(node.left), *_members(node.right)]
    if isinstance(node, ast.Subscript):
        outer = ast.unparse(node.value).rpartition(".")[2]
        inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if outer in ("Optional", "Union"):
            return [*(["None"] if outer == "Optional" else []), *(name for one in inner for name in _members(one))]
        if outer == "Literal":
            words = [ast.literal_eval(one) for one in inner]
            return [f"={word}" for word in words] if all(isinstance(word, str) for word in words) else ["any"]
        if outer in ("dict", "Dict"):
            return ["dict"]
        if outer in ("list", "List"):
            return [f"list[{'|'.join(name for one in inner for name in _members(one))}]"]
        return ["any"]
    name = ast.unparse(node).rpartition(".")[2] if node is not None else "any"
    return [name if name in _PLAIN else "any"]


def jsonable(value: Any) -> Any:
    """A default as JSON has it."""
    return list(value) if isinstance(value, tuple) else value


_TRL = {
    "GRPOConfig": ("trl/trainer/grpo_config.py: GRPOConfig",),
    "ScriptArguments": ("trl/scripts/utils.py: ScriptArguments", "trl/utils.py: ScriptArguments"),
    "GRPOScriptArguments": ("trl/scripts/grpo.py: GRPOScriptArguments",),
    "ModelConfig": ("trl/trainer/model_config.py: ModelConfig",),
    "DatasetMixtureConfig": ("trl/scripts/utils.py: DatasetMixtureConfig",),
}
TABLES: Mapping[str, tuple[TableOf, ...]] = {
    "trl": (
        *(TableOf(name, "trl", fields_of(*places)) for name, places in _TRL.items()),
        TableOf("GRPOTrainer", "trl", parameters_of("trl/trainer/grpo_trainer.py", "GRPOTrainer")),
        TableOf("TrainingArguments", "transformers", fields_of("transformers/training_args.py: TrainingArguments")),
    ),
    "open_instruct": (
        TableOf("grpo_fast.py", "open_instruct", parsed_by("open_instruct/grpo_fast.py")),
        TableOf("ppo_vllm_thread_ray_gtrl.py", "open_instruct", parsed_by("open_instruct/ppo_vllm_thread_ray_gtrl.py")),
    ),
    "verl": (
        TableOf("ppo_trainer of copies", "verl", composed_of("verl/trainer/config", "ppo_trainer"), before="0.4.0"),
    ),
    "easyr1": (TableOf("PPOConfig", "easyr1", nested_fields_of("verl/trainer/config.py", "PPOConfig")),),
    "openrlhf": (
        TableOf("train_ppo_ray", "openrlhf", options_of("openrlhf/cli/train_ppo_ray.py")),
        TableOf("train_ppo_ray of copies", "openrlhf", options_of("openrlhf/cli/train_ppo_ray.py"), before="0.8.0"),
    ),
}
"""Adapter to its tables."""


def _is_of(table: TableOf, version: str, old: str) -> bool:
    """Whether a table has this release. old: the release before which those are that only copies have."""
    return not old or (Version(version) < Version(old)) == bool(table.before)


def made(table: TableOf, roots: Mapping[str, Path], known: Mapping[str, Any]) -> dict[str, Any]:
    """A table of releases, by the folder that holds the package, beside those that are known already."""
    before = ShippedTable(known.get("releases", ()), known.get("settings", {}))
    have: dict[str, Mapping[str, Sequence[Any]]] = {release: before.of(release) for release in before.releases}
    read = {release: table.read(root) for release, root in roots.items()}
    have |= {release: settings for release, settings in read.items() if settings is not None}
    order = sorted(have, key=Version)
    keys = merged_order([list(have[release]) for release in reversed(order)])
    return {"releases": order, "settings": {key: spans([have[release].get(key) for release in order]) for key in keys}}


def merged_order(orders: Sequence[Sequence[str]]) -> list[str]:
    """The keys of several releases, each behind the one that it was declared behind."""
    found: list[str] = []
    for keys in orders:
        for at, key in enumerate(keys):
            if key not in found:
                found.insert(found.index(keys[at - 1]) + 1 if at else 0, key)
    return found


def spans(rows: Sequence[Sequence[Any] | None]) -> list[list[Any]]:
    """The rows of one setting by release, those that follow each other and are alike in one."""
    found: list[list[Any]] = []
    for at, row in enumerate(rows):
        if row is None:
            continue
        if found and found[-1][1] == at - 1 and found[-1][2:] == list(row):
            found[-1][1] = at
        else:
            found.append([at, at, *row])
    return found


def written(tables: Mapping[str, Any]) -> str:
    """The file's text: a line for each setting."""
    parts = []
    for name, one in tables.items():
        said = one["settings"].items()
        lines = (f"    {json.dumps(key)}: {json.dumps(rows, separators=(',', ':'))}" for key, rows in said)
        head = f'  {json.dumps(name)}: {{\n   "releases": {json.dumps(one["releases"])},\n   "settings": {{\n'
        parts.append(head + ",\n".join(lines) + "\n   }\n  }")
    return '{\n "source": "files of each release",\n "tables": {\n' + ",\n".join(parts) + "\n }\n}\n"


def main(words: list[str], root: Path = ROOT) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description="See the module.")
    parser.add_argument("adapter", choices=tuple(TABLES))
    parser.add_argument("releases", nargs="+", metavar="PACKAGE==VERSION[=FOLDER]")
    parser.add_argument("--check", action="store_true")
    asked = parser.parse_args(words)
    file = root / f"batchbridge_{asked.adapter}" / "declared.json"
    known = json.loads(file.read_text("utf-8"))["tables"] if file.is_file() else {}
    with tempfile.TemporaryDirectory() as work:
        roots: dict[str, dict[str, Path]] = {}
        for word in asked.releases:
            package, version, folder = re.fullmatch(r"(\w+)==([^=]+)=?(.*)", word).groups()  # type: ignore[union-attr]
            place = Path(folder) if folder else fetched(package, version, Path(work))[0]
            roots.setdefault(package, {})[version] = place.parent
        old = next((one.before for one in TABLES[asked.adapter] if one.before), "")
        tables = {}
        for one in TABLES[asked.adapter]:
            every = roots.get(one.package, {})
            mine = {version: root for version, root in every.items() if _is_of(one, version, old)}
            tables[one.name] = made(one, mine, known.get(one.name, {}))
    text = written(tables)
    if asked.check:
        return int(not file.is_file() or file.read_text("utf-8") != text)
    file.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
