"""Trajectories under other kernels: how far apart runs end that train the same, and runs with one fault.

    python tests/kernels/record.py --python trl=.nox/trl/bin/python --python verl=... --python openrlhf=...

Runs the named frameworks' own tests of trajectories with each set of kernels in `KERNELS` (a processor has those of its
predecessors too, and the libraries can be told to take them) and holds every figure against its bar. Figures stand in
figures.json beside this file, each framework's with its commit and date, and in the table of docs/testing.md.
`nox -s kernels` starts it; `--table` only writes the table again.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FIGURES = Path(__file__).with_name("figures.json")
PAGE = ROOT / "docs" / "testing.md"
KERNELS: Mapping[str, Mapping[str, str]] = {
    "this processor's own": {},
    "PyTorch: AVX2": {"ATEN_CPU_CAPABILITY": "avx2"},
    "PyTorch: no vector instructions": {"ATEN_CPU_CAPABILITY": "default"},
    "MKL: the same on every processor": {"MKL_CBWR": "COMPATIBLE"},
    "all three libraries: the oldest": {
        "ATEN_CPU_CAPABILITY": "default",
        "MKL_CBWR": "COMPATIBLE",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
    },
    "two threads": {"OMP_NUM_THREADS": "2"},
}
"""Environment variables of a set of kernels; everything else runs on one thread."""
TESTS: Mapping[str, tuple[str, ...]] = {
    "trl": ("tests/adapters/trl/native/test_trajectory.py",),
    "openrlhf": ("tests/adapters/openrlhf/native/test_fits_openrlhf.py", "-k", "trajectory or budgets or plan_leads"),
    "verl": ("tests/adapters/verl/native/test_runs_verl.py", "-k", "do_not_change_the_run or plan_leads"),
    "easyr1": ("tests/adapters/easyr1/native/test_fits_easyr1.py", "-k", "plan_leads and not two"),
    "open_instruct": ("tests/adapters/open_instruct/native/test_jobs_open_instruct.py", "-k", "plan_leads and not two"),
}
"""What pytest is told in each framework's environment. The last two need the checkout that BATCHBRIDGE_EASYR1 and
BATCHBRIDGE_OPEN_INSTRUCT name."""
BEGIN, END = "<!-- written by tests/kernels/record.py -->\n", "<!-- end -->\n"

Figures = dict[str, dict[str, dict[str, Any]]]
"""Kernels -> case -> kind (sound, control), said, parameters, moved."""
BAR = 1e-5
"""`batchbridge.testing.equivalence.TRAJECTORY_BAR`; a test compares the two."""


def measured(pythons: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Every figure of all frameworks with one set of kernels."""
    with tempfile.TemporaryDirectory(prefix="k") as folder:
        file = Path(folder) / "figures.jsonl"
        own = {**os.environ, "OMP_NUM_THREADS": "1", **environment, "BATCHBRIDGE_TRAJECTORIES": str(file)}
        for framework, python in pythons.items():
            # A comparison that misses its bar is kept as well: `beyond` says so at the end.
            words = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not by_hand", *TESTS[framework]]
            subprocess.run(words, cwd=ROOT, env=own, check=False)
        lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return {
        line.pop("case"): {name: value if name == "kind" else float(f"{value:.3g}") for name, value in line.items()}
        for line in lines
    }


def of(case: str) -> str:
    """The framework of a case."""
    return case.partition(",")[0]


def group_of(case: str) -> str:
    """The column of a case: its framework and optimizer."""
    return ", ".join(case.partition(":")[0].split(", ")[:2])


def worst(figures: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """By column, the largest figure of the sound comparisons."""
    found: dict[str, float] = {}
    for case, figure in figures.items():
        if figure["kind"] == "sound":
            found[group_of(case)] = max(found.get(group_of(case), 0.0), figure["said"])
    return found


def least(figures: Mapping[str, Mapping[str, Any]]) -> float:
    """The smallest figure of the negative controls."""
    return min(float(figure["said"]) for figure in figures.values() if figure["kind"] == "control")


def beyond(figures: Figures) -> list[str]:
    """What is beyond its bar, by kernels: runs that train the same are apart by less than a third of the bar of a
    trajectory, those with one fault by more than ten times."""
    return [
        f"{kernels}: {case}: {figure['kind']}, {figure['said']}"
        for kernels, found in figures.items()
        for case, figure in found.items()
        if not (figure["said"] <= BAR / 3 if figure["kind"] == "sound" else figure["said"] >= 10 * BAR)
    ]


def table(recorded: Mapping[str, Any]) -> str:
    """The table of the page."""
    figures: Figures = recorded["figures"]
    columns = sorted({column for found in figures.values() for column in worst(found)})
    rows = [["kernels", *columns, "least of the controls"], ["---"] * (len(columns) + 2)]
    for name, found in figures.items():
        largest = worst(found)
        rows.append([name, *(f"{largest[column]:.1e}" for column in columns), f"{least(found):.1e}"])
    cases = {case for found in figures.values() for case, figure in found.items() if figure["kind"] == "sound"}
    faults = {case for found in figures.values() for case, figure in found.items() if figure["kind"] == "control"}
    on = "; ".join(f"{', '.join(names)}: commit `{commit}`, {date}" for (commit, date), names in when(recorded).items())
    head = (
        f"Measured on {recorded['machine']} ({on}): {len(cases)} comparisons of runs that train the same, {len(faults)}"
    )
    lines = [f"{head} negative controls.", "", *("| " + " | ".join(row) + " |" for row in rows)]
    return "\n".join(lines) + "\n"


def when(recorded: Mapping[str, Any]) -> dict[tuple[str, str], list[str]]:
    """(commit, date) -> the frameworks that were measured then."""
    found: dict[tuple[str, str], list[str]] = {}
    for name, on in recorded["measured_on"].items():
        found.setdefault((on["commit"], on["date"]), []).append(name)
    return found


def with_table(page: str, recorded: Mapping[str, Any]) -> str:
    """The page with the table of this record."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise SystemExit(f"{PAGE.name} has no place for the table")
    return f"{before}{begin}{table(recorded)}{end}{after}"


def measured_on() -> dict[str, str]:
    """`batchbridge_on_cpu.figures.measured_on`, without its distribution: any Python starts this script."""
    file = ROOT / "tests" / "on_cpu" / "batchbridge_on_cpu" / "figures.py"
    found: dict[str, str] = runpy.run_path(str(file))["measured_on"](ROOT)
    return found


def machine() -> str:
    """The processor, and its widest vectors where Linux names them."""
    info = Path("/proc/cpuinfo")
    fields = dict(
        (part.strip() for part in line.split(":", 1))
        for line in (info.read_text(encoding="utf-8") if info.exists() else "").splitlines()
        if ":" in line
    )
    flags = set(fields.get("flags", "").split())
    vectors = next((name for flag, name in (("avx512f", "AVX-512"), ("avx2", "AVX2")) if flag in flags), "")
    return f"{fields.get('model name', platform.machine())}{f' with {vectors}' if vectors else ''}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", action="append", default=[], metavar="FRAMEWORK=PYTHON")
    parser.add_argument("--table", action="store_true", help="only write the table again")
    asked = parser.parse_args()
    if not asked.table:
        pythons = dict(word.split("=", 1) for word in asked.python)
        if not pythons or not pythons.keys() <= TESTS.keys():
            sys.exit(f"--python: name interpreters of {', '.join(TESTS)}")
        kept = json.loads(FIGURES.read_text(encoding="utf-8"))
        on = {**kept["measured_on"], **dict.fromkeys(pythons, measured_on())}
        figures: Figures = {}
        for name, environment in KERNELS.items():
            others = {case: one for case, one in kept["figures"].get(name, {}).items() if of(case) not in pythons}
            figures[name] = {**others, **measured(pythons, environment)}
        text = json.dumps({"measured_on": on, "machine": machine(), "figures": figures}, indent=1)
        FIGURES.write_text(text + "\n", encoding="utf-8")
    recorded = json.loads(FIGURES.read_text(encoding="utf-8"))
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), recorded), encoding="utf-8")
    if missed := beyond(recorded["figures"]):
        sys.exit("beyond its bar:\n" + "\n".join(missed))


if __name__ == "__main__":
    main()
