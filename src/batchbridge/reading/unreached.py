"""The training command that a launch script has and does not reach: its line, and what keeps it from running."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from bashread import Argument, Command, ScriptCommands
from bashread.written import WrittenCommand, written_commands

LONGEST = 80
"""Characters of a condition that are shown."""
_EMPTY = re.compile(r"""-z\s+["']?\$\{?(\w+)|!\s+-n\s+["']?\$\{?(\w+)|\$\{?(\w+)\}?["']?\s*==?\s*(?:""|'')""")
"""A test for a variable without a value."""


class UnreachedTraining(NamedTuple):
    """The words of a script about a training command that it does not run.

    said: the rest of a sentence; empty: nothing is known. line: of the command; None: there is none. names: variables
    that have no value, on which that rests.
    """

    said: str = ""
    line: int | None = None
    names: tuple[str, ...] = ()


def unreached(
    text: str, script: ScriptCommands, recognised: Callable[[ScriptCommands], list[int]]
) -> UnreachedTraining:
    """The first training command of a script that runs none, and where the script ends before it.

    recognised: the lines of the training commands among some.
    """
    written = list(written_commands(text))
    reached = {command.line for command in script.commands}
    others = [one for one in written if one.line not in reached and len(one.words) > 1 and _starts(one.words[0])]
    lines = recognised(ScriptCommands(tuple(map(_command, others))))
    first = next((one for one in others if lines and one.line <= lines[0] <= one.line + _lines_of(one, others)), None)
    ends = next((remark.line for remark in script.remarks if remark.kind == "ends"), None)
    if ends is None or (first is not None and first.line < ends):
        if first is None:
            return UnreachedTraining()
        why = f": {_shown(first.conditions[-1])}" if first.conditions else ""
        names = _without_value(first.conditions, text)
        return UnreachedTraining(f"; that of line {first.line} is not reached{why}", first.line, names)
    exits = [one for one in written if one.words[:1] == ("exit",) and (first is None or one.line < first.line)]
    own = next((one for one in exits if one.line == ends and one.conditions), None)
    said = f"; it ends on line {ends}" + (f", {_shown(own.conditions[-1])}" if own else "")
    if first is not None:
        said += f", before that of line {first.line}"
    later = [condition for one in exits if one.line >= ends for condition in one.conditions]
    return UnreachedTraining(said, None if first is None else first.line, _without_value(later, text))


def _starts(word: str) -> bool:
    """Whether a command may start a program that trains: Python, a launcher, a file, or what a variable says."""
    from batchbridge.reading.looks import STARTS

    return word.startswith("$") or STARTS.search(word) is not None


def _command(one: WrittenCommand) -> Command:
    return Command(tuple(Argument(word, one.line) for word in one.words), one.line)


def _lines_of(one: WrittenCommand, others: list[WrittenCommand]) -> int:
    """The lines of a command behind its first, at most: up to the next one."""
    return min((other.line for other in others if other.line > one.line), default=one.line + 1000) - one.line - 1


def _shown(condition: str) -> str:
    return condition if len(condition) <= LONGEST else f"{condition[: LONGEST - 3]}..."


def _without_value(conditions: list[str] | tuple[str, ...], text: str) -> tuple[str, ...]:
    """The variables that conditions ask for a value, but for those that the script itself gives one."""
    asked = [next(filter(None, found.groups())) for one in conditions for found in _EMPTY.finditer(one)]
    own = (name for name in asked if not re.search(rf"(?m)^\s*(?:export\s+)?{name}=(?!\$\{{{name}:?-|\$\d)", text))
    return tuple(dict.fromkeys(own))
