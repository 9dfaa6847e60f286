"""The file of settings that ms-swift's command names, and the processes that it asks for.

Source: ms-swift 4.1.0 to 4.6.0 swift/cli/main.py (parse_yaml_args).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from batchbridge import Source
from batchbridge.kit import launcher_of
from batchbridge_trl import SWIFT

ENVIRONMENT = "ENV"
"""Key of a file's variables, which hold where the environment has no such ones."""


def file_of(argv: Sequence[str]) -> str | None:
    """The file of settings that `swift rlhf FILE` names."""
    begins = next((place for place, word in enumerate(argv) if word == "rlhf" or word.endswith("rlhf.py")), len(argv))
    return next((word for word in argv[begins + 1 : begins + 2] if word.endswith((".yaml", ".yml", ".json"))), None)


def in_environment(source: Source) -> Source:
    """A file of ms-swift's with the processes that its `ENV` asks for; any other source as it is."""
    said = source.values.get(ENVIRONMENT)
    if not isinstance(said, Mapping):
        return source
    values = {key: value for key, value in source.values.items() if key != ENVIRONMENT}
    processes = launcher_of((SWIFT,), {str(name): str(value) for name, value in said.items()})
    return replace(source, values=values, launcher={**processes, **source.launcher})
