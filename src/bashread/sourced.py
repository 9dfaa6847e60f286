"""`source FILE`, where the file's text is given.

Its own file: most scripts source none that is here, and import nothing for it.
"""

from __future__ import annotations

from bashread.state import ReturnLeft, Shell
from bashread.values import Outcome, Word


def followed(shell: Shell, named: str, text: str, arguments: list[Word], line: int) -> Outcome:
    """The outcome of another file's text, run in the same shell."""
    before = shell.zero, shell.source_line, shell.positional
    shell.zero, shell.source_line = named, shell.source_line or line
    shell.positional = arguments or shell.positional
    try:
        return shell.enclosed(lambda: shell.run_text(text, 0), ReturnLeft)
    finally:
        shell.zero, shell.source_line = before[:2]
        if arguments:
            shell.positional = before[2]
