"""`batchbridge check`: findings, one line that sums them up, and one about a run of it."""

from __future__ import annotations

from typing import Any

import click

from batchbridge.cli._input import EXIT_CODES, asked_for, input_options, verbose_option
from batchbridge.cli._tables import coloured


@click.command("check", short_help="List what is wrong with a configuration.")
@input_options
@verbose_option
def command(as_json: bool, verbose: bool, **source: Any) -> int:
    """List what is wrong with a configuration, with the nearest fixes.

    FILE is a YAML or JSON file in the framework's own form, or a launch script (read, never run); --set adds to it, or
    replaces what it says. The last line says whether `batchbridge run` or `wrap` would follow such a run.
    """
    from batchbridge import check

    found = check(**asked_for(**source))
    if as_json:
        from batchbridge.render import json

        click.echo(json.dumps(found.to_dict()))
    else:
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
    return EXIT_CODES[found.verdict]
