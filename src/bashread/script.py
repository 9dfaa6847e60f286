"""The commands that a script would execute: the result of reading it.

Its own file: the types of the result, which every module of the reader uses.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from bashread.values import Unknown


class Argument(NamedTuple):
    """One word of a command after every expansion, in the user's own spelling where it is `unknown`, and its line.

    many: whether it stands for any number of words: of an array, or of a variable that is named as one of arguments.
    """

    text: str
    line: int
    unknown: tuple[Unknown, ...] = ()
    many: bool = False


class Command(NamedTuple):
    """A command that the script executes. only_if: what decides whether it runs at all; empty: it does. python_path:
    the value and the line, where the script gives it a PYTHONPATH without what that was before. assigned: what stands
    in front of it (`NPROC_PER_NODE=8 program`), and what the script exports, where it is decided. document: its input,
    where that is a here-document or the text of a pipe; its line is that of the text's first."""

    words: tuple[Argument, ...]
    line: int
    only_if: tuple[Unknown, ...] = ()
    python_path: Argument | None = None
    assigned: Mapping[str, str] = MappingProxyType({})
    document: Argument | None = None

    @property
    def argv(self) -> tuple[str, ...]:
        """The words' text."""
        return tuple(word.text for word in self.words)


class Remark(NamedTuple):
    """Something about the script that a person should know. kind: "not_read" (the parser or the reader gave up there),
    "source" (another file's settings are not seen), "stray" (an argument that runs as a command), "ends"."""

    kind: str
    line: int
    text: str


class ScriptCommands(NamedTuple):
    """The commands that a script would execute, in order, and what is to be said about it.

    choices: what is unknown, but one of a few known texts (`Unknown.one_of`).
    """

    commands: tuple[Command, ...]
    remarks: tuple[Remark, ...] = ()
    choices: tuple[Unknown, ...] = ()
