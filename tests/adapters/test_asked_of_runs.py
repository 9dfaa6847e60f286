"""What is asked of wrapped runs asks enough: a ledger that is the plan passes, and one with a single change does not.

The ledgers are made from the plan itself; live runs are in each framework's `native`.
"""

from __future__ import annotations

import copy
import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from batchbridge.meaning.advantages import group_advantages
from batchbridge.meaning.plan import Plan
from batchbridge.meaning.spec import Spec, Staleness
from batchbridge.meaning.weights import Row, token_weights
from batchbridge.reading.read import read
from batchbridge.testing.tiny import ScriptedRollouts

HERE, RANKS = Path(__file__).parent, 2
MODULES = {"easyr1": "proofs", "openrlhf": "orl_proofs", "open_instruct": "oi_proofs"}
"""Framework -> its module of what is asked."""


def easyr1(asked: Any) -> tuple[Spec, int]:
    """The specification of a run, and its number of prompts."""
    recorded = json.loads((HERE / "easyr1" / "recorded" / "unwrapped.json").read_text(encoding="utf-8"))
    words = recorded["0.3.3.dev0"]["runs"]["fit predicted, 1"]["argv"]
    return spec_of(words, "easyr1", "0.3.3.dev0", asked.PROMPTS), asked.PROMPTS


def openrlhf(asked: Any) -> tuple[Spec, int]:
    from batchbridge_on_cpu.openrlhf.scripted import command

    return spec_of(command(Path("x"), RANKS)[1:], "openrlhf", "0.11.2", asked.PROMPTS), asked.PROMPTS


def open_instruct(asked: Any) -> tuple[Spec, int]:
    words = [*asked.COMMAND, "--num_learners_per_node", str(RANKS)]
    return spec_of(words, "open_instruct", "2026.8.20", 12).replace(staleness=Staleness()), 12


def spec_of(words: list[str], framework: str, version: str, prompts: int) -> Spec:
    spec = read(words, framework=framework, version=version, dataset_size=prompts).spec
    assert spec is not None
    return spec.replace(**{"order.seed": 7})


def planned(spec: Spec, prompts: int) -> dict[str, Any]:
    """The ledger that the plan of a specification leads to, as the modules summarise it."""
    script, plan, steps = ScriptedRollouts(), Plan(spec, prompts), []
    for number in range(plan.total_optimizer_steps):
        step = plan.step(number)
        members = list(step.members)
        rows = [Row(tokens=sum(script.loss_mask(one.prompt, one.sample)), group=one.prompt) for one in members]
        group = plan.completions_per_prompt
        scale = {
            prompt: group_advantages([[script.reward(prompt, other) for other in range(group)]], spec.advantage)[0]
            for prompt in {one.prompt for one in members}
        }
        advantages = [
            scale[one.prompt][one.sample] if row.tokens else None for one, row in zip(members, rows, strict=True)
        ]
        weights = [float(weight) for weight in token_weights(spec.loss.policy, rows)]
        steps.append(
            {
                **dict(
                    zip(("rollout", "pass", "prompt", "sample"), map(list, zip(*members, strict=True)), strict=True)
                ),
                "rank": [place % RANKS for place in range(len(members))],
                "response_tokens": [row.tokens for row in rows],
                "weights": [None if one == 0 else weight for weight, one in zip(weights, advantages, strict=True)],
                "advantage": advantages,
                "old_logprobs": [f"{number}.{place}" for place in range(len(members))],
                "generated_at_step": [0] * len(members),
                "step": number,
                "ranks": RANKS,
                "gradient_norm": 1.0,
                "learning_rate": 1.0,
                "skipped": False,
                "lr_tick": step.lr_tick,
            }
        )
    return {"mode": "enforce", "spec": spec.to_dict(), "dataset_size": prompts, "steps": steps}


def swapped(step: dict[str, Any]) -> None:
    step["prompt"] = step["prompt"][::-1]


def heavier(step: dict[str, Any]) -> None:
    place = next(place for place, weight in enumerate(step["weights"]) if weight)
    step["weights"][place] *= 1.5


def rewarded(step: dict[str, Any]) -> None:
    place = next(place for place, advantage in enumerate(step["advantage"]) if advantage)
    step["advantage"][place] += 0.5


CHANGES: dict[str, Callable[[dict[str, Any]], None]] = {
    "two completions in each other's place": swapped,
    "a weight half as much again": heavier,
    "another advantage": rewarded,
    "no tick": lambda step: step.update(lr_tick=not step["lr_tick"]),
    "a rank that is not there": lambda step: step.update(ranks=RANKS + 1),
    "no gradient": lambda step: step.update(gradient_norm=0.0),
}


@pytest.fixture(params=MODULES)
def asked_and_run(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, dict[str, Any]]:
    """A framework's module, and a ledger that is the plan."""
    monkeypatch.syspath_prepend(str(HERE / request.param))
    asked = importlib.import_module(MODULES[request.param])
    makers = {"easyr1": easyr1, "openrlhf": openrlhf, "open_instruct": open_instruct}
    return asked, planned(*makers[request.param](asked))


def test_a_ledger_that_is_the_plan_passes(asked_and_run: tuple[Any, dict[str, Any]]) -> None:
    asked, run = asked_and_run
    assert len(run["steps"]) > 2
    asked.check_plan(run, ranks=RANKS)
    asked.check_same(run, run)


@pytest.mark.parametrize("what", CHANGES)
def test_a_ledger_with_one_change_in_one_step_fails(asked_and_run: tuple[Any, dict[str, Any]], what: str) -> None:
    asked, run = asked_and_run
    changed = copy.deepcopy(run)
    CHANGES[what](changed["steps"][1])
    with pytest.raises(AssertionError):
        asked.check_plan(changed, ranks=RANKS)


def test_a_ledger_that_ends_a_step_early_fails(asked_and_run: tuple[Any, dict[str, Any]]) -> None:
    asked, run = asked_and_run
    with pytest.raises(AssertionError):
        asked.check_plan({**run, "steps": run["steps"][:-1]}, ranks=RANKS)
