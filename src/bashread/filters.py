"""Programs that read a text and print another, as launch scripts count with: `echo $GPUS | tr ',' '\\n' | wc -l`.

Each is read for the few forms that count; any other is a program like all others. Source: coreutils 9.4, gawk 5.2,
grep 3.11.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Mapping, Sequence

from bashread.state import Shell
from bashread.values import ASSUMED, Outcome, Word

Printed = Callable[[Sequence[str], str], "str | None"]
"""The text that a program with these arguments prints of another; None: these are not read."""

_ESCAPES = {"\\n": "\n", "\\t": "\t", "\\\\": "\\"}


_SETS = {
    "[:upper:]": string.ascii_uppercase,
    "[:lower:]": string.ascii_lowercase,
    "[:digit:]": string.digits,
    "A-Z": string.ascii_uppercase,
    "a-z": string.ascii_lowercase,
    "0-9": string.digits,
}
"""Classes and ranges of `tr`'s that stand alone, in the order that it takes them in."""


def _letters(text: str) -> str | None:
    """The letters of a set of `tr`'s; None for other ranges and classes."""
    if text in _SETS:
        return _SETS[text]
    plain = re.sub(r"\\.", lambda found: _ESCAPES.get(found[0], "\0"), text)
    return None if not plain or "\0" in plain or "[" in plain or re.search(r".-.", plain) else plain


def _tr(arguments: Sequence[str], text: str) -> str | None:
    options = "".join(word[1:] for word in arguments if re.fullmatch("-[cCds]+", word))
    sets = [_letters(word) for word in arguments if not re.fullmatch("-[cCds]+", word)]
    if not sets or None in sets or "s" in options or len(sets) != (1 if "d" in options else 2):
        return None
    first, second = sets[0] or "", sets[-1] or ""
    kept = set(options) & {"c", "C"}
    if "d" in options:
        return "".join(letter for letter in text if (letter in first) == bool(kept))
    if kept:
        return None
    return text.translate(str.maketrans(first, second[: len(first)].ljust(len(first), second[-1])))


def _wc(arguments: Sequence[str], text: str) -> str | None:
    counted = {"-l": text.count("\n"), "-w": len(text.split()), "-m": len(text), "-c": len(text.encode())}
    return f"{counted[arguments[0]]}\n" if len(arguments) == 1 and arguments[0] in counted else None


def _awk(arguments: Sequence[str], text: str) -> str | None:
    """`awk -F, '{print NF}'`: the fields of each line."""
    said = re.fullmatch(r"(?:-F\s?(\S)\s)?\s*\{\s*print\s+NF;?\s*\}\s*", " ".join(arguments))
    if said is None:
        return None
    separator = re.compile(re.escape(said[1])) if said[1] else re.compile(r"[ \t]+")
    lines = (line if said[1] else line.strip(" \t") for line in text.split("\n")[: text.count("\n")])
    return "".join(f"{len(separator.split(line)) if line else 0}\n" for line in lines)


def _grep(arguments: Sequence[str], text: str) -> str | None:
    """`grep -o ,`: every occurrence in a line of its own; `grep -c ,` counts lines."""
    if len(arguments) != 2 or arguments[0] not in ("-o", "-c") or not re.fullmatch(r"[\w,:; /-]+", arguments[1]):
        return None
    lines, wanted = text.split("\n"), arguments[1]
    if arguments[0] == "-c":
        return f"{sum(wanted in line for line in lines)}\n"
    return "".join(f"{wanted}\n" * line.count(wanted) for line in lines)


_PRINTED: Mapping[str, Printed] = {"tr": _tr, "wc": _wc, "grep": _grep, **dict.fromkeys(("awk", "gawk", "mawk"), _awk)}
FILTERS = tuple(_PRINTED)
"""The programs that are read."""


def filtered(shell: Shell, words: list[Word], line: int, document: Word | None) -> Outcome:
    """Prints what a filter makes of its input, where both are decided."""
    texts = [word.text for word in words]
    known = document is not None and not any(map(shell.unknowns.of, [*texts, document.text]))
    if known and document is not None and shell.captured is not None:
        shell.spend(len(document.text))
        if (printed := _PRINTED[texts[0]](texts[1:], document.text)) is not None:
            shell.captured.append(printed)
            return ASSUMED
    shell.record(words, line, document)
    return ASSUMED
