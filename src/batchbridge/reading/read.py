"""The way from a user's input to a `Reading`: detect the framework, let its adapter read and check, apply the core's
rules.

Whatever goes wrong on the way, in the input or in a plugin, is a finding; only wrong Python arguments raise.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from batchbridge.contract import plugins
from batchbridge.contract.adapter import Adapter
from batchbridge.contract.reading import Context, Reading, RequiredVersions, Source
from batchbridge.meaning.findings import Finding, Fix, Where
from batchbridge.reading import files
from batchbridge.reading.detect import DETECTED, certainties, chosen, undecided
from batchbridge.rules import core_rules

_T = TypeVar("_T")

UNKNOWN = "unknown"
"""`Reading.framework` where no adapter could be chosen."""


def read(
    source: object,
    *,
    framework: str | None = None,
    version: str | None = None,
    framework_version: str | None = None,
    world_size: int | None = None,
    nodes: int | None = None,
    gpus: int | None = None,
    dataset_size: int | None = None,
    env: Mapping[str, str] | None = None,
    command: int | None = None,
) -> Reading:
    """The meaning of a configuration. Whatever is wrong with it is a finding of the reading.

    Nothing of the real environment is read.

    Args:
        source: A path, a dict, a list of arguments, a `Source`, a config or trainer object, or a `Reading` (which is
            given back as it is).
        framework: Whose configuration `source` is; detected by default.
        version: The framework's version; by default the installed one.
        framework_version: The same, by the commands' word.
        world_size: Devices that train the policy; by default what the source says.
        nodes: With gpus, instead of world_size: nodes of that many devices each; by default 1.
        gpus: Devices of each node.
        dataset_size: Prompts in the dataset; by default what the source says.
        env: Environment variables that a launch script leaves open, and its arguments by number ("1").
        command: Which training command of a launch script, counted from 1.

    Returns:
        The specification, where each value comes from, what the framework does with it, and the findings.

    Raises:
        TypeError: An argument has a wrong type or is given in two ways; or `source` is a `Reading`, and yet another
            argument is given.
        ValueError: A size is below 1.
    """
    if nodes is not None or gpus is not None or framework_version is not None:
        from batchbridge.reading.asked import asked_for

        version, world_size, env = asked_for(version, framework_version, world_size, nodes, gpus, env)
    if isinstance(source, Reading):
        asked = {"framework": framework, "version": version, "world_size": world_size, "dataset_size": dataset_size}
        if given := [name for name, value in (asked | {"env": env, "command": command}).items() if value is not None]:
            raise TypeError(f"{given[0]}: the source is a Reading, which is read already")
        return source
    _expect("framework", framework, str)
    _expect("version", version, str)
    for name, size in (("world_size", world_size), ("dataset_size", dataset_size), ("command", command)):
        _expect(name, size, int)
        if size is not None and size < 1:
            raise ValueError(f"{name} = {size}: must be at least 1")
    framework = framework and (plugins.named(framework) or framework)
    version, commit = _of_git(version)
    loaded = files.load_source(source, env=env, framework=framework, command=command, world_size=world_size)
    said = Context(framework_version=version, world_size=world_size, dataset_size=dataset_size)
    findings: list[Finding] = []
    if any(problem.severity == "error" for problem in loaded.problems) and not loaded.values:
        return _unread(framework, said, loaded.problems)
    adapter: Adapter | None = None
    if loaded.native is not None:
        adapter, loaded, said = _trainer(loaded, framework, said, findings)
    adapter = adapter or chosen(loaded, framework, findings)
    if adapter is None:
        return _unread(framework, said, [*loaded.problems, *findings, *_plugin_warnings()])
    if (known := known_commit(adapter, version)) is not None:
        text = f"a commit of git's was named: {commit} is {adapter.distribution or adapter.framework} {known}"
        findings.append(Finding("BB024", "note", "config", f"{text}, which is taken", fixes=(_ANOTHER,)))
        said = dataclasses.replace(said, framework_version=known)
    if version == "latest" and adapter.releases:
        said = dataclasses.replace(said, framework_version=adapter.releases[-1])
    if loaded.record is not None:
        from batchbridge.reading.recorded import recorded

        said, notes = recorded(loaded.record, adapter, said)
        findings += notes
    elif (version is None or commit) and loaded.path is not None and loaded.native is None:
        said = dataclasses.replace(said, copy=_guarded(adapter, "own_copy", lambda: adapter.own_copy(loaded), findings))
    reading = read_source(loaded, adapter, said)
    if (
        loaded.record is None
        and reading.framework_version is None
        and loaded.path is not None
        and (adapter.distribution or adapter.checkout)
    ):
        reading = _pinned(loaded, adapter, said, loaded.path, reading)
    elif version is not None:
        reading = _between_releases(loaded, adapter, said, reading)
    return dataclasses.replace(reading, findings=_ordered([*reading.findings, *findings])) if findings else reading


_ANOTHER = Fix("name another with --framework-version")


def known_commit(adapter: Adapter, version: str | None) -> str | None:
    """The version of the code at a commit that a text names, where the adapter knows it; None: it names none, or
    another."""
    if not adapter.commits or not (commit := _of_git(version)[1]):
        return None
    from batchbridge.reading.pins import version_at

    return version_at(adapter.commits, commit)


def unnamed(reading: Reading, version: str | None) -> str:
    """The sentence that a commit stands where a release should, which its framework's adapter does not know: one that
    the user names, or that the repository pins; empty: none does."""
    if version is None:
        pinned = (one.message for one in reading.findings if one.code == "BB024")
        return next(pinned, "") if reading.framework_version is None else ""
    commit, adapter = _of_git(version)[1], plugins.adapters().get(reading.framework)
    if commit is None or (adapter is not None and known_commit(adapter, version) is not None):
        return ""
    return f"{commit} is named, a git commit and not a release"


def _of_git(version: str | None) -> tuple[str | None, str | None]:
    """The version that a text names, the tag of a reference of git's being one; and the commit, where it names one."""
    if version is None or ("git+" not in version and "." in version):
        return version, None
    from batchbridge.reading.pins import commit_of, version_of

    return version_of(version), commit_of(version)


def _pinned(source: Source, adapter: Adapter, said: Context, path: Path, unpinned: Reading) -> Reading:
    """The reading under the version that the configuration's repository pins; `unpinned` where it pins none that is
    read, with a note where that is a commit, and with the versions that it asks for where it pins none."""
    from batchbridge.reading.pins import VersionPin, pinned, required, version_at, version_of

    built, name = source.construction, adapter.distribution or ""
    own = built.pins.get(name) if built is not None else None
    if built is not None and name in built.ranges:
        asked = RequiredVersions(built.ranges[name], f"a cell of {path}")
        return dataclasses.replace(unpinned, required=asked)
    pin = (
        VersionPin(version_of(own), f"a cell of {path}")
        if own
        else pinned(path, adapter.distribution, adapter.checkout, adapter.releases)
    )
    if pin is None:
        return dataclasses.replace(unpinned, required=required(path, name) if name else None)
    name = adapter.distribution or adapter.framework
    of_commit = ""
    if of_code := version_at(adapter.commits, pin.unreleased):
        of_commit = f" at {pin.unreleased} of git's"
        pin = pin._replace(version=of_code)
    if pin.unreleased:
        text = f"{pin.place} takes {name} from git at {pin.unreleased}, which is no release"
        note = Finding(
            "BB024", "note", "config", text, fixes=(Fix("name the release like it with --framework-version"),)
        )
        return dataclasses.replace(unpinned, findings=_ordered([*unpinned.findings, note]))
    text = f"no version of {name} was named: {pin.place} pins {pin.version}{of_commit}, which is taken"
    note = Finding("BB024", "note", "config", text, fixes=(_ANOTHER,))
    said = dataclasses.replace(said, framework_version=pin.version)
    reading = _between_releases(source, adapter, said, read_source(source, adapter, said))
    known = reading.spec is not None or bool(reading.native)
    return dataclasses.replace(reading, findings=_ordered([*reading.findings, note])) if known else unpinned


def _between_releases(source: Source, adapter: Adapter, said: Context, reading: Reading) -> Reading:
    """The reading of a version that comes before a release, as that release: undecided where the release before it
    judges otherwise."""
    asked, release, releases = said.framework_version or "", reading.framework_version or "", tuple(adapter.releases)
    if asked == release or not asked.startswith(release) or release not in releases[1:]:
        return reading
    before = releases[releases.index(release) - 1]
    other = read_source(source, adapter, dataclasses.replace(said, framework_version=before))
    if reading.verdict == other.verdict or "undecided" in (reading.verdict, other.verdict):
        return reading
    if reading.verdict == "invalid":
        found = [
            dataclasses.replace(one, message=f"as {release} would, and not {before}: {one.message}", undecided=True)
            if one.severity == "error"
            else one
            for one in reading.findings
        ]
        return dataclasses.replace(reading, findings=_ordered(found))
    text = f"{asked} lies between {before} and {release}: valid as {release}, not as {before}: {other.wrong[0].message}"
    fix = Fix("name the release like it with --framework-version")
    found = [*reading.findings, Finding("BB025", "error", "config", text, fixes=(fix,), undecided=True)]
    return dataclasses.replace(reading, findings=_ordered(found))


def as_read(example: Mapping[str, Any]) -> tuple[Source, Context]:
    """An example of `Adapter.examples`, as a source and what is said beside it."""
    from batchbridge.reading.arguments import parse_arguments

    argv, sizes = tuple(example.get("argv", ())), {key: example.get(key) for key in ("world_size", "dataset_size")}
    source = Source(values=parse_arguments(argv) if argv else example.get("values", {}), argv=argv)
    if text := example.get("program"):
        from batchbridge.reading.python import load_python

        source = dataclasses.replace(load_python(text, Path("train.py")), path=None)
    return source, Context(framework_version=example["version"], **sizes)


def read_source(source: Source, adapter: Adapter, context: Context) -> Reading:
    """The reading that `adapter` makes of `source`, with all findings: of loader, adapter, core rules and plugins."""
    findings = [*source.problems, *_plugin_warnings()]
    if context.copy is not None:
        context = dataclasses.replace(context, framework_version=context.copy.release)
    elif context.framework_version is not None:
        known = plugins.release(adapter, context.framework_version)
        context = dataclasses.replace(context, framework_version=known)
    reading = _guarded(adapter, "read", lambda: _typed(adapter.read(source, context), Reading), findings)
    if reading is None:
        return _unread(adapter.framework, context, findings)
    if context.copy is not None:
        told = context.copy.findings(adapter.framework, reading.given)
        reading = dataclasses.replace(reading, copy=context.copy, findings=(*reading.findings, *told))
    if source.unknown:
        undeclared = adapter.undeclared if source.construction is not None else ()
        reading = _unknown_values(source, reading, undeclared, adapter.given_alone)
    if source.unreached is not None:
        reading = dataclasses.replace(reading, unreached=source.unreached)
    if source.loose:
        reading = dataclasses.replace(reading, loose=(*reading.loose, *source.loose))
    if source.record is not None and source.record.partial:
        reading = dataclasses.replace(reading, loose=(*reading.loose, _REST))
    findings += _placeholders(source, reading)
    if reading.dataset_size is None:
        reading = dataclasses.replace(reading, dataset_size=context.dataset_size)
    return _checked(adapter, reading, findings)


def read_again(source: Source, adapter: Adapter, before: Reading, world_size: int | None) -> Reading:
    """The reading of other settings under the version and with the prompts of `before`."""
    version, prompts = before.framework_version, before.dataset_size
    context = Context(framework_version=version, world_size=world_size, dataset_size=prompts, copy=before.copy)
    return read_source(source, adapter, context)


def _checked(adapter: Adapter, reading: Reading, findings: list[Finding]) -> Reading:
    """`reading` with the findings of the adapter, of the core's rules and of all plugins, merged and sorted."""
    failures: list[Finding] = []
    own = _Met(reading.findings)
    found = [*(finding for finding in findings if finding not in own), *reading.findings]
    found += _guarded(adapter, "check", lambda: _all_findings(adapter.check(reading)), failures) or ()
    if reading.spec is not None:
        codes = {finding.code for finding in found}
        said = {
            getattr(row, "core", "") for row in plugins.rows(adapter, reading.framework_version) if row.code in codes
        }
        core = core_rules.check(reading.spec, reading.dataset_size, reading.provenance)
        found += [finding for finding in core if finding.code not in said]
    merged = dataclasses.replace(reading, findings=_ordered([*found, *failures]))
    results, failed_hooks = plugins.call("batchbridge_check", reading=merged)
    failures += failed_hooks
    for who, result in results:
        try:
            found += _all_findings(result)
        except TypeError as error:
            failures.append(undecided("BB035", f"{who}: hook batchbridge_check failed: {error}"))
    found = [_open_if_guessed(finding, reading.guessed) for finding in found]
    if reading.loose:
        found = [_open_to(finding, reading, adapter.undeclared) for finding in found]
    if reading.copy is not None:
        found = [finding if finding in own else reading.copy.opened(finding) for finding in found]
    if (condition := reading.condition) is not None:
        from batchbridge.meaning.conditional import conditional

        loud = [finding for finding in found if finding.code not in condition.silent]
        found = list(conditional(loud, condition.supposed, condition.why, condition.places))
    return dataclasses.replace(reading, findings=_ordered([*found, *failures]))


def _open_if_guessed(finding: Finding, guessed: tuple[Where, ...]) -> Finding:
    """`finding`, which is not an error yet where it is about a guess."""
    keys = {where.key for where in finding.where}
    guess = next((where for where in guessed if where.key in keys), None)
    if guess is None or finding.severity != "error":
        return finding
    return dataclasses.replace(finding, message=f"with a guess, {guess}: {finding.message}", undecided=True)


_REST = "the rest of the run's configuration"
"""The name of what a record leaves out that says some of a run's settings."""


def _open_to(finding: Finding, reading: Reading, undeclared: Collection[str]) -> Finding:
    """`finding`, which is not an error yet where words that are not known may say its settings otherwise; a key that is
    not declared stays one, and so does what a record of a run says itself."""
    keys = {where.key for where in finding.where if where.key}
    about = bool(keys) and finding.code not in undeclared
    recorded = reading.loose == (_REST,) and keys <= reading.given.keys()
    if not about or recorded or finding.severity != "error" or finding.undecided:
        return finding
    message = f"unless {', '.join(reading.loose[:2])} says otherwise: {finding.message}"
    return dataclasses.replace(finding, message=message, undecided=True)


def _unknown_values(
    source: Source, reading: Reading, undeclared: Collection[str], given_alone: Collection[str]
) -> Reading:
    """`reading` with what a launch script leaves open: an error about such a value is no error yet. undeclared: codes
    of errors about the key alone. given_alone: see `Adapter.given_alone`."""
    from batchbridge.reading.arguments import spellings
    from batchbridge.reading.unknown_settings import is_given, unknown_values

    about = [{where.key for where in finding.where if where.key} for finding in reading.findings]
    matter = {key for origin in reading.provenance.values() for key in origin.keys}
    matter |= {key for keys in about for key in keys}
    open_keys = {spelling for key in source.unknown for spelling in spellings(key)}
    pairs = zip(reading.findings, about, strict=True)
    kept = [found for found, keys in pairs if not keys & open_keys or found.code in undeclared]
    matter -= {key for found in kept if found.code in undeclared for key in (where.key for where in found.where) if key}
    matter -= {key for key in given_alone if any(is_given(source.values.get(one)) for one in spellings(key))}
    return dataclasses.replace(reading, findings=(*kept, *unknown_values(source, matter)))


_PLACEHOLDER = re.compile(r"""\[?['"]?(<[A-Za-z][\w ./-]*>)['"]?(, .*)?\]?""")
"""A whole value, alone or the first of a list: a system prompt may have `<think>` in it."""


def _placeholders(source: Source, reading: Reading) -> list[Finding]:
    """Notes on values that someone has yet to fill in, of settings that no canonical field comes from."""
    matter = {key for origin in reading.provenance.values() for key in origin.keys} | set(source.unknown)
    found = []
    for key, where in reading.given.items():
        left = _PLACEHOLDER.fullmatch(str(where.value)) if "<" in str(where.value)[:3] else None
        if left is not None and key not in matter and key.lstrip("+~") not in matter:
            place = (dataclasses.replace(where, value=None),)
            found.append(Finding("BB018", "note", "config", f"{key} still has a placeholder, {left[1]}", place))
    return found


def _trainer(
    source: Source, framework: str | None, said: Context, findings: list[Finding]
) -> tuple[Adapter | None, Source, Context]:
    """The adapter that owns a trainer object, its configuration, and the context with what the trainer knows."""
    for adapter in plugins.perhaps_owners(source.native):
        if framework not in (None, adapter.framework):
            continue
        if not _guarded(adapter, "owns", partial(adapter.owns, source.native), findings):
            continue
        known = _guarded(adapter, "source_of", partial(adapter.source_of, source.native), findings)
        if known is not None:
            config, context = known
            merged = {
                field.name: value if (value := getattr(said, field.name)) is not None else getattr(context, field.name)
                for field in dataclasses.fields(Context)
            }
            return adapter, config, Context(**merged)
    return None, source, said


def none_of(framework: str, source: Source) -> Reading | None:
    """The reading of a file that has nothing of `framework`'s in it, or is plainly another framework's, for whoever
    named the framework of a whole folder; None: it may be its. Adapters that are built upon one another count as one:
    a recipe of Open-R1's may have TRL's settings alone."""
    installed = plugins.adapters()
    named = installed[framework]
    scores = certainties(source, [])
    usable = {name: installed[name] for name in scores if name in installed}
    kin = {name for name, one in usable.items() if isinstance(one, type(named)) or isinstance(named, type(one))}
    own = max((score for name, score in scores.items() if name in kin), default=0)
    other = max((name for name in scores if name not in kin), key=scores.__getitem__, default=None)
    if own >= DETECTED or (own and (other is None or scores[other] < DETECTED)):
        return None
    whose = (
        "no adapter recognises this configuration"
        if other is None or scores[other] < DETECTED
        else f"it is a configuration of {other}"
    )
    found = undecided("BB020", f"{whose}; the files of its folder were to be read as {framework}'s")
    return _unread(None, Context(), [found])


def _guarded(adapter: Adapter, method: str, act: Callable[[], _T], findings: list[Finding]) -> _T | None:
    """`act()`, or None and a finding that names the plugin: a bug of an adapter is not a crash of the reader."""
    try:
        return act()
    except Exception as error:
        findings.append(plugins.failed(adapter.framework, method, error))
        return None


def _typed(value: Any, expected: type[_T]) -> _T:
    if not isinstance(value, expected):
        raise TypeError(f"returned {type(value).__name__}, not {expected.__name__}")
    return value


def _all_findings(values: Iterable[Any]) -> tuple[Finding, ...]:
    return tuple(_typed(value, Finding) for value in values)


def _plugin_warnings() -> list[Finding]:
    """Problems of plugins as warnings: they do not make a configuration wrong, but a check may be missing."""
    return [dataclasses.replace(problem, severity="warning") for problem in plugins.problems()]


_SEVERITIES: Mapping[str, int] = {"error": 0, "warning": 1, "note": 2}


def _ordered(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Errors first, then those that leave the verdict open, warnings, notes; each finding once, otherwise as found."""
    once = _Met(findings).in_order
    return tuple(sorted(once, key=lambda finding: (_SEVERITIES[finding.severity], finding.undecided)))


class _Met:
    """Findings, each once, in order. They are not hashable, and a hostile file has tens of thousands."""

    def __init__(self, findings: Iterable[Finding]) -> None:
        self.in_order: list[Finding] = []
        self._alike: dict[tuple[str, str, str], list[Finding]] = {}
        for finding in findings:
            alike = self._alike.setdefault(self._words(finding), [])
            if finding not in alike:
                alike.append(finding)
                self.in_order.append(finding)

    def __contains__(self, finding: Finding) -> bool:
        return finding in self._alike.get(self._words(finding), ())

    @staticmethod
    def _words(finding: Finding) -> tuple[str, str, str]:
        return finding.code, finding.message, " ".join(map(str, finding.where))


def _unread(framework: str | None, said: Context, findings: Iterable[Finding]) -> Reading:
    return Reading(
        framework=framework or UNKNOWN,
        framework_version=said.framework_version,
        findings=_ordered(findings),
        dataset_size=said.dataset_size,
    )


def _expect(name: str, value: object, expected: type) -> None:
    if value is not None and (not isinstance(value, expected) or isinstance(value, bool)):
        raise TypeError(f"{name}: expected {expected.__name__}, got {type(value).__name__} {value!r:.60}")
