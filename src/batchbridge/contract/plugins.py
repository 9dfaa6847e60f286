"""The plugins that fulfil the contract, of entry-point group `batchbridge`, loaded through pluggy.

A broken plugin never takes the others down and never passes unseen: every trap of plugin loading becomes a finding
that names the plugin and its distribution (`problems()`), and every hook is called plugin by plugin (`call`), so that
one implementation that raises loses nobody else's results. Nothing here imports a framework.

A plugin that says beforehand which frameworks its adapters are of (`FRAMEWORKS`) is asked for them when one of these
is first needed, so that a command on one framework does not import the adapters of all.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pluggy

from batchbridge.contract import hookspecs
from batchbridge.contract.adapter import Adapter
from batchbridge.distributions import Distribution, EntryPoint
from batchbridge.distributions import entry_points as installed_points
from batchbridge.frozen import dataclass
from batchbridge.meaning.findings import Finding

if TYPE_CHECKING:
    import importlib.metadata

    from batchbridge.contract.error_text import RuleRow

    _Point = EntryPoint | importlib.metadata.EntryPoint

GROUP = "batchbridge"

FRAMEWORKS = "batchbridge_frameworks"
"""A plugin's attribute: the names of the frameworks whose adapters its `batchbridge_adapters` returns."""

_ADAPTERS = "batchbridge_adapters"


def manager() -> pluggy.PluginManager:
    """The one plugin manager of this process; installed plugins are loaded on the first call."""
    return _installed().manager


def adapters() -> Mapping[str, Adapter]:
    """Every usable adapter by framework name, sorted. Those with a clashing name, or that fail, are in `problems()`.

    An adapter is loaded when it is looked up, and all of them when they are counted or listed.
    """
    return _OnUse(_installed())


def named(name: str) -> str | None:
    """The installed framework that a person means by `name`: TRL is trl, open-r1 is open_r1; None: nobody's."""
    found = {_plain(known): known for known in _installed().names()}.get(_plain(name))
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
    return _installed().survey(()).problems


def provider(framework: str) -> str:
    """The provider of an adapter: `plugin trl (batchbridge 0.1.0)`."""
    return _installed().survey((framework,)).providers[framework]


def rows(adapter: Adapter) -> list[RuleRow]:
    """The rows of an adapter's rules, then those that plugins add about any of its releases."""
    found = {id(row): row for row in adapter.rows()}
    for version in adapter.releases:
        answers, _ = call("batchbridge_rules", framework=adapter.framework, version=version)
        found |= {id(row): row for _, added in answers for row in added}
    return list(found.values())


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
        return self._registry.survey((framework,)).adapters[framework]

    def __iter__(self) -> Iterator[str]:
        return iter(self._registry.survey().adapters)

    def __len__(self) -> int:
        return len(self._registry.survey().adapters)


@dataclass(frozen=True)
class Survey:
    """The result of asking plugins: usable adapters, who provides each, and all problems."""

    adapters: Mapping[str, Adapter]
    providers: Mapping[str, str]
    problems: tuple[Finding, ...]


@dataclass
class _Answer:
    """The result of one plugin's `batchbridge_adapters`. adapters: framework, who provides it, the adapter. failures:
    of the hook. unusable: what it brought and is no adapter."""

    adapters: list[tuple[str, str, Adapter]] = field(default_factory=list)
    failures: list[Finding] = field(default_factory=list)
    unusable: list[Finding] = field(default_factory=list)


@dataclass
class Registry:
    """A plugin manager, the distribution of each of its plugins, and what went wrong while loading them."""

    manager: pluggy.PluginManager
    distributions: dict[str, str] = field(default_factory=dict)
    problems: list[Finding] = field(default_factory=list)
    _registered: list[tuple[str, Any]] = field(default_factory=list)
    """The plugins that the next three are about."""
    _known: set[str] = field(default_factory=set)
    """Frameworks whose plugins were asked: a survey on these says nothing new."""
    _answers: dict[str, _Answer] = field(default_factory=dict)
    """Answers by plugin, of those that were asked for adapters."""
    _surveyed: Survey | None = None

    def who(self, name: str) -> str:
        """A plugin for a person: its name and its distribution."""
        return f"plugin {name} ({self.distributions.get(name, 'registered in this process')})"

    def names(self) -> set[str]:
        """Frameworks of the plugins: as far as these name them beforehand, without asking for their adapters."""
        said = [_said(plugin) or () for _, plugin in self.manager.list_name_plugin()]
        return {*self.survey(()).adapters, *(framework for names in said for framework in names)}

    def call(self, hook: str, arguments: Mapping[str, Any]) -> tuple[list[tuple[str, Any]], list[Finding]]:
        """The call of a hook on this registry, as the module's `call`."""
        return self._called(hook, reversed(getattr(self.manager.hook, hook).get_hookimpls()), arguments)

    def _called(
        self, hook: str, implementations: Iterable[pluggy.HookImpl], arguments: Mapping[str, Any]
    ) -> tuple[list[tuple[str, Any]], list[Finding]]:
        results, failures = [], []
        for implementation in implementations:
            who = self.who(implementation.plugin_name)
            if implementation.hookwrapper or implementation.wrapper:
                continue  # reported by the survey
            try:
                result = implementation.function(*(arguments[name] for name in implementation.argnames))
                if isinstance(result, Iterable):
                    result = tuple(result)  # a generator raises only here
            except Exception as error:
                failures.append(_broken("BB035", f"{who}: hook {hook} failed: {describe(error)}", undecided=True))
            else:
                if result is not None:
                    results.append((who, result))
        return results, failures

    def survey(self, needed: Iterable[str] | None = None) -> Survey:
        """The adapters of the plugins registered now, and their problems: of all plugins, or of those that were asked
        before, that name no frameworks beforehand, or that name one of `needed`. An adapter stays the same object
        until the plugins change.
        """
        registered = self.manager.list_name_plugin()
        if self._surveyed is None or not _same(self._registered, registered):
            self._registered, self._answers, self._known, self._surveyed = registered, {}, set(), None
        elif needed is not None and self._known.issuperset(needed):
            return self._surveyed
        hooks: dict[str, list[pluggy.HookImpl]] = {}
        for one in reversed(getattr(self.manager.hook, _ADAPTERS).get_hookimpls()):
            hooks.setdefault(one.plugin_name, []).append(one)
        said = {name: _said(ones[0].plugin) for name, ones in hooks.items()}
        every = {framework for names in said.values() for framework in names or ()}
        self._known |= every if needed is None else {*needed}
        self._ask(hooks, said, [name for name, names in said.items() if names is None or self._known & {*names}])
        # A name that several claim is refused, whoever is needed: all who claim it are asked.
        claims = [framework for answer in self._answers.values() for framework, _, _ in answer.adapters]
        claims += [framework for name, names in said.items() if name not in self._answers for framework in names or ()]
        twice = {framework for framework in claims if claims.count(framework) > 1}
        self._ask(hooks, said, [name for name, names in said.items() if twice & {*(names or ())}])
        if self._surveyed is None:
            self._surveyed = self._survey(hooks)
        return self._surveyed

    def _ask(
        self,
        hooks: Mapping[str, list[pluggy.HookImpl]],
        said: Mapping[str, tuple[str, ...] | None],
        plugins: Iterable[str],
    ) -> None:
        for name in plugins:
            if name not in self._answers:
                self._answers[name] = self._answer(self.who(name), hooks[name], said[name])
                self._surveyed = None

    def _answer(self, who: str, hooks: Iterable[pluggy.HookImpl], said: tuple[str, ...] | None) -> _Answer:
        """The answer of one plugin's hooks, and what is wrong with it. said: what it named beforehand."""
        answer = _Answer()
        results, answer.failures = self._called(_ADAPTERS, hooks, {})
        for _, classes in results:
            for cls in classes if isinstance(classes, tuple) else (classes,):
                try:
                    framework = _framework_of(cls)
                    if said is not None and framework not in said:
                        raise TypeError(f"{FRAMEWORKS} does not name {framework}")
                    answer.adapters.append((framework, who, cls()))
                except Exception as error:
                    message = f"{who}: adapter {_spell(cls)} is unusable: {describe(error)}"
                    answer.unusable.append(_broken("BB034", message))
        if said is not None and not answer.failures and not answer.unusable:
            for framework in sorted({*said} - {framework for framework, _, _ in answer.adapters}):
                message = f"{who}: {FRAMEWORKS} names {framework}, and it brings no adapter of that name"
                answer.unusable.append(_broken("BB034", message))
        return answer

    def _survey(self, hooks: Iterable[str]) -> Survey:
        """The result of the answers so far, in the order of `hooks`."""
        answers = [self._answers[name] for name in hooks if name in self._answers]
        problems = [one for answer in answers for one in answer.failures]
        problems += [one for answer in answers for one in answer.unusable]
        found: dict[str, list[tuple[str, Adapter]]] = {}
        for answer in answers:
            for framework, who, adapter in answer.adapters:
                found.setdefault(framework, []).append((who, adapter))
        for framework, claims in sorted(found.items()):
            if len(claims) > 1:
                names = " and ".join(f"{_spell(type(adapter))} of {who}" for who, adapter in claims)
                problems.append(_broken("BB033", f"framework {framework} is claimed by {names}; all are refused"))
        usable = {framework: claims[0] for framework, claims in sorted(found.items()) if len(claims) == 1}
        return Survey(
            MappingProxyType({framework: adapter for framework, (_, adapter) in usable.items()}),
            MappingProxyType({framework: who for framework, (who, _) in usable.items()}),
            (*self.problems, *self._misspelt(), *problems),
        )

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


def _said(plugin: object) -> tuple[str, ...] | None:
    """The frameworks that a plugin names beforehand; None where it names none, or in no way that can be relied on."""
    names = getattr(plugin, FRAMEWORKS, None)
    return names if isinstance(names, tuple) and names and all(isinstance(name, str) for name in names) else None


def _framework_of(cls: Any) -> str:
    if not (inspect.isclass(cls) and issubclass(cls, Adapter)):
        raise TypeError("it is no subclass of batchbridge.Adapter")
    for attribute in ("framework", "versions"):
        if not isinstance(getattr(cls, attribute, None), str):
            raise TypeError(f"it has no {attribute}")
    return cls.framework


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
