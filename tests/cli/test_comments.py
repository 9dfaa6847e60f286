"""`# batchbridge: ignore CODE` in configurations and launch scripts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import batchbridge
from batchbridge.cli.main import main

Run = Callable[..., tuple[int, str, str]]
RECIPE = """\
toy:
  prompts: 4
  group: 2
  step: 9{comment}
  devices: 2
"""


def check(run: Run, text: str, *words: str) -> tuple[int, str]:
    Path("recipe.yaml").write_text(text, encoding="utf-8")
    code, _, err = run("check", "recipe.yaml", "--output-format", "concise", *words)
    return code, err


@pytest.mark.parametrize(
    ("comment", "dropped"),
    [
        ("  # batchbridge: ignore BB-TOY-003", "BB-TOY-003"),
        ("  #batchbridge:ignore BB-TOY", "BB-TOY-003"),
        ("  # batchbridge: ignore BB121, BB-TOY-003 (known: see the log)", "BB-TOY-003, BB121"),
        ("  # as it was  # batchbridge: ignore BB-TOY-003", "BB-TOY-003"),
    ],
)
def test_a_comment_on_the_findings_line_ignores_its_codes(comment: str, dropped: str, run: Run, recipe: Path) -> None:
    assert check(run, RECIPE.format(comment=comment)) == (0, f"not counted: {dropped}\n")


@pytest.mark.parametrize(
    "comment",
    [
        "",
        "  # batchbridge: ignore",
        "  # batchbridge: ignore BB121x BB-TOY-003",
        "  # ignore BB-TOY-003",
        "  # TOY-003",
    ],
)
def test_a_comment_that_names_no_code_of_a_finding_ignores_none(comment: str, run: Run, recipe: Path) -> None:
    assert check(run, RECIPE.format(comment=comment))[0] == 2


def test_a_comment_holds_for_its_own_line(run: Run, recipe: Path) -> None:
    text = "# batchbridge: ignore BB-TOY-003\n" + RECIPE.format(comment="")
    assert check(run, text) == (2, "")
    assert check(run, text.replace("ignore", "ignore-file")) == (0, "not counted: BB-TOY-003\n")


def test_a_finding_of_another_file_is_not_touched(run: Run, recipe: Path) -> None:
    Path("other.yaml").write_text("# batchbridge: ignore-file BB-TOY\n", encoding="utf-8")
    assert check(run, RECIPE.format(comment=""))[0] == 2


def test_a_broken_file_fails_whatever_its_comments_say(run: Run, recipe: Path) -> None:
    assert check(run, "# batchbridge: ignore-file BB0\ntoy: [8\n")[0] == 2


SCRIPT = """\
#!/bin/bash
ARGS=(
  data.train_batch_size=100  # batchbridge: ignore BB-VERL
  actor_rollout_ref.actor.ppo_mini_batch_size=128
)
python3 -m verl.trainer.main_ppo "${ARGS[@]}" algorithm.adv_estimator=grpo
"""


def test_in_a_launch_script_the_line_is_the_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    script = Path("run.sh")
    words = ("check", "run.sh", "--framework-version", "0.7.1", "--world-size", "2", "--output-format", "concise")
    script.write_text(SCRIPT.replace("# batchbridge: ignore BB-VERL", ""), encoding="utf-8")
    main(words)
    plain = capsys.readouterr().out.splitlines()
    on_line = [line for line in plain if line.startswith("run.sh:3: BB-VERL")]
    assert on_line
    script.write_text(SCRIPT, encoding="utf-8")
    main(words)
    left = capsys.readouterr().out.splitlines()
    assert not set(on_line) & set(left)
    script.write_text(SCRIPT.replace("ignore BB-VERL", "ignore-file BB-VERL"), encoding="utf-8")
    main(words)
    assert "BB-VERL" not in capsys.readouterr().out


def test_python_is_asked_with_keep_and_reads_no_comment(recipe: Path, toy: object) -> None:
    recipe.write_text(RECIPE.format(comment="  # batchbridge: ignore BB-TOY-003"), encoding="utf-8")
    assert batchbridge.check(recipe).verdict == "invalid"
