"""What a project expects of its runs, held by `check`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import batchbridge as bb

SETTINGS = """
framework = "trl"
framework_version = "1.16.0"
world_size = 8
[expect]
completions_per_step = 64
passes_per_rollout = 1
"""
BASE = "per_device_train_batch_size: 8\nnum_generations: 8\n"


Checked = Callable[..., tuple[int, str]]


@pytest.fixture
def checked(typed: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch) -> Checked:
    """Runs `batchbridge check` in a folder: its exit code, and what it prints."""

    def run(folder: Path, *words: str) -> tuple[int, str]:
        monkeypatch.chdir(folder)
        code, out, err = typed("check", *words)
        return code, " ".join(f"{out}{err}".split()) if "--json" not in words else out

    return run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A project with a file that is as expected, and one that is not."""
    (tmp_path / "batchbridge.toml").write_text(SETTINGS)
    (tmp_path / "base.yaml").write_text(BASE)
    (tmp_path / "other.yaml").write_text(f"{BASE}num_iterations: 2\n")
    return tmp_path


def test_a_run_as_expected_is_valid(folder: Path, checked: Checked) -> None:
    code, said = checked(folder, "base.yaml")
    assert (code, "BB045" in said) == (0, False)


def test_a_run_that_departs_is_an_error_at_the_users_line_in_every_format(folder: Path, checked: Checked) -> None:
    code, said = checked(folder, "other.yaml")
    assert code == 2
    assert "passes_per_rollout is 2, and the project expects 1" in said
    assert "3 | num_iterations: 2" in said
    for form in ("concise", "github", "gitlab", "sarif", "junit"):
        assert "BB045" in checked(folder, "other.yaml", "--output-format", form)[1], form
    (result,) = json.loads(checked(folder, "other.yaml", "--json")[1])["results"]
    assert result["verdict"] == "invalid"
    assert result["enforcement"]["verdict"] == "enforced"  # the rule is the project's, not the framework's


def test_a_glob_expects_more_and_otherwise(folder: Path, checked: Checked) -> None:
    more = '[files."o*.yaml"]\nexpect = { passes_per_rollout = 2, beta = 0.0 }\n'
    (folder / "batchbridge.toml").write_text(f"{(folder / 'batchbridge.toml').read_text()}{more}")
    code, said = checked(folder, "other.yaml")
    assert code == 64
    assert "a run has no beta" in said
    (folder / "batchbridge.toml").write_text((folder / "batchbridge.toml").read_text().replace(", beta = 0.0", ""))
    assert checked(folder, "other.yaml")[0] == 0
    assert checked(folder, "base.yaml")[0] == 0


def test_a_run_that_means_something_else_than_a_base_names_what(folder: Path, checked: Checked) -> None:
    (folder / "recipes").mkdir()
    (folder / "recipes" / "mine.yaml").write_text(f"{BASE}learning_rate: 1.0e-5\n")
    text = (folder / "batchbridge.toml").read_text()
    (folder / "batchbridge.toml").write_text(f'{text}equivalent_to = "base.yaml"\n')
    code, said = checked(folder / "recipes", "mine.yaml")  # paths are the settings' own
    assert code == 2
    assert "carried.learning_rate is 1e-05, there 1e-06" in said
    assert checked(folder, "base.yaml")[0] == 0
    (folder / "base.yaml").write_text("per_device_train_batch_size: 3\nnum_generations: 16\n")
    code, said = checked(folder / "recipes", "mine.yaml")
    assert (code, "invalid itself" in said) == (4, True)


def test_a_number_that_is_open_is_undecided(folder: Path, checked: Checked) -> None:
    text = (folder / "batchbridge.toml").read_text()
    (folder / "batchbridge.toml").write_text(f"{text}rollouts_per_epoch = 100\n")
    code, said = checked(folder, "base.yaml")
    assert (code, "rollouts_per_epoch is open, and the project expects 100" in said) == (4, True)
    assert checked(folder, "base.yaml", "--dataset-size", "800")[0] == 0


def test_a_departure_can_be_ignored_as_every_finding(folder: Path, checked: Checked) -> None:
    assert checked(folder, "other.yaml", "--ignore", "BB045")[0] == 0


@pytest.mark.parametrize(
    ("expected", "said"),
    [
        ({"passes_per_rollouts": 1}, "a run has no passes_per_rollouts; did you mean passes_per_rollout"),
        ({"aggregation": "x"}, "a run has no aggregation"),  # of two terms
    ],
)
def test_a_name_that_no_run_has_is_refused_with_the_nearest(expected: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        bb.check({"num_generations": 8}, framework="trl", version="1.16.0", world_size=8, expect=expected)


def test_python_holds_a_run_alike() -> None:
    asked = {"framework": "trl", "version": "1.16.0", "world_size": 8}
    found = bb.check({"per_device_train_batch_size": 8}, expect={"completions_per_step": 32}, **asked)
    assert found.verdict == "invalid"
    assert [one.message for one in found.findings if one.code == "BB045"] == [
        "completions_per_step is 64, and the project expects 32"
    ]
    assert not found.enforcement.obstacles
    assert bb.check({"per_device_train_batch_size": 8}, expect={"completions_per_step": 64}, **asked).verdict == "valid"
