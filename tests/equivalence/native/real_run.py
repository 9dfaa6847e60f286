"""One run that learns, in three frameworks: a policy that adds two digits right about every other time is trained for
204 optimizer steps with a reward that is checked, wrapped and as each framework is, and every run's rewards are kept.

    python real_run.py FOLDER FIGURES --python trl=.nox/trl/bin/python --python verl=... --python openrlhf=...

Completions are drawn from the run's own policy: see `batchbridge_on_cpu.drawn`. FOLDER gets every run's ledger, steps
and completions; a run that is there already is not repeated. FIGURES gets what the page and the picture show.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from matrix import MODES, REAL
from suite import apart, converted, orders, run, version_of


def drawn_of(place: Path) -> list[dict[str, Any]]:
    """The completions of a finished run, in the order in which they were drawn."""
    return [json.loads(line) for line in (place / "drawn.jsonl").read_text(encoding="utf-8").splitlines()]


def rewards_of(place: Path) -> list[tuple[int, float]]:
    """(optimizer steps before it, mean reward) of each rollout of a finished run."""
    by_step: dict[int, list[float]] = {}
    for row in drawn_of(place):
        by_step.setdefault(row["step"], []).append(row["reward"])
    return [(step, sum(earned) / len(earned)) for step, earned in sorted(by_step.items())]


def first_other(a: Path, b: Path) -> dict[str, Any]:
    """What two runs drew: the first optimizer step before which a completion is another; how many of those that both
    drew are equal."""
    said = [{(row["step"], row["prompt"], row["sample"]): row["tokens"] for row in drawn_of(place)} for place in (a, b)]
    both = said[0].keys() & said[1].keys()
    others = [key for key in said[0].keys() | said[1].keys() if said[0].get(key) != said[1].get(key)]
    equal = sum(said[0][key] == said[1][key] for key in both)
    return {
        "first": min((step for step, _, _ in others), default=None),
        "equal": equal,
        "drawn": max(map(len, said)),
    }


def furthest(a: Sequence[tuple[int, float]], b: Sequence[tuple[int, float]]) -> float:
    """How far two curves are apart at most, at the optimizer steps that both have."""
    other = dict(b)
    return max(abs(mean - other[step]) for step, mean in a if step in other)


def measured(places: Mapping[str, Mapping[str, Path]]) -> dict[str, Any]:
    """The figures of finished runs: mode -> run -> folder."""
    curves = {mode: {name: rewards_of(place) for name, place in runs.items()} for mode, runs in places.items()}
    pairs: dict[str, dict[str, Any]] = {}
    for mode, runs in places.items():
        for a, b in itertools.combinations(runs, 2):
            found = apart(REAL, runs[a], runs[b])
            pairs.setdefault(mode, {})[f"{a} / {b}"] = {
                "ledgers_equal": found["ledgers_equal"],
                "ledgers_part": found["first_difference"] and found["first_difference"]["step"],
                "rewards_apart": round(furthest(curves[mode][a], curves[mode][b]), 4),
                **first_other(runs[a], runs[b]),
            }
    return {
        "versions": {name: version_of(place) for name, place in places["enforce"].items()},
        "curves": {
            mode: {name: [[step, round(mean, 4)] for step, mean in curve] for name, curve in runs.items()}
            for mode, runs in curves.items()
        },
        "pairs": pairs,
    }


def main() -> None:
    from batchbridge_on_cpu import drawn
    from batchbridge_on_cpu.figures import measured_on

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("figures", type=Path)
    parser.add_argument("--at-once", type=int, default=1, metavar="RUNS")
    parser.add_argument("--python", action="append", required=True, metavar="FRAMEWORK=PYTHON")
    asked = parser.parse_args()
    folder = asked.folder.absolute()
    pythons = {name: Path(place) for name, _, place in (word.partition("=") for word in asked.python)}
    os.environ[drawn.START] = str(folder / "start")
    if not (folder / "start").is_dir():
        drawn.save_start(folder / "start")
    natives = {target: converted(folder / REAL.name, REAL, target) for target in pythons}
    ordered = list(orders(folder, REAL, natives, MODES))
    with ThreadPoolExecutor(asked.at_once) as threads:
        ran = list(threads.map(lambda each: run(each[2], each[3], pythons[each[3].target]), ordered))
    if failed := [(name, mode) for (name, mode, _, _), (code, _) in zip(ordered, ran, strict=True) if code]:
        raise SystemExit(f"failed: {failed}; each run's output lies in its folder")
    places: dict[str, dict[str, Path]] = {mode: {} for mode in MODES}
    for name, mode, place, _ in ordered:
        places[mode][name.partition(" ")[0]] = place
    figures = {"measured_on": measured_on(asked.figures.absolute().parent), **measured(places)}
    asked.figures.write_text(json.dumps(figures) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
