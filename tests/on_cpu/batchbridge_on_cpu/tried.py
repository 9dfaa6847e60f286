"""`batchbridge try` as a user types it, and an account of what its table should say that is made without any ledger."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

from batchbridge.ledger import read_headers, read_steps
from batchbridge.testing.tiny import ScriptedRollouts


@dataclass(frozen=True)
class TriedRuns:
    """What the command printed. columns: the table, by run and row."""

    code: int
    text: str
    columns: Mapping[str, Mapping[str, str]]


def tried(framework: str, folder: Path) -> TriedRuns:
    """Runs the command in a folder."""
    words = [sys.executable, "-m", "batchbridge", "try", framework]
    ran = subprocess.run(words, cwd=folder, env=dict(os.environ), capture_output=True, text=True, check=False)
    return TriedRuns(ran.returncode, ran.stdout + ran.stderr, columns_of(ran.stdout))


def columns_of(text: str) -> dict[str, dict[str, str]]:
    """The table, by run and row."""
    lines = text.splitlines()
    head = next((number for number, line in enumerate(lines) if line.split() == ["native", "wrapped"]), None)
    columns: dict[str, dict[str, str]] = {"native": {}, "wrapped": {}}
    for line in lines[head + 1 :] if head is not None else ():
        if not line.strip():
            break
        name, native, wrapped = re.split(r"\s{2,}", line.strip())
        columns["native"][name], columns["wrapped"][name] = native, wrapped
    return columns


def hold_against_the_script(column: Mapping[str, str], *, group: int, prompts: int, steps: int) -> None:
    """The check (`AssertionError`) of a wrapped run's column: counted from the scripted completions of the prompts of
    its first step, each token of which weighs the same. group: completions of a prompt. prompts: of the dataset.
    steps: of the run."""
    script = ScriptedRollouts()
    first = [int(prompt) for prompt in column["prompts in step 0"].split(", ")]
    rows = [(prompt, sample) for prompt in first for sample in range(group)]
    tokens = sum(sum(script.loss_mask(*row)) for row in rows)
    assert column["optimizer steps"] == str(steps)
    assert column["completions in step 0"] == str(len(rows))
    assert column["response tokens in step 0"] == str(tokens)
    assert column["weight of a token in step 0"] == f"{1 / tokens:.5f}"
    assert column["share of the prompts trained"] == f"{prompts} of {prompts}"
    assert column["steps of the planned completions"] == f"{steps} of {steps}"


class TriedFramework:
    """The tests of one framework's trial. group: completions of a prompt. prompts: of the dataset. steps: of a run."""

    framework: ClassVar[str]
    group: ClassVar[int]
    prompts: ClassVar[int]
    steps: ClassVar[int]

    @pytest.fixture(scope="class")
    @classmethod
    def place(cls, tmp_path_factory: pytest.TempPathFactory) -> Path:
        return tmp_path_factory.mktemp("t")

    @pytest.fixture(scope="class")
    @classmethod
    def runs(cls, place: Path) -> TriedRuns:
        found = tried(cls.framework, place)
        assert found.code == 0, found.text + "".join(
            file.read_text("utf-8", "replace")[-5000:] for file in place.glob("try-*/*/log.txt")
        )
        return found

    def hold(self, column: Mapping[str, str]) -> None:
        """`hold_against_the_script`, with the sizes of this framework's trial."""
        hold_against_the_script(column, group=self.group, prompts=self.prompts, steps=self.steps)

    def test_the_wrapped_column_is_what_the_script_adds_up_to(self, runs: TriedRuns) -> None:
        self.hold(runs.columns["wrapped"])

    @pytest.mark.parametrize("name", ["response tokens in step 0", "weight of a token in step 0", "optimizer steps"])
    def test_another_number_would_be_noticed(self, runs: TriedRuns, name: str) -> None:
        number = runs.columns["wrapped"][name]
        other = number[:-1] + str((int(number[-1]) + 1) % 10)
        with pytest.raises(AssertionError):
            self.hold({**runs.columns["wrapped"], name: other})

    def test_both_runs_leave_a_ledger_and_the_lines_fit_into_80_columns(self, runs: TriedRuns, place: Path) -> None:
        folder = f"try-{self.framework}"
        for name, mode in (("native", "observe"), ("wrapped", "enforce")):
            ledger = place / folder / name / "ledger"
            steps = read_steps(ledger)
            assert [step["step"] for step in steps] == list(range(self.steps))
            assert steps.incomplete is None
            assert {header["mode"] for header in read_headers(ledger)} == {mode}
        assert max(map(len, runs.text.splitlines())) <= 80
        assert f"  batchbridge ledger diff {folder}/native/ledger {folder}/wrapped/ledger" in runs.text.splitlines()
