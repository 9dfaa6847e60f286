"""A Python file or notebook, read and never run: the objects that it builds, and with which arguments."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pyread.calls import LoadFile
from pyread.machine import FindModule, Imported, Machine, parsed
from pyread.notebook import NotebookCode, code_of_notebook
from pyread.uses import uses_in
from pyread.values import Call, Place, Scope, StartedCommand

_PIN = re.compile(r"(?<![\w.-])([A-Za-z][\w.-]*)(?:\[[^\]\s]*\])?\s*==\s*([0-9][\w.+]*)")


_BOUND = r"(?:~=|[=!]=|[<>]=?)\s*[0-9][\w.*]*"
_RANGE = re.compile(rf"([\"'])([A-Za-z][\w.-]*)(?:\[[^\]\s]*\])?\s*({_BOUND}(?:\s*,\s*{_BOUND})*)\1")
"""A quoted range of versions (PEP 440); without quotes a shell takes `>` and `<` for files."""
_OF_GIT = re.compile(r"(git\+[^\s\"'#]*/([A-Za-z][\w.-]*?)(?:\.git)?/?(?:@[^\s\"';#]+)?)(?=[\s\"';#]|$)")


class Program(NamedTuple):
    """The objects that a Python program builds.

    calls: of classes, in the order in which they run. imported: full names of modules that are not the program's own,
    and when each was first met. pins: distribution to the version, or the reference of git's, that a cell installs.
    unread: numbers of a notebook's cells that are not Python. assumed: questions to the machine that were answered as
    a machine that trains would. whole: whether it was read to its end, within the bounds of `machine`. started:
    commands that it starts as processes. declared: names that its own parsers and dataclasses take from the command
    line. filters: it leaves out itself what a class does not take. composes: folder and name of what `hydra.main`
    composes for it. names: full names of what it imports from modules, with the number of modules that it had imported
    when it last did. trees: file to its statements, of the program and each of its modules; the first is the program's
    own. ranges: distribution to the range of versions that a cell installs.
    """

    calls: tuple[Call, ...]
    imported: Mapping[str, Imported]
    pins: Mapping[str, str]
    unread: tuple[int, ...] = ()
    assumed: tuple[str, ...] = ()
    whole: bool = True
    started: tuple[StartedCommand, ...] = ()
    declared: frozenset[str] = frozenset()
    filters: bool = False
    composes: tuple[str, str] | None = None
    names: Mapping[str, int] = {}
    trees: Mapping[str, ast.Module] = {}
    ranges: Mapping[str, str] = {}

    def uses(self, call: Call) -> frozenset[str] | None:
        """The attributes that the program asks for of the object of a call; None where it hands the object to what is
        not seen, or has a part that was not read."""
        tree = self.trees.get(call.place.file)
        if call.node is None or tree is None or self.unread or not self.whole:
            return None
        return uses_in(tree, call.place.file == next(iter(self.trees))).of(call.node)


class NotPython(Exception):
    """A text that is not a Python, or no notebook; `line` where it is known."""

    def __init__(self, reason: str, line: int | None = None) -> None:
        super().__init__(reason)
        self.reason, self.line = reason, line


def read_python(
    text: str,
    file: str,
    *,
    env: Mapping[str, str] | None = None,
    words: Sequence[str] | None = None,
    find_module: FindModule = lambda name, beside: None,
    load_file: LoadFile = lambda path: None,
) -> Program:
    """The program of a file `file`, whose text is given; a name that ends with `.ipynb` is a notebook's.

    env: values of environment variables. words: the command line behind the program; None: not known, its options have
    their defaults. find_module, load_file: see `machine`. Raises `NotPython`.
    """
    code = _code(text, file)
    try:
        tree = parsed(code.text)
    except SyntaxError as error:
        raise NotPython(error.msg or "a syntax error", error.lineno) from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise NotPython(str(error) or type(error).__name__) from error
    machine = Machine(env or {}, words, find_module, load_file)
    scope = Scope(file, {"__name__": "__main__", "__file__": file}, cells=code.cells)
    machine.run_module(tree, scope)
    machine.read_the_rest(scope)
    pins, ranges = _installed(code.shell)
    return Program(
        tuple(machine.calls),
        dict(machine.imported),
        pins,
        code.unread,
        tuple(sorted(machine.assumed)),
        machine.left > 0 and not machine.exhausted,
        tuple(machine.started),
        frozenset(machine.declared),
        machine.filters,
        machine.composes,
        dict(machine.names),
        dict(machine.trees),
        ranges,
    )


def _code(text: str, file: str) -> NotebookCode:
    if not file.endswith(".ipynb"):
        return NotebookCode(text, (), ())
    try:
        return code_of_notebook(text)
    except ValueError as error:
        raise NotPython(f"this is not a notebook: {error}") from error


def _installed(shell: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
    """The exact versions and the ranges that a notebook's shell commands install, by distribution; of two, the last."""
    pins: dict[str, str] = {}
    ranges: dict[str, str] = {}
    goes_on = False
    for line in shell:
        installs = goes_on or "install" in line
        if installs:
            exact = {_named(name): version for name, version in _PIN.findall(line)}
            exact |= {_named(name): reference for reference, name in _OF_GIT.findall(line)}
            asked = {_named(name): "".join(bounds.split()) for _, name, bounds in _RANGE.findall(line)}
            asked = {name: bounds for name, bounds in asked.items() if name not in exact}
            pins = {name: version for name, version in pins.items() if name not in asked} | exact
            ranges = {name: bounds for name, bounds in ranges.items() if name not in exact} | asked
        goes_on = installs and line.endswith("\\")
    return pins, ranges


def _named(distribution: str) -> str:
    return distribution.lower().replace("_", "-")


__all__ = ["Call", "NotPython", "Place", "Program", "read_python"]
