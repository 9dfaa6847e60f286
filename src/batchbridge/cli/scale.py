"""`batchbridge scale`: the same run on another number of devices."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from batchbridge.cli._input import InputCommand, devices, input_options, language_option, reading_from
from batchbridge.cli._output import keep, writing
from batchbridge.cli._tables import show, table_for_stdout
from batchbridge.cli.main import EXIT_CODES, FINE, INVALID
from batchbridge.render.words import say, spoken

if TYPE_CHECKING:
    from batchbridge.comparing.scale import Scaling


@click.command("scale", cls=InputCommand, short_help="Find the same run on another number of devices.")
@input_options
@click.option(
    "--from",
    "present",
    type=click.IntRange(min=1),
    metavar="DEVICES",
    help="Devices that FILE is written for; default: read from FILE.",
)
@click.option("--apply", "number", type=click.IntRange(min=1), metavar="N", help="Write choice N into FILE's text.")
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="OTHER", help="File that --apply writes.")
@click.option("--overwrite", is_flag=True, help="Replace OTHER if it exists; OTHER may be FILE.")
@language_option
def command(
    as_json: bool,
    present: int | None,
    number: int | None,
    output: Path | None,
    overwrite: bool,
    world_size: int | None,
    nodes: int | None,
    gpus: int | None,
    lang: str,
    **source: Any,
) -> int:
    """Find the nearest legal configurations on another number of devices (--world-size, or --nodes and --gpus).

    Completions per optimizer step, group size and optimizer steps per rollout are kept where the devices divide them;
    otherwise (exit code 3) the nearest choices, three at most, are offered side by side, with what each cannot keep.
    With --apply N -o OTHER the N-th is written into the text of FILE, a YAML file or a launch script, and nothing else
    in it changes.
    """
    from batchbridge.comparing.scale import MAX_DEVICES, scaled

    wanted = devices(world_size, nodes, gpus)
    if wanted is None:
        raise click.UsageError("say how many devices: --world-size DEVICES, or --nodes NODES --gpus DEVICES")
    if wanted > MAX_DEVICES:
        raise click.UsageError(f"{wanted} devices: at most {MAX_DEVICES}")
    if (number is None) != (output is None):
        raise click.UsageError("--apply N and -o FILE go together: which choice, and where it is written")
    if output is not None:
        keep("-o", output, overwrite)
    name, read, reading = reading_from(world_size=present, **source)
    found = scaled(read, reading, wanted, present=present, dataset_size=source["dataset_size"])
    if number is not None and output is not None and found.verdict not in ("invalid", "undecided"):
        with spoken(lang):
            return _apply(found, number, output, as_json, source, read.env)
    if as_json:
        from batchbridge.cli._json import print_json

        return print_json([{"file": name, **found.to_dict(), "applied": None}], EXIT_CODES[found.verdict])
    from batchbridge.render import between

    with spoken(lang):
        show(between.scaling(name, found, table_for_stdout()))
        if found.example_devices is not None:
            click.echo(say("--from DEVICES says what FILE is written for"))
    return EXIT_CODES[found.verdict]


def _apply(
    found: Scaling, number: int, output: Path, as_json: bool, source: dict[str, Any], env: Mapping[str, str]
) -> int:
    """Writes the choice, and says what changed."""
    from batchbridge.cli._json import print_json
    from batchbridge.comparing.apply_choice import applied
    from batchbridge.comparing.edit_file import save
    from batchbridge.contract import plugins
    from batchbridge.errors import CannotEdit

    if number > len(found.choices):
        raise click.UsageError(f"--apply {number}: there are {len(found.choices)} choices")
    if source["file"] in (None, "-") or source["settings"]:
        raise click.UsageError("--apply writes into a FILE: give one, without --set")
    path, choice = Path(source["file"]), found.choices[number - 1]
    try:
        with writing(output):
            text, changes = applied(found, choice, path, plugins.adapters(), env=env, command=source["command_number"])
            save(text, output, path)
    except CannotEdit as refused:
        if as_json:
            why = "; ".join([f"{path} is not edited", *map(str, refused.problems)])
            return print_json([{"file": str(path), **found.to_dict(), "applied": None}], INVALID, error=why)
        click.echo("\n".join([f"{path} is not edited", *(f"  {problem}" for problem in refused.problems)]))
        return INVALID
    if as_json:
        told = {"file": str(output), "choice": choice.to_dict(), "changes": [change.to_dict() for change in changes]}
        return print_json([{"file": str(path), **found.to_dict(), "applied": told}], FINE)
    from batchbridge.render import between

    click.echo(between.applied(str(path), str(output), found, number, changes))
    return FINE
