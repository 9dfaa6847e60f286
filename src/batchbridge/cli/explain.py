"""`batchbridge explain`: the whole reading, for a person."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

from batchbridge.cli._input import InputCommand, asked_for, input_options, verbose_option
from batchbridge.cli._output import html_option, write_page, wrong
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

    FILE is a YAML, JSON or TOML file in the framework's own form, or a launch script (read, never run); --set adds to
    it, or replaces what it says.
    """
    from batchbridge import explain

    model: tuple[int | None, int | None] = (None, None)
    if parameters is not None or model_config is not None:
        if not memory:
            raise click.UsageError("--parameters and --model-config are of --memory: give it, too")
        model = _model_of(parameters, model_config)
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


_COUNT = re.compile(r"(\d{1,12})(?:\.(\d{1,9}))?([KMBT]?)", re.IGNORECASE)
_POWERS = {"": 0, "K": 3, "M": 6, "B": 9, "T": 12}
_LARGEST = 10**15


def _model_of(parameters: str | None, config: str | None) -> tuple[int, int | None]:
    """(parameters, words of the vocabulary where they are known). Raises `click.UsageError`."""
    counted, vocabulary = (0, None) if config is None else _config(config, counted=parameters is None)
    return counted if parameters is None else _count(parameters), vocabulary


def _count(text: str) -> int:
    match = _COUNT.fullmatch(text.strip().replace(",", "").replace("_", ""))
    if match is not None:
        whole, part, unit = match[1], match[2] or "", _POWERS[match[3].upper()]
        count = int(whole + part) * int(f"1{'0' * (unit - len(part))}")
        if len(part) <= unit and 0 < count <= _LARGEST:
            return count
    raise click.UsageError(
        f"--parameters {text:.40}: expected a number of parameters, such as 1.5B, 494M or 1543714304"
    )


def _config(file: str, *, counted: bool) -> tuple[int, int]:
    """(parameters, words of the vocabulary) of a config.json; parameters only where they are `counted`, else 0."""
    from batchbridge.kit import model_size
    from batchbridge.reading.files import read_text
    from batchbridge.reading.yaml_json import Refused, parse_json

    try:
        values = parse_json(read_text(Path(file), file), file).value
        if not isinstance(values, dict):
            wrong(f"--model-config {file}: expected a mapping, as config.json has it")
        return model_size.parameters(values) if counted else 0, model_size.vocabulary(values)
    except Refused as refused:
        wrong(f"--model-config {file}: {refused.finding.message}")
    except ValueError as error:
        wrong(f"--model-config {file}: {error}")
