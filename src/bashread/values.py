"""Values that travel through the reader: words, what nothing decides, outcomes, and the scope of words."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple, Protocol

DEVICES_OF_A_NODE = "--gpus"
"""The name under which `env` may say how many devices the machine has: what `$(nvidia-smi -L | wc -l)` prints."""
MAX_TEXT = 1 << 16
"""Longest value of one word or variable (characters)."""

Array = dict[int | str, "Word"]
"""An array; the keys of one that is associative are numbers where they are written as such."""


class Word(NamedTuple):
    """One word and the line of the script that it stands in; marks of `Unknowns` stand for what is not decided.

    open: what is not decided stands outside quotes, so that the word may be any number of words. many: it is one of an
    array that is not decided, which nobody writes for a single word.
    """

    text: str
    line: int
    open: bool = False
    many: bool = False


class AssociativeArray(Array):
    """An array whose keys are texts: of `declare -A`."""

    def copy(self) -> AssociativeArray:
        return AssociativeArray(self)


class TooManyCommands(Exception):
    """The script wants more than the bounds allow; the text says what."""


class NotBash(Exception):
    """A word that bash itself would refuse, or that is not read here; the text says why."""


class Unknown(NamedTuple):
    """Something that only running the script would tell.

    shown: as the user wrote it. names: the names that `--env` decides it with. plain: an environment variable that
    nothing has set, which counts as unset where the script itself says what then (`${X:-8}`, `[ -z "$X" ]`). one_of:
    all that it can be, where a program of the machine decides: `$(probe && echo npu || echo gpu)`; last, what it is
    where that program fails.
    """

    shown: str
    line: int
    names: tuple[str, ...] = ()
    plain: bool = False
    one_of: tuple[str, ...] = ()


def names_of(unknowns: Iterable[Unknown]) -> tuple[str, ...]:
    """The names that `--env` decides `unknowns` with."""
    return tuple(dict.fromkeys(name for unknown in unknowns for name in unknown.names))


class Outcome(NamedTuple):
    """The end of a command. value: success; None: not decided, and `unknown` says what would decide it. assumed: a
    program that is expected to succeed, so that what follows `&&` runs, but `if` is not decided by it."""

    value: bool | None
    unknown: tuple[Unknown, ...] = ()
    assumed: bool = False


DONE = Outcome(True)
ASSUMED = Outcome(None, assumed=True)


class Unknowns:
    """The unknown values of one script. No text of a script holds NUL, so that marks cannot be mistaken."""

    def __init__(self) -> None:
        self.known: list[Unknown] = []
        self.places: dict[Unknown, int] = {}

    def mark(self, unknown: Unknown) -> str:
        """The text that stands for `unknown`."""
        place = self.places.setdefault(unknown, len(self.known))
        if place == len(self.known):
            self.known.append(unknown)
        return f"\0{place}\0"

    def of(self, text: str) -> tuple[Unknown, ...]:
        """The unknowns that `text` depends on."""
        return tuple(dict.fromkeys(self.known[int(number)] for number in MARK.findall(text)))

    def written(self, text: str) -> str:
        """`text` as a script that the grammar takes: a letter that hardly any script has stands for NUL."""
        return text.replace("\0", _WRITTEN)

    def taken(self, raw: str) -> str:
        """The raw text of a script with the marks that were `written` into it."""
        if _WRITTEN not in raw:
            return raw
        known = len(self.known)
        return _WRITTEN_MARK.sub(lambda one: f"\0{one[1]}\0" if int(one[1]) < known else one[0], raw)

    def given_by(self, text: str, name: str) -> str:
        """`text` where `name` decides what nothing else would: `${DEVICE:-$(probe)}` is decided by `--env DEVICE`."""

        def one(match: re.Match[str]) -> str:
            unknown = self.known[int(match[1])]
            return match[0] if unknown.names else self.mark(unknown._replace(names=(name,)))

        return MARK.sub(one, text)

    def shown(self, text: str) -> str:
        """`text` with the user's own spelling in place of every mark."""
        return MARK.sub(lambda match: self.known[int(match[1])].shown, text)

    def plain(self, text: str) -> bool:
        """Whether `text` is nothing but variables that nothing has set."""
        return bool(text) and not MARK.sub("", text) and all(unknown.plain for unknown in self.of(text))

    def empty(self, text: str) -> bool | None:
        """Whether `text` is empty; unset environment variables are. None: not decided."""
        if not text or self.plain(text):
            return True
        return False if MARK.sub("", text) else None


class ExpansionScope(Protocol):
    """The scope in which a word is expanded."""

    unknowns: Unknowns

    def value(self, name: str, line: int) -> str | Array | None:
        """The variable's value; None: nothing has set it."""

    def words(self) -> list[Word]:
        """The positional parameters."""

    def assign(self, name: str, value: str, line: int) -> None:
        """The assignment of `${X:=value}`."""

    def substitute(self, code: str, line: int) -> str:
        """The output of `$(code)`."""

    def arithmetic(self, text: str, line: int) -> str:
        """The value of `$((text))`."""

    def spend(self, amount: int) -> None:
        """Counts work; raises `TooManyCommands`."""


MARK = re.compile("\0(\\d+)\0")
_WRITTEN = "\ue000"
_WRITTEN_MARK = re.compile(f"{_WRITTEN}([0-9]{{1,6}}){_WRITTEN}")
