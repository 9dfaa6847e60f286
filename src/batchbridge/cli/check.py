"""`batchbridge check`: findings, one line that sums them up, and one about a run of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from batchbridge.cli import _folder
from batchbridge.cli._input import InputCommand, asked_for, input_options, verbose_option
from batchbridge.cli._project import FAIL_ON, project
from batchbridge.cli._selection import Selection, exit_code
from batchbridge.cli._tables import coloured
from batchbridge.cli.main import FINE, INVALID

if TYPE_CHECKING:
    from batchbridge.reports import Check

FORMATS = ("text", "concise", "json", "github", "gitlab", "sarif", "junit")


@click.command("check", cls=InputCommand, short_help="List what is wrong with configurations.")
@input_options
@click.argument("more", metavar="[FILE]...", nargs=-1, type=click.Path(path_type=str))
@verbose_option
@click.option(
    "--output-format", type=click.Choice(FORMATS), help="text by default; --json is short for json; see docs/ci.md."
)
@click.option("--select", metavar="CODE", multiple=True, help="Only these rules: BB-TRL-062, BB-TRL, a list; repeat.")
@click.option("--ignore", metavar="CODE", multiple=True, help="Not these rules; repeat.")
@click.option("--fail-on", type=click.Choice(FAIL_ON), help="Exit code 0 for less; default: undecided.")
@click.option("--baseline", metavar="FILE", help="Findings that stand in it do not count.")
@click.option("--write-baseline", is_flag=True, help="Write all that counts now to the baseline.")
def command(
    as_json: bool,
    verbose: bool,
    output_format: str | None,
    select: tuple[str, ...],
    ignore: tuple[str, ...],
    fail_on: str | None,
    baseline: str | None,
    write_baseline: bool,
    more: tuple[str, ...],
    **source: Any,
) -> int:
    """List what is wrong with a configuration, with the nearest fixes.

    FILE is a YAML or JSON file in the framework's own form, or a launch script (read, never run), whose own arguments
    stand behind --; without FILE a command stands there. - is what is piped in. --set adds to it, or replaces what it
    says. The last line says whether `batchbridge run` or `wrap` would follow such a run. Of several files each is
    judged by itself, of a folder every run in it; the exit code is of the worst.
    """
    from batchbridge import check

    if as_json and output_format not in (None, "json"):
        raise click.UsageError(f"give --json or --output-format {output_format}, not both")
    reports, exits, dropped, known = [], [], set[str](), Path(baseline) if baseline else None
    named = [path for path in (source.pop("file"), *more) if path is not None]
    files = [file for path in named for file in _folder.files_of(path)]
    lines: list[_folder.Line] | None = None if files == named else []
    for file in _folder.bar(files if named else [None]):
        own = project(file)
        known = known or own.baseline
        selection = Selection.of(file, own, select, ignore, None if write_baseline else known)
        found = check(**asked_for(**source, file=file, own=own), keep=selection.counts)
        if lines is not None:
            lines.append(_folder.line(found))
            if lines[-1].word == "skipped":
                continue
        reports.append(found)
        exits.append(exit_code(found.verdict, found.findings, fail_on or own.said.get("fail_on", "undecided")))
        dropped |= selection.dropped
    if write_baseline:
        if known is None:
            raise click.UsageError("--write-baseline needs --baseline FILE")
        from batchbridge.cli import _baseline

        click.echo(f"{known}: {_baseline.write(known, reports)} written", err=True)
        return FINE
    code = INVALID if INVALID in exits else max(exits, default=FINE)
    form = "json" if as_json else output_format or "text"
    if form == "json":
        from batchbridge.cli._json import print_json

        skipped = [{"file": one.file, "reason": one.text} for one in lines or () if one.word == "skipped"]
        print_json(({"file": found.name, **found.to_dict()} for found in reports), code, skipped=skipped)
        said = ""
    elif lines is not None and form == "text":
        said = "\n".join(_folder.told(lines))
    else:
        said = _shown(reports, form, verbose)
    if said:
        click.echo(said)
    if dropped:
        click.echo(f"not counted: {', '.join(sorted(dropped))}", err=True)
    return code


def _shown(reports: Sequence[Check], form: str, verbose: bool) -> str:
    """The reports in one of `FORMATS` but JSON; as text one after the other."""
    if form != "text":
        from batchbridge.render import formats

        return formats.FORMATS[form](reports)
    from batchbridge.render import text

    texts = (
        text.check(
            found.name, found.counted, found.enforcement, verbose=verbose, judged=found.judged, devices=found.devices
        )
        for found in reports
    )
    return coloured("\n\n".join(texts))
