"""The number of processes that a recipe runs on. TRL's own config does not say it: accelerate does, in a file beside
it.

Asked in this order: the user (`--world-size`); the native object; what `accelerate launch` or `torchrun` is told;
the one device that a program sees which python alone starts (with several, transformers' `Trainer` would share a batch
among them in one process, and that is no world size);
`num_processes` in the recipe (`trl grpo` hands it to accelerate); the file or packaged name that the launcher's
`config_file` or the recipe's `accelerate_config` gives; accelerate files beside the recipe:
`*accelerate*.yaml` in its folder, and every file of a folder `accelerate_configs` in its folder or up to three above
(Open-R1's layout). Several files beside it count only if they agree.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from batchbridge import Provenance, Source
from batchbridge.kit import Context, near_file
from batchbridge_trl.settings import PACKAGED_ACCELERATE_CONFIGS

KEY = "num_processes"
"""Accelerate's own word for the world size."""
_LEVELS = 4
_LARGEST_FILE = 64 * 1024
_LINE = r"^num_processes\s*:\s*['\"]?(\d+)['\"]?\s*(?:#.*)?$"


class WorldSize(NamedTuple):
    """The world size (devices) and where it comes from; both None when nobody says it, with the reason."""

    size: int | None
    provenance: Provenance | None
    reason: str = ""
    guessed: bool = False
    """Whether the number is from an accelerate file that only lies beside the recipe: the launch may name another."""


def world_size(source: Source, context: Context, native: Mapping[str, Any]) -> WorldSize:
    """Processes that train. `native`: the recipe's converted settings."""
    if context.world_size is not None:
        return _said(context.world_size, "argument", "the world size that was asked for")
    if source.record is not None:
        return _of_record(source)
    if source.native is not None and isinstance(size := getattr(source.native, "world_size", None), int):
        return _said(size, "object", "the config object's world_size")
    if source.launcher:
        from batchbridge.kit import launched_world_size

        if (size := launched_world_size(source.launcher)) is not None:
            return _said(size, "argument", f"what {source.launcher.get('launcher')} is told")
        if "launcher" not in source.launcher and source.launcher.get("visible_devices") == "1":
            return _said(1, "argument", "the one device that the program sees, which no launcher starts")
    if native.get(KEY) is not None:
        line, file = source.lines.get(KEY), str(source.path) if source.path else None
        return _said(
            native[KEY], "file" if line else "argument", "the recipe's num_processes", file if line else None, line
        )
    named = source.launcher.get("config_file") or native.get("accelerate_config") or native.get("config_file")
    if isinstance(named, str):
        if named in PACKAGED_ACCELERATE_CONFIGS:
            return _said(PACKAGED_ACCELERATE_CONFIGS[named], "default", f"trl's accelerate_configs/{named}.yaml")
        folder = source.path.parent if source.path else Path()
        for path in (folder / named, near_file(named, source.path)):
            if path is not None and (found := _read(path)):
                return _said(found[0], "file", f"{path}:{found[1]}", str(path), found[1])
        return WorldSize(None, None, f"accelerate_config = {named} does not say num_processes")
    return _beside(source.path)


def _of_record(source: Source) -> WorldSize:
    """The devices that a run's record says; what lies beside it now need not be what the run was started with."""
    if source.record is not None and (told := source.record.world_size) is not None:
        return _said(told.value, "file", told.place)
    if (size := world_of(source.values)) is not None:
        formula = "generation_batch_size / (per_device_train_batch_size x steps_per_generation), as the run held them"
        return _said(size, "derived", formula)
    return WorldSize(None, None, "the record of the run does not say them")


def world_of(held: Mapping[str, Any]) -> int | None:
    """The devices on which a configuration that holds these settings was constructed; None: they do not say it.
    Source: trl 0.16.0 to 1.16.0 GRPOConfig.__post_init__, which fills in generation_batch_size from them."""
    batch, micro, steps = (held.get(key) for key in _SIZES)
    if not are_sizes(batch, micro, steps) or batch % (micro * steps):  # type: ignore[operator]  # they are sizes
        return None
    return int(batch // (micro * steps))  # type: ignore[operator]  # as above


_SIZES = ("generation_batch_size", "per_device_train_batch_size", "steps_per_generation")


def are_sizes(*values: object) -> bool:
    """Whether all of them are whole numbers of at least 1."""
    return all(isinstance(value, int) and not isinstance(value, bool) and value > 0 for value in values)


def _beside(recipe: Path | None) -> WorldSize:
    if recipe is None:
        return WorldSize(None, None, "no accelerate file is known")
    found = {path: place for path in _candidates(recipe) if (place := _read(path))}
    sizes = {size for size, _ in found.values()}
    if len(sizes) == 1:
        path, (size, line) = next(iter(found.items()))
        shown = _shown(path)
        return _said(size, "file", f"{shown}:{line}", shown, line)._replace(guessed=True)
    if sizes:
        said = ", ".join(f"{path.name}: {size}" for path, (size, _) in found.items())
        return WorldSize(None, None, f"the accelerate files beside the recipe disagree ({said})")
    return WorldSize(None, None, "no *accelerate*.yaml and no folder accelerate_configs lies beside the recipe")


def _shown(path: Path) -> str:
    """A path that was found, from the working directory where it lies below it."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def _candidates(recipe: Path) -> Iterator[Path]:
    folder = recipe.resolve().parent
    for path in sorted(folder.glob("*accelerate*.y*ml")):
        if path.is_file():
            yield path
    for level in [folder, *folder.parents][:_LEVELS]:
        beside = level / "accelerate_configs"
        if beside.is_dir():
            yield from sorted(path for path in beside.glob("*.y*ml") if path.is_file())
            return


def _read(path: Path) -> tuple[int, int] | None:
    """(num_processes, line), from the line that says it: an accelerate file is flat there, and no more is needed."""
    try:
        if not path.is_file() or path.stat().st_size > _LARGEST_FILE:
            return None
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return None
    for number, line in enumerate(lines, 1):
        if match := re.match(_LINE, line):
            return int(match[1]), number
    return None


def _said(size: int, origin: Any, detail: str, file: str | None = None, line: int | None = None) -> WorldSize:
    return WorldSize(size, Provenance((KEY,), size, origin, detail, file, line))
