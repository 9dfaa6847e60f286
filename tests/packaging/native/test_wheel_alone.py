"""The wheel, installed with its plain dependencies into an environment of its own, does in an empty folder what
README.md shows: on this Python, and on the oldest and the newest that it is for. `nox -s build` names the wheel
(BATCHBRIDGE_WHEEL) and the command that installs (BATCHBRIDGE_INSTALL)."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import batchbridge

ROOT = Path(__file__).parents[3]
sys.path.append(str(ROOT / "docs"))

import make_outputs

HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
PYTHONS = sorted({"3.10", HERE, "3.14"})
FORGETS = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
"""Variables that would lead to another installation than the wheel's."""


def interpreters(version: str) -> Iterator[Path]:
    """Where a Python may stand: this one, on the path, or among pyenv's, whose shim on the path starts one alone."""
    if version == HERE:
        yield Path(sys.executable)
    if found := shutil.which(f"python{version}"):
        yield Path(found)
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    yield from pyenv.glob(f"versions/{version}.*/bin/python{version}")


def starts(python: Path) -> bool:
    return subprocess.run([python, "-c", "import venv, ssl"], capture_output=True, check=False).returncode == 0


@pytest.fixture(scope="module", params=PYTHONS)
def programs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the programs of an environment that has the wheel, and what it requires, alone."""
    python = next(filter(starts, interpreters(request.param)), None)
    if python is None:
        pytest.skip(f"no Python {request.param} on this machine: the wheel is not tried on it")
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run([python, "-m", "venv", "--without-pip", folder], check=True)
    own = folder / "bin" / "python"
    install = [word.format(python=own) for word in shlex.split(os.environ["BATCHBRIDGE_INSTALL"])]
    subprocess.run([*install, "-c", ROOT / "constraints" / "core.txt", os.environ["BATCHBRIDGE_WHEEL"]], check=True)
    return folder / "bin"


def said(programs: Path, command: str, folder: Path) -> str:
    """What a command prints, typed in a folder that has nothing but what was put there."""
    environment = {name: value for name, value in os.environ.items() if name not in FORGETS}
    environment["PATH"] = os.pathsep.join([str(programs), os.environ.get("PATH", os.defpath)])
    words = ["bash", "-c", command]
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def shown() -> list[tuple[str, str]]:
    """(command, expected output) of README.md, without what needs a framework."""
    blocks = [block for block in make_outputs.blocks(ROOT / "README.md") if block.language == "console"]
    return [each for block in blocks if not block.said for each in block.commands]


def test_the_commands_of_the_readme_print_what_it_shows(programs: Path, tmp_path: Path) -> None:
    assert "(`batchbridge demo` writes it)" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert "a recipe for TRL" in said(programs, "batchbridge demo", tmp_path)
    where = said(programs, "python -c 'import batchbridge; print(batchbridge.__file__)'", tmp_path)
    assert where.startswith(str(programs.parent)), where
    assert len(shown()) > 3
    for command, expected in shown():
        printed = said(programs, command, tmp_path)
        assert make_outputs.fits(expected, printed), f"$ {command}\n{printed}"


def test_a_toml_file_is_read_on_every_python(programs: Path, tmp_path: Path) -> None:
    """3.10 has no parser of its own: the wheel requires one there."""
    (tmp_path / "pyproject.toml").write_text("[tool.batchbridge]\nignore = [\n", encoding="utf-8")
    (tmp_path / "run.yaml").write_text("num_generations: 4\n", encoding="utf-8")
    printed = said(programs, "batchbridge check run.yaml --framework trl", tmp_path)
    assert "pyproject.toml: this is not TOML" in printed, printed


def test_another_output_than_the_page_shows_is_noticed() -> None:
    for _, expected in shown():
        assert not make_outputs.fits(expected, "Traceback (most recent call last):\nImportError: tomllib\n")


def test_uvx_runs_it_without_an_installation(tmp_path: Path) -> None:
    before, _, _ = os.environ["BATCHBRIDGE_INSTALL"].partition(" pip ")
    if not before.endswith("uv"):
        pytest.skip("uv does not stand beside nox on this machine: uvx is not tried")
    words = [*shlex.split(before), "tool", "run", "--python", sys.executable, "--from", os.environ["BATCHBRIDGE_WHEEL"]]
    done = subprocess.run([*words, "batchbridge", "-V"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == f"batchbridge {batchbridge.__version__}\n"
