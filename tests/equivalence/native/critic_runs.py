"""Finished runs of one configuration with a critic, measured: policy and critic, each as `suite.measure` measures a
policy.

Only wrapped runs have ledgers. The frameworks divide advantages by another deviation, over n or n - 1 of a rollout's
tokens, and none can be told the other: each policy is held against the oracle with its own, and two first gradients are
compared after each was divided by what its advantages are in proportion to (`Finished.whitening`).
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from critics import FAULTS, Fault, Finished, led, says
from oracle_steps import OracleStep, between, worst

from batchbridge.ledger import diff, read_steps
from batchbridge.meaning.critic_run import run_of_critic
from batchbridge.meaning.weights import Row, token_weights
from batchbridge.testing.equivalence import LEDGER_RTOL, FinishedRun, RunDistance, compare
from batchbridge.testing.oracle import relative_error
from batchbridge.testing.snapshots import Snapshot, snapshots
from batchbridge.testing.trajectories import log_probabilities
from batchbridge_on_cpu.trajectories import distance

MODELS = ("policy", "critic")
SAYS = {"policy": log_probabilities, "critic": says}
"""Model -> what one with these parameters says."""
FOLDERS = {"policy": "", "critic": "critic"}
"""Where a model's ledger and steps stand inside of those of the run."""
PERTURBED = 1e-8
"""As `suite.PERTURBED`."""


def measured(places: Mapping[str, Mapping[str, Path]]) -> dict[str, Any]:
    """What `suite.measure` says of a case's runs, the critic's part under its name. places: mode -> run -> folder."""
    wrapped = places["enforce"]
    runs = {name: Finished.at(place) for name, place in wrapped.items()}
    steps = {name: oracle_steps(run) for name, run in runs.items()}
    ends = {name: plain_torch(run) for name, run in runs.items()}
    found: dict[str, dict[str, Any]] = {}
    for model in MODELS:
        found[model] = {
            "oracle": {name: worst(steps[name][model]) for name in runs},
            "plain_torch": {name: ends[name][model] for name in runs},
            "amplification": max(amplification(run)[model] for run in runs.values()),
            "pairs": {
                mode: {
                    f"{a} / {b}": apart(there[a], there[b], model, wrapped=mode == "enforce")
                    for a, b in itertools.combinations(there, 2)
                }
                for mode, there in places.items()
            },
        }
        for a, b in itertools.combinations(runs, 2):
            of_the_bar = between(steps[a][model], steps[b][model])
            found[model]["pairs"]["enforce"][f"{a} / {b}"]["gradients_of_the_bar"] = of_the_bar
    found["critic"]["whitening"] = {
        f"{a} / {b}": {
            "first_gradient": relative_error(runs[a].policy[0].gradient, runs[b].policy[0].gradient),
            "expected": abs(runs[a].whitening / runs[b].whitening - 1),
        }
        for a, b in itertools.combinations(runs, 2)
    }
    found["critic"]["weights"] = {name: weights(place, runs[name]) for name, place in wrapped.items()}
    found["critic"]["least_over_its_clip"] = {name: least_over_its_clip(run) for name, run in runs.items()}
    return {**found["policy"], "critic": found["critic"]}


def weights(place: Path, run: Finished) -> dict[str, float]:
    """What the critic's ledger says of its completions' weights. off: the furthest that a measured one is from the
    plan's, of the plan's. shown: the share that was measured; a completion whose values are all clipped shows none."""
    off, shown, every, term = 0.0, 0, 0, run_of_critic(run.spec).loss.policy
    for step in read_steps(place / "ledger" / FOLDERS["critic"]):
        rows = [
            Row(tokens=tokens, group=prompt)
            for tokens, prompt in zip(step["response_tokens"], step["prompt"], strict=True)
        ]
        for row, weight, seen in zip(rows, token_weights(term, rows), step["weights"], strict=True):
            if row.tokens:
                every, shown = every + 1, shown + (seen is not None)
                off = max(off, 0.0 if seen is None else abs(seen / float(weight) - 1))
    return {"off": off, "shown": shown / every}


def least_over_its_clip(run: Finished) -> float:
    """The smallest norm of the policy's gradients over the bound that they are clipped to."""
    bound = run.spec.carried.max_gradient_norm
    assert bound
    return min(float(step.gradient.norm()) for step in run.policy) / bound


def oracle_steps(run: Finished) -> dict[str, list[OracleStep]]:
    """Every optimizer step of both models beside the oracle. Wrong ones: advantages over the other deviation for the
    policy, returns without a discount for the critic."""
    exact, rough = run.again(torch.float64), run.again(torch.float32)
    every = range(exact.plan.total_rollouts)
    other = run.again(torch.float64, ddof=1 - (1 if run.spec.advantage.ddof is None else run.spec.advantage.ddof))
    undiscounted = run.again(torch.float64, gamma=dict.fromkeys(every, 1.0))
    found: dict[str, list[OracleStep]] = {model: [] for model in MODELS}
    for model, plan, kept, wrong in (
        ("policy", exact.plan, run.policy, other),
        ("critic", exact.critics, run.critic, undiscounted),
    ):
        assert len(kept) == plan.total_optimizer_steps
        for step in kept:
            members = exact.members(plan, step.step)
            expected, floor, not_it = (
                getattr(one, f"{model}_gradient")(step.step, one.pairs(members)) for one in (exact, rough, wrong)
            )
            clipped = exact.clipped if model == "policy" else exact.values_clipped
            found[model].append(
                OracleStep(
                    (step.gradient.double() - expected) / expected.norm(),
                    relative_error(floor, expected),
                    clipped(step.step, exact.pairs(members)),
                    relative_error(step.gradient, not_it),
                )
            )
    return found


def plain_torch(run: Finished) -> dict[str, dict[str, float]]:
    """Model -> how far its end is from the plan's in plain torch, sound and with each fault."""
    found: dict[str, dict[str, float]] = {model: {} for model in MODELS}
    faults: tuple[Fault | None, ...] = (None, *FAULTS)
    for fault in faults:
        ends = led(run.spec, run.prompts, fault)
        for model, steps in (("policy", run.policy), ("critic", run.critic)):
            start, end = ends[model]
            assert torch.equal(start.float(), steps[0].before), f"{model}: another one than the suite's"
            found[model][fault or "sound"] = distance(start, steps[-1].after, end, SAYS[model]).said
    return found


def amplification(run: Finished) -> dict[str, float]:
    """Model -> how many times a small change of both models' parameters at the start has grown at its end."""
    sound, other = led(run.spec, run.prompts, None), led(run.spec, run.prompts, None, noise=PERTURBED)
    return {
        model: float((other[model][1] - sound[model][1]).norm() / (other[model][0] - sound[model][0]).norm())
        for model in MODELS
    }


def apart(a: Path, b: Path, model: str, *, wrapped: bool) -> dict[str, Any]:
    """Two finished runs, measured; the ledgers of wrapped ones, too."""
    if not wrapped:
        return without_ledgers(*(snapshots(place / "steps" / FOLDERS[model]) for place in (a, b)), SAYS[model])
    one, two = (FinishedRun(place / "ledger" / FOLDERS[model], place / "steps" / FOLDERS[model]) for place in (a, b))
    found, first = compare(one, two, says=SAYS[model]), diff(one.ledger, two.ledger, rtol=LEDGER_RTOL)
    assert found.gradients is not None
    if model == "policy":
        runs = [Finished.at(place) for place in (a, b)]
        own = [run.policy[0].gradient.double() / run.whitening for run in runs]
        found = dataclasses.replace(found, gradients=(relative_error(own[0], own[1]), *found.gradients[1:]))
    assert found.gradients is not None
    return {
        "ledgers_equal": found.ledger is None,
        "first_difference": None if found.ledger is None else first.to_dict(),
        "first_gradient": found.gradients[0],
        "gradients": max(found.gradients),
        "trajectory": found.trajectory,
        "movement": found.movement,
        "problems": found.problems(),
    }


def without_ledgers(
    a: list[Snapshot], b: list[Snapshot], model_says: Callable[[torch.Tensor], torch.Tensor]
) -> dict[str, Any]:
    """Two runs that kept nothing but their optimizer steps."""
    start, *ends = (model_says(one) for one in (b[0].before, a[-1].after, b[-1].after))
    found = RunDistance(
        ledger=None,
        gradients=tuple(relative_error(one.gradient, two.gradient) for one, two in zip(a, b, strict=False)),
        trajectory=relative_error(ends[0] - start, ends[1] - start),
        movement=float((b[-1].after - b[0].before).norm() / b[0].before.norm()),
    )
    assert found.gradients is not None
    return {
        "ledgers_equal": None,
        "first_difference": None,
        "first_gradient": found.gradients[0],
        "gradients": max(found.gradients),
        "trajectory": found.trajectory,
        "movement": found.movement,
        "problems": [],
    }
