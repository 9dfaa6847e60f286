"""Bash's word expansion, without a shell: quotes, parameters, braces and word splitting.

A value that the script does not decide travels as a mark inside the text (`Unknowns`), so that the words around it stay
what they are. Pathname expansion needs a disk and is left out: `data/*.parquet` stays as it is written. Source: the
Bash Reference Manual 5.2, "Shell Expansions".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

from bashread.braces import braces
from bashread.patterns import at_slash, trimmed
from bashread.quotes import ansi_c, closing, find, matching
from bashread.values import MAX_TEXT, Array, NotBash, Scope, TooMuch, Unknown, Word, names_of


class _Event(NamedTuple):
    """A piece of a word: quoted; literal, which is never split, but whose `*` is a pattern; or split at blanks, as an
    unquoted expansion is. items: words that stay apart (`"$@"`)."""

    kind: Literal["quoted", "literal", "split"]
    text: str = ""
    items: tuple[Word, ...] | None = None

    def joined(self) -> str:
        """The text, words with a blank between them."""
        return self.text if self.items is None else " ".join(item.text for item in self.items)


def fields(raw: str, line: int, scope: Scope) -> list[Word]:
    """The words that the raw word `raw` becomes as an argument of a command."""
    made: list[Word] = []
    for text in braces(raw, scope):
        made += _split(_events(text, line, scope), line)
    return made


def single(raw: str, line: int, scope: Scope) -> str:
    """The text that `raw` becomes where nothing is split: in an assignment, in `[[ ]]`, as the subject of `case`."""
    return _joined(_events(raw, line, scope))


def heredoc(raw: str, line: int, scope: Scope) -> str:
    """The text of a here-document whose delimiter is not quoted: quotes are plain characters."""
    return _joined(_events(raw, line, scope, mode="document"))


def pattern(raw: str, line: int, scope: Scope) -> str:
    """`raw` as a pattern of `fnmatch`: quoted text stands for itself."""
    parts = []
    for event in _events(raw, line, scope):
        text = event.joined()
        parts.append(re.sub(r"([*?\[])", r"[\1]", text) if event.kind == "quoted" else text)
    return _bounded("".join(parts))


def _joined(events: Iterator[_Event]) -> str:
    return _bounded("".join(event.joined() for event in events))


def _bounded(text: str) -> str:
    if len(text) > MAX_TEXT:
        raise TooMuch(f"a value has more than {MAX_TEXT:,} characters")
    return text


def _split(events: Iterator[_Event], line: int) -> list[Word]:
    """The words of one raw word; blanks split unquoted expansions only."""
    done: list[Word] = []
    current: list[str] | None = None
    at = line

    def close() -> None:
        nonlocal current
        if current is not None:
            done.append(Word(_bounded("".join(current)), at))
        current = None

    for event in events:
        for number, item in enumerate((Word(event.text, line),) if event.items is None else event.items):
            if number:
                close()
            pieces = re.split(_BLANKS, item.text) if event.kind == "split" else [item.text]
            for place, piece in enumerate(pieces):
                if place:
                    close()
                if piece or event.kind != "split":
                    if not current:  # a quote that opens the word says nothing yet about where its text stands
                        current, at = [], item.line
                    if piece:
                        current.append(piece)
    close()
    return done


_BLANKS = r"[ \t\n]+"


# ---- the pieces of a word


_Mode = Literal["word", "quotes", "alternative", "document"]


def _events(raw: str, line: int, scope: Scope, mode: _Mode = "word") -> Iterator[_Event]:
    """The pieces of `raw`; mode "quotes": it stands within double quotes; "alternative": there, after `:-`, where
    further double quotes say nothing; "document": in a here-document."""
    scope.spend(len(raw) + 1)
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
            if not inner or any(event.items != () for event in inner):  # "$@" without words is no word, "" is one
                yield _Event("quoted")
            yield from inner
            place = end + 1
        elif char == "~":
            home = place == 0 and following in ("", "/")
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
"""Operators, after a colon or not, that say what stands in the place of a value."""


class _Expansion(NamedTuple):
    """The expansion of a `$` or a backquote on a line. kind: of the pieces that it becomes, see `_Event`."""

    kind: Literal["quoted", "split"]
    line: int
    scope: Scope

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
            return self.text(self.scope.substitute(inner, self.line)), end + 1
        if match := re.compile(_NAME).match(raw, place + 1):
            return self.plain(match[0]), match.end()
        return [_Event("quoted", "$")], place + 1

    def text(self, text: str) -> list[_Event]:
        return [_Event(self.kind, text)]

    def mark(self, content: str, decided_by: str = "") -> str:
        """The mark of `${content}`, which nothing decides, or what decides the text `decided_by`."""
        names = names_of(self.scope.unknowns.of(decided_by))
        return self.scope.unknowns.mark(Unknown(f"${{{content}}}", self.line, names))

    def plain(self, name: str) -> list[_Event]:
        """The expansion of `$name`."""
        if name == "@" or (name == "*" and self.kind == "split"):
            return [_Event(self.kind, items=tuple(self.scope.words()))]
        return self.text(_variable(name, self.line, self.scope))

    def parameter(self, content: str) -> list[_Event]:
        """The expansion of `${content}`."""
        if content.startswith("!") and len(content) > 1:
            return self.indirect(content[1:])
        if content.startswith("#") and len(content) > 1:
            return self.text(self.length(content[1:]))
        match = re.fullmatch(_PARAMETER, content, re.DOTALL)
        if match is None:
            raise NotBash(f"${{{content}}} is no parameter")
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

    def operated(self, content: str, name: str, text: str, operator: str, argument: str) -> list[_Event]:
        """The expansion of `${name<operator><argument>}` where the value is `text`."""
        unknowns = self.scope.unknowns
        if not operator:
            return self.text(text)
        if operator.lstrip(":") in _DEFAULTS:
            # An unset variable is a mark that is `plain`; a variable that is set to nothing counts only with the colon.
            missing = unknowns.empty(text) if operator.startswith(":") else unknowns.plain(text)
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
            return made
        if unknowns.of(text):
            return self.text(self.mark(content, text))
        changed = self.changed(text, operator, argument)
        if changed is None:
            changed = self.mark(content, single(argument, self.line, self.scope))
        return self.text(changed)

    def alternative(self, raw: str) -> list[_Event]:
        """The word after `:-`: outside quotes its own unquoted blanks split too."""
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
            if self.scope.unknowns.of(wanted) or set(wanted) & set("*?[") or not wanted:
                return None  # patterns inside a text: not read
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
        start = max(start + length, 0) if start < 0 else min(start, length)
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
            items = [Word(value, self.line)] if isinstance(value, str) else [*value.values()]
        if operator == ":":
            if name in ("@", "*"):
                items = [Word("", self.line), *items]  # ${@:1}: $0 stands before the first
            part = self.part(argument, len(items))
            if part is None:
                return self.text(self.mark(content))
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
            return self.text(" ".join(item.text for item in items))
        return [_Event(self.kind, items=tuple(items))]

    def length(self, content: str) -> str:
        """The length `${#x}`, `${#x[@]}`, `${#}`."""
        match = re.fullmatch(r"([A-Za-z_]\w*|[0-9]+|[@*])(?:\[(.*)\])?", content, re.DOTALL)
        if match is None:
            raise NotBash(f"${{#{content}}} is not read")
        name, subscript = match[1], match[2]
        if name in ("@", "*"):
            return str(len(self.scope.words()))
        value = self.scope.value(name, self.line)
        if subscript in ("@", "*"):
            if value is None:
                return _unset(name, self.line, self.scope)
            return str(len(value)) if isinstance(value, dict) else "1"
        text = element(name, subscript, self.line, self.scope)
        return self.mark(f"#{content}", text) if self.scope.unknowns.of(text) else str(len(text))

    def indirect(self, content: str) -> list[_Event]:
        """The expansion of `${!name}` and `${!array[@]}`."""
        if match := re.fullmatch(r"([A-Za-z_]\w*)\[[@*]\]", content):
            value = self.scope.value(match[1], self.line)
            if value is None:
                return self.text(_unset(match[1], self.line, self.scope))
            keys = [*value] if isinstance(value, dict) else [0]
            return [_Event(self.kind, items=tuple(Word(str(key), self.line) for key in keys))]
        named = ""
        if re.fullmatch(r"[A-Za-z_]\w*|[0-9]+", content):
            named = _variable(content, self.line, self.scope)
            if re.fullmatch(r"[A-Za-z_]\w*|[0-9]+", named):
                return self.text(_variable(named, self.line, self.scope))
        return self.text(self.mark(f"!{content}", named))


def _variable(name: str, line: int, scope: Scope) -> str:
    """The value of a variable or a special parameter; a mark where nothing has set it."""
    if name == "*":
        return " ".join(word.text for word in scope.words())
    if name == "#":
        return str(len(scope.words()))
    value = scope.value(name, line)
    if value is None:
        return _unset(name, line, scope)
    if isinstance(value, dict):
        return value[0].text if 0 in value else ""
    return value


def _unset(name: str, line: int, scope: Scope) -> str:
    special = not (name.isidentifier() or name.isdigit()) or name in _CHANGING
    given = () if special else (name,)
    return scope.unknowns.mark(Unknown(f"${name}", line, given, plain=not special))


_CHANGING = frozenset({"RANDOM", "SRANDOM", "SECONDS", "LINENO", "EPOCHSECONDS", "EPOCHREALTIME", "BASHPID", "PPID"})


def element(name: str, subscript: str | None, line: int, scope: Scope) -> str:
    """The value of `${name[subscript]}`, or `${name}` without a subscript."""
    if subscript is None:
        return _variable(name, line, scope)
    value = scope.value(name, line)
    if value is None:
        return _unset(name, line, scope)
    array: Array = {0: Word(value, line)} if isinstance(value, str) else value
    key = index(array, subscript, line, scope)
    if key is None:
        names = names_of(scope.unknowns.of(single(subscript, line, scope)))
        return scope.unknowns.mark(Unknown(f"${{{name}[{subscript}]}}", line, names))
    return array[key].text if key in array else ""


def index(array: Array, subscript: str, line: int, scope: Scope) -> int | str | None:
    """The key that `subscript` names; None where it is not decided."""
    if any(isinstance(key, str) for key in array):
        key = single(subscript, line, scope)
        return None if scope.unknowns.of(key) else key
    number = scope.arithmetic(subscript, line)
    if scope.unknowns.of(number):
        return None
    place = int(number)
    return place if place >= 0 else max((key for key in array if isinstance(key, int)), default=-1) + 1 + place
