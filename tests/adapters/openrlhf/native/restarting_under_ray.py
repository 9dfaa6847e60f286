"""OpenRLHF's stock entry under a Ray of its own, killed again and again with all that it has started; see
`batchbridge_on_cpu.killing`.

`python restarting_under_ray.py FOLDER RANKS SEED`: writes what happened to FOLDER/said.json.
"""

from __future__ import annotations

import sys
from pathlib import Path

from batchbridge_on_cpu.killing import Launched, run_to_its_end
from batchbridge_on_cpu.openrlhf.scripted import command, environment, prepare

PATIENCE = 900.0


def main(folder: Path, ranks: int, seed: int) -> None:
    made: list[Launched] = []

    def start(place: Path) -> list[int]:
        if not place.exists():
            place.mkdir()
            prepare(place)
            words = command(place, ranks, "--ckpt.load_enable", ckpt__save_steps="1")
            before = [sys.executable, "-m", "batchbridge", "run", "--ledger", str(place / "ledger"), "--"]
            made.append(Launched([*before, *words], environment(place, ranks), place))
        return made[-1].start()

    try:
        run_to_its_end(folder, start, seed=seed, patience=PATIENCE)
    finally:
        for one in made:
            one.clear()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
