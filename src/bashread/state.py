"""The state of a shell that runs nothing: its variables, what it would have run, and how far it may go.

`Shell` is the scope that words are expanded in. What a kind of statement does is not its business: it is given a table
(`bashread.statements`).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

from bashread.arithmetic import NotArithmetic, evaluate
from bashread.script import Argument, Command, Remark
from bashread.syntax import parse, piped
from bashread.values import (
    ASSUMED,
    DEVICES_OF_A_NODE,
    DONE,
    MARK,
    Array,
    NotBash,
    Outcome,
    TooManyCommands,
    Unknown,
    Unknowns,
    Word,
    names_of,
)
from bashread.words import element, fields, single

if TYPE_CHECKING:
    from tree_sitter import Node

MAX_WORK = 3_000_000
"""Most characters looked at while expanding: some 2 seconds of CPU."""
MAX_DEPTH = 40
"""Deepest nesting of statements, calls and scripts."""
MAX_EXPANSIONS = 10_000
"""Most `$` in a script; in a here-document the grammar takes the square of their number."""
MAX_COMMANDS = 20_000
"""Most commands of a script."""

_PROBE = r"""(?x)(?: python3?\s+-c\s+(['"])import\ [\w., ]+\1 (?:\s+2>\s*/dev/null)?
          | [^|&;()`$<>]* (?:\s1?|&)>\s*/dev/null (?:\s+2>&1)? )
    \s*&&\s*echo\s+(?P<found>[\w.-]+)\s*\|\|\s*echo\s+(?P<not_found>[\w.-]+)"""
"""A program that prints nothing, and a word for either end of it."""

_COUNTS_DEVICES = re.compile(
    r"nvidia-smi[^;&]*\|\s*(wc\s+-l|grep\s+-c)|nvidia-smi\s+--query-gpu=count|torch\.cuda\.device_count\(\)"
)
"""A command that prints how many devices the machine has."""
_COUNTS_VISIBLE = re.compile(
    r"CUDA_VISIBLE_DEVICES[^;&]*(awk\b[^|]*\bNF\b|\|\s*wc\s+-[lw])|\bNF\b[^|]*<<<[^|]*CUDA_VISIBLE_DEVICES"
)
"""A command that counts the devices that are listed for a process: all of the machine, where nobody says which."""

_ARGUMENTS = re.compile(r"(^|_)(args?|arguments?|opts?|options?|flags?|extras?|overrides?)(_|$)", re.IGNORECASE)

_GAP = re.compile(rb"(?:[ \t]|\\[ \t\n])*")

Variables = dict[str, "str | Array"]
ShellFunctions = dict[str, tuple["Node", bytes, bool]]
"""A function's body, the source that its places count in, and whether that is another file's than the script."""
Statements = Mapping[str, "Callable[[Shell, Node], Outcome]"]
"""The action of each kind of node of the grammar."""


def _spread(unknown: Sequence[Unknown]) -> bool:
    """Whether an unknown word is a variable that is named as one of several arguments."""
    return any(_ARGUMENTS.search(name) for one in unknown for name in one.names)


class ExitLeft(Exception):
    """The command `exit`: the script, or the subshell, ends on this line."""

    def __init__(self, line: int, outcome: Outcome) -> None:
        self.line, self.outcome = line, outcome


class ReturnLeft(Exception):
    """The command `return`."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome


class LoopLeft(Exception):
    """The command `break` or `continue`, and how many loops it leaves."""

    def __init__(self, name: str, levels: int) -> None:
        self.name, self.levels = name, levels


PYTHON_PATH = "PYTHONPATH"
"""The one variable of which it is said whether a script replaces it."""


class Shell:
    """The state of a shell that runs nothing."""

    def __init__(self, env: Mapping[str, str], statements: Statements) -> None:
        self._statements = statements
        self.unknowns = Unknowns()
        self.env = env
        self.variables: Variables = {"IFS": " \t\n"}
        self.exported = set(env)
        self.prefix: dict[str, str] = {}
        """The assignments that stand in front of the command that runs."""
        self.functions: ShellFunctions = {}
        self.positional: list[Word] = []
        self.zero: str | None = None
        self.beside: Callable[[str], str | None] = lambda named: None
        """The text of a file that `source` names; None: it is not followed."""
        self.source_line: int | None = None
        """The line of the `source` that runs another file."""
        self.in_function = 0
        self.locals: list[dict[str, str | Array | None]] = []
        self.commands: list[Command] = []
        self.remarks: dict[Remark, None] = {}  # in the order of their being made
        self.only_if: tuple[Unknown, ...] = ()
        self.captured: list[str] | None = None
        self.decided_output = True
        self.ways_out: dict[object, tuple[Unknown, ...]] = dict.fromkeys(
            (ExitLeft, ReturnLeft, "break", "continue"), ()
        )
        """The deciding unknowns of each way out; see `enclosed`."""
        self.left: dict[object, list[Variables]] = {}
        """The variables at each way out that nothing decides; see `rejoined`."""
        self.replacing: dict[str, int] = {}
        """Values that PYTHONPATH was given by an assignment that does not name it, and the line."""
        self.work = self.depth = 0
        self.source = b""
        self.base = self.line = 0

    # ---- the scope that words are expanded in

    # Their meaning: `values.ExpansionScope`.

    def value(self, name: str, line: int) -> str | Array | None:
        if name in ("0", "BASH_SOURCE"):
            return self.zero
        if name.isdigit():
            place = int(name[:6]) - 1
            if place < len(self.positional):
                return self.positional[place].text
            return {} if self.in_function else None
        if name in self.variables:
            return self.variables[name]
        return self.env.get(name)

    def words(self) -> list[Word]:
        return self.positional

    def assign(self, name: str, value: str, line: int) -> None:
        self.variables[name] = value

    def substitute(self, code: str, line: int) -> str:
        shown = "$(" + " ".join(code.split())[:40] + ")"
        probe = re.fullmatch(_PROBE, code.strip())
        one_of = (probe["found"], probe["not_found"]) if probe else ()
        if _COUNTS_DEVICES.search(code):
            if (devices := self.env.get(DEVICES_OF_A_NODE)) is not None:
                return devices
            return self.unknowns.mark(Unknown(shown, line, (DEVICES_OF_A_NODE,)))
        unknown = self.unknowns.mark(Unknown(shown, line, one_of=one_of))
        before = self.captured, self.decided_output, self.commands, self.remarks
        self.captured, self.decided_output, self.commands, self.remarks = [], True, [], {}
        try:
            with self.subshell(), contextlib.suppress(ExitLeft):
                self.run_text(code, line - 1)
        finally:
            output, decided = "".join(self.captured), self.decided_output and not self.remarks
            self.captured, self.decided_output, self.commands, self.remarks = before
        if not decided and _COUNTS_VISIBLE.search(code) and "grep" not in code:
            devices = self.env.get(DEVICES_OF_A_NODE)
            return devices or self.unknowns.mark(Unknown(shown, line, (DEVICES_OF_A_NODE,)))
        return output.rstrip("\n") if decided else unknown

    def arithmetic(self, text: str, line: int) -> str:
        expanded = single(text.replace('"', ""), line, self)
        missing: list[Unknown] = list(self.unknowns.of(expanded))

        def get(name: str) -> int:
            return self._number(name, line, missing, 0)

        def put(name: str, value: int) -> None:
            if "[" in name:
                raise NotArithmetic(f"{name} is set")
            unknown = Unknown(f"${name}", line, names_of(missing))
            self.assign(name, self.unknowns.mark(unknown) if missing else str(value), line)

        number = 1
        try:
            number = evaluate(MARK.sub("1", expanded), get, put)
        except NotArithmetic as error:
            if not missing:
                raise NotBash(f"$(({text.strip()})): {error}") from None
        return self.unknowns.mark(Unknown(f"$(({text.strip()}))", line, names_of(missing))) if missing else str(number)

    def _number(self, name: str, line: int, missing: list[Unknown], depth: int) -> int:
        """A variable, or an element of an array, as a number; a name in it is looked up again, as bash does."""
        name, bracket, subscript = name.partition("[")
        value = element(name, subscript.removesuffix("]"), line, self) or "" if bracket else self.value(name, line)
        if isinstance(value, dict):
            value = value[0].text if 0 in value else ""
        if value is None:
            missing.append(Unknown(f"${name}", line, (name,), plain=True))
            return 1
        if unknown := self.unknowns.of(value):
            missing.extend(unknown)
            return 1
        if depth > 8:
            raise NotArithmetic(f"{name} refers to itself")
        return evaluate(value, lambda other: self._number(other, line, missing, depth + 1), lambda *_: None)

    def spend(self, amount: int) -> None:
        self.work += amount
        if self.work > MAX_WORK:
            raise TooManyCommands("expanding its words takes too long")

    # ---- what is recorded

    def remark(self, kind: str, line: int, text: str) -> None:
        """Adds a `Remark`, once."""
        self.remarks[Remark(kind, line, text if len(text) <= 160 else f"{text[:157]}...")] = None

    def record(self, words: list[Word], line: int, document: Word | None = None) -> None:
        """Adds a `Command` to those that would run. document: its input."""
        if len(self.commands) >= MAX_COMMANDS:
            raise TooManyCommands(f"more than {MAX_COMMANDS:,} commands")
        self.decided_output = False
        shown = tuple(map(self._argument, words))
        self.spend(sum(len(word.text) for word in shown))
        name = words[0].text
        setting = "=" in name and "." in name.partition("=")[0] and "/" not in name
        of_arguments = any(map(_ARGUMENTS.search, (name for one in shown[0].unknown for name in one.names)))
        behind = of_arguments and len(shown) > 1 and shown[1].text.startswith("--")
        if name.startswith("--") or setting or behind:
            text = f"{shown[0].text} runs as a command of its own: the line before it ends without a backslash"
            self.remark("stray", line, text)
        own = {name: self.variables.get(name, self.env.get(name)) for name in self.exported}
        own |= self.prefix
        plain = {name: value for name, value in own.items() if isinstance(value, str) and not self.unknowns.of(value)}
        given = document and self._argument(document)
        self.commands.append(Command(shown, line, self.only_if, self._python_path(), plain, given))

    def _argument(self, word: Word) -> Argument:
        unknown = self.unknowns.of(word.text)
        return Argument(
            self.unknowns.shown(word.text), word.line, unknown, word.many or (word.open and _spread(unknown))
        )

    def _python_path(self) -> Argument | None:
        value = self.variables.get(PYTHON_PATH)
        if not isinstance(value, str) or value not in self.replacing:
            return None
        unknown = self.unknowns.of(value)
        inherits = any(PYTHON_PATH in one.names or PYTHON_PATH in one.shown for one in unknown)
        return None if inherits else Argument(self.unknowns.shown(value), self.replacing[value], unknown)

    # ---- variables

    def saved(self) -> tuple[Variables, ShellFunctions, list[Word]]:
        """The state that a subshell may change and its parent gets back: see `restore`."""
        self.spend(8 * len(self.variables))
        return self.copied(), dict(self.functions), list(self.positional)

    def copied(self) -> Variables:
        """The variables as they are now."""
        self.spend(sum(len(value) for value in self.variables.values() if isinstance(value, dict)))
        return {name: value.copy() if isinstance(value, dict) else value for name, value in self.variables.items()}

    @contextlib.contextmanager
    def subshell(self) -> Iterator[None]:
        """The span of a subshell: what runs inside changes nothing outside."""
        saved = self.saved()
        try:
            yield
        finally:
            self.restore(saved)

    def restore(self, saved: tuple[Variables, ShellFunctions, list[Word]]) -> None:
        """Takes back what was `saved`."""
        self.variables, self.functions, self.positional = saved

    def branches(self, bodies: Sequence[Callable[[], Outcome]], unknown: tuple[Unknown, ...], line: int) -> Outcome:
        """Reads every body as if it ran, and keeps of the variables what all agree on. A body that ends the script
        is no way to what comes after it."""
        start, outer = self.saved(), self.only_if
        self.only_if = (*outer, *(one for one in unknown if one not in outer))
        ends: list[Variables] = []
        arguments: list[list[Word]] = []
        functions = dict(self.functions)
        leaving: ExitLeft | ReturnLeft | LoopLeft | None = None
        printed = len(self.captured or ())
        for body in bodies:
            variables = {n: v.copy() if isinstance(v, dict) else v for n, v in start[0].items()}
            self.restore((variables, dict(start[1]), start[2]))
            try:
                body()
            except (ExitLeft, ReturnLeft, LoopLeft) as left:
                leaving, way = left, left.name if isinstance(left, LoopLeft) else type(left)
                self.ways_out[way] = tuple(dict.fromkeys((*self.ways_out[way], *unknown)))
                self.left.setdefault(way, []).append(self.variables)
            else:
                ends.append(self.variables)
                arguments.append(self.positional)
                functions |= self.functions
        self.only_if = outer
        self.decided_output &= leaving is None and len(self.captured or ()) == printed
        if not ends:
            assert leaving is not None
            raise leaving
        self.functions = functions
        if any(words != arguments[0] for words in arguments):
            self.positional = [Word(self.unknowns.mark(Unknown("$@", line, names_of(unknown))), line, open=True)]
        self.variables = self._agreed(ends, unknown, line)
        return Outcome(None, unknown)

    def _agreed(self, ends: Sequence[Variables], unknown: Sequence[Unknown], line: int) -> Variables:
        """The variables that several ends of one way have in common; the others depend on `unknown`."""
        merged: Variables = {}
        for name in dict.fromkeys(name for end in ends for name in end):
            values = [end.get(name) for end in ends]
            first = values[0]
            if first is not None and all(value == first for value in values):
                merged[name] = first
            else:
                merged[name] = self.unknowns.mark(Unknown(f"${name}", line, names_of(unknown)))
        return merged

    @contextlib.contextmanager
    def rejoined(self, *ways: object) -> Iterator[None]:
        """The span behind which those that left by `ways`, where nothing decides who does, go on with the others."""
        outer, self.left = self.left, {**self.left, **{way: [] for way in ways}}
        try:
            yield
            if ends := [end for way in ways for end in self.left[way]]:
                unknown = [one for way in ways for one in self.ways_out[way]]
                self.variables = self._agreed([self.variables, *ends], unknown, self.line)
        finally:
            self.left = outer

    # ---- running

    def enclosed(self, run: Callable[[], Outcome], way_out: type[ExitLeft | ReturnLeft]) -> Outcome:
        """Runs a function or a subshell, which `way_out` ends; undecided where nothing decides which one it takes."""
        before, self.ways_out[way_out] = self.ways_out[way_out], ()
        try:
            with self.rejoined(way_out):
                try:
                    outcome = run()
                except way_out as left:
                    outcome = left.outcome
        finally:
            undecided, self.ways_out[way_out] = self.ways_out[way_out], before
        return Outcome(None, undecided) if undecided else outcome

    def run_text(self, text: str, base: int) -> Outcome:
        """Runs a script; `base` lines stand before its first."""
        self.spend(len(text) * 4)
        if text.count("$") > MAX_EXPANSIONS:
            raise TooManyCommands(f"more than {MAX_EXPANSIONS:,} expansions")
        before = self.source, self.base
        try:
            self.source, root = parse(text.encode("utf-8", "replace"))
            self.base = base
            if root.has_error:
                self._errors(root)
            return self.block(root.children)
        finally:
            self.source, self.base = before

    def _errors(self, root: Node) -> None:
        """Says where the grammar gave up; a lone backslash at a line's end is nothing."""
        left = [root]
        while left and len(self.remarks) < 20:
            node = left.pop()
            if node.is_missing:
                self.remark("not_read", self.at(node), f"a {node.type} is missing")
            elif node.type == "ERROR" and not piped(node):
                shown = " ".join(self.raw(node).replace("\\", " ").split())
                if shown:
                    self.remark("not_read", self.at(node), f"{shown[:40]} is not understood as bash")
            elif node.type != "expansion":  # ${...} is read by `words`, whatever the grammar thinks of its inside
                left += [child for child in reversed(node.children) if child.has_error or child.is_missing]

    def at(self, node: Node) -> int:
        """The line of the script that `node` begins on, from 1."""
        return self.source_line or self.base + 1 + node.start_point[0]

    def raw(self, node: Node) -> str:
        """The text of `node` as it is written."""
        return self.source[node.start_byte : node.end_byte].decode("utf-8", "replace")

    def block(self, nodes: Sequence[Node]) -> Outcome:
        """Runs statements in turn; the last one's outcome."""
        outcome = DONE
        for node, after in zip_longest(nodes, nodes[1:]):
            if not node.is_named or node.type in ("comment", "ERROR"):  # errors: see `_errors`
                continue
            if after is not None and after.type == "&":  # in the background
                with self.subshell(), contextlib.suppress(ExitLeft):
                    self.run(node)
                outcome = DONE
            else:
                outcome = self.run(node)
        return outcome

    def run(self, node: Node) -> Outcome:
        """Runs one statement; one that is not read becomes a remark."""
        self.spend(8)
        self.depth += 1
        self.line = self.at(node)
        if self.depth > MAX_DEPTH:
            self.depth = 0
            raise TooManyCommands(f"nested deeper than {MAX_DEPTH}")
        try:
            act = self._statements.get(node.type)
            if act is None:
                shown = " ".join(self.raw(node).split())[:40]
                self.remark("not_read", self.at(node), f"{shown}: a {node.type.replace('_', ' ')} is not read")
                return ASSUMED
            return act(self, node)
        except NotBash as reason:
            self.remark("not_read", self.at(node), str(reason))
            return ASSUMED
        finally:
            self.depth = max(self.depth - 1, 0)

    def raw_words(self, nodes: Sequence[Node]) -> list[tuple[str, int]]:
        """The raw words of `nodes`; nodes that touch are one word."""
        found: list[tuple[int, int, int]] = []
        for start, end, line in self._pieces(nodes):
            if found and self.source[found[-1][1] : start] in (b"", b"\\\n"):
                found[-1] = (found[-1][0], end, found[-1][2])
            else:
                found.append((start, end, line))
        return [(self.source[start:end].decode("utf-8", "replace"), line) for start, end, line in found]

    def _pieces(self, nodes: Sequence[Node]) -> Iterator[tuple[int, int, int]]:
        """The places of words, or of parts of them, and their lines; the grammar takes `\\ ` for a blank."""
        for node, after in zip_longest(nodes, nodes[1:]):
            yield node.start_byte, node.end_byte, self.at(node)
            gap = _GAP.match(self.source, node.end_byte, after.start_byte if after else len(self.source))
            if gap and (after is None or gap.end() == after.start_byte):
                for blank in re.finditer(rb"(?:\\[ \t])+", gap[0]):
                    yield gap.start() + blank.start(), gap.start() + blank.end(), self.at(node)

    def expanded(self, nodes: Sequence[Node]) -> list[Word]:
        """The words that `nodes` become as arguments of a command."""
        return [word for raw, line in self.raw_words(nodes) for word in fields(raw, line, self)]

    def nonzero(self, text: str, line: int) -> Outcome:
        """The outcome of `((text))`."""
        value = self.arithmetic(text, line)
        if unknown := self.unknowns.of(value):
            return Outcome(None, unknown)
        return Outcome(value != "0")
