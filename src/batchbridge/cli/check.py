"""`batchbridge check`: findings, one line that sums them up, and one about a run of it."""

from __future__ import annotations

from typing import Any

import click

from batchbridge.cli._input import EXIT_CODES, asked_for, input_options, verbose_option
from batchbridge.cli._tables import coloured

FORMATS = ("text", "concise", "json", "github", "gitlab", "sarif", "junit")


@click.command("check", short_help="List what is wrong with a configuration.")
@input_options
@verbose_option
@click.option(
    "--output-format", type=click.Choice(FORMATS), help="text by default; --json is short for json; see docs/ci.md."
)
def command(as_json: bool, verbose: bool, output_format: str | None, **source: Any) -> int:
    """List what is wrong with a configuration, with the nearest fixes.

    FILE is a YAML or JSON file in the framework's own form, or a launch script (read, never run); --set adds to it, or
    replaces what it says. The last line says whether `batchbridge run` or `wrap` would follow such a run.
    """
    from batchbridge import check

    if as_json and output_format not in (None, "json"):
        raise click.UsageError(f"give --json or --output-format {output_format}, not both")
    found = check(**asked_for(**source))
    if as_json or output_format == "json":
        from batchbridge.render import json

        click.echo(json.dumps(found.to_dict()))
    elif output_format in (None, "text"):
        from batchbridge.render import text

        click.echo(
            coloured(
                text.check(
                    found.name,
                    found.reading,
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
    return EXIT_CODES[found.verdict]
