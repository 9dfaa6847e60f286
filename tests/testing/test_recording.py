"""A framework's answers are recorded where it is, replayed where it is not, and held against it where it is again."""

from __future__ import annotations

import importlib
import json
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from toy_adapter import ToyAdapter

from batchbridge.contract.held import LAWS, Held
from batchbridge.contract.reading import Context, Source
from batchbridge.testing import EvidenceContract, ValidCase, recording

FRAMEWORK = """
def devices(settings):
    return settings["devices"]

def sizes(settings):
    rows = settings["prompts"] * settings["samples"]
    return [settings["step"]] * (rows // settings["step"])

def unused(settings):
    return 0
"""
SETTINGS = {"prompts": 8, "samples": 2, "step": 4, "devices": 2}
NAMED = {"devices": ("toys.py: devices",), "steps": ("toys.py: sizes",)}


@pytest.fixture
def toys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., type[EvidenceContract]]]:
    """A contract of toy's, whose framework is a package in a folder, by the functions that it names."""
    (tmp_path / "toyrl").mkdir()
    (tmp_path / "toyrl" / "__init__.py").write_text("", encoding="utf-8")
    (tmp_path / "toyrl" / "toys.py").write_text(FRAMEWORK, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    kept = tmp_path / "held.json"
    monkeypatch.setattr(recording, "held_file", lambda contract: kept)

    class Adapter(ToyAdapter):
        def held(self) -> Held | None:
            return Held(**json.loads(kept.read_text(encoding="utf-8"))) if kept.is_file() else None

    def made(named: dict[str, Any] = NAMED, **settings: Any) -> type[EvidenceContract]:
        class Toys(EvidenceContract):
            adapter_class = Adapter
            package, version, functions = "toyrl", "1.0", named
            record = tmp_path / "evidence.json"
            valid = (
                ValidCase(
                    name="one", source=Source(values={**SETTINGS, **settings}), context=Context(framework_version="1.0")
                ),
            )

            def native_devices(self, case: ValidCase) -> int:
                return int(importlib.import_module("toyrl.toys").devices(case.source.values))

            def native_step_sizes(self, case: ValidCase) -> list[int]:
                return list(importlib.import_module("toyrl.toys").sizes(case.source.values))

        return Toys

    yield made
    for name in ("toyrl", "toyrl.toys"):
        sys.modules.pop(name, None)


@pytest.fixture
def recorded(toys: Callable[..., type[EvidenceContract]], monkeypatch: pytest.MonkeyPatch) -> Path:
    with monkeypatch.context() as wanting:
        wanting.setenv(recording.RECORD, "unused")
        asked(toys())
    record = toys().record
    assert record is not None
    return record


def asked(contract: type[EvidenceContract]) -> None:
    contract().test_the_functions_that_are_named_have_answered_as_recorded()


def gone(folder: Path) -> None:
    """Takes the framework away."""
    (folder / "toyrl").rename(folder / "away")
    for name in ("toyrl", "toyrl.toys"):
        sys.modules.pop(name, None)
    importlib.invalidate_caches()


def test_a_record_has_answers_functions_and_their_digests_and_the_adapter_says_so(
    toys: Callable[..., type[EvidenceContract]], recorded: Path
) -> None:
    made = recording.read(recorded)
    assert made["cases"]["one"]["answers"]["devices"] == 2
    assert made["cases"]["one"]["answers"]["steps"] == [4, 4, 4, 4]
    assert list(made["code"]) == ["toys.py: devices", "toys.py: sizes"]
    held = toys().adapter_class().held()
    assert held is not None
    assert held.version == "1.0"
    assert {law: list(functions) for law, functions in held.laws.items()} == {
        law: list(keys) for law, keys in NAMED.items()
    }
    assert held.said == tuple(law for law in LAWS if law not in NAMED)
    asked(toys())
    toys()().test_the_adapter_says_what_it_was_compared_with()


def test_answers_are_replayed_without_the_framework_and_tell_a_misreading(
    toys: Callable[..., type[EvidenceContract]], recorded: Path
) -> None:
    gone(recorded.parent)
    contract = toys()
    (case,) = contract.valid
    contract().test_a_rollout_is_trained_in_the_frameworks_steps(case)
    with pytest.raises(pytest.skip.Exception, match="toyrl is not installed"):
        asked(contract)
    with pytest.raises(pytest.skip.Exception, match="no function to ask"):
        contract().test_the_run_has_the_frameworks_number_of_rollouts(case)

    class Misreading(contract.adapter_class):  # type: ignore[misc, name-defined]  # a class made above
        def read(self, source: Source, context: Context) -> Any:
            return super().read(Source(values={**source.values, "step": 8}), context)

    contract.adapter_class = Misreading
    with pytest.raises(AssertionError, match=r"steps of \[4, 4, 4, 4\] completions natively, \[8, 8\] are said"):
        contract().test_a_rollout_is_trained_in_the_frameworks_steps(case)


def test_a_record_from_before_a_law_came_stays_one(toys: Callable[..., type[EvidenceContract]], recorded: Path) -> None:
    """Answers of nobody, which older records have, and questions that are newer than the record."""
    stored = json.loads(recorded.read_text(encoding="utf-8"))
    stored["cases"]["one"]["answers"]["prompts [32]"] = None
    recorded.write_text(json.dumps(stored), encoding="utf-8")
    asked(toys())
    gone(recorded.parent)
    (case,) = toys().valid
    for law in ("prompts", "staleness"):
        with pytest.raises(pytest.skip.Exception, match="no function to ask"):
            getattr(toys()(), LAWS[law].test)(case)


def test_a_case_that_is_not_the_recorded_one_is_no_answer(
    toys: Callable[..., type[EvidenceContract]], recorded: Path
) -> None:
    gone(recorded.parent)
    contract = toys(step=8)
    with pytest.raises(AssertionError, match="one was recorded with other settings: record it anew"):
        contract().test_a_rollout_is_trained_in_the_frameworks_steps(contract.valid[0])
    other = ValidCase(name="two", source=contract.valid[0].source, context=contract.valid[0].context)
    with pytest.raises(AssertionError, match=r"two is not in evidence\.json"):
        contract().test_a_rollout_is_trained_in_the_frameworks_steps(other)


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("devices(settings):\n", "devices(settings):\n    x = 0\n", "other functions than evidence.json"),
        ("def sizes", "def size_list", "module 'toyrl.toys' has no attribute 'sizes'"),
    ],
)
def test_another_code_than_the_recorded_one_is_told(
    toys: Callable[..., type[EvidenceContract]], recorded: Path, before: str, after: str, told: str
) -> None:
    sys.modules.pop("toyrl.toys", None)
    (recorded.parent / "toyrl" / "toys.py").write_text(FRAMEWORK.replace(before, after), encoding="utf-8")
    importlib.invalidate_caches()
    with pytest.raises((AssertionError, AttributeError), match=told):
        asked(toys())


@pytest.mark.parametrize(
    ("before", "after"), [("[4, 4, 4, 4]", "[4, 4, 8]"), ('"devices": 2', '"devices": 3'), ('"steps"', '"stairs"')]
)
def test_a_record_that_says_something_else_is_told(
    toys: Callable[..., type[EvidenceContract]], recorded: Path, before: str, after: str
) -> None:
    recorded.write_text(recorded.read_text(encoding="utf-8").replace(before, after), encoding="utf-8")
    with pytest.raises(AssertionError, match=r"are not those of evidence\.json"):
        asked(toys())


def test_a_held_file_that_says_more_than_was_asked_is_told(
    toys: Callable[..., type[EvidenceContract]], recorded: Path
) -> None:
    held = recording.held_file(toys())
    said = json.loads(held.read_text(encoding="utf-8"))
    said["laws"]["advantages"] = {"toys.py: unused": "0" * 16}
    held.write_text(json.dumps(said), encoding="utf-8")
    for test in (toys()().test_the_adapter_says_what_it_was_compared_with, lambda: asked(toys())):
        with pytest.raises(AssertionError, match=r"held\.json of the adapter"):
            test()


@pytest.mark.parametrize(
    ("named", "told"),
    [
        ({"devices": ("toys.py: devices",)}, "functions names none of the framework's for steps"),
        ({**NAMED, "steps": ("toys.py: unused",)}, "native_step_sizes calls no toys.py: unused in any case"),
        ({**NAMED, "steps": ("toys.py: devices",)}, "native_step_sizes calls no toys.py: devices in any case"),
        ({**NAMED, "prompts": ("toys.py: unused",)}, "no case has an answer of prompts"),
    ],
)
def test_functions_that_did_not_answer_hold_nothing(
    toys: Callable[..., type[EvidenceContract]], named: dict[str, Any], told: str
) -> None:
    with pytest.raises(AssertionError, match=told):
        asked(toys(named))


def test_a_function_that_ran_in_a_thread_of_the_method_has_answered(
    toys: Callable[..., type[EvidenceContract]], recorded: Path
) -> None:
    class InAThread(toys()):  # type: ignore[misc]  # made by a function
        def native_devices(self, case: ValidCase) -> int:
            found: list[int] = []
            counting = threading.Thread(target=lambda: found.append(super(InAThread, self).native_devices(case)))
            counting.start()
            counting.join()
            return found[0]

    asked(InAThread)
