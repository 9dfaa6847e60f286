"""`batchbridge.toml` and `[tool.batchbridge]`: what a project says of its configurations once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from batchbridge.cli._project import ProjectSettings

Run = Callable[..., tuple[int, str, str]]


def project(text: str, name: str = "pyproject.toml") -> None:
    Path(name).write_text(text, encoding="utf-8")


def devices(run: Run, *words: str) -> int:
    shown = json.loads(run("check", "recipe.yaml", "--json", *words)[1])["results"][0]
    return int(shown["spec"]["topology"]["world_size"])


def test_what_the_project_says_holds_where_no_option_says_more(run: Run, recipe: Path) -> None:
    assert devices(run) == 2
    project("[tool.batchbridge]\nworld_size = 8\n")
    assert devices(run) == 8
    assert devices(run, "--world-size", "4") == 4
    assert devices(run, "--gpus", "1") == 1


def test_every_setting_of_a_file_arrives(run: Run, recipe: Path) -> None:
    project("[tool.batchbridge]\nframework = 'toy'\nframework_version = '1.5'\ndataset_size = 12\nworld_size = 8\n")
    options = ("--framework", "toy", "--framework-version", "1.5", "--dataset-size", "12", "--world-size", "8")
    said = run("explain", "recipe.yaml")
    project("")
    assert said == run("explain", "recipe.yaml", *options)
    assert said != run("explain", "recipe.yaml")


def test_a_later_glob_counts_more(run: Run, recipe: Path) -> None:
    project(
        "[tool.batchbridge]\nworld_size = 1\n"
        "[tool.batchbridge.files.'**/*.yaml']\nworld_size = 4\n"
        "[tool.batchbridge.files.'r*.yaml']\nworld_size = 8\n"
        "[tool.batchbridge.files.'runs/**']\nworld_size = 2\n"
    )
    assert devices(run) == 8


@pytest.mark.parametrize(
    ("glob", "file", "matches"),
    [
        ("*.yaml", "a.yaml", True),
        ("*.yaml", "runs/a.yaml", False),
        ("**/*.yaml", "a.yaml", True),
        ("**/*.yaml", "runs/grpo/a.yaml", True),
        ("runs/**", "runs/grpo/a.yaml", True),
        ("runs/*/a.yaml", "runs/grpo/a.yaml", True),
        ("runs/**/grpo/*", "runs/a/b/grpo/c.sh", True),
        ("runs/?.sh", "runs/ab.sh", False),
        ("runs/a.yaml", "./runs/a.yaml", True),
    ],
)
def test_globs_are_as_in_a_shell(glob: str, file: str, matches: bool) -> None:
    assert ("world_size" in ProjectSettings(files={glob: {"world_size": 2}}).of(file)) is matches


def test_the_nearest_folder_with_settings_counts_and_globs_are_its(
    run: Run, recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project("[tool.batchbridge.files.'runs/*.yaml']\nworld_size = 8\n")
    Path("runs").mkdir()
    Path("runs/recipe.yaml").write_text(recipe.read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.chdir("runs")
    project("[tool.other]\nx = 1\n")
    assert devices(run) == 8
    project("[files.'recipe.yaml']\nworld_size = 4\n", "batchbridge.toml")
    assert devices(run) == 4


def test_a_file_elsewhere_has_the_settings_of_its_own_project(
    run: Run, recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project("[tool.batchbridge.files.'*.yaml']\nworld_size = 8\n")
    text = recipe.read_text(encoding="utf-8")
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    project("[tool.batchbridge]\nworld_size = 4\n")
    assert json.loads(run("check", "../recipe.yaml", "--json")[1])["results"][0]["spec"]["topology"]["world_size"] == 8
    Path("recipe.yaml").write_text(text, encoding="utf-8")
    assert devices(run) == 4


def test_selection_and_failing_are_settings_too(run: Run, recipe: Path) -> None:
    words = ("check", "recipe.yaml", "--set", "toy.step=9")
    project("[tool.batchbridge]\nignore = ['BB-TOY-003']\nfail_on = 'warning'\n")
    assert (run(*words)[0], run(*words, "--fail-on", "undecided")[0]) == (2, 0)
    assert run(*words, "--ignore", "BB121", "--fail-on", "undecided")[0] == 0
    project("[tool.batchbridge]\nselect = ['BB14']\n[tool.batchbridge.files.'*']\nignore = ['BB141']\n")
    assert run(*words, "--output-format", "concise") == (0, "", "not counted: BB-TOY-003, BB121, BB123, BB141\n")
    assert run(*words, "--select", "BB-TOY")[0] == 2


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "world_sise = 8",
            "pyproject.toml.tool.batchbridge.world_sise: there is no such setting; did you mean world_size?",
        ),
        ("framework-version = '1'", "did you mean framework_version?"),
        ("colour = 8", "known: framework, framework_version, world_size"),
        ("world_size = 0", "world_size = 0: expected a whole number above 0"),
        ("world_size = true", "expected a whole number above 0"),
        ("framework_version = 0.18", "framework_version = 0.18: expected a text"),
        ("ignore = 'BB121'", "ignore = 'BB121': expected a list of texts"),
        ("ignore = ['x']", "ignore 'x': a code such as BB-TRL-062"),
        ("fail_on = 'never'", "expected one of error, unread, undecided, warning"),
        ("files = 3", "expected a table"),
        ("framework = 'tyo'", "framework tyo: no such adapter; installed: toy"),
        ("[tool.batchbridge.files.'*.yaml']\nfail_on = 'error'", "files.*.yaml.fail_on: there is no such setting"),
        ("[tool.batchbridge.files]\n'*.yaml' = 8", "files.*.yaml: expected a table"),
        ('"\\u001b[31m" = 8', "\\x1b[31m: there is no such setting"),
        (f"[tool.batchbridge.files.'{'**/' * 70}a']", "more than 64 folders"),
        ("world_size = ", "this is not TOML"),
    ],
)
def test_a_wrong_setting_is_named(text: str, said: str, run: Run, recipe: Path) -> None:
    project("[tool.batchbridge]\n" + text)
    code, out, err = run("check", "recipe.yaml")
    assert (code, out) == (64, "")
    assert said in " ".join(err.split())


def test_a_pyproject_without_the_table_is_not_ours_to_judge(run: Run, recipe: Path) -> None:
    project("this is = = not TOML")
    assert run("check", "recipe.yaml")[0] == 0


def test_without_a_file_the_project_says_nothing(run: Run, recipe: Path) -> None:
    project("[tool.batchbridge]\nworld_size = 64\n")
    assert "64" not in run("check", "--framework", "toy", "--set", "toy.step=8")[1]
