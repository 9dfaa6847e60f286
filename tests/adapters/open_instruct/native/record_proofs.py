"""The recorded proofs: gradients.json, jobs.json, script.json, and figures.json, whose table is written into the page.

    python record_proofs.py RUNS ../recorded ../../../../docs/open_instruct.md

RUNS is what `BATCHBRIDGE_OPEN_INSTRUCT_RUNS` named while the tests of this folder ran. With "tampering" in the place of
the page, only what test_tampering_open_instruct.py left is recorded, in tampering.json; with a name of `ALONE`
before it, what is its, in a file of that name, beside the other records as they are.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))

import proofs

from batchbridge_on_cpu.trajectories import distance

JOBS = ("enforced", "adamw", "resumed", "observed")
RUNS_OF_JOBS = (("jobs", 1), ("jobs", 2), ("killed", 0), ("ray_job", 0))
WORDS = ("Connection closed by peer", "PolicyTrainerRayProcess", "died", "the job ended well")
"""Of the errors with which jobs end: kept are those that were said."""
BEGIN, END = "<!-- written by tests/adapters/open_instruct/native/record_proofs.py -->\n", "<!-- end -->\n"


def parameters(folder: Path, name: str, end: str) -> torch.Tensor:
    made: torch.Tensor = torch.load(folder / f"{name}.pt", weights_only=True)[end]
    return made


def moved(folder: Path, name: str) -> torch.Tensor:
    return parameters(folder, name, "last") - parameters(folder, name, "first")


def apart(one: tuple[Path, str], other: tuple[Path, str]) -> float:
    """Of two jobs' ends, by what their policies say."""
    return distance(parameters(*other, "first"), parameters(*one, "last"), parameters(*other, "last")).said


def rounded(value: Any) -> Any:
    """Floats to nine digits, anywhere."""
    if isinstance(value, float):
        return float(f"{value:.9g}")
    if isinstance(value, dict):
        return {name: rounded(inner) for name, inner in value.items()}
    return [rounded(inner) for inner in value] if isinstance(value, list) else value


def code_of(*folders: Path) -> dict[str, str]:
    """The code that these runs are of. Raises `ValueError` for runs of different code."""
    merged: dict[str, str] = {}
    for folder in folders:
        for name, digest in json.loads((folder / "code.json").read_text(encoding="utf-8")).items():
            if merged.setdefault(name, digest) != digest:
                raise ValueError(f"{', '.join(one.name for one in folders)}: runs of different {name}")
    return merged


def tampering_of(place: Path) -> dict[str, Any]:
    """What tampering.py measured, by ranks."""
    folders = {ranks: place / f"tampering-{ranks}" for ranks in ("1", "2")}
    found = {
        ranks: json.loads((folder / "tampering.json").read_text(encoding="utf-8")) for ranks, folder in folders.items()
    }
    return {"code": code_of(*folders.values()), **found}


def record_tampering(place: Path, out: Path) -> None:
    """Writes tampering.json."""
    text = json.dumps(rounded(tampering_of(place)), separators=(",", ":")) + "\n"
    (out / "tampering.json").write_text(text, encoding="utf-8")


def jobs_of(place: Path) -> dict[str, Any]:
    """Finished jobs by name and ranks, how far they moved, and how far their ends lie from each other."""
    one, two = (place / f"jobs-{ranks}" for ranks in (1, 2))
    jobs = {
        f"{name}, {folder.name[-1]}": json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
        for folder in (one, two)
        for name in JOBS
    }
    ends = {}
    for name, file in (
        ("killed, 2", place / "killed-0" / "killed"),
        ("ray, 2", place / "ray_job-0" / "ray"),
        ("killed with Ray, 2", place / "ray_job-0" / "killed"),
    ):
        if file.with_suffix(".json").exists():
            jobs[name] = json.loads(file.with_suffix(".json").read_text(encoding="utf-8"))
            said = file.with_suffix(".txt").read_text(encoding="utf-8")
            ends[name] = [word for word in WORDS if word in said]
    return {
        "code": code_of(*(place / f"{name}-{ranks}" for name, ranks in RUNS_OF_JOBS)),
        "report": [
            line for line in (two / "report-1.txt").read_text(encoding="utf-8").splitlines() if "note: " in line
        ],
        "jobs": jobs,
        "ends": ends,
        "foreign": (one / "foreign.txt").read_text(encoding="utf-8"),
        "moved": {name: float(moved(one, name).norm() / parameters(one, name, "first").norm()) for name in JOBS[:2]},
        "ranks_apart": {name: apart((two, name), (one, name)) for name in JOBS[:2]},
        "resumed_is_equal": all(
            torch.equal(parameters(folder, "adamw", "last"), parameters(folder, "resumed", "last"))
            for folder in (one, two)
        ),
        "unwrapped_apart": apart((two, "observed"), (one, "enforced")),
    }


SCRIPTS = (
    "launched, 1",
    "launched, 2",
    "launched observed, 2",
    "launched killed, 2",
    "launched resumed, 2",
    "launched evaluated, 1",
    "launched as it is, 1",
    "launched as it is, 2",
)
SAID = ("PolicyTrainerRayProcess", "died")
KEPT = ("request", "prompt", "seeds", "model_step", "weights")
"""Of what an engine was asked for."""


def script_of(place: Path) -> dict[str, Any]:
    """What launched.py left: ledgers, what was asked for and by which weights it was answered, and how far what
    the policy says at the end is from what it says after a driver of one's own."""
    folder = place / "launched-0"
    names = {name: name.replace(", ", "-").replace(" ", "_") for name in SCRIPTS}
    left = {name: json.loads((folder / f"{file}.json").read_text(encoding="utf-8")) for name, file in names.items()}
    first = torch.load(folder / "first.pt", weights_only=True)
    ends = {
        name: torch.load(folder / f"{file}.pt", weights_only=True)
        for name, file in names.items()
        if (folder / f"{file}.pt").exists()
    }
    resumed = left["launched resumed, 2"]["said"]
    return {
        "code": code_of(folder),
        # The warning without the file that it stands in.
        "note": next((line for line in resumed.splitlines() if proofs.CLIP_NORM in line), "").rpartition("Warning: ")[
            2
        ],
        "runs": {name: left[name]["run"] for name in SCRIPTS},
        "asked": {name: [{key: line[key] for key in KEPT} for line in one["asked"]] for name, one in left.items()},
        "said": {name: [word for word in SAID if word in one["said"]] for name, one in left.items() if one["exit"]},
        "initial": (folder / "initial.txt").read_text(encoding="utf-8"),
        "own_driver_apart": {
            str(ranks): distance(
                first, ends[f"launched, {ranks}"], parameters(place / f"jobs-{ranks}", "enforced", "last")
            ).said
            for ranks in (1, 2)
        },
        "observed_apart": distance(first, ends["launched observed, 2"], ends["launched, 2"]).said,
        "resumed_is_equal": torch.equal(ends["launched resumed, 2"], ends["launched, 2"]),
        "evaluated_is_equal": torch.equal(ends["launched evaluated, 1"], ends["launched, 1"]),
    }


TOOLS = ("tools, 1", "tools, 2", "tools trained, 1")
ENVIRONMENTS = ("counter, 1", "wordle, 1", "generic_sandbox, 1")


def launched_of(folder: Path, names: Sequence[str]) -> dict[str, Any]:
    """What launched runs left, with the fingerprints of what they trained on."""
    files = {name: name.replace(", ", "-").replace(" ", "_") for name in names}
    left = {name: json.loads((folder / f"{file}.json").read_text(encoding="utf-8")) for name, file in files.items()}
    return {
        "runs": {name: one["run"] for name, one in left.items()},
        "asked": {name: [{key: line[key] for key in KEPT} for line in one["asked"]] for name, one in left.items()},
        "fingerprints": {name: proofs.fingerprints(folder / f"ledger-{file}") for name, file in files.items()},
        "initial": (folder / "initial.txt").read_text(encoding="utf-8"),
    }


def tools_of(place: Path) -> dict[str, Any]:
    """What tool_masks.py measured, by ranks, and what launched_tools.py left."""
    masks, folder = {ranks: place / f"tool_masks-{ranks}" for ranks in ("1", "2")}, place / "launched_tools-0"
    return {
        "code": code_of(*masks.values(), folder),
        "gradients": {
            ranks: json.loads((one / "measured.json").read_text(encoding="utf-8")) for ranks, one in masks.items()
        },
        **launched_of(folder, TOOLS),
    }


def environments_of(place: Path) -> dict[str, Any]:
    """What launched_environments.py left."""
    folder = place / "launched_environments-0"
    return {"code": code_of(folder), **launched_of(folder, ENVIRONMENTS)}


def sequences_of(place: Path) -> dict[str, Any]:
    """What sequences.py measured, by ranks, and what launched_shared.py left."""
    folders, folder = {ranks: place / f"sequences-{ranks}" for ranks in ("2", "4")}, place / "launched_shared-0"
    left = json.loads((folder / "shared-2.json").read_text(encoding="utf-8"))
    return {
        "code": code_of(*folders.values(), folder),
        **{ranks: json.loads((one / "measured.json").read_text(encoding="utf-8")) for ranks, one in folders.items()},
        "run": left["run"],
        "asked": [{key: line[key] for key in KEPT} for line in left["asked"]],
        "initial": (folder / "initial.txt").read_text(encoding="utf-8"),
    }


OLMO = ("olmo, 1", "olmo, 2", "olmo observed, 2", "olmo as it is, 2", "olmo killed, 2", "olmo resumed, 2")


def olmo_of(place: Path) -> dict[str, Any]:
    """What olmo.py measured, by ranks, and what launched_olmo.py left."""
    folders, folder = {ranks: place / f"olmo-{ranks}" for ranks in ("1", "2")}, place / "launched_olmo-0"
    files = {name: name.replace(", ", "-").replace(" ", "_") for name in OLMO}
    left = {name: json.loads((folder / f"{file}.json").read_text(encoding="utf-8")) for name, file in files.items()}
    ends = {
        name: torch.load(folder / f"{files.get(name, name)}.pt", weights_only=True)
        for name in ("first", "olmo, 1", "olmo, 2", "olmo resumed, 2")
    }
    return {
        "code": code_of(*folders.values(), folder),
        **{ranks: json.loads((one / "measured.json").read_text(encoding="utf-8")) for ranks, one in folders.items()},
        "runs": {name: one["run"] for name, one in left.items()},
        "asked": {name: [{key: line[key] for key in KEPT} for line in one["asked"]] for name, one in left.items()},
        "initial": (folder / "initial.txt").read_text(encoding="utf-8"),
        "ranks_apart": distance(ends["first"], ends["olmo, 2"], ends["olmo, 1"]).said,
        "resumed_is_equal": torch.equal(ends["olmo resumed, 2"], ends["olmo, 2"]),
    }


def gradients_of(place: Path) -> dict[str, Any]:
    """What gradients.py measured, by ranks."""
    folders = {ranks: place / f"gradients-{ranks}" for ranks in ("1", "2")}
    found = {ranks: json.loads((one / "measured.json").read_text(encoding="utf-8")) for ranks, one in folders.items()}
    return {"code": code_of(*folders.values()), **found}


ALONE = {
    "gradients": gradients_of,
    "tools": tools_of,
    "environments": environments_of,
    "sequences": sequences_of,
    "olmo": olmo_of,
}
"""Records that can be made beside the others as they are."""


def record_alone(which: str, place: Path, out: Path, page: Path) -> None:
    """Writes one of `ALONE`, and the figures and the page of all records."""
    made = {name: json.loads((out / f"{name}.json").read_text(encoding="utf-8")) for name in RECORDS if name != which}
    write({**made, which: rounded(ALONE[which](place))}, out, page)


def main(place: Path, out: Path, page: Path) -> None:
    parts = {"jobs": jobs_of(place), "script": script_of(place)}
    write(rounded({**parts, **{name: made_of(place) for name, made_of in ALONE.items()}}), out, page)


RECORDS = ("gradients", "jobs", "script", "tools", "sequences", "olmo")
"""What the page's figures are of."""


def write(made: dict[str, Any], out: Path, page: Path) -> None:
    """The records, their figures, and the table of the page."""
    made["figures"] = proofs.figures(*(made[name] for name in RECORDS))
    for name, value in made.items():
        text = json.dumps(rounded(value), separators=(",", ":")) + "\n"
        (out / f"{name}.json").write_text(text, encoding="utf-8")
    before, start, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    page.write_text(f"{before}{start}{proofs.table(rounded(made['figures']))}\n{end}{after}", encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[3] in ALONE:
        record_alone(sys.argv[3], *map(Path, (*sys.argv[1:3], sys.argv[4])))
    else:
        record_tampering(Path(sys.argv[1]), Path(sys.argv[2]))
    if sys.argv[3] not in ("tampering", *ALONE):
        main(*map(Path, sys.argv[1:4]))
