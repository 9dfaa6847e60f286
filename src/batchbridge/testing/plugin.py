"""Fixtures for tests of one's own trainers and adapters; pytest finds them through the entry point `batchbridge`.

Nothing is imported until a fixture is used; `tiny_policy`, `tiny_tokenizer`, `oracle`, `log_probabilities` and
comparisons of gradients need torch and transformers. A fixture of the same name in a project's own conftest wins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from types import ModuleType

    import torch

    from batchbridge.ledger.reading import StepStream
    from batchbridge.testing.equivalence import RunDistance
    from batchbridge.testing.tiny import ScriptedRollouts


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Called by pytest: laws of an adapter's contract that were left out, counted by their reasons."""
    reports = [report.longrepr for report in terminalreporter.stats.get("skipped", ())]
    laws = [said for said in reports if isinstance(said, tuple) and _LAWS in Path(said[0]).as_posix()]
    if laws:
        terminalreporter.section(f"checks of the contract that would hold of anything here: {len(laws)}")
        for reason, count in Counter(said[2].removeprefix("Skipped: ") for said in laws).most_common():
            terminalreporter.write_line(f"{count:5}  {reason}")


_LAWS = "batchbridge/testing/laws"


class Ledgers:
    """Ledgers of one test: `wrap(trainer, ledger=ledger["a"])`, then `ledger.steps("a")`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __getitem__(self, name: str) -> Path:
        """The folder of a run's ledger."""
        return self._folder / name / "ledger"

    def run(self, name: str) -> Path:
        """The folder of the run that `assert_equivalent` takes, with its ledger (and `steps`, where they are kept)."""
        return self._folder / name

    def steps(self, name: str) -> StepStream:
        """The recorded optimizer steps, all ranks merged."""
        from batchbridge.ledger import read_steps

        return read_steps(self[name])


@pytest.fixture
def ledger(tmp_path: Path) -> Ledgers:
    """Folders for the ledgers of a test's runs, and what is in them."""
    return Ledgers(tmp_path / "runs")


@pytest.fixture(scope="session")
def scripted_rollouts() -> ScriptedRollouts:
    """`batchbridge.testing.tiny.ScriptedRollouts`: prompts, completions, loss masks and rewards by (prompt, sample)."""
    from batchbridge.testing.tiny import ScriptedRollouts

    return ScriptedRollouts()


@pytest.fixture
def tiny_policy() -> Callable[..., Any]:
    """`batchbridge.testing.tiny.tiny_policy`: makes a policy; the same for the same seed."""
    from batchbridge.testing.tiny import tiny_policy

    return tiny_policy


@pytest.fixture(scope="session")
def tiny_tokenizer() -> Any:
    """The tokenizer of the tiny policy."""
    from batchbridge.testing.tiny import tiny_tokenizer

    return tiny_tokenizer()


@pytest.fixture(scope="session")
def oracle() -> ModuleType:
    """`batchbridge.testing.oracle`: what an optimizer step's gradient is, in float64."""
    from batchbridge.testing import oracle

    return oracle


@pytest.fixture(scope="session")
def log_probabilities() -> Callable[[torch.Tensor], torch.Tensor]:
    """`batchbridge.testing.trajectories.log_probabilities`: what a tiny policy with given parameters (flat) says."""
    from batchbridge.testing.trajectories import log_probabilities

    return log_probabilities


@pytest.fixture(scope="session")
def assert_equivalent() -> Callable[..., RunDistance]:
    """`assert_equivalent(a, b)` over two finished runs; the first difference is in the assertion's text."""
    from batchbridge.testing.equivalence import assert_equivalent

    return assert_equivalent
