"""W&B's record of a run: `config.yaml` of a run's folder, an exported configuration, and the file of an offline run.

W&B wraps each setting (`learning_rate: {value: 1e-06}`), and adds what it knows of the process under `_wandb`. A run
without a network leaves one file, `run-ID.wandb`: a log of LevelDB's form with messages of protobuf. Source: wandb
0.20.1 to 0.31.0, `wandb_internal.proto`: Record.config = 5, Record.run = 17, RunRecord.config = 4,
ConfigRecord.update = 1, ConfigItem.key = 1, .nested_key = 2, .value_json = 16.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from batchbridge.contract.reading import RecordedNumber, RunRecord
from batchbridge.reading.documents import read_text
from batchbridge.reading.yaml_json import MAX_DEPTH, RefusedFile, refuse

OWN = "_wandb"
"""The key under which W&B keeps what it knows of the process."""
_VERSION = "wandb_version"
_TRANSFORMERS = "6"
"""The key of transformers' version in W&B's telemetry: `TelemetryRecord.huggingface_version` = 6."""
_OF_MODELS = frozenset({"model_type", "architectures", "transformers_version", "vocab_size"})
"""Keys of a model's own configuration, which transformers' callbacks log beside the settings; no recipe has them."""
KIND, FLAT = "W&B's record of a run", "a record of a run as transformers' callbacks log it"
MAX_BYTES = 256 << 20
"""Largest file of an offline run (bytes): it holds all metrics, too."""
_LARGEST_MESSAGE = 4 << 20
_BLOCK = 32 * 1024
_MAGIC = b":W&B"


def is_record(values: Mapping[str, Any]) -> bool:
    """Whether a mapping is what W&B keeps of a run, wrapped."""
    if OWN in values or _VERSION in values:
        return any(map(_is_wrapped, values.values()))
    return len(values) > 1 and all(map(_is_wrapped, values.values()))


def is_flat_record(values: Mapping[str, Any]) -> bool:
    """Whether a mapping is such a record without the wraps: W&B's `run.config`, or trackio's."""
    return OWN in values or len(_OF_MODELS & values.keys()) > 1


def _is_wrapped(value: object) -> bool:
    return isinstance(value, Mapping) and "value" in value and not value.keys() - {"value", "desc"}


def unwrapped(values: Mapping[str, Any], lines: Mapping[str, int]) -> tuple[dict[str, Any], dict[str, int]]:
    """Settings and their lines, without W&B's wraps and its own keys."""
    found = {
        key: as_data(value["value"]) if _is_wrapped(value) else value
        for key, value in values.items()
        if key not in (OWN, _VERSION)
    }
    places: dict[str, int] = {}
    for key, line in lines.items():
        head, dot, rest = key.partition(".value")
        if head in found and (not rest or rest[0] in ".["):
            places[head + rest] = line
        elif not dot:
            places.setdefault(key, line)
    return found, places


def record_of(values: Mapping[str, Any], beside: Path | None, kind: str = KIND) -> RunRecord:
    """Facts that a record says beside its settings. beside: the folder of W&B's `requirements.txt`."""
    own = values.get(OWN)
    process = _mapping(own.get("value", own)) if isinstance(own, Mapping) else {}
    telemetry = _mapping(process.get("t"))
    transformers = process.get("huggingface_version") or telemetry.get(_TRANSFORMERS)
    facts = {
        "wandb": process.get("cli_version"),
        "Python": process.get("python_version"),
        "transformers": transformers or _text(values, "transformers_version"),
    }
    world = _number(values, "world_size")
    return RunRecord(
        kind=kind,
        versions={} if beside is None else versions_in(beside / "requirements.txt"),
        world_size=None if world is None else RecordedNumber(world, "the record's world_size"),
        told=tuple(f"{name} {version}" for name, version in facts.items() if isinstance(version, str)),
    )


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _bare(values: Mapping[str, Any], key: str) -> Any:
    """A value, without its wrap."""
    value = values.get(key)
    return value["value"] if isinstance(value, Mapping) and _is_wrapped(value) else value


def _text(values: Mapping[str, Any], key: str) -> str | None:
    value = _bare(values, key)
    return value if isinstance(value, str) else None


def _number(values: Mapping[str, Any], key: str) -> int | None:
    value = _bare(values, key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def versions_in(file: Path) -> dict[str, tuple[str, str]]:
    """Distributions to their versions, of the list of installed ones that W&B keeps."""
    try:
        text = read_text(file, str(file))
    except RefusedFile:
        return {}
    found = re.finditer(r"^([A-Za-z0-9][\w.-]*)==([\w.+!-]+)\s*$", text, re.MULTILINE)
    return {
        re.sub(r"[-_.]+", "-", one[1]).lower(): (one[2], f"{file.name}:{text.count(chr(10), 0, one.start()) + 1}")
        for one in found
    }


_NAMESPACE = re.compile(r"\w*[Nn]amespace\(")


def as_data(value: Any, depth: int = 0) -> Any:
    """A value of a record; where a program logged argparse's namespace, W&B keeps its text."""
    if depth > MAX_DEPTH:
        return None
    if isinstance(value, Mapping):
        return {key: as_data(one, depth + 1) for key, one in value.items()}
    if isinstance(value, str) and _NAMESPACE.match(value):
        return namespace_in(value)
    return value


def namespace_in(text: str) -> Any:
    """The settings in `Namespace(a=1, b=namespace(c='x'))`; the text itself where that is not what it is."""
    try:
        body = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return text
    return _namespace(body, 0) if isinstance(body, ast.Call) else text


def _namespace(node: ast.expr, depth: int) -> Any:
    if isinstance(node, ast.Call) and depth < MAX_DEPTH:
        return {word.arg: _namespace(word.value, depth + 1) for word in node.keywords if word.arg is not None}
    try:
        return ast.literal_eval(node)
    except (ValueError, RecursionError):
        return ast.unparse(node)[:200] if not isinstance(node, ast.Call) else None


# ---- the file of an offline run


def read_offline(path: Path, file: str) -> dict[str, Any]:
    """The settings that the file of an offline run holds. Raises `RefusedFile`."""
    found: dict[str, Any] = {}
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            refuse("BB002", f"the file has {size:,} bytes; at most {MAX_BYTES:,} are read", file)
        for message in _messages(path, file):
            for number, part in _fields(message):
                if number == 5:
                    _update(found, part)
                elif number == 17:
                    for inner, config in _fields(part):
                        if inner == 4:
                            _update(found, config)
    except OSError as error:
        refuse("BB001", f"the file cannot be read: {error.strerror or error}", file)
    except (ValueError, IndexError, RecursionError) as error:
        refuse("BB004", f"this is not the file of an offline run of W&B: {error}"[:200], file)
    return found


def _update(found: dict[str, Any], config: bytes) -> None:
    for number, item in _fields(config):
        if number != 1:
            continue
        parts = list(_fields(item))
        keys = [part.decode("utf-8", "replace") for name, part in parts if name in (1, 2)]
        for text in [part for name, part in parts if name == 16][-1:]:
            value = json.loads(text)
            target = found
            for key in keys[:-1]:
                inner = target.get(key)
                target[key] = target = inner if isinstance(inner, dict) else {}
            if keys:
                target[keys[-1]] = value


def _messages(path: Path, file: str) -> Iterator[bytes]:
    """The messages of the log, joined where they go over a block's end; what is too large for settings is left out."""
    with path.open("rb") as stream:
        header = stream.read(7)
        if not header.startswith(_MAGIC):
            refuse("BB004", "this is not the file of an offline run of W&B", file)
        held = bytearray()
        first = True
        while block := stream.read(_BLOCK - 7 if first else _BLOCK):
            first, at = False, 0
            while at + 7 <= len(block):
                length, kind = int.from_bytes(block[at + 4 : at + 6], "little"), block[at + 6]
                if kind not in (1, 2, 3, 4):
                    break  # zeros up to the block's end
                part = block[at + 7 : at + 7 + length]
                at += 7 + length
                if kind in (1, 2):
                    held.clear()
                if len(held) <= _LARGEST_MESSAGE:
                    held += part
                if kind in (1, 4) and len(held) <= _LARGEST_MESSAGE:
                    yield bytes(held)


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """(number, bytes) of the fields of a message that have a length; numbers are left out."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        wire = tag & 7
        if wire == 0:
            _, at = _varint(message, at)
        elif wire == 2:
            length, at = _varint(message, at)
            if at + length > len(message):
                raise ValueError("a message is cut off")
            yield tag >> 3, message[at : at + length]
            at += length
        elif wire in (1, 5):
            at += 8 if wire == 1 else 4
        else:
            raise ValueError(f"wire type {wire}")


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("a number of more than ten bytes")
