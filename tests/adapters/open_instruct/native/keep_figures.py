"""The figures of a matrix's runs, in ../figures.json, their table in docs/open_instruct.md, and what upstream does
unwrapped, in ../recorded/unwrapped.json:

    python keep_figures.py RUNS

RUNS is what `BATCHBRIDGE_OPEN_INSTRUCT_RUNS` named while the tests of this folder ran; `nox -s open_instruct_full`
starts it where BATCHBRIDGE_RECORD=1 asks for figures.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

import oi_proofs as proofs

from batchbridge_on_cpu.figures import MEASURED_ON, measured_on
from batchbridge_on_cpu.trajectories import distance

JOBS = ("enforced", "adamw", "resumed", "observed")
OBSERVED = "launched observed, 2"
KEPT = ("request", "prompt", "seeds", "model_step", "weights")
"""Of what an engine was asked for."""
BEGIN, END = "<!-- written by tests/adapters/open_instruct/native/keep_figures.py -->\n", "<!-- end -->\n"


def parameters(folder: Path, name: str, end: str) -> torch.Tensor:
    made: torch.Tensor = torch.load(folder / f"{name}.pt", weights_only=True)[end]
    return made


def apart(one: tuple[Path, str], other: tuple[Path, str]) -> float:
    """Of two jobs' ends, by what their policies say."""
    return distance(parameters(*other, "first"), parameters(*one, "last"), parameters(*other, "last")).said


def moved(folder: Path, name: str) -> float:
    """How far a job's parameters moved, over their norm."""
    first, last = (parameters(folder, name, end) for end in ("first", "last"))
    return float((last - first).norm() / first.norm())


def rounded(value: Any) -> Any:
    """Floats to nine digits, anywhere."""
    if isinstance(value, float):
        return float(f"{value:.9g}")
    if isinstance(value, dict):
        return {name: rounded(inner) for name, inner in value.items()}
    return [rounded(inner) for inner in value] if isinstance(value, list) else value


def read(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


def measured(place: Path, script: str, *ranks: int) -> dict[str, Any]:
    """What a script measured, by its number of ranks."""
    return {str(count): read(place / f"{script}-{count}" / "measured.json") for count in ranks}


def jobs_of(place: Path) -> dict[str, Any]:
    """Finished jobs by name and ranks, how far they moved, and how far their ends lie from each other."""
    one, two = (place / f"jobs-{ranks}" for ranks in (1, 2))
    jobs = {f"{name}, {folder.name[-1]}": read(folder / f"{name}.json") for folder in (one, two) for name in JOBS}
    if (ray := place / "ray_job-0" / "ray.json").exists():
        jobs["ray, 2"] = read(ray)
    return {
        "jobs": jobs,
        "moved": {name: moved(one, name) for name in JOBS[:2]},
        "ranks_apart": {name: apart((two, name), (one, name)) for name in JOBS[:2]},
        "unwrapped_apart": apart((two, "observed"), (one, "enforced")),
    }


def script_of(place: Path) -> dict[str, Any]:
    """What launched.py left of the unwrapped run: its ledger, and what its engines were asked for; and how far what the
    policies say at the end is from what they say after a driver of one's own, and unwrapped."""
    folder = place / "launched-0"
    observed = read(folder / "launched_observed-2.json")
    first, *ends = (
        torch.load(folder / f"{name}.pt", weights_only=True) for name in ("first", "launched-1", "launched-2")
    )
    unwrapped = torch.load(folder / "launched_observed-2.pt", weights_only=True)
    return {
        "runs": {OBSERVED: observed["run"]},
        "asked": {OBSERVED: [{key: line[key] for key in KEPT} for line in observed["asked"]]},
        "own_driver_apart": {
            str(ranks): distance(first, end, parameters(place / f"jobs-{ranks}", "enforced", "last")).said
            for ranks, end in enumerate(ends, 1)
        },
        "observed_apart": distance(first, unwrapped, ends[1]).said,
    }


def olmo_of(place: Path) -> dict[str, Any]:
    """What olmo.py measured, by ranks, and how far launched_olmo.py's runs on one rank and two ended apart."""
    folder = place / "launched_olmo-0"
    first, one, two = (torch.load(folder / f"{name}.pt", weights_only=True) for name in ("first", "olmo-1", "olmo-2"))
    return {**measured(place, "olmo", 1, 2), "ranks_apart": distance(first, two, one).said}


FIGURES = HERE.parent / "figures.json"
UNWRAPPED = HERE.parent / "recorded" / "unwrapped.json"
PAGE = HERE.parents[3] / "docs" / "open_instruct.md"


def with_table(page: str, figures: dict[str, Any]) -> str:
    """The page with the table of these figures."""
    before, start, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    return f"{before}{start}{proofs.table(figures)}\n{end}{after}"


def main(place: Path) -> None:
    jobs, script = rounded(jobs_of(place)), rounded(script_of(place))
    said = proofs.figures(
        measured(place, "gradients", 1, 2),
        jobs,
        script,
        {"gradients": measured(place, "tool_masks", 1, 2)},
        measured(place, "sequences", 2, 4),
        olmo_of(place),
    )
    figures = rounded({MEASURED_ON: measured_on(HERE), **said})
    FIGURES.write_text(json.dumps(figures, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    kept = {
        "jobs": {name: jobs["jobs"][name] for name in ("observed, 1", "observed, 2")},
        "script": {"run": script["runs"][OBSERVED], "asked": script["asked"][OBSERVED]},
    }
    lines = [f" {json.dumps(name)}: {json.dumps(value, sort_keys=True)}" for name, value in kept.items()]
    UNWRAPPED.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), figures), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
