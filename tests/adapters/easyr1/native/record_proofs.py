"""The recorded proofs of one version, gradients_, runs_ and tampering_VERSION.json, and its part of figures.json, which
docs/easyr1.md is held against:

    python record_proofs.py CHECKOUT RUNS ../recorded

RUNS is what `BATCHBRIDGE_EASYR1_RUNS` named while the tests of this folder ran on CHECKOUT, a git checkout, in this
environment. Further arguments: the kinds to record (gradients, runs, tampering), all of them without any. Where RUNS
has no run with Ray at all, those without are recorded alone.
"""

from __future__ import annotations

import importlib.metadata
import json
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import proofs
import torch
from started import bench_folder, finished, fit_failed, fit_run, parameters

from batchbridge_on_cpu.trajectories import distance

FITS = {
    1: ("predicted", "enforced", "other loss", "seq", "sgd", "like", "orderly", "filtered", "filtered, observed"),
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
UNCOMPARED = ("predicted", "orderly", "filtered, observed", "stock entry predicted")
"""Runs, with Ray or without, whose ends nothing is compared with."""
BASE, BASES = "fit enforced, 2", {name: f"fit {name}, 2" for name in ("seq", "sgd", "like", "filtered")}
"""What a run's end is compared with."""


def bare(argv: list[str]) -> list[str]:
    """Without folders."""
    pairs = [word.rpartition("=") for word in argv]
    return [f"{key}{equals}{value.rsplit('/', 1)[-1]}" for key, equals, value in pairs]


def rounded(value: Any) -> Any:
    """Floats to nine digits, anywhere."""
    if isinstance(value, float):
        return float(f"{value:.9g}")
    if isinstance(value, dict):
        return {name: rounded(inner) for name, inner in value.items()}
    return [rounded(inner) for inner in value] if isinstance(value, list) else value


def runs_of(place: Path) -> dict[str, Any]:
    """Finished runs by name; outcomes of those that failed; how far each moved, over its parameters' norm, and how far
    what its policy says at the end is from what its base's says, over how far that moved."""
    runs: dict[str, Any] = {}
    failed: dict[str, Any] = {}
    weights: dict[str, Path] = {}
    for ranks, names in FITS.items():
        folder = place / f"fits-{ranks}"
        for name in names:
            run = fit_run(folder, name, ranks)
            runs[f"fit {name}, {ranks}"] = {**run, "argv": bare(run["argv"])}
            if name not in UNCOMPARED:
                weights[f"fit {name}, {ranks}"] = folder / f"{name}-weights"
    for name, (ranks, _) in proofs.FIT_FAULTS.items():
        failed[f"fit {name}, {ranks}"] = fit_failed(place / f"fits-{ranks}", name)
    with_ray = any(finished(place, name) for name in proofs.RUNS)
    for name in proofs.RUNS if with_ray else ():
        if (run := finished(place, name)) is None:
            raise SystemExit(f"{place} has no run {name}: test_runs_easyr1.py makes it")
        if name in proofs.FAULTS:
            continued = finished(place, "resumed") if name == "resumed on one rank" else None
            failed[name] = run.outcome(before=None if continued is None else continued.ledger)
        else:
            runs[name] = {**run.summary(), "argv": bare(run.argv)}
            if name not in UNCOMPARED:
                weights[name] = run.weights
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
        "runs": dict(sorted(runs.items())),
        "failed": dict(sorted(failed.items())),
        "moved": {name: float((end - start).norm() / start.norm()) for name, end in sorted(ends.items())},
        "ends_apart": dict(sorted(apart.items())),
    }


def gradients_of(place: Path) -> dict[str, Any]:
    """What gradients.py measured, by bench."""
    return _measured(place, "gradients")


def tampering_of(place: Path) -> dict[str, Any]:
    """What tampering.py measured, by bench."""
    return _measured(place, "tampering")


def _measured(place: Path, kind: str) -> dict[str, Any]:
    files = {bench: bench_folder(place, kind, bench) / proofs.LEFT[kind] for bench in proofs.MEASURED_ON[kind]}
    return {bench: json.loads(file.read_text(encoding="utf-8")) for bench, file in files.items()}


def made_of(checkout: Path, kind: str) -> dict[str, Any]:
    """EasyR1's commit, the versions beside it, and digests of our code."""
    words = ["git", "-C", str(checkout), "rev-parse", "HEAD"]
    commit = subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
    versions = {name: importlib.metadata.version(name) for name in ("torch", "transformers", "tensordict", "ray")}
    return {
        "commit": commit,
        "versions": {"python": platform.python_version(), **versions},
        "code": proofs.acting_code(kind),
    }


KINDS = {"gradients": gradients_of, "runs": runs_of, "tampering": tampering_of}


def versions_of(kind: str, record: dict[str, Any]) -> set[str]:
    """Versions of EasyR1 that a record is of: one."""
    if kind == "runs":
        return {run["framework_version"] for run in record["runs"].values()}
    return {record[bench]["version"] for bench in proofs.MEASURED_ON[kind]}


def main(checkout: Path, place: Path, out: Path, *kinds: str) -> None:
    kept = {kind: KINDS[kind](place) for kind in kinds or KINDS}
    versions = set().union(*(versions_of(kind, record) for kind, record in kept.items()))
    if len(versions) != 1:
        raise SystemExit(f"{place} has runs of {', '.join(sorted(versions))}, and a record is of one version")
    (version,) = versions
    for kind, record in kept.items():
        text = json.dumps({"made_of": made_of(checkout, kind), **rounded(record)}, separators=(",", ":")) + "\n"
        (out / f"{kind}_{version}.json").write_text(text, encoding="utf-8")
    both = [json.loads((out / f"{kind}_{version}.json").read_text(encoding="utf-8")) for kind in ("gradients", "runs")]
    file = out / "figures.json"
    figures = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    figures[version] = proofs.figures(*both)
    file.write_text(json.dumps(figures, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]), *sys.argv[4:])
