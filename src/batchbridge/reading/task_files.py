"""The launch script inside a task of SkyPilot's or dstack's: what a YAML file of theirs has under `run` or `commands`.

Source: SkyPilot 0.9.3 docs, Distributed Multi-Node Jobs; Environment Variables (an empty one is given at the start).
dstack 511c318 examples, DSTACK_NODES_NUM, DSTACK_GPUS_PER_NODE, DSTACK_NODE_RANK.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from batchbridge.contract.reading import Source
from batchbridge.reading.machine_facts import DEVICES, NODES

_OF_SKYPILOT = frozenset({"resources", "num_nodes", "setup", "envs", "workdir", "file_mounts"})
"""Keys one of which stands beside `run` in a task of SkyPilot's."""


def load_task(
    values: Mapping[str, Any],
    text: str,
    path: Path,
    *,
    env: Mapping[str, str] | None,
    framework: str | None,
    chosen: int | None,
) -> Source | None:
    """The `Source` of the training command in a task's script, with the lines of its file; None where the file is no
    such task, or its script starts nothing that is known. env: as of a launch script, before what the task says."""
    script, said = values.get("run"), _sky(values)
    if not isinstance(script, str) or not _OF_SKYPILOT & values.keys():
        commands, said = values.get("commands"), _dstack(values)
        if "type" not in values or not isinstance(commands, list) or not all(isinstance(one, str) for one in commands):
            return None
        script = "\n".join(commands)
    from batchbridge.reading.scripts import load_script

    given = {**{name: value for name, value in said if value is not None}, **(env or {})}
    source = load_script(_in_place(script, text), path, env=given, framework=framework, chosen=chosen)
    return source if source.argv else None


def _in_place(script: str, text: str) -> str:
    """The script with each of its lines on the line of the file that holds it."""
    lines = text.split("\n")
    placed, at = [""] * len(lines), 0
    for line in script.split("\n"):
        bare = line.strip()
        found = next((place for place in range(at, len(lines)) if bare and bare in lines[place]), None)
        if found is None:  # folded by YAML, or blank
            found = at
        if found >= len(placed):
            placed.append("")
        placed[found] = line
        at = found + 1
    return "\n".join(placed)


def _sky(values: Mapping[str, Any]) -> Iterator[tuple[str, str | None]]:
    resources = values.get("resources")
    devices = _count(resources.get("accelerators")) if isinstance(resources, Mapping) else None
    yield from _machine(values.get("num_nodes", 1), devices, "SKYPILOT_NUM_NODES", "SKYPILOT_NUM_GPUS_PER_NODE")
    yield "SKYPILOT_NODE_RANK", "0"
    yield from _variables(values.get("envs"))


def _dstack(values: Mapping[str, Any]) -> Iterator[tuple[str, str | None]]:
    resources = values.get("resources")
    devices = _count(resources.get("gpu")) if isinstance(resources, Mapping) else None
    yield from _machine(values.get("nodes", 1), devices, "DSTACK_NODES_NUM", "DSTACK_GPUS_PER_NODE")
    yield "DSTACK_NODE_RANK", "0"
    yield from _variables(values.get("env"))


def _machine(nodes: object, devices: str | None, *names: str) -> Iterator[tuple[str, str | None]]:
    """The nodes and the devices of each, under the names of the task's tool and under ours."""
    whole = str(nodes) if isinstance(nodes, int) and not isinstance(nodes, bool) else None
    yield from zip((*names, NODES, DEVICES), (whole, devices) * 2, strict=True)


def _variables(said: object) -> Iterator[tuple[str, str]]:
    """Variables as a mapping, or as a list of NAME=VALUE; one without a value is given at the start."""
    listed = said.items() if isinstance(said, Mapping) else ()
    pairs = [(str(name), value) for name, value in listed]
    if isinstance(said, list):
        pairs = [(name, value) for name, equals, value in (str(one).partition("=") for one in said) if equals]
    for name, value in pairs:
        if isinstance(value, str | int | float) and value != "" and re.fullmatch(r"[A-Za-z_]\w*", name):
            yield name, str(value)


def _count(said: object) -> str | None:
    """The number of devices of `H100:8`, `{H100: 8}`, `{name: H100, count: 8}` or `80GB:8`; None where it is open."""
    if isinstance(said, Mapping):
        said = said.get("count", next(iter(said.values()), None) if len(said) == 1 else None)
    last = str(said).rpartition(":")[2]
    return last if re.fullmatch(r"[1-9]\d{0,3}", last) else None
