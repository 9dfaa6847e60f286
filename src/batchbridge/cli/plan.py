"""`batchbridge plan`: which completions each rollout generates and each optimizer step trains on."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from batchbridge.cli._input import EXIT_CODES, InputCommand, input_options, reading_from
from batchbridge.cli._progress import progress
from batchbridge.cli.main import FINE, INVALID, UNDECIDED

if TYPE_CHECKING:
    from batchbridge.meaning.plan import Plan, RolloutPlan, StepPlan
    from batchbridge.meaning.spec import Spec

_STEPS_BY_DEFAULT = 3


def _span(ctx: click.Context, option: click.Parameter, text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    start, colon, stop = text.partition(":")
    if not colon or not (start or "0").isdecimal() or not stop.isdecimal() or int(stop) <= int(start or 0):
        raise click.BadParameter("expected START:STOP, both whole, STOP exclusive and larger: 0:3")
    return int(start or 0), int(stop)


@click.command("plan", cls=InputCommand, short_help="Show which completions each step trains on.")
@input_options
@click.option("--step", type=click.IntRange(min=0), metavar="K", help="Only optimizer step K (from 0).")
@click.option("--steps", callback=_span, metavar="START:STOP", help="Only these optimizer steps; STOP is exclusive.")
@click.option("--rollout", type=click.IntRange(min=0), metavar="R", help="Only rollout R (from 0).")
@click.option("--svg", type=click.Path(dir_okay=False), metavar="FILE", help="Draw the first two rollouts as well.")
def command(
    as_json: bool,
    step: int | None,
    steps: tuple[int, int] | None,
    rollout: int | None,
    svg: str | None,
    **source: Any,
) -> int:
    """Show which completions each rollout generates and each optimizer step trains on.

    Without --step, --steps or --rollout: the totals, the first rollout and the first three optimizer steps; without
    --dataset-size the shape of the first rollout, by places in it, which no prompts need to be known for. Text names
    the first prompts of each line, --json all of them. Where a group filter or staleness decides which prompts fill a
    rollout, its places stand for them, and the candidates are shown in the order in which they are offered.
    """
    from batchbridge.errors import PlanError
    from batchbridge.meaning.candidates import plan_of
    from batchbridge.render import text

    if step is not None and steps is not None:
        raise click.UsageError("give --step or --steps, not both")
    name, reading = reading_from(**source)
    if reading.spec is None or reading.verdict == "invalid":
        click.echo(text.check(name, reading), err=True)
        return EXIT_CODES[reading.verdict] or INVALID
    if reading.dataset_size is None:
        if step is None and steps is None and rollout is None and svg is None:
            return _shape(name, reading.spec, as_json=as_json)
        said = "which steps and rollouts there are depends on the number of prompts: --dataset-size PROMPTS"
        click.echo(f"{text.clean(name)}: {said}", err=True)
        return UNDECIDED
    try:
        plan = plan_of(reading.spec, reading.dataset_size)
        total_steps, total_rollouts = plan.total_optimizer_steps, plan.total_rollouts
    except PlanError as error:
        click.echo(f"{text.clean(name)}: there is no plan: {error.reason}", err=True)
        return UNDECIDED
    if step is not None:
        steps = (step, step + 1)
    alone = steps is None and rollout is None
    if alone:
        steps = (0, min(_STEPS_BY_DEFAULT, total_steps)) if total_steps else None
        rollout = 0 if total_rollouts else None
    if steps is not None and steps[1] > total_steps:
        raise click.UsageError(f"the run has {total_steps} optimizer steps; there is no step {steps[1] - 1}")
    if rollout is not None and rollout >= total_rollouts:
        raise click.UsageError(f"the run has {total_rollouts} rollouts; there is no rollout {rollout}")
    if svg is not None:
        _draw(plan, svg)
    _print(plan, rollout, steps, totals=alone, as_json=as_json)
    return FINE


def _shape(name: str, spec: Spec, *, as_json: bool) -> int:
    """Without the number of prompts: the first rollout and its optimizer steps, by places in the rollout."""
    from batchbridge.errors import PlanError
    from batchbridge.meaning.candidates import plan_of
    from batchbridge.render import plan as render
    from batchbridge.render import text

    try:
        plan = plan_of(spec, render.with_enough_prompts(spec))
        rollout, steps = render.first_rollout(plan)
    except PlanError as error:
        click.echo(f"{text.clean(name)}: there is no plan: {error.reason}", err=True)
        return UNDECIDED
    _write(plan, None, [rollout], steps, render.shape_dict(), totals=True, as_json=as_json)
    return FINE


def _draw(plan: Plan, file: str) -> None:
    from batchbridge.render.pictures import MOST_COMPLETIONS, plan_picture

    size = plan.spec.completions_per_rollout or 0
    if size > MOST_COMPLETIONS:
        raise click.UsageError(f"--svg: a rollout has {size:,} completions; up to {MOST_COMPLETIONS:,} are drawn")
    try:
        Path(file).write_text(plan_picture(plan), encoding="utf-8")
    except OSError as error:
        raise click.UsageError(f"--svg {file}: {error.strerror}") from None


def _print(plan: Plan, rollout: int | None, steps: tuple[int, int] | None, *, totals: bool, as_json: bool) -> None:
    from batchbridge.meaning.candidates import CandidatePlan
    from batchbridge.render import plan as render

    rollouts = [] if rollout is None else [plan.rollout(rollout)]
    open_ = render.open_dict(plan) if isinstance(plan, CandidatePlan) else None
    planned: Iterable[StepPlan] = () if steps is None else plan.steps(*steps)
    if steps is not None and (as_json or not sys.stdout.isatty()):  # else the steps themselves say how far it is
        planned = progress(planned, steps[1] - steps[0], "steps planned")
    _write(plan, plan.dataset_size, rollouts, planned, open_, totals=totals, as_json=as_json)


def _write(
    plan: Plan,
    dataset_size: int | None,
    rollouts: Iterable[RolloutPlan],
    planned: Iterable[StepPlan],
    open_: dict[str, Any] | None,
    *,
    totals: bool,
    as_json: bool,
) -> None:
    from batchbridge.render import json
    from batchbridge.render import plan as render

    if as_json:
        shown = {
            "dataset_size": dataset_size,
            "totals": render.totals(plan, dataset_size),
            **({} if open_ is None else {"decided_while_it_runs": open_}),
            "rollouts": [render.rollout_dict(one) for one in rollouts],
            "steps": [render.step_dict(one) for one in planned],
        }
        click.echo(json.dumps(shown))
        return
    if totals:
        for line in render.totals_lines(plan, dataset_size):
            click.echo(line)
    if open_ is not None:
        for line in render.open_lines(open_):
            click.echo(line)
    for one in rollouts:
        click.echo(render.rollout_line(one))
    members = "prompt" if dataset_size is not None else "place"
    for step in planned:
        for line in render.step_lines(step, members):
            click.echo(line)
    if dataset_size is None and (share := render.share_line(plan)):
        click.echo(share)
