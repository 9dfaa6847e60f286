"""The statements of bash: lists, pipes, branches, loops, functions."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from bashread.assignments import assign, assign_all, declare, unset
from bashread.commands import command, here_string
from bashread.conditions import bracket
from bashread.patterns import matcher
from bashread.state import ExitLeft, LoopLeft, Shell, Statements
from bashread.syntax import WORDS, beyond, clauses
from bashread.values import ASSUMED, DONE, NotBash, Outcome, TooManyCommands, Unknown, Word, names_of
from bashread.words import heredoc, pattern, single

if TYPE_CHECKING:
    from tree_sitter import Node

MAX_TURNS = 1000
"""Most turns of one loop."""


def _compound(shell: Shell, node: Node) -> Outcome:
    if shell.raw(node).startswith("(("):
        return shell.nonzero(shell.raw(node)[2:-2], shell.at(node))
    return shell.block(node.children)


def _subshell(shell: Shell, node: Node) -> Outcome:
    if (raw := shell.raw(node)).startswith("((") and raw.endswith("))"):  # the grammar's `! (( ))`
        return shell.nonzero(raw[2:-2], shell.at(node))
    with shell.subshell():
        return shell.enclosed(lambda: shell.block(node.children), ExitLeft)


def _list(shell: Shell, node: Node) -> Outcome:
    parts = [child for child in node.children if child.is_named and child.type not in ("comment", "ERROR")]
    if len(parts) != 2:
        raise NotBash("a list of commands is not read")
    left, right = parts
    both = any(child.type == "&&" for child in node.children)
    outcome = shell.run(left)
    value = True if outcome.assumed else outcome.value
    if value is None:
        shell.branches([lambda: shell.run(right), lambda: DONE], outcome.unknown, shell.at(node))
        return Outcome(None, outcome.unknown)
    return shell.run(right) if value == both else outcome


def _pipeline(shell: Shell, node: Node) -> Outcome:
    parts = [child for child in node.children if child.is_named and child.type != "comment"]
    return _in_turn(shell, parts, None, shell.at(node))


def _in_turn(shell: Shell, parts: Sequence[Node], given: Word | None, line: int) -> Outcome:
    """Runs the programs of a pipe, the first one with the input `given`: the text that one certainly prints is the
    input of the next."""
    printing, decided = shell.captured, shell.decided_output
    outcome = ASSUMED
    for part in parts:
        if (part.child_by_field_name("body") or part).type == "list":  # bash's a && (b | c)
            given, outcome = None, shell.run(part)
            continue
        shell.captured, shell.decided_output = [], True
        try:
            with shell.subshell(), contextlib.suppress(ExitLeft):
                _with_input(shell, part, given)
        finally:
            text, known = "".join(shell.captured), shell.decided_output
            shell.captured = printing
        place = given.line if given is not None and given.text == text else line
        given = Word(text, place) if known else None
    shell.decided_output = decided and given is not None
    if printing is not None and given is not None:
        printing.append(given.text)
    return outcome


def _with_input(shell: Shell, node: Node, given: Word | None) -> None:
    if node.type != "command" or given is None:
        shell.run(node)
        return
    try:
        command(shell, node, (), given)
    except NotBash as reason:
        shell.remark("not_read", shell.at(node), str(reason))


def _negated(shell: Shell, node: Node) -> Outcome:
    outcome = shell.block(node.children)
    if outcome.assumed or outcome.value is None:
        return Outcome(None, outcome.unknown or (_exit_status(shell, node),))
    return Outcome(not outcome.value)


def _exit_status(shell: Shell, node: Node) -> Unknown:
    return Unknown(" ".join(shell.raw(node).split())[:40], shell.at(node))


def _redirected(shell: Shell, node: Node) -> Outcome:
    body = node.child_by_field_name("body")
    document: Word | None = None
    extra: list[Node] = []
    pipes: list[Node] = []
    away = False
    for child in node.children:
        if child.type == "heredoc_redirect":
            document = _document(shell, child)
            for part in child.children:
                if part.type in ("pipeline", "list", "command"):
                    pipes.append(part)
                elif part.type == "file_redirect":
                    extra += beyond(part)
                elif part.type in WORDS and part.start_byte > child.start_byte + 2:
                    extra.append(part)
        elif child.type == "herestring_redirect":
            document = here_string(shell, child)
        elif child.type == "file_redirect":
            extra += beyond(child)
            said = shell.raw(child)
            away = away or _NOWHERE.fullmatch(said) is not None
            shell.decided_output &= away or _ERRORS_NOWHERE.fullmatch(said) is not None
    if body is None:
        return DONE
    with _unseen(shell) if away else contextlib.nullcontext():
        return _of_body(shell, node, body, extra, document, pipes)


_NOWHERE = re.compile(r"(1?>>?|&>>?|>&)\s*/dev/null")
_ERRORS_NOWHERE = re.compile(r"2>>?\s*/dev/null")


@contextlib.contextmanager
def _unseen(shell: Shell) -> Iterator[None]:
    """Output that goes nowhere. Whether a program succeeds stays open, and with it what is printed behind it."""
    before = shell.captured
    shell.captured = None if before is None else []
    try:
        yield
    finally:
        shell.captured = before


def _of_body(
    shell: Shell, node: Node, body: Node, extra: list[Node], document: Word | None, pipes: list[Node]
) -> Outcome:
    if pipes and pipes[0].type == "pipeline" and body.type == "command" and not extra:
        outcome = _in_turn(shell, [body, *_stages(pipes.pop(0))], document, shell.at(node))
    else:
        outcome = command(shell, body, extra, document) if body.type == "command" else shell.run(body)
    for pipe in pipes:
        outcome = shell.block(pipe.children) if pipe.type != "command" else shell.run(pipe)
        shell.decided_output = False
    return outcome


def _stages(node: Node) -> Iterator[Node]:
    """The programs of a pipe behind a here-document, within which the grammar has another pipe."""
    for child in node.children:
        if child.type == "pipeline":
            yield from _stages(child)
        elif child.is_named and child.type != "comment":
            yield child


def _document(shell: Shell, node: Node) -> Word:
    """The text of a here-document, on the line of its first."""
    start = next((child for child in node.children if child.type == "heredoc_start"), None)
    body = next((child for child in node.children if child.type == "heredoc_body"), None)
    if start is None or body is None:
        return Word("", shell.at(node))
    text = shell.source[body.start_byte - body.start_point[1] : body.end_byte].decode("utf-8", "replace")
    if "<<-" in shell.raw(node)[:4]:
        text = "\n".join(line.lstrip("\t") for line in text.split("\n"))
    quoted = any(mark in shell.raw(start) for mark in "'\"\\")
    line = shell.at(body)
    return Word(text if quoted else heredoc(text, line, shell), line)


def _if(shell: Shell, node: Node) -> Outcome:
    condition, body, rest = clauses(node)
    return _choose(shell, node, condition, body, rest)


def _choose(shell: Shell, node: Node, condition: list[Node], body: list[Node], rest: list[Node]) -> Outcome:
    outcome = shell.block(condition)
    if outcome.assumed:
        outcome = Outcome(None, (_exit_status(shell, condition[0]),) if condition else ())
    if outcome.value is True:
        return shell.block(body)
    if outcome.value is False:
        return _otherwise(shell, rest)
    return shell.branches([lambda: shell.block(body), lambda: _otherwise(shell, rest)], outcome.unknown, shell.at(node))


def _otherwise(shell: Shell, rest: list[Node]) -> Outcome:
    if not rest:
        return DONE
    first, *others = rest
    if first.type == "else_clause":
        return shell.block(first.children)
    condition, body, _ = clauses(first)
    return _choose(shell, first, condition, body, others)


def _for(shell: Shell, node: Node) -> Outcome:
    name_node = node.child_by_field_name("variable")
    body = node.child_by_field_name("body")
    if name_node is None or body is None or shell.raw(node).startswith("select"):
        raise NotBash("a for loop is not read")
    name = shell.raw(name_node)
    listed = any(child.type == "in" for child in node.children)
    raws = [child for child in node.children if child.type in WORDS and child.start_byte > name_node.end_byte]
    raws = [child for child in raws if child.end_byte <= body.start_byte]
    words = shell.expanded(raws) if listed else list(shell.positional)
    unknown = tuple(one for word in words for one in shell.unknowns.of(word.text))
    line = shell.at(node)

    def going(turn: int) -> Outcome:
        if unknown:
            shell.variables[name] = shell.unknowns.mark(Unknown(f"${name}", line, names_of(unknown)))
            return Outcome(None, unknown)
        if turn < len(words):
            shell.variables[name] = words[turn].text
        return Outcome(turn < len(words))

    return _turns(shell, node, body, going)


def _turns(shell: Shell, node: Node, body: Node, going: Callable[[int], Outcome]) -> Outcome:
    """A loop that goes on while `going`, asked with the number of the turns before, says so."""
    line, leaves = shell.at(node), any(word in shell.raw(body) for word in ("break", "continue"))

    def open_turn() -> Outcome:
        with shell.rejoined("break", "continue"), contextlib.suppress(LoopLeft):
            shell.block(body.children)
        return DONE

    def and_again() -> Outcome:
        open_turn()
        recorded = len(shell.commands)
        going(1)
        del shell.commands[recorded:]
        return DONE

    for turn in range(MAX_TURNS + 1):
        outcome = going(turn)
        if outcome.value is None:
            return _unknown_turns(shell, and_again, outcome.unknown or (_exit_status(shell, node),), line)
        if not outcome.value:
            return DONE
        if turn == MAX_TURNS:
            break
        before, recorded, broken = shell.saved() if leaves else None, len(shell.commands), False
        outer, shell.ways_out = shell.ways_out, {**shell.ways_out, "break": (), "continue": ()}
        try:
            shell.block(body.children)
        except LoopLeft as left:
            if left.levels > 1:
                raise LoopLeft(left.name, left.levels - 1) from None
            broken = left.name == "break"
        finally:
            open_break, open_next = shell.ways_out["break"], shell.ways_out["continue"]
            shell.ways_out |= {"break": outer["break"], "continue": outer["continue"]}
        if before and (open_break or open_next):  # this turn may end early
            shell.restore(before)
            del shell.commands[recorded:]
            if open_break:
                return _unknown_turns(shell, and_again, open_break, line)
            shell.branches([open_turn, lambda: DONE], open_next, line)
        elif broken:
            return DONE
    raise TooManyCommands(f"a loop has more than {MAX_TURNS:,} turns")


def _unknown_turns(shell: Shell, turn: Callable[[], Outcome], unknown: tuple[Unknown, ...], line: int) -> Outcome:
    """A loop whose turns are not decided: one is read, in which all that a turn changes is unknown."""
    changing: set[str] = set()
    while True:
        for name in changing:
            shell.variables[name] = shell.unknowns.mark(Unknown(f"${name}", line, names_of(unknown)))
        before, recorded = shell.saved(), len(shell.commands)
        shell.branches([turn, lambda: DONE], unknown, line)
        changed = {name for name, value in shell.variables.items() if before[0].get(name) != value}
        if shell.positional != before[2]:
            before = (*before[:2], shell.positional)
            changed.add("@")
        if changed <= changing:
            return Outcome(None, unknown)
        changing |= changed
        shell.restore(before)
        del shell.commands[recorded:]


def _c_for(shell: Shell, node: Node) -> Outcome:
    body, line = node.child_by_field_name("body"), shell.at(node)
    head = "" if body is None else shell.raw(node)[: body.start_byte - node.start_byte]
    parts = head[head.find("((") + 2 : head.rfind("))")].split(";")
    if body is None or len(parts) != 3:
        raise NotBash("a for loop is not read")
    shell.arithmetic(parts[0], line)

    def going(turn: int) -> Outcome:
        if turn:
            shell.arithmetic(parts[2], line)
        return shell.nonzero(parts[1], line) if parts[1].strip() else DONE

    return _turns(shell, node, body, going)


def _while(shell: Shell, node: Node) -> Outcome:
    body = node.child_by_field_name("body")
    if body is None:
        raise NotBash("a loop is not read")
    condition = [child for child in node.children if child.is_named and child.end_byte <= body.start_byte]
    until = shell.raw(node).startswith("until")

    def going(turn: int) -> Outcome:
        outcome = shell.block(condition)
        return outcome if outcome.value is None else Outcome(outcome.value != until)

    return _turns(shell, node, body, going)


def _case(shell: Shell, node: Node) -> Outcome:
    subject_node = node.child_by_field_name("value")
    if subject_node is None:
        raise NotBash("a case is not read")
    line = shell.at(node)
    subject = single(shell.raw(subject_node), line, shell)
    items = [child for child in node.children if child.type == "case_item"]
    if any(child.type in (";&", ";;&") for item in items for child in item.children):
        raise NotBash("a case with ;& is not read")
    unknown = shell.unknowns.of(subject)
    for item, shape in ((one, shape) for one in items for shape in _patterns(shell, one)):
        wanted = pattern(shape, line, shell) if not unknown else ""
        if unknown := unknown or shell.unknowns.of(wanted):
            break
        if matcher(wanted)(subject):
            return _item_body(shell, item)()
    if not unknown:
        return DONE
    return shell.branches([*(_item_body(shell, item) for item in items), lambda: DONE], unknown, line)


def _patterns(shell: Shell, item: Node) -> list[str]:
    close = next((child for child in item.children if child.type == ")"), None)
    if close is None:
        return []
    return [shell.raw(child) for child in item.children if child.is_named and child.end_byte <= close.start_byte]


def _item_body(shell: Shell, item: Node) -> Callable[[], Outcome]:
    close = next((child.end_byte for child in item.children if child.type == ")"), item.end_byte)
    nodes = [child for child in item.children if child.start_byte >= close]
    return lambda: shell.block(nodes)


def _function(shell: Shell, node: Node) -> Outcome:
    name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
    if name is None or body is None:
        raise NotBash("a function is not read")
    shell.functions[shell.raw(name)] = (body, shell.source, shell.source_line is not None)
    return DONE


def _bracketed(shell: Shell, node: Node) -> Outcome:
    raw = shell.raw(node)
    if raw.startswith("(("):
        return shell.nonzero(raw[2:-2], shell.at(node))
    return bracket(raw, shell.at(node), shell)


STATEMENTS: Statements = {
    "command": command,
    "compound_statement": _compound,
    "do_group": _compound,
    "subshell": _subshell,
    "list": _list,
    "pipeline": _pipeline,
    "negated_command": _negated,
    "redirected_statement": _redirected,
    "if_statement": _if,
    "for_statement": _for,
    "c_style_for_statement": _c_for,
    "while_statement": _while,
    "case_statement": _case,
    "function_definition": _function,
    "variable_assignment": assign,
    "variable_assignments": assign_all,
    "declaration_command": declare,
    "unset_command": unset,
    "test_command": _bracketed,
}
