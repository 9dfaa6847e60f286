"""A choice of `scale` written into the user's own file: YAML and launch scripts, everything else in them as it was.

The edited text is read back, and is not an answer unless it means what the choice means.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from batchbridge.comparing.convert import Conversion, account
from batchbridge.comparing.edit_file import KeyChange, convert_into, decoded
from batchbridge.comparing.edit_text import lines_in
from batchbridge.comparing.edit_words import edit_script
from batchbridge.comparing.legal_choices import Choice
from batchbridge.comparing.scale import Scaling
from batchbridge.contract.adapter import Adapter
from batchbridge.contract.reading import Reading
from batchbridge.errors import CannotEdit
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
    edited, changes = edit_script(text, choice.settings, lines_in(reading, path))
    source = load_script(edited, path, env=env, framework=adapter.framework, chosen=command)
    for devices in (None, choice.spec.topology.world_size):
        again = read_again(source, adapter, reading, devices)
        if again.spec == choice.spec:
            break
    if again.spec != choice.spec or again.verdict != "valid":
        raise CannotEdit(f"{path.name} would mean something else with these settings in it")
    return edited, changes
