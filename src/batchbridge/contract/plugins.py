"""The plugins that fulfil the contract, of entry-point group `batchbridge`, loaded through pluggy.

A broken plugin never takes the others down and never passes unseen: every trap of plugin loading becomes a finding
that names the plugin and its distribution (`problems()`), and every hook is called plugin by plugin (`call`), so that
one implementation that raises loses nobody else's results. Nothing here imports a framework.

An adapter that its plugin gives as an `AdapterEntry` is imported when its framework is first needed, so that a command
on one framework does not import the adapters of all.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field
from functools import cache
from typing import TYPE_CHECKING, Any

import pluggy

from batchbridge.contract import hookspecs
from batchbridge.contract.adapter import Adapter
from batchbridge.contract.detection import AdapterEntry, DetectionFacts
from batchbridge.distributions import Distribution, EntryPoint
from batchbridge.distributions import entry_points as installed_points
from batchbridge.frozen import dataclass
from batchbridge.meaning.findings import Finding

if TYPE_CHECKING:
    import importlib.metadata

    from batchbridge.contract.error_text import RuleRow, RuleTitle

    _Point = EntryPoint | importlib.metadata.EntryPoint

GROUP = "batchbridge"


def manager() -> pluggy.PluginManager:
    """The one plugin manager of this process; installed plugins are loaded on the first call."""
    return _installed().manager


def adapters() -> Mapping[str, Adapter]:
    """Every usable adapter by framework name, sorted. Those with a clashing name, or that fail, are in `problems()`.

    An adapter is imported when it is looked up, and all of them when they are counted or listed.
    """
    return _OnUse(_installed())


def tells() -> Mapping[str, DetectionFacts | None]:
    """The facts by which a configuration is known to be a framework's, by framework, sorted; None: its adapter's
    `detect` is asked."""
    return {framework: claim.tells for framework, claim in _installed().survey().items()}


def owners(trainer: object) -> list[Adapter]:
    """The adapters that take a trainer. Those whose facts say that it is none of theirs are not imported."""
    return [adapter for adapter in perhaps_owners(trainer) if adapter.owns(trainer)]


def perhaps_owners(trainer: object) -> list[Adapter]:
    """The adapters whose facts do not say that an object is none of their trainers, sorted by framework."""
    asked = [name for name, facts in tells().items() if facts is None or facts.may_own(trainer)]
    return [adapter for name in asked if (adapter := adapters().get(name)) is not None]


def named(name: str) -> str | None:
    """The installed framework that a person means by `name`: TRL is trl, open-r1 is open_r1; None: nobody's."""
    found = {_plain(known): known for known in _installed().survey()}.get(_plain(name))
    return found if found is not None and found in adapters() else None


def release(adapter: Adapter, version: str) -> str:
    """The known release that a person means by `version`: 1.16 and v1.16.0 are one; `version` itself where none is."""
    return next((known for known in adapter.releases if _parts(known) == _parts(version)), version)


def _parts(version: str) -> list[str]:
    """The numbers and words of a version, without zeros at the end."""
    parts = [part.lstrip("0") for part in re.split("[.-]", version.lower().removeprefix("v"))]
    while parts and not parts[-1]:
        parts.pop()
    return parts


def _plain(name: str) -> str:
    return "".join(character for character in name.lower() if character.isalnum())


def problems() -> tuple[Finding, ...]:
    """The problems of the plugins of this process, installed or registered by hand.

    Not yet among them: what is wrong with adapters that nobody has looked up. `list(adapters())` looks all of them up.
    """
    return _installed().all_problems()


def provider(framework: str) -> str:
    """The provider of an adapter: `plugin trl (batchbridge 0.1.0)`."""
    return _installed().survey()[framework].who


def failed(framework: str, method: str, error: Exception) -> Finding:
    """The finding that an adapter raised in one of its methods."""
    message = f"{provider(framework)}: adapter {framework} failed in {method}: {describe(error)}"
    return _broken("BB023", message, undecided=True)


def rows(adapter: Adapter, version: str | None = None) -> list[RuleRow]:
    """The rows of an adapter's rules, then those that plugins add about a version; None: about any of its releases."""
    found = {id(row): row for row in adapter.rows()}
    for release in adapter.releases if version is None else (version,):
        answers, _ = call("batchbridge_rules", framework=adapter.framework, version=release)
        found |= {id(row): row for _, added in answers for row in added}
    return list(found.values())


def title_of(code: str, framework: str) -> RuleTitle | None:
    """The title of a rule that was found in a framework's configuration; None where its adapter has none."""
    from batchbridge.contract.error_text import HOUSE, titles_in

    if (own := titles_in(HOUSE).get(code)) is not None:
        return own
    adapter = adapters().get(framework)
    return None if adapter is None else adapter.titles().get(code)


def call(hook: str, **arguments: Any) -> tuple[list[tuple[str, Any]], list[Finding]]:
    """Calls `hook` in every plugin: ((who, result) for each that returned, a finding for each that raised).

    Iterable results arrive as tuples; None (nothing to say) is left out. Later plugins come first, as in pluggy.
    """
    return _installed().call(hook, arguments)


class _OnUse(Mapping[str, Adapter]):
    """The adapters of a registry as `adapters` describes them."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def __getitem__(self, framework: str) -> Adapter:
        return self._registry.adapter(framework)

    def __iter__(self) -> Iterator[str]:
        return (framework for framework in self._registry.survey() if framework in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


@dataclass(frozen=True)
class Claim:
    """A plugin's claim to a framework: who makes it, its adapter or where that is, and how it tells configurations."""

    who: str
    offered: Adapter | AdapterEntry

    @property
    def tells(self) -> DetectionFacts | None:
        """The facts that the plugin gives as data."""
        return self.offered.tells

    @property
    def place(self) -> str:
        """The class of the adapter, for a person."""
        return (
            self.offered.place.replace(":", ".")
            if isinstance(self.offered, AdapterEntry)
            else _spell(type(self.offered))
        )


@dataclass
class Registry:
    """A plugin manager, the distribution of each of its plugins, and what went wrong while loading them."""

    manager: pluggy.PluginManager
    distributions: dict[str, str] = field(default_factory=dict)
    problems: list[Finding] = field(default_factory=list)
    """Problems of importing and registering plugins."""
    _registered: list[tuple[str, Any]] | None = None
    """The plugins that the rest is about."""
    _claims: dict[str, Claim] = field(default_factory=dict)
    _found: list[Finding] = field(default_factory=list)
    """Problems of the plugins' hooks and adapters."""
    _imported: dict[str, Adapter | None] = field(default_factory=dict)

    def who(self, name: str) -> str:
        """A plugin for a person: its name and its distribution."""
        return f"plugin {name} ({self.distributions.get(name, 'registered in this process')})"

    def call(self, hook: str, arguments: Mapping[str, Any]) -> tuple[list[tuple[str, Any]], list[Finding]]:
        """The call of a hook on this registry, as the module's `call`."""
        results, failures = [], []
        for implementation in reversed(getattr(self.manager.hook, hook).get_hookimpls()):
            who = self.who(implementation.plugin_name)
            if implementation.hookwrapper or implementation.wrapper:
                continue  # reported by the survey
            try:
                result = implementation.function(*(arguments[name] for name in implementation.argnames))
                if isinstance(result, Iterable) and not isinstance(result, AdapterEntry):
                    result = tuple(result)  # a generator raises only here
            except Exception as error:
                failures.append(_broken("BB035", f"{who}: hook {hook} failed: {describe(error)}", undecided=True))
            else:
                if result is not None:
                    results.append((who, result))
        return results, failures

    def survey(self) -> Mapping[str, Claim]:
        """Frameworks, sorted, each with the one claim to it. Every plugin is asked once for as long as none is added or
        taken out; an adapter stays the same object as long."""
        registered = self.manager.list_name_plugin()
        if self._registered is None or not _same(self._registered, registered):
            self._registered, self._imported = registered, {}
            self._claims, found = self._survey()
            self._found = [*self._misspelt(), *found]
        return self._claims

    def _survey(self) -> tuple[dict[str, Claim], list[Finding]]:
        answers, problems = self.call("batchbridge_adapters", {})
        claims: dict[str, list[Claim]] = {}
        for who, answer in answers:
            for offered in answer if type(answer) is tuple else (answer,):
                try:
                    entry = isinstance(offered, AdapterEntry)
                    framework = offered.framework if entry else _framework_of(offered)
                    claims.setdefault(framework, []).append(Claim(who, offered if entry else offered()))
                except Exception as error:
                    problems.append(_unusable(who, _spell(offered), error))
        for framework, several in sorted(claims.items()):
            if len(several) > 1:
                names = " and ".join(f"{claim.place} of {claim.who}" for claim in several)
                problems.append(_broken("BB033", f"framework {framework} is claimed by {names}; all are refused"))
        return {name: several[0] for name, several in sorted(claims.items()) if len(several) == 1}, problems

    def adapter(self, framework: str) -> Adapter:
        """The adapter of a framework, imported where it is not yet. Raises `KeyError` where there is not one that can
        be used: what is wrong is then among the problems."""
        claim = self.survey()[framework]
        if not isinstance(claim.offered, AdapterEntry):
            return claim.offered
        if framework not in self._imported:
            self._imported[framework] = None
            try:
                self._imported[framework] = _imported(claim.offered)
            except (Exception, SystemExit) as error:  # SystemExit: a module that is a script
                self._found.append(_unusable(claim.who, claim.place, error))
        if (adapter := self._imported[framework]) is None:
            raise KeyError(framework)
        return adapter

    def all_problems(self) -> tuple[Finding, ...]:
        """The problems of loading, of the hooks, and of the adapters that were looked up."""
        self.survey()
        return (*self.problems, *self._found)

    def _misspelt(self) -> Iterator[Finding]:
        """Findings of `PluginManager.check_pending`, for all plugins instead of the first; and missing marks."""
        for hook_name, caller in sorted(vars(self.manager.hook).items()):
            if hook_name.startswith("_"):
                continue
            for implementation in caller.get_hookimpls():
                who = self.who(implementation.plugin_name)
                if not caller.has_spec() and not implementation.optionalhook:
                    yield _broken("BB032", f"{who}: there is no hook {hook_name}; {_nearest_hook(hook_name)}")
                elif implementation.hookwrapper or implementation.wrapper:
                    yield _broken("BB032", f"{who}: hook {hook_name} is a wrapper; wrappers are not called")
        for name, plugin in self.manager.list_name_plugin():
            for attribute, value in sorted(vars(plugin).items() if hasattr(plugin, "__dict__") else ()):
                marked = hasattr(value, "batchbridge_impl")
                if attribute.startswith("batchbridge_") and inspect.isfunction(value) and not marked:
                    yield _broken(
                        "BB032", f"{self.who(name)}: {attribute} is not marked with batchbridge.hookimpl: never called"
                    )


def load(entry_points: Iterable[_Point]) -> Registry:
    """A registry of these entry points. Never raises for a broken one."""
    registry = Registry(pluggy.PluginManager(GROUP))
    registry.manager.add_hookspecs(hookspecs)
    by_name: dict[str, list[_Point]] = {}
    for point in entry_points:
        by_name.setdefault(point.name, []).append(point)
    for name, points in sorted(by_name.items()):
        if len(points) > 1:
            owners = " and ".join(f"{_distribution(point)} ({point.value})" for point in points)
            message = f"entry point {name} of group {GROUP} is claimed by {owners}; all are loaded, under full names"
            registry.problems.append(_broken("BB031", message))
        for point in points:
            full_name = name if len(points) == 1 else f"{_distribution(point)}:{name}"
            registry.distributions[full_name] = _distribution(point)
            _register(registry, full_name, point.load)
    return registry


@cache
def _installed() -> Registry:
    return load(installed_points(GROUP))


def _register(registry: Registry, name: str, get_plugin: Callable[[], object]) -> None:
    try:
        plugin = get_plugin()
    except (Exception, SystemExit) as error:  # SystemExit: a module that is a script
        registry.problems.append(_broken("BB030", f"{registry.who(name)} cannot be imported: {describe(error)}"))
        return
    try:
        registry.manager.register(plugin, name)
    except (ValueError, pluggy.PluginValidationError) as error:  # registered already; arguments that a hook lacks
        what = " ".join(str(error).split())
        registry.problems.append(_broken("BB032", f"{registry.who(name)} cannot be registered: {what}"))
        if registry.manager.get_plugin(name) is plugin:
            registry.manager.unregister(plugin, name)


def _same(some: list[tuple[str, Any]], others: list[tuple[str, Any]]) -> bool:
    return len(some) == len(others) and all(
        name == other_name and plugin is other for (name, plugin), (other_name, other) in zip(some, others, strict=True)
    )


def _framework_of(cls: Any) -> str:
    if not (inspect.isclass(cls) and issubclass(cls, Adapter)):
        raise TypeError("it is not a subclass of batchbridge.Adapter")
    for attribute in ("framework", "versions"):
        if not isinstance(getattr(cls, attribute, None), str):
            raise TypeError(f"it has no {attribute}")
    if cls.tells is None and cls.detect.__module__ in ("batchbridge.contract.adapter", "batchbridge.kit.frame"):
        raise TypeError("it has neither tells nor a method detect")
    return cls.framework


def _imported(entry: AdapterEntry) -> Adapter:
    module, _, name = entry.place.partition(":")
    cls = getattr(importlib.import_module(module), name)
    if (framework := _framework_of(cls)) != entry.framework:
        raise TypeError(f"its entry names framework {entry.framework}, and it is of {framework}")
    adapter: Adapter = cls()
    return adapter


def _unusable(who: str, adapter: str, error: BaseException) -> Finding:
    return _broken("BB034", f"{who}: adapter {adapter} is unusable: {describe(error)}")


def describe(error: BaseException) -> str:
    """An exception in one line, with the place of its innermost frame."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = "" if trace is None else f" ({trace.tb_frame.f_code.co_filename.rpartition('/')[2]}:{trace.tb_lineno})"
    return f"{type(error).__name__}: {' '.join(str(error).split())}".rstrip(": ") + place


def _broken(code: str, message: str, *, undecided: bool = False) -> Finding:
    return Finding(code, "error", "config", message, undecided=undecided)


def _distribution(point: _Point) -> str:
    return "no distribution" if point.dist is None else _name_and_version(point.dist)


@cache
def _name_and_version(distribution: Distribution | importlib.metadata.Distribution) -> str:
    metadata = distribution.metadata  # a file that is parsed whenever it is asked for
    return f"{metadata['Name']} {metadata['Version']}"


def _spell(cls: Any) -> str:
    return f"{cls.__module__}.{cls.__qualname__}" if inspect.isclass(cls) else repr(cls)


def _nearest_hook(name: str) -> str:
    import difflib

    known = sorted(hook for hook in vars(hookspecs) if hook.startswith("batchbridge_"))
    return "nearest: " + (difflib.get_close_matches(name, known, n=1) or [", ".join(known)])[0]
