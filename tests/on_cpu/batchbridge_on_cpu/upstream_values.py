"""Values that a framework's own functions gave, stored with the digests of those functions.

A recorder calls upstream's functions in the framework's environment, and `write` stores what they gave as compact JSON;
tests replay our code against it in an environment that has no framework. No digest of our own code is stored.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from batchbridge.contract.evidence import FunctionsByFile
from batchbridge.kit import fingerprints
from batchbridge.testing import recording

CLOSE = 1e-9
"""Relative difference of two floats that count as the same: kernels of other processors round otherwise."""


def recorded(package: Path, functions: FunctionsByFile, *, commit: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON of `values` that the `functions` of `package` gave. Raises `ValueError` where a function is missing."""
    code = fingerprints.digests(package, functions)
    missing = sorted(key for key, digest in code.items() if not digest)
    if missing:
        raise ValueError(f"upstream has no {', '.join(missing)}")
    return {"commit": commit, "code": code, "values": values}


def text_of(made: Mapping[str, Any]) -> str:
    """The JSON text of a record: one line for every kind of value."""
    head = {name: made[name] for name in ("commit", "code")}
    lines = [f'"{name}":{json.dumps(value, separators=(",", ":"))}' for name, value in made["values"].items()]
    return json.dumps(head, indent=1)[:-2] + ',\n "values": {\n' + ",\n".join(lines) + "\n}}\n"


def read(file: Path) -> dict[str, Any]:
    """A record."""
    made: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return made


def unlike_proven(made: Mapping[str, Any], known: Mapping[str, Any], label: str) -> list[str]:
    """Functions of a record whose digest the adapter's `proven.json` (one package of it) has not for `label`."""
    return [
        key
        for key, digest in made["code"].items()
        if key in known["functions"] and label not in known["functions"][key].get(digest, "").split()
    ]


def differences(stored: Any, now: Any) -> Iterator[str]:
    """Places where two JSON values differ; floats may differ by `CLOSE`."""
    return recording.differences(stored, now, relative=CLOSE, absolute=1e-12)


def plain(values: Any) -> Any:
    """Tensors and arrays as lists; a float32 in the fewest digits that name it."""
    if hasattr(values, "tolist"):
        import numpy as np

        array = np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)
        if array.dtype == np.float32:
            return _short(array)
        return array.tolist()
    if isinstance(values, Mapping):
        return {str(name): plain(value) for name, value in values.items()}
    if isinstance(values, Sequence) and not isinstance(values, str):
        return [plain(value) for value in values]
    return values


def _short(array: Any) -> Any:
    return float(str(array)) if not array.ndim else [_short(one) for one in array]
