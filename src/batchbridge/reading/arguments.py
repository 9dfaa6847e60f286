"""Settings in the words of a command line: `key=value`, `--key value`, `--flag`; and a source with other settings."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from batchbridge.contract.reading import Source
from batchbridge.reading.yaml_json import parse_yaml, plain_scalar

_PLAIN = re.compile(r"[A-Za-z0-9_/][A-Za-z0-9_/.-]*", re.ASCII)
"""One plain scalar in YAML, whatever the marks in it: most words of a command."""


def parse_scalar(text: str) -> Any:
    """The value that `text` has in YAML, as after `KEY=` in an argument. Raises `ValueError` saying what is wrong."""
    if _PLAIN.fullmatch(text):
        try:
            return plain_scalar(text)
        except (ValueError, LookupError):
            pass  # parsing says what is wrong
    document = parse_yaml(text, "")
    if errors := [found.message for found in document.problems if found.severity == "error"]:
        raise ValueError(errors[0])
    return document.value


class Arguments(Mapping[str, Any]):
    """The settings of a command, see `parse_arguments`. A value is parsed when it is asked for: most adapters know
    better, and parsing takes time."""

    def __init__(self, argv: Sequence[str]) -> None:
        self.argv = tuple(argv)
        self._texts = {key: text for key, text, _ in argument_keys(argv)}
        self._values: dict[str, Any] = {}

    def __getitem__(self, key: str) -> Any:
        if key not in self._values:
            text = self._texts[key]
            try:
                self._values[key] = True if text is None else parse_scalar(text)
            except ValueError:
                self._values[key] = text
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)


def parse_arguments(argv: Sequence[str]) -> Mapping[str, Any]:
    """`--key value`, `--key=value`, `--flag` (true) and `key=value` as native keys and YAML values.

    Other words (programs, modules, files) are skipped; what does not parse as YAML stays text. Adapters that know
    better find the words in `Source.argv`: a value is parsed when it is first asked for.
    """
    return Arguments(argv)


def set_on_top(values: Mapping[str, Any], argv: Sequence[str]) -> dict[str, Any]:
    """The part of a source's `values` that is not what its command says: `--set` has put it on top."""
    before = Arguments(argv)
    if isinstance(values, Arguments) and values.argv == before.argv:
        return {}
    return {key: value for key, value in values.items() if key not in before or before[key] != value}


def spellings(key: str) -> tuple[str, ...]:
    """The name of a setting elsewhere: Hydra's marks are not part of it, and argparse's `--a-b` sets `a_b`."""
    return key, key.lstrip("+~"), key.replace("-", "_")


def argument_keys(argv: Sequence[str]) -> Iterator[tuple[str, str | None, int]]:
    """(key, text of the value or None for a flag, index of the word with the value) of every setting in `argv`."""
    place = 0
    while place < len(argv):
        word = argv[place]
        key, equals, text = word.lstrip("-").partition("=")
        if word.startswith("--") and not equals:
            if place + 1 < len(argv) and not argv[place + 1].startswith("--"):
                place += 1
                yield key, argv[place], place
            else:
                yield key, None, place
        elif equals and key and not key.startswith(("/", ".")):
            yield key, text, place
        place += 1


LEVELS = 4
"""Folders in which a file is looked for from a script or recipe: its own, and those above it."""


def near_file(named: str, beside: Path | None) -> Path | None:
    """The file `named`, as seen from the working directory, the folder of the script or recipe `beside`, or up to three
    folders above it: scripts are started at the repository's root, or in its folder; at last where the script goes to.
    Of a path from the root of another machine the end is looked for, the longest first. None where it is nowhere."""
    folders = [Path()] if beside is None else [Path(), *beside.resolve().parents[:LEVELS]]
    _, _, rest = named.partition("/")  # `myrepo/configs/a.yaml`, as seen from above the repository
    names = [named, *([rest] if "/" in rest and beside is not None and not named.startswith((".", "/")) else [])]
    if beside is not None and named.startswith("/"):
        parts = named.strip("/").split("/")
        names += ["/".join(parts[-size:]) for size in _ENDS if size < len(parts)]
    try:
        found = next((folder / one for one in names for folder in folders if (folder / one).is_file()), None)
        if found is not None or beside is None or not beside.is_file() or b"cd " not in beside.read_bytes():
            return found
        from batchbridge.reading.beside_scripts import gone_to

        gone = [folder / there for there in gone_to(beside) for folder in folders]
        return next((folder / one for one in names for folder in gone if (folder / one).is_file()), None)
    except (OSError, ValueError):  # a NUL character, or a name that is too long
        return None


_ENDS = (4, 3, 2)
"""Parts of the end of another machine's path: a name alone may be anybody's."""


def without(source: Source, keys: Collection[str]) -> Source:
    """A source that does not say these settings: its words behind a program's name, and its values, without them."""
    if not keys:
        return source
    names = {spelling for key in keys for spelling in spellings(key)}
    argv = _without_words(source.argv, names)
    values = {key: value for key, value in source.values.items() if names.isdisjoint(spellings(key))}
    unknown = {key: said for key, said in source.unknown.items() if names.isdisjoint(spellings(key))}
    return replace(source, argv=argv, values=values, unknown=unknown)


def _without_words(argv: Sequence[str], names: Collection[str]) -> tuple[str, ...]:
    """`argv` without the settings of these names; of `--key value` both words go."""
    gone: set[int] = set()
    for key, text, place in argument_keys(argv):
        if not set(names).isdisjoint(spellings(key)):
            apart = text is not None and argv[place] == text and place > 0 and "=" not in argv[place - 1]
            gone |= {place, place - 1} if apart else {place}
    return tuple(word for place, word in enumerate(argv) if place not in gone)


def changed_source(source: Source, changes: Mapping[str, Any]) -> Source:
    """A source with the keys that a fix names, in the form that it has: changed, added, or left out where it says
    None."""
    if not source.argv:
        values = dict(source.values)
        for key, value in changes.items():
            values = _changed_values(values, key, value)
        return replace(source, values=values)
    dashes = any(word.startswith("--") for word in source.argv)
    more: list[str] = []
    for key, value in changes.items():
        if value is not None:
            said = map(str, value if isinstance(value, list) else [value])
            more += [f"--{key}", *said] if dashes else [f"{key}={value}"]
    argv = (*_without_words(source.argv, [spelling for key in changes for spelling in spellings(key)]), *more)
    return replace(source, argv=argv, values=parse_arguments(argv))


def _changed_values(values: Mapping[str, Any], key: str, value: Any) -> dict[str, Any]:
    """A copy with `key`, which may be dotted, where its mapping stands already; one that is left empty goes, too."""
    head, dot, rest = key.partition(".")
    if key not in values and dot and isinstance(values.get(head), Mapping):
        inner = _changed_values(values[head], rest, value)
        return {name: inner if name == head else old for name, old in values.items() if name != head or inner}
    kept = {name: old for name, old in values.items() if name != key}
    return kept if value is None else {**kept, key: value}
