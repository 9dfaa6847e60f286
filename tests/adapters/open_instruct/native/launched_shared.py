"""What `test_sequences_open_instruct` runs: grpo_fast.py itself with two learners that share the tokens of every row,
launched by `batchbridge run`; see `sequences.py` and launched.py.

    BATCHBRIDGE_OPEN_INSTRUCT=CHECKOUT python launched_shared.py FOLDER [NAME...]

Leaves the same as launched.py.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import launched
from launched import Run

RUNS: Mapping[str, Run] = {"shared, 2": Run(2, settings={"attn_implementation": "flash_2"})}
WORDS = ("--sequence_parallel_size", "2", "--deepspeed_stage", "3")


def main(folder: Path, names: list[str]) -> None:
    plain = launched.words_of
    launched.RUNS, launched.words_of = RUNS, lambda *run: [*plain(*run), *WORDS]  # the last of two words counts
    launched.main(folder, names)


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute(), sys.argv[2:])
