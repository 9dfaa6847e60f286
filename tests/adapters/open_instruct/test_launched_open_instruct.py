"""The hooks of `batchbridge run` on stand-ins for grpo_fast.py's loop: who is reached, and when weights are sent."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from batchbridge.errors import BatchDrift, CannotAttach
from batchbridge.meaning.spec import Staleness
from batchbridge.reading.read import read
from batchbridge.running.launch import ENVIRONMENT, Launch
from batchbridge_open_instruct import config, feed, launched, proven
from batchbridge_open_instruct.config import OpenInstructAdapter

STEPS = 4
ARGS = SimpleNamespace(num_epochs=2)


class Trigger:
    """As the script's WeightSyncTrigger."""

    def __init__(self, step: int) -> None:
        self.event, self.target = threading.Event(), step

    def notify(self, step: int) -> None:
        self.target = step
        self.event.set()

    def get_step_and_clear(self) -> int:
        self.event.clear()
        return self.target


class Script:
    """As the script's loop: weights go from a thread, which training does not wait for, and those of the first training
    step are never asked for. `there`: the step whose weights the engines have when a training step begins."""

    def __init__(self, *, fails_at: int | None = None) -> None:
        self.there: list[int] = []
        self.saved_with = -1
        self.flags: list[bool] = []
        self._engines, self._fails_at, self._stop = -1, fails_at, threading.Event()
        self._slow = threading.Event()
        self.names: dict[str, Any] = {
            launched.TRIGGER: Trigger,
            launched.STEP: self._train,
            launched.SAVE: lambda: self._engines,
            "grpo_utils": SimpleNamespace(perform_weight_sync=self._sync),
            "WEIGHT_SYNC_TIMEOUT_S": 20.0,
        }

    def _sync(self, target: int, *, inflight_updates: bool = False) -> str:
        self.flags.append(inflight_updates)
        self._slow.wait(0.05)  # never set: sending takes longer than what follows
        if target == self._fails_at:
            raise ConnectionError("an engine died")
        self._engines = target
        return "sent"

    def _train(self, args: Any, training_step: int) -> None:
        self.there.append(self._engines)

    def _send(self, trigger: Any) -> None:
        while not self._stop.is_set():
            if trigger.event.wait(0.01):
                target = trigger.get_step_and_clear()
                self.names["grpo_utils"].perform_weight_sync(target, inflight_updates=True)

    def run(self, resumed_at: int = 1) -> list[int]:
        with ThreadPoolExecutor(1) as executor:
            trigger = self.names[launched.TRIGGER](resumed_at - 1)
            executor.submit(self._send, trigger)
            try:
                trigger.notify(resumed_at - 1)
                while self._engines != resumed_at - 1 and self._fails_at != resumed_at - 1:
                    self._slow.wait(0.01)
                for step in range(resumed_at, resumed_at + STEPS):
                    self.names[launched.STEP](ARGS, training_step=step)
                    if step > resumed_at:
                        trigger.notify(step)
                self.saved_with = self.names[launched.SAVE]()
            finally:
                self._stop.set()
        return self.there


NOTE = "resumed from the checkpoint, and no member or weight of an optimizer step changes by what differs"


@pytest.fixture
def resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Data preparation compared a checkpoint with this run."""
    monkeypatch.setattr(launched.ScriptSide, "_notes", lambda self: (NOTE,))


def test_what_differs_from_the_run_that_is_resumed_is_said_once_by_the_driver(resumed: None) -> None:
    script = Script()
    launched.ScriptSide(script.names, waits=True)
    with pytest.warns(UserWarning, match=NOTE) as said:
        script.run(3)
    assert len(said) == 1


@pytest.mark.filterwarnings("ignore:batchbridge")
@pytest.mark.usefixtures("resumed")
@pytest.mark.parametrize("resumed_at", [1, 3])
def test_every_training_step_begins_with_the_weights_of_the_one_before_at_the_engines(resumed_at: int) -> None:
    script = Script()
    launched.ScriptSide(script.names, waits=True)
    assert script.run(resumed_at) == [resumed_at - 1 + step for step in range(STEPS)]
    assert script.saved_with == resumed_at - 1 + STEPS
    assert set(script.flags) == {False}


@pytest.mark.usefixtures("resumed")
def test_a_run_that_generates_ahead_sends_weights_as_the_script_does_and_says_what_differs() -> None:
    script = Script()
    launched.ScriptSide(script.names, waits=False)
    with pytest.warns(UserWarning, match=NOTE) as said:
        assert script.run()[:2] == [0, 0]
    assert len(said) == 1
    assert set(script.flags) == {True}


def test_without_the_hooks_the_second_training_step_begins_with_the_first_ones_weights() -> None:
    script = Script()
    assert script.run()[:2] == [0, 0]
    assert script.saved_with < STEPS
    assert set(script.flags) == {True}


@pytest.mark.filterwarnings("ignore:batchbridge")
@pytest.mark.usefixtures("resumed")
def test_a_send_that_fails_ends_the_run_before_the_next_training_step() -> None:
    script = Script(fails_at=1)
    launched.ScriptSide(script.names, waits=True)
    with pytest.raises(BatchDrift, match="after 1 training steps to the engines failed") as caught:
        script.run()
    assert (caught.value.step, caught.value.aspect) == (2, "clock")
    assert isinstance(caught.value.__cause__, ConnectionError)
    assert script.there == [0]


@pytest.mark.filterwarnings("ignore:batchbridge")
@pytest.mark.usefixtures("resumed")
def test_a_send_that_takes_too_long_ends_the_run() -> None:
    script = Script()
    script.names["WEIGHT_SYNC_TIMEOUT_S"] = 0.001
    launched.ScriptSide(script.names, waits=True)
    with pytest.raises(BatchDrift, match=r"took more than 0 s"):
        script.run()


# ---- who is reached


def actor_class(**methods: Any) -> Any:
    """As `ray.remote` leaves a class."""
    return SimpleNamespace(__ray_metadata__=SimpleNamespace(modified_class=type("Actor", (), methods)))


def script_module(**names: Any) -> ModuleType:
    module = ModuleType("__main__")
    names.setdefault("__file__", "/nowhere/open_instruct/grpo_fast.py")
    vars(module).update(names)
    return module


def complete() -> dict[str, Any]:
    learner = actor_class(from_pretrained=lambda self: "loaded")
    step, save = (lambda args, training_step: None), (lambda: None)
    return {launched.LEARNER: learner, launched.TRIGGER: Trigger, launched.STEP: step, launched.SAVE: save}


def test_another_script_is_refused_by_name_when_it_begins() -> None:
    with pytest.raises(CannotAttach, match=r"finetune\.py defines no PolicyTrainerRayProcess") as caught:
        launched.reach(script_module(__file__="finetune.py"))
    assert set(caught.value.reasons) == {"script"}


def test_a_script_of_other_code_is_refused_when_it_begins() -> None:
    with pytest.raises(CannotAttach, match=r"not one that it knows: open-instruct grpo_fast\.py") as caught:
        launched.reach(script_module(**complete()))
    assert set(caught.value.reasons) == {"unproven_code"}


COMMAND = ["python", "open_instruct/grpo_fast.py", "--total_episodes", "640"]


@pytest.mark.parametrize(
    ("mode", "staleness", "steps", "sends"),
    [
        ("enforce", Staleness(), True, True),
        ("enforce", Staleness(mode="bounded", maximum=0), True, True),
        ("enforce", Staleness(mode="bounded", maximum=2), True, False),
        ("enforce", None, True, False),  # the command's own
        ("observe", None, False, False),
    ],
)
def test_learners_follow_when_loaded_and_weights_are_waited_for_where_the_spec_is_synchronous(
    monkeypatch: pytest.MonkeyPatch, mode: str, staleness: Staleness | None, steps: bool, sends: bool
) -> None:
    own = read(COMMAND, version="2026.8.20").spec
    assert own is not None
    spec = None if staleness is None else own.replace(staleness=staleness).to_dict()
    launch = Launch(framework="open_instruct", hooks={}, mode=mode, spec=spec)
    monkeypatch.setenv(ENVIRONMENT, launch.environment({})[ENVIRONMENT])
    monkeypatch.setattr(launched.proven, "require", lambda *asked, **more: None)
    followed: list[Any] = []
    monkeypatch.setattr(launched, "follow", followed.append)
    names = {**complete(), "WEIGHT_SYNC_TIMEOUT_S": 1.0}
    script = script_module(**names, grpo_utils=SimpleNamespace(perform_weight_sync=lambda: None))
    launched.reach(script)
    learner = names[launched.LEARNER].__ray_metadata__.modified_class()
    assert learner.from_pretrained() == "loaded"
    assert followed == [learner]
    assert (vars(script)[launched.STEP] is not names[launched.STEP]) == steps
    assert (vars(script)[launched.TRIGGER] is not Trigger) == sends


def test_the_script_is_reached_by_the_first_thing_that_it_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    reached: list[Any] = []
    monkeypatch.setattr(launched, "reach", reached.append)
    module = ModuleType("open_instruct.utils")
    vars(module)["check_oe_eval_internal"] = lambda: "checked"
    launched.utilities(module)
    assert module.check_oe_eval_internal() == "checked"
    assert reached == [importlib.import_module("__main__")]


SCRIPT = """
from open_instruct import utils

PolicyTrainerRayProcess = WeightSyncTrigger = one_training_step = save_final_model = None

if __name__ == "__main__":
    utils.check_oe_eval_internal()
    print("ran natively")
"""


@pytest.mark.parametrize("words", [("open_instruct/grpo_fast.py",), ("-m", "open_instruct.grpo_fast")])
def test_a_script_started_as_a_file_or_as_a_module_is_reached_in_its_main(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    package = tmp_path / "open_instruct"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "utils.py").write_text("def check_oe_eval_internal():\n    pass\n")
    (package / "grpo_fast.py").write_text(SCRIPT)
    launch = Launch(framework="open_instruct", hooks=OpenInstructAdapter().hooks())
    environment = launch.environment({**os.environ, "PYTHONPATH": str(tmp_path)})
    done = subprocess.run(
        [sys.executable, *words], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "unproven_code: the code that BatchBridge patches or relies on" in done.stderr
    assert "ran natively" not in done.stdout


def test_data_preparation_without_orders_does_not_start() -> None:
    actor = actor_class(start=lambda self: "started")
    launched.preparation(SimpleNamespace(DataPreparationActor=actor))  # type: ignore[arg-type]  # as a module
    one = actor.__ray_metadata__.modified_class()
    with pytest.raises(CannotAttach, match="data preparation has no orders") as caught:
        one.start()
    assert set(caught.value.reasons) == {"arrival"}
    setattr(one, feed.ATTRIBUTE, "orders")
    assert one.start() == "started"


def test_every_hook_is_a_function_that_can_be_called() -> None:
    for target in OpenInstructAdapter().hooks().values():
        place, _, name = target.partition(":")
        assert callable(getattr(importlib.import_module(place), name))


# ---- the command


@pytest.mark.parametrize("words", [("{folder}/grpo_fast.py",), ("-m", "open_instruct.grpo_fast")])
def test_the_checkout_of_a_command_is_known_by_its_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    folder = tmp_path / "open_instruct"
    folder.mkdir()
    (folder / "grpo_fast.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(proven, "checkout_of", lambda package: "2026.8.20" if package == folder else None)
    reading = read(["python", *(word.format(folder=folder) for word in words), "--total_episodes", "64"])
    assert (reading.framework, reading.framework_version) == ("open_instruct", "2026.8.20")


@pytest.mark.parametrize(("script", "said"), [("grpo_fast", True), ("grpo", False)])
def test_behaviour_says_which_weights_the_script_generates_with(script: str, said: bool) -> None:
    words = ["python", f"open_instruct/{script}.py", "--async_steps", "3", "--total_episodes", "640"]
    found = read(words, version="2026.8.20").behaviour
    assert found is not None
    assert any("up to 3 fewer" in one and "never sent" in one for one in found.undecided) == said


def test_a_checkout_of_other_code_has_to_be_named(tmp_path: Path) -> None:
    (tmp_path / "grpo_fast.py").write_text("")
    reading = read(["python", str(tmp_path / "grpo_fast.py"), "--total_episodes", "64"])
    assert [found.code for found in reading.findings] == ["BB-OI-001"]
    assert config.OpenInstructAdapter.enforced_versions == ">=2026.8.20"
