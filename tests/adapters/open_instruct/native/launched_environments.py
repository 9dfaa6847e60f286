"""What `test_tools_open_instruct` runs: grpo_fast.py itself with environments that keep a state or answer every turn,
launched by `batchbridge run`. Its own loop asks for turns, calls them, masks what they say and takes what they give;
see `batchbridge_on_cpu.open_instruct.engines`.

    BATCHBRIDGE_OPEN_INSTRUCT=CHECKOUT python launched_environments.py FOLDER [NAME...]

Leaves the same as launched.py.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import launched
import oi_proofs as proofs
from launched import Run

from batchbridge_on_cpu.open_instruct import engines, scripted

WORDS = ("--pool_size", "4", "--response_length", "80", "--pack_length", "96")
"""An environment's tokens count against the length of the response."""


def _run(name: str, **settings: object) -> Run:
    """A run with an environment; where it scores, rewards are its own, by Open-Instruct's code."""
    rewards = {"BATCHBRIDGE_REWARDS": "1"} if name in proofs.SCORES else {}
    tasks = {"dataset_mixer_list": f"{{folder}}/{name} 1.0"} if name in engines.TASKS else {}
    return Run(1, settings={"tools": name, **tasks, **settings}, environment={"BATCHBRIDGE_TOOLS": name, **rewards})


RUNS: Mapping[str, Run] = {
    "counter, 1": _run("counter", vllm_num_engines=2),
    "wordle, 1": _run("wordle"),
    "generic_sandbox, 1": _run("generic_sandbox"),
}


def main(folder: Path, names: list[str]) -> None:
    for name, task in engines.TASKS.items():
        one = {"env_config": {"env_name": name, **task}}
        scripted.dataset(folder / name, prompts=launched.PROMPTS, more=one)
    plain = launched.words_of
    launched.RUNS, launched.words_of = RUNS, lambda *run: [*plain(*run), *WORDS]  # the last of two words counts
    launched.main(folder, names)


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute(), sys.argv[2:])
