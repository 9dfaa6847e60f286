"""`batchbridge init`: the first settings of a project, from the runs in its folder and the versions that it pins."""

from __future__ import annotations

import glob
import json
import os
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from batchbridge.cli import _folder
from batchbridge.cli._progress import progress
from batchbridge.cli._project import project
from batchbridge.cli.main import FINE

if TYPE_CHECKING:
    from batchbridge.reading.pins import Pin

OWN, SHARED = "batchbridge.toml", "pyproject.toml"
TABLE = "tool.batchbridge"
MOST_DEVICES = 8
"""Most numbers of devices that a comment names; also the devices of the usual node."""


class Run(NamedTuple):
    """A run that was found. devices: on how many it is valid, where the file leaves that open."""

    path: str
    framework: str
    devices: tuple[int, ...] = ()


class Group(NamedTuple):
    """Files of one kind in a folder, and below it where `deep`; every one of them is a run of one framework."""

    folder: str
    suffix: str
    deep: bool
    runs: tuple[Run, ...]

    @property
    def glob(self) -> str:
        """The pattern of the files, relative to the folder of the settings."""
        parts = [] if self.folder == "." else [glob.escape(Path(self.folder).as_posix())]
        return "/".join([*parts, *(["**"] if self.deep else []), f"*{self.suffix}"])


@click.command("init", short_help="Propose a project's settings, from the runs in its folder.")
@click.argument("folder", default=".", type=click.Path(exists=True, file_okay=False, path_type=str))
@click.option("--write", is_flag=True, help=f"Write them to {SHARED}, or where there is none to {OWN}.")
def command(folder: str, write: bool) -> int:
    """Propose the settings of a project ([tool.batchbridge]): which files are runs of what, under which version.

    FOLDER is the project's, with its pyproject.toml; its runs are found as by `check FOLDER`. Nothing is written
    without --write, and settings that are there already are never changed.
    """
    home = Path(folder)
    if project(str(home / "any")).folder == home.absolute():
        known = OWN if (home / OWN).exists() else f"{SHARED} [{TABLE}]"
        raise click.UsageError(f"{known} has settings already; docs/ci.md says what else can stand there")
    files = [os.path.relpath(path, home) for path in _folder.files_of(folder)]
    runs = [run for path in progress(files, len(files), "read") if (run := run_in(home, path)) is not None]
    if not runs:
        raise click.UsageError(
            f"{folder}: no run of a known framework; batchbridge check {folder} has each file's reason"
        )
    shared = (home / SHARED).is_file()
    text = "\n".join(settings(home, runs, groups(files, runs), TABLE if shared else "")) + "\n"
    click.echo(f"{len(files)} files that may be runs; {counted(runs)}", err=True)
    if not write:
        click.echo(text, nl=False)
        click.echo("nothing is written without --write", err=True)
        return FINE
    place = home / (SHARED if shared else OWN)
    _write(place, text, shared)
    click.echo(f"{place}: written", err=True)
    return FINE


def _write(place: Path, text: str, shared: bool) -> None:
    """A new file, or a table behind what the file has."""
    try:
        own = place.read_bytes().decode() if shared else ""
        text = f"\n{text}" if shared else text
        tomllib.loads(own + text)
        with place.open("a" if shared else "x", encoding="utf-8", newline="\r\n" if "\r\n" in own else "") as file:
            file.write(text)
    except OSError as error:
        raise click.UsageError(f"{place}: cannot be written: {error.strerror}") from None
    except ValueError:  # no TOML, or no UTF-8
        raise click.UsageError(f"{place}: [{TABLE}] cannot be added at its end; add what is printed by hand") from None


def counted(runs: Iterable[Run]) -> str:
    """The number of runs of each framework."""
    counts = Counter(run.framework for run in runs)
    return ", ".join(f"{count} of {name}" for name, count in counts.most_common())


def run_in(home: Path, path: str) -> Run | None:
    """The run that a file is; None: it is none. Judged under the version that is pinned, else the newest known."""
    from batchbridge import check
    from batchbridge.contract import plugins
    from batchbridge.reading.read import read

    reading = read(home / path)
    adapter = plugins.adapters().get(reading.framework)
    if adapter is None or _folder.no_run(reading) is not None:
        return None
    version = reading.framework_version or adapter.newest_version or None
    judged = check(home / path, framework=reading.framework, version=version)
    return None if _folder.no_run(judged.reading) is not None else Run(path, reading.framework, judged.devices)


def groups(files: Iterable[str], runs: Iterable[Run]) -> list[Group]:
    """Files that one glob can speak of, in the order of their folders: all of one kind in a folder, and below it where
    these are alike, too. A folder with other files of the kind has none: there every file is asked whose it is."""
    by_path = {run.path: run for run in runs}
    direct: dict[tuple[str, str], list[Run | None]] = defaultdict(list)
    below: dict[tuple[str, str], list[Run | None]] = defaultdict(list)
    for path in files:
        if not path.isprintable():
            continue
        folder, suffix = str(Path(path).parent), Path(path).suffix
        direct[folder, suffix].append(by_path.get(path))
        for above in (folder, *map(str, Path(folder).parents)):
            below[above, suffix].append(by_path.get(path))
    found: list[Group] = []
    claimed: set[str] = set()
    for (folder, suffix), members in sorted(below.items(), key=lambda item: (len(Path(item[0][0]).parts), item[0])):
        alike = (_alike(members) if folder != "." else ()) or _alike(direct.get((folder, suffix), ()))
        if claimed.isdisjoint(run.path for run in alike) and alike:
            common = os.path.commonpath([Path(run.path).parent for run in alike]) or "."
            found.append(Group(common, suffix, any(str(Path(run.path).parent) != common for run in alike), alike))
            claimed |= {run.path for run in alike}
    return found


def _alike(members: Iterable[Run | None]) -> tuple[Run, ...]:
    """The runs, where all are runs of one framework; else nothing."""
    members = tuple(members)
    runs = tuple(run for run in members if run is not None)
    return runs if len(runs) == len(members) and len({run.framework for run in runs}) == 1 else ()


def settings(home: Path, runs: list[Run], found: Iterable[Group], table: str) -> Iterator[str]:
    """The lines of the settings, as TOML. table: the name of the table that they stand in; empty: the whole file.

    A glob gets settings where there are any beside the framework: that is seen without them.
    """
    frameworks = list(dict.fromkeys(run.framework for run in runs))
    pins = {name: pin for name in frameworks if (pin := _pin(home, name, runs)) is not None}
    alone = len(frameworks) == 1
    if table:
        yield f"[{table}]"
    yield f"# found: {counted(runs)}"
    for name in frameworks:
        if name not in pins:
            yield f"# nothing here pins {name}: without a framework_version every known release is asked"
    if alone and pins:
        yield _version(pins[frameworks[0]])
    yield "# dataset_size = 8000  # prompts in the dataset"
    for group in found:
        name = group.runs[0].framework
        lines = [*([] if alone or name not in pins else [_version(pins[name])]), *_devices(group.runs)]
        if lines:
            place = ".".join([*([table] if table else []), "files"])
            yield from ("", f"[{place}.{_quoted(group.glob)}]", f"framework = {_quoted(name)}", *lines)


def _quoted(text: str) -> str:
    """A text of TOML; what TOML cannot say so is no name of a file that is asked about."""
    return json.dumps(text, ensure_ascii=False)


def _pin(home: Path, framework: str, runs: Iterable[Run]) -> Pin | None:
    """The pin of the project for a framework, as it is seen from the first of its runs."""
    from batchbridge.contract import plugins
    from batchbridge.reading.pins import pinned

    distribution = plugins.adapters()[framework].distribution
    beside = next(home / run.path for run in runs if run.framework == framework)
    return pinned(beside, distribution) if distribution else None


def _version(pin: Pin) -> str:
    return f"framework_version = {_quoted(pin.version)}  # {pin.place}"


def _devices(runs: Iterable[Run]) -> Iterator[str]:
    """A comment, where files leave open how many devices train: nobody but the user knows."""
    several = [run.devices for run in runs if run.devices]
    if several:
        common = sorted(set(several[0]).intersection(*several[1:]))
        usual = max((one for one in common if one <= MOST_DEVICES), default=common[0] if common else 1)
        shown = ", ".join(map(str, common[:MOST_DEVICES])) + (", ..." if common[MOST_DEVICES:] else "")
        yield f"# world_size = {usual}  # devices; {f'valid on {shown}' if common else 'no number suits all of them'}"
