"""The command line of a Python program: argparse's options with their defaults, and fields of dataclasses.

Only what decides a value is read: types, defaults, flags, numbers of words. Words that no option takes are left alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyread.values import Parser, ParserOption, Symbol, UnknownValue

OF_DATACLASSES = frozenset({"HfArgumentParser", "TrlParser", "H4ArgumentParser", "ArgumentParserPlus"})
"""Parsers that make dataclasses of a command line."""
CALLED_WITH_A_CLASS = frozenset(
    {"tyro.cli", "simple_parsing.parse", "draccus.parse", "pyrallis.parse", "chz.entrypoint"}
)
"""Functions that make one object of a command line."""
OPEN = "\0"
"""The beginning of a word that is not known: the names that it depends on follow."""
LOADERS = frozenset(
    {
        *("yaml.safe_load", "yaml.load", "yaml.full_load", "json.load", "tomllib.load", "toml.load"),
        *("omegaconf.OmegaConf.load", "OmegaConf.load", "yaml.unsafe_load"),
    }
)
"""Functions that give the settings of a file."""
_KINDS = frozenset({"int", "float", "str", "bool"})


def add(parser: Parser, positional: Sequence[Any], keywords: Mapping[str, Any]) -> None:
    """An option of `add_argument`."""
    names = [name for name in positional if isinstance(name, str)]
    if not names:
        return
    long = next((name for name in names if name.startswith("--")), names[0])
    name = keywords.get("dest", long.lstrip("-").replace("-", "_"))
    if not isinstance(name, str):
        return
    action, default, kind = keywords.get("action"), keywords.get("default"), keywords.get("type")
    words: int | None = 1
    constant: Any = keywords.get("const", True)
    if action in ("store_true", "store_false"):
        words, constant = 0, action == "store_true"
        default = keywords.get("default", not constant)
    elif action in ("store_const", "count", "append_const"):
        words = 0
    elif isinstance(action, Symbol) and action.name.endswith("BooleanOptionalAction"):
        words = 0
        parser.options[f"--no-{long[2:]}"] = ParserOption(name, None, 0, False)
    elif keywords.get("nargs") is not None or action in ("append", "extend"):
        words = None
    many = keywords.get("nargs") in ("*", "...") or _is_remainder(keywords.get("nargs"))
    if many and "default" not in keywords:
        default = [] if not names[0].startswith("-") else None
    takes_none = many or keywords.get("nargs") == "?" or "default" in keywords
    open_default = keywords.get("required") is True or (not names[0].startswith("-") and not takes_none)
    if open_default:
        default = UnknownValue(long, (long,))
    kind_name = kind.name if isinstance(kind, Symbol) else None
    if isinstance(default, str) and kind_name in ("int", "float"):
        default = _converted(default, kind_name)  # argparse converts a default that is text
    parser.defaults[name] = default
    for spelled in names:
        parser.options[spelled] = ParserOption(name, kind_name, words, constant)


def _is_remainder(nargs: Any) -> bool:
    return isinstance(nargs, Symbol) and nargs.name == "argparse.REMAINDER"


def parsed(parser: Parser, words: Sequence[str] | None) -> dict[str, Any]:
    """Field to value, of the words behind the program; None: they are not known, and defaults hold."""
    found = dict(parser.defaults)
    rest = list(words or ())
    while rest:
        word = rest.pop(0)
        name, equals, attached = word.partition("=")
        option = parser.options.get(name) or _shortened(parser, name)
        if option is None:
            continue
        if option.words == 0 and not equals:
            found[option.field] = option.constant
            continue
        given = [attached] if equals else []
        while rest and not given[:1] and not _is_option(rest[0]):
            given.append(rest.pop(0))
        while option.words is None and rest and not _is_option(rest[0]):
            given.append(rest.pop(0))
        values = [_converted(one, option.kind) for one in given]
        if option.words is None:
            found[option.field] = values
        elif values:
            found[option.field] = values[0]
        else:
            found[option.field] = option.constant
    return found


def fields_of(fields: Sequence[str], defaults: Mapping[str, Any], words: Sequence[str] | None) -> dict[str, Any]:
    """The fields of a dataclass that words set, with their values. Kinds come from the defaults."""
    parser = Parser()
    for name in fields:
        default = defaults.get(name)
        kind = type(default).__name__ if isinstance(default, (bool, int, float, str)) else None
        for spelled in (f"--{name}", f"--{name.replace('_', '-')}"):
            parser.options[spelled] = ParserOption(name, kind, 1)
    return parsed(parser, words)


def _shortened(parser: Parser, name: str) -> ParserOption | None:
    if not name.startswith("--") or len(name) < 4:
        return None
    found = {option for spelled, option in parser.options.items() if spelled.startswith(name)}
    return found.pop() if len(found) == 1 else None


def _is_option(word: str) -> bool:
    return word.startswith("-") and not word[1:2].isdigit() and word[1:2] != "."


def _converted(text: str, kind: str | None) -> Any:
    """A word as its option's type makes it; a function of the program's own leaves it open."""
    if text.startswith(OPEN):
        names = tuple(text.removeprefix(OPEN).split(", "))
        return UnknownValue(names[0], names)
    try:
        if kind == "int":
            return int(text)
        if kind == "float":
            return float(text)
    except ValueError:
        return UnknownValue(text, (text,))
    if kind == "bool":
        low = text.lower()
        return UnknownValue(text, (text,)) if low not in ("true", "false") else low == "true"
    if kind is None or kind in _KINDS:
        return text
    return UnknownValue(f"{kind}({text})", (f"{kind}({text})",))
