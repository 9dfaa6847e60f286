"""`batchbridge check --fix` and `--diff`: safe fixes written into the file, or shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from batchbridge.cli._output import say, writing
from batchbridge.meaning.briefs import many

if TYPE_CHECKING:
    from batchbridge.comparing.fix_file import FixedFile
    from batchbridge.reports import Check

NOT_IN_THE_FILE = ("settings", "words")
"""Options that change what FILE says: what is fixed is the file alone."""


def usage(file: str | None, source: Mapping[str, Any]) -> None:
    """Refusal (`click.UsageError`) of --fix and --diff where no file alone is checked."""
    if file is None or file == "-":
        raise click.UsageError("--fix and --diff are of a FILE; standard input, options and commands are not edited")
    if any(source.get(name) for name in NOT_IN_THE_FILE):
        raise click.UsageError("--fix and --diff are of what FILE says: leave out --set, and what stands behind --")


def fix(found: Check, asked: Mapping[str, Any], check: Callable[..., Check], *, write: bool) -> Check:
    """The file of `found` with its safe fixes written, and checked again; or the file as it is, where nothing is
    written. asked: the arguments that made `found`. write: else the difference is shown on standard output. What was
    done, or why nothing was, goes to standard error. Raises `click.UsageError` where the file cannot be written."""
    from batchbridge import read
    from batchbridge.comparing.fix_file import fix_file, safe_fixes
    from batchbridge.reading.files import load_source

    if found.judged is not None and safe_fixes(found.counted.findings):
        why = "name the version whose keys are meant with --framework-version"
        say(f"{found.name}: nothing was fixed: {why}", err=True)
        return found
    path = Path(found.name)
    again = {key: value for key, value in asked.items() if key != "name"}
    done = fix_file(path, found.reading, found.counted.findings, lambda source: read(**{**again, "source": source}))
    if done.new is None:
        why = "; ".join(done.problems) or "no finding has a safe fix"
        if done.problems or found.counted.findings:
            say(f"{found.name}: nothing was fixed: {why}", err=True)
        return found
    if not write:
        _show(done)
        say(f"{found.name}: {many(done.done, 'key')} would be fixed: {_account(done)}", err=True)
        return found
    with writing(found.name):
        done.write()
    say(f"{found.name}: {many(done.done, 'key')} fixed: {_account(done)}", err=True)
    source = load_source(path, env=asked["source"].env, framework=asked["framework"])
    return check(**{**asked, "source": source})


def _account(done: FixedFile) -> str:
    moved = "the meaning is the same in every field" if not done.moved else "; ".join(done.moved)
    return f"{', '.join(done.done)}; {moved}"


def _show(done: FixedFile) -> None:
    """The changed lines of a file, printed as `diff -u` has them."""
    import difflib

    from batchbridge.render.text import clean

    assert done.new is not None
    old, new = (text.replace("\r\n", "\n").removesuffix("\n").split("\n") for text in (done.old, done.new))
    for line in difflib.unified_diff(old, new, str(done.path), str(done.path), lineterm=""):
        click.echo(clean(line))
