"""`batchbridge check --fix`, `--fix=N` and `--diff`: safe fixes, or one way out, written into the file, or shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from batchbridge.cli._output import say, writing
from batchbridge.meaning.briefs import many

if TYPE_CHECKING:
    from batchbridge.comparing.fix_file import FixedFile
    from batchbridge.meaning.findings import Finding
    from batchbridge.reading.ways_out import WayOut
    from batchbridge.reports import Check

NOT_IN_THE_FILE = ("settings", "words")
"""Options that change what FILE says: what is fixed is the file alone."""


def usage(file: str | None, source: Mapping[str, Any]) -> None:
    """Refusal (`click.UsageError`) of --fix and --diff where no file alone is checked."""
    if file is None or file == "-":
        raise click.UsageError("--fix and --diff are of a FILE; standard input, options and commands are not edited")
    if any(source.get(name) for name in NOT_IN_THE_FILE):
        raise click.UsageError("--fix and --diff are of what FILE says: leave out --set, and what stands behind --")


def fix(
    found: Check, asked: Mapping[str, Any], check: Callable[..., Check], *, write: bool, number: int | None = None
) -> Check:
    """The file of `found` with its safe fixes written, and checked again; or the file as it is, where nothing is
    written. asked: the arguments that made `found`. write: else the difference is shown on standard output. number: the
    way out to write in the place of safe fixes. What was done, or why nothing was, goes to standard error. Raises
    `click.UsageError` where the file cannot be written, or no way out has this number."""
    from batchbridge import read
    from batchbridge.comparing.fix_file import fix_file, safe_fixes
    from batchbridge.reading.files import load_text
    from batchbridge.render.findings import sizes_of

    finding, way = (None, None) if number is None else _way_out(found, number)
    choice = None if finding is None or way is None else (finding, way.fix)
    if choice is None and found.judged is not None and safe_fixes(found.counted.findings):
        why = "name the version whose keys are meant with --framework-version"
        say(f"{found.name}: nothing was fixed: {why}", err=True)
        return found
    path = Path(found.name)
    again = {key: value for key, value in asked.items() if key != "name"}
    if choice is not None and found.judged is not None:
        again["version"] = found.reading.framework_version
    said = {key: asked.get(key) for key in ("framework", "command", "world_size")} | {"env": asked["source"].env}

    def as_read(text: str) -> dict[str, Any]:
        return {"source": load_text(text, path, **said)}

    findings = found.counted.findings
    done = fix_file(path, found.reading, findings, lambda text: read(**{**again, **as_read(text)}), choice)
    if done.new is None:
        why = "; ".join(done.problems) or "no finding has a safe fix"
        if done.problems or found.counted.findings:
            say(f"{found.name}: nothing was fixed: {why}", err=True)
        return found
    what = f"way out {number}" if way is not None else many(done.done, "key")
    account = _account(done) if way is None else f"{done.done[0]}; {sizes_of(way)}"
    if not write:
        _show(done)
        say(f"{found.name}: {what} would be {'fixed' if way is None else 'written'}: {account}", err=True)
        return found
    with writing(found.name):
        done.write()
    say(f"{found.name}: {what} {'fixed' if way is None else 'written'}: {account}", err=True)
    assert done.new is not None
    return check(**{**asked, **as_read(done.new)})


def _way_out(found: Check, number: int) -> tuple[Finding, WayOut]:
    """The error and the way out with a number. Raises `click.UsageError`."""
    ways = [(finding, way) for finding, of_it in found.ways_out for way in of_it]
    if number > len(ways):
        there = f"the ways out are 1 to {len(ways)}" if ways else "no error has a way out that was tried"
        raise click.UsageError(f"--fix={number} of {found.name}: {there}")
    return ways[number - 1]


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
