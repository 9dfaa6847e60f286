"""`batchbridge plan`: which completions each rollout generates and each optimizer step trains on."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from batchbridge.cli._input import InputCommand, input_options, reading_from
from batchbridge.cli._output import replace_own
from batchbridge.cli._progress import progress
from batchbridge.cli.main import EXIT_CODES, FINE, INVALID, UNDECIDED

if TYPE_CHECKING:
    from batchbridge.contract.reading import Reading
    from batchbridge.errors import PlanError
    from batchbridge.meaning.plan import Plan, RolloutPlan, StepPlan

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
    from batchbridge.cli._json import print_json
    from batchbridge.errors import PlanError
    from batchbridge.meaning.candidates import CandidatePlan, plan_of
    from batchbridge.render import headline, text
    from batchbridge.render import plan as render

    if step is not None and steps is not None:
        raise click.UsageError("give --step or --steps, not both")
    name, read, reading = reading_from(**source)
    result, fine = _result(name, reading), FINE
    if reading.spec is None:
        from batchbridge.comparing.releases import on_example_devices

        said = {"world_size": source["world_size"] or source["gpus"], "dataset_size": source["dataset_size"]}
        example = on_example_devices(read, reading, **said)
        if example is not None and example.spec is not None:
            reading, fine = example, UNDECIDED
            result["example_devices"] = devices = example.spec.topology.world_size
            if not as_json:
                click.echo(f"on {devices} devices, for example: nothing says how many (--world-size DEVICES)")

    def refused(why: str, code: int, said: str) -> int:
        if as_json:
            return print_json([result], code, error=why)
        click.echo(said, err=True)
        return code

    if reading.spec is None or reading.verdict == "invalid":
        code = EXIT_CODES[reading.verdict] or INVALID
        return refused("the configuration is not valid: see findings", code, text.check(name, reading))
    if reading.condition is not None and reading.counts_itself:
        why = reading.condition.no_plan
        return refused(why, UNDECIDED, f"{text.clean(name)}: there is no plan: {why}")
    if not as_json:
        for line in headline.condition(reading):
            click.echo(line)
    steps = steps if step is None else (step, step + 1)
    alone = steps is None and rollout is None
    if reading.dataset_size is None and not (alone and svg is None):
        why = "which steps and rollouts there are depends on the number of prompts: --dataset-size PROMPTS"
        return refused(why, UNDECIDED, f"{text.clean(name)}: {why}")
    try:
        if reading.dataset_size is None:
            shown = render.first_rollout(reading.spec)
        else:
            plan = plan_of(reading.spec, reading.dataset_size)
            chosen = _chosen(plan, steps, rollout, as_json=as_json)
            open_ = render.open_dict(plan) if isinstance(plan, CandidatePlan) else None
            shown = render.ShownPlan(plan, reading.dataset_size, *chosen, open_)
    except PlanError as error:
        why = _why(error, reading)
        return refused(why, UNDECIDED, f"{text.clean(name)}: there is no plan: {why}")
    if svg is not None:
        _draw(shown.plan, svg)
    if as_json:
        return print_json([{**result, **shown.to_dict()}], fine)
    for line in shown.lines(totals=alone):
        click.echo(line)
    return fine


def _chosen(
    plan: Plan, steps: tuple[int, int] | None, rollout: int | None, *, as_json: bool
) -> tuple[list[RolloutPlan], Iterable[StepPlan]]:
    """The rollout and the optimizer steps that are asked for; where none is, the first ones."""
    total_steps, total_rollouts = plan.total_optimizer_steps, plan.total_rollouts
    if steps is None and rollout is None:
        steps = (0, min(_STEPS_BY_DEFAULT, total_steps)) if total_steps else None
        rollout = 0 if total_rollouts else None
    if steps is not None and steps[1] > total_steps:
        raise click.UsageError(f"the run has {total_steps} optimizer steps; there is no step {steps[1] - 1}")
    if rollout is not None and rollout >= total_rollouts:
        raise click.UsageError(f"the run has {total_rollouts} rollouts; there is no rollout {rollout}")
    planned: Iterable[StepPlan] = () if steps is None else plan.steps(*steps)
    if steps is not None and (as_json or not sys.stdout.isatty()):  # else the steps themselves say how far it is
        planned = progress(planned, steps[1] - steps[0], "steps planned")
    return [] if rollout is None else [plan.rollout(rollout)], planned


def _why(error: PlanError, reading: Reading) -> str:
    """The reason why there is no plan; with what it comes to where the order of prompts is left to chance."""
    if reading.spec is None or reading.spec.order.seed is not None:
        return error.reason
    from batchbridge.meaning.candidates import plan_of

    try:
        plan_of(reading.spec.replace(**{"order.seed": 0}), reading.dataset_size or 1)
    except PlanError:
        return error.reason
    chance = "nothing seeds the order of prompts, so every launch has another"
    return f"{error.reason} ({chance}); batchbridge explain says the sizes, which stay"


def _result(name: str, reading: Reading) -> dict[str, Any]:
    """The result that `--json` has of a configuration without a plan; the plan's own names take these names' places."""
    return {
        "file": name,
        "framework": reading.framework,
        "framework_version": reading.framework_version,
        "verdict": reading.verdict,
        "findings": [finding.to_dict() for finding in reading.findings],
        "dataset_size": reading.dataset_size,
        "example_devices": None,
        "totals": None,
        "decided_while_it_runs": None,
        "rollouts": [],
        "steps": [],
    }


def _draw(plan: Plan, file: str) -> None:
    from batchbridge.render.pictures import MOST_COMPLETIONS, plan_picture

    size = plan.spec.completions_per_rollout or 0
    if size > MOST_COMPLETIONS:
        raise click.UsageError(f"--svg: a rollout has {size:,} completions; up to {MOST_COMPLETIONS:,} are drawn")
    replace_own("--svg", file, "<svg", lambda: plan_picture(plan))
