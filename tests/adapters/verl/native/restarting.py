"""verl's stock entry under a Ray of its own, killed again and again with all that it has started; see
`batchbridge_on_cpu.killing`.

`python restarting.py FOLDER RANKS SEED [OVERRIDE ...]`: writes what happened to FOLDER/said.json.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from batchbridge_on_cpu.killing import Launched, run_to_its_end
from batchbridge_on_cpu.verl.scripted import command, environment, prepare

PATIENCE = 900.0
GOES_ON = ("trainer.total_training_steps=3", "trainer.save_freq=1", "trainer.resume_mode=auto")


def main(folder: Path, ranks: int, seed: int, more: list[str]) -> None:
    made: list[Launched] = []

    def start(place: Path) -> list[int]:
        if not place.exists():
            place.mkdir()
            prepare(place)
            before = [sys.executable, "-m", "batchbridge", "run", "--ledger", str(place / "ledger"), "--"]
            own = {**environment(os.environ), "BATCHBRIDGE_WEIGHTS": str(place / "weights"), "BATCHBRIDGE_JITTER": "1"}
            made.append(Launched([*before, *command(place, ranks, *GOES_ON, *more)], own, place))
        return made[-1].start()

    try:
        run_to_its_end(folder, start, seed=seed, patience=PATIENCE)
    finally:
        for one in made:
            one.clear()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
