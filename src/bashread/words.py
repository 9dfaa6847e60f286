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
from bashread.values import MAX_TEXT, Array, NotBash, Scope, TooMuch, Unknown, Unknowns, Word


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
            pieces, place = _expansion(raw, place, line, scope, "split" if mode == "word" else "quoted")
            yield from pieces
        start = place
    if start < place:
        yield _Event(kind, raw[start:place])


def _expansion(
    raw: str, place: int, line: int, scope: Scope, kind: Literal["quoted", "split"]
) -> tuple[list[_Event], int]:
    """What stands at a `$` or a backquote, and where it ends."""
    if raw[place] == "`":
        end = closing(raw, place + 1, "`")
        code = re.sub(r"\\([$`\\])", r"\1", raw[place + 1 : end])
        return [_Event(kind, scope.substitute(code, line))], end + 1
    rest = raw[place + 1 :]
    if rest.startswith("(("):
        end = matching(raw, place + 1)
        if raw[end - 1] == ")":
            return [_Event(kind, scope.arithmetic(raw[place + 3 : end - 1], line))], end + 1
    if rest.startswith("["):  # the old spelling of $(( ))
        end = matching(raw, place + 1)
        return [_Event(kind, scope.arithmetic(raw[place + 2 : end], line))], end + 1
    if rest.startswith("("):
        end = matching(raw, place + 1)
        return [_Event(kind, scope.substitute(raw[place + 2 : end], line))], end + 1
    if rest.startswith("{"):
        end = matching(raw, place + 1)
        return _parameter(raw[place + 2 : end], line, scope, kind), end + 1
    if match := re.match(_NAME, rest):
        return _plain(match[0], line, scope, kind), place + 1 + match.end()
    return [_Event("quoted", "$")], place + 1


_NAME = r"[A-Za-z_][A-Za-z0-9_]*|[0-9]|[@*#?$!-]"


def _plain(name: str, line: int, scope: Scope, kind: Literal["quoted", "split"]) -> list[_Event]:
    """`$name`."""
    if name == "@" or (name == "*" and kind == "split"):
        return [_Event(kind, items=tuple(scope.words()))]
    return [_Event(kind, _variable(name, line, scope))]


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

# ---- ${...}

_PARAMETER = r"([A-Za-z_][A-Za-z0-9_]*|[0-9]+|[@*#?$!-])(.*)"
_OPERATOR = r"(:?[-=?+]|##?|%%?|//?|\^\^?|,,?|:|@)(.*)"


def _parameter(content: str, line: int, scope: Scope, kind: Literal["quoted", "split"]) -> list[_Event]:
    """`${content}`."""
    if content.startswith("!") and len(content) > 1:
        return _indirect(content[1:], line, scope, kind)
    if content.startswith("#") and len(content) > 1:
        return [_Event(kind, _length(content[1:], line, scope))]
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
        return _list(content, name, operator, argument, line, scope, kind, star=(subscript or name) == "*")
    text = element(name, subscript, line, scope)
    return _operated(content, name, text, operator, argument, line, scope, kind)


def element(name: str, subscript: str | None, line: int, scope: Scope) -> str:
    """`${name[subscript]}`, or `${name}` without a subscript."""
    if subscript is None:
        return _variable(name, line, scope)
    value = scope.value(name, line)
    if value is None:
        return _unset(name, line, scope)
    array: Array = {0: Word(value, line)} if isinstance(value, str) else value
    key = index(array, subscript, line, scope)
    if key is None:
        return scope.unknowns.mark(Unknown(f"${{{name}[{subscript}]}}", line, _given(scope, subscript, line)))
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


def _given(scope: Scope, raw: str, line: int) -> tuple[str, ...]:
    text = single(raw, line, scope)
    return tuple(name for unknown in scope.unknowns.of(text) for name in unknown.given)


def _operated(
    content: str,
    name: str,
    text: str,
    operator: str,
    argument: str,
    line: int,
    scope: Scope,
    kind: Literal["quoted", "split"],
) -> list[_Event]:
    """`${name<operator><argument>}` where the value is `text`."""
    unknowns = scope.unknowns
    if not operator:
        return [_Event(kind, text)]
    if operator.lstrip(":") in ("-", "=", "?", "+") and operator not in ("", ":"):
        # An unset variable is a mark that is `plain`; a variable that is set to nothing counts only with the colon.
        missing = unknowns.empty(text) if operator.startswith(":") else unknowns.plain(text)
        act = operator[-1]
        if missing is None:
            return [_Event(kind, unknowns.mark(Unknown(f"${{{content}}}", line, _names(unknowns, text))))]
        if act == "+":
            return [] if missing else _alternative(argument, line, scope, kind)
        if not missing:
            return [_Event(kind, text)]
        if act == "?":
            return [_Event(kind, text or unknowns.mark(Unknown(f"${{{content}}}", line, (name,))))]
        made = [
            event if event.items else event._replace(text=unknowns.given_by(event.text, name))
            for event in _alternative(argument, line, scope, kind)
        ]
        if act == "=":
            scope.assign(name, _joined(iter(made)), line)
        return made
    if unknowns.of(text):
        return [_Event(kind, unknowns.mark(Unknown(f"${{{content}}}", line, _names(unknowns, text))))]
    changed = _changed(text, operator, argument, line, scope)
    if changed is None:
        changed = unknowns.mark(Unknown(f"${{{content}}}", line, _names(unknowns, single(argument, line, scope))))
    return [_Event(kind, changed)]


def _names(unknowns: Unknowns, text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for unknown in unknowns.of(text) for name in unknown.given))


def _alternative(raw: str, line: int, scope: Scope, kind: Literal["quoted", "split"]) -> list[_Event]:
    """The word after `:-`: outside quotes its own unquoted blanks split too."""
    events = _events(raw, line, scope, "alternative" if kind == "quoted" else "word")
    return [_Event("split", event.text) if event.kind == "literal" else event for event in events]


def _changed(text: str, operator: str, argument: str, line: int, scope: Scope) -> str | None:
    """The value cut, replaced or in other letters; None where that is not decided or not read."""
    scope.spend(len(text))
    if operator in ("^^", ",,") and not argument:
        return text.upper() if operator == "^^" else text.lower()
    if operator in ("^", ",") and not argument:
        return (text[:1].upper() if operator == "^" else text[:1].lower()) + text[1:]
    if operator == ":":
        return _slice_text(text, argument, line, scope)
    if operator[0] in "#%":
        return trimmed(text, operator, pattern(argument, line, scope), scope)
    if operator[0] == "/":
        old, _, new = at_slash(argument)
        wanted, instead = pattern(old, line, scope), single(new, line, scope)
        if scope.unknowns.of(wanted) or set(wanted) & set("*?[") or not wanted:
            return None  # patterns inside a text: not read
        if operator == "/" and wanted[0] in "#%":
            part, front = wanted[1:], wanted[0] == "#"
            if not (text.startswith(part) if front else text.endswith(part)):
                return text
            return instead + text[len(part) :] if front else text[: len(text) - len(part)] + instead
        return text.replace(wanted, instead, -1 if operator == "//" else 1)
    return None


def _slice_text(text: str, argument: str, line: int, scope: Scope) -> str | None:
    bounds = _bounds(argument, len(text), line, scope)
    return None if bounds is None else text[bounds[0] : bounds[1]]


def _bounds(argument: str, length: int, line: int, scope: Scope) -> tuple[int, int] | None:
    """(start, stop) of `${x:offset:length}`; None where it is not decided."""
    first, colon, second = argument.partition(":")
    numbers = [scope.arithmetic(part or "0", line) for part in ([first, second] if colon else [first])]
    if any(scope.unknowns.of(number) for number in numbers):
        return None
    start = int(numbers[0])
    start = max(start + length, 0) if start < 0 else min(start, length)
    if len(numbers) == 1:
        return start, length
    count = int(numbers[1])
    return start, max(start, min(length, start + count if count >= 0 else length + count))


def _list(
    content: str,
    name: str,
    operator: str,
    argument: str,
    line: int,
    scope: Scope,
    kind: Literal["quoted", "split"],
    star: bool,
) -> list[_Event]:
    """`${name[@]}`, `${name[*]}`, `${@}` and their slices."""
    if name in ("@", "*"):
        items = scope.words()
    else:
        value = scope.value(name, line)
        if value is None:
            text = _unset(name, line, scope)
            return (
                _operated(content, name, text, operator, argument, line, scope, kind)
                if operator
                else [_Event(kind, text)]
            )
        items = [Word(value, line)] if isinstance(value, str) else list(value.values())
    if operator == ":":
        if name in ("@", "*"):
            items = [Word("", line), *items]  # ${@:1}: $0 stands before the first
        bounds = _bounds(argument, len(items), line, scope)
        if bounds is None:
            return [_Event(kind, scope.unknowns.mark(Unknown(f"${{{content}}}", line)))]
        items = items[bounds[0] : bounds[1]]
    elif operator.lstrip(":") in ("-", "+", "=", "?") and operator:
        if not items and operator[-1] != "+":
            return _alternative(argument, line, scope, kind)
        if items and operator[-1] == "+":
            return _alternative(argument, line, scope, kind)
    elif operator:
        made = []
        for item in items:
            changed = None if scope.unknowns.of(item.text) else _changed(item.text, operator, argument, line, scope)
            if changed is None:
                changed = scope.unknowns.mark(Unknown(f"${{{content}}}", line, _names(scope.unknowns, item.text)))
            made.append(Word(changed, item.line))
        items = made
    scope.spend(8 * len(items))
    if star and kind == "quoted":
        return [_Event(kind, " ".join(item.text for item in items))]
    return [_Event(kind, items=tuple(items))]


def _length(content: str, line: int, scope: Scope) -> str:
    """`${#x}`, `${#x[@]}`, `${#}`."""
    match = re.fullmatch(r"([A-Za-z_]\w*|[0-9]+|[@*])(?:\[(.*)\])?", content, re.DOTALL)
    if match is None:
        raise NotBash(f"${{#{content}}} is not read")
    name, subscript = match[1], match[2]
    if name in ("@", "*"):
        return str(len(scope.words()))
    value = scope.value(name, line)
    if subscript in ("@", "*"):
        if value is None:
            return _unset(name, line, scope)
        return str(len(value)) if isinstance(value, dict) else "1"
    text = element(name, subscript, line, scope)
    if scope.unknowns.of(text):
        return scope.unknowns.mark(Unknown(f"${{#{content}}}", line, _names(scope.unknowns, text)))
    return str(len(text))


def _indirect(content: str, line: int, scope: Scope, kind: Literal["quoted", "split"]) -> list[_Event]:
    """`${!name}` and `${!array[@]}`."""
    if match := re.fullmatch(r"([A-Za-z_]\w*)\[[@*]\]", content):
        value = scope.value(match[1], line)
        if value is None:
            return [_Event(kind, _unset(match[1], line, scope))]
        keys = list(value) if isinstance(value, dict) else [0]
        return [_Event(kind, items=tuple(Word(str(key), line) for key in keys))]
    if re.fullmatch(r"[A-Za-z_]\w*|[0-9]+", content):
        named = _variable(content, line, scope)
        if re.fullmatch(r"[A-Za-z_]\w*|[0-9]+", named):
            return [_Event(kind, _variable(named, line, scope))]
        names = _names(scope.unknowns, named)
    else:
        names = ()
    return [_Event(kind, scope.unknowns.mark(Unknown(f"${{!{content}}}", line, names)))]
