"""What `test_script_open_instruct` runs: grpo_fast.py itself, from its command line to its end, launched by
`batchbridge run` as docs/open_instruct.md says: followed, observed, killed and resumed. CUDA's parts are scripted; see
`batchbridge_on_cpu.open_instruct.scripted`.

    BATCHBRIDGE_OPEN_INSTRUCT=CHECKOUT python launched.py FOLDER [NAME...]

Leaves, of every run, its ledger's summary, which weights answered which prompt, and the parameters at its end. A run
that FOLDER has is not run again.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import oi_proofs as proofs
import torch

from batchbridge.meaning.spec import Staleness
from batchbridge.reading.read import read
from batchbridge_on_cpu.half_saved import half_saved_beside_latest
from batchbridge_on_cpu.open_instruct import scripted
from batchbridge_on_cpu.open_instruct.engines import digest

PROMPTS, SECONDS = 12, 1500
EXACT = {"max_grad_norm": 1e9, "fused_optimizer": False, "deepspeed_zpg": 1}
"""As the jobs of one's own driver have it; see `batchbridge_on_cpu.open_instruct.job`."""
EVALUATED = {
    "local_eval_every": 1,
    "dataset_mixer_eval_list": "{folder}/data 1.0",
    "dataset_mixer_eval_list_splits": "train",
}
"""In every training step but the first: eval_on_step_0 saves a checkpoint, too."""
CHECKPOINTS = {"checkpoint_state_dir": "{folder}/checkpoints", "checkpoint_state_freq": 1}


@dataclass(frozen=True)
class Run:
    """A run. ledger: the run whose ledger it continues; its own by default. environment: beside that of all."""

    ranks: int
    mode: str = "enforce"
    settings: Mapping[str, object] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    ledger: str | None = None
    fails: bool = False


RUNS: Mapping[str, Run] = {
    "launched, 1": Run(1, settings={"vllm_num_engines": 2}),
    "launched, 2": Run(2),
    "launched observed, 2": Run(2, mode="observe"),
    "launched killed, 2": Run(2, settings=CHECKPOINTS, environment={"BATCHBRIDGE_KILL": "1/2"}, fails=True),
    "launched resumed, 2": Run(2, settings={**CHECKPOINTS, "max_grad_norm": 1e8}, ledger="launched killed, 2"),
    "launched evaluated, 1": Run(1, settings={"vllm_num_engines": 2, **EVALUATED}),
    "launched as it is, 1": Run(1, settings={"vllm_num_engines": 2}),
    "launched as it is, 2": Run(2),
}
"""`resumed` is the command of `killed` once more, with another clip norm that nothing reaches either. `as it is`
follows what the command line itself means: it generates ahead."""


def words_of(checkout: Path, folder: Path, run: Run) -> list[str]:
    """The user's command."""
    settings = {**EXACT, **run.settings, "num_learners_per_node": run.ranks}
    given = {key: str(value).format(folder=folder) for key, value in settings.items()}
    return [*scripted.command(checkout, folder, given), *proofs.COMMAND[2:]]


def start(checkout: Path, folder: Path, name: str) -> None:
    """One run, and what it leaves."""
    run, file = RUNS[name], name.replace(", ", "-").replace(" ", "_")
    ledger = folder / ("ledger-" + (run.ledger or name).replace(", ", "-").replace(" ", "_"))
    asked, output = folder / f"{file}.jsonl", folder / "output"
    for left in (output, *([] if run.ledger else [ledger])):
        shutil.rmtree(left, ignore_errors=True)
    asked.unlink(missing_ok=True)
    if run.fails and run.settings:
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    if run.ledger:  # as where the killed run was killed while it saved
        half_saved_beside_latest(folder / "checkpoints")
    words = words_of(checkout, folder, run)
    options = ["--mode", run.mode, "--ledger", str(ledger)]
    if run.mode == "enforce" and "as it is" not in name:
        own = read(words).spec
        assert own is not None
        (folder / f"{file}.spec").write_text(json.dumps(own.replace(staleness=Staleness()).to_dict()), encoding="utf-8")
        options += ["--spec", str(folder / f"{file}.spec")]
    log = folder / f"{file}.log"
    with tempfile.TemporaryDirectory(prefix="o") as short, log.open("w", encoding="utf-8") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "batchbridge", "run", *options, "--", *words],
            env=scripted.environment(
                checkout,
                Path(short),
                BATCHBRIDGE_OPTIMIZER="sgd",
                BATCHBRIDGE_JITTER="0.3",
                BATCHBRIDGE_ASKED=str(asked),
                **run.environment,
            ),
            cwd=folder,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(timeout=SECONDS)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # a worker of Ray's may outlive its cluster
    said = log.read_text(encoding="utf-8")[-60000:]
    assert (code != 0) == run.fails, said
    made: dict[str, Any] = {"exit": code, "asked": answered(asked), "said": said}
    if ledger.exists():
        made["run"] = proofs.summary(ledger)
    if not run.fails:
        torch.save(parameters(next(output.iterdir())), folder / f"{file}.pt")
    (folder / f"{file}.json").write_text(json.dumps(made), encoding="utf-8")


def answered(file: Path) -> list[dict[str, Any]]:
    """Of every prompt that an engine answered: its samples' seeds, in their order, the step whose weights it is stamped
    with, and their digest."""
    if not file.exists():
        return []
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    seeds: dict[str, dict[int, int | None]] = {}
    for line in lines:
        seeds.setdefault(line["request"], {})[line["sample"]] = line["seed"]
    ordered = {request: [found[sample] for sample in sorted(found)] for request, found in seeds.items()}
    return [{**line, "seeds": ordered[line["request"]]} for line in lines if line["sample"] == 0]


def parameters(place: Path) -> torch.Tensor:
    """Of a saved policy, flat."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32)
    return torch.cat([one.detach().flatten() for one in model.parameters()])


def main(folder: Path, names: list[str]) -> None:
    checkout = Path(os.environ["BATCHBRIDGE_OPEN_INSTRUCT"]).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "policy").exists():
        scripted.prepare(folder, prompts=PROMPTS)
    for name in names or RUNS:
        if not (folder / f"{name.replace(', ', '-').replace(' ', '_')}.json").exists():
            start(checkout, folder, name)
    from transformers import AutoModelForCausalLM

    first = AutoModelForCausalLM.from_pretrained(folder / "policy", dtype=torch.float32)
    torch.save(parameters(folder / "policy"), folder / "first.pt")
    (folder / "initial.txt").write_text(digest(first.named_parameters()), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute(), sys.argv[2:])
