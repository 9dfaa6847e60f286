"""Assignments and declarations of variables and arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bashread.state import PYTHON_PATH, Shell
from bashread.syntax import WORDS, assignments
from bashread.values import DONE, MAX_TEXT, Array, AssociativeArray, NotBash, Outcome, TooManyCommands, Unknown, Word
from bashread.words import array_of, fields, index, single

if TYPE_CHECKING:
    from tree_sitter import Node


def assign_all(shell: Shell, node: Node) -> Outcome:
    for child in node.children:
        if child.type == "variable_assignment":
            assign(shell, child)
    return DONE


def assign(shell: Shell, node: Node, end: int = 0) -> Outcome:
    """The assignment `node`, whose value may end only at `end`."""
    name_node, value = node.child_by_field_name("name"), node.child_by_field_name("value")
    if name_node is None:
        raise NotBash("an assignment is not read")
    raw_name = shell.raw(name_node)
    line, append = shell.at(node), any(child.type == "+=" for child in node.children)
    if value is not None and b"\\" in shell.source[name_node.end_byte : value.start_byte]:
        raise NotBash(f"{raw_name}: where its value begins is not read")
    name, bracketed, rest = raw_name.partition("[")
    start, end = node.end_byte if value is None else value.start_byte, max(end, node.end_byte)
    raw_value = shell.source[start:end].decode("utf-8", "replace")
    if value is not None and value.type == "array" and not bracketed:
        _array(shell, name, value, line, append)
        return DONE
    text = single(f"{name}={raw_value}", line, shell).removeprefix(f"{name}=")  # x=~/a:~/b
    if bracketed:
        array = _as_array(shell, name, line)
        key = index(array, rest.removesuffix("]"), line, shell)
        if key is not None:
            old = array[key].text if append and key in array else ""
            array[key] = Word(old + text, line)
            shell.variables[name] = array
        else:
            shell.variables[name] = shell.unknowns.mark(Unknown(f"${name}", line))
    elif append:
        before = shell.value(name, line)
        if isinstance(before, dict):
            before[0] = Word((before[0].text if 0 in before else "") + text, line)
        else:
            plain_before = shell.unknowns.mark(Unknown(f"${name}", line, (name,), plain=True))
            shell.variables[name] = (plain_before if before is None else before) + text
            shell.spend(len(str(before)))
    elif shell.unknowns.of(text) and name in shell.env:
        shell.variables[name] = shell.env[name]  # whoever reads the script says what only running would tell
    else:
        shell.variables[name] = text
        if name == PYTHON_PATH and name not in raw_value:
            shell.replacing[text] = line
    if isinstance(made := shell.variables.get(name), str) and len(made) > MAX_TEXT:
        raise TooManyCommands(f"a variable has more than {MAX_TEXT:,} characters")
    return DONE


def _as_array(shell: Shell, name: str, line: int) -> Array:
    before = shell.value(name, line)
    return {} if before is None else array_of(before, line, shell)


def _array(shell: Shell, name: str, node: Node, line: int, append: bool) -> None:
    before: Array = _as_array(shell, name, line) if append else {}
    array: Array = {}
    shell.spend(len(before) // 4)
    place = max((key for key in before if isinstance(key, int)), default=-1) + 1
    for raw, at in shell.raw_words([child for child in node.children if child.type in WORDS]):
        if raw.startswith("[") and "]=" in raw:
            subscript, _, value = raw[1:].partition("]=")
            text = single(value, at, shell)
            number = subscript.strip()
            if number.isascii() and number.isdigit() and len(number) < 7:
                place = int(number)
                array[place] = Word(text, at)
                place += 1
            else:
                array[single(subscript, at, shell)] = Word(text, at)
            continue
        shell.spend(16)
        for word in fields(raw, at, shell):
            array[place] = word
            place += 1
    before.update(array)
    shell.variables[name] = before


def declare(shell: Shell, node: Node) -> Outcome:
    local = shell.in_function and shell.raw(node).startswith(("local", "declare", "typeset"))
    made, rest = assignments(node.children)
    words = shell.expanded([child for child in rest if child.type in WORDS and child.type != "variable_name"])
    options = "".join(word.text for word in words if word.text.startswith("-"))
    exports = shell.raw(node).startswith("export")
    if not exports and set(options) & set("nlu"):
        raise NotBash(f"{shell.raw(node)[:40]}: these options are not read")
    if exports or "x" in options:
        names = [*map(shell.raw, node.children), *(word.text for word in words)]
        shell.exported.update(name.partition("=")[0] for name in names)
    local, associative, integer = local and "g" not in options, "A" in options, "i" in options
    for word in words:
        name, equals, value = word.text.partition("=")
        if equals:
            if local:
                _keep(shell, name)
            shell.variables[name] = value
    for child, end in made:
        name_node = child.child_by_field_name("name")
        if local and name_node is not None:
            _keep(shell, shell.raw(name_node))
        assign(shell, child, end)
        if (
            associative
            and name_node is not None
            and isinstance(array := shell.variables.get(shell.raw(name_node)), dict)
        ):
            shell.variables[shell.raw(name_node)] = AssociativeArray(array)
        if integer and name_node is not None:
            _as_number(shell, shell.raw(name_node), shell.at(child))
    for child in rest:
        if child.type == "variable_name":
            name = shell.raw(child)
            if local:
                _keep(shell, name)
            if local or associative:
                shell.variables[name] = AssociativeArray() if associative else {}
    return DONE


def _as_number(shell: Shell, name: str, line: int) -> None:
    """The effect of `declare -i`: what is assigned is arithmetic."""
    value = shell.variables.get(name)
    if isinstance(value, str):
        shell.variables[name] = shell.arithmetic(value, line)


def _keep(shell: Shell, name: str) -> None:
    """Remembers what a function's local variable hides."""
    if shell.locals and name not in shell.locals[-1]:
        shell.locals[-1][name] = shell.variables.get(name)


def unset(shell: Shell, node: Node) -> Outcome:
    """The commands `unset name`, `unset name[key]`, `unset -f function`."""
    line = shell.at(node)
    words = [single(raw, at, shell) for raw, at in shell.raw_words([n for n in node.children if n.type in WORDS])]
    for word in words:
        name, bracketed, rest = word.partition("[")
        if word.startswith("-"):
            continue
        if "-f" in words:
            shell.functions.pop(word, None)
        elif bracketed:
            array = _as_array(shell, name, line)
            key = index(array, rest.removesuffix("]"), line, shell)
            if key is None or any(item.open for item in array.values()):
                shell.variables[name] = shell.unknowns.mark(Unknown(f"${name}", line))
            else:
                array.pop(key, None)
                shell.variables[name] = array
        else:
            shell.variables[name] = {}  # and so the environment's
    return DONE
