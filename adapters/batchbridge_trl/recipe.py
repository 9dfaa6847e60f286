"""The recipe that a command line names: `trl grpo --config recipe.yaml --learning_rate 1e-6`.

Source: trl 1.16.0 TrlParser.parse_args_and_config: the file's values become argparse's defaults, so arguments win.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from batchbridge import Finding, Fix, Source, Where
from batchbridge.kit import load_source

KEY = "config"
_LEVELS = 4


def recipe_of(source: Source) -> tuple[Source, Source | None, Finding | None]:
    """(`source` without `--config`, the recipe it names, what is wrong with that). Only a command line names one."""
    named = source.values.get(KEY)
    if not source.argv or KEY not in source.values:
        return source, None, None
    rest = dataclasses.replace(source, values={key: value for key, value in source.values.items() if key != KEY})
    path = near(named, source.path) if isinstance(named, str) else None
    if path is None:
        file = None if source.path is None else str(source.path)
        where = Where(KEY, named if isinstance(named, str) else repr(named)[:60], file, source.lines.get(KEY))
        message = f"the recipe {where.value} is not found from here, and holds settings"
        fix = Fix("run from the folder where the command would run, or check the recipe itself")
        return rest, None, Finding("BB-TRL-009", "error", "config", message, (where,), (fix,), undecided=True)
    return rest, load_source(path), None


def near(named: str, beside: Path | None) -> Path | None:
    """The file `named`, as seen from the working directory, the script's folder, or up to three folders above it."""
    folders = [Path(), *([] if beside is None else [beside.resolve().parent, *beside.resolve().parents[1:_LEVELS]])]
    for folder in folders:
        try:
            if (folder / named).is_file():
                return folder / named
        except (OSError, ValueError):
            return None
    return None
