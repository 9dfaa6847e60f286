"""The reports of the commands `explain` and `check`, in Python: a reading with its text for a person."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from batchbridge.contract import plugins
from batchbridge.contract.enforcement import Enforcement, enforcement_of
from batchbridge.contract.reading import Reading, Source
from batchbridge.frozen import dataclass
from batchbridge.meaning.briefs import brief
from batchbridge.meaning.findings import Finding, Fix, Verdict, counts, gravest_first
from batchbridge.reading.read import read, unnamed

if TYPE_CHECKING:
    from batchbridge.comparing.beside_open import SizesBesideOpen
    from batchbridge.comparing.releases import ReleaseVerdicts
    from batchbridge.contract.held import Held
    from batchbridge.reading.ways_out import WayOut
    from batchbridge.render.headline import HeadlineFacts
    from batchbridge.render.text import TableRenderer


NOTEBOOK = 860
"""Pixels of a picture in a notebook."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Check:
    """The findings of a configuration, its verdict, and whether its run would be followed.

    `str()` is the text for a person. `name` is what the text calls the configuration.
    """

    name: str
    reading: Reading
    judged: ReleaseVerdicts | None = None
    """The judgements under every known release, where nobody named a version; `reading` is then of one of them."""
    devices: tuple[int, ...] = ()
    """World sizes (devices) on which it would be valid, where that is what leaves it undecided."""
    example: Reading | None = None
    """The reading on one of `devices`, for its sizes alone; None: the devices are known, or none are valid."""
    nowhere: tuple[str, ...] = ()
    """Keys that no known release declares."""
    refused: tuple[str, ...] = ()
    """Keys that decide the sizes of batches in some release, and that the one of `reading` does not declare: its
    numbers are those of another configuration."""
    beside_open: SizesBesideOpen | None = None
    """The sizes beside settings that are open, where these keep `reading` from a meaning and decide no size."""
    keep: Callable[[Finding], bool] | None = None
    """The findings that count; None: all. `reading` has them all, and so has what `enforcement` rests on."""
    departing: tuple[Finding, ...] = ()
    """The findings that the run is not what is expected of it. They are the project's: a run of it is followed none the
    less."""
    asked: Mapping[str, Any] | None = None
    """The arguments of `read` that it was read with; None: a `Reading`, or an object of the framework's."""

    def __repr__(self) -> str:
        return brief(self, self.name, self.counted)

    @cached_property
    def counted(self) -> Reading:
        """`reading` with the findings that count, behind them what departs from the expected."""
        said = (
            replace(self.reading, findings=(*self.reading.findings, *self.departing))
            if self.departing
            else self.reading
        )
        return said.keeping(self.keep)

    @property
    def verdict(self) -> Verdict:
        """ "valid", "invalid" or "undecided"."""
        return "undecided" if self._differs else self.counted.verdict

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Errors first, then warnings and notes; behind them BB025, where no version was named and releases differ."""
        return *self.counted.findings, *self._differs

    @cached_property
    def _differs(self) -> tuple[Finding, ...]:
        """The finding that known releases judge it differently, where the one of `reading` finds it valid."""
        if self.judged is None or self.counted.verdict != "valid" or self.judged.verdict == "valid":
            return ()
        valid = [span.name for span in self.judged.spans if span.verdict == "valid"]
        message = f"valid under {self.reading.framework} {', '.join(valid)}, not under every known release"
        fix = Fix(f"name a version, for example --framework-version {self.reading.framework_version}")
        found = Finding("BB025", "error", "config", message, fixes=(fix,), undecided=True)
        return (found,) if self.keep is None or self.keep(found) else ()

    @cached_property
    def enforcement(self) -> Enforcement:
        """Whether `run` and `wrap` would follow it, and what stands in the way."""
        from batchbridge.contract import plugins

        return enforcement_of(plugins.adapters().get(self.reading.framework), self.reading)

    def to_dict(self) -> dict[str, Any]:
        """JSON types: the reading's, with `enforcement`; `sizes_beside_open` where it has them, and `releases` where no
        version was named."""
        said = {**self.counted.to_dict(), "enforcement": self.enforcement.to_dict()}
        if self.beside_open is not None:
            said["sizes_beside_open"] = self.beside_open.to_dict()
        return said if self.judged is None else {**said, "releases": [span.to_dict() for span in self.judged.spans]}

    @cached_property
    def ways_out(self) -> tuple[tuple[Finding, tuple[WayOut, ...]], ...]:
        """The errors that have ways out, with what each makes of devices and batches; each is read again."""
        wrong = [found for found in self.counted.findings if found.severity == "error" and not found.undecided]
        if self.asked is None or not any(found.fixes for found in wrong):
            return ()
        from batchbridge.reading.ways_out import trying, ways_out

        said = {key: value for key, value in self.asked.items() if key != "source"}
        tried = partial(trying, self.asked["source"], self.reading, **said)
        return ways_out(gravest_first(wrong), tried, said["world_size"])

    @property
    def _beside(self) -> HeadlineFacts:
        """The facts that stand beside the verdict."""
        from batchbridge.render.headline import HeadlineFacts

        return HeadlineFacts(self.judged, self.devices, self.example, self.nowhere, self.refused, self.beside_open)

    def text(self, table: TableRenderer | None = None, *, verbose: bool = False, lang: str | None = None) -> str:
        """The text for a person. table: draws tables, by default plain ones; verbose: as `batchbridge check -v`; lang:
        "en", "zh", or None, as the environment says (LC_ALL, LC_MESSAGES, LANG)."""
        from batchbridge.render import text
        from batchbridge.render.words import spoken

        told = (self.name, self.counted, table or text.plain_table, self.ways_out, self.enforcement)
        with spoken(lang):
            return text.check(*told, verbose=verbose, beside=self._beside)

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        from batchbridge.meaning import notebook  # only notebooks ask
        from batchbridge.meaning.findings_in_notebooks import findings_table

        said = f"{self.name}: {self.reading.framework} {self.reading.framework_version or ''}".rstrip()
        title = f"{said}: {self.verdict}, {counts(self.findings)}"
        return notebook.fragment(title, findings_table(self.findings))


class Explanation(Check):
    """A configuration explained: meaning, fields with units and origin, derived numbers, what the framework does.

    `str()` is the text for a person; the data are those of `reading`. `name` is what the text calls the configuration.
    """

    def _repr_html_(self) -> str:
        from batchbridge.render.torn import sizes_picture

        drawn = sizes_picture(self.reading.supposed, NOTEBOOK)
        lines = (drawn or "").splitlines()
        picture = "".join(map(str.strip, lines))  # one line, as every fragment is
        return self.reading._repr_html_() + (f'<div class="batchbridge">{picture}</div>' if picture else "")

    def text(self, table: TableRenderer | None = None, *, verbose: bool = False, lang: str | None = None) -> str:
        """The text for a person. table: draws tables, by default plain ones; verbose: as `batchbridge explain -v`;
        lang: "en", "zh", or None, as the environment says (LC_ALL, LC_MESSAGES, LANG)."""
        from batchbridge.render import text
        from batchbridge.render.words import spoken

        told = (self.name, self.reading, table or text.plain_table, self.ways_out, self.enforcement)
        with spoken(lang):
            return text.explain(*told, verbose=verbose, beside=self._beside, held=self.held if verbose else None)

    @property
    def held(self) -> Held | None:
        """The framework's own functions that its adapter's meaning was compared with; None: the author alone says
        it."""
        adapter = plugins.adapters().get(self.reading.framework)
        return None if adapter is None else adapter.held()


def explain(
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
    name: str | None = None,
) -> Explanation:
    """The whole reading of a configuration, with its text for a person.

    Args:
        source: A path, a dict, a list of arguments, a `Source`, a config or trainer object, or a `Reading`.
        framework: Whose configuration `source` is; detected by default.
        version: The framework's version; by default the installed one.
        framework_version: The same, by the command's word.
        world_size: Devices that train the policy.
        nodes: With gpus, instead of world_size: nodes of that many devices each; by default 1.
        gpus: Devices of each node.
        dataset_size: Prompts in the dataset.
        env: Environment variables of a launch script.
        command: Which training command of a launch script, counted from 1.
        name: The configuration's name in the text; by default its path.

    Returns:
        The reading, and the text that `batchbridge explain` prints.

    Raises:
        TypeError: An argument has a wrong type or is given in two ways; or `source` is a `Reading`, and yet another
            argument is given.
        ValueError: A size is below 1.
    """
    if nodes is not None or gpus is not None or framework_version is not None:
        from batchbridge.reading.asked import asked_for

        version, world_size, env = asked_for(version, framework_version, world_size, nodes, gpus, env)
    said = {"world_size": world_size, "dataset_size": dataset_size, "env": env, "command": command}
    return Explanation(**_fields(source, name, framework, version, None, said))


def check(
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
    name: str | None = None,
    keep: Callable[[Finding], bool] | None = None,
    expect: Mapping[str, Any] | None = None,
) -> Check:
    """The findings of a configuration: what is wrong with it, where, and the nearest fixes.

    Args:
        source: A path, a dict, a list of arguments, a `Source`, a config or trainer object, or a `Reading`.
        framework: Whose configuration `source` is; detected by default.
        version: The framework's version; by default the installed one.
        framework_version: The same, by the command's word.
        world_size: Devices that train the policy.
        nodes: With gpus, instead of world_size: nodes of that many devices each; by default 1.
        gpus: Devices of each node.
        dataset_size: Prompts in the dataset.
        env: Environment variables of a launch script.
        command: Which training command of a launch script, counted from 1.
        name: The configuration's name in the text; by default its path.
        keep: Findings for which this is false do not count, neither in the list nor in the verdict; by default all do.
        expect: What the run should be: canonical fields and derived numbers by name, and `equivalent_to` with a path.
            A departure is an error, BB045.

    Returns:
        The findings with their verdict, and the text that `batchbridge check` prints.

    Raises:
        TypeError: An argument has a wrong type or is given in two ways; or `source` is a `Reading`, and yet another
            argument is given.
        ValueError: A size is below 1; `expect` has a name that a run has not.
    """
    if nodes is not None or gpus is not None or framework_version is not None:
        from batchbridge.reading.asked import asked_for

        version, world_size, env = asked_for(version, framework_version, world_size, nodes, gpus, env)
    said = {"world_size": world_size, "dataset_size": dataset_size, "env": env, "command": command}
    fields = _fields(source, name, framework, version, keep, said)
    departing: tuple[Finding, ...] = ()
    if expect:
        from batchbridge.comparing.expectations import departures

        departing = departures(fields["reading"], expect)
    return Check(**fields, keep=keep, departing=departing)


def _fields(
    source: object,
    name: str | None,
    framework: str | None,
    version: str | None,
    keep: Callable[[Finding], bool] | None,
    said: Mapping[str, Any],
) -> dict[str, Any]:
    """The fields of a `Check` but `keep`. said: the other arguments of `batchbridge.read`."""
    reading = read(source, framework=framework, version=version, **said)
    found: ReleaseVerdicts | None = None
    devices: tuple[int, ...] = ()
    nowhere: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    example: Reading | None = None
    beside_open: SizesBesideOpen | None = None
    if not isinstance(source, Reading):
        why = unnamed(reading, version)
        if reading.framework_version is None or (why and reading.spec is None):
            from batchbridge.comparing.releases import judged

            found = judged(source, reading, keep, why, **said)
            reading = reading if found is None else found.reading
        adapter = plugins.adapters().get(reading.framework)
        if adapter is not None and any(one.code in adapter.undeclared for one in reading.findings):
            from batchbridge.reading.undeclared import declared_elsewhere, refused_sizes, replaced, undeclared

            lacking = undeclared(adapter, reading)
            if found is not None:
                nowhere = tuple(key for key in lacking if key in found.nowhere)
                refused = tuple(key for key in lacking if key in found.deciding)
            elif adapter.releases:
                elsewhere = declared_elsewhere(source, adapter, reading, **said)
                nowhere = tuple(key for key in lacking if key not in elsewhere)
                refused = tuple(key for key in lacking if elsewhere.get(key))
            refused = tuple(dict.fromkeys((*refused, *refused_sizes(adapter, reading))))
            refused = tuple(key for key in refused if key not in replaced(adapter, reading))
        differs = reading.copy is not None and bool(reading.copy.differing)  # valid on no number of devices
        is_open = reading.keeping(keep).supposed.verdict == "undecided" and bool(reading.native) and not differs
        if is_open and said["world_size"] is None:
            from batchbridge.comparing.releases import example_of, valid_devices

            devices = valid_devices(source, reading, keep, **said)
            example = example_of(source, reading, devices, **said)
        if reading.spec is None and reading.native and reading.verdict == "undecided":
            from batchbridge.comparing.beside_open import sizes_beside_open

            beside_open = sizes_beside_open(source, reading, **said)
    path = source.path if isinstance(source, Source) else source
    called = name or (str(path) if isinstance(path, str | Path) else "arguments")
    readable = isinstance(source, str | Path | Mapping | list | tuple)
    settings = readable or (isinstance(source, Source) and source.native is None)
    beside: dict[str, Any] = {
        "judged": found,
        "devices": devices,
        "example": example,
        "nowhere": nowhere,
        "refused": refused,
    }
    beside |= {"beside_open": beside_open, "asked": {"source": source, **said} if settings else None}
    return {"name": called, "reading": reading, **beside}
