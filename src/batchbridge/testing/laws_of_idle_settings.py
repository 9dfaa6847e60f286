"""The law of settings that decide nothing: each is seen to decide something, or is said to decide nothing here.

A setting that is read and then looked at by nobody is one that its author misread, or forgot: a comparison would pass
over it without a word. All settings of a case are changed at once, and halves of them where anything changes, so that
hundreds cost a few reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from importlib import import_module
from typing import Any, NamedTuple

from batchbridge.contract.adapter import Adapter
from batchbridge.contract.reading import Context, Reading, Source
from batchbridge.meaning.findings import Finding
from batchbridge.reading.arguments import changed_source
from batchbridge.reading.read import as_read
from batchbridge.testing.laws import Case, Laws, other_values, vacuous

ANY_VALUE: Sequence[Any] = ("a_word", "a.name", True, 1, 3, 0.5, ["a_word"], [0.5, 0.75], {"a_word": 1})
"""Values for settings of any kind; what a setting does not take is not tried."""

NO_NAME = "?"
"""A name that no setting has: a pattern that fits it fits everything."""


class _Asked(NamedTuple):
    """A configuration of a case, and what it leads to."""

    source: Source
    context: Context
    native: Mapping[str, Any]
    effects: Any


class IdleSettingLaws(Laws):
    """The law of this module."""

    def test_every_setting_decides_something_or_is_said_to_decide_nothing(self) -> None:
        if all(case.spec is None for case in self.valid):
            vacuous("no valid case has its spec written down")
        idle = self._idle()
        assert idle <= set(self.idle), (
            "in no case does another value change the specification, what the run does, a finding or what is refused. "
            f"Declare it (`declared`) or say what it decides (`outside`): {', '.join(sorted(idle - set(self.idle)))}"
        )
        assert set(self.idle) <= idle, (
            "a case shows that it decides something, or it is said elsewhere, or no case has such a setting. "
            f"Leave it out of `idle`: {', '.join(sorted(set(self.idle) - idle))}"
        )

    def _idle(self) -> set[str]:
        """The settings that decide nothing in any case, and of which `Adapter.decides` says nothing."""
        asked = list(self._asked_cases())
        left = {key for case in asked for key in case.native}
        left = {key for key in left if not _is_said(self.adapter_class(), key)}
        values = {key: self._values_of(key, asked) for key in left}
        for case in asked:
            for turn in range(max(map(len, values.values()), default=0)):
                changes = {
                    key: values[key][turn]
                    for key in sorted(left & case.native.keys())
                    if turn < len(values[key]) and not _same(values[key][turn], case.native[key])
                }
                left -= self._seen(case, changes)
        return left

    def _asked_cases(self) -> Iterator[_Asked]:
        cases: list[Case] = [*self.valid, *self.refused.values(), *self.undecided, *self.invalid]
        sources = [(case.source, case.context) for case in cases if case.source.native is None]
        told = next((case for case in self.valid if case.spec is not None), None)
        if told is not None:
            sources += [(changed_source(told.source, settings), told.context) for settings, _ in self.meanings]
        sources += map(as_read, self.adapter_class().examples().values())
        for source, context in sources:
            reading, findings = self._judge(source, context)
            yield _Asked(source, context, reading.native, self._effects(reading, findings))

    def _values_of(self, key: str, asked: Sequence[_Asked]) -> list[Any]:
        """Values of a setting: those of other cases and its words first."""
        natives = [case.native[key] for case in asked if key in case.native]
        rows = [row for row in getattr(self.adapter_class, "keys", ()) if row.key == key]
        words = [word for row in rows for word in (*_words(row.values), *row.kind.schema.get("enum", ()))]
        found = _each_once([*natives, *words])[:8]
        near = [other for value in (natives[0], *found[:2]) for other in other_values(value)]
        return _each_once([*found, *near, *ANY_VALUE])

    def _effects(self, reading: Reading, findings: Sequence[Finding]) -> Any:
        told = frozenset((one.code, one.message) for one in findings)
        refused = None if reading.spec is None else self.adapter_class().enforcement(reading)
        return reading.spec, reading.behaviour, told, refused

    def _seen(self, case: _Asked, changes: Mapping[str, Any]) -> set[str]:
        """The settings whose change alone leads to something else. A value that is not taken changes nothing."""
        if not changes:
            return set()
        reading, findings = self._judge(changed_source(case.source, changes), case.context)
        strange = {*self.adapter_class().mistyped, *self.adapter_class().undeclared}
        wrong = {str(where.key) for one in findings if one.code in strange for where in one.where}
        if taken := {key: value for key, value in changes.items() if key not in wrong}:
            if len(taken) < len(changes):
                return self._seen(case, taken)
        else:
            return set()
        if self._effects(reading, findings) == case.effects:
            return set()
        if len(changes) == 1:
            return set() if any(one.code in strange for one in findings) else set(changes)
        keys = list(changes)
        halves = (keys[: len(keys) // 2], keys[len(keys) // 2 :])
        return {key for half in halves for key in self._seen(case, {key: changes[key] for key in half})}


def _is_said(adapter: Adapter, key: str) -> bool:
    """Whether the adapter says what a setting decides. A pattern that fits every name says nothing of this one."""
    if adapter.decides(key) is None or adapter.decides(NO_NAME) is None:
        return adapter.decides(key) is not None
    module, _, name = adapter.outside.partition(":")
    patterns: Mapping[str, Any] = getattr(import_module(module), name) if name else {}
    return any(fnmatchcase(key, pattern) and not fnmatchcase(NO_NAME, pattern) for pattern in patterns)


def _words(values: Any) -> Sequence[Any]:
    return tuple(values) if isinstance(values, Mapping) else ()


def _each_once(values: Sequence[Any]) -> list[Any]:
    """The values that are given at all; True and 1 are two."""
    found: list[Any] = []
    for value in values:
        if value is not None and not any(_same(value, one) for one in found):
            found.append(value)
    return found


def _same(one: Any, other: Any) -> bool:
    return type(one) is type(other) and bool(one == other)
