"""The hook, as pre-commit itself runs it on a commit; `nox -s formats` runs this."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[3]
HOOKS = ROOT / ".pre-commit-hooks.yaml"
VALID = "num_generations: 8\nper_device_train_batch_size: 8\n"
SETTINGS = """
[tool.batchbridge]
framework_version = "1.16.0"
world_size = 2
files."recipes/?.yaml".framework = "trl"
"""


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with the hook, which is installed already: `language: system`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PRE_COMMIT_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")
    (hook,) = yaml.safe_load(HOOKS.read_text(encoding="utf-8"))
    config = {"repos": [{"repo": "local", "hooks": [{**hook, "language": "system"}]}]}
    files = {
        ".pre-commit-config.yaml": yaml.safe_dump(config),
        "pyproject.toml": SETTINGS,
        "recipes/a.yaml": VALID,
        "recipes/b.yaml": VALID,
        "recipes/unknown.yaml": "colour: green\n",
        "elsewhere.yaml": "- a list\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    for words in (("init", "-q"), ("add", ".")):
        subprocess.run(["git", *words], check=True)
    return tmp_path


def pre_commit(*words: str) -> tuple[int, str]:
    done = subprocess.run([sys.executable, "-m", "pre_commit", *words], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_the_manifest_is_one() -> None:
    assert pre_commit("validate-manifest", str(HOOKS)) == (0, "")


def test_a_commit_of_several_valid_files_passes(repository: Path) -> None:
    code, out = pre_commit("run")
    assert (code, "Passed" in out) == (0, True), out


def test_a_commit_of_a_wrong_recipe_does_not(repository: Path) -> None:
    (repository / "recipes/b.yaml").write_text(VALID.replace("num_generations: 8", "num_generations: 6"), "utf-8")
    subprocess.run(["git", "add", "."], check=True)
    code, out = pre_commit("run")
    assert code == 1
    assert "recipes/b.yaml:2: BB-TRL-021 error: " in out
