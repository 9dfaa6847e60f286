"""Records are of frameworks and figures of a day: none hangs on a module of ours, and a matrix's age can be asked."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from batchbridge_on_cpu.scripts import module_at

ROOT = Path(__file__).parents[2]
OURS = re.compile(r"(?:batchbridge(?:_\w+)?|bashread|native|by_hand)[./](?:\w+[./])*\w+")
"""How a module of ours is named: batchbridge.meaning.plan, batchbridge_trl/engine.py, native.gradients."""
DIGEST = re.compile(r"[0-9a-f]{8,128}")


def records() -> list[Path]:
    words = ["git", "-C", str(ROOT), "ls-files", "*.json", "*.jsonl"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("no git repository")
    return [ROOT / name for name in done.stdout.splitlines() if (ROOT / name).exists()]


def digests_of_ours(value: Any) -> Iterator[str]:
    """Every key that names a module of ours and has a digest."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if OURS.fullmatch(name) and isinstance(inner, str) and DIGEST.fullmatch(inner):
                yield name
            yield from digests_of_ours(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from digests_of_ours(inner)


def values(file: Path) -> Iterator[Any]:
    text = file.read_text(encoding="utf-8")
    yield from map(json.loads, text.splitlines()) if file.suffix == ".jsonl" else [json.loads(text)]


def test_no_record_has_a_digest_of_a_module_of_ours() -> None:
    files = records()
    assert len(files) > 40
    found = {
        file.name: names for file in files if (names := [n for value in values(file) for n in digests_of_ours(value)])
    }
    assert found == {}


@pytest.mark.parametrize(
    "name", ["batchbridge.meaning.plan", "batchbridge_trl.engine", "batchbridge_openrlhf/answers.py", "native/fits.py"]
)
def test_a_digest_of_a_module_of_ours_is_found_and_one_of_a_frameworks_function_is_not(name: str) -> None:
    record = {"runs": [{"code": {name: "890c7396ce08203c", "trl/trainer.py: GRPOTrainer": "890c7396ce08203c"}}]}
    assert list(digests_of_ours(record)) == [name]
    assert list(digests_of_ours({name: {"said": "8 errors"}})) == []


def modules(root: Path) -> re.Pattern[str]:
    """Every module that is shipped, as a path or as it is imported; a package that has a framework's name is not."""
    names = set()
    for base in (root / "src", root / "adapters", *sorted(root.glob("plugins/*/src"))):
        for file in base.rglob("*.py"):
            path = file.relative_to(base)
            dotted = ".".join((path.parent if path.stem == "__init__" else path.with_suffix("")).parts)
            names |= {path.as_posix()} | ({dotted} if "." in dotted else set())
    longest_first = sorted(map(re.escape, names), key=len, reverse=True)
    return re.compile(rf"(?<![\w.])(?:{'|'.join(longest_first)})(?!\w)")


def test_no_record_names_a_module_of_ours() -> None:
    ours = modules(ROOT)
    named = {file.name: found for file in records() if (found := set(ours.findall(file.read_text(encoding="utf-8"))))}
    assert named == {}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"batchbridge.kit.workers": "890c7396"}', ["batchbridge.kit.workers"]),
        ('{"code": ["adapters/batchbridge_trl/engine.py"]}', ["batchbridge_trl/engine.py"]),
        ('["src/pyread/machine.py: 3 of 5"]', ["pyread/machine.py"]),
        ('["python -m batchbridge check recipe.yaml", "batchbridge_trl", "trl/trainer/grpo_trainer.py"]', []),
    ],
)
def test_a_module_of_ours_is_found_however_it_is_named(text: str, found: list[str]) -> None:
    assert modules(ROOT).findall(text) == found


# ---- the age of a matrix


@pytest.fixture
def matrix_age() -> ModuleType:
    return module_at(ROOT / "tests" / "repository" / "matrix_age.py", "matrix_age")


class Repository:
    """One of its own, with an engine, a rule, and figures of every kind."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.git("init", "-q")
        self.write("adapters/batchbridge_verl/engine.py", "x = 1\n")
        self.measure(self.commit())

    def git(self, *words: str) -> str:
        own = ("-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false")
        done = subprocess.run(["git", "-C", str(self.root), *own, *words], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def write(self, name: str, text: str) -> None:
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        (self.root / name).write_text(text, encoding="utf-8")

    def commit(self) -> str:
        self.git("add", "-A")
        self.git("commit", "-qm", "change")
        return self.git("rev-parse", "--short=12", "HEAD")

    def measure(self, commit: str) -> None:
        on = {"commit": commit, "date": "2026-01-01"}
        self.write("tests/adapters/verl/figures.json", json.dumps({"0.9.1": {"gradient": {"measured_on": on}}}))
        self.write("tests/equivalence/figures.json", json.dumps({"measured_on": on}))
        self.write("tests/kernels/figures.json", json.dumps({"measured_on": {"verl": on}}))


@pytest.fixture
def repository_of_its_own(tmp_path: Path) -> Repository:
    return Repository(tmp_path)


def test_a_matrix_that_is_younger_than_the_engines_is_young_enough(
    matrix_age: ModuleType, repository_of_its_own: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    repository_of_its_own.write("adapters/batchbridge_verl/rules/steps.py", "y = 1\n")
    repository_of_its_own.commit()
    assert matrix_age.main(["--root", str(repository_of_its_own.root)]) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("changed", ["adapters/batchbridge_verl/engine.py", "src/batchbridge/meaning/plan.py"])
def test_a_change_of_an_engine_since_its_measuring_is_named(
    matrix_age: ModuleType, repository_of_its_own: Repository, changed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    repository_of_its_own.write(changed, "x = 2\n")
    commit = repository_of_its_own.commit()
    assert matrix_age.main(["--root", str(repository_of_its_own.root)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("verl: 0.9.1, gradient: measured on ") and "1 changes since" in line for line in lines)
    assert any(line.startswith("verl: kernels: ") for line in lines)
    repository_of_its_own.measure(commit)
    assert matrix_age.main(["--root", str(repository_of_its_own.root)]) == 0


def test_figures_of_code_that_no_commit_has_are_too_old(
    matrix_age: ModuleType, repository_of_its_own: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    repository_of_its_own.measure("0123456789ab+changes")
    assert matrix_age.main(["--root", str(repository_of_its_own.root)]) == 1
    assert "0123456789ab+changes is not a commit of this repository" in capsys.readouterr().out


# ---- figures, as runs keep them


@pytest.fixture
def kept(repository_of_its_own: Repository, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Keeps a figure of verl 0.9.1 in a file of its own repository, and returns what stands there of that version."""
    from batchbridge_on_cpu.figures import keep

    file = repository_of_its_own.root / "kept.json"
    monkeypatch.setenv("BATCHBRIDGE_RECORD", "1")

    def run(group: str, **figures: float) -> dict[str, Any]:
        keep(file, "0.9.1", group, figures)
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))["0.9.1"]
        return found

    return run


def test_figures_of_one_commit_come_together_and_those_of_another_go(
    repository_of_its_own: Repository, kept: Callable[..., dict[str, Any]]
) -> None:
    first = repository_of_its_own.commit()
    kept("ends", one=1.0)
    kept("gradient", error=1e-6)
    assert {name: value for name, value in kept("ends", two=2.0)["ends"].items() if name != "measured_on"} == {
        "one": 1.0,
        "two": 2.0,
    }
    repository_of_its_own.write("adapters/batchbridge_verl/engine.py", "x = 2\n")
    changed = kept("gradient", error=2e-6)
    assert changed["gradient"]["measured_on"]["commit"] == f"{first}+changes"
    second = repository_of_its_own.commit()
    found = kept("ends", three=3.0)
    assert (found["ends"].pop("measured_on")["commit"], found["ends"]) == (second, {"three": 3.0})
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", found["gradient"]["measured_on"]["date"])


def test_a_figure_is_kept_only_where_that_is_asked_for(
    repository_of_its_own: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    from batchbridge_on_cpu.figures import keep

    monkeypatch.delenv("BATCHBRIDGE_RECORD", raising=False)
    keep(repository_of_its_own.root / "kept.json", "0.9.1", "ends", {"one": 1.0})
    assert not (repository_of_its_own.root / "kept.json").exists()
