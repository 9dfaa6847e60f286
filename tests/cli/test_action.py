"""The steps of `action.yml`, as GitHub would run them, on a small git repository with a pull request's two commits."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
STEPS = {step["name"]: step for step in ACTION["runs"]["steps"]}
RECIPE = "num_generations: 8\nper_device_train_batch_size: 8\nlearning_rate: 1.0e-6\n"
SETTINGS = """
[tool.batchbridge]
framework = "trl"
framework_version = "1.16.0"
world_size = 2
dataset_size = 64
"""
GH = """#!/bin/bash
# Stands for GitHub's own program: notes its words, and has the comments of $KNOWN.
printf '%s\\n' "$*" >> "$RUNNER_TEMP/gh.log"
if [[ $* == *--jq* ]]; then echo "$KNOWN"; exit; fi
for word in "$@"; do if [[ $word == body=@* ]]; then cp "${word#body=@}" "$RUNNER_TEMP/comment.md"; fi; done
exit "${GH_EXIT:-0}"
"""


@dataclass
class Job:
    """A job on a runner: its repository, its temporary folder, and the inputs of the action."""

    repository: Path
    temporary: Path
    inputs: dict[str, str]
    environment: dict[str, str] = field(default_factory=dict)

    def step(self, name: str) -> tuple[int, str]:
        """Runs a step's bash as GitHub does: (exit code, what it printed)."""
        step = STEPS[name]
        environment = {key: self._filled(value) for key, value in step.get("env", {}).items()}
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=self.repository,
            env={**os.environ, **self.environment, **environment, "RUNNER_TEMP": str(self.temporary)},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    def _filled(self, text: str) -> str:
        known = {f"inputs.{name}": value for name, value in self.inputs.items()}
        known |= {"github.repository": "lab/runs", "github.action_path": str(ROOT)}
        return re.sub(r"\$\{\{ (\S+) \}\}", lambda found: known[found[1]], text)

    def summary(self) -> str:
        return (self.temporary / "summary.md").read_text(encoding="utf-8")


def git(folder: Path, *words: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    return subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


Pull = Callable[[Mapping[str, str]], Job]


@pytest.fixture
def pull(tmp_path: Path) -> Pull:
    """A pull request that changes files to these texts."""

    def pull(changes: Mapping[str, str]) -> Job:
        repository, temporary, bin_ = (tmp_path / name for name in ("a repository", "temporary", "bin"))
        for folder in (repository, temporary, bin_):
            folder.mkdir()
        before = {
            "recipes/a b.yaml": RECIPE,
            "recipes/c.yaml": RECIPE,
            "pyproject.toml": SETTINGS,
            "notes.yaml": "x: 1",
        }
        git(repository, "init", "-q")
        for files in (before, changes):
            for name, text in files.items():
                (repository / name).parent.mkdir(exist_ok=True)
                (repository / name).write_text(text, encoding="utf-8")
            git(repository, "add", ".")
            git(repository, "commit", "-qm", "change")
        programs = {"gh": GH, "batchbridge": f'#!/bin/bash\nexec "{sys.executable}" -m batchbridge "$@"\n'}
        for name, text in programs.items():
            (bin_ / name).write_text(text, encoding="utf-8")
            (bin_ / name).chmod(0o755)
        inputs = dict.fromkeys(ACTION["inputs"], "") | {"files": "recipes/*.yaml\n\n", "pull-request": "7"}
        inputs["base"] = git(repository, "rev-parse", "HEAD~1")
        environment = {
            "PATH": f"{bin_}:{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "GITHUB_STEP_SUMMARY": str(temporary / "summary.md"),
            "GITHUB_PATH": str(temporary / "path"),
            "KNOWN": "",
        }
        return Job(repository, temporary, inputs, environment)

    return pull


UNEVEN = {"recipes/a b.yaml": RECIPE.replace("num_generations: 8", "num_generations: 6")}
SLOWER = {"recipes/a b.yaml": RECIPE + "gradient_accumulation_steps: 4\n", "notes.yaml": "x: 2\n"}


def test_every_step_is_one_of_those_that_are_run_here() -> None:
    assert list(STEPS) == ["Install", "Check", "Compare", "Comment"]
    assert all(step["shell"] == "bash" and "${{" not in step["run"] for step in STEPS.values())


def test_install_puts_the_action_itself_on_the_path(pull: Pull) -> None:
    job = pull(SLOWER)
    python = job.temporary.parent / "bin" / "python3"
    python.write_text(  # stands for a Python: a virtual environment whose Python notes what pip is asked for
        "#!/bin/bash\n"
        'mkdir -p "$3/bin"\n'
        'printf \'#!/bin/bash\\necho "$@"\\n\' > "$3/bin/python"\n'
        'chmod +x "$3/bin/python"\n',
        encoding="utf-8",
    )
    python.chmod(0o755)
    assert job.step("Install") == (0, f"-m pip install --quiet {ROOT}\n")
    assert (job.temporary / "path").read_text(encoding="utf-8") == f"{job.temporary}/batchbridge/bin\n"


def test_check_shows_findings_beside_the_lines_and_fails(pull: Pull) -> None:
    code, out = pull(UNEVEN).step("Check")
    assert (code, out.splitlines()[0]) == (2, "2 files")
    assert "::error file=recipes/a b.yaml,line=2,title=BB-TRL-021::" in out


def test_check_passes_where_nothing_is_wrong(pull: Pull) -> None:
    job = pull(SLOWER)
    code, out = job.step("Check")
    assert code == 0, out
    assert "::error" not in out


def test_check_takes_options_and_no_file_for_one(pull: Pull) -> None:
    job = pull({"--version": "x: 1\n", **UNEVEN})
    job.inputs["options"] = "--ignore BB-TRL --fail-on error"
    code, out = job.step("Check")
    assert (code, "::error" in out) == (0, False)
    job.inputs |= {"files": "--version", "options": ""}
    code, out = job.step("Check")
    said = "::warning file=--version,line=1,title=BB-TRL-003::trl 1.16.0 with transformers"
    assert (code, said in out) == (0, True)
    assert "::warning title=BatchBridge::1 run undecided" in out


def test_nothing_in_the_inputs_runs(pull: Pull) -> None:
    job = pull(SLOWER)
    job.inputs |= {"files": '$(touch "$RUNNER_TEMP/ran")\n`touch "$RUNNER_TEMP/ran"`', "options": "$(touch x); touch y"}
    assert job.step("Check") == (0, "0 files\n")
    assert job.step("Compare")[0] == 0
    assert not (job.temporary / "ran").exists()


def test_without_files_it_does_not_look_at_all_of_them(pull: Pull) -> None:
    job = pull(SLOWER)
    job.inputs["files"] = " \n"
    for step in ("Check", "Compare"):
        code, out = job.step(step)
        assert (code != 0, "the input files is empty" in out) == (True, True)


def test_compare_says_how_the_meaning_changes(pull: Pull) -> None:
    job = pull(SLOWER)
    code, out = job.step("Compare")
    assert code == 0, out
    said = job.summary()
    assert said.startswith("**recipes/a b.yaml**\n\n    A  base:recipes/a b.yaml: trl 1.16.0, valid\n")
    assert "completions_per_step" in said
    assert "c.yaml" not in said
    assert "notes" not in said
    assert str(job.temporary) not in said
    assert str(job.repository) not in said
    assert all(line.startswith(("**", "    ")) or not line for line in said.splitlines())
    assert git(job.repository, "worktree", "list").count("\n") == 0


def test_compare_says_nothing_of_what_means_the_same(pull: Pull) -> None:
    job = pull({"recipes/c.yaml": "# the same\n" + RECIPE})
    assert job.step("Compare")[0] == 0
    assert job.summary() == ""


def test_compare_passes_over_what_no_framework_recognises(pull: Pull) -> None:
    job = pull(
        {"pyproject.toml": "", "recipes/ddp.yaml": "num_processes: 8\n", "recipes/serve.sh": "python serve.py 1\n"}
    )
    for name, text in {"ddp.yaml": "num_processes: 4\n", "serve.sh": "python serve.py 2\n", "c.yaml": "x: 1\n"}.items():
        (job.repository / "recipes" / name).write_text(text, encoding="utf-8")
    git(job.repository, "commit", "-qam", "change")
    job.inputs |= {"files": "recipes/*", "base": git(job.repository, "rev-parse", "HEAD~1")}
    assert job.step("Compare")[0] == 0
    assert [line for line in job.summary().splitlines() if line.startswith("**")] == ["**recipes/c.yaml**"]


def test_the_base_has_the_settings_of_its_own_time(pull: Pull) -> None:
    job = pull({"pyproject.toml": SETTINGS.replace("= 2", "= 4"), "recipes/c.yaml": "# the same\n" + RECIPE})
    assert job.step("Compare")[0] == 0
    assert "world_size" in job.summary()


def test_compare_fetches_a_base_that_is_not_there(pull: Pull, tmp_path: Path) -> None:
    job = pull(SLOWER)
    git(tmp_path, "clone", "-q", "--depth=1", job.repository.as_uri(), "shallow")
    git(job.repository, "config", "uploadpack.allowAnySHA1InWant", "true")
    job.repository = tmp_path / "shallow"
    assert job.step("Compare")[0] == 0
    assert "completions_per_step" in job.summary()


def test_comment_writes_one_and_then_keeps_it_up_to_date(pull: Pull) -> None:
    job = pull(SLOWER)
    job.step("Compare")
    assert job.step("Comment") == (0, "")
    comment = (job.temporary / "comment.md").read_text(encoding="utf-8")
    assert comment.startswith("<!-- batchbridge -->\n")
    assert comment.endswith(job.summary())
    job.environment["KNOWN"] = "41\n42"
    assert job.step("Comment") == (0, "")
    body = f"--field body=@{job.temporary}/batchbridge.md.comment"
    words = (job.temporary / "gh.log").read_text(encoding="utf-8").splitlines()
    assert [line for line in words if "--jq" not in line] == [
        f"api --silent repos/lab/runs/issues/7/comments {body}",
        f"api --silent --method PATCH repos/lab/runs/issues/comments/41 {body}",
    ]


def test_without_a_difference_there_is_no_comment_unless_one_must_be_taken_back(pull: Pull) -> None:
    job = pull({"recipes/c.yaml": "# the same\n" + RECIPE})
    job.step("Compare")
    assert job.step("Comment") == (0, "")
    assert not (job.temporary / "comment.md").exists()
    job.environment["KNOWN"] = "41"
    assert job.step("Comment") == (0, "")
    assert "no configuration any more" in (job.temporary / "comment.md").read_text(encoding="utf-8")


def test_a_token_that_may_not_write_fails_no_job(pull: Pull) -> None:
    job = pull(SLOWER)
    job.step("Compare")
    job.environment["GH_EXIT"] = "1"
    code, out = job.step("Comment")
    assert (code, out.startswith("::notice::no comment could be written")) == (0, True)


def test_a_configuration_cannot_write_markdown_or_commands(pull: Pull) -> None:
    hostile = RECIPE + 'output_dir: "a\\n\\n</pre>\\n::error::x\\n**bold**"\nnum_generations: 4\n'
    job = pull({"recipes/c.yaml": hostile})
    assert not [line for line in job.step("Check")[1].splitlines() if line.startswith("::error::")]
    job.step("Compare")
    body: Any = job.summary().splitlines()[2:]
    assert all(line.startswith("    ") or not line for line in body)
