"""`batchbridge.read`: detection, merging of findings, adapters with bugs, and content that nobody expected."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batchbridge import Adapter, Reading, hookimpl, read
from batchbridge.contract import plugins
from batchbridge.contract.reading import Context, Source
from batchbridge.kit.rule_table import IN_CONFIG
from batchbridge.meaning.findings import Finding


@contextmanager
def adapter(cls: type[Adapter]) -> Iterator[None]:
    class Provider:
        @hookimpl
        def batchbridge_adapters(self) -> list[type[Adapter]]:
            return [cls]

    provider = Provider()
    plugins.manager().register(provider)
    try:
        yield
    finally:
        plugins.manager().unregister(provider)


def codes(reading: Reading) -> list[str]:
    return [finding.code for finding in reading.findings]


def test_a_dict_may_be_nested_or_dotted(toy: ModuleType) -> None:
    nested, dotted = read({"toy": {"step": 4}}), read({"toy.step": 4})
    assert nested.spec == dotted.spec
    assert nested.spec is not None
    assert nested.spec.optimizer_step.completions_per_step == 4


def test_arguments_are_read(toy: ModuleType) -> None:
    assert read(["train", "--toy.step=4"]).native["toy.step"] == 4


def test_what_the_caller_says_wins(toy: ModuleType) -> None:
    reading = read({"toy.devices": 2}, world_size=4, version="1.5", dataset_size=12)
    assert reading.spec is not None
    assert reading.spec.topology.world_size == 4
    assert (reading.framework_version, reading.dataset_size) == ("1.5", 12)
    assert reading.derived["total_optimizer_steps"] == 3


def test_an_unknown_configuration_is_undecided_and_lists_the_frameworks(toy: ModuleType) -> None:
    reading = read({"colour": "green"})
    assert (reading.framework, reading.verdict) == ("unknown", "undecided")
    assert codes(reading) == ["BB020"]
    assert "toy" in reading.findings[0].message


def test_an_ambiguous_configuration_is_undecided_and_lists_the_candidates(toy: ModuleType) -> None:
    twin = type("TwinAdapter", (toy.ToyAdapter,), {"framework": "twin"})
    with adapter(twin):
        reading = read({"toy.step": 4})
        assert read({"toy.step": 4}, framework="twin").verdict == "valid"
    assert (reading.framework, reading.verdict) == ("unknown", "undecided")
    assert codes(reading) == ["BB021"]
    assert "toy (100%), twin (100%)" in reading.findings[0].message
    assert "--framework" in reading.findings[0].message


def test_an_adapter_that_is_not_sure_is_not_taken(toy: ModuleType) -> None:
    unsure = type("UnsureAdapter", (toy.ToyAdapter,), {"framework": "unsure", "detect": lambda self, source: 0.4})
    with adapter(unsure):
        assert codes(read({"colour": "green"})) == ["BB021"]


def test_a_framework_without_adapter_is_undecided(toy: ModuleType) -> None:
    reading = read({"toy.step": 4}, framework="nonsense")
    assert (reading.framework, reading.verdict) == ("nonsense", "undecided")


def test_findings_are_sorted_and_said_once(toy: ModuleType) -> None:
    twice = (Finding("N", "note", "never", "note"), Finding("E", "error", "config", "error"))

    def check(self: Any, reading: Reading) -> tuple[Finding, ...]:
        return (*twice, *twice, Finding("W", "warning", "never", "warning"))

    with adapter(type("RepeatingAdapter", (toy.ToyAdapter,), {"framework": "repeating", "check": check})):
        assert codes(read({"toy.step": 8}, framework="repeating")) == ["E", "W", "N"]


def test_a_core_rule_that_a_row_of_the_adapters_is_an_instance_of_is_left_out(toy: ModuleType) -> None:
    assert codes(read({"toy.step": 9})) == ["BB-TOY-003", "BB121", "BB123", "BB141"]
    row = IN_CONFIG("BB-TOY-003", lambda facts: None, ("toy.step",), None, "toy", core="BB121")
    with adapter(type("Instance", (toy.ToyAdapter,), {"framework": "instance", "rows": lambda self: [row]})):
        assert codes(read({"toy.step": 9}, framework="instance")) == ["BB-TOY-003", "BB123", "BB141"]


def fail(*_: object) -> Any:
    raise ZeroDivisionError("a bug")


@pytest.mark.parametrize("method", ["detect", "read", "check", "owns"])
def test_a_bug_of_an_adapter_is_a_finding_that_names_it(toy: ModuleType, method: str) -> None:
    buggy = type("BuggyAdapter", (toy.ToyAdapter,), {"framework": "buggy", method: fail})
    with adapter(buggy):
        source: object = object() if method == "owns" else {"toy.step": 8}
        reading = read(source, framework=None if method in ("detect", "owns") else "buggy")
    (finding,) = (one for one in reading.findings if one.code == "BB023")
    assert "adapter buggy failed in " + method in finding.message
    assert "ZeroDivisionError: a bug (test_reading.py:" in finding.message
    assert reading.verdict == "undecided"


def test_an_adapter_that_returns_no_reading_is_a_finding(toy: ModuleType) -> None:
    with adapter(type("OddAdapter", (toy.ToyAdapter,), {"framework": "odd", "read": lambda *_: {}})):
        assert codes(read({}, framework="odd")) == ["BB023"]


def test_a_trainer_object_tells_its_configuration_and_sizes(toy: ModuleType) -> None:
    class Trainer:
        step = 4

    class OwningAdapter(toy.ToyAdapter):  # type: ignore[misc, name-defined]  # the base is loaded from a file
        framework = "owning"

        def owns(self, trainer: object) -> bool:
            return isinstance(trainer, Trainer)

        def source_of(self, trainer: Any) -> tuple[Source, Context]:
            return Source(values={"toy.step": trainer.step}), Context(world_size=4, dataset_size=12)

    with adapter(OwningAdapter):
        reading = read(Trainer(), world_size=2)
    assert reading.framework == "toy"  # what the toy adapter's `read` says
    assert (reading.native["toy.step"], reading.native["toy.devices"], reading.dataset_size) == (4, 2, 12)


@pytest.mark.parametrize(
    "wrong",
    [{"framework": 3}, {"version": 1.16}, {"world_size": "8"}, {"world_size": 8.0}, {"dataset_size": True}],
)
def test_an_argument_of_a_wrong_type_raises_type_error(wrong: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=next(iter(wrong))):
        read({}, **wrong)


@pytest.mark.parametrize("name", ["world_size", "dataset_size"])
def test_a_size_below_one_raises_value_error(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} = 0: must be at least 1"):
        read({}, **{name: 0})


def test_a_broken_plugin_is_a_warning_of_every_reading(toy: ModuleType) -> None:
    broken = ModuleType("broken")
    broken.batchbridge_check = lambda reading: ()  # type: ignore[attr-defined]  # a module made by hand
    plugins.manager().register(broken, "broken")
    try:
        reading = read({"toy.step": 8})
    finally:
        plugins.manager().unregister(broken)
    assert (codes(reading), reading.verdict) == (["BB032"], "valid")


YAMLISH = st.text("ab:-[]{}&*!<|>'\"#%@ \n\t,?.0", max_size=60)
SETTINGS = st.sampled_from(["toy", "toy.step", "num_generations", "per_device_train_batch_size", "loss_type", "seed"])
VALUES = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.lists(st.integers(), max_size=2)
)


def read_content(content: bytes, suffix: str) -> Reading:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"fuzz{suffix}"
        path.write_bytes(content)
        return read(path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=200) | YAMLISH.map(str.encode), suffix=st.sampled_from([".yaml", ".json", ""]))
def test_no_content_of_a_file_makes_read_raise(toy: ModuleType, content: bytes, suffix: str) -> None:
    reading = read_content(content, suffix)
    assert reading.verdict in ("valid", "invalid", "undecided")
    reading.to_dict()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(values=st.dictionaries(SETTINGS, VALUES))
def test_no_values_make_the_toy_adapter_fail(toy: ModuleType, values: dict[str, Any]) -> None:
    reading = read(values, framework="toy", world_size=2, dataset_size=10)
    assert "BB023" not in codes(reading)
    reading.to_dict()


VERSIONS = {
    "trl": "1.16.0",
    "open_r1": "1.16.0",
    "verl": "0.9.1",
    "easyr1": "0.3.2",
    "openrlhf": "0.11.2",
    "open_instruct": "2026.8.20",
}
"""A version that each first-party adapter reads: under an unknown one it says so and looks at nothing else."""

# Larger numbers have a test of their own, below.
SMALL = st.none() | st.booleans() | st.integers(-3, 3000) | st.floats() | st.text(max_size=5)


@given(values=st.dictionaries(SETTINGS.filter(lambda key: not key.startswith("toy")), SMALL))
def test_no_values_make_an_installed_adapter_fail(values: dict[str, Any]) -> None:
    for name in plugins.adapters():
        reading = read(values, framework=name, version=VERSIONS.get(name), world_size=2, dataset_size=10)
        assert "BB023" not in codes(reading)
        reading.to_dict()


@pytest.mark.skipif("trl" not in plugins.adapters(), reason="the TRL adapter is not installed")
def test_a_huge_number_is_answered_in_seconds() -> None:
    arguments = ["--framework", "trl", "--framework-version", "1.16.0", "--world-size", "2"]
    command = [sys.executable, "-m", "batchbridge", "check", *arguments, "--set", "num_generations=1000000000001"]
    result = subprocess.run(command, capture_output=True, timeout=10, check=False)
    assert result.returncode == 2
