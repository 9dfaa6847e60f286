"""What is asked of runs of OpenRLHF's stock entry; and the figures and recorded steps that they leave.

`by_hand/native/test_runs_openrlhf.py` makes the runs. With BATCHBRIDGE_RECORD=1 (`nox -s matrix`) it and the native
tests leave figures in `figures.json`, by release, and the steps of unwrapped runs, facts about OpenRLHF, in
`recorded/unwrapped.json`.
"""

from __future__ import annotations

import importlib.metadata
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from batchbridge.contract import plugins
from batchbridge.ledger import digest_floats, read_headers, read_steps
from batchbridge.meaning import candidates
from batchbridge.meaning.advantages import group_advantages
from batchbridge.meaning.candidates import CandidatePlan
from batchbridge.meaning.plan import Plan
from batchbridge.meaning.spec import Spec
from batchbridge.meaning.weights import Row, token_weights
from batchbridge.reading.read import read
from batchbridge.testing.tiny import ScriptedRollouts
from batchbridge_on_cpu import figures

HERE = Path(__file__).parent
UNWRAPPED = HERE / "recorded" / "unwrapped.json"
PROMPTS, GROUP, ROLLOUTS = 12, 3, 3
WHOLE = {"rollout.batch_size": 4, "train.batch_size": 12, "train.micro_batch_size": 12}
"""One optimizer step that is the whole episode of 4 prompts: what upstream's own order leaves decided."""
BOUNDS = (2.2, 3.6)
"""Of a group's mean score, both exclusive, where groups are filtered: six of the twelve prompts lie between."""
SCALARS = ("step", "ranks", "gradient_norm", "learning_rate", "lr_tick", "skipped")
COLUMNS = ("rollout", "pass", "prompt", "sample", "rank", "response_tokens", "weights", "advantage", "old_logprobs")
MEMBERS = ("rollout", "pass", "prompt", "sample")


# ---- what they leave


def summary(ledger: Path) -> dict[str, Any]:
    """A ledger as JSON: what its header says of the run, and every step's rows."""
    header, steps = read_headers(ledger)[0], read_steps(ledger)
    kept = {name: header[name] for name in ("framework", "framework_version", "mode", "spec", "dataset_size")}
    rows = [{name: step[name] for name in (*SCALARS, *COLUMNS)} for step in steps]
    return {**kept, "steps": rows, "incomplete": bool(steps.incomplete)}


def keep(group: str, name: str, value: Any) -> None:
    """Keeps a figure of the installed release."""
    figures.keep(HERE / "figures.json", importlib.metadata.version("openrlhf"), group, {name: value})


def keep_unwrapped(name: str, run: Mapping[str, Any]) -> None:
    """Keeps the steps of an unwrapped run, where figures are kept."""
    if figures.asked():
        every = json.loads(UNWRAPPED.read_text(encoding="utf-8"))
        every.setdefault(run["framework_version"], {})[name] = run
        lines = [f" {json.dumps(release)}: {json.dumps(every[release], sort_keys=True)}" for release in sorted(every)]
        UNWRAPPED.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


# ---- what is asked


def rows_of(step: Mapping[str, Any], *names: str) -> list[tuple[Any, ...]]:
    return list(zip(*(step[name] for name in names), strict=True))


def plan_of(run: Mapping[str, Any]) -> Plan:
    return candidates.plan_of(Spec.from_dict(run["spec"]), run["dataset_size"])


def passes(prompt: int) -> bool:
    """Whether a filter with `BOUNDS` keeps the prompt's group."""
    script = ScriptedRollouts()
    return BOUNDS[0] < sum(script.reward(prompt, sample) for sample in range(GROUP)) / GROUP < BOUNDS[1]


def filled(plan: CandidatePlan) -> list[int]:
    """The prompts that fill the places of all rollouts, one after the other."""
    return [prompt for prompt in plan.candidates(0, 10 * plan.dataset_size) if passes(prompt)]


def members_of(plan: Plan, step: int) -> list[tuple[int, ...]]:
    """(rollout, pass, prompt, sample) of each completion of an optimizer step, sorted; of candidates those that the
    filter keeps."""
    members = [tuple(member) for member in plan.step(step).members]
    if isinstance(plan, CandidatePlan):
        kept, size = filled(plan), plan.prompts_per_rollout
        members = [
            (rollout, *passed, kept[rollout * size + place], sample) for rollout, *passed, place, sample in members
        ]
    return sorted(members)


def check_plan(run: Mapping[str, Any], *, ranks: int) -> None:
    """The ledger is the plan: members, token weights, advantages, clock; gradients are not zero."""
    plan = plan_of(run)
    assert [step["step"] for step in run["steps"]] == list(range(plan.total_optimizer_steps))
    check_steps(run, ranks=ranks)


def check_steps(run: Mapping[str, Any], *, ranks: int) -> None:
    """As `check_plan`, of the steps that are there."""
    assert run["mode"] == "enforce"
    plan = plan_of(run)
    for step in run["steps"]:
        planned = plan.step(step["step"])
        assert sorted(rows_of(step, *MEMBERS)) == members_of(plan, step["step"])
        assert step["ranks"] == ranks
        if max(step["pass"]) == 0:  # a later pass trains completions where they lie
            assert set(step["rank"]) == set(range(ranks))
        check_weights(step, plan.spec, clipped=frozenset(run.get("clipped", ())))
        check_advantages(step, plan.spec)
        assert step["gradient_norm"] > 1e-2
        assert step["lr_tick"] == planned.lr_tick


def check_critic(run: Mapping[str, Any], *, ranks: int) -> None:
    """The ledger of a run with a critic is the plan: members, token weights, clock. Advantages are of single tokens,
    and a ledger has none."""
    plan = plan_of(run)
    assert plan.spec.critic is not None
    assert run["mode"] == "enforce"
    assert [step["step"] for step in run["steps"]] == list(range(plan.total_optimizer_steps))
    assert plan.total_optimizer_steps == 2 * (ROLLOUTS - plan.spec.critic.warmup_rollouts)
    for step in run["steps"]:
        assert sorted(rows_of(step, *MEMBERS)) == members_of(plan, step["step"])
        assert step["ranks"] == ranks
        tokens = sum(step["response_tokens"])
        for weight, count in rows_of(step, "weights", "response_tokens"):
            assert math.isclose(weight, 1 / tokens if count else 0.0, rel_tol=1e-6)
        assert set(step["advantage"]) == {None}
        assert step["gradient_norm"] > 1e-2
        assert step["lr_tick"] == plan.step(step["step"]).lr_tick


def clipped_in(file: Path, run: Mapping[str, Any]) -> list[str]:
    """The completions of a run, by the digest of their old log-probabilities, of which the policy loss clipped every
    token. file: see `BATCHBRIDGE_CLIPPED` of batchbridge_on_cpu.openrlhf.engines; its rows begin with the prompt and
    may be padded, so that a completion is a part of one."""
    known = {digest for step in run["steps"] for digest in step["old_logprobs"]}
    found = set()
    for line in file.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if row["clipped"]:
            old, size = row["old"], len(row["old"])
            parts = (digest_floats(old[start:end]) for start in range(size) for end in range(start + 1, size + 1))
            found |= known.intersection(parts)
    return sorted(found)


def check_weights(step: Mapping[str, Any], spec: Spec, *, clipped: frozenset[str] = frozenset()) -> None:
    """Every token weighs what the specification gives it. A completion without advantage shows no weight; in a later
    pass, in which ratios are not 1, nor does one all of whose tokens are clipped (see `clipped_in`), and no other."""
    members = [Row(tokens=tokens, group=group) for tokens, group in rows_of(step, "response_tokens", "prompt")]
    rows = rows_of(step, "weights", "advantage", "pass", "old_logprobs")
    for want, (have, advantage, passes, old) in zip(token_weights(spec.loss.policy, members), rows, strict=True):
        assert (have is None) == (advantage == 0 or (passes > 0 and old in clipped))
        assert have is None or math.isclose(have, float(want), rel_tol=1e-6)


def check_advantages(step: Mapping[str, Any], spec: Spec) -> None:
    """Every completion has its group's advantage by the specification's rule."""
    script = ScriptedRollouts()
    for prompt, sample, tokens, have in rows_of(step, "prompt", "sample", "response_tokens", "advantage"):
        rewards = [script.reward(prompt, other) for other in range(GROUP)]
        want = group_advantages([rewards], spec.advantage)[0][sample]
        assert have is None if not tokens else math.isclose(have, want, rel_tol=1e-5, abs_tol=1e-6)


def check_same(run: Mapping[str, Any], other: Mapping[str, Any], *, rtol: float = 1e-4) -> None:
    """Two runs trained the same steps, whatever their ranks, micro-batches and ZeRO stages."""
    assert len(run["steps"]) == len(other["steps"])
    for mine, theirs in zip(run["steps"], other["steps"], strict=True):
        assert sorted(rows_of(mine, *MEMBERS, "response_tokens")) == sorted(
            rows_of(theirs, *MEMBERS, "response_tokens")
        )
        assert math.isclose(mine["gradient_norm"], theirs["gradient_norm"], rel_tol=rtol)
        assert mine["learning_rate"] == theirs["learning_rate"]


def check_identical(run: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    """Two runs are one: row by row, to the last bit of gradient norms and old log-probabilities."""
    assert len(run["steps"]) == len(other["steps"])
    for mine, theirs in zip(run["steps"], other["steps"], strict=True):
        assert sorted(rows_of(mine, *COLUMNS)) == sorted(rows_of(theirs, *COLUMNS))
        assert {name: mine[name] for name in SCALARS} == {name: theirs[name] for name in SCALARS}


def differing_steps(run: Mapping[str, Any], other: Mapping[str, Any]) -> int:
    """Steps whose members differ."""
    pairs = zip(run["steps"], other["steps"], strict=True)
    names = ("rollout", "prompt", "sample")
    return sum(set(rows_of(mine, *names)) != set(rows_of(theirs, *names)) for mine, theirs in pairs)


def check_once(run: Mapping[str, Any]) -> None:
    """Every completion of every prompt was trained once."""
    trained = sorted(row for step in run["steps"] for row in rows_of(step, "prompt", "sample"))
    assert trained == [(prompt, sample) for prompt in range(run["dataset_size"]) for sample in range(GROUP)]


def check_prediction(run: Mapping[str, Any], words: list[str]) -> None:
    """The adapter's `native_steps` of a command against the unwrapped run's ledger, completion by completion."""
    size, script = run["dataset_size"], ScriptedRollouts()
    reading = read(words, framework="openrlhf", version=run["framework_version"], dataset_size=size)
    lengths = {
        (prompt, sample): sum(script.loss_mask(prompt, sample)) for prompt in range(size) for sample in range(GROUP)
    }
    predicted = list(plugins.adapters()["openrlhf"].native_steps(reading, size, lengths))
    assert len(predicted) == len(run["steps"]) > 0
    for native, step in zip(predicted, run["steps"], strict=True):
        want = {
            (row.rollout, row.pass_index, row.prompt, row.sample, row.rank): float(row.weight or 0)
            for row in native.rows
        }
        have = {tuple(row[:-2]): row[-2:] for row in rows_of(step, *MEMBERS, "rank", "weights", "advantage")}
        assert have.keys() == want.keys()
        for row, (weight, advantage) in have.items():
            assert advantage == 0 if weight is None else math.isclose(weight, want[row], rel_tol=1e-6), row
