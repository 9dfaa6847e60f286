"""Settings in the words of a command line: `key=value`, `--key value`, `--flag`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from batchbridge.contract.reading import Context, Source
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


def as_read(example: Mapping[str, Any]) -> tuple[Source, Context]:
    """An example of `Adapter.examples`, as a source and what is said beside it."""
    argv, sizes = tuple(example.get("argv", ())), {key: example.get(key) for key in ("world_size", "dataset_size")}
    source = Source(values=parse_arguments(argv) if argv else example.get("values", {}), argv=argv)
    return source, Context(framework_version=example["version"], **sizes)


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
    folders above it: a repository's scripts are started at its root, or in the folder that it is a folder of. None
    where it is nowhere."""
    folders = [Path()] if beside is None else [Path(), *beside.resolve().parents[:LEVELS]]
    _, _, rest = named.partition("/")  # `myrepo/configs/a.yaml`, as seen from above the repository
    names = [named, *([rest] if "/" in rest and beside is not None and not named.startswith((".", "/")) else [])]
    try:
        return next((folder / one for one in names for folder in folders if (folder / one).is_file()), None)
    except (OSError, ValueError):  # a NUL character, or a name that is too long
        return None
