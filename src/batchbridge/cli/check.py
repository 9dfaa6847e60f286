"""`batchbridge check`: findings, one line that sums them up, and one about a run of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from batchbridge.cli._input import asked_for, input_options, verbose_option
from batchbridge.cli._project import FAIL_ON, project
from batchbridge.cli._selection import Selection, exit_code
from batchbridge.cli._tables import coloured
from batchbridge.cli.main import FINE

FORMATS = ("text", "concise", "json", "github", "gitlab", "sarif", "junit")


@click.command("check", short_help="List what is wrong with a configuration.")
@input_options
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
    **source: Any,
) -> int:
    """List what is wrong with a configuration, with the nearest fixes.

    FILE is a YAML or JSON file in the framework's own form, or a launch script (read, never run); --set adds to it, or
    replaces what it says. The last line says whether `batchbridge run` or `wrap` would follow such a run.
    """
    from batchbridge import check

    if as_json and output_format not in (None, "json"):
        raise click.UsageError(f"give --json or --output-format {output_format}, not both")
    own = project(source["file"])
    known = Path(baseline) if baseline else own.baseline
    if write_baseline and known is None:
        raise click.UsageError("--write-baseline needs --baseline FILE")
    selection = Selection.of(source["file"], own, select, ignore, None if write_baseline else known)
    found = check(**asked_for(**source, own=own), keep=selection.counts)
    if write_baseline and known is not None:
        from batchbridge.cli import _baseline

        click.echo(f"{known}: {_baseline.write(known, [found])} written", err=True)
        return FINE
    if as_json or output_format == "json":
        from batchbridge.render import json

        click.echo(json.dumps(found.to_dict()))
    elif output_format in (None, "text"):
        from batchbridge.render import text

        click.echo(
            coloured(
                text.check(
                    found.name,
                    found.counted,
                    found.enforcement,
                    verbose=verbose,
                    judged=found.judged,
                    devices=found.devices,
                )
            )
        )
    else:
        from batchbridge.render import formats

        if said := formats.FORMATS[output_format]([found]):
            click.echo(said)
    if selection.dropped:
        click.echo(f"not counted: {', '.join(sorted(selection.dropped))}", err=True)
    return exit_code(found.verdict, found.findings, fail_on or own.said.get("fail_on", "undecided"))
