"""The run of `batchbridge try`: an adapter's framework itself on a CPU, with a tiny model and scripted rollouts.

Its own file: adapters give it, and only `batchbridge try` takes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from pathlib import Path

from batchbridge.frozen import dataclass

TRIAL_FIGURES = "figures.json"
"""The file that a trial's command may leave in its folder: name to text, further rows of the table."""


@dataclass(frozen=True, kw_only=True)
class TrialCommand:
    """A launch command, and what it needs in its environment beside the caller's."""

    words: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Trial:
    """An adapter's account of its trial.

    needs: modules that the environment must have. install: the commands that bring them. prepare: writes the tiny model
    and its prompts into an empty folder, and returns the command; `beside` is a folder with a short path, for sockets.
    real, scripted: what of the run is the framework's own, and what stands in for a GPU, as sentences. prompts: in the
    dataset.
    """

    needs: Sequence[str]
    install: Sequence[str]
    prepare: Callable[[Path, Path], TrialCommand]
    real: str
    scripted: str
    prompts: int
