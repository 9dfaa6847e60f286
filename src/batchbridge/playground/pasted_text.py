"""A text that a person pastes: which kind of text it is, what it says, and the same text with other settings in it."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from batchbridge.comparing.edit_text import changed_text
from batchbridge.contract.reading import Reading, Source
from batchbridge.reading.files import LOGS, load_source, load_text

KINDS = {
    "yaml": "recipe.yaml",
    "shell": "run.sh",
    "python": "train.py",
    "json": "recipe.json",
    "notebook": "train.ipynb",
    "toml": "recipe.toml",
    "log": "run.log",
}
"""The name that a text of each kind is read under, where it has none of its own."""
MOST_CHARACTERS = 1 << 20
"""Characters of a text that is read."""


@dataclasses.dataclass(frozen=True)
class PastedText:
    """A text, and the name of the file that it is read as."""

    text: str
    path: Path
    env: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Environment variables of a script."""
    command: int | None = None
    """The number of its training command, counted from 1; None: there is one."""

    @classmethod
    def of(
        cls, text: str, name: str | Path | None = None, env: Mapping[str, str] | None = None, command: int | None = None
    ) -> PastedText:
        """A text as a person pastes it; name: of its file, where it has one."""
        path = Path(KINDS[kind_of_text(text)]) if name is None else Path(name)
        return cls(text, path, dict(env or {}), command)

    def source(self, *, framework: str | None, devices: int | None, settings: Mapping[str, Any]) -> Source:
        """The source that it is; `settings` replace what it says of them."""
        said: dict[str, Any] = {"env": self.env, "framework": framework, "command": self.command, "world_size": devices}
        loaded = load_text(self.text, self.path, **said)
        return load_source(loaded, overrides=settings) if settings else loaded

    def changed(self, reading: Reading, settings: Mapping[str, Any]) -> PastedText:
        """The text with `settings` in it, None for one that goes. reading: what it means. Raises `CannotEdit`."""
        return dataclasses.replace(self, text=changed_text(self.text, self.path, reading, settings))


def kind_of_text(text: str) -> str:
    """One of `KINDS`, from the text alone. What is nothing else is a command, or a script."""
    return next(_kinds(text), "shell")


def _kinds(text: str) -> Iterator[str]:
    from batchbridge.reading.pasted import read_pasted
    from batchbridge.reading.toml import is_toml
    from batchbridge.reading.yaml_json import parse_yaml

    begin = text.lstrip()
    if begin.startswith("#!"):
        yield "shell"
    if begin.startswith("{") and '"cells"' in text and '"nbformat"' in text:
        yield "notebook"
    if begin.startswith(('{"', "{\n")):
        yield "json"
    if not begin:
        yield "yaml"
    if _has_call(text):
        yield "python"
    if isinstance(parse_yaml(text, "").value, dict):
        yield "yaml"
    if is_toml(text):
        yield "toml"
    if read_pasted(text, Path(f"run{min(LOGS)}")) is not None:
        yield "log"


def _has_call(text: str) -> bool:
    """Whether a text is Python that calls something with a keyword."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return any(isinstance(node, ast.Call) and node.keywords for node in ast.walk(tree))
