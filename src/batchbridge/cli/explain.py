"""`batchbridge explain`: the whole reading, for a person.

Its own file: one file per command.
"""

from __future__ import annotations

from typing import Any

import click

from batchbridge.cli._input import InputCommand, asked_for, input_options, language_option, verbose_option
from batchbridge.cli._output import html_option, write_page
from batchbridge.cli._tables import show, table_for_stdout
from batchbridge.cli.main import EXIT_CODES
from batchbridge.render.words import spoken


@click.command("explain", cls=InputCommand, short_help="Say what a configuration will train.")
@input_options
@verbose_option
@html_option
@language_option
@click.option("--live", is_flag=True, help="Open a page that answers while one drags; FILE alone is read, here.")
def command(as_json: bool, verbose: bool, html_file: str | None, live: bool, lang: str, **source: Any) -> int:
    """Explain what a configuration will train: each number with its unit, its origin, and what follows from it.

    FILE is a YAML, JSON or TOML file in the framework's own form, or a launch script (read, never run); --set adds to
    it, or replaces what it says.
    """
    from batchbridge import explain

    if live:
        if as_json or html_file is not None:
            raise click.UsageError("--live opens a page; it goes with neither --json nor --html")
        from batchbridge.cli._live import open_page

        return open_page(**source)
    found = explain(**asked_for(**source))
    if html_file is not None:
        from batchbridge.render import html

        told = (found.name, found.reading, found.enforcement)
        write_page(html_file, lambda: html.explanation(*told, judged=found.judged, devices=found.devices))
    if as_json:
        from batchbridge.cli._json import print_json

        return print_json([{"file": found.name, **found.to_dict()}], EXIT_CODES[found.verdict])
    with spoken(lang):
        show(found.text(table_for_stdout(), verbose=verbose, lang=lang))
    return EXIT_CODES[found.verdict]
