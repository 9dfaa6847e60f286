"""Helpers for the rows of `Adapter.error_texts`: patterns with numbers in them, and ways out."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from batchbridge.meaning.findings import Fix
from batchbridge.rules.nearest_numbers import nearest_numbers


def pattern(text: str, *names: str) -> str:
    """`text`, a regular expression, with its `#`s standing for whole numbers with these names, in order; no number is a
    part of a larger one, which is not a size."""
    first, *rest = text.split("#")
    number = r"(?<!\d)(?P<{}>\d{{1,9}})(?!\d)"
    return first + "".join(f"{number.format(name)}{part}" for name, part in zip(names, rest, strict=True))


def setting(key: str, *values: int) -> Iterator[Fix]:
    """One way out for each value: `key = value`."""
    for value in values:
        yield Fix(f"{key} = {value}", {key: value})


def devices(*counts: int) -> Iterator[Fix]:
    """One way out for each number of devices."""
    for count in counts:
        yield Fix(f"{count} device{'' if count == 1 else 's'}")


def smallest_factor(of: int, others: int) -> int:
    """The smallest factor that makes `others` times it a multiple of `of`; 0 where there is none."""
    return of // math.gcd(of, others) if of and others else 0


def multiples(of: int, value: int) -> list[int]:
    """`value` if it is a multiple of `of`, else the nearest ones."""
    return [value] if of > 0 < value and value % of == 0 else nearest_numbers(value, multiple_of=of)


def divisors(number: int, value: int, least: int = 1) -> list[int]:
    """`value` if it divides `number`, else the nearest divisors, from `least` on."""
    divides = number > 0 and value >= least and number % value == 0
    return [value] if divides else nearest_numbers(value, divides=number, low=least)


_RAISED = r"[A-Z]\w*(?:Error|Exception|Value)"
_QUOTED = re.compile(
    rf"^(?:or:? )?(?:before \S+ )?(?P<raised>(?:(?:{_RAISED}(?: \([^()]*\))?(?: at [\w' ]+)?"
    r"|hydra|argparse|TrlParser|\w+\(\.\.\.\)): )+)(?P<message>.+)$"
)
"""One part of a rule's `native`: who says it, and the message."""
_REMARK = re.compile(r",? (?:after (?!\*)|from train|at the |once |on the |for the critic)|\.? \(|\. Also ")
"""The pattern where a `native` stops quoting and goes on in our words; a number in brackets ends no quotation."""
_WORD = re.compile(r"\.{3}|\w+(?:[.'/-]\w+)*")
_GAP = r"(?:\W|\([^()\w]{0,20}\w[^()]{0,80}\)){1,12}?"
"""The pattern between two words: punctuation, and values in brackets that the quotation leaves out. Nothing is both:
else there would be twice as many ways through each pair of brackets, and no end."""
_FEW = 3
"""Words below which a message is looked for behind its exception alone."""


def quotations(native: object) -> Iterator[str]:
    """Patterns for the messages that a rule's `native` quotes: `ValueError: Unknown mode` and the like.

    `...` stands for anything short, values in brackets may be missing. Nothing for an exception without a message, and
    for what is told in our own words.
    """
    for part in native.split("; ") if isinstance(native, str) else ():
        if (quoted := _QUOTED.match(part)) is None or re.match(_RAISED, quoted["message"]):
            continue
        message = quoted["message"].replace("(...)", " ")
        words = _WORD.findall(message[: end.start()] if (end := _REMARK.search(message)) else message)
        while words and "..." in (words[0], words[-1]):
            words.pop(0 if words[0] == "..." else -1)  # a pattern that begins with anything is slow
        fixed = [word for word in words if any(letter.isalpha() for letter in word)]
        if not fixed:
            continue
        said = _GAP.join(".{0,120}?" if word == "..." else re.escape(word) for word in words)
        raised = re.search(_RAISED, quoted["raised"])
        few = len(fixed) < _FEW and raised is not None
        yield (rf"{raised[0]}\W{{1,6}}" if few and raised else "") + said + r"(?!\w)"
