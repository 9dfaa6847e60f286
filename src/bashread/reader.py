"""Reads a bash launch script and says which commands it would execute. Nothing is ever executed.

tree-sitter's bash grammar gives the statements, `words` expands the words. What only running would tell (an
environment variable that nobody gives, the output of a program, a file's existence) stays unknown under its own name;
branches that depend on it are both read, and their commands are marked. A script is read as if it were started without
arguments and without the user's environment, except for what `env` gives ("1", "2", ... are its arguments).

Source: Bash Reference Manual 5.2; the fixtures of tests/core/test_bashread.py are compared with bash itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from bashread.script import ScriptCommands
from bashread.state import ExitLeft, LoopLeft, ReturnLeft, Shell
from bashread.statements import STATEMENTS
from bashread.values import TooManyCommands, Word

MAX_BYTES = 256 * 1024
"""Largest script (bytes). The largest launch scripts of the supported frameworks have some 20 KiB."""

_REMARK_IN_A_COMMAND = re.compile(r"(?<=[ \t])`[ \t]*#[^`\n]*`(?=[ \t]*\\?\r?$)", re.MULTILINE)
"""A comment inside a command that goes on on the next line (`` `# the optimizer` \\ ``), which runs nothing and is no
word; the grammar takes its end for the beginning of another."""
_PLACEHOLDER_AS_VALUE = re.compile(
    r"^([ \t]*(?:export[ \t]+)?[A-Za-z_]\w*=)(<[A-Za-z][\w ./-]*>)(?=[ \t]*(?:#.*)?$)", re.M
)
"""`DATA_DIR=<path to the data>`: bash takes it for redirections and ends there; whoever publishes a script means that
its reader writes a value in its place. It is read as that text, and a remark says so."""


def read_script(
    text: str,
    env: Mapping[str, str] | None = None,
    own: str | None = None,
    beside: Callable[[str], str | None] | None = None,
) -> ScriptCommands:
    """The commands of the script `text`. `env`: values of environment variables, and of arguments by number. `own`: the
    script's own name, `$0` and `${BASH_SOURCE[0]}` in it; None: not known. `beside`: see `Shell.beside`.

    Never raises for bad input: what cannot be read is a remark. Raises `TypeError` for values that are not text.
    """
    given = dict(env or {})
    for name, value in given.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(f"env: names and values are text; got {name!r}={value!r}")
    given = {name: value for name, value in given.items() if "\0" not in value}  # as no environment can hold it
    shell = Shell(given, STATEMENTS)
    shell.zero = own
    if beside is not None:
        shell.beside = beside
    numbers = [int(name) for name in given if name.isascii() and name.isdigit() and 0 < int(name[:4]) < 1000]
    shell.positional = [Word(given.get(str(place), ""), 0) for place in range(1, max(numbers, default=0) + 1)]
    try:
        if len(text.encode("utf-8", "replace")) > MAX_BYTES:
            raise TooManyCommands(f"the script has more than {MAX_BYTES:,} bytes")
        text = _REMARK_IN_A_COMMAND.sub(lambda found: " " * len(found[0]), text.replace("\0", ""))
        for left in _PLACEHOLDER_AS_VALUE.finditer(text):
            shell.remark("not_read", text.count("\n", 0, left.start()) + 1, f"{left[2]} is a placeholder")
        shell.run_text(_PLACEHOLDER_AS_VALUE.sub(r"\1'\2'", text), 0)
    except ExitLeft as ended:
        shell.remark("ends", ended.line, "the script ends here")
    except (ReturnLeft, LoopLeft):
        pass
    except TooManyCommands as reason:
        shell.remark("not_read", shell.line or 1, f"reading stops here: {reason}")
    except RecursionError:
        shell.remark("not_read", shell.line or 1, "reading stops here: nested too deeply")
    choices = tuple(unknown for unknown in shell.unknowns.known if unknown.one_of and unknown.names)
    return ScriptCommands(tuple(shell.commands), tuple(shell.remarks), choices)
