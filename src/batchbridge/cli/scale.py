"""`batchbridge scale`: the same run on another number of devices."""

from __future__ import annotations

from typing import Any

import click

from batchbridge.cli._input import InputCommand, input_options, reading_from
from batchbridge.cli._tables import table_for_stdout
from batchbridge.cli.main import FINE, INVALID, NOT_EQUIVALENT, UNDECIDED

EXIT_CODES = {"kept": FINE, "not kept": NOT_EQUIVALENT, "invalid": INVALID, "undecided": UNDECIDED}


@click.command("scale", cls=InputCommand, short_help="Find the same run on another number of devices.")
@input_options
@click.option(
    "--from",
    "present",
    type=click.IntRange(min=1),
    metavar="DEVICES",
    help="Devices that FILE is written for; default: what it says itself.",
)
def command(
    as_json: bool, present: int | None, world_size: int | None, nodes: int | None, gpus: int | None, **source: Any
) -> int:
    """Find the nearest legal configurations on another number of devices (--world-size, or --nodes and --gpus).

    Completions per optimizer step, group size and optimizer steps per rollout are kept where the devices divide them;
    otherwise (exit code 3) the nearest choices are offered side by side, with what each cannot keep.
    """
    from batchbridge.comparing.scale import MAX_DEVICES, scale

    if world_size is not None and (nodes is not None or gpus is not None):
        raise click.UsageError("give --world-size, or --nodes and --gpus, not both")
    if nodes is not None and gpus is None:
        raise click.UsageError("--nodes needs --gpus (devices per node)")
    wanted = world_size if gpus is None else (nodes or 1) * gpus
    if wanted is None:
        raise click.UsageError("say how many devices: --world-size DEVICES, or --nodes NODES --gpus DEVICES")
    if wanted > MAX_DEVICES:
        raise click.UsageError(f"{wanted} devices: at most {MAX_DEVICES}")
    name, reading = reading_from(world_size=present, nodes=None, gpus=None, **source)
    found = scale(reading, wanted)
    if as_json:
        from batchbridge.cli._json import print_json

        return print_json([{"file": name, **found.to_dict()}], EXIT_CODES[found.verdict])
    from batchbridge.render import between

    click.echo(between.scaling(name, found, table_for_stdout()))
    if found.verdict == "undecided" and present is None:
        click.echo("if the world size is what is missing: --from DEVICES says what FILE is written for")
    return EXIT_CODES[found.verdict]
