"""What the runners of launched frameworks share: the command line of `batchbridge run`, and its process."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from matrix import Case, Order

from batchbridge import Spec, read
from batchbridge.testing.snapshots import FOLDER
from batchbridge.testing.tiny import ScriptedRollouts


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


def policy_of(case: Case, folder: Path) -> None:
    """Of a case whose completions are drawn: puts the policy that can be drawn from in the other's place."""
    if case.drawn:
        from batchbridge_on_cpu import drawn

        drawn.start_policy().save_pretrained(folder)


def drawn_script(case: Case) -> ScriptedRollouts | None:
    """Of a case whose completions are drawn: its prompts' texts."""
    if not case.drawn:
        return None
    from batchbridge_on_cpu import drawn

    return drawn.DrawnRollouts()


def meant(order: Order) -> Spec:
    """What the run is told: `spec_of` its case, with what its framework alone decides (`Case.own`)."""
    if not order.told.own:
        return spec_of(order.told)
    native = read(order.native, framework=order.target, dataset_size=order.told.prompts).spec
    assert native is not None
    return spec_of(order.told).replace(**{field: native.values[field] for field in order.told.own})


def words_of(script: Path) -> list[str]:
    """The command of a shell snippet that `convert` wrote (or of a source), without its program."""
    words = [word for word in shlex.split(script.read_text(encoding="utf-8"), comments=True) if word.strip()]
    return words[3:] if words[1] == "-m" else words[2:]  # python -m module, or python file


def launch(folder: Path, order: Order, command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Runs `command` through `batchbridge run` as the case's source would train; its output goes to `output.txt`. A
    critic is not observed in every framework: runs with one are, in that mode, the command alone, and keep no
    ledger."""
    case = order.told
    like = ["--like", str(case.path), "--like-version", case.version]
    if case.seed is not None or case.own:
        meaning = folder / "spec.json"
        meaning.write_text(json.dumps(meant(order).to_dict()), encoding="utf-8")
        like = ["--spec", str(meaning)]
    launcher = [sys.executable, "-m", "batchbridge", "run", "--ledger", str(folder / "ledger"), "--mode", order.mode]
    if order.after:
        shutil.copytree(Path(order.after) / "ledger", folder / "ledger")
        like += ["--allow", "data"]  # the same prompts, but messages here, and there a text
    through = [] if case.critic and order.mode == "observe" else [*launcher, *like, "--"]
    places = {FOLDER: str(folder / "steps"), "BATCHBRIDGE_DRAWN": str(folder / "drawn.jsonl")}
    with (folder / "output.txt").open("w", encoding="utf-8") as output:
        ran = subprocess.run(
            [*through, *command],
            env={**environment, **case.environment, **places, "BATCHBRIDGE_JITTER": "0.02" if case.drawn else "0.5"},
            cwd=folder,  # hydra leaves a folder of its own there
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
    return ran.returncode
