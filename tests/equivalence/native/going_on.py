"""A run that begins in TRL and goes on in verl, from TRL's checkpoint and in TRL's ledger, beside TRL's own whole run.

    python going_on.py FOLDER --python trl=.nox/trl/bin/python --python verl=.nox/verl/bin/python

The control begins from the same checkpoint with AdamW's moments emptied. Needs TRL's environment.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from matrix import CASES, Order
from suite import converted, run, subject_of

CASE = CASES["token_mean"]
STEPS, ROLLOUTS = 4, 2
"""Optimizer steps, and the rollouts that they are of, after which the run goes on elsewhere."""
SAVES = {"save_strategy": "steps", "save_steps": STEPS}
SCHEDULE = "cosine"
RUNS = ("continued", "without moments")
"""The states from which verl goes on."""


def prepared(place: Path, whole: Path, python: Path) -> Path:
    """What verl goes on from: the state that the command makes of TRL's checkpoint, and the ledger until there."""
    shutil.rmtree(place, ignore_errors=True)
    words = [python, "-m", "batchbridge_trl.whole", whole / "out" / f"checkpoint-{STEPS}"]
    subprocess.run([*words, place / f"global_step_{ROLLOUTS}"], check=True)
    (place / "ledger").mkdir()
    (file,) = (whole / "ledger").glob("rank-*.jsonl")
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    (place / "ledger" / file.name).write_text("".join(lines[: 1 + STEPS]), encoding="utf-8")
    return place


def empty_moments(place: Path) -> None:
    """Takes AdamW's moments out of a state."""
    from batchbridge.kit.whole_state import WholeState

    folder = place / f"global_step_{ROLLOUTS}"
    state = WholeState.read(folder)
    for values in state.moments.values():
        values["exp_avg"].zero_()
        values["exp_avg_sq"].zero_()
    state.write(folder)


def compared(place: Path, whole: Path, second: Path) -> dict[str, Any]:
    """The run in both frameworks beside the one in TRL."""
    from batchbridge.ledger import diff, read_headers
    from batchbridge.testing.equivalence import LEDGER_RTOL, FinishedRun, compare

    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    for number, file in enumerate(
        [*sorted((whole / "steps").iterdir())[:STEPS], *sorted((second / "steps").iterdir())]
    ):
        shutil.copy(file, place / f"{number:06d}.pt")
    found = compare(FinishedRun(second / "ledger", place), whole, says=subject_of(CASE).says)
    ledgers = diff(second / "ledger", whole / "ledger", rtol=LEDGER_RTOL)
    return {
        "ledgers": ledgers.to_dict(),
        "trajectory": found.trajectory,
        "movement": found.movement,
        "starts": [
            [header["framework"], header["started"], header["at_step"]] for header in read_headers(second / "ledger")
        ],
    }


def measure(folder: Path, pythons: Mapping[str, Path], at_once: int = 1) -> dict[str, Any]:
    """Runs all of it; a run that is there already is not repeated."""
    place = folder / "between"
    place.mkdir(exist_ok=True)
    source, target = (str(converted(folder / CASE.name, CASE, name)) for name in ("trl", "verl"))
    own = {**SAVES, "lr_scheduler_type": SCHEDULE}
    whole = place / "trl"
    code, _ = run(whole, Order(case=CASE.name, target="trl", mode="enforce", native=source, more=own), pythons["trl"])
    assert code == 0, (whole / "runner.txt").read_text(encoding="utf-8")[-5000:]

    def goes_on(name: str) -> dict[str, Any]:
        short = name[0]  # paths of Ray's sockets end at 107 bytes
        after = prepared(place / f"{short}0", whole, pythons["trl"])
        if name == "without moments":
            empty_moments(after)
        more = {
            "actor_rollout_ref.actor.optim.lr_scheduler_type": SCHEDULE,
            "trainer.resume_mode": "resume_path",
            "trainer.resume_from_path": f"{after}/global_step_{ROLLOUTS}",
        }
        order = Order(case=CASE.name, target="verl", mode="enforce", native=target, more=more, after=str(after))
        code, _ = run(place / short, order, pythons["verl"])
        return {"code": code} if code else {"code": code, **compared(place / f"{short}1", whole, place / short)}

    with ThreadPoolExecutor(at_once) as threads:
        return dict(zip(RUNS, threads.map(goes_on, RUNS), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--at-once", type=int, default=1, metavar="RUNS")
    parser.add_argument("--python", action="append", required=True, metavar="FRAMEWORK=PYTHON")
    asked = parser.parse_args()
    pythons = {name: Path(place) for name, _, place in (word.partition("=") for word in asked.python)}
    asked.folder.mkdir(parents=True, exist_ok=True)
    found = measure(asked.folder.absolute(), pythons, asked.at_once)
    (asked.folder / "going_on.json").write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
