"""`batchbridge init` proposes settings that the runs of a folder need, writes them once, and never over others."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from batchbridge.cli import init
from batchbridge.cli._project import project
from batchbridge.cli.main import main

Run = Callable[..., tuple[int, str, str]]
GRPO = {
    "num_generations": 8,
    "per_device_train_batch_size": 8,
    "learning_rate": 1e-6,
    "max_completion_length": 64,
    "model_name_or_path": "a/b",
    "dataset_name": "a/b",
    "reward_funcs": ["accuracy"],
}
VERL = "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo trainer.nnodes=1 trainer.n_gpus_per_node=8\n"
OTHER = "colour: green\n"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> tuple[int, str, str]:
        code = main(words)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def put(**files: str) -> None:
    """Files by path, `__` for a folder's end."""
    for name, text in files.items():
        path = Path(name.replace("__", "/"))
        path = path.with_name(path.name.replace("_yaml", ".yaml").replace("_sh", ".sh").replace("_toml", ".toml"))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def recipe(**more: object) -> str:
    return yaml.safe_dump({**GRPO, **more})


def test_a_folder_of_recipes_gets_the_pinned_version_and_a_line_to_say_the_devices_in(run: Run) -> None:
    put(recipes__a__r_yaml=recipe(), recipes__b_yaml=recipe(num_generations=6), setup_yaml=OTHER)
    Path("requirements.txt").write_text("trl==0.18.0\n", encoding="utf-8")
    code, out, err = run("init")
    assert (code, err) == (0, "3 files that may be runs; 2 of trl\nnothing is written without --write\n")
    assert out == (
        "# found: 2 of trl\n"
        'framework_version = "0.18.0"  # requirements.txt:1\n'
        "# dataset_size = 8000  # prompts in the dataset\n"
        "\n"
        '[files."recipes/**/*.yaml"]\n'
        'framework = "trl"\n'
        "# world_size = 6  # devices; valid on 3, 6, 9, 12, 15, 18, 21, 24, ...\n"
    )
    assert not Path("batchbridge.toml").exists()


def test_what_is_written_is_what_check_goes_by(run: Run) -> None:
    put(recipes__a_yaml=recipe(), pyproject_toml="[project]\nname = 'a'")
    Path("requirements.txt").write_text("trl==0.18.0\n", encoding="utf-8")
    code, out, err = run("init", "--write")
    assert (code, out) == (0, "")
    assert err.endswith("pyproject.toml: written\n")
    text = Path("pyproject.toml").read_text(encoding="utf-8")
    assert text.startswith("[project]\nname = 'a'\n[tool.batchbridge]\n")
    assert run("check", "recipes/a.yaml")[0] == 4
    Path("pyproject.toml").write_text(
        text.replace("# world_size", "world_size").replace("# dataset", "dataset"), "utf-8"
    )
    code, out, _ = run("check", "recipes/a.yaml")
    assert (code, "recipes/a.yaml  trl 0.18.0  8 devices  VALID" in out) == (0, True), out


def test_lines_end_as_those_of_the_file_do(run: Run) -> None:
    put(recipes__a_yaml=recipe())
    Path("pyproject.toml").write_bytes(b"[project]\r\nname = 'a'\r\n")
    assert run("init", "--write")[0] == 0
    lines = Path("pyproject.toml").read_bytes().splitlines(keepends=True)
    assert {line[-2:] for line in lines} == {b"\r\n"}
    assert lines[:4] == [b"[project]\r\n", b"name = 'a'\r\n", b"\r\n", b"[tool.batchbridge]\r\n"]


def test_settings_that_are_there_are_never_changed(run: Run) -> None:
    put(recipes__a_yaml=recipe())
    assert run("init", "--write")[0] == 0
    before = Path("batchbridge.toml").read_text(encoding="utf-8")
    code, out, err = run("init", "--write")
    assert (code, out, "batchbridge.toml has settings already" in err) == (64, "", True)
    assert Path("batchbridge.toml").read_text(encoding="utf-8") == before


@pytest.mark.parametrize("table", ["[tool.batchbridge]\n", "[tool]\nbatchbridge.fail_on = 'error'\n"])
def test_a_table_that_is_there_is_never_changed_even_an_empty_one(run: Run, table: str) -> None:
    put(recipes__a_yaml=recipe(), pyproject_toml=table)
    code, _, err = run("init", "--write")
    assert (code, "pyproject.toml [tool.batchbridge] has settings already" in err) == (64, True)
    assert Path("pyproject.toml").read_text(encoding="utf-8") == table


def test_a_file_that_no_table_can_be_added_to_is_left_as_it_is(run: Run) -> None:
    put(recipes__a_yaml=recipe(), pyproject_toml="tool = {other = 1}\n")
    code, _, err = run("init", "--write")
    assert (code, "cannot be added at its end" in err) == (64, True)
    assert Path("pyproject.toml").read_text(encoding="utf-8") == "tool = {other = 1}\n"


def test_a_file_in_another_encoding_and_a_link_to_nowhere_stay_as_they_are(run: Run) -> None:
    put(recipes__a_yaml=recipe())
    Path("batchbridge.toml").symlink_to("nowhere.toml")
    code, _, err = run("init", "--write")
    assert (code, "batchbridge.toml: cannot be written: File exists" in err) == (64, True)
    assert not Path("nowhere.toml").exists()
    Path("batchbridge.toml").unlink()
    Path("pyproject.toml").write_bytes("[project]\n".encode("utf-16"))
    before = Path("pyproject.toml").read_bytes()
    code, _, err = run("init", "--write")
    assert (code, "cannot be added at its end" in err) == (64, True)
    assert Path("pyproject.toml").read_bytes() == before


def test_settings_of_a_folder_above_are_no_settings_of_this_one(run: Run) -> None:
    put(batchbridge_toml='fail_on = "error"\n', project__recipes__a_yaml=recipe())
    assert run("init", "project", "--write")[0] == 0
    assert Path("project/batchbridge.toml").exists()


def test_frameworks_that_are_pinned_have_their_versions_by_glob(run: Run) -> None:
    put(recipes__a_yaml=recipe(), scripts__b_sh=VERL, scripts__more__c_sh=VERL, mixed__d_sh=VERL, mixed__e_sh="make\n")
    Path("requirements.txt").write_text("trl==1.16.0\nverl==0.9.1\n", encoding="utf-8")
    said = tomllib.loads(run("init")[1])
    assert said == {
        "files": {
            "recipes/*.yaml": {"framework": "trl", "framework_version": "1.16.0"},
            "scripts/**/*.sh": {"framework": "verl", "framework_version": "0.9.1"},
        }
    }


def test_what_is_recognised_without_settings_gets_none(run: Run) -> None:
    put(scripts__b_sh=VERL)
    code, out, _ = run("init")
    assert code == 0
    assert tomllib.loads(out) == {}
    assert "# nothing here pins verl: without a framework_version every known release is asked\n" in out


def test_a_folder_without_runs_is_told_so(run: Run) -> None:
    put(a_yaml=OTHER)
    code, out, err = run("init")
    assert (code, out) == (64, "")
    assert "no run of a known framework; batchbridge check . has each file's reason" in err


@pytest.mark.parametrize("name", ["a b", 'quo"te', "back\\slash", "[ab]", "a*", "é 😀", "tool.x", "#", "'", "$(x)"])
def test_a_glob_speaks_of_its_files_alone_whatever_they_are_called(run: Run, name: str) -> None:
    folder = Path("recipes", name)
    folder.mkdir(parents=True)
    (folder / "r.yaml").write_text(recipe(), encoding="utf-8")
    for other in ("recipes/a", "recipes/b", "recipes/ab"):
        Path(other).mkdir(exist_ok=True)
        Path(other, "o.yaml").write_text(OTHER, encoding="utf-8")
    Path("requirements.txt").write_text("trl==1.16.0\n", encoding="utf-8")
    assert run("init", "--write")[0] == 0
    path = str(folder / "r.yaml")
    assert project(path).of(path)["framework"] == "trl"
    for other in ("recipes/a/o.yaml", "recipes/b/o.yaml", "recipes/ab/o.yaml"):
        assert "framework" not in project(other).of(other)


@pytest.mark.parametrize("name", ["a\nb", "a\x1b[31m", "a\udce9"])
def test_a_folder_that_toml_cannot_name_gets_no_glob(run: Run, name: str) -> None:
    Path("recipes", name).mkdir(parents=True)
    Path("recipes", name, "r.yaml").write_text(recipe(), encoding="utf-8")
    code, out, _ = run("init", "--write")
    assert (code, out) == (0, "")
    assert "files" not in tomllib.loads(Path("batchbridge.toml").read_text(encoding="utf-8"))


def group(*paths: str, of: dict[str, str]) -> list[tuple[str, list[str]]]:
    runs = [init.Run(path, framework) for path, framework in of.items()]
    return [(one.glob, [run.path for run in one.runs]) for one in init.groups(paths, runs)]


def test_groups_are_as_wide_as_they_may_be_and_no_wider() -> None:
    of = {"a/b/c/1.sh": "verl", "a/b/c/2.sh": "verl", "d/1.sh": "verl", "d/e/2.sh": "trl", "3.sh": "verl"}
    assert group(*of, of=of) == [
        ("*.sh", ["3.sh"]),
        ("a/b/c/*.sh", ["a/b/c/1.sh", "a/b/c/2.sh"]),
        ("d/*.sh", ["d/1.sh"]),
        ("d/e/*.sh", ["d/e/2.sh"]),
    ]
    assert group("a/1.sh", "a/2.sh", of={"a/1.sh": "verl"}) == []
    assert group("a/1.sh", "a/2.yaml", of={"a/1.sh": "verl"}) == [("a/*.sh", ["a/1.sh"])]


def test_nothing_of_a_repository_is_executed(run: Run, tmp_path: Path) -> None:
    put(scripts__b_sh=f"touch {tmp_path}/ran\n$(touch {tmp_path}/ran)\n{VERL}")
    Path("setup.py").write_text(f"open('{tmp_path}/ran', 'w')\n", encoding="utf-8")
    done = subprocess.run([sys.executable, "-m", "batchbridge", "init"], capture_output=True, text=True, check=False)
    assert (done.returncode, Path("ran").exists()) == (0, False)
