"""The code that a wrapped run consists of, and what speaks for it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, Literal

from batchbridge.frozen import dataclass

NAMED = 4
"""Functions that a message names."""
FunctionsByFile = Mapping[str, Sequence[str]]
"""File of a package -> functions in it, methods as `Class.method`."""
Grade = Literal["proven", "measured", "refused"]
RecordStatus = Literal["tested", "read", "seen"]
KNOWN: tuple[RecordStatus, ...] = ("tested", "read")
"""Statuses of releases whose code is known."""


@dataclass(frozen=True)
class Package:
    """The functions of one package that a wrapped run depends on.

    name: as it is imported. distribution: its name on PyPI; None for a checkout, which has no release. control: what
    the patches replace or rely on. loss: what decides the weight of a token, which can be measured. title: its name for
    people, by default `name`. marker: a file that only this project has, where another has a package of this name.
    optional: it counts for a trainer that uses it, and for no other. part: of which feature of the package the
    functions are, where they have a record of their own; see `Code.parts`.
    """

    name: str
    distribution: str | None
    control: FunctionsByFile
    loss: FunctionsByFile = field(default_factory=dict)
    title: str = ""
    marker: str = "__init__.py"
    optional: bool = False
    part: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "title", self.title or self.record)

    @property
    def record(self) -> str:
        """The package's name in `proven.json`."""
        return f"{self.name}:{self.part}" if self.part else self.name

    @property
    def functions(self) -> FunctionsByFile:
        """Control flow and loss together."""
        files = [*self.control, *self.loss]
        return {file: (*self.control.get(file, ()), *self.loss.get(file, ())) for file in files}

    def decides_control(self, key: str) -> bool:
        """Whether `file: function` is part of the control flow."""
        file, _, name = key.partition(": ")
        return name in self.control.get(file, ())


@dataclass(frozen=True)
class Code:
    """The code of one framework that a wrapped run depends on.

    home: the adapter's Python package, which holds `proven.json`. oldest: the oldest supported version of the first
    package; older ones are refused by their number. parts: what a trainer of one feature depends on beside `packages`,
    and no other trainer does: a release may be tested without it. by_effect: methods that the user's own class may
    override, since the adapter holds what a call of them does.
    """

    framework: str
    home: str
    packages: tuple[Package, ...]
    oldest: str | None = None
    parts: tuple[Package, ...] = ()
    by_effect: Collection[str] = frozenset()

    def used(self, names: Collection[str] = ()) -> Code:
        """This code without the optional packages that are not among `names`, and with the parts that are."""
        packages = tuple(one for one in self.packages if not one.optional or one.name in names)
        return replace(self, packages=(*packages, *(one for one in self.parts if one.part in names)), parts=())


@dataclass(frozen=True)
class Record:
    """The digests of one package's functions in the releases that were recorded.

    labels: release to status, oldest first. functions: `file: function` -> digest (empty: the release has no such
    function) -> releases.
    """

    labels: Mapping[str, RecordStatus]
    functions: Mapping[str, Mapping[str, tuple[str, ...]]]

    @property
    def tested(self) -> tuple[str, ...]:
        """The releases that the native tests run on."""
        return tuple(label for label, status in self.labels.items() if status == "tested")

    @property
    def known(self) -> tuple[str, ...]:
        """The releases whose code is known, oldest first."""
        return tuple(label for label, status in self.labels.items() if status in KNOWN)

    def statuses(self, key: str, digest: str) -> set[RecordStatus]:
        """Statuses of the releases whose function `key` has this digest."""
        return {self.labels[label] for label in self.functions.get(key, {}).get(digest, ())}

    def equal(self, have: Mapping[str, str]) -> list[str]:
        """The releases that agree with every digest of `have`."""
        left = list(self.labels)
        for key, digest in have.items():
            same = self.functions.get(key, {}).get(digest, ())
            left = [label for label in left if label in same]
        return left

    def lacks_as_known(self, missing: frozenset[str]) -> bool:
        """Whether a known release lacks exactly the functions `missing`: one that is gone was renamed otherwise."""
        for label, status in self.labels.items():
            lacking = {key for key, digest in self.functions.items() if label in digest.get("", ())}
            if status in KNOWN and lacking == missing:
                return True
        return False


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """The evidence for the code that a wrapped run consists of.

    grade: "proven": the native tests ran on this very code. "measured": the weights of this loss are measured at
    attach. "refused": control flow that is not known. labels: package to the recorded release with the same code, None
    where there is none. control, loss: the functions that are not known. read: those that are known by reading alone.
    by_effect: the user's own, which are held by what they do (`Code.by_effect`).
    """

    grade: Grade
    labels: Mapping[str, str | None]
    control: tuple[str, ...] = ()
    loss: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    by_effect: tuple[str, ...] = ()

    @property
    def label(self) -> str | None:
        """The recorded releases whose code this is (`trl 1.16.0, transformers 5.23.0`); None where one is not known."""
        if None in self.labels.values():
            return None
        return ", ".join(f"{name} {label}" for name, label in self.labels.items())

    def text(self) -> str:
        """One sentence for the attachment's report."""
        code = self.label or ", ".join(f"{name} {label or 'unrecorded'}" for name, label in self.labels.items())
        if self.grade == "proven":
            return f"proven: the native tests ran on this code ({code})"
        parts = [
            f"{what}: {named(keys)}"
            for what, keys in (
                ("control flow that is not known", self.control),
                ("a loss that is not known", self.loss),
                ("known by reading, not by running", self.read),
                ("your own, held by what they do", self.by_effect),
            )
            if keys
        ]
        return f"{self.grade} ({code}); {'; '.join(parts)}"

    def to_dict(self) -> dict[str, Any]:
        """JSON types."""
        return {
            "grade": self.grade,
            "labels": dict(self.labels),
            "control": list(self.control),
            "loss": list(self.loss),
            "read": list(self.read),
            "by_effect": list(self.by_effect),
        }


def named(keys: Iterable[str]) -> str:
    """The first functions by name, and how many more there are."""
    listed = list(keys)
    more = f" and {len(listed) - NAMED} more" if len(listed) > NAMED else ""
    return f"{', '.join(listed[:NAMED])}{more}"
