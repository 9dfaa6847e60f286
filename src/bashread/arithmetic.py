"""Bash's integer arithmetic, `$(( ))`: 64 bits, C's operators.

Source: Bash Reference Manual 5.2, "Shell Arithmetic".
"""

from __future__ import annotations

import re
from collections.abc import Callable


class NotArithmetic(Exception):
    """An expression that bash would refuse, or that is not read; the text says why."""


def evaluate(text: str, get: Callable[[str], int], put: Callable[[str, int], None]) -> int:
    """The value of `text`, whose `$` expansions have been made. `get` and `put` read and set variables by name."""
    tokens = _tokens(text)
    return _Parser(tokens, get, put).whole() if tokens else 0


_TOKEN = (
    r"\s*(?:(?P<number>\d+#[0-9A-Za-z@_]+|0[xX][0-9a-fA-F]+|\d+)|(?P<name>[A-Za-z_]\w*(?:\[[^\[\]]*\])?)"
    r"|(?P<operator>\*\*|<<=|>>=|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|[-+*/%<>&|^!~?:=,()]))"
)
_LEVELS = [level.split() for level in ("||", "&&", "|", "^", "&", "== !=", "< <= > >=", "<< >>", "+ -", "* / %")]
"""Operators between two values, those that bind least first."""
_ASSIGNMENTS = frozenset({"=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>="})
_DEEPEST = 40
_MOST_TOKENS = 2000


def _tokens(text: str) -> list[str]:
    found, place = [], 0
    text, token = text.rstrip(), re.compile(_TOKEN)
    while place < len(text):
        match = token.match(text, place)
        if match is None or match.end() == place:
            raise NotArithmetic(f"{text[place : place + 20]!r} is not arithmetic")
        found.append(match[match.lastgroup or 0])
        if len(found) > _MOST_TOKENS:
            raise NotArithmetic(f"more than {_MOST_TOKENS} symbols")
        place = match.end()
    return found


def _number(token: str) -> int:
    try:
        if "#" in token:
            base, digits = token.split("#")
            return _wrapped(int(digits, int(base)))
        if token[:2] in ("0x", "0X"):
            return _wrapped(int(token, 16))
        return _wrapped(int(token, 8) if len(token) > 1 and token[0] == "0" else int(token))
    except ValueError:
        raise NotArithmetic(f"{token[:20]} is not a number") from None


def _wrapped(value: int) -> int:
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def _is_name(token: str) -> bool:
    """Whether a token is a variable, or an element of an array: `x`, `x[1]`."""
    return token.partition("[")[0].isidentifier()


class _Parser:
    """Recursive descent; `live` is off in branches that are read but not computed."""

    def __init__(self, tokens: list[str], get: Callable[[str], int], put: Callable[[str, int], None]) -> None:
        self.tokens, self.place, self.depth, self.live = tokens, 0, 0, True
        self.get, self.put = get, put

    def whole(self) -> int:
        value = self.comma()
        if self.place < len(self.tokens):
            raise NotArithmetic(f"{self.tokens[self.place]!r} was not expected")
        return value

    def peek(self) -> str:
        return self.tokens[self.place] if self.place < len(self.tokens) else ""

    def take(self, *wanted: str) -> str:
        token = self.peek()
        if not token or (wanted and token not in wanted):
            return ""
        self.place += 1
        return token

    def comma(self) -> int:
        def listed() -> int:
            value = self.assignment()
            while self.take(","):
                value = self.assignment()
            return value

        return self.nested(listed)

    def assignment(self) -> int:
        ahead = self.tokens[self.place + 1] if self.place + 1 < len(self.tokens) else ""
        if ahead in _ASSIGNMENTS and _is_name(self.peek()):
            name, operator = self.take(), self.take()
            before = self.read(name) if operator != "=" else 0
            value = self.nested(self.assignment)
            if operator != "=":
                value = self.binary(operator[:-1], before, value)
            return self.store(name, value)
        return self.conditional()

    def nested(self, parse: Callable[[], int]) -> int:
        self.depth += 1
        if self.depth > _DEEPEST:
            raise NotArithmetic(f"nested deeper than {_DEEPEST}")
        value = parse()
        self.depth -= 1
        return value

    def conditional(self) -> int:
        condition = self.level(0)
        if not self.take("?"):
            return condition
        yes = self.guarded(bool(condition), self.comma)
        if not self.take(":"):
            raise NotArithmetic("? without :")
        no = self.guarded(not condition, lambda: self.nested(self.conditional))
        return yes if condition else no

    def guarded(self, live: bool, parse: Callable[[], int]) -> int:
        before, self.live = self.live, self.live and live
        value = parse()
        self.live = before
        return value

    def level(self, number: int) -> int:
        if number == len(_LEVELS):
            return self.power()
        value = self.level(number + 1)
        while operator := self.take(*_LEVELS[number]):
            if operator in ("&&", "||"):
                needed = bool(value) == (operator == "&&")
                right = self.guarded(needed, lambda: self.level(number + 1))
                value = int(bool(right if needed else value))
            else:
                value = self.binary(operator, value, self.level(number + 1))
        return value

    def power(self) -> int:
        base = self.unary()
        if not self.take("**"):
            return base
        exponent = self.nested(self.power)
        if exponent < 0:
            raise NotArithmetic("a negative exponent")
        return _wrapped(pow(base, exponent, 1 << 64))

    def unary(self) -> int:
        if operator := self.take("+", "-", "!", "~"):
            value = self.nested(self.unary)
            return _wrapped({"+": value, "-": -value, "!": int(not value), "~": ~value}[operator])
        if operator := self.take("++", "--"):
            name = self.take()
            if not _is_name(name):
                raise NotArithmetic("++ or -- without a variable")
            return self.store(name, self.read(name) + (1 if operator == "++" else -1))
        return self.primary()

    def primary(self) -> int:
        if self.take("("):
            value = self.comma()
            if not self.take(")"):
                raise NotArithmetic("( is not closed")
            return value
        token = self.take()
        if token[:1].isdigit():
            return _number(token)
        if not _is_name(token):
            raise NotArithmetic(f"{token or 'the end'!r} was not expected")
        value = self.read(token)
        if operator := self.take("++", "--"):
            self.store(token, value + (1 if operator == "++" else -1))
        return value

    def read(self, name: str) -> int:
        return self.get(name) if self.live else 0

    def store(self, name: str, value: int) -> int:
        value = _wrapped(value)
        if self.live:
            self.put(name, value)
        return value

    def binary(self, operator: str, left: int, right: int) -> int:
        if operator in ("/", "%"):
            if not self.live:
                return 0
            if not right:
                raise NotArithmetic("a division by zero")
            quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
            return _wrapped(quotient if operator == "/" else left - quotient * right)
        return _wrapped(_BINARY[operator](left, right))


_BINARY: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "<<": lambda a, b: a << (b % 64),
    ">>": lambda a, b: a >> (b % 64),
    "&": lambda a, b: a & b,
    "|": lambda a, b: a | b,
    "^": lambda a, b: a ^ b,
    "==": lambda a, b: int(a == b),
    "!=": lambda a, b: int(a != b),
    "<": lambda a, b: int(a < b),
    "<=": lambda a, b: int(a <= b),
    ">": lambda a, b: int(a > b),
    ">=": lambda a, b: int(a >= b),
}
