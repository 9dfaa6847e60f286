"""Runs of EasyR1, made once and kept in a folder: with Ray, each a process of its own (`proofs.RUNS`), and without
(`proofs.FITS`, by fits.py)."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import proofs
import torch

from batchbridge.ledger import read_headers, read_steps
from batchbridge_easyr1.installed import version_in
from batchbridge_on_cpu.easyr1.scripted import command, environment, prepare
from batchbridge_on_cpu.half_saved import half_saved
from batchbridge_on_cpu.trajectories import whole
from batchbridge_on_cpu.verl.cuts import cuts_in

TRIES = 3
"""On a busy machine Ray gives up its own start after 15 seconds."""


@dataclass(frozen=True)
class Run:
    """A finished run: what it said, its ledger as it was then, and its weights at the start and at the end."""

    name: str
    code: int
    text: str
    argv: list[str]
    ledger: Path
    weights: Path

    def parameters(self, end: str) -> torch.Tensor:
        """All of them, flat; end: first, last."""
        return parameters(self.weights / f"{end}.pt")

    def summary(self) -> dict[str, Any]:
        """Of a run that ended well; that of a user's own driver has its report."""
        assert self.code == 0, self.text[-20000:]
        report = self.ledger.with_name("report.json")
        own = {"report": json.loads(report.read_text(encoding="utf-8"))} if self.name == proofs.OWN_DRIVER else {}
        if self.name == proofs.ON_ONE_RANK:
            own["cuts"] = cuts_in(self.ledger.with_name(f"{self.name} cuts"))
        return {**proofs.summary(self.ledger), "argv": self.argv, **own}

    def outcome(self, before: Path | None = None) -> dict[str, Any]:
        """Of a run that failed, see `outcome`; before: its ledger's beginning."""
        fresh = before is None or len(read_headers(self.ledger)) > len(read_headers(before))
        return outcome(self.code, self.text, proofs.RUNS[self.name].said, self.ledger if fresh else None)


def outcome(code: int, text: str, why: str, ledger: Path | None) -> dict[str, Any]:
    """The last line with `why`, without folders; and the steps that a run wrote."""
    lines = [line for line in text.splitlines() if why in line]
    said = re.sub(r"(?<!\w)/\S*/", "", lines[-1]).strip() if lines else ""
    if ledger is None or not ledger.exists():
        return {"code": code, "said": said, "steps": [], "incomplete": False}
    steps = read_steps(ledger)
    return {"code": code, "said": said, "steps": [step["step"] for step in steps], "incomplete": bool(steps.incomplete)}


def parameters(file: Path) -> torch.Tensor:
    """A file of weights, flat."""
    return whole(torch.load(file, weights_only=True))


def finished(place: Path, name: str) -> Run | None:
    """What was kept of a run."""
    folder = place / proofs.RUNS[name].folder
    answer = folder / f"{name}.json"
    if not answer.exists():
        return None
    code, text, argv = json.loads(answer.read_text(encoding="utf-8"))
    return Run(name, code, text, argv, folder / f"{name} ledger", folder / f"{name} weights")


def start(place: Path, checkout: Path, name: str) -> Run:
    """The run `name`, made now unless it was kept."""
    if (kept := finished(place, name)) is not None:
        return kept
    planned = proofs.RUNS[name]
    folder = place / planned.folder
    if not (folder / "policy").exists():
        folder.mkdir(parents=True, exist_ok=True)
        prepare(folder, prompts=proofs.PROMPTS)
    if name in proofs.CHANGED:
        checkout = changed(checkout, folder / "checkout", *proofs.CHANGED[name])
    words = command(folder, planned.ranks, *planned.settings)
    launcher = [sys.executable, "-m", "batchbridge", "run", "--ledger", str(folder / "ledger"), *planned.options, "--"]
    if name == proofs.OWN_DRIVER:
        script = Path(__file__).with_name("own_driver.py")
        launcher, words = [], [sys.executable, str(script), str(folder), str(planned.ranks), *planned.settings]
    if name == "resumed" and not (folder / "checkpoints" / "global_step_3").exists():
        half_saved(folder / "checkpoints" / "global_step_2", folder / "checkpoints" / "global_step_3")
    own = {
        **environment(folder, checkout, ranks=planned.ranks),
        "BATCHBRIDGE_WEIGHTS": str(folder / f"{name} weights"),
        "BATCHBRIDGE_CUTS": str(folder / f"{name} cuts"),
        "BATCHBRIDGE_SEEDS": str(folder / f"{name} seeds"),
        "BATCHBRIDGE_KILL": planned.kill,
    }
    for _ in range(TRIES):
        ran = subprocess.run(
            [*launcher, *words],
            env=own,
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if ran.returncode == 0 or "The current node timed out during startup" not in ran.stdout:
            break
    if (folder / "ledger").exists():
        shutil.copytree(folder / "ledger", folder / f"{name} ledger")
    (folder / f"{name}.json").write_text(json.dumps([ran.returncode, ran.stdout, words[1:]]), encoding="utf-8")
    made = finished(place, name)
    assert made is not None
    return made


def version_of(checkout: Path) -> str:
    """The version of a checkout of EasyR1."""
    found = version_in(checkout / "verl")
    assert found is not None, f"{checkout} is no checkout of EasyR1"
    return found


def changed(checkout: Path, copy: Path, place: str, name: str) -> Path:
    """A copy of the checkout in which the function `name` of the file `place` begins with another statement; returns
    it."""
    shutil.copytree(checkout / "verl", copy / "verl")
    file = copy / "verl" / place
    lines = file.read_text(encoding="utf-8").splitlines()
    (function,) = (
        node
        for node in ast.walk(ast.parse("\n".join(lines)))
        if isinstance(node, ast.FunctionDef) and node.name == name
    )
    first = function.body[0]
    lines.insert(first.lineno - 1, " " * first.col_offset + "assert True")
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return copy


# ---- without Ray


def measured_by(script: Path, place: Path, checkout: Path, bench: str) -> dict[str, Any]:
    """What gradients.py or tampering.py measures on a bench of `proofs.BENCHES`, unless it was kept."""
    (ranks, settings), folder = proofs.BENCHES[bench], bench_folder(place, script.stem, bench)
    leaves = proofs.LEFT[script.stem]
    if not (folder / leaves).exists():
        folder.mkdir(parents=True, exist_ok=True)
        prepare(folder)
        command = [sys.executable, "-m", "torch.distributed.run", f"--nproc_per_node={ranks}", "--standalone"]
        paths = [str(checkout), os.environ.get("PYTHONPATH", "")]
        ran = subprocess.run(
            [*command, str(script), str(folder), json.dumps(settings)],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        )
        assert ran.returncode == 0, ran.stderr[-20000:]
    found: dict[str, Any] = json.loads((folder / leaves).read_text(encoding="utf-8"))
    return found


def bench_folder(place: Path, kind: str, bench: str) -> Path:
    """Where a script leaves what it measures on a bench."""
    return place / f"{kind}-{bench.replace(', ', '-')}"


def fit(place: Path, checkout: Path, ranks: int, *names: str, **env: str) -> Path:
    """Runs scenarios of fits.py on so many ranks, in one job, unless they were kept; returns their folder.

    It has NAME.json, [exit code, output]; and NAME-left, the ledger of a job that failed, as it was then.
    """
    folder = place / f"fits-{ranks}"
    if not (folder / "policy").exists():
        folder.mkdir(parents=True, exist_ok=True)
        prepare(folder, prompts=proofs.PROMPTS)
    if all((folder / f"{name}.json").exists() for name in names):
        return folder
    if names[0] in proofs.CHANGED:
        checkout = changed(checkout, folder / f"checkout of {names[0]}", *proofs.CHANGED[names[0]])
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc_per_node={ranks}", "--standalone"]
    paths = [str(checkout), os.environ.get("PYTHONPATH", "")]
    ran = subprocess.run(
        [*command, str(Path(__file__).with_name("fits.py")), str(folder), *names],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **env},
    )
    for name in names:
        if ran.returncode and (folder / name).exists():
            shutil.copytree(folder / name, folder / f"{name}-left")
        (folder / f"{name}.json").write_text(json.dumps([ran.returncode, ran.stdout]), encoding="utf-8")
    return folder


def left_by_the_kill(folder: Path) -> None:
    """In the folder of the killed run: a copy of what it left, for a run with other settings; and in both a checkpoint
    that would have been its next, half written."""
    for name in ("killed", "killed-checkpoints"):
        copy = folder / name.replace("killed", "killed, copied")
        if not copy.exists():
            shutil.copytree(folder / name, copy)
    for checkpoints in (folder / "killed-checkpoints", folder / "killed, copied-checkpoints"):
        if not (checkpoints / "global_step_3").exists():
            half_saved(checkpoints / "global_step_2", checkpoints / "global_step_3")


def fit_failed(folder: Path, name: str) -> dict[str, Any]:
    """Of a scenario that must fail, see `outcome`."""
    code, text = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    return outcome(code, text, proofs.FIT_FAULTS[name][1], folder / f"{name}-left")


def fit_run(folder: Path, name: str, ranks: int) -> dict[str, Any]:
    """Of a scenario that ended well: the summary of its ledger, and the command that it stands for."""
    code, text = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    assert code == 0, text[-20000:]
    ledger = folder / proofs.CONTINUES.get(name, name)
    own: dict[str, Any] = {"argv": proofs.argv_of(name, ranks)}
    made = proofs.summary(ledger)
    if name in ("enforced", "resumed"):  # scenarios share a job, and in no job is more than one evaluated
        own["evaluations"] = text.count("Finish validation") // ranks
    return {**made, **own}
