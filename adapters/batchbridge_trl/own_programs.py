"""The program that a recipe or a command is read by, where it lies in the user's repository, and what it declares.

Open-R1's `src/open_r1/grpo.py` and what was made of it: a script that hands dataclasses to TrlParser, its own
`GRPOConfig` among them, which is derived from TRL's. Nothing is imported.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from batchbridge import Finding, Source, Where
from batchbridge.kit import folders_above, near_file, root_of
from batchbridge_trl.recipe import programs_near

if TYPE_CHECKING:
    from batchbridge.kit import BuiltTrainer
    from batchbridge.kit.declared_settings import DeclaredSetting

SHOWN = 4
MOST_LOOKED_INTO = 1000
_ROOTS = (".git", "pyproject.toml", "requirements.txt", "setup.py")
"""Marks of a repository's root."""
_NOT_LOOKED_INTO = ("node_modules", "site-packages", "venv")
_PARSERS = (b"TrlParser", b"HfArgumentParser")


class OwnProgram(NamedTuple):
    """A program of the user's repository that parses dataclasses. place: its file, for a person. declared: the fields
    that classes of the repository declare, TRL's own not among them."""

    file: Path
    place: str
    declared: dict[str, DeclaredSetting]

    @property
    def trainers(self) -> tuple[BuiltTrainer, ...] | None:
        """The trainers that it builds; None: it is not read."""
        from batchbridge.kit import trainers_of

        return trainers_of(self.file)

    def note(self, keys: Sequence[str]) -> Finding:
        """The note that settings are its own."""
        named = ", ".join(keys[:SHOWN]) + (f" and {len(keys) - SHOWN} more" if len(keys) > SHOWN else "")
        count = f"{len(keys)} {'setting' if len(keys) == 1 else 'settings'}"
        return Finding(
            *("BB038", "note", "config", f"{self.place}, your program: {count} of its own, not judged: {named}"),
            (Where(None, None, self.place),),
        )


def own_program(source: Source) -> OwnProgram | None:
    """The program that reads a source; None where it is not here, or parses no dataclass.

    Of a recipe alone the one that lies where Open-R1 has it.
    """
    if source.construction is not None or source.native is not None or source.record is not None:
        return None
    for file in _candidates(source):
        from batchbridge.kit.declared_settings import classes_parsed  # most recipes have no program beside them

        names = classes_parsed(file)
        if names and any("GRPO" in name for name in names):
            return OwnProgram(file, _place(file), _declared(file, names))
    return None


def reader_of(recipe: Path) -> str | None:
    """The program of the repository that names the recipe and hands it to no parser of TRL's: what it does with a
    setting is its own affair. None: none is found among the first `MOST_LOOKED_INTO` programs."""
    root = next((one for one in folders_above(recipe) if any((one / mark).exists() for mark in _ROOTS)), None)
    for file in itertools.islice(_programs_below(root), MOST_LOOKED_INTO) if root is not None else ():
        try:
            text = file.read_bytes()
        except OSError:
            continue
        if recipe.name.encode() in text and b"GRPOConfig" in text and not any(one in text for one in _PARSERS):
            return _place(file)
    return None


def _programs_below(root: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(root):
        folders[:] = sorted(one for one in folders if not one.startswith(".") and one not in _NOT_LOOKED_INTO)
        yield from (Path(place, name) for name in sorted(names) if name.endswith(".py"))


def _candidates(source: Source) -> Iterator[Path]:
    if source.argv:
        from batchbridge_trl.user_settings import program_of

        program = program_of(source.argv) or ""
        found = near_file(program, source.path) or near_file(f"{program.replace('.', '/')}.py", source.path)
        yield from () if found is None else (found,)
    elif source.path is not None:
        yield from programs_near(source.path)


def _declared(file: Path, names: Iterable[str]) -> dict[str, DeclaredSetting]:
    from batchbridge.kit.declared_settings import declared_fields

    found: dict[str, DeclaredSetting] = {}
    root = _root(file)
    for name in names:
        found |= declared_fields(root, file, name, nested=False)
    return found


def _root(file: Path) -> Path:
    """The folder that a program's modules are imported from: its package's, or its repository's."""
    inside = (folder for folder in folders_above(file) if not (folder / "__init__.py").exists())
    return root_of(file) or next(inside, file.resolve().parent)


def _place(file: Path) -> str:
    here = Path.cwd()
    return (file.relative_to(here) if file.is_relative_to(here) else file).as_posix()
