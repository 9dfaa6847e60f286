"""What `test_olmo_open_instruct` runs: grpo.py itself, launched by `batchbridge run`: followed, observed, killed and
resumed; see `olmo.py` and launched.py.

    BATCHBRIDGE_OPEN_INSTRUCT=CHECKOUT python launched_olmo.py FOLDER [NAME...]

Leaves the same as launched.py.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import launched
from launched import CHECKPOINTS, Run

RUNS: Mapping[str, Run] = {
    "olmo, 1": Run(1, settings={"vllm_num_engines": 2}),
    "olmo, 2": Run(2),
    "olmo observed, 2": Run(2, mode="observe"),
    "olmo as it is, 2": Run(2),
    "olmo killed, 2": Run(2, settings=CHECKPOINTS, environment={"BATCHBRIDGE_KILL": "1/2"}, fails=True),
    "olmo resumed, 2": Run(2, settings={**CHECKPOINTS, "max_grad_norm": 1e8}, ledger="olmo killed, 2"),
}
"""As those of launched.py."""
WORDS = ("--attn_implementation", "flash_2", "--model_dtype", "float32", "--learning_rate", "0.12")
"""Its learning rate moves once per rollout, so that steps with a small one are more."""


def main(folder: Path, names: list[str]) -> None:
    plain = launched.words_of

    def words_of(checkout: Path, place: Path, run: Run) -> list[str]:
        interpreter, script, *words = plain(checkout, place, run)
        return [interpreter, str(Path(script).with_name("grpo.py")), *words, *WORDS]  # the last of two words counts

    launched.RUNS, launched.words_of, launched.half_saved_beside_latest = RUNS, words_of, lambda folder: None
    launched.main(folder, names)


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute(), sys.argv[2:])
