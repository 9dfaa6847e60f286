"""Bash's word expansion, without a shell: quotes, parameters, braces and word splitting.

A value that the script does not decide travels as a mark inside the text (`Unknowns`), so that the words around it stay
what they are. Pathname expansion needs a disk and is left out: `data/*.parquet` stays as it is written. Source: the
Bash Reference Manual 5.2, "Shell Expansions".
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

from bashread.braces import braces
from bashread.patterns import at_slash, trimmed
from bashread.quotes import ansi_c, closing, find, matching
from bashread.values import (
    MAX_TEXT,
    Array,
    AssociativeArray,
    ExpansionScope,
    NotBash,
    TooManyCommands,
    Unknown,
    Word,
    names_of,
)


class _Event(NamedTuple):
    """A piece of a word: quoted; literal, which is never split, but whose `*` is a pattern; or split at blanks, as an
    unquoted expansion is. items: words that stay apart (`"$@"`)."""

    kind: Literal["quoted", "literal", "split"]
    text: str = ""
    items: tuple[Word, ...] | None = None
    by: str = " "

    def joined(self) -> str:
        """The text, words with `by` between them."""
        return self.text if self.items is None else self.by.join(item.text for item in self.items)


def fields(raw: str, line: int, scope: ExpansionScope) -> list[Word]:
    """The words that the raw word `raw` becomes as an argument of a command."""
    made: list[Word] = []
    if raw.startswith(("<(", ">(")):  # the name of a pipe
        return [Word(scope.unknowns.mark(Unknown(raw, line)), line)]
    for text in braces(raw, scope):
        made += _split(_events(text, line, scope), line, _separators(scope))
    if len(made) > 1:  # the raw word itself is paid for; a script that runs itself with "$@" twice doubles them
        scope.spend(32 * len(made))
    return made


def single(raw: str, line: int, scope: ExpansionScope) -> str:
    """The text that `raw` becomes where nothing is split: in an assignment, in `[[ ]]`, as the subject of `case`."""
    return _joined(_events(raw, line, scope))


def heredoc(raw: str, line: int, scope: ExpansionScope) -> str:
    """The text of a here-document whose delimiter is not quoted: quotes are plain characters."""
    return _joined(_events(raw, line, scope, mode="document"))


def pattern(raw: str, line: int, scope: ExpansionScope) -> str:
    """`raw` as a pattern of `fnmatch`."""
    parts = []
    for event in _events(raw, line, scope):
        text = event.joined()
        if event.kind == "quoted":
            parts.append(re.sub(r"([*?\[])", r"[\1]", text))
            continue
        if re.search(r"[?*+@!]\(", text):
            raise NotBash(f"{raw}: a pattern of patterns is not read")
        parts.append(re.sub(r"\[:(\w+):\]", lambda named: _CLASSES.get(named[1], named[0]), text.replace("[^", "[!")))
    return _bounded("".join(parts))


_NAMED = "alpha digit alnum upper lower space blank xdigit punct"
_HELD = ("A-Za-z", "0-9", "A-Za-z0-9", "A-Z", "a-z", " \t-\r", " \t", "0-9A-Fa-f", "!-/:-@[-`{-~")
_CLASSES = dict(zip(_NAMED.split(), _HELD, strict=True))
"""The characters of `[[:alpha:]]` and its like."""


def _joined(events: Iterator[_Event]) -> str:
    return _bounded("".join(event.joined() for event in events))


def _bounded(text: str) -> str:
    if len(text) > MAX_TEXT:
        raise TooManyCommands(f"a value has more than {MAX_TEXT:,} characters")
    return text


def _separators(scope: ExpansionScope) -> str:
    """The characters of `$IFS`; bash's own where nothing decides them."""
    value = scope.value("IFS", 0)
    return value if isinstance(value, str) and not scope.unknowns.of(value) else " \t\n"


@functools.cache
def _cuts(separators: str) -> re.Pattern[str]:
    """The pattern of what separates words: blanks, or another character (group 1) with the blanks around it."""
    blank = "".join(char for char in separators if char in " \t\n")
    other = "".join(char for char in separators if char not in blank)
    blanks, others = (f"[{re.escape(chars)}]" if chars else r"[^\s\S]" for chars in (blank, other))
    return re.compile(f"{blanks}*({others}){blanks}*|{blanks}+")


def _split(events: Iterator[_Event], line: int, separators: str) -> list[Word]:
    """The words of one raw word; separators split unquoted expansions only."""
    done: list[Word] = []
    current: list[str] | None = None
    at, undecided, many = line, False, False

    def close() -> None:
        nonlocal current, undecided, many
        if current is not None:
            done.append(Word(_bounded("".join(current)), at, undecided, many))
        current, undecided, many = None, False, False

    for event in events:
        for number, item in enumerate((Word(event.text, line),) if event.items is None else event.items):
            if number:
                close()
            pieces = _cuts(separators).split(item.text) if event.kind == "split" else [item.text]
            for place, piece in enumerate(pieces):
                if place % 2:  # a separator; two that are no blanks have an empty word between them
                    current = [] if piece and current is None else current
                    close()
                elif piece or event.kind != "split":
                    if not current:  # a quote that opens the word says nothing yet about where its text stands
                        current, at = [], item.line
                    if piece:
                        current.append(piece)
                        undecided |= item.open or (event.kind != "quoted" and "\0" in piece)
                        many |= item.many or (item.open and event.items is not None)
    close()
    return done


# ---- the pieces of a word


_Mode = Literal["word", "quotes", "alternative", "document"]


def _events(raw: str, line: int, scope: ExpansionScope, mode: _Mode = "word") -> Iterator[_Event]:
    """The pieces of `raw`; mode "quotes": within double quotes; "alternative": there, after `:-`, where further ones
    say nothing; "document": in a here-document."""
    scope.spend(len(raw) + 1)
    raw = scope.unknowns.taken(raw)
    kind: Literal["quoted", "literal"] = "literal" if mode == "word" else "quoted"
    place = start = 0
    while place < len(raw):
        char, following = raw[place], raw[place + 1 : place + 2]
        if not (char in "\\$`" or (mode == "word" and char in "'\"~") or (mode == "alternative" and char == '"')):
            place += 1
            continue
        if start < place:
            yield _Event(kind, raw[start:place])
        if char == "\\":
            kept = mode != "word" and following not in ("$", "`", "\\", "\n", "" if mode == "document" else '"')
            if following != "\n":
                yield _Event("quoted", char + following if kept else following)
            place += 2
        elif char == "'":
            end = find(raw, "'", place + 1)
            yield _Event("quoted", raw[place + 1 : end])
            place = end + 1
        elif char == '"' and mode == "alternative":
            place += 1
        elif char == '"':
            end = closing(raw, place + 1, '"')
            inner = list(_events(raw[place + 1 : end], line, scope, "quotes"))
            if not inner or any(event.items != () for event in inner):  # "$@" without words is not a word, "" is one
                yield _Event("quoted")
            yield from inner
            place = end + 1
        elif char == "~":
            equals = raw.find("=", 0, place)
            begins = place == 0 or place == equals + 1 or raw[place - 1] == ":"
            home = begins and following in ("", "/", ":") and (place == 0 or raw[: max(equals, 0)].isidentifier())
            yield _Event("quoted", _variable("HOME", line, scope)) if home else _Event("literal", "~")
            place += 1
        elif char == "$" and following == "'" and mode == "word":
            end = closing(raw, place + 2, "'")
            yield _Event("quoted", ansi_c(raw[place + 2 : end]))
            place = end + 1
        elif char == "$" and following == '"' and mode == "word":
            place += 1  # a translated string: as it is written
        else:
            pieces, place = _Expansion("split" if mode == "word" else "quoted", line, scope).at(raw, place)
            yield from pieces
        start = place
    if start < place:
        yield _Event(kind, raw[start:place])


_NAME = r"[A-Za-z_][A-Za-z0-9_]*|[0-9]|[@*#?$!-]"
_PARAMETER = r"([A-Za-z_][A-Za-z0-9_]*|[0-9]+|[@*#?$!-])(.*)"
_OPERATOR = r"(:?[-=?+]|##?|%%?|//?|\^\^?|,,?|:|@)(.*)"
_DEFAULTS = ("-", "=", "?", "+")
"""Operators, after a colon or not, that say what stands in place of a value."""


class _Expansion(NamedTuple):
    """The expansion of a `$` or a backquote on a line. kind: of the pieces that it becomes, see `_Event`."""

    kind: Literal["quoted", "split"]
    line: int
    scope: ExpansionScope

    def at(self, raw: str, place: int) -> tuple[list[_Event], int]:
        """The text at a `$` or a backquote, and where it ends."""
        opened = raw[place + 1 : place + 2]
        if raw[place] == "`":
            end = closing(raw, place + 1, "`")
            code = re.sub(r"\\([$`\\])", r"\1", raw[place + 1 : end])
            return self.text(self.scope.substitute(code, self.line)), end + 1
        if opened in ("(", "[", "{"):
            end = matching(raw, place + 1)
            inner = raw[place + 2 : end]
            if opened == "{":
                return self.parameter(inner), end + 1
            if opened == "[":  # the old spelling of $(( ))
                return self.text(self.scope.arithmetic(inner, self.line)), end + 1
            if inner.startswith("(") and inner.endswith(")"):
                return self.text(self.scope.arithmetic(inner[1:-1], self.line)), end + 1
            if re.search(r"\bcase\b", inner) and not re.search(r"\besac\b", inner):
                raise NotBash(f"$({' '.join(inner.split())[:40]}: a case in $( ) is not read")
            return self.text(self.scope.substitute(inner, self.line)), end + 1
        if match := re.compile(_NAME).match(raw, place + 1):
            return self.plain(match[0]), match.end()
        return [_Event("quoted", "$")], place + 1

    def text(self, text: str) -> list[_Event]:
        return [_Event(self.kind, text)]

    def apart(self, items: Iterable[Word], *, star: bool = False) -> list[_Event]:
        return [_Event(self.kind, items=tuple(items), by=_separators(self.scope)[:1] if star else " ")]

    def mark(self, content: str, decided_by: str = "") -> str:
        """The mark of `${content}`, which nothing decides, or what decides the text `decided_by`."""
        names = names_of(self.scope.unknowns.of(decided_by))
        return self.scope.unknowns.mark(Unknown(f"${{{content}}}", self.line, names))

    def plain(self, name: str) -> list[_Event]:
        """The expansion of `$name`."""
        if name == "@" or (name == "*" and self.kind == "split"):
            return self.apart(self.scope.words(), star=name == "*")
        return self.text(_variable(name, self.line, self.scope))

    def parameter(self, content: str) -> list[_Event]:
        """The expansion of `${content}`."""
        if content.startswith("!") and len(content) > 1:
            return self.indirect(content[1:])
        if content.startswith("#") and len(content) > 1:
            return self.text(self.length(content[1:]))
        match = re.fullmatch(_PARAMETER, content, re.DOTALL)
        if match is None:
            raise NotBash(f"${{{content}}} is not a parameter")
        name, rest = match[1], match[2]
        subscript = None
        if rest.startswith("["):
            end = matching(rest, 0)
            subscript, rest = rest[1:end], rest[end + 1 :]
        operation = re.fullmatch(_OPERATOR, rest, re.DOTALL) if rest else None
        if rest and operation is None:
            raise NotBash(f"${{{content}}} is not read")
        operator, argument = (operation[1], operation[2]) if operation else ("", "")
        if name in ("@", "*") or subscript in ("@", "*"):
            return self.listed(content, name, operator, argument, star=(subscript or name) == "*")
        return self.operated(content, name, element(name, subscript, self.line, self.scope), operator, argument)

    def operated(self, content: str, name: str, value: str | None, operator: str, argument: str) -> list[_Event]:
        """The expansion of `${name<operator><argument>}` where the value is `value`; None: certainly unset."""
        unknowns, text = self.scope.unknowns, value or ""
        if not operator:
            return self.text(text)
        if operator.lstrip(":") in _DEFAULTS:
            # An unset variable is a mark that is `plain`; a variable that is set to nothing counts only with the colon.
            unset = value is None or (unknowns.plain(text) and self.scope.value(name, self.line) is None)
            missing = unknowns.empty(text) if operator.startswith(":") else unset
            act = operator[-1]
            if missing is None:
                return self.text(self.mark(content, text))
            if act == "+":
                return [] if missing else self.alternative(argument)
            if not missing:
                return self.text(text)
            if act == "?":
                return self.text(text or unknowns.mark(Unknown(f"${{{content}}}", self.line, (name,))))
            made = [
                event if event.items else event._replace(text=unknowns.given_by(event.text, name))
                for event in self.alternative(argument)
            ]
            if act == "=":
                self.scope.assign(name, _joined(iter(made)), self.line)
                return self.text(_joined(iter(made)))
            return made
        if unknowns.of(text):
            return self.text(self.mark(content, text))
        changed = self.changed(text, operator, argument)
        if changed is None:
            changed = self.mark(content, single(argument, self.line, self.scope))
        return self.text(changed)

    def alternative(self, raw: str) -> list[_Event]:
        """The word after `:-`: outside quotes its own blanks split too."""
        events = _events(raw, self.line, self.scope, "alternative" if self.kind == "quoted" else "word")
        return [_Event("split", event.text) if event.kind == "literal" else event for event in events]

    def changed(self, text: str, operator: str, argument: str) -> str | None:
        """The value cut, replaced or in other letters; None where that is not decided or not read."""
        self.scope.spend(len(text))
        if operator in ("^^", ",,") and not argument:
            return text.upper() if operator == "^^" else text.lower()
        if operator in ("^", ",") and not argument:
            return (text[:1].upper() if operator == "^" else text[:1].lower()) + text[1:]
        if operator == ":":
            part = self.part(argument, len(text))
            return None if part is None else text[part]
        if operator[0] in "#%":
            return trimmed(text, operator, pattern(argument, self.line, self.scope), self.scope)
        if operator[0] == "/":
            old, _, new = at_slash(argument)
            wanted, instead = pattern(old, self.line, self.scope), single(new, self.line, self.scope)
            if self.scope.unknowns.of(wanted) or set(wanted) & set("*?[") or "&" in instead or not wanted:
                return None  # patterns inside a text: not read; & is what was found
            if operator == "/" and wanted[0] in "#%":
                part_of, front = wanted[1:], wanted[0] == "#"
                if not (text.startswith(part_of) if front else text.endswith(part_of)):
                    return text
                return instead + text[len(part_of) :] if front else text[: len(text) - len(part_of)] + instead
            return text.replace(wanted, instead, -1 if operator == "//" else 1)
        return None

    def part(self, argument: str, length: int) -> slice | None:
        """The part of `length` characters or words that `${x:offset:length}` takes; None where it is not decided."""
        first, colon, second = argument.partition(":")
        numbers = [self.scope.arithmetic(part or "0", self.line) for part in ([first, second] if colon else [first])]
        if any(self.scope.unknowns.of(number) for number in numbers):
            return None
        start = int(numbers[0])
        start = start + length if start < 0 else start
        if not 0 <= start <= length:
            return slice(0)
        if len(numbers) == 1:
            return slice(start, length)
        count = int(numbers[1])
        return slice(start, max(start, min(length, start + count if count >= 0 else length + count)))

    def listed(self, content: str, name: str, operator: str, argument: str, *, star: bool) -> list[_Event]:
        """The expansion of `${name[@]}`, `${name[*]}`, `${@}` and their slices."""
        if name in ("@", "*"):
            items = self.scope.words()
        else:
            value = self.scope.value(name, self.line)
            if value is None:
                return self.operated(content, name, _unset(name, self.line, self.scope), operator, argument)
            array = array_of(value, self.line, self.scope)
            items = [array[key] for key in keys_of(array)]
        if operator == ":":
            if name in ("@", "*"):
                items = [Word("", self.line), *items]  # ${@:1}: $0 stands before the first
            part = self.part(argument, len(items))
            if part is None:
                return self.text(self.mark(content))
            if undecided := _undecided(items, self.line, self.scope):
                return self.text(undecided)
            items = items[part]
        elif operator.lstrip(":") in _DEFAULTS:
            if bool(items) == (operator[-1] == "+"):
                return self.alternative(argument)
        elif operator:
            made = []
            for item in items:
                changed = None if self.scope.unknowns.of(item.text) else self.changed(item.text, operator, argument)
                made.append(Word(self.mark(content, item.text) if changed is None else changed, item.line))
            items = made
        self.scope.spend(8 * len(items))
        if star and self.kind == "quoted":
            return self.text(_separators(self.scope)[:1].join(item.text for item in items))
        return self.apart(items, star=star)

    def length(self, content: str) -> str:
        """The length `${#x}`, `${#x[@]}`, `${#}`."""
        match = re.fullmatch(r"([A-Za-z_]\w*|[0-9]+|[@*])(?:\[(.*)\])?", content, re.DOTALL)
        if match is None:
            raise NotBash(f"${{#{content}}} is not read")
        name, subscript = match[1], match[2]
        if name in ("@", "*"):
            return _variable("#", self.line, self.scope)
        value = self.scope.value(name, self.line)
        if subscript in ("@", "*"):
            if value is None:
                return _unset(name, self.line, self.scope)
            array = array_of(value, self.line, self.scope)
            return _undecided(array.values(), self.line, self.scope) or str(len(array))
        text = element(name, subscript, self.line, self.scope) or ""
        return self.mark(f"#{content}", text) if self.scope.unknowns.of(text) else str(len(text))

    def indirect(self, content: str) -> list[_Event]:
        """The expansion of `${!name}` and `${!array[@]}`."""
        if match := re.fullmatch(r"([A-Za-z_]\w*)\[[@*]\]", content):
            value = self.scope.value(match[1], self.line)
            if value is None:
                return self.text(_unset(match[1], self.line, self.scope))
            array = array_of(value, self.line, self.scope)
            if undecided := _undecided(array.values(), self.line, self.scope):
                return self.text(undecided)
            return self.apart(Word(str(key), self.line) for key in keys_of(array))
        named = ""
        if re.fullmatch(r"[A-Za-z_]\w*|[0-9]+", content):
            named = _variable(content, self.line, self.scope)
            if re.fullmatch(r"[A-Za-z_]\w*|[0-9]+", named):
                return self.text(_variable(named, self.line, self.scope))
        return self.text(self.mark(f"!{content}", named))


def _variable(name: str, line: int, scope: ExpansionScope) -> str:
    """The value of a variable or a special parameter; a mark where nothing has set it."""
    if name == "*":
        return _separators(scope)[:1].join(word.text for word in scope.words())
    if name == "#":
        return _undecided(scope.words(), line, scope) or str(len(scope.words()))
    if name.isdigit() and (undecided := _undecided(scope.words()[: max(int(name[:6]) - 1, 0)], line, scope)):
        return undecided
    value = scope.value(name, line)
    if value is None:
        return _unset(name, line, scope)
    if isinstance(value, dict):
        return value[0].text if 0 in value else ""
    return value


def _unset(name: str, line: int, scope: ExpansionScope) -> str:
    special = not (name.isidentifier() or name.isdigit()) or name in _CHANGING
    given = () if special else (name,)
    return scope.unknowns.mark(Unknown(f"${name}", line, given, plain=not special))


_OWN = """BASH BASHPID BASH_REMATCH BASH_SOURCE BASH_VERSION EPOCHREALTIME EPOCHSECONDS EUID FUNCNAME HOSTNAME LINENO
    MAPFILE OPTARG OPTIND PATH PIPESTATUS PPID RANDOM REPLY SECONDS SHELL SHLVL SRANDOM TERM UID _ 0"""
_CHANGING = frozenset(_OWN.split())
"""Names that bash itself sets."""


def element(name: str, subscript: str | None, line: int, scope: ExpansionScope) -> str | None:
    """The value of `${name[subscript]}`, or `${name}` without a subscript; None where it is certainly unset."""
    value = scope.value(name, line)
    if subscript is None:
        return None if isinstance(value, dict) and 0 not in value else _variable(name, line, scope)
    if value is None:
        return _unset(name, line, scope)
    array = array_of(value, line, scope)
    key = index(array, subscript, line, scope)
    if key is None:
        names = names_of(scope.unknowns.of(single(subscript, line, scope)))
        return scope.unknowns.mark(Unknown(f"${{{name}[{subscript}]}}", line, names))
    before = (array[one] for one in array if isinstance(one, int) and isinstance(key, int) and one < key)
    if undecided := _undecided(before, line, scope):
        return undecided
    return array[key].text if key in array else None


def _undecided(items: Iterable[Word], line: int, scope: ExpansionScope) -> str:
    """The mark of how many words `items` are; nothing where that is certain."""
    if not (found := [one for item in items if item.open for one in scope.unknowns.of(item.text)]):
        return ""
    return scope.unknowns.mark(Unknown(" ".join(one.shown for one in found), line, names_of(found)))


def array_of(value: str | Array, line: int, scope: ExpansionScope) -> Array:
    """A variable's value as an array, which one that is not decided may be."""
    return value if isinstance(value, dict) else {0: Word(value, line, open=bool(scope.unknowns.of(value)))}


def keys_of(array: Array) -> list[int | str]:
    """The keys of an array in order; that of names, which bash's versions differ in, is the script's."""
    return sorted(array, key=lambda key: key if isinstance(key, int) else 0)


def index(array: Array, subscript: str, line: int, scope: ExpansionScope) -> int | str | None:
    """The key that `subscript` names; None where it is not decided."""
    scope.spend(len(array) // 4)
    if isinstance(array, AssociativeArray) or any(isinstance(key, str) for key in array):
        key = single(subscript, line, scope)
        if scope.unknowns.of(key):
            return None
        return int(key) if key.isascii() and key.isdigit() and str(int(key[:6])) == key else key
    number = scope.arithmetic(subscript, line)
    if scope.unknowns.of(number):
        return None
    place = int(number)
    return place if place >= 0 else max((key for key in array if isinstance(key, int)), default=-1) + 1 + place
