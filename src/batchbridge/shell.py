"""Reads a bash launch script and says which commands it would execute. Nothing is ever executed.

tree-sitter's bash grammar gives the statements, `shell_words` expands the words. What only running would tell (an
environment variable that nobody gives, the output of a program, a file's existence) stays unknown under its own name;
branches that depend on it are both read, and their commands are marked. A script is read as if it were started without
arguments and without the user's environment, except for what `env` gives ("1", "2", ... are its arguments).

Source: Bash Reference Manual 5.2; the fixtures of tests/core/test_shell.py are compared with bash itself.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from batchbridge.shell_arithmetic import NotArithmetic, evaluate
from batchbridge.shell_conditions import Outcome, bracket, plain
from batchbridge.shell_words import (
    Array,
    NotBash,
    TooMuch,
    Unknown,
    Unknowns,
    Word,
    fields,
    heredoc,
    index,
    matcher,
    pattern,
    single,
)

if TYPE_CHECKING:
    from tree_sitter import Node

MAX_BYTES = 256 * 1024
"""Largest script (bytes). The largest launch scripts of the supported frameworks have some 20 KiB."""
MAX_WORK = 3_000_000
"""Most characters looked at while expanding, and the bound of time: some 2 seconds of CPU."""
MAX_DEPTH = 40
"""Deepest nesting of statements, function calls and nested scripts."""
MAX_TURNS = 1000
"""Most turns of one loop."""
MAX_COMMANDS = 20_000
"""Most commands that a script may execute."""


class Argument(NamedTuple):
    """One word of a command after every expansion, in the user's own spelling where it is `unknown`, and its line."""

    text: str
    line: int
    unknown: tuple[Unknown, ...] = ()


@dataclass(frozen=True)
class Command:
    """A command that the script executes. only_if: what decides whether it runs at all; empty: it does."""

    words: tuple[Argument, ...]
    line: int
    only_if: tuple[Unknown, ...] = ()

    @property
    def argv(self) -> tuple[str, ...]:
        """The words' text."""
        return tuple(word.text for word in self.words)


@dataclass(frozen=True)
class Remark:
    """Something about the script that a person should know. kind: "not_read" (the parser or the reader gave up there),
    "source" (another file's settings are not seen), "stray" (an argument that runs as a command), "ends"."""

    kind: str
    line: int
    text: str


@dataclass(frozen=True)
class Script:
    """What a script would execute, in order, and what is to be said about it."""

    commands: tuple[Command, ...]
    remarks: tuple[Remark, ...] = ()


def read_script(text: str, env: Mapping[str, str] | None = None) -> Script:
    """The commands of the script `text`. `env`: values of environment variables, and of arguments by number.

    Never raises for bad input: what cannot be read is a remark. Raises `TypeError` for values that are no text.
    """
    given = dict(env or {})
    for name, value in given.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(f"env: names and values are text; got {name!r}={value!r}")
    shell = _Shell({name: value for name, value in given.items() if "\0" not in value})
    numbers = [int(name) for name in given if name.isascii() and name.isdigit() and 0 < int(name[:4]) < 1000]
    shell.positional = [Word(given.get(str(place), ""), 0) for place in range(1, max(numbers, default=0) + 1)]
    line = 1
    try:
        if len(text.encode("utf-8", "replace")) > MAX_BYTES:
            raise TooMuch(f"the script has more than {MAX_BYTES:,} bytes")
        shell.run_text(text.replace("\0", ""), 0)
    except _Exit as ended:
        shell.remark("ends", ended.line, "the script ends here")
    except (_Return, _Loop):
        pass
    except TooMuch as reason:
        shell.remark("not_read", shell.line or line, f"reading stops here: {reason}")
    except RecursionError:
        shell.remark("not_read", shell.line or line, "reading stops here: nested too deeply")
    return Script(tuple(shell.commands), tuple(shell.remarks))


class _Exit(Exception):
    def __init__(self, line: int) -> None:
        self.line = line


class _Return(Exception):
    pass


class _Loop(Exception):
    """`break` or `continue`."""

    def __init__(self, name: str, levels: int) -> None:
        self.name, self.levels = name, levels


_DONE = Outcome(True)
_ASSUMED = Outcome(None, assumed=True)
_Variables = dict[str, "str | Array"]


class _Shell:
    """The state of a shell that runs nothing."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self.unknowns = Unknowns()
        self.env = env
        self.variables: _Variables = {}
        self.functions: dict[str, tuple[Node, bytes]] = {}
        self.positional: list[Word] = []
        self.zero: str | None = None
        self.in_function = 0
        self.locals: list[_Variables] = []
        self.commands: list[Command] = []
        self.remarks: list[Remark] = []
        self.only_if: tuple[Unknown, ...] = ()
        self.captured: list[str] | None = None
        self.decided_output = True
        self.work = self.depth = 0
        self.source = b""
        self.base = self.line = 0

    # ---- the scope that words are expanded in

    def value(self, name: str, line: int) -> str | Array | None:
        if name == "0":
            return self.zero
        if name.isdigit():
            place = int(name[:6]) - 1
            if place < len(self.positional):
                return self.positional[place].text
            return "" if self.in_function else None
        if name in self.variables:
            return self.variables[name]
        return self.env.get(name)

    def words(self) -> list[Word]:
        return self.positional

    def assign(self, name: str, value: str, line: int) -> None:
        self.variables[name] = value

    def substitute(self, code: str, line: int) -> str:
        shown = "$(" + " ".join(code.split())[:40] + ")"
        unknown = self.unknowns.mark(Unknown(shown, line))
        saved = self._saved()
        before, self.captured, self.decided_output = (self.captured, self.decided_output), [], True
        commands, remarks = self.commands, self.remarks
        self.commands, self.remarks = [], []
        try:
            self.run_text(code, line - 1)
        except _Exit:
            pass
        finally:
            output, decided = "".join(self.captured), self.decided_output and not self.remarks
            self.commands, self.remarks = commands, remarks
            self.captured, self.decided_output = before
            self._restore(saved)
        return output.rstrip("\n") if decided else unknown

    def arithmetic(self, text: str, line: int) -> str:
        expanded = single(text.replace('"', ""), line, self)
        missing: list[Unknown] = list(self.unknowns.of(expanded))
        if missing:
            names = tuple(dict.fromkeys(name for unknown in missing for name in unknown.given))
            return self.unknowns.mark(Unknown(f"$(({text.strip()}))", line, names))

        def get(name: str) -> int:
            return self._number(name, line, missing, 0)

        try:
            number = evaluate(expanded, get, lambda name, value: self.assign(name, str(value), line))
        except NotArithmetic as error:
            raise NotBash(f"$(({text.strip()})): {error}") from None
        if missing:
            names = tuple(dict.fromkeys(name for unknown in missing for name in unknown.given))
            return self.unknowns.mark(Unknown(f"$(({text.strip()}))", line, names))
        return str(number)

    def _number(self, name: str, line: int, missing: list[Unknown], depth: int) -> int:
        """A variable as a number; a name in it is looked up again, as bash does."""
        value = self.value(name, line)
        if isinstance(value, dict):
            value = value[0].text if 0 in value else ""
        if value is None:
            missing.append(Unknown(f"${name}", line, (name,), plain=True))
            return 0
        if unknown := self.unknowns.of(value):
            missing.extend(unknown)
            return 0
        if depth > 8:
            raise NotArithmetic(f"{name} refers to itself")
        return evaluate(value, lambda other: self._number(other, line, missing, depth + 1), lambda *_: None)

    def spend(self, amount: int) -> None:
        self.work += amount
        if self.work > MAX_WORK:
            raise TooMuch("expanding its words takes too long")

    # ---- state

    def remark(self, kind: str, line: int, text: str) -> None:
        found = Remark(kind, line, text if len(text) <= 160 else f"{text[:157]}...")
        if found not in self.remarks:
            self.remarks.append(found)

    def _saved(self) -> tuple[_Variables, dict[str, tuple[Node, bytes]], list[Word]]:
        self.spend(8 * len(self.variables))
        return self._copied(), dict(self.functions), list(self.positional)

    def _copied(self) -> _Variables:
        self.spend(sum(len(value) for value in self.variables.values() if isinstance(value, dict)))
        return {name: dict(value) if isinstance(value, dict) else value for name, value in self.variables.items()}

    def _restore(self, saved: tuple[_Variables, dict[str, tuple[Node, bytes]], list[Word]]) -> None:
        self.variables, self.functions, self.positional = saved

    def branches(self, bodies: Sequence[Callable[[], Outcome]], unknown: tuple[Unknown, ...], line: int) -> Outcome:
        """Reads every body as if it ran, and keeps of the variables what all agree on. A body that ends the script
        is no way to what comes after it."""
        start, outer = self._saved(), self.only_if
        self.only_if = (*outer, *(one for one in unknown if one not in outer))
        ends: list[_Variables] = []
        functions = dict(self.functions)
        leaving: Exception | None = None
        for body in bodies:
            self._restore(copy.copy(start))
            self.variables = {n: dict(v) if isinstance(v, dict) else v for n, v in start[0].items()}
            try:
                body()
            except (_Exit, _Return, _Loop) as left:
                leaving = left
            else:
                ends.append(self.variables)
                functions |= self.functions
        self.only_if = outer
        if not ends:
            assert leaving is not None
            raise leaving
        self.functions = functions
        given = tuple(dict.fromkeys(name for one in unknown for name in one.given))
        merged: _Variables = {}
        for name in dict.fromkeys(name for end in ends for name in end):
            values = [end.get(name) for end in ends]
            first = values[0]
            if first is not None and all(value == first for value in values):
                merged[name] = first
            else:
                merged[name] = self.unknowns.mark(Unknown(f"${name}", line, given))
        self.variables = merged
        return Outcome(None, unknown)

    # ---- statements

    def run_text(self, text: str, base: int) -> Outcome:
        """Runs a script; `base` lines stand before its first."""
        source = text.encode("utf-8", "replace")
        self.spend(len(source) * 4)
        before = self.source, self.base
        self.source, self.base = source, base
        try:
            root = _parse(source)
            if root.has_error:
                self._errors(root)
            return self.block(root.children)
        finally:
            self.source, self.base = before

    def _errors(self, root: Node) -> None:
        """Says where the grammar gave up; a lone backslash at the end of a line or file is nothing."""
        left = [root]
        while left and len(self.remarks) < 20:
            node = left.pop()
            if node.is_missing:
                self.remark("not_read", self.at(node), f"a {node.type} is missing")
            elif node.type == "ERROR":
                shown = " ".join(self.raw(node).replace("\\", " ").split())
                if shown:
                    self.remark("not_read", self.at(node), f"{shown[:40]} is not understood as bash")
            elif node.type != "expansion":  # ${...} is read by `shell_words`, whatever the grammar thinks of its inside
                left += [child for child in reversed(node.children) if child.has_error or child.is_missing]

    def at(self, node: Node) -> int:
        return self.base + 1 + node.start_point[0]

    def raw(self, node: Node) -> str:
        return self.source[node.start_byte : node.end_byte].decode("utf-8", "replace")

    def block(self, nodes: Sequence[Node]) -> Outcome:
        outcome = _DONE
        for node in nodes:
            if node.is_named and node.type not in ("comment", "ERROR"):  # errors: see `_errors`
                outcome = self.run(node)
        return outcome

    def run(self, node: Node) -> Outcome:
        self.spend(8)
        self.depth += 1
        self.line = self.at(node)
        if self.depth > MAX_DEPTH:
            self.depth = 0
            raise TooMuch(f"nested deeper than {MAX_DEPTH}")
        try:
            act = _STATEMENTS.get(node.type)
            if act is None:
                shown = " ".join(self.raw(node).split())[:40]
                self.remark("not_read", self.at(node), f"{shown}: a {node.type.replace('_', ' ')} is not read")
                return _ASSUMED
            return act(self, node)
        except NotBash as reason:
            self.remark("not_read", self.at(node), str(reason))
            return _ASSUMED
        finally:
            self.depth = max(self.depth - 1, 0)

    def _compound(self, node: Node) -> Outcome:
        if self.raw(node).startswith("(("):
            return self._nonzero(self.raw(node)[2:-2], self.at(node))
        return self.block(node.children)

    def _nonzero(self, text: str, line: int) -> Outcome:
        value = self.arithmetic(text, line)
        if unknown := self.unknowns.of(value):
            return Outcome(None, unknown)
        return Outcome(value != "0")

    def _subshell(self, node: Node) -> Outcome:
        saved = self._saved()
        try:
            return self.block(node.children)
        except _Exit:
            return _ASSUMED
        finally:
            self._restore(saved)

    def _list(self, node: Node) -> Outcome:
        parts = [child for child in node.children if child.is_named and child.type not in ("comment", "ERROR")]
        if len(parts) != 2:
            raise NotBash("a list of commands is not read")
        left, right = parts
        both = any(child.type == "&&" for child in node.children)
        outcome = self.run(left)
        value = True if outcome.assumed else outcome.value
        if value is None:
            self.branches([lambda: self.run(right), lambda: _DONE], outcome.unknown, self.at(node))
            return Outcome(None, outcome.unknown)
        return self.run(right) if value == both else outcome

    def _pipeline(self, node: Node) -> Outcome:
        parts = [child for child in node.children if child.is_named and child.type != "comment"]
        self.decided_output = False
        for part in parts:
            saved = self._saved()
            try:
                self.run(part)
            except _Exit:
                pass
            finally:
                self._restore(saved)
        return _ASSUMED

    def _negated(self, node: Node) -> Outcome:
        outcome = self.block(node.children)
        if outcome.assumed or outcome.value is None:
            return Outcome(None, outcome.unknown or (self._exit_status(node),))
        return Outcome(not outcome.value)

    def _exit_status(self, node: Node) -> Unknown:
        return Unknown(" ".join(self.raw(node).split())[:40], self.at(node))

    def _redirected(self, node: Node) -> Outcome:
        body = node.child_by_field_name("body")
        document: str | None = None
        extra: list[Node] = []
        pipes: list[Node] = []
        for child in node.children:
            if child.type == "heredoc_redirect":
                document = self._document(child)
                for part in child.children:
                    if part.type in ("pipeline", "list", "command"):
                        pipes.append(part)
                    elif part.type == "file_redirect":
                        extra += _beyond(part)
                    elif part.type in _WORDS and part.start_byte > child.start_byte + 2:
                        extra.append(part)
            elif child.type == "file_redirect":
                extra += _beyond(child)
                self.decided_output = False
        if body is None:
            return _DONE
        outcome = self._command(body, extra, document) if body.type == "command" else self.run(body)
        for pipe in pipes:
            outcome = self.block(pipe.children) if pipe.type != "command" else self.run(pipe)
            self.decided_output = False
        return outcome

    def _document(self, node: Node) -> str:
        start = next((child for child in node.children if child.type == "heredoc_start"), None)
        body = next((child for child in node.children if child.type == "heredoc_body"), None)
        if start is None or body is None:
            return ""
        text = self.raw(body)
        if "<<-" in self.raw(node)[:4]:
            text = "\n".join(line.lstrip("\t") for line in text.split("\n"))
        quoted = any(mark in self.raw(start) for mark in "'\"\\")
        return text if quoted else heredoc(text, self.at(body), self)

    def _if(self, node: Node) -> Outcome:
        condition, body, rest = _clauses(node)
        return self._choose(node, condition, body, rest)

    def _choose(self, node: Node, condition: list[Node], body: list[Node], rest: list[Node]) -> Outcome:
        outcome = self.block(condition)
        if outcome.assumed:
            outcome = Outcome(None, (self._exit_status(condition[0]),) if condition else ())
        if outcome.value is True:
            return self.block(body)
        if outcome.value is False:
            return self._otherwise(rest)
        return self.branches([lambda: self.block(body), lambda: self._otherwise(rest)], outcome.unknown, self.at(node))

    def _otherwise(self, rest: list[Node]) -> Outcome:
        if not rest:
            return _DONE
        first, *others = rest
        if first.type == "else_clause":
            return self.block(first.children)
        condition, body, _ = _clauses(first)
        return self._choose(first, condition, body, others)

    def _for(self, node: Node) -> Outcome:
        name_node = node.child_by_field_name("variable")
        body = node.child_by_field_name("body")
        if name_node is None or body is None:
            raise NotBash("a for loop is not read")
        name, line = self.raw(name_node), self.at(node)
        listed = any(child.type == "in" for child in node.children)
        raws = [child for child in node.children if child.type in _WORDS and child.start_byte > name_node.end_byte]
        raws = [child for child in raws if child.end_byte <= body.start_byte]
        words = self._expanded(raws) if listed else list(self.positional)
        unknown = tuple(one for word in words for one in self.unknowns.of(word.text))
        if unknown:
            return self._unknown_turns(name, unknown, body, line)
        return self._turns(({name: word.text} for word in words), body)

    def _turns(self, turns: Iterator[dict[str, str]], body: Node) -> Outcome:
        for number, variables in enumerate(turns):
            if number >= MAX_TURNS:
                raise TooMuch(f"a loop has more than {MAX_TURNS:,} turns")
            self.variables.update(variables)
            try:
                self.block(body.children)
            except _Loop as left:
                if left.levels > 1:
                    raise _Loop(left.name, left.levels - 1) from None
                if left.name == "break":
                    break
        return _DONE

    def _unknown_turns(self, name: str | None, unknown: tuple[Unknown, ...], body: Node, line: int) -> Outcome:
        """A loop whose turns are not decided: one turn is read, in which every variable that it sets is unknown."""
        given = tuple(dict.fromkeys(one_name for one in unknown for one_name in one.given))

        def forget() -> None:
            for changed in {*_assigned(body, self.raw), *([name] if name else [])}:
                self.variables[changed] = self.unknowns.mark(Unknown(f"${changed}", line, given))

        def turn() -> Outcome:
            forget()
            with contextlib.suppress(_Loop):
                self.block(body.children)
            forget()
            return _DONE

        return self.branches([turn, lambda: _DONE], unknown, line)

    def _c_for(self, node: Node) -> Outcome:
        body, line = node.child_by_field_name("body"), self.at(node)
        head = self.raw(node)
        start, end = head.find("(("), head.find("))")
        parts = head[start + 2 : end].split(";")
        if body is None or len(parts) != 3 or start < 0:
            raise NotBash("a for loop is not read")
        if unknown := self.unknowns.of(self.arithmetic(parts[0], line)):
            return self._unknown_turns(None, unknown, body, line)
        for _ in range(MAX_TURNS):
            going = self._nonzero(parts[1], line) if parts[1].strip() else _DONE
            if going.value is None:
                return self._unknown_turns(None, going.unknown, body, line)
            if not going.value:
                return _DONE
            try:
                self.block(body.children)
            except _Loop as left:
                if left.levels > 1:
                    raise _Loop(left.name, left.levels - 1) from None
                if left.name == "break":
                    return _DONE
            self.arithmetic(parts[2], line)
        raise TooMuch(f"a loop has more than {MAX_TURNS:,} turns")

    def _while(self, node: Node) -> Outcome:
        body, line = node.child_by_field_name("body"), self.at(node)
        if body is None:
            raise NotBash("a loop is not read")
        condition = [child for child in node.children if child.is_named and child.end_byte <= body.start_byte]
        until = self.raw(node).startswith("until")
        for _ in range(MAX_TURNS):
            going = self.block(condition)
            if going.value is None:
                unknown = going.unknown or (self._exit_status(node),)
                return self._unknown_turns(None, unknown, body, line)
            if going.value == until:
                return _DONE
            try:
                self.block(body.children)
            except _Loop as left:
                if left.levels > 1:
                    raise _Loop(left.name, left.levels - 1) from None
                if left.name == "break":
                    return _DONE
        raise TooMuch(f"a loop has more than {MAX_TURNS:,} turns")

    def _case(self, node: Node) -> Outcome:
        subject_node = node.child_by_field_name("value")
        if subject_node is None:
            raise NotBash("a case is not read")
        line = self.at(node)
        subject = single(self.raw(subject_node), line, self)
        items = [child for child in node.children if child.type == "case_item"]
        if unknown := self.unknowns.of(subject):
            bodies = [self._item_body(item) for item in items]
            return self.branches([*bodies, lambda: _DONE], unknown, line)
        for item in items:
            for shape in self._patterns(item):
                wanted = pattern(shape, line, self)
                if unknown := self.unknowns.of(wanted):
                    bodies = [self._item_body(other) for other in items]
                    return self.branches([*bodies, lambda: _DONE], unknown, line)
                if matcher(wanted)(subject):
                    return self._item_body(item)()
        return _DONE

    def _patterns(self, item: Node) -> list[str]:
        close = next((child for child in item.children if child.type == ")"), None)
        if close is None:
            return []
        return [self.raw(child) for child in item.children if child.is_named and child.end_byte <= close.start_byte]

    def _item_body(self, item: Node) -> Callable[[], Outcome]:
        close = next((child.end_byte for child in item.children if child.type == ")"), item.end_byte)
        nodes = [child for child in item.children if child.start_byte >= close]
        return lambda: self.block(nodes)

    def _function(self, node: Node) -> Outcome:
        name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
        if name is None or body is None:
            raise NotBash("a function is not read")
        self.functions[self.raw(name)] = (body, self.source)
        return _DONE

    # ---- assignments

    def _assignments(self, node: Node) -> Outcome:
        for child in node.children:
            if child.type == "variable_assignment":
                self._assignment(child)
        return _DONE

    def _assignment(self, node: Node) -> Outcome:
        name_node, value = node.child_by_field_name("name"), node.child_by_field_name("value")
        if name_node is None:
            raise NotBash("an assignment is not read")
        line, append = self.at(node), any(child.type == "+=" for child in node.children)
        raw_name = self.raw(name_node)
        name, bracketed, rest = raw_name.partition("[")
        # The grammar ends a value early in rare cases; the whole text up to the node's end is the value.
        raw_value = "" if value is None else self.source[value.start_byte : node.end_byte].decode("utf-8", "replace")
        if value is not None and value.type == "array" and not bracketed:
            self._array(name, value, line, append)
            return _DONE
        text = single(raw_value, line, self)
        if bracketed:
            array = self._as_array(name, line)
            key = index(array, rest.removesuffix("]"), line, self)
            if key is not None:
                old = array[key].text if append and key in array else ""
                array[key] = Word(old + text, line)
                self.variables[name] = array
            else:
                self.variables[name] = self.unknowns.mark(Unknown(f"${name}", line))
        elif append:
            before = self.value(name, line)
            if isinstance(before, dict):
                before[0] = Word((before[0].text if 0 in before else "") + text, line)
            else:
                plain_before = self.unknowns.mark(Unknown(f"${name}", line, (name,), plain=True))
                self.variables[name] = (plain_before if before is None else before) + text
                self.spend(len(str(before)))
        else:
            self.variables[name] = text
        if isinstance(made := self.variables.get(name), str) and len(made) > 1 << 16:
            raise TooMuch("a variable has more than 65,536 characters")
        return _DONE

    def _as_array(self, name: str, line: int) -> Array:
        before = self.value(name, line)
        if isinstance(before, dict):
            return before
        return {0: Word(before, line)} if before else {}

    def _array(self, name: str, node: Node, line: int, append: bool) -> None:
        array: Array = self._as_array(name, line) if append else {}
        place = max((key for key in array if isinstance(key, int)), default=-1) + 1
        for raw, at in self._raw_words([child for child in node.children if child.type in _WORDS]):
            if raw.startswith("[") and "]=" in raw:
                subscript, _, value = raw[1:].partition("]=")
                text = single(value, at, self)
                number = subscript.strip()
                if number.isascii() and number.isdigit() and len(number) < 7:
                    place = int(number)
                    array[place] = Word(text, at)
                    place += 1
                else:
                    array[single(subscript, at, self)] = Word(text, at)
                continue
            self.spend(16)
            for word in fields(raw, at, self):
                array[place] = word
                place += 1
        self.variables[name] = array

    def _declaration(self, node: Node) -> Outcome:
        local = self.in_function and self.raw(node).startswith(("local", "declare", "typeset"))
        associative = any(
            child.type == "word" and self.raw(child).startswith("-") and "A" in self.raw(child)
            for child in node.children
        )
        for child in node.children:
            if child.type == "variable_assignment":
                name_node = child.child_by_field_name("name")
                if local and name_node is not None:
                    self._keep(self.raw(name_node))
                self._assignment(child)
            elif child.type == "variable_name":
                name = self.raw(child)
                if local:
                    self._keep(name)
                if local or associative:
                    self.variables[name] = {} if associative else ""
        return _DONE

    def _keep(self, name: str) -> None:
        """Remembers what a function's local variable hides."""
        if self.locals and name not in self.locals[-1]:
            hidden = self.variables.get(name)
            self.locals[-1][name] = _HIDDEN if hidden is None else hidden

    def _unset(self, node: Node) -> Outcome:
        for child in node.children:
            if child.type in ("variable_name", "word"):
                self.variables[self.raw(child)] = ""  # the environment's value is gone, too
        return _DONE

    # ---- commands

    def _raw_words(self, nodes: Sequence[Node]) -> list[tuple[str, int]]:
        """The raw words of `nodes`; nodes that touch are one word."""
        found: list[tuple[int, int, int]] = []
        for node in nodes:
            if found and self.source[found[-1][1] : node.start_byte] in (b"", b"\\\n"):
                found[-1] = (found[-1][0], node.end_byte, found[-1][2])
            else:
                found.append((node.start_byte, node.end_byte, self.at(node)))
        return [(self.source[start:end].decode("utf-8", "replace"), line) for start, end, line in found]

    def _expanded(self, nodes: Sequence[Node]) -> list[Word]:
        return [word for raw, line in self._raw_words(nodes) for word in fields(raw, line, self)]

    def _plain_command(self, node: Node) -> Outcome:
        return self._command(node, [], None)

    def _command(self, node: Node, extra: Sequence[Node], document: str | None) -> Outcome:
        line = self.at(node)
        nodes: list[Node] = []
        for child in node.children:
            if child.type == "variable_assignment":
                # FOO=1 program: for the program only; its value may set nothing here.
                continue
            if child.type == "command_name":
                nodes += child.children or [child]
            elif child.type == "file_redirect":
                nodes += _beyond(child)
            elif child.type in _WORDS:
                nodes.append(child)
        words = self._expanded([*nodes, *extra])
        prefix = [child for child in node.children if child.type == "variable_assignment"]
        if not words:
            for child in prefix:
                self._assignment(child)
            return _DONE
        if prefix and words[0].text in (*self.functions, "bash", "sh", "eval"):
            saved = self._copied()
            for child in prefix:
                self._assignment(child)
            try:
                return self.execute(words, line, document)
            finally:
                self.variables = saved
        return self.execute(words, line, document)

    def execute(self, words: list[Word], line: int, document: str | None = None) -> Outcome:
        """Runs what the shell itself does, and records everything else."""
        name, arguments = words[0].text, words[1:]
        if name in self.functions:
            return self._call(name, arguments, line)
        act = _BUILTINS.get(name)
        if act is not None:
            return act(self, words, line, document)
        if name in ("bash", "sh", "/bin/bash", "/bin/sh"):
            return self._nested(words, line, document)
        self.record(words, line)
        return _ASSUMED

    def record(self, words: list[Word], line: int) -> None:
        if len(self.commands) >= MAX_COMMANDS:
            raise TooMuch(f"more than {MAX_COMMANDS:,} commands")
        self.decided_output = False
        shown = tuple(
            Argument(self.unknowns.shown(word.text), word.line, self.unknowns.of(word.text)) for word in words
        )
        self.spend(sum(len(word.text) for word in shown))
        name = words[0].text
        if name.startswith("--") or ("=" in name and "." in name.partition("=")[0] and "/" not in name):
            text = f"{shown[0].text} runs as a command of its own: the line before it ends without a backslash"
            self.remark("stray", line, text)
        self.commands.append(Command(shown, line, self.only_if))

    def _call(self, name: str, arguments: list[Word], line: int) -> Outcome:
        body, source = self.functions[name]
        before = self.positional, self.source, self.base
        self.positional, self.in_function = arguments, self.in_function + 1
        self.locals.append({})
        self.source = source
        try:
            return self.run(body)
        except _Return:
            return _ASSUMED
        finally:
            for kept, value in self.locals.pop().items():
                if value is _HIDDEN:
                    self.variables.pop(kept, None)
                else:
                    self.variables[kept] = value
            self.in_function -= 1
            self.positional, self.source, self.base = before

    def _nested(self, words: list[Word], line: int, document: str | None) -> Outcome:
        """`bash -c TEXT`, `bash <<EOF`; a script file is not opened."""
        options = [word for word in words[1:] if word.text.startswith("-")]
        rest = words[1 + len(options) :]
        inline = any(option.text[1:2] != "-" and "c" in option.text for option in options)
        code = rest[0] if inline and rest else Word(document, line) if document is not None and not rest else None
        if code is None or self.unknowns.of(code.text):
            if not inline and rest:
                self.remark("source", line, f"{words[0].text} {self.unknowns.shown(rest[0].text)} is not followed")
            elif code is not None:
                shown = self.unknowns.shown(code.text)[:60]
                self.remark("not_read", line, f"{words[0].text} runs text that is not decided: {shown}")
            self.record(words, line)
            return _ASSUMED
        saved, zero = self._saved(), self.zero
        self.positional, self.zero = rest[2:], rest[1].text if len(rest) > 1 else words[0].text
        try:
            self.run_text(code.text, code.line - 1)
        except _Exit:
            pass
        finally:
            self.zero = zero
            self._restore(saved)
        return _ASSUMED

    # ---- builtins

    def _nothing(self, words: list[Word], line: int, document: str | None) -> Outcome:
        return Outcome(words[0].text != "false")

    def _ignored(self, words: list[Word], line: int, document: str | None) -> Outcome:
        return _ASSUMED

    def _echo(self, words: list[Word], line: int, document: str | None) -> Outcome:
        if self.captured is None:
            return _DONE
        arguments = [word.text for word in words[1:]]
        end = "\n"
        while arguments and arguments[0] in ("-n", "-e", "-ne", "-en"):
            option = arguments.pop(0)
            end = "" if "n" in option else end
            if "e" in option and any("\\" in text for text in arguments):
                self.decided_output = False
        self.captured.append(" ".join(arguments) + end)
        return _DONE

    def _cat(self, words: list[Word], line: int, document: str | None) -> Outcome:
        if self.captured is not None and document is not None and len(words) == 1:
            self.captured.append(document)
            return _DONE
        self.record(words, line)
        return _ASSUMED

    def _printf(self, words: list[Word], line: int, document: str | None) -> Outcome:
        if len(words) > 2 and words[1].text == "-v":
            self.variables[words[2].text] = self.unknowns.mark(Unknown(f"${words[2].text}", line))
        self.decided_output = False
        return _DONE

    def _seq(self, words: list[Word], line: int, document: str | None) -> Outcome:
        numbers = [word.text for word in words[1:]]
        whole = all(number.removeprefix("-").isdigit() and len(number) < 10 for number in numbers)
        if self.captured is None or not whole or not 1 <= len(numbers) <= 3:
            self.record(words, line)
            return _ASSUMED
        first, step, last = {1: ("1", "1", numbers[0]), 2: (numbers[0], "1", numbers[-1])}.get(len(numbers), numbers)
        stride = int(step) or 1
        counted = range(int(first), int(last) + (1 if stride > 0 else -1), stride)
        self.spend(len(counted) * 4)
        self.captured.extend(f"{number}\n" for number in counted)
        return _DONE

    def _test(self, words: list[Word], line: int, document: str | None) -> Outcome:
        texts = [word.text for word in words[1:]]
        if words[0].text == "[" and texts:
            texts.pop()
        return plain(texts, line, self)

    def _let(self, words: list[Word], line: int, document: str | None) -> Outcome:
        outcome = _DONE
        for word in words[1:]:
            outcome = self._nonzero(word.text, line)
        return outcome

    def _leave(self, words: list[Word], line: int, document: str | None) -> Outcome:
        name = words[0].text
        if name == "exit":
            raise _Exit(line)
        if name == "return":
            raise _Return
        levels = words[1].text if len(words) > 1 else "1"
        raise _Loop(name, int(levels[:3]) if levels.isascii() and levels.isdigit() else 1)

    def _shift(self, words: list[Word], line: int, document: str | None) -> Outcome:
        count = words[1].text if len(words) > 1 else "1"
        if count.isascii() and count.isdigit():
            self.positional = self.positional[int(count[:6]) :]
        return _DONE

    def _set(self, words: list[Word], line: int, document: str | None) -> Outcome:
        texts = [word.text for word in words]
        if "--" in texts:
            self.positional = words[texts.index("--") + 1 :]
        return _DONE

    def _read(self, words: list[Word], line: int, document: str | None) -> Outcome:
        for word in words[1:]:
            if word.text.isidentifier():
                self.variables[word.text] = self.unknowns.mark(Unknown(f"${word.text}", line))
        return _ASSUMED

    def _eval(self, words: list[Word], line: int, document: str | None) -> Outcome:
        text = " ".join(word.text for word in words[1:])
        if self.unknowns.of(text):
            self.remark("not_read", line, f"eval runs text that is not decided: {self.unknowns.shown(text)[:60]}")
            return _ASSUMED
        self.depth += 1
        return self.run_text(text, line - 1)

    def _source(self, words: list[Word], line: int, document: str | None) -> Outcome:
        self.decided_output = False
        shown = self.unknowns.shown(" ".join(word.text for word in words[1:2]))
        self.remark("source", line, f"{words[0].text} {shown} is not followed")
        return _ASSUMED

    def _exec(self, words: list[Word], line: int, document: str | None) -> Outcome:
        if len(words) == 1:
            return _DONE
        self.execute(words[1:], line, document)
        raise _Exit(line)

    def _builtin(self, words: list[Word], line: int, document: str | None) -> Outcome:
        if len(words) == 1 or words[1].text.startswith("-"):
            return _ASSUMED
        return self.execute(words[1:], line, document)

    def _bracketed(self, node: Node) -> Outcome:
        raw = self.raw(node)
        if raw.startswith("(("):
            return self._nonzero(raw[2:-2], self.at(node))
        return bracket(raw, self.at(node), self)


_HIDDEN = "\0hidden\0"
"""Stands in `locals` for a variable that was not set."""

_WORDS = frozenset(
    {
        *("word", "string", "raw_string", "ansi_c_string", "translated_string", "concatenation", "number"),
        *("simple_expansion", "expansion", "command_substitution", "arithmetic_expansion", "brace_expression"),
        *("process_substitution", "extglob_pattern", "regex", "array", "$", "test_operator", "==", "=", "!="),
        *("variable_name", "special_variable_name", "file_descriptor", "=~"),
    }
)
_STATEMENTS: Mapping[str, Callable[[_Shell, Node], Outcome]] = {
    "command": _Shell._plain_command,
    "compound_statement": _Shell._compound,
    "do_group": _Shell._compound,
    "subshell": _Shell._subshell,
    "list": _Shell._list,
    "pipeline": _Shell._pipeline,
    "negated_command": _Shell._negated,
    "redirected_statement": _Shell._redirected,
    "if_statement": _Shell._if,
    "for_statement": _Shell._for,
    "c_style_for_statement": _Shell._c_for,
    "while_statement": _Shell._while,
    "case_statement": _Shell._case,
    "function_definition": _Shell._function,
    "variable_assignment": _Shell._assignment,
    "variable_assignments": _Shell._assignments,
    "declaration_command": _Shell._declaration,
    "unset_command": _Shell._unset,
    "test_command": _Shell._bracketed,
}
_BUILTINS: Mapping[str, Callable[[_Shell, list[Word], int, str | None], Outcome]] = {
    **dict.fromkeys(("true", ":", "false"), _Shell._nothing),
    **dict.fromkeys(("cd", "pushd", "popd", "trap", "wait", "sleep", "umask", "ulimit", "shopt"), _Shell._ignored),
    **dict.fromkeys(("exit", "return", "break", "continue"), _Shell._leave),
    **dict.fromkeys(("read", "mapfile", "readarray", "getopts"), _Shell._read),
    **dict.fromkeys(("test", "["), _Shell._test),
    **dict.fromkeys(("source", "."), _Shell._source),
    **dict.fromkeys(("command", "builtin"), _Shell._builtin),
    "cat": _Shell._cat,
    "echo": _Shell._echo,
    "eval": _Shell._eval,
    "exec": _Shell._exec,
    "let": _Shell._let,
    "printf": _Shell._printf,
    "seq": _Shell._seq,
    "set": _Shell._set,
    "shift": _Shell._shift,
}


def _parse(source: bytes) -> Node:
    import tree_sitter
    import tree_sitter_bash

    language = tree_sitter.Language(tree_sitter_bash.language())
    return tree_sitter.Parser(language).parse(source).root_node


def _beyond(redirect: Node) -> list[Node]:
    """The grammar counts every word after `> file` to the redirection; only the first is its destination."""
    words = [child for child in redirect.children if child.type in _WORDS and child.type != "file_descriptor"]
    first = words[:1]
    while len(words) > len(first) and words[len(first)].start_byte == first[-1].end_byte:
        first.append(words[len(first)])
    return words[len(first) :]


def _clauses(node: Node) -> tuple[list[Node], list[Node], list[Node]]:
    """(condition, body, elif and else clauses) of an `if` or `elif`."""
    then = next((child for child in node.children if child.type == "then"), None)
    if then is None:
        raise NotBash("an if is not read")
    rest = [child for child in node.children if child.type in ("elif_clause", "else_clause")]
    condition = [child for child in node.children if child.end_byte <= then.start_byte]
    body = [child for child in node.children if child.start_byte >= then.end_byte and child not in rest]
    return condition, body, rest


def _assigned(node: Node, raw: Callable[[Node], str]) -> set[str]:
    """Every variable that something inside `node` sets."""
    found, left = set(), [node]
    while left:
        one = left.pop()
        if one.type == "variable_assignment" and (name := one.child_by_field_name("name")) is not None:
            found.add(raw(name).partition("[")[0])
        left += one.children
    return found
