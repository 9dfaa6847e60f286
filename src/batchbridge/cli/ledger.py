"""`batchbridge ledger show|diff|export|verify`: what a wrapped run recorded."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from batchbridge.cli._output import html_option, keep, say, write_page
from batchbridge.cli._progress import labelled
from batchbridge.cli.main import FINE, INVALID, NOT_EQUIVALENT, UNDECIDED
from batchbridge.errors import LedgerError

if TYPE_CHECKING:
    from batchbridge.ledger.comparing import LedgerDiff
    from batchbridge.ledger.reading import Ledger

_FOLDER = click.Path(path_type=str)
_NEW_FILE = click.Path(dir_okay=False)


class LedgerGroup(click.Group):
    """Commands that read ledgers."""

    def invoke(self, ctx: click.Context) -> Any:
        """The group's run, as that of every group; a ledger that cannot be read is not a crash."""
        try:
            return super().invoke(ctx)
        except LedgerError as error:
            return refuse(error, "ledger verify" if ctx.invoked_subcommand == "verify" else "ledger")


@click.group("ledger", cls=LedgerGroup, short_help="Show, compare, verify or export the ledgers of runs.")
def command() -> None:
    """Show the ledger of a run, name the first difference of two, recompute a run, or write it as a table."""


@command.command("show", short_help="Show a run's optimizer steps.")
@click.argument("folder", type=_FOLDER)
@click.option("--step", "first", type=click.IntRange(min=0), metavar="K", help="Only optimizer step K (from 0).")
@click.option("--summary", is_flag=True, help="The run as a whole instead: totals, figures over the steps, ranks.")
@click.option("--follow", is_flag=True, help="Stay, and show a run while it trains, until its last step.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one optimizer step a line.")
@html_option
def show(folder: str, first: int | None, summary: bool, follow: bool, as_json: bool, html_file: str | None) -> int:
    """Show the optimizer steps that the ledger in FOLDER recorded, one line each, all ranks merged.

    With --summary or --html the run as a whole: totals, what was skipped, resumed or not as planned, and the figures
    of the steps. With --follow a run that is going on: steps, tokens, drift and the slowest rank, drawn again with each
    optimizer step; where the output is no terminal, a line a step.
    """
    if follow and (summary or as_json or html_file is not None or first is not None):
        raise click.UsageError("--follow shows a run that is going on: give it alone")
    if follow:
        return _follow(folder)
    whole = summary or html_file is not None
    if whole and (first is not None or as_json):
        raise click.UsageError("--summary and --html are of the whole run: give them without --step and --json")
    if as_json:
        return _show_json(folder, first)
    if whole:
        return _whole(folder, html_file)
    ledger, steps = _steps(folder, first)
    if told := _code(ledger.headers):
        say(told)
    for record in steps:
        say(_line(record))
    if ledger.incomplete:
        say(f"incomplete: {ledger.incomplete}")
    return FINE


_POLL_S = 0.5


def _follow(folder: str) -> int:
    """Shows the run until its last step; `FINE` then. Ctrl-C ends it as every command."""
    import shutil
    import time

    from batchbridge.ledger import remote
    from batchbridge.ledger.following import FollowedLedger, Progress, remaining_seconds
    from batchbridge.render import following
    from batchbridge.render.text import clean

    if remote.is_url(folder):
        raise click.UsageError(f"--follow {folder}: a ledger is followed in a folder of this machine")
    ledger, progress, drawn = FollowedLedger(Path(folder)), Progress(), 0
    watched = sys.stdout.isatty()
    began, first, left_s = time.monotonic(), None, None
    while True:
        for step in ledger.news():
            drift = ledger.drift(step)
            progress.add(step, drift)
            if not watched:
                say("  ".join([_line(step), *following.step_words(step, drift)]))
        done = 0 if progress.last is None else progress.last["step"] + 1
        if first is None and progress.last is not None:
            began, first = time.monotonic(), done  # what was there before we looked has no pace
        elif first is not None and done > first:
            left_s = remaining_seconds(ledger.total, done, first, time.monotonic() - began)
        if watched:
            lines = following.screen(ledger, progress, left_s, shutil.get_terminal_size().columns)
            up = f"\x1b[{drawn}A" if drawn else ""
            click.echo(up + "".join(f"\x1b[2K{clean(line)}\n" for line in lines), nl=False)
            drawn = len(lines)
        if ledger.total is not None and done >= ledger.total:
            return FINE
        time.sleep(_POLL_S)


def _steps(folder: str, only: int | None) -> tuple[Ledger, Iterator[dict[str, Any]]]:
    """A ledger and its steps, or that one. Raises `click.UsageError` where it does not have it."""
    from batchbridge.ledger.reading import Ledger

    ledger = Ledger(folder)
    if only is None:
        return ledger, ledger.merged(ledger.first_step)
    if not ledger.first_step <= only < ledger.stop_step:
        known = f"{ledger.first_step} to {ledger.stop_step} (exclusive)"
        raise click.UsageError(f"--step {only}: the ledger has the optimizer steps {known}")
    return ledger, islice(ledger.merged(only), 1)


def _whole(folder: str, html_file: str | None) -> int:
    """The run's summary, and its page."""
    from batchbridge.ledger.reading import Ledger
    from batchbridge.ledger.summary import summarise
    from batchbridge.render import ledger as render

    found = summarise(Ledger(folder), labelled("steps read"))
    if html_file is not None:
        from batchbridge.render import html

        write_page(html_file, lambda: html.ledger(found))
    click.echo(render.summary(found))
    return FINE


def _show_json(folder: str, only: int | None) -> int:
    """The records while they are read; what breaks them off stands behind them."""
    from batchbridge.cli._json import print_json, print_lines

    try:
        ledger, steps = _steps(folder, only)
    except LedgerError as error:
        return print_json([], refuse(error), error=str(error))
    ends: list[tuple[int, str | None]] = []

    def records() -> Iterator[dict[str, Any]]:
        try:
            yield from ({"folder": folder, **record} for record in steps)
            ends.append((FINE, f"incomplete: {ledger.incomplete}" if ledger.incomplete else None))
        except LedgerError as error:
            ends.append((refuse(error), str(error)))

    return print_lines(records(), ends.pop)


@command.command("diff", short_help="Name the first step that differs.")
@click.argument("a", type=_FOLDER)
@click.argument("b", type=_FOLDER)
@click.option(
    "--exact", is_flag=True, help="Require equal floats, and compare old log-probabilities and gradients too."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@html_option
def diff(a: str, b: str, exact: bool, as_json: bool, html_file: str | None) -> int:
    """Name the first optimizer step in which the runs recorded in A and B differ, and in what; exit code 3 if any.

    The page of --html has each figure of both runs over the steps beside it.
    """
    from batchbridge import ledger
    from batchbridge.cli._json import print_json
    from batchbridge.render.text import clean

    try:
        found = ledger.diff(a, b, exact=exact, watch=labelled("steps compared"))
    except LedgerError as error:
        if not as_json:
            raise
        return print_json([], refuse(error), error=str(error))
    code = FINE if found.equal else NOT_EQUIVALENT
    if html_file is not None:
        _page_of_both(found, a, b, html_file)
    if as_json:
        return print_json([{"folder_a": a, "folder_b": b, **found.to_dict()}], code)
    click.echo(clean(found.text()))
    return code


def _page_of_both(found: LedgerDiff, a: str, b: str, file: str) -> None:
    """The page of two runs; their ledgers are read once more, for the figures."""
    from batchbridge.ledger.reading import Ledger
    from batchbridge.ledger.summary import summarise
    from batchbridge.render import html

    both = [summarise(Ledger(folder), labelled(f"steps of {name} read")) for name, folder in (("A", a), ("B", b))]
    write_page(file, lambda: html.ledgers(found, *both))


@command.command("export", short_help="Write one table, a row a completion.")
@click.argument("folder", type=_FOLDER)
@click.option("--csv", "csv_file", type=_NEW_FILE, metavar="FILE", help="As CSV.")
@click.option(
    "--parquet", "parquet_file", type=_NEW_FILE, metavar="FILE", help="As Parquet; needs batchbridge[parquet]."
)
@click.option("--overwrite", is_flag=True, help="Replace FILE if it exists.")
def export(folder: str, csv_file: str | None, parquet_file: str | None, overwrite: bool) -> int:
    """Write the ledger in FOLDER as one table: a row for each completion of each optimizer step, all ranks merged."""
    from batchbridge.ledger import export
    from batchbridge.ledger.reading import Ledger

    if (csv_file is None) == (parquet_file is None):
        raise click.UsageError("give --csv FILE or --parquet FILE")
    option, file, write = "--csv", csv_file, export.to_csv
    if file is None:
        option, file, write = "--parquet", parquet_file, export.to_parquet
    assert file is not None
    keep(option, Path(file), overwrite)
    try:
        ledger = Ledger(folder)
        rows = write(ledger, Path(file), labelled("steps written"))
    except LedgerError:  # a ValueError, too
        raise
    except ModuleNotFoundError as error:
        if error.name != "pyarrow":
            raise
        raise click.UsageError("--parquet needs pyarrow: pip install 'batchbridge[parquet]'") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL character
        raise click.UsageError(f"{file}: {getattr(error, 'strerror', None) or error}") from None
    say(f"{file}: {rows:,} completions of {ledger.stop_step - ledger.first_step:,} optimizer steps")
    if ledger.incomplete:
        say(f"incomplete: {ledger.incomplete}")
    return FINE


@command.command("verify", short_help="Recompute what a run recorded.")
@click.argument("folder", metavar="RUN", type=_FOLDER)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def verify(folder: str, as_json: bool) -> int:
    """Recompute what the run in the folder RUN recorded, and name each optimizer step that departs.

    Membership comes from the plan, weights from the step's completions, advantages from the rewards, rates from the
    schedule. Exit code 3 if a step departs, 4 if membership or weights of a step cannot be recomputed.
    """
    from batchbridge.cli._json import print_json
    from batchbridge.ledger import verifying
    from batchbridge.render import ledger as render

    try:
        found = verifying.verify(folder, labelled("steps recomputed"))
    except LedgerError as error:
        if not as_json:
            raise
        return print_json([], refuse(error, "ledger verify"), error=str(error))
    code = NOT_EQUIVALENT if found.departed else FINE if found.decided else UNDECIDED
    if as_json:
        return print_json([found.to_dict()], code)
    click.echo(render.verification(found))
    return code


def refuse(error: object, command: str = "ledger") -> int:
    """Says on standard error why `command` cannot go on, and returns its exit code."""
    say(f"{command}: {error}", err=True)
    return INVALID


def _code(headers: list[dict[str, Any]]) -> str | None:
    """The grade of the framework's code in the last start's header; None where it says nothing."""
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
    from batchbridge.ledger.summary import slowest_rank
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
    if (straggler := slowest_rank(record)) is not None:
        words.append(f"slowest rank {straggler[0]}, {straggler[1]:.2f} of the mean")
    return "  ".join(words + ["skipped"] * bool(record["skipped"]))
