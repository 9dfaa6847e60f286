"""`batchbridge explain`: the whole reading, for a person.

Its own file: one file per command.
"""

from __future__ import annotations

from typing import Any

import click

from batchbridge.cli._input import InputCommand, asked_for, input_options, verbose_option
from batchbridge.cli._output import html_option, write_page
from batchbridge.cli._tables import coloured, table_for_stdout
from batchbridge.cli.main import EXIT_CODES


@click.command("explain", cls=InputCommand, short_help="Say what a configuration will train.")
@input_options
@verbose_option
@html_option
def command(as_json: bool, verbose: bool, html_file: str | None, **source: Any) -> int:
    """Explain what a configuration will train: each number with its unit, its origin, and what follows from it.

    FILE is a YAML, JSON or TOML file in the framework's own form, or a launch script (read, never run); --set adds to
    it, or replaces what it says.
    """
    from batchbridge import explain

    found = explain(**asked_for(**source))
    if html_file is not None:
        from batchbridge.render import html

        told = (found.name, found.reading, found.enforcement)
        write_page(html_file, lambda: html.explanation(*told, judged=found.judged, devices=found.devices))
    if as_json:
        from batchbridge.cli._json import print_json

        return print_json([{"file": found.name, **found.to_dict()}], EXIT_CODES[found.verdict])
    click.echo(coloured(found.text(table_for_stdout(), verbose=verbose)))
    return EXIT_CODES[found.verdict]
