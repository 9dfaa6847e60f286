"""The answers to what a launch script asks of the machine or the scheduler: numbers of nodes and of devices.

They come from `--nodes` and `--gpus`, which stand in a script's variables under these names, and from `#SBATCH` lines.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from bashread import DEVICES_OF_A_NODE
from batchbridge.contract import plugins
from batchbridge.contract.reading import Source

NODES, DEVICES = "--nodes", DEVICES_OF_A_NODE
"""The names under which a number of nodes and of devices on each stand among a script's variables."""

_OF_SLURM: Mapping[str, tuple[str, ...]] = {
    NODES: ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    DEVICES: ("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"),
}
_OF_OTHERS = {
    NODES: (
        *("NNODES", "NUM_NODES", "N_NODES", "ARNOLD_WORKER_NUM", "MLP_WORKER_NUM", "PET_NNODES", "HOST_NUM"),
        *("trainer_nnodes", "nnodes"),
    ),
    DEVICES: (
        *("GPUS_PER_NODE", "N_GPUS_PER_NODE", "NUM_GPUS_PER_NODE", "NGPUS_PER_NODE", "NPROC_PER_NODE"),
        *("ARNOLD_WORKER_GPU", "MLP_WORKER_GPU", "PET_NPROC_PER_NODE", "n_gpus_per_node"),
    ),
}
_OF_ONE_NODE = ("N_GPUS", "NUM_GPUS", "NGPUS", "GPU_COUNT")
"""Variables that hold the devices of the whole run: those of a node where there is one."""

_SBATCH = re.compile(r"^#SBATCH\s+(.*)$", re.MULTILINE)
_ASKED = {
    NODES: re.compile(r"(?:--nodes[= ]|-N ?)(\d+)(?!\d*-)"),
    DEVICES: re.compile(r"(?:--gpus-per-node[= ]|--gres[= ]gpu:)(?:[A-Za-z][\w.-]*:)?(\d+)"),
}


def variables_of(text: str, env: Mapping[str, str]) -> dict[str, str]:
    """The variables that a script has from the scheduler and from who checks it: `env`, and what follows from it and
    from the script's own `#SBATCH` lines."""
    asked = " ".join(_SBATCH.findall(text))
    found: dict[str, str] = {}
    for what, names in _OF_SLURM.items():
        match = _ASKED[what].search(asked)
        said = env.get(what) or (match[1] if match else None)
        found |= dict.fromkeys(names, said) if said is not None else {}
        found |= {what: said} if said is not None else {}
    for what, names in _OF_OTHERS.items():
        found |= dict.fromkeys(names, env[what]) if what in env else {}
    if DEVICES in env and env.get(NODES, "1") == "1":
        found |= dict.fromkeys(_OF_ONE_NODE, env[DEVICES])
    return {**found, **env}


def visible_devices(words: Sequence[str], assigned: Mapping[str, str], env: Mapping[str, str]) -> dict[str, str]:
    """The number of devices that a Python program sees which is started without a launcher, as `Source.launcher` has
    it: those that are listed for it, or all of the one node that the script asks for."""
    if not re.fullmatch(r"(.*/)?python[\d.]*", words[0] if words else ""):
        return {}
    listed = assigned.get("CUDA_VISIBLE_DEVICES", env.get("CUDA_VISIBLE_DEVICES"))
    if listed is not None:
        return {"visible_devices": str(len([one for one in listed.split(",") if one.strip()]))}
    one_node = env.get(NODES, "1") == "1"
    return {"visible_devices": env[DEVICES]} if DEVICES in env and one_node else {}


def machine_settings() -> dict[str, str]:
    """Settings of all frameworks that say how many nodes a run has (`NODES`), or devices on each (`DEVICES`)."""
    return {key: what for tells in plugins.tells().values() if tells is not None for key, what in tells.machine.items()}


def devices_left_open(source: Source, world_size: int) -> dict[str, int]:
    """The settings of nodes and of their devices that a source leaves open (`Source.unknown`), by native key, as this
    number of devices settles them: one node where nothing else is said. Empty where it leaves none open, or where they
    do not come out even."""
    roles = machine_settings()
    key_of = {roles[key]: key for key in (*source.values, *source.unknown) if key in roles}
    left = {what: key for what, key in key_of.items() if key in source.unknown}
    if not left:
        return {}
    known = {what: str(source.values.get(key)) for what, key in key_of.items() if what not in left}
    if not all(text.isdecimal() and int(text) for text in known.values()):
        return {}
    if DEVICES not in left:
        nodes, rest = divmod(world_size, int(known[DEVICES])) if DEVICES in known else (1, 1)
        return {} if rest or not nodes else {left[NODES]: nodes}
    nodes = int(known.get(NODES, 1))
    devices, rest = divmod(world_size, nodes)
    if rest or not devices:
        return {}
    return {left[DEVICES]: devices, **({left[NODES]: nodes} if NODES in left else {})}
