"""`batchbridge ledger show|diff|certificate|verify`: what a wrapped run recorded."""

from __future__ import annotations

import json as stdlib_json
from typing import Any

import click

from batchbridge.cli.certificate import certificate, verify
from batchbridge.cli.main import FINE, INVALID, NOT_EQUIVALENT

_FOLDER = click.Path(path_type=str)


@click.group("ledger", short_help="Show or compare the ledgers of runs.")
def command() -> None:
    """Show the ledger of a run, or the first difference of two runs."""


command.add_command(certificate)
command.add_command(verify)


@command.command("show")
@click.argument("folder", type=_FOLDER)
@click.option("--step", "first", type=click.IntRange(min=0), metavar="K", help="Only optimizer step K (from 0).")
@click.option("--json", "as_json", is_flag=True, help="For programs: one JSON object per line and optimizer step.")
def show(folder: str, first: int | None, as_json: bool) -> int:
    """Show the optimizer steps that the ledger in FOLDER recorded, one line each, all ranks merged."""
    from batchbridge.errors import LedgerError
    from batchbridge.ledger import read_headers, read_steps
    from batchbridge.render.json import plain
    from batchbridge.render.text import clean

    try:
        steps = read_steps(folder, start=first)
        if not as_json and (told := _code(read_headers(folder))):
            click.echo(clean(told))
        for record in steps:
            if first is not None and record["step"] != first:
                break
            click.echo(stdlib_json.dumps(plain(record), allow_nan=False) if as_json else clean(_line(record)))
        if steps.incomplete and not as_json:
            click.echo(clean(f"incomplete: {steps.incomplete}"))
    except LedgerError as error:
        return _refuse(error)
    return FINE


@command.command("diff")
@click.argument("a", type=_FOLDER)
@click.argument("b", type=_FOLDER)
@click.option("--exact", is_flag=True, help="Floats must be equal; old log-probabilities and gradients count too.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def diff(a: str, b: str, exact: bool, as_json: bool) -> int:
    """Name the first optimizer step in which the runs recorded in A and B differ, and in what; exit code 3 if any."""
    from batchbridge import ledger
    from batchbridge.errors import LedgerError
    from batchbridge.render.json import dumps
    from batchbridge.render.text import clean

    try:
        found = ledger.diff(a, b, exact=exact)
    except LedgerError as error:
        return _refuse(error)
    click.echo(dumps(found.to_dict()) if as_json else clean(found.text()))
    return FINE if found.equal else NOT_EQUIVALENT


def _refuse(error: Exception) -> int:
    from batchbridge.render.text import clean, one_line

    click.echo(clean(f"ledger: {one_line(error)}"), err=True)
    return INVALID


def _code(headers: list[dict[str, Any]]) -> str | None:
    """What the last start's header says of the framework's code; None where it says nothing."""
    from batchbridge.ledger.comparing import grade_of
    from batchbridge.render.text import one_line

    grade = grade_of(headers[-1]) if headers else None
    if grade is None:
        return None
    labels = headers[-1]["evidence"].get("labels")
    named = labels.items() if isinstance(labels, dict) else ()
    return f"code {grade}  " + ", ".join(f"{one_line(name)} {one_line(label or 'unrecorded')}" for name, label in named)


def _line(record: dict[str, Any]) -> str:
    """One optimizer step for a person."""
    from batchbridge.render.text import one_line

    tokens = sum(record["response_tokens"])
    rollouts = ",".join(str(index) for index in sorted(set(record["rollout"])))
    words = [
        f"step {record['step']}",
        f"epoch {record['epoch']}",
        f"rollout {rollouts or '-'}",
        f"{len(record['prompt'])} completions of {len(set(record['prompt']))} prompts",
        f"{tokens} response tokens",
        f"learning rate {one_line(record['learning_rate'])}",
        f"gradient norm {one_line(record['gradient_norm'])}",
    ]
    return "  ".join(words + ["skipped"] * bool(record["skipped"]))
