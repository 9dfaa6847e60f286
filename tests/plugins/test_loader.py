"""Every trap of plugin loading is a finding that names plugin and distribution, and the other plugins keep working."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from batchbridge import Adapter, hookimpl
from batchbridge.contract import plugins
from batchbridge.meaning.findings import Finding

Install = Callable[..., None]
Source = Callable[..., str]
Load = Callable[[], plugins.Registry]


def only(findings: tuple[Finding, ...]) -> Finding:
    (finding,) = findings
    assert finding.severity == "error"
    return finding


def test_a_plugin_brings_its_adapter(install: Install, load: Load, adapter_source: Source) -> None:
    install("good", adapter_source("goodly"), module="good_plugin")
    registry = load()
    assert list(registry.survey()) == ["goodly"]
    assert isinstance(registry.adapter("goodly"), Adapter)
    assert registry.survey()["goodly"].who == "plugin good_plugin (good 1.0)"
    assert registry.all_problems() == ()


BROKEN_IMPORTS = {
    "a missing module": ("import not_there_at_all", "ModuleNotFoundError"),
    "a syntax error": ("def", "SyntaxError"),
    "an exception": ("raise RuntimeError('boom')", "RuntimeError: boom"),
    "an exit": ("raise SystemExit(3)", "SystemExit"),
}


@pytest.mark.parametrize("kind", BROKEN_IMPORTS)
def test_a_plugin_that_cannot_be_imported_is_named_and_the_others_work(
    install: Install, load: Load, adapter_source: Source, kind: str
) -> None:
    source, said = BROKEN_IMPORTS[kind]
    install("bad", source, module="bad_plugin")
    install("good", adapter_source("goodly"), module="good_plugin")
    registry = load()
    problem = only(registry.all_problems())
    assert problem.code == "BB030"
    assert problem.message.startswith("plugin bad_plugin (bad 1.0) cannot be imported")
    assert said in problem.message
    assert list(registry.survey()) == ["goodly"]


def test_a_misspelt_hook_is_an_error_with_the_nearest_name(install: Install, load: Load) -> None:
    source = "from batchbridge import hookimpl\n@hookimpl\ndef batchbridge_chek(reading): return ()\n"
    install("typo", source, module="typo_plugin")
    problem = only(load().all_problems())
    assert problem.code == "BB032"
    assert problem.message == (
        "plugin typo_plugin (typo 1.0): there is no hook batchbridge_chek; nearest: batchbridge_check"
    )


def test_all_misspelt_hooks_are_reported(install: Install, load: Load) -> None:
    source = "from batchbridge import hookimpl\n@hookimpl\ndef batchbridge_{0}(): return ()\n"
    install("one", source.format("adapter"), module="one_plugin")
    install("two", source.format("optimizer_stop"), module="two_plugin")
    assert [problem.code for problem in load().all_problems()] == ["BB032", "BB032"]


def test_a_hook_with_an_unknown_argument_is_an_error_and_the_others_work(
    install: Install, load: Load, adapter_source: Source
) -> None:
    source = "from batchbridge import hookimpl\n@hookimpl\ndef batchbridge_check(reading, mood): return ()\n"
    install("odd", source, module="odd_plugin")
    install("good", adapter_source("goodly"), module="good_plugin")
    registry = load()
    problem = only(registry.all_problems())
    assert problem.code == "BB032"
    assert "plugin odd_plugin (odd 1.0)" in problem.message
    assert "mood" in problem.message
    assert list(registry.survey()) == ["goodly"]


def test_a_hook_that_is_not_marked_is_an_error_because_it_would_never_be_called(install: Install, load: Load) -> None:
    install("bare", "def batchbridge_check(reading): return ()\n", module="bare_plugin")
    problem = only(load().all_problems())
    assert problem.message.startswith("plugin bare_plugin (bare 1.0): batchbridge_check is not marked")


def test_a_hook_wrapper_is_an_error_because_it_would_never_be_called(install: Install, load: Load) -> None:
    source = """
        from batchbridge import hookimpl
        @hookimpl(wrapper=True)
        def batchbridge_check(reading):
            return (yield)
    """
    install("wrapping", source, module="wrapping_plugin")
    assert "is a wrapper" in only(load().all_problems()).message


def test_two_distributions_with_one_entry_point_name_are_both_named_and_both_work(
    install: Install, load: Load, adapter_source: Source
) -> None:
    install("first", adapter_source("one"), module="first_plugin", entry_point="same")
    install("second", adapter_source("two"), module="second_plugin", entry_point="same")
    registry = load()
    problem = only(registry.all_problems())
    assert problem.code == "BB031"
    assert "first 1.0 (first_plugin)" in problem.message
    assert "second 1.0 (second_plugin)" in problem.message
    assert list(registry.survey()) == ["one", "two"]


def test_two_adapters_of_one_framework_are_both_refused_by_name(
    install: Install, load: Load, adapter_source: Source
) -> None:
    install("first", adapter_source("same", "FirstAdapter"), module="first_plugin")
    install("second", adapter_source("same", "SecondAdapter"), module="second_plugin")
    install("good", adapter_source("goodly"), module="good_plugin")
    registry = load()
    problem = only(registry.all_problems())
    assert problem.code == "BB033"
    assert "first_plugin.FirstAdapter of plugin first_plugin (first 1.0)" in problem.message
    assert "second_plugin.SecondAdapter of plugin second_plugin (second 1.0)" in problem.message
    assert list(registry.survey()) == ["goodly"]


UNUSABLE = {
    "no class": "return ['trl']",
    "another class": "return [int]",
    "an abstract class": "from batchbridge import Adapter; return [Adapter]",
    "not iterable": "return 3",
}


@pytest.mark.parametrize("kind", UNUSABLE)
def test_what_is_no_adapter_is_named_and_the_others_work(
    install: Install, load: Load, adapter_source: Source, kind: str
) -> None:
    source = f"from batchbridge import hookimpl\n@hookimpl\ndef batchbridge_adapters():\n    {UNUSABLE[kind]}\n"
    install("odd", source, module="odd_plugin")
    install("good", adapter_source("goodly"), module="good_plugin")
    registry = load()
    problem = only(registry.all_problems())
    assert problem.code == "BB034"
    assert "plugin odd_plugin (odd 1.0)" in problem.message
    assert list(registry.survey()) == ["goodly"]


@pytest.mark.parametrize("body", ["raise ValueError('boom')", "yield 1; raise ValueError('boom')"])
def test_a_hook_that_raises_is_named_and_loses_nobody_elses_results(
    install: Install, load: Load, adapter_source: Source, body: str
) -> None:
    install(
        "bad", f"from batchbridge import hookimpl\n@hookimpl\ndef batchbridge_adapters():\n    {body}\n", module="bad_p"
    )
    install("good", adapter_source("goodly"), module="good_plugin")
    registry = load()
    problem = only(registry.all_problems())
    assert problem.code == "BB035"
    assert problem.message.startswith(
        "plugin bad_p (bad 1.0): hook batchbridge_adapters failed: ValueError: boom (bad_p.py:"
    )
    assert list(registry.survey()) == ["goodly"]


def test_one_module_under_two_names_is_registered_once_and_reported(
    install: Install, load: Load, adapter_source: Source, site: object
) -> None:
    install("first", adapter_source("one"), module="shared_plugin", entry_point="a")
    install("second", adapter_source("one"), module="shared_plugin", entry_point="b")
    registry = load()
    assert only(registry.all_problems()).code == "BB032"
    assert list(registry.survey()) == ["one"]


LATE = """
    from batchbridge import AdapterEntry, hookimpl

    @hookimpl
    def batchbridge_adapters():
        return [AdapterEntry("lately", "{place}")]
"""


@pytest.fixture
def late(install: Install, adapter_source: Source, site: Path) -> Callable[..., None]:
    """Installs a plugin whose adapter, of some framework, is imported when `lately` is needed."""

    def install_late(framework: str = "lately", place: str = "late_adapter:SomeAdapter", source: str = "") -> None:
        (site / "late_adapter.py").write_text(textwrap.dedent(source or adapter_source(framework)), encoding="utf-8")
        install("late", LATE.format(place=place), module="late_plugin")

    return install_late


def test_an_adapter_with_an_entry_is_imported_when_its_framework_is_needed(
    install: Install, load: Load, adapter_source: Source, late: Callable[..., None]
) -> None:
    late()
    install("good", adapter_source("goodly"), module="good_plugin")
    registry = load()
    assert registry.adapter("goodly").framework == "goodly"
    assert list(registry.survey()) == ["goodly", "lately"]
    assert "late_adapter" not in sys.modules
    one = registry.adapter("lately")
    assert "late_adapter" in sys.modules
    assert dict(plugins._OnUse(registry))["lately"] is one
    assert registry.all_problems() == ()


def test_asking_for_a_framework_that_is_not_there_imports_nothing(load: Load, late: Callable[..., None]) -> None:
    late()
    shown = plugins._OnUse(load())
    assert "other" not in shown
    assert "late_adapter" not in sys.modules
    assert list(shown) == ["lately"]
    assert len(shown) == 1


LATE_AND_WRONG = {
    "an exception": ({"source": "raise ValueError('boom')"}, "ValueError: boom (late_adapter.py:"),
    "an exit": ({"source": "raise SystemExit(3)"}, "SystemExit"),
    "another framework": ({"framework": "another"}, "its entry names framework lately, and it is of another"),
    "no such class": ({"place": "late_adapter:Other"}, "AttributeError"),
    "no such module": ({"place": "not_there_at_all:SomeAdapter"}, "ModuleNotFoundError"),
    "no adapter": ({"place": "late_adapter:hookimpl"}, "it is not a subclass of batchbridge.Adapter"),
}


@pytest.mark.parametrize("kind", LATE_AND_WRONG)
def test_an_adapter_that_fails_late_is_named_once_it_is_needed_and_the_others_work(
    install: Install, load: Load, adapter_source: Source, late: Callable[..., None], kind: str
) -> None:
    wrong, said = LATE_AND_WRONG[kind]
    late(**wrong)
    install("good", adapter_source("goodly"), module="good_plugin")
    registry = load()
    shown = plugins._OnUse(registry)
    assert registry.all_problems() == ()
    assert list(shown) == ["goodly"]
    assert "lately" not in shown
    problem = only(registry.all_problems())
    assert problem.code == "BB034"
    assert problem.message.startswith("plugin late_plugin (late 1.0): adapter ")
    assert said in problem.message


def test_a_framework_that_two_claim_is_refused_before_either_is_imported(
    install: Install, load: Load, adapter_source: Source, late: Callable[..., None]
) -> None:
    late()
    install("good", adapter_source("lately"), module="good_plugin")
    registry = load()
    assert list(registry.survey()) == []
    problem = only(registry.all_problems())
    assert problem.code == "BB033"
    assert "late_adapter.SomeAdapter of plugin late_plugin (late 1.0)" in problem.message
    assert "late_adapter" not in sys.modules


def test_an_adapter_that_tells_nothing_is_refused(install: Install, load: Load, adapter_source: Source) -> None:
    install("mute", adapter_source("mutely") + "\n    del SomeAdapter.detect\n", module="mute_plugin")
    assert "it has neither tells nor a method detect" in only(load().all_problems()).message


def test_own_plugins_give_entries_with_the_facts_that_their_adapters_tell_by() -> None:
    # The history of old versions brings rules, and no adapter.
    own = [one for one in plugins.manager().get_plugins() if hasattr(one, "batchbridge_adapters")]
    own = [one for one in own if one.__name__.startswith("batchbridge_")]
    assert len(own) >= 6
    for module in own:
        (entry,) = module.batchbridge_adapters()
        adapter = plugins.adapters()[entry.framework]
        assert entry.place == f"{type(adapter).__module__}:{type(adapter).__qualname__}"
        assert entry.tells is adapter.tells is module.TELLS


def test_adapters_are_the_same_objects_until_plugins_change() -> None:
    class Plugin:
        @hookimpl
        def batchbridge_check(self, reading: object) -> tuple[Finding, ...]:
            return ()

    before = dict(plugins.adapters())
    assert all(plugins.adapters()[name] is adapter for name, adapter in before.items())
    plugin = Plugin()
    plugins.manager().register(plugin, "another")
    try:
        assert set(plugins.adapters()) == set(before)
    finally:
        plugins.manager().unregister(plugin)


def test_a_plugin_registered_by_hand_is_checked_too() -> None:
    class Plugin:
        @hookimpl
        def batchbridge_chekc(self) -> None: ...

    plugin = Plugin()
    before = plugins.problems()
    plugins.manager().register(plugin, "by hand")
    try:
        added = [problem for problem in plugins.problems() if problem not in before]
    finally:
        plugins.manager().unregister(plugin)
    assert [problem.message.partition(":")[0] for problem in added] == ["plugin by hand (registered in this process)"]
    assert plugins.problems() == before


def test_loading_the_installed_plugins_imports_no_framework() -> None:
    code = (
        "import sys; from batchbridge.contract import plugins; plugins.adapters(); "
        "print(*sorted({'torch', 'trl', 'transformers', 'verl', 'pydantic', 'numpy'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == ""


@pytest.mark.skipif("trl" not in plugins.adapters(), reason="the TRL adapter is not installed")
def test_reading_for_one_framework_imports_no_other_adapter_and_no_shell() -> None:
    code = (
        "import sys, batchbridge; "
        "print(batchbridge.read({'seed': 1}, framework='trl', version='1.16.0', world_size=8).framework); "
        "print(*sorted(name for name in sys.modules if name.endswith('.config') or name == 'bashread'))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    read, imported = result.stdout.splitlines()
    assert read == "trl"
    assert [name for name in imported.split() if name.startswith("batchbridge")] == ["batchbridge_trl.config"]
