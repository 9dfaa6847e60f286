"""`batchbridge explain`: the whole reading, for a person."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from batchbridge.cli._input import EXIT_CODES, InputCommand, asked_for, input_options, verbose_option
from batchbridge.cli._pages import html_option, write_page
from batchbridge.cli._tables import coloured, table_for_stdout

if TYPE_CHECKING:
    from batchbridge.reports import Explanation


@click.command("explain", cls=InputCommand, short_help="Say what a configuration will train.")
@input_options
@verbose_option
@html_option
def command(as_json: bool, verbose: bool, html_file: str | None, **source: Any) -> int:
    """Say in words and units what a configuration will train, where each number comes from, and what follows from it.

    FILE is a YAML or JSON file in the framework's own form, or a launch script (read, never run); --set adds to it, or
    replaces what it says.
    """
    from batchbridge import explain

    found = explain(**asked_for(**source))
    if html_file is not None:
        write_page(html_file, lambda: _page(found))
    if as_json:
        from batchbridge.cli._json import print_json

        return print_json([{"file": found.name, **found.to_dict()}], EXIT_CODES[found.verdict])
    from batchbridge.render import text

    said = text.explain(
        found.name,
        found.reading,
        table_for_stdout(),
        found.enforcement,
        verbose=verbose,
        judged=found.judged,
        devices=found.devices,
    )
    click.echo(coloured(said))
    return EXIT_CODES[found.verdict]


def _page(found: Explanation) -> str:
    from batchbridge.render import html

    return html.explanation(found.name, found.reading, found.enforcement, judged=found.judged, devices=found.devices)
