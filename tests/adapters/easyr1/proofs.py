"""What is asked of the running trainer's proofs, of a live run and of a recorded one alike.

A record is JSON: `gradients` by number of ranks (what native/gradients.py measured), `runs` by name (`summary` of a
ledger, the command's arguments, what the run said). native/record_proofs.py makes the recorded ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from batchbridge.adapter import Context
from batchbridge.advantages import group_advantages
from batchbridge.ledger import read_headers, read_steps
from batchbridge.plan import Plan
from batchbridge.reading import read_source
from batchbridge.sources import load
from batchbridge.spec import Spec
from batchbridge.weights import Row, token_weights
from batchbridge_easyr1.config import EasyR1Adapter

COLUMNS = ("rollout", "pass", "prompt", "sample", "rank", "response_tokens", "weights", "advantage")
SCALARS = ("step", "ranks", "gradient_norm", "learning_rate", "lr_tick", "skipped")
CASES = {"default": 5, "default, k3": 5, "default, k1": 2, "default, k2": 2, "default, abs": 2}
LATER_CASES = {"gspo": 5, "gspo_token": 5, "cispo": 5, "sapo": 5}
"""Objectives and how many aggregations each is measured with; the later ones are not in 0.3.2."""
GROUP, PROMPTS = 4, 12


def summary(ledger: Path) -> dict[str, Any]:
    """A ledger as JSON: its spec, and every step's rows."""
    header = read_headers(ledger)[0]
    steps = [{name: step[name] for name in (*SCALARS, *COLUMNS)} for step in read_steps(ledger)]
    kept = {name: header[name] for name in ("framework", "framework_version", "mode", "spec", "dataset_size")}
    return {**kept, "steps": steps}


def bar(result: Mapping[str, Any]) -> float:
    """DESIGN 8: of a gradient's relative error."""
    return float(max(1e-6, 3 * result["floor"]))


# ---- L2


def check_gradients(measured: Mapping[str, Any], ranks: int) -> None:
    """Every objective, aggregation, split and step is within the bar, and weighs something."""
    wanted = CASES if measured["version"] == "0.3.2" else CASES | LATER_CASES
    found: dict[str, int] = {}
    for result in measured["wrapped"]:
        assert result["error"] <= bar(result), result
        assert result["norm"] > 0.1, result
        found[result["case"]] = found.get(result["case"], 0) + 1
    assert found == {
        case: 3 * (4 if case == "default" and ranks == 1 else 2) * aggregations for case, aggregations in wanted.items()
    }
    assert max(result["clipped"] for result in measured["wrapped"]) >= 0.05


def check_controls(measured: Mapping[str, Any], ranks: int) -> None:
    """EasyR1 alone misses the bar where it should, meets it where it should, and its weights are those recorded."""
    said = measured["natively"]
    wrong = ["seq", "seq, two per micro-batch", "seq, by token budget", *(["floors"] if ranks > 1 else [])]
    for name in wrong:
        assert said[name] > 10, name
    assert said["positive control: token"] <= 1
    for name, ratio in said.items():
        if name.startswith("weights of "):
            assert ratio <= 1, name


def check_edges(measured: Mapping[str, Any]) -> None:
    """Detached ratios; steps that are not the plan's; a step without tokens; a batch that nobody planned."""
    assert measured["detached"]["error"] <= bar(measured["detached"])
    members, weights, applied = measured["drifts"]
    assert members.startswith("optimizer step 0 departs from the plan in its order")
    assert weights.startswith("optimizer step 0 departs from the plan in its weights")
    assert applied == "nothing applied"
    assert measured["empty"]["untouched"]
    assert measured["empty"]["ticks"] == measured["empty"]["planned_ticks"]
    assert "unplanned_batch" in measured["refused"]


# ---- L3


def rows_of(step: Mapping[str, Any], *names: str) -> list[tuple[Any, ...]]:
    return list(zip(*(step[name] for name in names), strict=True))


def check_plan(run: Mapping[str, Any], *, ranks: int) -> None:
    """The ledger is the plan: members, token weights, clock; gradients are not zero."""
    assert run["mode"] == "enforce"
    plan = Plan(Spec.from_dict(run["spec"]), run["dataset_size"])
    assert [step["step"] for step in run["steps"]] == list(range(plan.total_optimizer_steps))
    for step in run["steps"]:
        planned = plan.step(step["step"])
        trained = sorted(rows_of(step, "rollout", "pass", "prompt", "sample"))
        assert trained == sorted(tuple(member) for member in planned.members)
        assert {step["ranks"], len(set(step["rank"]))} == {ranks}
        members = [Row(tokens=tokens, group=group) for tokens, group in rows_of(step, "response_tokens", "prompt")]
        for weight, (have,) in zip(
            token_weights(plan.spec.loss.policy, members), rows_of(step, "weights"), strict=True
        ):
            assert math.isclose(have, float(weight), rel_tol=1e-6)
        _check_advantages(step, plan.spec)
        assert step["gradient_norm"] > 1e-2
        assert step["lr_tick"] == planned.lr_tick


def _check_advantages(step: Mapping[str, Any], spec: Spec) -> None:
    from batchbridge.testing.tiny import Script

    script = Script()
    for prompt, sample, tokens, have in rows_of(step, "prompt", "sample", "response_tokens", "advantage"):
        rewards = [script.reward(prompt, other) for other in range(GROUP)]
        want = group_advantages([rewards], spec.advantage)[0][sample]
        assert have is None if not tokens else math.isclose(have, want, rel_tol=1e-6, abs_tol=1e-7)


def check_whole_groups(run: Mapping[str, Any]) -> None:
    """All samples of a prompt meet in one step."""
    for step in run["steps"]:
        samples: dict[int, set[int]] = {}
        for prompt, sample in rows_of(step, "prompt", "sample"):
            samples.setdefault(prompt, set()).add(sample)
        assert set(map(frozenset, samples.values())) == {frozenset(range(GROUP))}


def check_same(run: Mapping[str, Any], other: Mapping[str, Any], *, rtol: float = 1e-4) -> None:
    """Two runs trained the same steps, whatever their ranks and micro-batches."""
    names = ("rollout", "pass", "prompt", "sample", "response_tokens")
    assert len(run["steps"]) == len(other["steps"])
    for mine, theirs in zip(run["steps"], other["steps"], strict=True):
        assert sorted(rows_of(mine, *names)) == sorted(rows_of(theirs, *names))
        assert math.isclose(mine["gradient_norm"], theirs["gradient_norm"], rel_tol=rtol)
        assert mine["learning_rate"] == theirs["learning_rate"]


def differing_steps(run: Mapping[str, Any], other: Mapping[str, Any]) -> int:
    """Steps whose members differ."""
    names = ("rollout", "prompt", "sample")
    pairs = zip(run["steps"], other["steps"], strict=True)
    return sum(set(rows_of(mine, *names)) != set(rows_of(theirs, *names)) for mine, theirs in pairs)


# ---- L1

THREE = "trainer.max_steps=3"
SCENARIOS: dict[str, tuple[str, list[str]]] = {
    # name -> (mode, settings)
    "enforced": ("enforce", [THREE]),
    "seq": ("enforce", [THREE, "worker.actor.loss_avg_mode=seq", "worker.actor.dynamic_batching=true"]),
    "observed": ("observe", [THREE]),
    "predicted": ("observe", [THREE, "worker.actor.loss_avg_mode=seq", "worker.actor.ppo_epochs=2"]),
    "killed": ("enforce", [THREE, "trainer.save_freq=1"]),
    "resumed": ("enforce", [THREE, "trainer.save_freq=1", "trainer.find_last_checkpoint=true"]),
}
"""Of native/fits.py."""


def argv_of(name: str, ranks: int) -> list[str]:
    """The command that a scenario stands for."""
    from batchbridge_easyr1.testing.scripted import arguments

    return ["python3", "-m", "verl.trainer.main", *arguments(Path("run"), ranks), *SCENARIOS[name][1]]


def check_prediction(run: Mapping[str, Any], argv: Sequence[str]) -> None:
    """The adapter's `native_steps` against the unwrapped run's ledger, completion by completion."""
    from batchbridge.testing.tiny import Script

    context = Context(framework_version=run["framework_version"], dataset_size=run["dataset_size"])
    reading = read_source(load(list(argv)), EasyR1Adapter(), context)
    script = Script()
    lengths = {
        (prompt, sample): sum(script.loss_mask(prompt, sample)) for prompt in range(PROMPTS) for sample in range(GROUP)
    }
    predicted = list(EasyR1Adapter().native_steps(reading, run["dataset_size"], lengths))
    assert len(predicted) == len(run["steps"]) > 0
    for native, step in zip(predicted, run["steps"], strict=True):
        want = {
            (row.rollout, row.pass_index, row.prompt, row.sample, row.rank): float(row.weight or 0)
            for row in native.rows
        }
        have = {
            tuple(row): weight
            for *row, weight in rows_of(step, "rollout", "pass", "prompt", "sample", "rank", "weights")
        }
        assert have.keys() == want.keys()
        for row, weight in have.items():
            assert math.isclose(weight, want[row], rel_tol=1e-6), row
