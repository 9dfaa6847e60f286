"""The workflows run what `.ci/run` runs, session by session, and what the upstream job does is run here."""

from __future__ import annotations

import ast
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".github" / "workflows"
WORKFLOWS = {path.name: yaml.load(path.read_text(encoding="utf-8"), yaml.BaseLoader) for path in FOLDER.glob("*.yml")}
JOBS = {(name, job): body for name, workflow in WORKFLOWS.items() for job, body in workflow["jobs"].items()}
STEPS = [(name, step) for (name, _), body in JOBS.items() for step in body["steps"]]
RUN = [(name, step) for name, step in STEPS if "run" in step]
GH = """#!/bin/bash
# Stands for GitHub's own program: notes its words, and knows the issue $KNOWN.
printf '%s\\n' "$*" >> "$RUNNER_TEMP/gh.log"
if [ "$1 $2" = 'issue list' ]; then echo "$KNOWN"; fi
for ((at = 1; at <= $#; at++)); do
  if [ "${!at}" = --body-file ]; then next=$((at + 1)); cp "${!next}" "$RUNNER_TEMP/body.md"; fi
done
"""


def noxfile() -> ast.Module:
    """Read, not imported: most environments of these tests have no nox."""
    return ast.parse((ROOT / "noxfile.py").read_text(encoding="utf-8"))


def default_sessions() -> list[str]:
    (found,) = [
        ast.literal_eval(node.value)
        for node in noxfile().body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "DEFAULT"
    ]
    return list(found)


def every_session() -> set[str]:
    return {
        node.name
        for node in noxfile().body
        if isinstance(node, ast.FunctionDef) and any("nox.session" in ast.unparse(one) for one in node.decorator_list)
    }


def readme_command(marker: str) -> str:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (found,) = re.findall(rf"<!-- {marker} -->\n```bash\n(.*?)\n```", text, re.DOTALL)
    return str(found)


FOR_FRAMEWORKS = "3.11"
"""The Python of the sessions of frameworks: every one of them is for it."""


def matrix() -> dict[str, str]:
    """Session to the Python that its job has."""
    found = WORKFLOWS["ci.yml"]["jobs"]["session"]["strategy"]["matrix"]
    (python,) = found["python"]
    return {**dict.fromkeys(found["session"], python), **{one["session"]: one["python"] for one in found["include"]}}


def test_there_is_a_job_for_every_default_session_and_every_python() -> None:
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    pythons = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', pyproject)
    (named,) = re.findall(r"(?m)^PYTHONS = (.*)$", (ROOT / "noxfile.py").read_text(encoding="utf-8"))
    assert tuple(pythons) == ast.literal_eval(named)
    wanted = {name: FOR_FRAMEWORKS for name in default_sessions() if name != "core"}
    assert matrix() == wanted | {f"core-{python}": python for python in pythons}


CHECKOUTS = {"easyr1": ("hiyouga/EasyR1", "easyr1.md"), "open_instruct": ("allenai/open-instruct", "open_instruct.md")}
"""Frameworks on no package index: their repositories, and the page that names the commit."""


@pytest.mark.parametrize("session", CHECKOUTS)
def test_a_framework_on_no_package_index_is_checked_out_at_the_commit_that_its_page_names(session: str) -> None:
    repository, page = CHECKOUTS[session]
    job = WORKFLOWS["ci.yml"]["jobs"]["session"]
    (one,) = [one for one in job["strategy"]["matrix"]["include"] if one["session"] == session]
    assert one["repository"] == repository
    assert one["ref"][:7] in (ROOT / "docs" / page).read_text(encoding="utf-8")
    (out,) = [step["with"] for step in job["steps"] if step.get("if") == "matrix.repository"]
    assert (out["repository"], out["ref"]) == ("${{ matrix.repository }}", "${{ matrix.ref }}")
    named = job["env"][f"BATCHBRIDGE_{session.upper()}"]
    assert named == f"${{{{ matrix.session == '{session}' && format('{{0}}/{out['path']}', github.workspace) || '' }}}}"
    night = WORKFLOWS["nightly.yml"]["jobs"]["matrix"]["steps"]
    (there,) = [step["with"] for step in night if step.get("with", {}).get("repository") == repository]
    assert there["ref"] == one["ref"]


def test_the_night_runs_every_part_of_the_matrix() -> None:
    (parts,) = [
        ast.literal_eval(node.value)
        for node in noxfile().body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "MATRIX"
    ]
    assert WORKFLOWS["nightly.yml"]["jobs"]["matrix"]["strategy"]["matrix"]["part"] == list(parts)
    assert set(parts) <= every_session() - set(default_sessions())


SMOKE = "pytest.mark.smoke"


def smoke_tests(text: str) -> set[str]:
    """The names of a module's tests that `-m smoke` runs: marked themselves, or by a parameter of what they take."""
    tree = ast.parse(text)
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    marked = {
        ast.unparse(node.targets[0])
        for node in tree.body
        if isinstance(node, ast.Assign) and SMOKE in ast.unparse(node)
    }
    while True:
        found = {
            node.name
            for node in functions
            if any(
                SMOKE in (said := ast.unparse(each)) or marked & set(re.findall(r"\w+", said))
                for each in node.decorator_list
            )
            or marked & {each.arg for each in node.args.args}
        }
        if found <= marked:
            return {name for name in marked if name.startswith("test_")}
        marked |= found


@pytest.mark.parametrize("framework", ["trl", "verl", "openrlhf", "easyr1", "open_instruct"])
def test_every_framework_has_gradients_tampering_and_a_run_that_goes_on_in_a_default_session(framework: str) -> None:
    native = ROOT / "tests" / "adapters" / framework / "native"
    names = [name for path in native.glob("test_*.py") for name in smoke_tests(path.read_text(encoding="utf-8"))]
    for word in ("gradient", "(?:tamper|has_a_hand_in)", "(?:resumed|killed)"):
        assert [name for name in names if re.search(word, name)], word
    assert framework in default_sessions()


def test_a_test_is_of_the_smoke_by_its_own_mark_or_by_what_it_takes() -> None:
    text = """
BENCHES = [pytest.param(1, marks=pytest.mark.smoke), 2]
@pytest.fixture(params=[pytest.param(1, marks=pytest.mark.smoke), 2])
def ranks(request): ...
@pytest.fixture
def measured(ranks): ...
def test_gradient(measured): ...
@pytest.mark.parametrize("bench", BENCHES)
def test_bench(bench): ...
@pytest.mark.smoke
def test_killed(folder): ...
def test_resumed(folder): ...
"""
    assert smoke_tests(text) == {"test_gradient", "test_bench", "test_killed"}


def test_a_job_runs_the_readmes_command_for_its_session() -> None:
    (step,) = [step for step in WORKFLOWS["ci.yml"]["jobs"]["session"]["steps"] if "run" in step]
    assert step["run"] == f'{readme_command("test-command")} --session "$SESSION"'
    assert WORKFLOWS["ci.yml"]["jobs"]["session"]["env"]["SESSION"] == "${{ matrix.session }}"


def test_every_session_that_a_workflow_names_exists() -> None:
    named = {name for _, step in RUN for name in re.findall(r"--session (\w+)", step["run"])}
    assert named == {"upstream", "matrix", "mutations"}
    assert named | {name.partition("-")[0] for name in matrix()} <= every_session()


@pytest.mark.parametrize(("name", "job"), JOBS)
def test_a_job_has_a_time_limit_and_may_do_no_more_than_it_needs(name: str, job: str) -> None:
    workflow, body = WORKFLOWS[name], JOBS[name, job]
    assert 0 < int(body["timeout-minutes"]) <= (360 if name == "nightly.yml" else 180)
    assert workflow["concurrency"]["group"]
    allowed: Any = body.get("permissions", workflow["permissions"])
    assert allowed == {"contents": "read"} | ({"issues": "write"} if name == "upstream.yml" else {})


@pytest.mark.parametrize("step", [step for _, step in STEPS if "uses" in step], ids=lambda step: step["uses"])
def test_an_action_is_pinned_by_its_commit_and_leaves_no_token_behind(step: dict[str, Any]) -> None:
    assert re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40}", step["uses"])
    if "checkout" in step["uses"]:
        assert step["with"]["persist-credentials"] == "false"
    if "setup-python" in step["uses"]:
        assert step["with"]["cache"] == "pip"
        assert list(ROOT.glob(step["with"]["cache-dependency-path"]))


def test_one_action_has_one_commit_everywhere() -> None:
    used = {tuple(step["uses"].split("@")) for _, step in STEPS if "uses" in step}
    assert len(used) == len({name for name, _ in used}) == 2


@pytest.mark.parametrize(
    ("name", "step"), RUN, ids=lambda value: value.get("name") if isinstance(value, dict) else None
)
def test_a_command_is_bash_and_takes_what_github_fills_in_through_variables(name: str, step: dict[str, Any]) -> None:
    assert "${{" not in step["run"]
    done = subprocess.run(["bash", "-n"], input=step["run"], text=True, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_torch_comes_from_pytorchs_own_index_for_cpus() -> None:
    found = {body["env"]["PIP_FIND_LINKS"] for body in JOBS.values()}
    assert found == {"https://download.pytorch.org/whl/cpu/torch/"}


def step(name: str) -> str:
    (found,) = [step["run"] for _, step in RUN if step.get("name") == name]
    return str(found)


class Look:
    """The upstream job, in a folder with a nox of ours."""

    def __init__(self, folder: Path, prints: str, code: int) -> None:
        self.folder = folder
        programs = {".venv/bin/nox": f"#!/bin/bash\necho \"$*\"\nprintf '%b' '{prints}'\nexit {code}\n", "bin/gh": GH}
        for name, text in programs.items():
            (folder / name).parent.mkdir(parents=True)
            (folder / name).write_text(text, encoding="utf-8")
            (folder / name).chmod(0o755)

    def run(self, name: str, **environment: str) -> tuple[int, str]:
        given = {"RUNNER_TEMP": str(self.folder), "GITHUB_OUTPUT": str(self.folder / "output"), **environment}
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step(name)],
            cwd=self.folder,
            env={**os.environ, "PATH": f"{self.folder}/bin:{os.environ['PATH']}", **given},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    def text(self, name: str) -> str:
        return (self.folder / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("code", [0, 1])
def test_the_look_goes_on_whatever_it_finds_and_says_how_it_ended(tmp_path: Path, code: int) -> None:
    look = Look(tmp_path, "trl 1.17.0: differs\\n", code)
    assert look.run("Look") == (0, "--session upstream\ntrl 1.17.0: differs\n")
    assert look.text("output") == f"code={code}\n"
    assert look.text("upstream.txt") == "--session upstream\ntrl 1.17.0: differs\n"


def test_a_difference_is_told_in_an_issue_as_text(tmp_path: Path) -> None:
    look = Look(tmp_path, "trl 1.17.0: differs\\n::error::x\\n</pre> **bold**\\n", 1)
    look.run("Look")
    code, out = look.run("Tell", KNOWN="", RUN="https://example.org/run")
    assert (code, out.startswith("::warning title=Upstream::")) == (0, True)
    assert "::error::x" not in out
    body = look.text("body.md").splitlines()
    assert body[0].startswith("`nox -s upstream` asks for a reader ([run](https://example.org/run))")
    assert body[1:4] == ["", "    --session upstream", "    trl 1.17.0: differs"]
    assert all(line.startswith("    ") for line in body[2:])
    assert (
        look.text("gh.log").splitlines()[-1].startswith("issue create --title Upstream has changed --label upstream ")
    )


def test_an_issue_that_is_open_gets_a_comment(tmp_path: Path) -> None:
    look = Look(tmp_path, "trl 1.17.0: differs\\n", 1)
    look.run("Look")
    assert look.run("Tell", KNOWN="7", RUN="https://example.org/run")[0] == 0
    words = look.text("gh.log").splitlines()
    assert words[-1] == f"issue comment 7 --body-file {tmp_path}/upstream.md"
    assert not [line for line in words if line.startswith("issue create")]
    (told,) = [one for _, one in RUN if one.get("name") == "Tell"]
    assert told["if"] == "steps.look.outputs.code != '0'"


def test_the_wrong_verdict_form_asks_for_a_report_that_the_command_prints() -> None:
    form = yaml.safe_load((ROOT / ".github/ISSUE_TEMPLATE/wrong_verdict.yml").read_text(encoding="utf-8"))
    (asked,) = [one for one in form["body"] if one.get("id") == "report"]
    assert "`batchbridge report FILE`" in asked["attributes"]["description"]
    shared = (ROOT / "src/batchbridge/cli/report.py").read_text(encoding="utf-8")
    assert f'"{asked["attributes"]["placeholder"]}",' in shared


@pytest.mark.parametrize("file", sorted((ROOT / ".github").rglob("*.[ym]*")), ids=lambda path: path.name)
def test_every_file_and_session_that_a_template_names_is_there(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    for name in re.findall(r"(?<![\w/])(?:docs/[\w/]+\.md|CONTRIBUTING\.md|CHANGELOG\.md)", text):
        assert (ROOT / name).is_file(), name
    for words in re.findall(r"`nox -s ([a-z_ ]+)", text):
        assert set(words.split()) <= every_session(), words
