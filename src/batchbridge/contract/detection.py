"""Detection as data: the facts by which a configuration is known to be a framework's, without importing its adapter."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from itertools import pairwise
from types import MappingProxyType
from typing import NamedTuple

from batchbridge.contract.reading import Source
from batchbridge.frozen import dataclass

_ONLY_SHARED = 0.3
"""The most that keys come to that others have as well."""
_SETTING = re.compile(r"--|[~+]*[A-Za-z_][\w.]*=")
"""A word of a command that is a setting and no program."""


@dataclass(frozen=True)
class DetectionFacts:
    """The facts by which a configuration is known to be a framework's; `certainty` weighs them, from 0 to 1.

    A key is told by its first part (`actor_rollout_ref`), its first parts (`data.train_batch_size`), or as a whole,
    whether it is said in nested groups or with dots, with `_` for `-`. What Hydra's list `defaults` names counts as a
    key, too: `defaults.ppo_trainer`.
    """

    own: Mapping[str, float]
    """Keys that tell, with what each adds."""
    shared: Mapping[str, float] = field(default_factory=dict)
    """Keys that other frameworks have as well, with what each adds."""
    most: float = 0.95
    """The most that keys come to."""
    programs: Mapping[str, float] = field(default_factory=dict)
    """Regular expression over the words of a command, each on a line of its own (so that `^` and `$` are the ends of a
    word), to the certainty where it is found. The first that is found decides, and not the keys."""
    unknown_program: float | None = None
    """The certainty where a command starts another program; None: the keys decide."""
    of_other_programs: frozenset[str] = frozenset()
    """Keys of the framework's programs that are not read. With one of them, a shared key and no own one, a
    configuration is claimed with 0.5: just enough to say so where nobody else claims it."""
    file_option: str = ""
    """The option of a command that names a file of settings; its keys count where one of them is an own one."""
    classes: tuple[tuple[str, str], ...] = ()
    """Classes of configuration objects, each with the beginning of its module's name; an empty name: every class."""
    trainers: tuple[tuple[str, str], ...] | None = None
    """Base classes of its trainers, as `classes`: `wrap` asks the adapter of a trainer of these alone. None: it asks
    the adapter about every trainer."""
    functions: Mapping[str, str] = field(default_factory=dict)
    """Functions that a Python program with a `hydra.main` of its own hands its configuration to, each with the module
    that does the same when it is started."""
    machine: Mapping[str, str] = field(default_factory=dict)
    """Settings that say how many nodes ("--nodes"), or devices of each ("--gpus"), a run has: where a script leaves one
    open, these options answer it."""
    upon: DetectionFacts | None = None
    """The facts of the framework that this one is built upon: with an own key, this one is surer by what that adds;
    without one half as sure."""

    def certainty(self, source: Source, named_file: Mapping[str, object] = MappingProxyType({})) -> float:
        """The certainty that a source is the framework's. Reads nothing else. named_file: the settings of the file that
        its command names with `file_option`."""
        if source.native is not None:
            return float(_is_of(self.classes, source.native))
        if source.construction is not None:
            return float(self.constructs((source.construction.name, *source.construction.bases)))
        if source.record is not None and source.record.built and self.constructs((source.record.built,)):
            return 1.0
        if source.argv:
            words = "\n".join(perhaps_programs(source.argv))
            for pattern, sure in self.programs.items():
                if re.search(pattern, words, re.MULTILINE):
                    return sure
            if self.unknown_program is not None and not _SETTING.match(source.argv[0]):
                return self.unknown_program
        keys = _keys(source.values)
        if self.upon is not None:
            likely = self.upon.certainty(source, named_file)
            more = max((self.own[key] for key in self._with_file(keys, named_file) & self.own.keys()), default=0.0)
            return likely and (min(1.0, likely + more) if more else likely / 2)
        keys = self._with_file(keys, named_file)
        own, shared = keys & self.own.keys(), keys & self.shared.keys()
        if shared and not own and keys & self.of_other_programs:
            return 0.5
        if not own:
            return min(_ONLY_SHARED, sum(self.shared[key] for key in shared))
        return min(self.most, sum(self.own[key] for key in own) + sum(self.shared[key] for key in shared))

    def may_own(self, trainer: object) -> bool:
        """Whether an object may be a trainer of the framework's, by its classes; True where `trainers` is None."""
        return self.trainers is None or _is_of(self.trainers, trainer)

    def constructs(self, names: Iterable[str]) -> bool:
        """Whether one of the full names of classes (`trl.GRPOConfig`) is a configuration of the framework's, for a
        Python program that is read and not run. A name whose module the program does not tell is taken."""
        full = [name.rpartition(".") for name in names]
        return any(
            wanted == name and (not dot or f"{home}.".startswith(start))
            for home, dot, name in full
            for start, wanted in self.classes
        )

    def _with_file(self, keys: set[str], named_file: Mapping[str, object]) -> set[str]:
        """Keys with those of the file that a command names."""
        of_file = _keys(named_file)
        return keys | of_file if of_file & self.own.keys() else keys


def _is_of(classes: Iterable[tuple[str, str]], thing: object) -> bool:
    """Whether an object is of one of some classes, or of a subclass; see `DetectionFacts.classes`."""
    return any(
        base.__module__.startswith(start) and base.__name__ in (name, name or base.__name__)
        for base in type(thing).__mro__
        for start, name in classes
    )


def perhaps_programs(argv: Sequence[str]) -> Iterator[str]:
    """The words of a command that its program may be: behind a Python file no option's value is one, such as the file
    of a framework's that a program of one's own is told to change."""
    behind = False
    for before, word in pairwise(("", *argv)):
        if not (behind and before.startswith("--") and "=" not in before):
            yield word
        behind = behind or word.endswith(".py")


class AdapterEntry(NamedTuple):
    """An adapter that is imported when its framework is first needed; see the hook `batchbridge_adapters`."""

    framework: str
    place: str
    """The place of the `Adapter` class, `module:NAME`."""
    tells: DetectionFacts | None = None
    """The facts by which its configurations are known; None: the adapter is imported and its `detect` is asked."""


_LEVELS = 3
"""Levels of nested groups whose keys are told."""


def _keys(values: Mapping[str, object]) -> set[str]:
    """Keys as `DetectionFacts` describes them."""
    return set(_forms(values, "", _LEVELS))


def _forms(values: Mapping[str, object], before: str, levels: int) -> Iterator[str]:
    for key in values:
        if not isinstance(key, str):
            continue
        parts = (before + key.lstrip("+~").replace("-", "_")).split(".")
        yield from (".".join(parts[:count]) for count in range(1, len(parts) + 1))
        value = values[key] if isinstance(values, dict) else None  # a command's is parsed when it is asked for
        if isinstance(value, Mapping):
            yield from _forms(value, ".".join(parts) + ".", levels - 1) if levels > 1 else ()
        elif key == "defaults" and isinstance(value, list):
            yield from (f"defaults.{entry}" for entry in value if isinstance(entry, str))
