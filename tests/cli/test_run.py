"""`batchbridge run` as a command: what is started, and what its exit code says."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from batchbridge.cli.main import INVALID, UNDECIDED, USAGE
from batchbridge.contract.reading import Reading
from batchbridge.meaning.spec import MicroBatch, Spec, Staleness
from batchbridge.reading import read

Run = Callable[..., tuple[int, str, str]]
REACHED = "from batchbridge.running.launch import arrived, current_launch; arrived('trainer-1', current_launch().mode)"


@pytest.fixture
def launchable(toy: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toy.ToyAdapter, "hooks", lambda self: {"toyframework": "toyhooks:reached"})


def test_a_framework_without_hooks_cannot_be_launched(run: Run) -> None:
    code, _, error = run("run", "--framework", "toy", "--", sys.executable, "-c", "raise SystemExit(0)")
    assert code == USAGE
    assert "toy: no adapter that can be launched; those that can: none" in error


@pytest.mark.usefixtures("launchable")
def test_the_exit_code_is_the_commands_own(run: Run) -> None:
    code, _, _ = run("run", "--framework", "toy", "--", sys.executable, "-c", "raise SystemExit(7)")
    assert code == 7


@pytest.mark.usefixtures("launchable")
def test_a_command_that_reached_no_trainer_is_not_taken_for_a_followed_one(run: Run) -> None:
    code, _, error = run("run", "--framework", "toy", "--", sys.executable, "-c", "pass")
    assert code == UNDECIDED
    assert "without a trainer of toy that could be reached" in error


@pytest.mark.usefixtures("launchable")
def test_a_command_that_reached_its_trainer_ends_well(run: Run) -> None:
    code, _, _ = run("run", "--framework", "toy", "--", sys.executable, "-c", REACHED)
    assert code == 0


@pytest.mark.usefixtures("launchable")
def test_a_run_whose_ledger_was_lost_says_so_last_and_does_not_end_well(run: Run) -> None:
    losing = f"{REACHED}; arrived('lost-0-1', 'not in its ledger from optimizer step 7 on')"
    code, _, error = run("run", "--framework", "toy", "--", sys.executable, "-c", losing)
    assert code == UNDECIDED
    assert error.rstrip().endswith("not in its ledger from optimizer step 7 on")


@pytest.mark.usefixtures("launchable")
def test_a_folder_that_has_a_ledger_is_named_before_anything_is_started(run: Run, tmp_path: Path) -> None:
    words = ("run", "--framework", "toy", "--ledger", str(tmp_path), "--", sys.executable, "-c", "pass")
    assert "has a ledger" not in run(*words)[2]
    (tmp_path / "rank-00000.jsonl").touch()
    assert "one that starts anew sets it aside, or ends where a checkpoint is left" in run(*words)[2]


@pytest.mark.usefixtures("launchable")
@pytest.mark.parametrize("word", ["no_such_command", "./run.sh"])
def test_what_cannot_be_started_is_no_traceback(run: Run, word: str, tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("python train.py\n", encoding="utf-8")
    code, _, error = run("run", "--framework", "toy", "--", word if word[0] != "." else str(tmp_path / "run.sh"))
    assert (code, "cannot be started: " in error) == (USAGE, True)
    assert ("such as: bash run.sh" in error) is (word[0] == ".")


@pytest.mark.usefixtures("launchable")
def test_an_invalid_configuration_starts_nothing(run: Run, tmp_path: Path) -> None:
    started = tmp_path / "started"
    body = f"import pathlib; pathlib.Path({str(started)!r}).touch()"
    code, _, error = run("run", "--framework", "toy", "--", sys.executable, "-c", body, "--toy.wrong=1")
    assert code == INVALID
    assert "toy.wrong is unknown" in error
    assert not started.exists()


@pytest.mark.usefixtures("launchable")
def test_like_becomes_the_launchs_spec(run: Run, recipe: Path, tmp_path: Path) -> None:
    body = "import os, pathlib; pathlib.Path('launch.json').write_text(os.environ['BATCHBRIDGE_RUN'])"
    run("run", "--framework", "toy", "--like", str(recipe), "--ledger", "runs", "--", sys.executable, "-c", body)
    launch = json.loads((tmp_path / "launch.json").read_text())
    assert launch["spec"]["rollout"]["prompts_per_rollout"] == 4
    assert launch["hooks"] == {"toyframework": "toyhooks:reached"}
    assert launch["ledger"] == str(tmp_path / "runs")


@pytest.mark.usefixtures("launchable")
def test_like_is_read_as_the_release_that_is_named(run: Run, recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    native, versions = read.read, []

    def noted(*arguments: Any, **options: Any) -> Reading:
        versions.append(options.get("version"))
        return native(*arguments, **options)

    monkeypatch.setattr(read, "read", noted)
    words = ("--framework", "toy", "--like", str(recipe), "--like-version", "1.2")
    run("run", *words, "--", sys.executable, "-c", "pass")
    assert versions == [None, "1.2"], "the command's own release is the installed one"


@pytest.mark.usefixtures("launchable")
@pytest.mark.parametrize("like", [(), ("--like", "recipe")])
def test_a_synchronous_run_is_asked_for_whatever_is_meant_otherwise(
    run: Run, recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, like: tuple[str, ...]
) -> None:
    own = read.read(str(recipe))
    assert own.spec is not None
    ahead = own.spec.replace(staleness=Staleness(mode="bounded", maximum=2))
    monkeypatch.setattr(read, "read", lambda *arguments, **options: dataclasses.replace(own, spec=ahead))
    run("run", "--framework", "toy", *like, "--sync", "--", sys.executable, "-c", LAUNCH)
    spec = Spec.from_dict(json.loads((tmp_path / "launch.json").read_text())["spec"])
    assert spec == ahead.replace(staleness=Staleness(), micro_batch=MicroBatch())


@pytest.mark.usefixtures("launchable")
def test_a_synchronous_run_of_what_nobody_has_read_is_a_usage_error(
    run: Run, recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = read.read(str(recipe))
    monkeypatch.setattr(read, "read", lambda *arguments, **options: dataclasses.replace(own, spec=None))
    code, _, error = run("run", "--framework", "toy", "--sync", "--", sys.executable, "-c", "pass")
    assert code == USAGE
    assert "--sync: what the run means is known once its trainer is built; give --spec" in error


@pytest.mark.usefixtures("launchable")
def test_a_release_of_nothing_is_a_usage_error(run: Run) -> None:
    words = ("run", "--framework", "toy", "--like-version", "1.16.0")
    assert run(*words, "--", sys.executable, "-c", "pass")[0] == USAGE


@pytest.mark.usefixtures("launchable")
def test_two_meanings_are_one_too_many(run: Run, recipe: Path) -> None:
    words = ("--framework", "toy", "--like", str(recipe), "--spec", str(recipe))
    assert run("run", *words, "--", sys.executable, "-c", "pass")[0] == USAGE


LAUNCH = "import os, pathlib; pathlib.Path('launch.json').write_text(os.environ['BATCHBRIDGE_RUN'])"


@pytest.mark.usefixtures("launchable", "recipe")
def test_a_budget_becomes_the_launchs(run: Run, tmp_path: Path) -> None:
    run("run", "--framework", "toy", "--tokens-per-device", "4096", "--", sys.executable, "-c", LAUNCH)
    assert json.loads((tmp_path / "launch.json").read_text())["tokens_per_device"] == 4096


@pytest.mark.usefixtures("launchable", "recipe")
def test_a_budget_that_is_found_becomes_the_launchs(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("batchbridge.contract.adapter.Adapter.finds_budgets", True)
    run("run", "--framework", "toy", "--tokens-per-device", "auto", "--", sys.executable, "-c", LAUNCH)
    assert json.loads((tmp_path / "launch.json").read_text())["tokens_per_device"] == "auto"


@pytest.mark.usefixtures("launchable", "recipe")
def test_padding_becomes_the_launchs(run: Run, tmp_path: Path) -> None:
    run("run", "--framework", "toy", "--padding", "auto", "--", sys.executable, "-c", LAUNCH)
    assert json.loads((tmp_path / "launch.json").read_text())["padding"] == "auto"


@pytest.mark.usefixtures("launchable")
@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--tokens-per-device", "0"), "0 is not in the range x>=1"),
        (
            ("--tokens-per-device", "auto"),
            "the adapter of toy does not find a token budget while a run goes on",
        ),
        (("--report-to", "trainer"), "the loggers of toy's trainer are not reached by its adapter"),
        (("--padding", "free"), "the adapter of toy does not lay completions end to end"),
        (
            ("--padding", "free", "--mode", "observe"),
            "with --mode observe: only enforce changes how completions are laid",
        ),
        (("--report-to", "wandb"), "'wandb' is not 'trainer'"),
        (("--tokens-per-device", "64", "--mode", "verify"), "with --mode verify: only enforce cuts steps itself"),
    ],
)
def test_what_nothing_can_follow_starts_nothing(run: Run, words: tuple[str, ...], reason: str) -> None:
    code, _, error = run("run", "--framework", "toy", *words, "--", sys.executable, "-c", "raise SystemExit(7)")
    assert code == USAGE
    assert reason in error


@pytest.mark.usefixtures("launchable")
def test_a_budget_of_a_spec_file_is_handed_over_and_one_of_a_configuration_is_not(
    run: Run, recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = read.read(str(recipe))
    assert own.spec is not None
    budget = own.spec.replace(**{"micro_batch.tokens_per_device": 64})
    file = tmp_path / "spec.json"
    file.write_text(json.dumps(budget.to_dict()))
    run("run", "--framework", "toy", "--spec", str(file), "--", sys.executable, "-c", LAUNCH)
    assert json.loads((tmp_path / "launch.json").read_text())["spec"]["micro_batch"]["tokens_per_device"] == 64
    monkeypatch.setattr(read, "read", lambda *arguments, **options: dataclasses.replace(own, spec=budget))
    run("run", "--framework", "toy", "--like", str(recipe), "--", sys.executable, "-c", LAUNCH)
    spec = json.loads((tmp_path / "launch.json").read_text())["spec"]
    assert Spec.from_dict(spec).micro_batch == MicroBatch()
