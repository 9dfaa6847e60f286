"""`batchbridge ledger certificate|verify`: what a run trained as one document, and whether its ledger says the same."""

from __future__ import annotations

import json as stdlib_json
from pathlib import Path
from typing import Any

import click

from batchbridge.cli._output import keep, overwrite_option, say
from batchbridge.cli.main import FINE, INVALID, NOT_EQUIVALENT, UNDECIDED

LARGEST_BYTES = 1 << 26
"""Of a certificate; one of 1024 parts has about 100 kB."""


@click.command("certificate", short_help="Say what a run trained.")
@click.argument("folder", metavar="RUN", type=click.Path(path_type=str))
@click.option("-o", "--output", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False), help="Write it there.")
@overwrite_option
@click.option("--model-card", is_flag=True, help="A section for a model card, in Markdown, in place of JSON.")
def certificate(folder: str, output: Path | None, overwrite: bool, model_card: bool) -> int:
    """Say what the run recorded in the folder RUN trained: spec, versions, steps, and whether each was verified.

    It holds digests of the ledger's records; `batchbridge ledger verify` compares the two. It is not signed.
    """
    from batchbridge.ledger.certificates import certificate as certified
    from batchbridge.render.json import dumps
    from batchbridge.render.model_card import section
    from batchbridge.render.text import clean

    if output is not None:
        keep("-o", output, overwrite)
    document = certified(folder)
    text = section(document) if model_card else dumps(document)
    if output is None:
        click.echo(clean(text))
        return FINE
    from batchbridge.comparing.edit_file import save

    try:
        save(text + "\n", output)
    except OSError as error:
        return refuse(error, "ledger certificate")
    return FINE


@click.command("verify", short_help="Hold a certificate against a ledger.")
@click.argument("file", metavar="CERTIFICATE", type=click.Path(path_type=Path))
@click.argument("folder", metavar="[RUN]", required=False, type=click.Path(path_type=str))
def verify(file: Path, folder: str | None) -> int:
    """Compare a CERTIFICATE with the ledger in the folder RUN, by default the certificate's own folder.

    Each claim, and each record of the ledger, that does not agree is named; exit code 3 if any, 4 where there is no
    ledger to compare with.
    """
    from batchbridge.ledger.certificates import verify as verified
    from batchbridge.render.model_card import verification
    from batchbridge.render.text import one_line

    try:
        document = read(file)
    except (OSError, ValueError, RecursionError) as error:
        return refuse(f"{file} is no certificate: {one_line(error)}", "ledger verify")
    if folder is None and any(file.parent.glob("rank-*.jsonl")):
        folder = str(file.parent)
    found = verified(document, folder)
    for difference in found.differences:
        say(difference)
    if found.count > len(found.differences):
        say(f"and {found.count - len(found.differences)} more")
    if not found.holds:
        against = f"the ledger {folder}" if found.ledger else "itself"
        say(f"{file} does not agree with {against}: {found.count} differences")
        return NOT_EQUIVALENT
    if not found.ledger:
        say(f"{file} agrees with itself; name the run's folder to compare it with a ledger")
        return UNDECIDED
    say(f"{file} agrees with the ledger {folder}")
    steps = document["steps"]
    say(f"optimizer steps {steps['first']} to {steps['stop'] - 1}: {verification(document)}")
    click.echo("Who made the two is not shown: nothing is signed.")
    return FINE


def read(file: Path) -> Any:
    """The JSON of a file. Raises `ValueError` where it is none, has a key twice, or is larger than a certificate."""
    size = file.stat().st_size
    if size > LARGEST_BYTES:
        raise ValueError(f"{size} bytes, of at most {LARGEST_BYTES}")

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise ValueError("a key stands there twice")
        return found

    def refuse(name: str) -> Any:
        raise ValueError(f"{name} is no JSON")

    return stdlib_json.loads(file.read_bytes(), object_pairs_hook=once, parse_constant=refuse)


def refuse(error: object, command: str = "ledger") -> int:
    """Says on standard error why `command` cannot go on, and returns its exit code."""
    say(f"{command}: {error}", err=True)
    return INVALID
