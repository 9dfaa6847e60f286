"""`batchbridge check --fix` and `--diff`: safe fixes written into the file, or shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from batchbridge.comparing.fix_file import Fixed
    from batchbridge.contract.reading import Reading, Source
    from batchbridge.reports import Check

NOT_IN_THE_FILE = ("settings", "words")
"""Options that change what FILE says: what is fixed is the file alone."""


def usage(file: str | None, source: Mapping[str, Any]) -> None:
    """Raises `click.UsageError` where no file alone is checked."""
    if file is None or file == "-":
        raise click.UsageError("--fix and --diff are of a FILE; standard input, options and commands are not edited")
    if any(source.get(name) for name in NOT_IN_THE_FILE):
        raise click.UsageError("--fix and --diff are of what FILE says: leave out --set, and what stands behind --")


def fix(found: Check, asked: Mapping[str, Any], check: Callable[..., Check], *, write: bool) -> Check:
    """The file of `found` with its safe fixes written, and checked again; or the file as it is, where nothing is
    written. asked: the arguments that made `found`. write: else the difference is shown on standard output. What was
    done, or why nothing was, goes to standard error. Raises `click.UsageError` where the file cannot be written."""
    from batchbridge.comparing.fix_file import fix_file, safe_fixes

    if found.judged is not None and safe_fixes(found.counted.findings):
        _say(found.name, "nothing was fixed: name the version whose keys are meant with --framework-version")
        return found
    again = {key: value for key, value in asked.items() if key != "name"}
    path = Path(found.name)
    done = fix_file(path, found.reading, found.counted.findings, _reader(again))
    if done.new is None:
        why = "; ".join(done.problems) or "no finding has a safe fix"
        if done.problems or found.counted.findings:
            _say(found.name, f"nothing was fixed: {why}")
        return found
    if not write:
        _show(done)
        _say(found.name, f"{_count(done)} would be fixed: {_account(done)}")
        return found
    try:
        done.write()
    except OSError as error:
        raise click.UsageError(f"{found.name}: cannot be written: {error.strerror}") from None
    _say(found.name, f"{_count(done)} fixed: {_account(done)}")
    from batchbridge.reading.files import load_source

    source = load_source(path, env=asked["source"].env, framework=asked["framework"])
    return check(**{**asked, "source": source})


def _reader(asked: Mapping[str, Any]) -> Callable[[Source], Reading]:
    from batchbridge import read

    return lambda source: read(**{**asked, "source": source})


def _count(done: Fixed) -> str:
    return f"{len(done.done)} key{'' if len(done.done) == 1 else 's'}"


def _account(done: Fixed) -> str:
    moved = "the meaning is the same in every field" if not done.moved else "; ".join(done.moved)
    return f"{', '.join(done.done)}; {moved}"


def _say(name: str, text: str) -> None:
    from batchbridge.render.text import clean, one_line

    click.echo(clean(one_line(f"{name}: {text}")), err=True)


def _show(done: Fixed) -> None:
    """As `diff -u` has it."""
    import difflib

    from batchbridge.render.text import clean

    assert done.new is not None
    old, new = (text.replace("\r\n", "\n").removesuffix("\n").split("\n") for text in (done.old, done.new))
    for line in difflib.unified_diff(old, new, str(done.path), str(done.path), lineterm=""):
        click.echo(clean(line))
