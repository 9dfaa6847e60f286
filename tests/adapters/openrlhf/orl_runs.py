"""Runs of OpenRLHF's stock entry through `batchbridge run`, each a process of its own: CPU, gloo, scripted rollouts
that arrive out of order. What the tests in `by_hand` share."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import orl_proofs as proofs
import torch
from orl_proofs import PROMPTS, summary

from batchbridge_on_cpu.openrlhf.scripted import command, environment

PREPARE = """
import sys
from pathlib import Path
from batchbridge_on_cpu.openrlhf.scripted import prepare
prepare(Path(sys.argv[1]), prompts=int(sys.argv[2]))
"""


@dataclass(frozen=True)
class Run:
    """A finished run: what it said, its ledger, and the folder."""

    code: int
    text: str
    ledger: Path
    folder: Path

    def weights(self, name: str = "trained") -> dict[str, torch.Tensor]:
        from safetensors.torch import load_file

        return load_file(self.folder / name / "model.safetensors")

    def summary(self, clipped: Path | None = None) -> dict[str, Any]:
        """The ledger; clipped: the file of `BATCHBRIDGE_CLIPPED`."""
        found = summary(self.ledger)
        if clipped is not None:
            found["clipped"] = proofs.clipped_in(clipped, found)
        return found

    def says(self, *texts: str) -> None:
        """The run ended with an error that has these texts."""
        assert self.code != 0
        for text in texts:
            assert text in self.text, self.text[-20000:]


def prepared(folder: Path, prompts: int = PROMPTS) -> None:
    """Policy and prompts, made once, in a process of its own: saving imports DeepSpeed, whose warnings would be errors
    here."""
    if not (folder / "prompts.jsonl").exists():
        folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-c", PREPARE, str(folder), str(prompts)]
        subprocess.run(command, env=environment(folder, 1), check=True, capture_output=True)


def run(
    folder: Path,
    ranks: int,
    *flags: str,
    options: tuple[str, ...] = (),
    optimizer: Literal["sgd", "adamw"] = "sgd",
    prompts: int = PROMPTS,
    env: dict[str, str] | None = None,
    **changes: str,
) -> Run:
    """Runs the command line in `folder`; `options` are those of `batchbridge run`, `changes` those of OpenRLHF."""
    prepared(folder, prompts)
    launcher = [sys.executable, "-m", "batchbridge", "run", "--ledger", str(folder / "ledger")]
    words = [*launcher, *options, "--", *command(folder, ranks, *flags, **changes)]
    own = {**environment(folder, ranks, optimizer=optimizer), "BATCHBRIDGE_JITTER": "0.5", **(env or {})}
    key = hashlib.sha256(json.dumps([words, optimizer, env]).encode()).hexdigest()[:8]
    answer, ledger = folder / f"{key}.json", folder / f"ledger-{key}"  # a folder may see several runs
    if not answer.exists():
        for _ in range(3):  # on a busy machine Ray gives up its own start
            ran = subprocess.run(
                words, env=own, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
            )
            if ran.returncode == 0 or "timed out during startup" not in ran.stdout:
                break
        if (folder / "ledger").exists():
            shutil.copytree(folder / "ledger", ledger)
        answer.write_text(json.dumps([ran.returncode, ran.stdout]), encoding="utf-8")
    code, text = json.loads(answer.read_text(encoding="utf-8"))
    return Run(code, text, ledger, folder)
