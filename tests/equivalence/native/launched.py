"""What the runners of launched frameworks share: the command line of `batchbridge run`, and its process."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from matrix import Case, Order

from batchbridge import Spec, read
from batchbridge.testing.snapshots import FOLDER


def spec_of(case: Case) -> Spec:
    """What the case's source means, with its seed where it leaves the order open."""
    reading = read(
        str(case.path),
        framework=case.framework,
        version=case.version,
        world_size=case.ranks if case.framework == "trl" else None,
        dataset_size=case.prompts,
    )
    assert reading.spec is not None, reading.findings
    return reading.spec if case.seed is None else reading.spec.replace(**{"order.seed": case.seed})


def words_of(script: Path) -> list[str]:
    """The command of a shell snippet that `convert` wrote (or of a source), without its program."""
    words = [word for word in shlex.split(script.read_text(encoding="utf-8"), comments=True) if word.strip()]
    return words[3:] if words[1] == "-m" else words[2:]  # python -m module, or python file


def launch(folder: Path, order: Order, command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Runs `command` through `batchbridge run` as the case's source would train; its output goes to `output.txt`."""
    case = order.told
    like = ["--like", str(case.path), "--like-version", case.version]
    if case.seed is not None:
        meaning = folder / "spec.json"
        meaning.write_text(json.dumps(spec_of(case).to_dict()), encoding="utf-8")
        like = ["--spec", str(meaning)]
    launcher = [sys.executable, "-m", "batchbridge", "run", "--ledger", str(folder / "ledger"), "--mode", order.mode]
    with (folder / "output.txt").open("w", encoding="utf-8") as output:
        ran = subprocess.run(
            [*launcher, *like, "--", *command],
            env={**environment, **case.environment, FOLDER: str(folder / "steps"), "BATCHBRIDGE_JITTER": "0.5"},
            cwd=folder,  # hydra leaves a folder of its own there
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
    return ran.returncode
