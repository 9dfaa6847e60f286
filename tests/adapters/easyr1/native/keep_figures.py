"""The figures of a matrix's runs of one version, in ../figures.json, and what upstream does unwrapped, in ../recorded:

    python keep_figures.py CHECKOUT RUNS

RUNS is what `BATCHBRIDGE_EASYR1_RUNS` named while the tests of this folder ran on CHECKOUT, a git checkout, in this
environment. image_runs.py, video_runs.py and lora_runs.py keep theirs likewise. `nox -s easyr1_full` starts them where
BATCHBRIDGE_RECORD=1 asks for figures.
"""

from __future__ import annotations

import importlib.metadata
import json
import platform
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import proofs
import torch
from started import bench_folder, finished, fit_run, parameters, version_of

from batchbridge_on_cpu.figures import commit_of, keep
from batchbridge_on_cpu.trajectories import distance

FITS = {
    1: (
        "predicted",
        "enforced",
        "other loss",
        "seq",
        "sgd",
        "like",
        "orderly",
        "verified",
        "filtered",
        "filtered, observed",
    ),
    2: (
        "enforced",
        "seq",
        "sgd",
        "like",
        "observed",
        "resumed",
        proofs.OTHER_SETTINGS,
        "filtered",
        "filtered, resumed",
        *proofs.SHARED_ROWS,
        "observed, ulysses",
        "resumed, ulysses",
    ),
    4: ("enforced, ulysses",),
}
"""Scenarios of fits.py that end well, by ranks."""
UNCOMPARED = ("predicted", "orderly", "verified", "filtered, observed", "stock entry predicted")
"""Runs, with Ray or without, whose ends nothing is compared with."""
BASE, BASES = "fit enforced, 2", {name: f"fit {name}, 2" for name in ("seq", "sgd", "like", "filtered")}
"""What a run's end is compared with."""


def bare(argv: list[str]) -> list[str]:
    """Without folders."""
    pairs = [word.rpartition("=") for word in argv]
    return [f"{key}{equals}{value.rsplit('/', 1)[-1]}" for key, equals, value in pairs]


def runs_of(place: Path, version: str) -> dict[str, Any]:
    """Finished runs by name; how far each moved, over its parameters' norm, and how far what its policy says at the end
    is from what its base's says, over how far that moved."""
    runs: dict[str, Any] = {}
    weights: dict[str, Path] = {}
    for ranks, names in FITS.items():
        folder = place / f"fits-{ranks}"
        for name in (name for name in names if proofs.has(version, name)):
            run = fit_run(folder, name, ranks)
            runs[f"fit {name}, {ranks}"] = {**run, "argv": bare(run["argv"])}
            if name not in UNCOMPARED:
                weights[f"fit {name}, {ranks}"] = folder / f"{name}-weights"
    for name in (name for name in proofs.RUNS if name not in proofs.FAULTS and proofs.has(version, name)):
        if (run_with_ray := finished(place, name)) is None:
            raise SystemExit(f"{place} has no run {name}: test_runs_easyr1.py makes it")
        runs[name] = {**run_with_ray.summary(), "argv": bare(run_with_ray.argv)}
        if name not in UNCOMPARED:
            weights[name] = run_with_ray.weights
    starts = {name: parameters(folder / "first.pt") for name, folder in weights.items() if "resumed" not in name}
    start = starts[BASE]
    if not all(torch.equal(start, other) for other in starts.values()):
        raise SystemExit("not all runs start with the same parameters")
    ends = {name: parameters(folder / "last.pt") for name, folder in weights.items()}
    apart = {}
    for name, end in ends.items():
        base = ends[BASES.get(name.removeprefix("fit ").partition(",")[0], BASE)]
        apart[name] = distance(start, end, base).said
    return {
        "runs": runs,
        "moved": {name: float((end - start).norm() / start.norm()) for name, end in sorted(ends.items())},
        "ends_apart": dict(sorted(apart.items())),
    }


def gradients_of(place: Path, version: str) -> dict[str, Any]:
    """What gradients.py measured, by bench."""
    benches = proofs.measured_on("gradients", version)
    files = {bench: bench_folder(place, "gradients", bench) / proofs.LEFT["gradients"] for bench in benches}
    return {bench: json.loads(file.read_text(encoding="utf-8")) for bench, file in files.items()}


FIGURES = Path(__file__).parents[1] / "figures.json"
UNWRAPPED = Path(__file__).parents[1] / "recorded" / "unwrapped.json"
NATIVE = ("fit predicted, 1", "stock entry predicted")
"""Unwrapped runs whose steps the adapter predicts: they are facts about EasyR1, with whose commit they are kept."""


def keep_unwrapped(checkout: Path, version: str, runs: dict[str, Any]) -> None:
    """Writes the steps of `NATIVE`, a line for each version."""
    every = json.loads(UNWRAPPED.read_text(encoding="utf-8"))
    versions = {name: importlib.metadata.version(name) for name in ("torch", "transformers", "tensordict", "ray")}
    every[version] = {
        "commit": commit_of(checkout),
        "versions": {"python": platform.python_version(), **versions},
        "runs": {name: whole(runs[name]) for name in NATIVE},
    }
    lines = [f" {json.dumps(name)}: {json.dumps(every[name], sort_keys=True)}" for name in sorted(every)]
    UNWRAPPED.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def whole(value: Any) -> Any:
    """Floats to nine digits, anywhere."""
    if isinstance(value, float):
        return float(f"{value:.9g}")
    if isinstance(value, dict):
        return {name: whole(inner) for name, inner in value.items()}
    return [whole(inner) for inner in value] if isinstance(value, list) else value


def main(checkout: Path, place: Path) -> None:
    version = version_of(checkout)
    found = runs_of(place, version)
    text = proofs.figures(gradients_of(place, version), found)
    keep(FIGURES, version, "text", {"checkout": commit_of(checkout), **text})
    keep_unwrapped(checkout, version, found["runs"])


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
