"""A choice of `scale` written into the user's own file: YAML and launch scripts, everything else in them as it was.

The edited text is read back, and is not an answer unless it means what the choice means.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from batchbridge.comparing.convert import Conversion, account
from batchbridge.comparing.edit_file import KeyChange, convert_into, decoded
from batchbridge.comparing.scale import Choice, Scaling
from batchbridge.contract.adapter import Adapter
from batchbridge.contract.reading import Reading
from batchbridge.errors import CannotEdit
from batchbridge.meaning.findings import Where
from batchbridge.reading.files import SCRIPTS
from batchbridge.reading.read import read_again


def applied(
    scaling: Scaling, choice: Choice, path: Path, adapters: Mapping[str, Adapter], **asked: Any
) -> tuple[str, tuple[KeyChange, ...]]:
    """The text of the file `path` with the settings of `choice`, and what changed in it; the file is not written.

    asked: `env` and `command` of the launch script, as for `read`. Raises `CannotEdit`.
    """
    adapter = adapters[scaling.reading.framework]
    if path.suffix.lower() in SCRIPTS:
        return _in_script(scaling.reading, choice, path, adapter, **asked)
    settings = {key: new for key, (_, new) in choice.settings.items() if new is not None}
    # What need not change is not asked for; what contradicts the rest goes.
    written = dataclasses.replace(choice.written, values=settings)
    found = Conversion(
        source=choice.reading,
        framework=adapter.framework,
        framework_version=choice.reading.framework_version,
        written=written,
        back=choice.reading,
        fields=tuple(account(adapter, choice.reading, choice.reading)),
    )
    edited = convert_into(adapter, found, path)
    if edited.text is None or edited.problems or edited.conversion.back is None:
        raise CannotEdit(*(edited.problems or ("it cannot be edited",)))
    if edited.conversion.back.spec != choice.spec:
        raise CannotEdit(*(edited.against or (f"{path} would mean something else",)))
    return edited.text, edited.changes


_VALUE = r"[\w.+:/-]+"
"""A literal value in a script, without quotes or variables."""


def _in_script(
    reading: Reading,
    choice: Choice,
    path: Path,
    adapter: Adapter,
    env: Mapping[str, str] | None = None,
    command: int | None = None,
) -> tuple[str, tuple[KeyChange, ...]]:
    from batchbridge.reading.scripts import load_script

    text, _, _ = decoded(path.read_bytes())
    lines = text.split("\n")  # only at line feeds, as lines are counted
    problems, changes = [], []
    places = {key: place for key, place in reading.places.items() if _stands(place, path)}
    new = {key: pair for key, pair in choice.settings.items() if key not in places}
    anchor: tuple[int, int, str] | None = None
    for key, (old, value) in choice.settings.items():
        if key in new:
            continue
        at = (places[key].line or 1) - 1
        pattern = rf"(?<!\S)((?:\+{{0,2}}|--){re.escape(key)})(=|\s+)({_VALUE})(?=\s|$)"
        found = list(re.finditer(pattern, lines[at])) if at < len(lines) else []
        if value is None:
            problems.append(f"{key} contradicts the rest: take it out of line {at + 1}")
            continue
        if len(found) != 1 or not _plain(value):
            problems.append(f"line {at + 1} does not say {key} as one plain word: set it to {value} there")
            continue
        (match,) = found
        lines[at] = f"{lines[at][: match.start(3)]}{value}{lines[at][match.end(3) :]}"
        anchor = anchor or (at, match.start(3) + len(str(value)), "--" if match[1].startswith("--") else "")
        changes.append(KeyChange(key, old, value, "set"))
    for key, (old, value) in new.items():
        if anchor is None or not _plain(value):
            problems.append(f"{key} does not stand in the script: add it, with {value}")
            continue
        at, end, dashes = anchor
        word = f" --{key} {value}" if dashes else f" {key}={value}"
        lines[at] = lines[at][:end] + word + lines[at][end:]
        anchor = (at, end + len(word), dashes)
        changes.append(KeyChange(key, old, value, "added"))
    if problems:
        raise CannotEdit(*problems)
    edited = "\n".join(lines)
    source = load_script(edited, path, env=env, framework=adapter.framework, chosen=command)
    for devices in (None, choice.spec.topology.world_size):
        again = read_again(source, adapter, reading, devices)
        if again.spec == choice.spec:
            break
    if again.spec != choice.spec or again.verdict != "valid":
        raise CannotEdit(f"{path.name} would mean something else with these settings in it")
    return edited, tuple(changes)


def _stands(place: Where, path: Path) -> bool:
    """Whether a setting stands in the script itself, and not in a file that it names."""
    return place.line is not None and place.file is not None and Path(place.file) == path


def _plain(value: object) -> bool:
    return isinstance(value, (int, float, str)) and re.fullmatch(_VALUE, str(value)) is not None
