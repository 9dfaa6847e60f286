"""`batchbridge check FOLDER`: the runs in a folder, each by itself, and a line for every file that is none."""

from __future__ import annotations

import os
import re
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from batchbridge.meaning.findings import LOOKS_LIKE_TRAINING

if TYPE_CHECKING:
    from batchbridge.contract.detection import DetectionFacts
    from batchbridge.contract.reading import Reading
    from batchbridge.meaning.findings import Finding
    from batchbridge.reports import Check

_T = TypeVar("_T")

SUFFIXES = (".yaml", ".yml", ".sh", ".bash", ".slurm", ".sbatch")
"""Files of a folder that may be configurations or launch scripts; others are read where they are named."""
MANY = 20
"""Files from which on several processes pay."""
FEW = 10
"""Files that are no runs, up to which each has a line beside those that are."""
MOST_PROCESSES, CHUNK = 8, 4
"""Processes that share the files of a folder, and files that one takes at a time."""
MOST_BYTES = 32 << 20
"""Size of the largest program or notebook of a folder that is looked into (bytes)."""
UNREAD = "not read"
"""The word of a file that looks like training and that nobody here reads."""
SURE = 0.9
"""Certainty from which on the words of a command name a framework's own program."""
_NO_RUN = ("BB005", "BB010", "BB020", "BB021")


def files_of(path: str) -> list[str]:
    """The files that a path stands for, sorted.

    A file, and a folder that a run left, stand for themselves. Any other folder stands for the files in it and below
    it, without hidden ones, those of past runs and what links lead to; where there are none, for the past runs in it.
    """
    try:
        folder = Path(path).is_dir()
    except ValueError:  # a NUL character
        folder = False
    if not folder:
        return [path]
    from batchbridge.reading import past_runs

    if past_runs.is_run(Path(path)):
        return [path]
    found = []
    for place, folders, names in os.walk(path):
        folders[:] = [name for name in folders if not (name.startswith(".") or past_runs.is_run(Path(place, name)))]
        for name in names:
            file = Path(place, name)
            if not name.startswith(".") and (name.endswith(SUFFIXES) or (_python(name) and _trains(file))):
                found.append(str(file))
    return sorted(found) or [str(run) for run in past_runs.runs_below(Path(path))]


def _python(name: str) -> bool:
    """Whether a name is that of a program or notebook; tests build configurations that nobody trains."""
    return name.endswith((".py", ".ipynb")) and not name.startswith(("test_", "conftest", "Unsloth"))


def _trains(file: Path) -> bool:
    """Whether the text of a program names a configuration that some adapter reads, or trains by rewards in some other
    way: most files of a folder do not, and are not parsed for it."""
    from batchbridge.contract import plugins
    from batchbridge.reading.looks import trains_by_rewards

    endings = {name for tells in plugins.tells().values() if tells is not None for _, name in tells.classes if name}
    try:
        if file.is_symlink() or file.stat().st_size > MOST_BYTES:
            return False
        text = file.read_bytes()
    except OSError:
        return False
    built = b"Trainer(" in text and any(f"{ending}(".encode() in text for ending in endings)
    trains = built or trains_by_rewards(text.decode("utf-8", "replace"))
    return trains and not _is_frameworks(file, started=b"__main__" in text or file.suffix == ".ipynb")


def _is_frameworks(file: Path, *, started: bool) -> bool:
    """Whether a file is code of a framework whose copy it lies in: a module that is not started, or the framework's own
    program, of which launch scripts say the run. started: it can be started, and may be a program of the user's."""
    for facts, package in _copies_around(file.resolve().parent):
        module = ".".join(file.resolve().relative_to(package.parent).with_suffix("").parts)
        words = (module, f"-m\n{module}", f"{module.replace('.', '/')}.py")
        sure = (one for one, certainty in facts.programs.items() if certainty >= SURE)
        if not started or any(re.search(one, said, re.MULTILINE) for one in sure for said in words):
            return True
    return False


@lru_cache
def _copies_around(folder: Path) -> tuple[tuple[DetectionFacts, Path], ...]:
    """The copies of frameworks that a folder lies in: the facts of each framework, and the package's folder."""
    from batchbridge.contract import plugins
    from batchbridge.contract.reading import Source

    inside = Source(path=folder / "module.py")
    found = []
    for framework, facts in plugins.tells().items():
        adapter = plugins.adapters().get(framework) if facts is not None and facts.programs else None
        try:
            copy = adapter.own_copy(inside) if adapter is not None else None
        except Exception:  # a bug of an adapter; where it reads a run, it is named
            copy = None
        if facts is not None and copy is not None and folder.is_relative_to(package := copy.folder.resolve()):
            found.append((facts, package))
    return tuple(found)


def spread(one: Callable[[str], _T], files: Sequence[str]) -> Iterator[_T]:
    """The results of `one`, which can be pickled, for each file, in order: of many files in several processes."""
    from batchbridge.cli._progress import progress  # a single file needs none

    processes = min(os.cpu_count() or 1, MOST_PROCESSES)
    if len(files) < MANY or processes == 1:
        yield from progress(map(one, files), len(files), "checked")
        return
    from concurrent.futures import ProcessPoolExecutor

    with ProcessPoolExecutor(processes, initializer=_uninterrupted) as pool:
        try:
            yield from progress(pool.map(one, files, chunksize=CHUNK), len(files), "checked")
        finally:
            pool.shutdown(cancel_futures=True)


def _uninterrupted() -> None:
    """The start of a process of the pool: Ctrl-C is the first process's, which ends the others."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


class FileVerdict(NamedTuple):
    """The verdict on a file in one line. word: ok, error, undecided, not read, or skipped for what is not a run. code:
    the rule's, of the finding that `text` is the message of; others: how many more there are of its kind."""

    file: str
    word: str
    text: str
    code: str = ""
    others: int = 0


def line(found: Check) -> FileVerdict:
    """The line of a report."""
    from batchbridge.render.findings import kind_of

    if (reason := no_run(found.reading)) is not None:
        whose = reason.code == "BB020" and "; it is" not in reason.message
        why = reason.message.partition(";")[0] if whose else reason.message
        return FileVerdict(found.name, UNREAD if reason.code == LOOKS_LIKE_TRAINING else "skipped", _one_line(why))
    if found.verdict == "valid":
        return FileVerdict(found.name, "ok", _size(found.reading))
    word = "error" if found.verdict == "invalid" else "undecided"
    first, *others = (one for one in found.findings if kind_of(one) == word)
    return FileVerdict(found.name, word, _one_line(first.message), first.code, len(others))


def _one_line(text: str) -> str:
    return " ".join(text.split())


def no_run(reading: Reading) -> Finding | None:
    """The reason why a file is not a run that anybody judges; None: it is one."""
    from batchbridge.contract import plugins

    wrong = [one for one in reading.findings if one.severity == "error"]
    adapter = plugins.adapters().get(reading.framework)
    if adapter is not None and (own := [one for one in wrong if one.code in adapter.no_run and one.undecided]):
        return own[0]
    nothing = adapter is None or not (reading.spec or reading.native)
    return next((one for one in wrong if nothing and one.code in (LOOKS_LIKE_TRAINING, *_NO_RUN)), None)


def _size(reading: Reading) -> str:
    step = reading.derived.get("completions_per_step") if reading.derived else None
    return f"{step:,} completions per step" if isinstance(step, int) else ""


def open_ones(lines: Sequence[FileVerdict]) -> str:
    """`3 trainers not read, 2 runs undecided`: what an exit code of 0 does not say; empty where there is nothing."""
    from batchbridge.render.findings import count

    unread, undecided = (sum(one.word == word for one in lines) for word in (UNREAD, "undecided"))
    said = [f"{count(unread, 'trainer')} not read"] if unread else []
    return ", ".join([*said, *([f"{count(undecided, 'run')} undecided"] if undecided else [])])


def told(lines: Sequence[FileVerdict], *, verbose: bool = False) -> Iterator[str]:
    """The lines of a report: what several files leave open alike, a line for each run, then for each other file, and
    the totals. More than `FEW` other files beside runs are counted alone. verbose: they have their lines."""
    if said := open_ones(lines):
        yield said
    skipped = [one for one in lines if one.word == "skipped"]
    listed = [one for one in lines if one.word != "skipped"]
    hidden = bool(listed) and len(skipped) > FEW and not verbose
    listed += [] if hidden else skipped
    width = max((len(one.file) for one in listed), default=0)
    for one in listed:
        more = f" (and {one.others} more)" if one.others else ""
        code = f"    {one.code}" if one.code else ""
        yield f"{one.file:{width}}  {one.word:9}  {one.text}{more}{code}".rstrip()
    counts = Counter(one.word for one in lines)
    said = ", ".join(
        f"{counts[word]} {word}" for word in ("ok", "error", "undecided", UNREAD, "skipped") if counts[word]
    )
    named = " (-v names them)" if hidden else ""
    yield f"{len(lines)} file{'s' if lines[1:] else ''}: {said}{named}" if lines else "no file that may be a run"
