"""Simple commands: what they become after expansion, and who runs them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from bashread.assignments import assign
from bashread.builtins import BUILTINS, Builtin
from bashread.state import PYTHON_PATH, ExitLeft, ReturnLeft, Shell
from bashread.syntax import WORDS, assignments, beyond
from bashread.values import ASSUMED, DONE, NotBash, Outcome, Word
from bashread.words import single

if TYPE_CHECKING:
    from tree_sitter import Node


def command(shell: Shell, node: Node, extra: Sequence[Node] = (), document: Word | None = None) -> Outcome:
    """Runs a simple command; extra: words of it that the grammar put elsewhere. document: its input."""
    line = shell.at(node)
    prefix, rest = assignments(node.children)
    nodes: list[Node] = []
    for child in rest:
        if child.type == "command_name":
            nodes += child.children or [child]
        elif child.type == "file_redirect":
            nodes += beyond(child)
        elif child.type == "herestring_redirect":
            document = here_string(shell, child)
        elif child.type in WORDS:
            nodes.append(child)
    words = shell.expanded([*nodes, *extra])
    # FOO=1 program: for the program only.
    if not words:
        for child, end in prefix:
            assign(shell, child, end)
        return DONE
    own_path = any(shell.raw(child).startswith(f"{PYTHON_PATH}=") for child, _ in prefix)
    name = words[0].text
    if own_path or (prefix and (name in (*shell.functions, "bash", "sh", "eval") or _is_script(name))):
        saved, exported = shell.copied(), shell.exported
        for child, end in prefix:
            assign(shell, child, end)
        shell.exported = exported | {shell.raw(child).partition("=")[0] for child, _ in prefix}
        try:
            return execute(shell, words, line, document)
        finally:
            shell.variables, shell.exported = saved, exported
    before = shell.prefix
    shell.prefix = {**before, **_assigned(shell, [child for child, _ in prefix])}
    try:
        return execute(shell, words, line, document)
    finally:
        shell.prefix = before


def here_string(shell: Shell, node: Node) -> Word | None:
    """The text of `<<< WORD`."""
    line, words = shell.at(node), [child for child in node.children if child.type in WORDS]
    return Word(single(shell.raw(words[0]), line, shell) + "\n", line) if len(words) == 1 else None


def _assigned(shell: Shell, nodes: Sequence[Node]) -> dict[str, str]:
    """The values of assignments that hold for one command, by name; each of them knows those before it."""
    found, outside = dict[str, str](), shell.variables
    shell.variables = shell.copied()
    try:
        for node in nodes:
            name, _, value = shell.raw(node).partition("=")
            if name.isidentifier():
                found[name] = single(f"{name}={value}", shell.at(node), shell).removeprefix(f"{name}=")
                shell.variables[name] = found[name]
    finally:
        shell.variables = outside
    return found


def execute(shell: Shell, words: list[Word], line: int, document: Word | None = None) -> Outcome:
    """Runs what the shell itself does, and records everything else."""
    name, arguments = words[0].text, words[1:]
    if name in shell.functions:
        return _call(shell, name, arguments, line)
    return _outside(shell, words, line, document)


def _outside(shell: Shell, words: list[Word], line: int, document: Word | None) -> Outcome:
    """Runs what is not a function of the script."""
    name = words[0].text
    act = _RUNNERS.get(name) or BUILTINS.get(name)
    if act is not None:
        return act(shell, words, line, document)
    if _is_script(name) and not shell.unknowns.of(name) and shell.beside(name) is not None:
        return _nested(shell, [Word("bash", line), *words], line, document)
    shell.record(words, line, document)
    return ASSUMED


def _is_script(name: str) -> bool:
    """Whether a command is a script by its path: ./train.sh."""
    return "/" in name and name.endswith((".sh", ".bash"))


def _call(shell: Shell, name: str, arguments: list[Word], line: int) -> Outcome:
    body, source, of_another_file = shell.functions[name]
    before, of_line = (shell.positional, shell.source, shell.base), shell.source_line
    shell.positional, shell.in_function = arguments, shell.in_function + 1
    shell.locals.append({})
    shell.source, shell.source_line = source, (of_line or line) if of_another_file else None
    try:
        return shell.enclosed(lambda: shell.run(body), ReturnLeft)
    finally:
        for kept, value in shell.locals.pop().items():
            if value is None:
                shell.variables.pop(kept, None)
            else:
                shell.variables[kept] = value
        shell.in_function -= 1
        (shell.positional, shell.source, shell.base), shell.source_line = before, of_line


def _nested(shell: Shell, words: list[Word], line: int, document: Word | None) -> Outcome:
    """The commands `bash -c TEXT`, `bash <<EOF` and `bash FILE`, whose file is read where it is given."""
    inline, rest = False, words[1:]
    while rest and rest[0].text[:1] in ("-", "+"):
        option = rest[0].text
        inline |= option[1:2] != "-" and "c" in option
        rest = rest[2 if option in ("-o", "+o", "-O", "+O", "--rcfile", "--init-file") else 1 :]
        if option in ("-", "--"):
            break
    named = rest[0].text if rest and not inline and not shell.unknowns.of(rest[0].text) else ""
    script = shell.beside(named) if named else None
    code = rest[0] if inline and rest else document if not rest else None
    if script is None and (code is None or not _readable(shell, code.text)):
        if not inline and rest:
            shell.remark("source", line, f"{words[0].text} {shell.unknowns.shown(rest[0].text)} is not followed")
        elif code is not None:
            shown = shell.unknowns.shown(code.text)[:60]
            shell.remark("not_read", line, f"{words[0].text} runs text that is not decided: {shown}")
        shell.record(words, line, document)
        return ASSUMED

    def run() -> Outcome:
        if script is not None:
            from bashread.sourced import followed

            shell.positional, shell.functions = [], {}
            return followed(shell, named, script, rest[1:], line)
        assert code is not None
        shell.run_text(shell.unknowns.written(code.text), code.line - 1)
        return ASSUMED

    zero = shell.zero
    with shell.subshell():
        shell.variables = {name: value for name, value in shell.variables.items() if name in (*shell.exported, "IFS")}
        if script is None:
            shell.positional, shell.zero = rest[2:], rest[1].text if len(rest) > 1 else words[0].text
        try:
            return shell.enclosed(run, ExitLeft)
        finally:
            shell.zero = zero


def _eval(shell: Shell, words: list[Word], line: int, document: Word | None) -> Outcome:
    text = " ".join(word.text for word in words[1:])
    if not _readable(shell, text):
        shell.remark("not_read", line, f"eval runs text that is not decided: {shell.unknowns.shown(text)[:60]}")
        shell.record([words[0], Word(text, line)], line)  # for whoever reads on
        return ASSUMED
    return shell.run_text(shell.unknowns.written(text), line - 1)


def _readable(shell: Shell, text: str) -> bool:
    """Whether a text is that of a command though something in it is not decided: no command begins with that."""
    return not re.search(r"(?:^|[;&|({`\n]|\b(?:do|then|else)\b)\s*(?:\w+=\S*\s+)*\S*\0", text)


def _exec(shell: Shell, words: list[Word], line: int, document: Word | None) -> Outcome:
    rest = words[3 if len(words) > 1 and words[1].text == "-a" else 1 :]
    if not rest:
        return DONE
    raise ExitLeft(line, _outside(shell, rest, line, document))


def _builtin(shell: Shell, words: list[Word], line: int, document: Word | None) -> Outcome:
    if len(words) == 1 or words[1].text.startswith("-"):
        shell.decided_output = False  # the machine decides what `command -v` finds
        return ASSUMED
    return _outside(shell, words[1:], line, document)


def _time(shell: Shell, words: list[Word], line: int, document: Word | None) -> Outcome:
    rest = words[1 + (len(words) > 1 and words[1].text == "-p") :]
    if rest and rest[0].text == "{":
        raise NotBash("time { is not read")
    return execute(shell, rest, line, document) if rest else DONE


_RUNNERS: Mapping[str, Builtin] = {
    **dict.fromkeys(("bash", "sh", "/bin/bash", "/bin/sh"), _nested),
    **dict.fromkeys(("command", "builtin"), _builtin),
    "eval": _eval,
    "exec": _exec,
    "time": _time,
}
"""Commands that run other commands."""
