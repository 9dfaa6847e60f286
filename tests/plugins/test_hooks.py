"""Every hook has a test here, and a heading in docs/plugins.md with its exact arguments."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from batchbridge import Adapter, Finding, Reading, hookimpl
from batchbridge.contract import hookspecs, plugins
from batchbridge.contract.reading import Context, Source
from batchbridge.kit import rule_table
from batchbridge.kit.rule_table import IN_CONFIG, SILENT, Rule
from batchbridge.reading.read import read_source
from batchbridge_open_r1.config import OpenR1Adapter
from batchbridge_trl.config import TrlAdapter
from batchbridge_trl.rules.facts import TrlFacts

HOOKS: dict[str, Callable[..., Any]] = {
    name: value for name, value in vars(hookspecs).items() if hasattr(value, "batchbridge_spec")
}


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No installed plugin takes part: what is wrong with one of them changes no reading here."""
    registry = plugins.load(())
    monkeypatch.setattr(plugins, "_installed", lambda: registry)


@contextmanager
def registered(*some: object) -> Iterator[None]:
    for one in some:
        plugins.manager().register(one)
    try:
        yield
    finally:
        for one in some:
            plugins.manager().unregister(one)


class EmptyAdapter(Adapter):
    """Reads anything as nothing."""

    framework = "empty"
    versions = ">=0"

    def detect(self, source: Source) -> float:
        return 0.0

    def read(self, source: Source, context: Context) -> Reading:
        return Reading(framework="empty", framework_version="1", findings=(NOTE,))

    def check(self, reading: Reading) -> tuple[Finding, ...]:
        return ()

    def write(self, spec: Any, framework_version: str | None = None) -> Any:
        raise NotImplementedError

    def native_steps(self, reading: Any, dataset_size: Any, response_tokens: Any) -> Any:
        raise NotImplementedError


class RuledAdapter(EmptyAdapter):
    """Asks rows about the number that it is given."""

    def check(self, reading: Reading) -> tuple[Finding, ...]:
        return tuple(rule_table.checked("empty", (), 7, "1", lambda keys: reading.where(*keys)))


NOTE = Finding("BB-EMPTY-1", "note", "never", "nothing was read")
POLICY = Finding("SITE-1", "error", "config", "not on this site")


class Site:
    @hookimpl
    def batchbridge_check(self, reading: Reading) -> Iterator[Finding]:
        if NOTE in reading.findings:
            yield POLICY


class Broken:
    @hookimpl
    def batchbridge_check(self, reading: Reading) -> Iterator[Finding]:
        raise KeyError("broken")

    @hookimpl
    def batchbridge_optimizer_step(self, record: Mapping[str, Any]) -> None:
        raise KeyError("broken")


class Watcher:
    def __init__(self) -> None:
        self.seen: list[Mapping[str, Any]] = []

    @hookimpl
    def batchbridge_optimizer_step(self, record: Mapping[str, Any]) -> None:
        self.seen.append(record)


def check(*some: object) -> Reading:
    class Provider:
        @hookimpl
        def batchbridge_adapters(self) -> list[type[Adapter]]:
            return [EmptyAdapter]

    with registered(Provider(), *some):
        return read_source(Source(values={"a": 1}), plugins.adapters()["empty"], Context())


def test_batchbridge_adapters_brings_adapters() -> None:
    class Provider:
        @hookimpl
        def batchbridge_adapters(self) -> list[type[Adapter]]:
            return [EmptyAdapter]

    with registered(Provider()):
        assert isinstance(plugins.adapters()["empty"], EmptyAdapter)
    assert "empty" not in plugins.adapters()


def test_batchbridge_check_adds_findings_after_the_adapters_own() -> None:
    reading = check(Site())
    assert reading.findings == (POLICY, NOTE)
    assert reading.verdict == "invalid"


def test_batchbridge_check_that_raises_leaves_the_verdict_open_and_loses_no_finding() -> None:
    reading = check(Broken())
    assert [finding.code for finding in reading.findings] == ["BB035", "BB-EMPTY-1"]
    assert "KeyError" in reading.findings[0].message
    assert reading.verdict == "undecided"
    assert POLICY in check(Broken(), Site()).findings


def test_batchbridge_check_that_returns_something_else_is_reported() -> None:
    class Odd:
        @hookimpl
        def batchbridge_check(self, reading: Reading) -> list[str]:
            return ["wrong"]

    assert check(Odd()).findings[0].message.endswith("hook batchbridge_check failed: returned str, not Finding")


def test_batchbridge_optimizer_step_reaches_every_watcher_past_one_that_raises() -> None:
    watchers = Watcher(), Watcher()
    with registered(watchers[0], Broken(), watchers[1]):
        results, failures = plugins.call("batchbridge_optimizer_step", record={"step": 3})
    assert [watcher.seen for watcher in watchers] == [[{"step": 3}], [{"step": 3}]]
    assert results == []
    assert [failure.code for failure in failures] == ["BB035"]


@pytest.mark.parametrize("hook", HOOKS)
def test_every_hook_has_a_test(hook: str) -> None:
    assert any(name.startswith(f"test_{hook}_") for name in globals())


def test_the_documentation_has_a_heading_for_every_hook_with_its_exact_arguments(repository: Path) -> None:
    text = (repository / "docs" / "plugins.md").read_text(encoding="utf-8")
    documented = re.findall(r"^### `(batchbridge_\w+\(.*\))`$", text, flags=re.MULTILINE)
    expected = [f"{name}({', '.join(inspect.signature(hook).parameters)})" for name, hook in HOOKS.items()]
    assert documented == expected


def test_batchbridge_rules_are_asked_with_the_adapters_own() -> None:
    class Historian:
        @hookimpl
        def batchbridge_rules(self, framework: str, version: str) -> Iterator[Rule[int]]:
            if (framework, version) == ("empty", "1"):
                yield IN_CONFIG("SITE-2", lambda number: f"{number} is odd" if number % 2 else None, (), "stops", "1.0")

    reading = RuledAdapter().read(Source(), Context())
    assert RuledAdapter().check(reading) == ()
    with registered(Historian()):
        (finding,) = RuledAdapter().check(reading)
    assert (finding.code, finding.severity, finding.message) == ("SITE-2", "error", "7 is odd")


def test_defects_in_added_rows_are_told_with_the_adapters_own() -> None:
    class Historian:
        @hookimpl
        def batchbridge_rules(self, framework: str, version: str) -> Iterator[Rule[TrlFacts]]:
            if framework == "trl":
                yield SILENT("SITE-3", lambda facts: f"{facts.native['num_generations']} few", (), "trains", "trl")

    source = Source(values={"per_device_train_batch_size": 4, "num_generations": 4})
    context = Context(framework_version="1.16.0", world_size=1)
    with registered(Historian()):
        behaviour = TrlAdapter().read(source, context).behaviour
        assert behaviour is not None
        (found,) = [one for one in behaviour.defects if one.code == "SITE-3"]
        assert (found.summary, found.numbers) == ("4 few", (4.0,))
        others = OpenR1Adapter().read(source, context).behaviour
        assert others is not None
        assert found not in others.defects


def test_a_broken_batchbridge_rules_is_a_finding() -> None:
    class Historian:
        @hookimpl
        def batchbridge_rules(self, framework: str, version: str) -> None:
            raise RuntimeError("no rows")

    with registered(Historian()):
        (finding,) = RuledAdapter().check(RuledAdapter().read(Source(), Context()))
    assert (finding.code, finding.undecided) == ("BB035", True)
    assert "no rows" in finding.message
