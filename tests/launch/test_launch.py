"""`batchbridge run` without any framework: hooks arrive everywhere, or the run is not taken for a followed one."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from batchbridge.errors import CannotAttach
from batchbridge.reading.read import read
from batchbridge.running import wrap
from batchbridge.running.follow import follow
from batchbridge.running.launch import ENVIRONMENT, SITE, Launch, current_launch
from batchbridge.running.launch_ray import (
    JOB_CONFIG,
    SETUP_HOOK,
    START,
    confirm,
    out_of_job,
    reach_workers,
    with_launch,
)

FRAMEWORK = """
class Trainer:
    followed = False
"""
HOOKS = """
import os, pathlib
def reached(module):
    module.Trainer.followed = True
    with pathlib.Path(os.environ["TRACE"]).open("a") as trace:
        trace.write(f"{module.__name__} {os.getpid()}\\n")
def broken(module):
    raise RuntimeError("this framework has no seam left")
"""
COMMAND = """
import subprocess, sys
import toyframework.trainer
assert toyframework.trainer.Trainer.followed, "the hook did not run"
if "child" not in sys.argv:
    sys.exit(subprocess.run([sys.executable, __file__, "child"]).returncode)
"""


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    """A framework, an adapter's hooks, and a command that starts a process of its own."""
    (tmp_path / "toyframework").mkdir()
    (tmp_path / "toyframework" / "__init__.py").write_text("")
    (tmp_path / "toyframework" / "trainer.py").write_text(FRAMEWORK)
    (tmp_path / "toyhooks.py").write_text(HOOKS)
    (tmp_path / "command.py").write_text(COMMAND)
    return tmp_path


def run(toy: Path, hook: str, *options: str, paths: tuple[Path, ...] = ()) -> subprocess.CompletedProcess[str]:
    launch = Launch(framework="toy", hooks={"toyframework.trainer": f"toyhooks:{hook}"})
    here = [path for path in [os.environ.get("PYTHONPATH")] if path]  # a source tree's, in development
    own = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, [*paths, toy, *here])), "TRACE": str(toy / "trace")}
    return subprocess.run(
        [sys.executable, *options, str(toy / "command.py")],
        env=launch.environment(own),
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_hook_runs_in_the_command_and_in_the_processes_that_it_starts(toy: Path) -> None:
    ran = run(toy, "reached")
    assert ran.returncode == 0, ran.stderr
    traced = [line.split() for line in (toy / "trace").read_text().splitlines()]
    assert [name for name, _ in traced] == ["toyframework.trainer"] * 2
    assert len({process for _, process in traced}) == 2


def test_an_error_of_a_hook_ends_the_import(toy: Path) -> None:
    ran = run(toy, "broken")
    assert ran.returncode == 1
    assert "this framework has no seam left" in ran.stderr


def test_a_sitecustomize_of_the_users_own_still_runs(toy: Path) -> None:
    theirs = toy / "theirs"
    theirs.mkdir()
    (theirs / "sitecustomize.py").write_text("print('their own')")
    ran = run(toy, "reached", paths=(theirs,))
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == ["their own"] * 2


def test_a_process_without_the_launch_is_left_alone(toy: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SITE), str(toy)])}
    environment.pop(ENVIRONMENT, None)
    ran = subprocess.run(
        [sys.executable, str(toy / "command.py")], env=environment, capture_output=True, text=True, check=False
    )
    assert "the hook did not run" in ran.stderr


def test_a_process_that_does_not_understand_the_launch_ends(toy: Path) -> None:
    """As on a node with another version of batchbridge: Python would print an error of sitecustomize, and go on."""
    here = [path for path in [os.environ.get("PYTHONPATH")] if path]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SITE), *here])}
    environment[ENVIRONMENT] = json.dumps({"framework": "toy", "hooks": {}, "of_a_later_version": 1})
    ran = subprocess.run(
        [sys.executable, "-c", "print('ran natively')"], env=environment, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 1
    assert "this process cannot be reached, and does not run: TypeError" in ran.stderr
    assert "ran natively" not in ran.stdout


def test_a_launch_survives_the_environment() -> None:
    launch = Launch(framework="toy", hooks={"a.b": "c:d"}, spec={"x": 1}, ledger="somewhere", allow=["vllm"])
    environment = launch.environment({"PYTHONPATH": "own"})
    assert Launch(**json.loads(environment[ENVIRONMENT])) == launch
    assert environment["PYTHONPATH"].split(os.pathsep) == [str(SITE), "own"]


def test_without_a_launch_following_leaves_a_trainer_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENVIRONMENT, raising=False)
    trainer = object()
    assert current_launch() is None
    assert follow(trainer) is trainer


def test_the_launchs_budget_and_spec_reach_the_trainers_wrapping(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    launch = Launch(
        framework="toy", hooks={}, tokens_per_device=64, allow=["vllm"], report_to="trainer", padding="auto"
    )
    monkeypatch.setenv(ENVIRONMENT, launch.environment({})[ENVIRONMENT])
    given: list[Any] = []
    settings = {"num_generations": 4, "per_device_train_batch_size": 8, "max_steps": 7}
    own = read(settings, framework="trl", version="1.16.0", world_size=1, dataset_size=64)

    def noted(trainer: Any, *arguments: Any, **options: Any) -> None:
        given.append((arguments, options))
        asked = SimpleNamespace(spec=own.spec, reading=own)
        trainer.batchbridge = SimpleNamespace(report=lambda changes=True: "report", request=asked)

    monkeypatch.setattr(wrap, "wrap", noted)
    follow(SimpleNamespace())
    told = {"tokens_per_device": 64, "allow": ["vllm"], "report_to": "trainer", "padding": "auto"}
    assert given == [((None, "enforce", None), told)]
    steps = "an optimizer step trains 8 completions; a response token weighs 1 / T (T: response tokens); 7 steps"
    assert capsys.readouterr().err == f"batchbridge: report\nbatchbridge:   {steps}\n"


# ---- Ray, as far as it can be said without it


class ToyRay(ModuleType):
    """`init`, `remote` and `get`; worker processes belong to the launch `run`."""

    def __init__(self, run: str | None) -> None:
        super().__init__("ray")
        self.run, self.started = run, []  # type: list[dict[str, Any]]
        self.reached = True

    def init(self, **options: Any) -> str:
        self.started.append(options)
        return "context"

    def remote(self, **options: Any) -> Any:
        return lambda function: SimpleNamespace(remote=lambda run: (self.run, self.reached))

    def shutdown(self) -> None: ...

    def is_initialized(self) -> bool:
        return False

    def get(self, answer: Any) -> Any:
        return answer


def launched(monkeypatch: pytest.MonkeyPatch) -> Launch:
    launch = Launch(framework="toy", hooks={})
    monkeypatch.setenv(ENVIRONMENT, launch.environment({})[ENVIRONMENT])
    return launch


def test_ray_carries_the_launch_to_its_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    launch = launched(monkeypatch)
    ray = ToyRay(launch.run)
    reach_workers(ray)
    reach_workers(ray)
    assert ray.init(num_cpus=2, runtime_env={"env_vars": {"A": "1"}, "working_dir": None}) == "context"
    (options,) = ray.started
    assert options["num_cpus"] == 2
    assert options["runtime_env"]["env_vars"] == {"A": "1", ENVIRONMENT: os.environ[ENVIRONMENT]}
    assert options["runtime_env"][SETUP_HOOK] == START


def test_workers_of_another_launch_end_the_run_before_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    launched(monkeypatch)
    ray = ToyRay("another")
    reach_workers(ray)
    with pytest.raises(CannotAttach, match="belong to the launch another"):
        ray.init()


def test_workers_without_batchbridge_end_the_run_before_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    launch = launched(monkeypatch)
    ray = ToyRay(launch.run)
    monkeypatch.setattr(ray, "get", lambda answer: (_ for _ in ()).throw(ImportError("no module named batchbridge")))
    with pytest.raises(CannotAttach, match="install it on every node"):
        confirm(ray, launch.run)


def test_workers_that_have_the_launch_and_did_not_start_it_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    launch = launched(monkeypatch)
    ray = ToyRay(launch.run)
    ray.reached = False
    with pytest.raises(CannotAttach, match="did not start it"):
        confirm(ray, launch.run)


@pytest.mark.parametrize("by_name", [True, False])
def test_a_setup_hook_of_the_users_own_is_called_after_ours(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, by_name: bool
) -> None:
    launch = launched(monkeypatch)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    (tmp_path / "theirs.py").write_text(
        "import sys\nfound = []\ndef hook(): found.append([getattr(one, 'run', None) for one in sys.meta_path])\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    theirs = importlib.import_module("theirs")
    made = with_launch({SETUP_HOOK: "theirs.hook" if by_name else theirs.hook, "env_vars": {"PYTHONPATH": "/own"}})
    made[SETUP_HOOK]()
    assert launch.run in theirs.found[0], "ours came first"
    assert made["env_vars"]["PYTHONPATH"].split(os.pathsep) == [str(SITE), "/own"]
    del sys.modules["theirs"]


def test_what_a_job_says_already_its_driver_says_in_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    launched(monkeypatch)
    job = {"env_vars": {"PYTHONPATH": "/own", "A": "1"}, SETUP_HOOK: "their.hook", "working_dir": "gcs://x"}
    environment = {JOB_CONFIG: json.dumps({"runtime_env": job, "metadata": {}})}
    made = with_launch({"env_vars": {"B": "2"}}, out_of_job(environment))
    left = json.loads(environment[JOB_CONFIG])
    assert left == {"runtime_env": {"env_vars": {"A": "1"}, "working_dir": "gcs://x"}, "metadata": {}}
    assert made["env_vars"]["PYTHONPATH"].split(os.pathsep) == [str(SITE), "/own"]
    assert made["env_vars"]["B"] == "2"
    assert callable(made[SETUP_HOOK])
    assert not {*made} & {*left["runtime_env"]} - {"env_vars"}
