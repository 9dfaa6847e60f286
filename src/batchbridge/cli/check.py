"""`batchbridge check`: the verdict, the batches, whether a run of it would be followed, and the findings."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from batchbridge.cli import _folder
from batchbridge.cli._input import InputCommand, asked_for, input_options, language_option, verbose_option
from batchbridge.cli._project import FAIL_ON, project
from batchbridge.cli._selection import FindingSelection, exit_code
from batchbridge.cli._tables import show, table_for_stdout
from batchbridge.cli.main import FINE, INVALID
from batchbridge.meaning.findings import LOOKS_LIKE_TRAINING
from batchbridge.render.words import say, spoken

if TYPE_CHECKING:
    from batchbridge.contract.reading import Reading
    from batchbridge.reports import Check

    _Counting = Callable[[str], tuple[Check, int, set[str]]]

FORMATS = ("text", "concise", "json", "github", "gitlab", "sarif", "junit")


class _CheckCommand(InputCommand):
    """The command with `--fix=N` beside `--fix`, whose next word is a file and no number."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        said = [re.sub(r"^--fix=", "--fix-choice=", word) for word in args[:end]]
        return super().parse_args(ctx, [*said, *args[end:]])


@click.command("check", cls=_CheckCommand, short_help="List what is wrong with configurations.")
@input_options
@click.argument("more", metavar="[FILE]...", nargs=-1, type=click.Path(path_type=str))
@verbose_option
@click.option(
    "--output-format", type=click.Choice(FORMATS), help="text by default; --json is short for json; see docs/ci.md."
)
@click.option(
    "--select", metavar="CODE", multiple=True, help="Count only these rules (BB-TRL-062, BB-TRL, or a list); repeat."
)
@click.option("--ignore", metavar="CODE", multiple=True, help="Do not count these rules; repeat.")
@click.option(
    "--fail-on",
    type=click.Choice(FAIL_ON),
    help="What makes the exit code nonzero; default: undecided, of a folder and of several files: error.",
)
@click.option("--baseline", metavar="FILE", help="Do not count the findings that FILE lists.")
@click.option("--write-baseline", is_flag=True, help="Write all current findings to the baseline.")
@click.option("--fix", is_flag=True, help="Write safe fixes, such as a key's new name; --fix=N: way out N of an error.")
@click.option("--fix-choice", "choice", type=click.IntRange(min=1), hidden=True, help="N of --fix=N.")
@click.option("--native", is_flag=True, help="Ask the installed framework's own constructor too, in a child process.")
@click.option("--diff", is_flag=True, help="Show what --fix would change, and write nothing.")
@click.option("--watch", is_flag=True, help="Check again whenever a FILE changes, until Ctrl-C.")
@language_option
def command(
    as_json: bool,
    verbose: bool,
    output_format: str | None,
    select: tuple[str, ...],
    ignore: tuple[str, ...],
    fail_on: str | None,
    baseline: str | None,
    write_baseline: bool,
    fix: bool,
    choice: int | None,
    native: bool,
    diff: bool,
    watch: bool,
    lang: str,
    more: tuple[str, ...],
    **source: Any,
) -> int:
    """List what is wrong with a configuration, with the nearest fixes.

    FILE is a YAML, JSON or TOML file in the framework's own form, or a launch script (read, never run), whose own
    arguments stand behind --; without FILE a command stands there. - is what is piped in. --set adds to it, or replaces
    what it says. The verdict stands first, then what a rollout and an optimizer step have, whether `batchbridge run`
    and `wrap` work with it, errors and warnings; -v shows the notes. Of several files each is judged by itself, of a
    folder every run in it; the exit code is of the worst error, and the first line says what was not read or is
    undecided (--fail-on unread or undecided makes that exit code 4).
    """
    fix = fix or choice is not None
    if watch:
        return _watched([path for path in (source["file"], *more) if path is not None], fix or write_baseline)
    if as_json and output_format not in (None, "json"):
        raise click.UsageError(f"give --json or --output-format {output_format}, not both")
    reports, exits, dropped, known = [], [], set[str](), Path(baseline) if baseline else None
    named = [path for path in (source.pop("file"), *more) if path is not None]
    files = [file for path in named for file in _folder.files_of(path)]
    form = "json" if as_json else output_format or "text"
    if diff and form != "text":
        raise click.UsageError(f"--diff prints a difference, and no {form} beside it: give one of the two")
    lines: list[_folder.FileVerdict] | None = None if files == named else []
    several = lines is not None or len(files) > 1
    opened: list[_folder.FileVerdict] = []
    known = known or next((own.baseline for own in map(project, files) if own.baseline is not None), None)
    counting = partial(
        _judged, source, tuple(named), select, ignore, None if write_baseline else known, fail_on, several, native
    )
    if choice is not None and several:
        raise click.UsageError(f"--fix={choice} is of one FILE: the ways out of each are counted from 1")
    if lines is not None and form == "text" and not (fix or diff or write_baseline):
        for said_of, code, codes in _folder.spread(partial(_line_of, counting), files):
            lines.append(said_of)
            exits += [code] if said_of.word != "skipped" else []
            dropped |= codes if said_of.word != "skipped" else set()
        files = []
    inputs: list[str | None] = [*files] if named else [None]
    for file in inputs if len(inputs) == 1 else _counted(inputs):
        found, code, codes = counting(file, "write" if fix and not diff else "show" if diff else "", choice)
        opened.append(_folder.line(found))
        if lines is not None:
            lines.append(opened[-1])
            if opened[-1].word == "skipped":
                continue
        reports.append(found)
        exits.append(code)
        dropped |= codes
    if write_baseline:
        if known is None:
            raise click.UsageError("--write-baseline needs --baseline FILE")
        from batchbridge.cli import _baseline

        click.echo(f"{known}: {_baseline.write(known, reports)} written", err=True)
        return FINE
    code = INVALID if INVALID in exits else max(exits, default=FINE)
    if form == "json":
        from batchbridge.cli._json import print_json

        of = {word: [one for one in opened if one.word == word] for word in ("skipped", _folder.UNREAD)}
        skipped = [{"file": one.file, "reason": one.text} for one in of["skipped"] if lines is not None]
        unread = [{"file": one.file, "reason": one.text} for one in of[_folder.UNREAD]]
        results = ({"file": found.name, **found.to_dict()} for found in reports)
        print_json(results, code, skipped=skipped, not_read=unread)
        said = ""
    elif lines is not None and form == "text":
        said = "\n".join(_folder.told(lines, verbose=verbose))
    else:
        said = _shown(reports, form, verbose, lang)
        if (several or code == FINE) and (left := _folder.open_ones(opened)):
            said = _marked(said, left, form)
        if form == "text" and not native and any(_has_constructor(found.reading) for found in reports):
            with spoken(lang):
                said = f"{said}\n{say(_NOT_ASKED)}"
    if said and not diff:
        with spoken(lang):
            (show if form == "text" else click.echo)(said)
    if dropped:
        click.echo(f"not counted: {', '.join(sorted(dropped))}", err=True)
    return code


def _watched(files: Sequence[str], writes: bool) -> int:
    """The same check again and again. writes: whether it would change what it watches."""
    from batchbridge.cli._watch import watch

    if not files or "-" in files:
        raise click.UsageError("--watch is of a FILE: nothing else changes while one works")
    if writes:
        raise click.UsageError("--watch only looks: leave out --fix and --write-baseline")
    context = click.get_current_context()
    assert context.command.callback is not None
    watch(files, partial(context.command.callback, **{**context.params, "watch": False}))


def _judged(
    source: Mapping[str, Any],
    named: Sequence[str],
    select: Sequence[str],
    ignore: Sequence[str],
    baseline: Path | None,
    fail_on: str | None,
    several: bool,
    native: bool,
    file: str | None,
    fix: str = "",
    choice: int | None = None,
) -> tuple[Check, int, set[str]]:
    """(the report of a file, its exit code, the codes of findings that did not count). named: what was named itself,
    and is judged as whosever it is said to be; other files stand in a folder. several: whether it is one of several, of
    which only errors count by default. fix: "write" or "show". choice: of the ways out of errors; None: safe fixes."""
    from batchbridge import Check, check

    own = project(file)
    selection = FindingSelection.of(file, own, select, ignore, baseline)
    asked = asked_for(**source, file=file, own=own)
    if file is not None and file not in named and asked["framework"] and asked["source"].values:
        from batchbridge.reading.read import none_of

        if (unread := none_of(asked["framework"], asked["source"])) is not None:
            return Check(name=file, reading=unread), FINE, set()
    counting = partial(check, keep=selection.counts, expect=own.expected_of(file))
    found = counting(**asked)
    if fix:
        from batchbridge.cli import _fix

        _fix.usage(file, source)
        found = _fix.fix(found, asked, counting, write=fix == "write", number=choice)
    if native:
        found = _with_native(found)
    fails = fail_on or own.settings.get("fail_on", "error" if several else "undecided")
    looks = any(one.code == LOOKS_LIKE_TRAINING for one in found.findings)
    code = exit_code(found.verdict, found.findings, fails, unread=looks)
    return found, code, selection.dropped


_NOT_ASKED = "not asked: the framework's own constructor; --native asks it where it is installed"


def _has_constructor(reading: Reading) -> bool:
    """Whether `--native` could ask the framework of a reading."""
    from batchbridge.contract import plugins
    from batchbridge.contract.adapter import Adapter

    adapter = plugins.adapters().get(reading.framework)
    return adapter is not None and bool(reading.native) and type(adapter).native_check is not Adapter.native_check


def _with_native(found: Check) -> Check:
    """The report with what the installed framework's own constructor says behind it."""
    from batchbridge.contract import plugins
    from batchbridge.native_check import native_findings

    adapter = plugins.adapters().get(found.reading.framework)
    if adapter is None:
        return found
    said = native_findings(adapter, found.reading)
    return replace(found, reading=replace(found.reading, findings=(*found.reading.findings, *said)))


def _counted(inputs: Sequence[str | None]) -> Iterator[str | None]:
    from batchbridge.cli._progress import progress  # a single file needs none

    return progress(inputs, len(inputs), "checked")


def _line_of(counting: _Counting, file: str) -> tuple[_folder.FileVerdict, int, set[str]]:
    """The result of `_judged`, with a line in the report's place: what another process can hand back."""
    found, code, codes = counting(file)
    return _folder.line(found), code, codes


def _marked(said: str, left: str, form: str) -> str:
    """The text that is printed, with what is open in front of it: a warning for GitHub, and on standard error where the
    form is a document."""
    if form in ("text", "concise"):
        return f"{left}\n{said}".rstrip()
    if form == "github":
        return f"::warning title=BatchBridge::{left}\n{said}".rstrip()
    click.echo(left, err=True)
    return said


def _shown(reports: Sequence[Check], form: str, verbose: bool, lang: str) -> str:
    """The reports in one of `FORMATS` but JSON; as text one after the other."""
    if form != "text":
        from batchbridge.render import formats

        return formats.FORMATS[form](reports)
    return "\n\n".join(found.text(table_for_stdout(), verbose=verbose, lang=lang) for found in reports)
