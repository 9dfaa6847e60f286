"""`batchbridge check`: findings, one line that sums them up, and one about a run of it."""

from __future__ import annotations

from typing import Any

import click

from batchbridge.cli._input import asked_for, input_options, verbose_option
from batchbridge.cli._project import FAIL_ON, project
from batchbridge.cli._selection import Selection, codes, exit_code
from batchbridge.cli._tables import coloured

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
def command(
    as_json: bool,
    verbose: bool,
    output_format: str | None,
    select: tuple[str, ...],
    ignore: tuple[str, ...],
    fail_on: str | None,
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
    selection = Selection(
        select=codes(select or own.said.get("select", ()), "select"),
        ignore=codes(ignore or own.said.get("ignore", ()), "ignore"),
    )
    keep = selection.keep(source["file"], codes(own.of(source["file"]).get("ignore", ()), "ignore"))
    found = check(**asked_for(**source, own=own), keep=keep)
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
