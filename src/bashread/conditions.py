"""`[ ]`, `[[ ]]` and `test`, decided where the script decides them. Source: Bash Reference Manual 5.2, "Bash
Conditional Expressions". Files (`-f x`) and regular expressions (`=~`) are never decided."""

from __future__ import annotations

from typing import NamedTuple

from bashread.patterns import matcher
from bashread.quotes import skipped
from bashread.values import ExpansionScope, NotBash, Outcome, Unknown
from bashread.words import element, fields, pattern, single


class _Operand(NamedTuple):
    raw: str
    text: str | None
    """The operand's text; None: not expanded yet (inside `[[ ]]`)."""


_STRINGS = frozenset({"=", "==", "!=", "<", ">"})
_NUMBERS = {
    "-eq": lambda a, b: a == b,
    "-ne": lambda a, b: a != b,
    "-lt": lambda a, b: a < b,
    "-le": lambda a, b: a <= b,
    "-gt": lambda a, b: a > b,
    "-ge": lambda a, b: a >= b,
}
_FILES = frozenset(f"-{letter}" for letter in "abcdefghkprstuwxGLNOS")


def bracket(raw: str, line: int, scope: ExpansionScope) -> Outcome:
    """The outcome of `[ ... ]` or `[[ ... ]]`, brackets included."""
    double = raw.startswith("[[")
    inner = raw[2:-2] if double else raw[1:-1]
    words = raw_words(inner)
    if double:
        return _Conditions([_Operand(word, None) for word in words], line, scope).whole()
    return plain([word.text for raw_word in words for word in fields(raw_word, line, scope)], line, scope)


def plain(words: list[str], line: int, scope: ExpansionScope) -> Outcome:
    """The outcome of `test words`."""
    return _Conditions([_Operand(word, word) for word in words], line, scope).whole()


def raw_words(text: str) -> list[str]:
    """`text` cut at its unquoted blanks."""
    found, start, place = [], 0, 0
    while place < len(text):
        if text[place] in " \t\n" or text.startswith("\\\n", place):
            found.append(text[start:place])
            place += 1 if text[place] in " \t\n" else 2
            start = place
        else:
            place = skipped(text, place)
    return [word for word in [*found, text[start:]] if word]


class _Conditions:
    """Recursive descent over the words of one condition."""

    def __init__(self, words: list[_Operand], line: int, scope: ExpansionScope) -> None:
        self.words, self.line, self.scope, self.place, self.depth = words, line, scope, 0, 0

    def whole(self) -> Outcome:
        if not self.words:
            return Outcome(False)
        outcome = self.either()
        if self.place < len(self.words):
            raise NotBash("a condition is not read")
        return outcome

    def peek(self, ahead: int = 0) -> str | None:
        """The word that comes next, or `ahead` after it; None at the end (an empty word is a word)."""
        place = self.place + ahead
        return self.words[place].raw if place < len(self.words) else None

    def take(self) -> _Operand:
        if self.place >= len(self.words):
            raise NotBash("a condition ends too early")
        self.place += 1
        return self.words[self.place - 1]

    def took(self, *wanted: str) -> bool:
        """Whether one of these words came next; it is taken then."""
        here = self.peek() in wanted
        self.place += here
        return here

    def either(self) -> Outcome:
        outcome = self.both()
        while self.took("||", "-o"):
            outcome = _join(outcome, self.both(), True)
        return outcome

    def both(self) -> Outcome:
        outcome = self.negation()
        while self.took("&&", "-a"):
            outcome = _join(outcome, self.negation(), False)
        return outcome

    def negation(self) -> Outcome:
        self.depth += 1
        if self.depth > 40:
            raise NotBash("a condition is nested too deeply")
        if self.peek() == "!" and self.peek(1) is not None:
            self.take()
            outcome = self.negation()
            outcome = Outcome(None if outcome.value is None else not outcome.value, outcome.unknown)
        elif self.peek() == "(" and self.peek(1) is not None:
            self.take()
            outcome = self.either()
            if self.take().raw != ")":
                raise NotBash("a condition is not read")
        else:
            outcome = self.primary()
        self.depth -= 1
        return outcome

    def primary(self) -> Outcome:
        operator = self.peek(1)
        if operator in _STRINGS or operator in _NUMBERS or operator in ("=~", "-nt", "-ot", "-ef"):
            return self.comparison()
        if self.peek() in ("-z", "-n") and self.peek(1) not in (None, "&&", "||"):
            empty = self.take().raw == "-z"
            text = self.text(self.take())
            decided = self.scope.unknowns.empty(text)
            return self.open(text) if decided is None else Outcome(decided == empty)
        if self.peek() == "-v" and self.peek(1) is not None:
            self.take()
            name, bracketed, subscript = self.text(self.take()).partition("[")
            value = element(name, subscript.removesuffix("]") if bracketed else None, self.line, self.scope)
            return Outcome(value is not None and not self.scope.unknowns.plain(value))
        if self.peek() in _FILES and self.peek(1) is not None:
            shown = f"{self.take().raw} {self.scope.unknowns.shown(self.words[self.place].raw)}"
            self.take()
            return Outcome(None, (Unknown(f"[ {shown} ]", self.line),))
        text = self.text(self.take())
        empty_text = self.scope.unknowns.empty(text)
        return self.open(text) if empty_text is None else Outcome(not empty_text)

    def comparison(self) -> Outcome:
        left, operator, right = self.take(), self.take().raw, self.take()
        one, other = self.text(left), self.text(right)
        if operator in ("=~", "-nt", "-ot", "-ef"):
            return Outcome(None, (Unknown(f"[[ {left.raw} {operator} {right.raw} ]]", self.line),))
        if self.scope.unknowns.of(one + other):
            return self.open(one + other)
        if operator in _NUMBERS:
            try:
                numbers = [self.number(operand, text) for operand, text in ((left, one), (right, other))]
            except ValueError:
                return Outcome(False)  # bash: integer expression expected, status 2
            return Outcome(_NUMBERS[operator](*numbers))
        if operator in ("<", ">"):
            return Outcome(one < other if operator == "<" else one > other)
        same = one == other if right.text is not None else matcher(pattern(right.raw, self.line, self.scope))(one)
        return Outcome(same == (operator != "!="))

    def number(self, operand: _Operand, text: str) -> int:
        """The number of an operand: inside `[[ ]]` the sides are arithmetic, inside `[ ]` plain numbers."""
        if operand.text is not None or text.strip().lstrip("+-").isdigit():
            return int(text)
        return int(self.scope.arithmetic(text, self.line))

    def text(self, operand: _Operand) -> str:
        return operand.text if operand.text is not None else single(operand.raw, self.line, self.scope)

    def open(self, text: str) -> Outcome:
        return Outcome(None, self.scope.unknowns.of(text))


def _join(left: Outcome, right: Outcome, decisive: bool) -> Outcome:
    """The operator `||` (decisive True) or `&&` (decisive False) of two outcomes."""
    if decisive in (left.value, right.value):
        return Outcome(decisive)
    if left.value is None or right.value is None:
        return Outcome(None, left.unknown + right.unknown)
    return Outcome(not decisive)
