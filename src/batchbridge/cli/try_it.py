"""`batchbridge try FRAMEWORK`: the framework itself on this machine's CPU, as it is and wrapped."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shlex
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from batchbridge.cli._output import say
from batchbridge.cli.main import FINE, UNDECIDED, tip

if TYPE_CHECKING:
    from batchbridge.contract.trial import Trial

RUNS = {"native": "observe", "wrapped": "enforce"}
"""The name of each run, and the mode in which `batchbridge run` starts it."""
LAST_LINES = 15
"""Lines of a failed run's log that are shown."""


@click.command()
@click.argument("framework")
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    help="A new folder for both runs: ledgers and logs stay there. Default: try-FRAMEWORK.",
)
def command(framework: str, folder: Path | None) -> int:
    """Train a tiny model with FRAMEWORK (trl, verl, openrlhf) on this machine's CPU, as it is and wrapped.

    Loop, loss and optimizer are the framework's own; completions and rewards are scripted, so that no GPU, no network
    and no engine is needed. A table says what each run trained, and both leave a ledger. Minutes; exit code 4 where
    FRAMEWORK is not installed, or a run fails.
    """
    from batchbridge.contract import plugins

    trials = {name: trial for name, adapter in plugins.adapters().items() if (trial := adapter.trial()) is not None}
    if framework not in trials:
        known = tip(framework, trials, "framework") or f"; frameworks: {', '.join(sorted(trials))}"
        raise click.UsageError(f"{framework}: cannot be tried on a CPU{known}")
    trial = trials[framework]
    if missing := [name for name in trial.needs if importlib.util.find_spec(name) is None]:
        what = f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed"
        for line in (
            *_folded(f"{framework} cannot be tried: {what}"),
            "",
            *(f"  {command}" for command in trial.install),
            "",
            *_folded(_TORCH),
        ):
            say(line)
        return UNDECIDED
    place = (folder or Path(f"try-{framework}")).absolute()
    shown = folder or Path(f"try-{framework}")
    if place.exists():
        raise click.UsageError(f"{shown} exists: remove it, or name a new folder with --folder")
    return _tried(framework, trial, place, shown)


_TORCH = (
    "PyPI's torch for Linux brings CUDA. Without a GPU install PyTorch's CPU build first: pytorch.org, Get started, "
    "compute platform CPU, says how."
)


def _tried(framework: str, trial: Trial, place: Path, shown: Path) -> int:
    """Both runs, and the table."""
    started = time.monotonic()
    for line in _folded(f"{framework}: {trial.real} are the framework's own; scripted: {trial.scripted}."):
        say(line)
    columns = {}
    with tempfile.TemporaryDirectory(prefix="bb", ignore_cleanup_errors=True) as beside:
        for name, mode in RUNS.items():
            began = time.monotonic()
            code = _run(trial, place / name, Path(beside, name), mode)
            if code:
                say(f"the {name} run ended with exit code {code}; the last lines of {shown / name / 'log.txt'}:")
                for line in (place / name / "log.txt").read_text("utf-8", "replace").splitlines()[-LAST_LINES:]:
                    say(f"  {line}")
                return UNDECIDED
            say(f"the {name} run: {time.monotonic() - began:.0f} s")
            columns[name] = _column(place / name, trial.prompts)
    _print(columns, shown, time.monotonic() - started)
    return FINE


def _run(trial: Trial, folder: Path, beside: Path, mode: str) -> int:
    """One run, in a process of its own; its exit code. What it says goes into its log."""
    folder.mkdir(parents=True)
    beside.mkdir()
    launcher = (sys.executable, "-m", "batchbridge", "run", "--mode", mode, "--ledger", str(folder / "ledger"))
    with (folder / "log.txt").open("w", encoding="utf-8") as log:
        with _everything_into(log.fileno()):  # libraries show bars, and what their compilers say
            prepared = trial.prepare(folder, beside)
        log.flush()
        return subprocess.run(
            [*launcher, "--", sys.executable, *prepared.words],
            cwd=folder,
            env={**os.environ, **prepared.environment},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            check=False,
        ).returncode


@contextlib.contextmanager
def _everything_into(file: int) -> Iterator[None]:
    """A block whose output goes into a file, that of the processes that it starts, too."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [os.dup(number) for number in (1, 2)]
    try:
        for number in (1, 2):
            os.dup2(file, number)
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, native in zip((1, 2), kept, strict=True):
            os.dup2(native, number)
            os.close(native)


def _column(folder: Path, prompts: int) -> dict[str, str]:
    """A run's column of the table."""
    from batchbridge.contract.trial import TRIAL_FIGURES
    from batchbridge.ledger.reading import Ledger
    from batchbridge.render.trial import rows

    figures = folder / TRIAL_FIGURES
    measured: dict[str, str] = json.loads(figures.read_text("utf-8")) if figures.exists() else {}
    return {**rows(Ledger(folder / "ledger"), prompts), **measured}


def _print(columns: Mapping[str, Mapping[str, str]], shown: Path, seconds: float) -> None:
    from batchbridge.render.trial import table

    click.echo()
    for line in table(columns):
        click.echo(line)
    ledgers = [shlex.quote(str(shown / name / "ledger")) for name in columns]
    click.echo()
    click.echo(f"{seconds:.0f} seconds. What each optimizer step trained, and where the runs part:")
    click.echo(f"  batchbridge ledger show {ledgers[-1]}")
    click.echo(f"  batchbridge ledger diff {' '.join(ledgers)}")


def _folded(text: str) -> list[str]:
    return textwrap.wrap(text, 79, break_long_words=False, break_on_hyphens=False)
