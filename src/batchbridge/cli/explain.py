"""`batchbridge explain`: the whole reading, for a person."""

from __future__ import annotations

from typing import Any

import click

from batchbridge.cli._input import InputCommand, asked_for, input_options, verbose_option
from batchbridge.cli._pages import html_option, write_page
from batchbridge.cli._tables import coloured, table_for_stdout
from batchbridge.cli.main import EXIT_CODES


@click.command("explain", cls=InputCommand, short_help="Say what a configuration will train.")
@input_options
@verbose_option
@html_option
@click.option("--memory", is_flag=True, help="Also estimate the memory per device.")
@click.option("--parameters", metavar="COUNT", help="Of --memory: the model's parameters (1.5B, 494M).")
@click.option("--model-config", metavar="FILE", help="Of --memory: the model's config.json, instead.")
def command(
    as_json: bool,
    verbose: bool,
    html_file: str | None,
    memory: bool,
    parameters: str | None,
    model_config: str | None,
    **source: Any,
) -> int:
    """Say in words and units what a configuration will train, where each number comes from, and what follows from it.

    FILE is a YAML or JSON file in the framework's own form, or a launch script (read, never run); --set adds to it, or
    replaces what it says.
    """
    from batchbridge import explain

    model: tuple[int | None, int | None] = (None, None)
    if parameters is not None or model_config is not None:
        if not memory:
            raise click.UsageError("--parameters and --model-config are of --memory: give it, too")
        from batchbridge.cli._model import model_of

        model = model_of(parameters, model_config)
    found = explain(**asked_for(**source))
    if html_file is not None:
        from batchbridge.render import html

        told = (found.name, found.reading, found.enforcement)
        write_page(html_file, lambda: html.explanation(*told, judged=found.judged, devices=found.devices))
    if as_json:
        from batchbridge.cli._json import print_json

        said_of = {"file": found.name, **found.to_dict()}
        if memory and found.reading.spec is not None:
            from batchbridge.render.memory import rows

            said_of["memory"] = rows(found.reading.spec, *model)
        return print_json([said_of], EXIT_CODES[found.verdict])
    said = found.text(table_for_stdout(), verbose=verbose)
    if memory and found.reading.spec is not None:
        from batchbridge.render.memory import section

        said = f"{said}\n\n{section(found.reading.spec, *model, table_for_stdout())}"
    click.echo(coloured(said))
    return EXIT_CODES[found.verdict]
