"""The frame of reading and writing, whatever a configuration looks like: versions, origins, reading back."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

from batchbridge.contract.adapter import Adapter
from batchbridge.contract.reading import Context, NativeStep, Provenance, Reading, Source, Written
from batchbridge.errors import CannotWrite
from batchbridge.frozen import dataclass
from batchbridge.kit.key_table import Codes
from batchbridge.kit.rule_table import added, defects
from batchbridge.kit.values import FieldValue
from batchbridge.kit.versions import (
    includes,
    installed,
    newer_version,
    read_as_release,
    readable,
    release_after,
    unknown_version,
)
from batchbridge.meaning.findings import Finding, Where
from batchbridge.meaning.spec import Spec

if TYPE_CHECKING:
    from batchbridge.kit.writing import Problems


@dataclass(frozen=True, kw_only=True, repr=False)
class RunReading(Reading):
    """A reading that remembers the run that its settings are: whatever the adapter's rules look at."""

    run: Any = None


class FramedAdapter(Adapter):
    """An adapter in the frame of the module, which reads back what it writes. An adapter says how settings are read
    (`read_settings`) and which ones say a specification."""

    codes: ClassVar[Codes]
    """Codes of findings about settings."""
    no_configuration: ClassVar[str] = ""
    """The code of a configuration that is not one of the framework's; empty: that of a wrong value."""
    title: ClassVar[str] = ""
    """The framework's name in sentences; empty: its name for BatchBridge."""
    writes: ClassVar[str] = ""
    """The version that is written for where nobody names one; empty: `newest_version`."""
    trainers: ClassVar[frozenset[tuple[str, str]]] = frozenset()
    """Module and name of the base classes of its trainers, of an adapter whose `tells` does not say them."""

    @abstractmethod
    def read_settings(self, source: Source, context: Context, version: str, found: list[Finding]) -> RunReading:
        """The reading of a source under `version`, with what was `found` before."""

    @abstractmethod
    def settings_for(self, spec: Spec, problems: Problems, version: str) -> dict[str, Any]:
        """The settings that say `spec`, by native key; what they cannot say goes to `problems`."""

    def texts_of(self, values: Mapping[str, Any], version: str) -> Mapping[str, str]:
        """The forms in which settings are handed over."""
        return {}

    def forms(self, values: Mapping[str, Any], framework_version: str, world_size: int) -> Mapping[str, str]:
        """The forms of values in the framework's texts, for `Adapter.forms`."""
        return self.texts_of(values, framework_version)

    @property
    def undeclared(self) -> tuple[str, ...]:  # type: ignore[override]  # an adapter's own codes
        """The code of an unknown key."""
        return (self.codes.unknown_key,)

    @property
    def mistyped(self) -> tuple[str, ...]:  # type: ignore[override]  # an adapter's own codes
        """The code of a value that its key does not take."""
        return (self.codes.wrong_value,)

    def is_configuration(self, native: object) -> bool:
        """Whether an object is a configuration of the framework's."""
        return False

    def read(self, source: Source, context: Context) -> RunReading:
        """The reading. Interpolations are followed, resolvers are not run; defects in rows of plugins are
        the adapter's own."""
        found = list(source.problems)
        version = self.readable_version(source, context, found)
        foreign = source.native is not None and not self.is_configuration(source.native)
        if version is not None and foreign:
            text = f"a {type(source.native).__name__} is not a configuration of {self.name}"
            found.append(Finding(self.no_configuration or self.codes.wrong_value, "error", "config", text))
        empty = not source.values and not source.argv and source.problems
        if version is None or foreign or empty:
            return self.unread(version or self._asked(source, context)[0], found, context)
        reading = self.read_settings(source, context, version, found)
        if source.record is not None:
            from batchbridge.kit.run_records import as_of_record

            reading = as_of_record(source.record, reading, self.codes, self.name)
        rows, _ = added(self.framework, version)  # who failed, `check` says
        if not rows or reading.spec is None or reading.behaviour is None:
            return reading
        known = (*reading.behaviour.defects, *defects(rows, reading.run, version))
        return replace(reading, behaviour=replace(reading.behaviour, defects=known))

    def file_schema(self, version: str) -> Mapping[str, Any] | None:
        """The schema of the file, for `Adapter.file_schema`; of a version newer than all known, the newest's."""
        known = self._readable(version)
        if not self.knows(known):
            raise ValueError(f"{self.name} {version:.40} is not known; known are {self.versions}")
        body = None if self.no_file else self.settings_schema(known)
        if body is None:
            return None
        from batchbridge.kit.file_schema import file_schema

        own = self.name if self.name.lower() == self.framework else f"{self.framework} under {self.name}"
        return file_schema(self.framework, known, body, title=own)

    def settings_schema(self, version: str) -> dict[str, Any] | None:
        """JSON Schema of the settings in a file, in a known version; see `batchbridge.kit.file_schema`."""
        return None

    def unread(self, version: str | None, found: Sequence[Finding], context: Context) -> RunReading:
        """A reading that says nothing but its findings."""
        return RunReading(
            framework=self.framework,
            framework_version=version,
            findings=tuple(found),
            dataset_size=context.dataset_size,
        )

    def asked_version(self, context: Context) -> tuple[str | None, str]:
        """The version that is asked for or installed, and what makes an installed one doubtful."""
        return context.framework_version or installed(self.distribution), ""

    def _asked(self, source: Source, context: Context) -> tuple[str | None, str]:
        """The answer of `asked_version`; but what is installed here need not be what a past run was trained with."""
        of_another_day = source.record is not None and context.framework_version is None
        return (None, "") if of_another_day else self.asked_version(context)

    def difference(self, version: str) -> str:
        """The parts of a newer version's configuration that differ from the newest known one's; empty: not known."""
        return ""

    def fitting(self, source: Source) -> Sequence[str]:
        """Known versions that have every setting of a source, oldest first; empty: it says nothing of its version."""
        return ()

    def readable_version(self, source: Source, context: Context, found: list[Finding]) -> str | None:
        """The version whose tables are read; None where none is, with a finding."""
        asked, why = self._asked(source, context)
        version = asked and self._readable(asked)
        codes, newest = (self.codes.no_version, self.codes.unknown_version), self.newest_version
        if not version or asked is None or not self.knows(version):
            fits = () if version else self.fitting(source)
            hint = f"; the settings given exist in {fits[0]} to {fits[-1]}" if fits else ""
            near = fits[-1] if fits else newest or self.writes
            found.append(unknown_version(self.name, version, self.versions, near, codes, why, hint))
            return None
        if version != asked:
            differs = self.difference(asked)
            found.append(newer_version(self.name, asked, newest=newest, code=codes[1], difference=differs))
        known = release_after(version)
        if known in self.releases and version not in self.releases:
            found.append(read_as_release(self.name, version, known, codes[1]))
            return known
        return version

    @property
    def name(self) -> str:
        """The framework's name in sentences."""
        return self.title or self.framework

    def _readable(self, version: str) -> str:
        return readable(version, self.newest_version) if self.newest_version else version

    def knows(self, version: str) -> bool:
        """Whether there are tables for `version`."""
        return includes(self.versions, version)

    def detect(self, source: Source) -> float:
        """The certainty that `tells` comes to; an adapter without one replaces it. A file that a command names
        counts."""
        from batchbridge.reading.detect import certainty

        assert self.tells is not None, "the loader takes no adapter that has neither"
        return certainty(self.tells, source)

    def write(self, spec: Spec, framework_version: str | None = None) -> Written:
        """The settings of a specification, for `Adapter.write`; for the newest known version where none is named."""
        from batchbridge.kit.writing import Problems, objections

        version = self._readable(framework_version or self.writes or self.newest_version)
        problems = Problems(self, spec)
        known = f"{self.name} {version} is not known; known are {self.versions}"
        values = self.settings_for(spec, problems, version) if problems.need(self.knows(version), known) else {}
        if not problems:
            problems.extend(objections(self, spec, values, self.context_of(spec, version)))
        if problems:
            raise CannotWrite(self.framework, problems)
        text = _OnUse(partial(self.forms, values, version, spec.topology.world_size))
        return Written(values=values, framework_version=version, text=text)

    def context_of(self, spec: Spec, version: str) -> Context:
        """The facts that are said beside the settings when they are read back."""
        return Context(framework_version=version)

    def owns(self, trainer: object) -> bool:
        """Whether `trainer` is one of the framework's, or of a subclass."""
        named = any((base.__module__, base.__name__) in self.trainers for base in type(trainer).__mro__)
        return named or super().owns(trainer)

    def require_own(self, trainer: object) -> None:
        """Refusal (`NotImplementedError`) of a trainer that is not the framework's."""
        if not self.owns(trainer):
            raise NotImplementedError(f"{self.framework}: {type(trainer).__name__} is not a trainer of {self.name}")


class PackagedAdapter(FramedAdapter):
    """An adapter whose package has a module for each role, by the names in docs/house.md; each is imported when it is
    first needed."""

    home: ClassVar[str]
    """The package."""

    def check(self, reading: Reading) -> Sequence[Finding]:
        """The framework's own rules and known defects; see the package's `rules`."""
        found: Sequence[Finding] = self._part("rules").check(reading)
        return found

    def settings_for(self, spec: Spec, problems: Problems, version: str) -> dict[str, Any]:
        """The settings for a specification, by the package's `writing`."""
        values: dict[str, Any] = self._part("writing").settings_for(spec, problems, version)
        return values

    def settings_schema(self, version: str) -> dict[str, Any] | None:
        """The schema of the settings, by the package's `file_schema`."""
        schema: dict[str, Any] | None = self._part("file_schema").settings_schema(version, self.decides)
        return schema

    def native_steps(
        self, reading: Reading, dataset_size: int, response_tokens: Mapping[tuple[int, int], int]
    ) -> Iterator[NativeStep]:
        """The unwrapped run, where the configuration decides it; see the package's `behaviour`."""
        steps: Iterator[NativeStep] = self._part("behaviour").native_steps(reading, dataset_size, response_tokens)
        return steps

    def _part(self, role: str) -> ModuleType:
        return import_module(f"{self.home}.{role}")


class _OnUse(Mapping[str, str]):
    """Forms that are made when one is asked for: a search for the nearest specification writes dozens of settings."""

    def __init__(self, make: Callable[[], Mapping[str, str]]) -> None:
        self._make = make

    @cached_property
    def _made(self) -> Mapping[str, str]:
        return self._make()

    def __getitem__(self, form: str) -> str:
        return self._made[form]

    def __iter__(self) -> Iterator[str]:
        return iter(self._made)

    def __len__(self) -> int:
        return len(self._made)


def origins(
    values: Mapping[str, FieldValue], native: Mapping[str, Any], places: Mapping[str, Where], default: str
) -> dict[str, Provenance]:
    """The origin of each canonical value. default: what says a key that nobody gave."""
    return {path: entry.origin(native, places, default) for path, entry in values.items()}
