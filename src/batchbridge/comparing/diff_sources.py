"""The differences between two configurations as users have them: each is read first, where one version is meant under
one version.

Its own file: releases are compared with each other, and so cannot be asked by what compares.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from batchbridge.comparing.comparison import Comparison
from batchbridge.comparing.differences import compare
from batchbridge.comparing.releases import USUAL_DEVICES, settled_alike, valid_devices
from batchbridge.contract.reading import Reading
from batchbridge.reading.asked import asked_for
from batchbridge.reading.read import read


def diff(
    a: object,
    b: object,
    *,
    version: str | None = None,
    framework_version: str | None = None,
    world_size: int | None = None,
    nodes: int | None = None,
    gpus: int | None = None,
    dataset_size: int | None = None,
) -> Comparison:
    """The differences in meaning between two configurations, the largest effect first.

    Args:
        a: A `Reading`, or what `read` takes: a path, a dict, a list of arguments, a config or trainer object.
        b: The same, of the other side.
        version: The framework's version, of each side that is not a `Reading`; other versions for each side:
            `diff(read(a, version="0.18.0"), b)`.
        framework_version: The same, by the command's word.
        world_size: Devices that train the policy, of each side that is not a `Reading`.
        nodes: With gpus, instead of world_size: nodes of that many devices each; by default 1.
        gpus: Devices of each node.
        dataset_size: Prompts in the dataset, of each side that is not a `Reading`.

    Returns:
        The differences. Where only numbers of devices are missing, those on as many as both can have, and
        `example_devices` says how many; where more is missing, only the verdicts, and `missing` says what.

    Raises:
        TypeError: A side has a type that `read` does not take, or an argument is given in two ways.
        ValueError: A size is below 1.
    """
    version, world_size, env = asked_for(version, framework_version, world_size, nodes, gpus)
    sizes: dict[str, Any] = {"world_size": world_size, "dataset_size": dataset_size, "env": env}
    read_as = {**sizes, "version": version}
    sides = [(side, side if isinstance(side, Reading) else read(side, **read_as), sizes) for side in (a, b)]
    return compared(sides)


def compared(asked: Sequence[tuple[object, Reading, Mapping[str, Any]]]) -> Comparison:
    """The comparison of two sources. asked: each with its reading and the arguments of `read`."""
    taken = settled_alike(asked)
    found = compare(*taken)
    devices = [_devices(*one) for one in zip((one[0] for one in asked), taken, (one[2] for one in asked), strict=True)]
    if found.verdict == "invalid" or (found.a.spec is not None and found.b.spec is not None):
        return found
    both = set(devices[0]) & set(devices[1])
    if not both:
        return found
    size = min(both, key=lambda one: (abs(one - USUAL_DEVICES), one))
    examples = [_on(size, source, reading, said) for (source, _, said), reading in zip(asked, taken, strict=True)]
    return replace(compare(*examples), a=found.a, b=found.b, example_devices=size)


def _devices(source: object, reading: Reading, said: Mapping[str, Any]) -> tuple[int, ...]:
    """The numbers of devices that a side may have: its own, or those on which an undecided one would be valid."""
    if reading.spec is not None:
        return (reading.spec.topology.world_size,)
    if isinstance(source, Reading) or said.get("world_size") is not None:
        return ()
    return valid_devices(source, reading, **{key: value for key, value in said.items() if key != "world_size"})


def _on(size: int, source: object, reading: Reading, said: Mapping[str, Any]) -> Reading:
    if reading.spec is not None:
        return reading
    version = None if reading.copy is not None else reading.framework_version
    return read(source, **{**said, "framework": reading.framework, "version": version, "world_size": size})
