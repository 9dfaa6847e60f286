"""Mutations: of text, of command lines, of nested values, of bytes. All from one `random.Random`, so that every input
can be made again from its seed."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from typing import Any

CANARY_NAME, CANARY = "BATCHBRIDGE_FUZZ_CANARY", "quetzal-7341"
"""An environment variable that inputs ask for, and whose value no answer may contain."""

MOST_CHARACTERS = 1 << 14
AMPLIFIED_CHARACTERS = 1 << 18
"""Most inputs stay small; one in some thousand is amplified to hundreds of kilobytes."""

NUMBERS = (
    *(
        "0",
        "-1",
        "1",
        "2",
        "3",
        "7",
        "8",
        "16",
        "32",
        "64",
        "96",
        "128",
        "512",
        "1024",
        "-0",
        "+8",
        "007",
        "0x10",
        "0o17",
    ),
    *("1_000", "1e-6", "1e3", "1e400", "-1e400", "0.5", "1.0", "8.0", ".5", "5.", "1e", "2147483647", "2147483648"),
    *("4294967295", "9223372036854775807", "18446744073709551616", "1" + "0" * 30, "9" * 400, "9" * 5000),
    *(
        ".inf",
        "-.inf",
        ".nan",
        "inf",
        "nan",
        "NaN",
        "Infinity",
        "1:30",
        "12:30:45",
        "2001-01-01",
        "\u0663",
        "\uff11\uff12",
        "1e-320",
    ),
)

WORDS = (
    *("", " ", "null", "~", "None", "true", "True", "false", "on", "off", "yes", "no", "[]", "{}", "[1, 2]", "{a: 1}"),
    *("!!python/object/apply:os.system [touch pwned]", "!!python/name:os.system", "!!binary aGk=", "!!set {a, b}"),
    *("!env HOME", "&a [*a]", "*a", "<<: *a", "&a", "? a", "- ", "---", "...", "%YAML 1.1", "# x", ": ", "|", ">-"),
    *(f"${{oc.env:{CANARY_NAME}}}", f"${CANARY_NAME}", f"${{{CANARY_NAME}:-8}}", "${oc.env:HOME}", "${oc.eval:1+1}"),
    *(
        "${a.b}",
        "${..a}",
        "${oc.select:a,1}",
        "${",
        "}",
        "${${a}}",
        "${now:%Y}",
        "_target_: os.system",
        "$(id)",
        "`id`",
    ),
    *("; touch pwned;", "&& touch pwned", "|| true", "| sh", "> pwned", ">> pwned", "< /dev/zero", "<(id)", "$((1/0))"),
    *(
        "$((2**63))",
        "$((1<<100))",
        "${X:-8}",
        "${X:?no}",
        "${X^^}",
        "${!X}",
        "${#X}",
        "${X[@]}",
        "${X//a/b}",
        "{1..9999}",
    ),
    *(
        "{a,b}{c,d}{e,f}",
        '"$@"',
        "$*",
        "$#",
        "$1",
        "$?",
        "$$",
        "$!",
        "shift",
        "set --",
        "eval",
        "exec",
        "source x",
        ". x",
    ),
    *(
        "if true; then",
        "fi",
        "for i in 1 2 3; do",
        "while true; do",
        "done",
        "case $X in",
        "esac",
        "f() {",
        "f",
        "\\\n",
    ),
    *("<<EOF\n", "EOF\n", "<<-'EOF'\n", "'", '"', "\\", "\x1b[2J", "\u202e", "\x00", "\ufeff", "\r\n", "\t", "\u2028"),
    *(
        "../../secret",
        "/dev/zero",
        "/proc/self/environ",
        "é",
        "\U0001d4b3",
        "a" * 300,
        "--",
        "-",
        "=",
        "==",
        "+a=1",
        "++a=1",
        "~a",
    ),
    *("+~a=1", "a@b=c", "a=[1,2", "a='x", "a={b:1}", "a=1,2,3", "choice(1,2)", "a.b.c.d=1", "a..b=1", ".a=1", "a[0]=1"),
)
"""Pieces that have a meaning to some reader."""


def number(rng: random.Random) -> str:
    """A whole number, mostly small, sometimes absurd."""
    return str(rng.randrange(1, 200)) if rng.random() < 0.5 else rng.choice(NUMBERS)


BLOCKS = ((0x80, 0xFF), (0x100, 0x7FF), (0x800, 0xD7FF), (0xE000, 0xFFFF))
"""Of the first plane, by the number of bytes in UTF-8; between the last two are the surrogates."""


def foreign(rng: random.Random) -> str:
    """Characters outside ASCII, of any of Unicode's 17 planes; now and then lone surrogates, as words have whose bytes
    are not a UTF-8."""
    low, high = rng.choice(BLOCKS)
    if rng.random() < 0.4:
        plane = rng.randrange(1, 17)
        low, high = plane << 16, plane << 16 | 0xFFFF
    elif rng.random() < 0.05:
        low, high = 0xD800, 0xDFFF
    return "".join(chr(rng.randint(low, high)) for _ in range(rng.choice((1, 1, 2, 8))))


def piece(rng: random.Random) -> str:
    """A piece that some reader gives a meaning to, or one in twenty that none does."""
    if rng.random() < 0.05:
        return foreign(rng)
    return number(rng) if rng.random() < 0.3 else rng.choice(WORDS)


# ---- text


def _cut(rng: random.Random, text: str, other: str) -> str:
    start, stop = _span(rng, text)
    return text[:start] + text[stop:]


def _insert(rng: random.Random, text: str, other: str) -> str:
    at = rng.randrange(len(text) + 1)
    return text[:at] + piece(rng) + text[at:]


def _repeat(rng: random.Random, text: str, other: str) -> str:
    start, stop = _span(rng, text)
    return text[:stop] + text[start:stop] * rng.choice((1, 1, 2, 3, 20)) + text[stop:]


def _splice(rng: random.Random, text: str, other: str) -> str:
    start, stop = _span(rng, other)
    at = rng.randrange(len(text) + 1)
    return text[:at] + other[start:stop] + text[at:]


def _character(rng: random.Random, text: str, other: str) -> str:
    at = rng.randrange(len(text) + 1)
    return text[:at] + (chr(rng.randrange(128)) if rng.random() < 0.5 else foreign(rng)) + text[at + 1 :]


def _numbers(rng: random.Random, text: str, other: str) -> str:
    """Another number where one stands."""
    places = [at for at, mark in enumerate(text) if mark.isdigit() and (at == 0 or not text[at - 1].isdigit())]
    if not places:
        return _insert(rng, text, other)
    start = stop = rng.choice(places)
    while stop < len(text) and text[stop].isdigit():
        stop += 1
    return text[:start] + number(rng) + text[stop:]


def _value(rng: random.Random, text: str, other: str) -> str:
    """What stands after a colon or an equals sign becomes something else."""
    places = [at for at, mark in enumerate(text) if mark in ":="]
    if not places:
        return _insert(rng, text, other)
    at = rng.choice(places) + 1
    stop = at
    while stop < len(text) and (stop == at or text[stop] not in "\n ,}]"):
        stop += 1
    return text[:at] + rng.choice(("", " ")) + piece(rng) + text[stop:]


def _lines(rng: random.Random, text: str, other: str) -> str:
    """Lines moved, dropped, doubled or indented."""
    lines = text.splitlines(keepends=True)
    if len(lines) < 2:
        return _repeat(rng, text, other)
    at = rng.randrange(len(lines))
    line = lines.pop(at)
    act = rng.randrange(4)
    if act == 0:
        lines.insert(rng.randrange(len(lines) + 1), line)
    elif act == 1:
        lines[at:at] = [line, line]
    elif act == 2:
        lines.insert(at, rng.choice(("  ", "\t", "    ")) + line)
    return "".join(lines)


_TEXT: tuple[Callable[[random.Random, str, str], str], ...] = (
    *(_cut, _insert, _insert, _repeat, _splice, _character, _numbers, _numbers, _value, _value, _lines, _lines),
)


def text(rng: random.Random, seeds: Sequence[str]) -> str:
    """One of `seeds` after one to six changes; one in 2,000 is amplified."""
    changed = rng.choice(seeds)
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 4, 6))):
        changed = rng.choice(_TEXT)(rng, changed, rng.choice(seeds))[:MOST_CHARACTERS]
    if rng.random() < 1 / 2000:
        return amplified(rng, changed)
    return changed


def amplified(rng: random.Random, text: str) -> str:
    """A part of `text` many times, up to some hundred thousand characters."""
    start, stop = _span(rng, text, most=200)
    part = text[start:stop] or "["
    return (text[:start] + part * (AMPLIFIED_CHARACTERS // len(part)) + text[stop:])[:AMPLIFIED_CHARACTERS]


def _span(rng: random.Random, text: str, most: int = 60) -> tuple[int, int]:
    start = rng.randrange(len(text) + 1)
    return start, min(start + rng.randrange(most), len(text))


# ---- bytes


def data(rng: random.Random, content: str) -> bytes:
    """`content` in UTF-8; one in fifty has broken bytes, or another encoding."""
    encoded = content.encode("utf-8", "surrogatepass")
    if rng.random() > 0.02:
        return encoded
    if rng.random() < 0.3:
        return content.encode(rng.choice(("utf-16", "utf-8-sig", "utf-32")), "replace")
    broken = bytearray(encoded or b"\0")
    for _ in range(rng.randrange(1, 6)):
        broken[rng.randrange(len(broken))] = rng.randrange(256)
    return bytes(broken)


# ---- command lines


def words(rng: random.Random, seeds: Sequence[Sequence[str]]) -> list[str]:
    """One of `seeds` with words changed, dropped, doubled, moved or added."""
    argv = list(rng.choice(seeds))
    for _ in range(rng.choice((1, 1, 2, 3, 5))):
        at = rng.randrange(len(argv)) if argv else 0
        act = rng.randrange(8)
        if not argv or act == 0:
            argv.insert(at, piece(rng))
        elif act == 1:
            del argv[at]
        elif act == 2:
            argv.insert(rng.randrange(len(argv) + 1), argv[at])
        elif act == 3:
            argv.insert(rng.randrange(len(argv)), argv.pop(at))
        elif act == 4:
            argv[at] = text(rng, [argv[at] or "x"])
        else:
            key, equals, _ = argv[at].partition("=")
            argv[at] = f"{key}={piece(rng)}" if equals else piece(rng)
    return argv


# ---- nested values

HOSTILE: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 8, 2**31, 2**63, 2**64, -(2**70), 10**30, 0.0, -0.0, 0.5, 1e-6, 1e300, 8.0),
    *(float("inf"), float("-inf"), float("nan"), "", "8", "eight", "1e-6", "null", "\x1b[2J", "\u202e", "a" * 300),
    *([], {}, [1, 2], [[]], {"a": 1}, {"": None}, [None], {"a": {"b": {"c": []}}}, "${a.b}", "???", "auto"),
)


def tree(rng: random.Random, seed: Any) -> Any:
    """A copy of `seed` with leaves, keys or whole branches changed."""
    changed = copy.deepcopy(seed)
    for _ in range(rng.choice((1, 1, 2, 3, 5))):
        changed = _branch(rng, changed)
    return changed


def _branch(rng: random.Random, value: Any) -> Any:
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(list(value))
        act = rng.randrange(10)
        if act == 0:
            del value[key]
        elif act == 1:
            value[piece(rng) if rng.random() < 0.5 else f"{key}_"] = copy.deepcopy(value[key])
        elif act == 2:
            value[key] = copy.deepcopy(value[rng.choice(list(value))])
        else:
            value[key] = _branch(rng, value[key])
        return value
    if isinstance(value, list) and value and rng.random() < 0.9:
        at = rng.randrange(len(value))
        if rng.randrange(8) == 0:
            value.append(copy.deepcopy(value[at]))
        else:
            value[at] = _branch(rng, value[at])
        return value
    if isinstance(value, int) and not isinstance(value, bool) and rng.random() < 0.5:
        return rng.choice((value * 2, value + 1, value - 1, -value, value // 2, value * 7))
    if rng.random() < 0.05:
        return (value if isinstance(value, str) else "") + foreign(rng)
    return copy.deepcopy(rng.choice(HOSTILE))
