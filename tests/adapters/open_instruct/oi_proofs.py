"""What is asked of the running trainer's runs, and the figures of docs/open_instruct.md that they leave.

What was measured is JSON: `gradients` by number of ranks (native/gradients.py), `jobs` by name (`summary` of a ledger),
`script` (what native/launched.py left).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from batchbridge.ledger import read_headers, read_steps
from batchbridge.meaning.advantages import group_advantages
from batchbridge.meaning.plan import Plan
from batchbridge.meaning.spec import Spec, Staleness
from batchbridge.meaning.weights import Row, token_weights
from batchbridge.reading.read import read

MEASURED_TO = 64 * 2.0**-23
"""Relative, of a weight measured in float32; see `batchbridge.kit.rounding.TOLERANCE`."""
COLUMNS = (
    "rollout",
    "pass",
    "prompt",
    "sample",
    "rank",
    "response_tokens",
    "weights",
    "advantage",
    "generated_at_step",
)
SCALARS = ("step", "ranks", "gradient_norm", "learning_rate", "lr_tick", "skipped")
SPLITS = 3
CASES: Mapping[str, tuple[int, int]] = {
    # objective -> (splits, aggregations)
    "dapo": (3, 4),
    "dapo, ZeRO-0": (1, 2),
    "dapo, ZeRO-1": (1, 2),
    "dapo, ZeRO-3": (1, 2),
    "dapo, advantages by deviation": (1, 1),
    "dapo, k3": (3, 2),
    "dapo, k2": (1, 2),
    "dapo, k1": (1, 2),
    "dapo, k1 times ratio": (1, 2),
    "dapo, corrected": (1, 2),
    "cispo": (1, 2),
}
OLMO_CASES: Mapping[str, tuple[int, int]] = {
    "dapo": (3, 4),
    "dapo, clipped by norm": (1, 1),
    "dapo, advantages by deviation": (1, 1),
    "dapo, k3": (1, 2),
    "dapo, k2": (1, 1),
    "dapo, k1": (1, 1),
    "dapo, k1 times ratio": (1, 1),
    "dapo, corrected": (1, 2),
    "cispo": (1, 2),
}
"""Of grpo.py, on one rank."""
REPLICATED = {"dapo, replicas": (1, 2)}
"""Beside them on two."""
GROUP, STEPS = 4, 4


def summary(ledger: Path) -> dict[str, Any]:
    """A ledger as JSON: its spec, and every step's rows."""
    header = read_headers(ledger)[0]
    steps = [{name: step[name] for name in (*SCALARS, *COLUMNS)} for step in read_steps(ledger)]
    kept = {name: header[name] for name in ("framework", "framework_version", "mode", "spec", "dataset_size")}
    return {**kept, "steps": steps}


def bar(result: Mapping[str, Any]) -> float:
    """DESIGN 8: of a gradient's relative error."""
    return float(max(1e-6, 3 * result["floor"]))


def over(result: Mapping[str, Any], name: str = "error") -> float:
    """An error over the bar."""
    return float(result[name]) / bar(result)


# ---- L2


def check_gradients(measured: Mapping[str, Any], cases: Mapping[str, tuple[int, int]] = CASES) -> None:
    """Every objective, aggregation, split and step is within the bar, and weighs something."""
    found: dict[str, int] = {}
    for result in measured["wrapped"]:
        assert result["error"] <= bar(result), result
        assert result["norm"] > 0.1, result
        found[result["case"]] = found.get(result["case"], 0) + 1
    assert found == {case: splits * aggregations * STEPS for case, (splits, aggregations) in cases.items()}
    assert max(result["clipped"] for result in measured["wrapped"]) >= 0.05
    if measured["ranks"] > 1:
        assert any(result["fillers"] for result in measured["wrapped"])


def check_controls(measured: Mapping[str, Any]) -> None:
    """Natively: a dropped row or a rank's own denominator misses the bar; without them the gradient is the rollout's;
    what was trained and how it was weighed is what the ledger says and the packing predicts."""
    said = measured["natively"]
    dropped = [one for one in said if one["trained"] < 3 * GROUP]
    whole = [one for one in said if one["trained"] == 3 * GROUP]
    assert whole
    assert bool(dropped) == (measured["ranks"] > 1)
    for one in said:
        right = one["trained"] == 3 * GROUP and (one["name"] != "tokens of each rank" or measured["ranks"] == 1)
        assert over(one) <= 1 if right else over(one) > 10, one
        assert over(one, "error_with_its_weights") <= 1, one
        assert [tuple(row) for row in one["members"]] == predicted(one["asked"], one["pack_length"], measured["ranks"])
        want = 1 / 288 if one["name"] == "constant" else 1 / one["tokens"]
        if one["name"] != "tokens of each rank" or measured["ranks"] == 1:
            assert all(math.isclose(weight, want, rel_tol=MEASURED_TO) for weight in one["weights"] if weight), one


def predicted(asked: Sequence[int], pack_length: int, ranks: int) -> list[tuple[int, int, int]]:
    """(prompt, sample, rank) of a native rollout, by the adapter's words for its membership: packed greedily in the
    order of arrival (the scripted engine's: the last first), rows beyond a multiple of the ranks dropped, contiguous
    blocks of rows for the ranks."""
    from batchbridge.testing.tiny import ScriptedRollouts

    script = ScriptedRollouts()
    arrived = [(prompt, sample) for prompt in reversed(asked) for sample in range(GROUP)]
    sizes = [len(script.prompt(prompt).split()) + len(script.completion(prompt, sample)) for prompt, sample in arrived]
    longest = min(sum(sizes) // ranks, pack_length) if ranks > 1 else pack_length
    rows: list[list[tuple[int, int]]] = [[]]
    filled = 0
    for completion, size in zip(arrived, sizes, strict=True):
        if filled and filled + size > longest:
            rows, filled = [*rows, []], 0
        rows[-1].append(completion)
        filled += size
    block = len(rows) // ranks
    return sorted(
        (prompt, sample, rank)
        for rank in range(ranks)
        for row in rows[rank * block : (rank + 1) * block]
        for prompt, sample in row
    )


def check_edges(measured: Mapping[str, Any]) -> None:
    """What is not a step of the plan, or cannot be one, is refused by name before the update."""
    said = measured["edges"]
    assert "staleness.mode sync" in said["lookahead"]
    assert said["restored"]
    assert said["left behind"] == []
    assert said["stale"].startswith("optimizer step 2 departs from the plan in its clock")
    assert said["weights"].startswith("optimizer step 0 departs from the plan in its weights")
    assert "unplanned_batch" in said["unplanned batch"]
    assert "mini_batches" in said["mini-batches"]
    assert said["verified"].startswith("optimizer step 0 departs from the plan")
    assert "in_training" in said["started"]
    assert "no completion of the rollout has a trained token" in said["silent"]
    for name, how in (("a dropped group is trained", "is trained"), ("a kept group is dropped", "was dropped")):
        assert said[name].startswith("optimizer step 0 departs from the plan in its membership"), said[name]
        assert f" {how}, whose rewards are " in said[name]
    assert said["a solved prompt is trained"].startswith("optimizer step 2 departs from the plan in its membership")
    assert "was solved before, and was not left out" in said["a solved prompt is trained"]
    assert said["a kept group"].startswith("optimizer step 0 departs from the plan in its order")
    assert said["too old"].startswith("optimizer step 4 departs from the plan in its clock"), said["too old"]
    assert {value for name, value in said.items() if name.endswith(", moved")} == {0.0}


TAKEN: Mapping[str, tuple[int, Sequence[Sequence[int]]]] = {
    # case -> aggregations, and where its steps' completions may have been generated, by step
    "dropped": (2, ((0,), (0,), (2,), (2,))),
    "dropped, ahead": (1, ((0,), (0,), (0, 2), (0, 2))),
    "replaced": (1, ((0,), (0,), (2,), (2,))),
    "replaced, ahead": (1, ((0,), (0,), (0, 2), (0, 2))),
    "ahead": (1, ((0,), (0,), (0, 2), (0, 2))),
    "solved": (1, [(step // 2 * 2,) for step in range(12)]),
    "solved, replaced, ahead": (
        1,
        [tuple(range(max(step // 2 * 2 - 4, 0), step // 2 * 2 + 1, 2)) for step in range(10)],
    ),
}


def check_taken(measured: Mapping[str, Any]) -> None:
    """Where rewards or timing decide: each step trains the prompts that are left, in the plan's order, and has their
    gradient; the one with the dropped groups misses the bar; weights are as old as the spec allows."""
    found: dict[str, int] = {}
    others: set[str] = set()
    for result in measured["taken"]:
        assert result["error"] <= bar(result), result
        assert result["norm"] > 0.1, result
        assert [list(one) for one in result["trained"]] == [list(one) for one in result["expected"]], result
        assert {*result["made_at"]} <= {*TAKEN[result["case"]][1][result["step"]]}, result
        if result["otherwise"] != result["expected"]:
            assert over(result, "error_with_dropped") > 10, result
            others.add(result["case"])
        found[result["case"]] = found.get(result["case"], 0) + 1
    assert found == {case: aggregations * len(steps) for case, (aggregations, steps) in TAKEN.items()}
    assert others == TAKEN.keys() - {"ahead"}  # which drops nothing
    sizes = {result["case"]: len(result["trained"]) for result in measured["taken"]}
    assert sizes["dropped"] == 2 * GROUP
    assert sizes["replaced"] == 3 * GROUP


def check_rubrics(measured: Mapping[str, Any]) -> None:
    """Each step is the plan's, and prompts that come again are scored by what was written of them since."""
    steps = measured["rubrics"]
    for result in steps:
        assert result["error"] <= bar(result), result
        assert result["norm"] > 0.1, result
    seen: set[int] = set()
    again: set[int] = set()
    for result in steps:
        again |= seen & {*result["prompts"]}
        seen |= {*result["prompts"]}
    assert again
    assert all({*result["scored_otherwise"]} == again for result in steps)


CONTROLS = ("times 7", "own tokens", "mean over rows")
TAMPERED: Mapping[str, str] = {
    # what has a hand in step 3 -> the aspect in which it departs from the plan
    "loss": "weights",
    "value": "loss",
    "constant": "loss",
    "not_a_number": "weights",
    "mask": "weights",
    "advantages": "weights",
    "no_backward": "weights",
    "dropped": "gradient",
    "hooked": "gradient",
    "one_hooked": "gradient",
    "triple": "gradient",
}
OF_ENGINES: Mapping[str, str] = {
    # the same, with the learner that DeepSpeed trains
    "triple_inside": "gradient",
    "rate": "learning_rate",
    "decay": "weight_decay",
}
_SENT = "of prompt \\d+ sample \\d is not what the trainer's process sent"
_RUN_ON = "than micro-batch \\d of the rollout has"
INPUTS: Mapping[str, tuple[int, str]] = {
    # what has a hand in inputs -> the step that departs, and how
    "sent_advantages": (2, f"inputs: advantages {_SENT}"),
    "sent_exchanged": (2, f"inputs: advantages {_SENT}"),
    "sent_tokens": (2, f"inputs: query_responses {_SENT}"),
    "sent_logprobs": (2, f"inputs: vllm_logprobs {_SENT}"),
    "model_tokens": (3, f"inputs: the model was run with another query_responses {_RUN_ON}"),
    "temperature": (3, f"inputs: the model was run with another temperature {_RUN_ON}"),
    "setting": (0, "settings: generation_config.temperature was 1.0 when the trainer was wrapped, and is 1.3"),
    "setting_later": (2, "settings: generation_config.temperature was 1.0 when the trainer was wrapped, and is 1.3"),
}


CLIP_NORM = "carried.max_gradient_norm: 0.0 in the checkpoint, 100000000.0 now"
"""What a resumed run's note says of its other clip norm; a norm of 1e9 is read as none."""


def check_probe(measured: Mapping[str, Any]) -> None:
    """Where one learner's loss averages otherwise, or its code is not known, none is wrapped: what rank 0 says, of what
    the last rank has."""
    assert measured["probed"]["as Open-Instruct"] == []
    (reason,) = measured["probed"]["code of its own"]
    assert reason.startswith("unproven_code: ")
    (reason,) = measured["probed"]["a term of its own"]
    assert reason.startswith("own_term: ")
    for name in CONTROLS:
        (reason,) = measured["probed"][name]
        refused = reason.removeprefix("weight_probe: ").removeprefix("on rank 1: ")  # of the last of two
        assert refused.startswith("the trainer's own loss gives a token of a completion of"), name


def check_unreadable(measured: Mapping[str, Any]) -> None:
    """A function of ours that fails in the second rollout, on one rank or in data preparation, ends the observing and
    not the job: gradients stay Open-Instruct's."""
    assert measured["unreadable"].keys() == {"_known", "look", "_located"}
    for place, found in measured["unreadable"].items():
        assert found["steps"] == [4, 4], place
        assert found["apart"] < 1e-6, place
        assert found["seen"] == [0, 1], place
        assert "nothing was observed from optimizer step 2 on, the run went on: " in found["incomplete"], place


def check_tampering(measured: Mapping[str, Any], ranks: int, also: Mapping[str, str] = OF_ENGINES) -> None:
    """A run in which something has a hand in step 3 ends there, on every rank, before the update; another does not."""
    assert measured["tampered"].keys() == {"enforce", "verify"}
    for found in map(dict, measured["tampered"].values()):
        _check_tampering(found, ranks, {**TAMPERED, **also})


def _check_tampering(found: dict[str, Any], ranks: int, tampered: Mapping[str, str]) -> None:
    assert found.pop("nothing") == {"said": [""] * ranks, "updates": 4, "recorded": 4}
    assert found.keys() == tampered.keys() | INPUTS.keys()
    for name, (step, how) in INPUTS.items():
        assert (found[name]["updates"], found[name]["recorded"]) == (step, step), name
        assert len(found[name]["said"]) == ranks
        for said in found[name]["said"]:
            assert re.match(f"optimizer step {step} departs from the plan in its {how}", said), (name, said)
    for name, aspect in tampered.items():
        assert (found[name]["updates"], found[name]["recorded"]) == (3, 3), name
        assert len(found[name]["said"]) == ranks
        for said in found[name]["said"]:
            assert said.startswith(f"optimizer step 3 departs from the plan in its {aspect}: "), (name, said)


def check_strange(measured: Mapping[str, Any], ranks: int) -> None:
    """An optimizer that has another object than one of the model's weights ends the job before its first update."""
    why = "1 of the [0-9]+ parameters that the optimizer updates are not the trained model's"
    assert measured["strange"]["updates"] == 0
    assert len(measured["strange"]["said"]) == ranks
    for (said,) in measured["strange"]["said"]:
        assert re.match(f"optimizer step 0 departs from the plan in its gradient: {why}", said), said


def check_stock(measured: Mapping[str, Any], ranks: int) -> None:
    """A stock job ends well in mode verify, whatever order its prompts come in; one that is touched does not."""
    found = dict(measured["stock"])
    touched = found.pop("advantages on their way")
    for name, one in found.items():
        assert one == {"said": [""] * ranks, "recorded": 4}, name
    assert touched["recorded"] == 2
    for said in touched["said"]:
        assert re.match(f"optimizer step 2 departs from the plan in its {INPUTS['sent_advantages'][1]}", said), said


# ---- L3


def rows_of(step: Mapping[str, Any], *names: str) -> list[tuple[Any, ...]]:
    return list(zip(*(step[name] for name in names), strict=True))


def check_plan(run: Mapping[str, Any], *, ranks: int, reward: Callable[[int, int], float] | None = None) -> None:
    """The ledger is the plan: members, token weights, advantages, clock; gradients are not zero. reward: of a prompt's
    sample; None: the script's."""
    from batchbridge.testing.tiny import ScriptedRollouts

    reward = reward or ScriptedRollouts().reward
    assert run["mode"] == "enforce"
    plan = synchronous(run)
    assert [step["step"] for step in run["steps"]] == list(range(plan.total_optimizer_steps))
    for step in run["steps"]:
        planned = plan.step(step["step"])
        trained = sorted(rows_of(step, "rollout", "pass", "prompt", "sample"))
        assert trained == sorted(tuple(member) for member in planned.members)
        assert {step["ranks"], len(set(step["rank"]))} == {ranks}
        members = [Row(tokens=tokens, group=group) for tokens, group in rows_of(step, "response_tokens", "prompt")]
        check_weights(token_weights(plan.spec.loss.policy, members), step)
        for prompt, sample, tokens, have in rows_of(step, "prompt", "sample", "response_tokens", "advantage"):
            rewards = [reward(prompt, other) for other in range(GROUP)]
            want = group_advantages([rewards], plan.spec.advantage)[0][sample]
            assert have is None if not tokens else math.isclose(have, want, rel_tol=1e-6, abs_tol=1e-7)
        assert step["gradient_norm"] > 1e-2
        assert step["lr_tick"] == planned.lr_tick


def synchronous(run: Mapping[str, Any]) -> Plan:
    """The plan of a run's specification whose rollouts are generated by the weights that they train next; which
    completions are trained where, and what they weigh, is the same where weights are older."""
    return Plan(Spec.from_dict(run["spec"]).replace(staleness=Staleness()), run["dataset_size"])


def check_weights(wanted: Sequence[Any], step: Mapping[str, Any]) -> None:
    """The measured weights of a step. A completion whose advantage is zero shows none; in a later pass over its
    rollout, nor does one all of whose tokens are clipped."""
    for want, have, advantage in zip(wanted, step["weights"], step["advantage"], strict=True):
        if have is None:
            assert advantage == 0.0 or step["pass"][0] > 0
        else:
            assert math.isclose(have, float(want), rel_tol=MEASURED_TO)
    assert any(step["weights"])


def check_same(run: Mapping[str, Any], other: Mapping[str, Any], *, rtol: float = 1e-4) -> None:
    """Two runs trained the same steps, whatever their ranks and packing."""
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

COMMAND = (
    *("python", "open_instruct/grpo_fast.py", "--num_unique_prompts_rollout", "3"),
    *("--num_samples_per_prompt_rollout", "4", "--max_prompt_token_length", "8", "--response_length", "24"),
    *("--pack_length", "40", "--async_steps", "1", "--filter_zero_std_samples", "False", "--beta", "0.0"),
    *("--load_ref_policy", "False", "--use_rho_correction", "False", "--num_epochs", "2", "--total_episodes", "36"),
    *("--lr_scheduler_type", "linear", "--learning_rate", "0.06", "--seed", "7", "--deepspeed_stage", "2"),
)


def check_behaviour(run: Mapping[str, Any], ranks: int) -> None:
    """What the command line is read to do, against the unwrapped job: steps, passes, members of one rollout or fewer,
    denominators of the step, ticks; and the finding about dropped rows where ranks can drop some."""
    said = read(
        [*COMMAND, "--num_learners_per_node", str(ranks)], version="2026.8.20", dataset_size=run["dataset_size"]
    )
    assert said.spec is not None
    assert said.behaviour is not None
    assert said.spec.staleness.mode == "bounded"
    rollouts, passes = said.spec.horizon.rollouts, said.spec.optimizer_step.passes_per_rollout
    assert rollouts is not None
    assert len(run["steps"]) == rollouts * passes
    assert said.behaviour.denominator_scope == "optimizer_step"
    assert said.behaviour.undecided
    for index, step in enumerate(run["steps"]):
        assert {*step["rollout"]} == {index // passes}
        assert {*step["pass"]} == {index % passes}
        assert len(set(rows_of(step, "prompt", "sample"))) == len(step["prompt"])
        assert len(step["prompt"]) <= (said.spec.completions_per_rollout or 0)
        rows = [Row(tokens=tokens, group=prompt) for tokens, prompt in rows_of(step, "response_tokens", "prompt")]
        check_weights(token_weights(said.spec.loss.policy, rows), step)
        assert step["lr_tick"]
    dropped = any(len(step["prompt"]) < (said.spec.completions_per_rollout or 0) for step in run["steps"])
    codes = {defect.code for defect in said.behaviour.defects} | {finding.code for finding in said.findings}
    assert not dropped or "BB-OI-050" in codes


# ---- faults


def check_evaluated(
    run: Mapping[str, Any], whole: Mapping[str, Any], asked: Sequence[Mapping[str, Any]], initial: str
) -> None:
    """The engines answered evaluations, too; the ledger is that of the run without to the last bit, and what was asked
    beside them is as it should be."""
    assert run["steps"] == whole["steps"]
    others = [line for line in asked if not line["request"].startswith("eval_")]
    assert len(others) < len(asked)
    check_sent(run, others, initial)


def check_killed(run: Mapping[str, Any], said: str | Sequence[str], *words: str, steps: Sequence[int] = (2,)) -> None:
    """A learner that was killed ends the job with an error that says so; the first rollout is recorded whole, and one
    of `steps` optimizer steps are in all."""
    assert all(word in said for word in words), said
    assert [step["step"] for step in run["steps"]] == list(range(len(run["steps"])))
    assert len(run["steps"]) in steps
    assert {len(step["prompt"]) for step in run["steps"]} == {3 * GROUP}


# ---- the script itself


def check_sent(run: Mapping[str, Any], asked: Sequence[Mapping[str, Any]], initial: str) -> None:
    """Every prompt was asked for once, when its rollout's training step had begun, and answered by the weights after as
    many training steps: the same for all of a rollout, `initial` for the first, others for each; its samples were asked
    for with the plan's seeds."""
    plan = synchronous(run)
    weights: list[str] = []
    for rollout in range(plan.total_rollouts):
        lines = [line for line in asked if line["request"].startswith(f"train_{rollout}.")]
        assert sorted(line["prompt"] for line in lines) == sorted(plan.rollout(rollout).prompts)
        assert {line["model_step"] for line in lines} == {rollout}
        first = dict(zip(plan.rollout(rollout).prompts, plan.sampling_seeds(rollout), strict=True))
        for line in lines:
            assert line["seeds"] == [first[line["prompt"]] + sample for sample in range(plan.completions_per_prompt)]
        (digest,) = {line["weights"] for line in lines}
        weights.append(digest)
    assert len(asked) == sum(len(plan.rollout(rollout).prompts) for rollout in range(plan.total_rollouts))
    assert weights[0] == initial
    assert len(set(weights)) == len(weights)


def check_ahead(run: Mapping[str, Any], asked: Sequence[Mapping[str, Any]], async_steps: int) -> None:
    """The ledger says which weights generated each completion: those that its prompt's last answer is stamped with, at
    most `async_steps` rollouts old; those of the second rollout are, whatever the timing."""
    assert Spec.from_dict(run["spec"]).staleness == Staleness(mode="bounded", maximum=async_steps)
    plan = synchronous(run)
    stamps: dict[tuple[int, int], int] = {}
    for line in asked:
        rollout = int(line["request"].removeprefix("train_").partition(".")[0])
        stamps[rollout, line["prompt"]] = line["model_step"]
    ages: dict[int, set[int]] = {}
    for step in run["steps"]:
        for rollout, prompt, made in rows_of(step, "rollout", "prompt", "generated_at_step"):
            assert made == plan.rollout(stamps[rollout, prompt]).generated_at_step
            ages.setdefault(rollout, set()).add(rollout - stamps[rollout, prompt])
    assert all(0 <= age <= async_steps for found in ages.values() for age in found)
    assert (ages[0], ages[1]) == ({0}, {1})


def lags(run: Mapping[str, Any], asked: Sequence[Mapping[str, Any]], async_steps: int) -> list[tuple[int, int, int]]:
    """(rollout, prompt, training steps that its weights lay behind) of what a run trained that nobody follows: of a
    prompt's answers that no earlier rollout trained, the first that is not dropped for its age."""
    stamps: dict[int, list[int]] = {}
    for line in asked:
        stamps.setdefault(line["prompt"], []).append(line["model_step"])
    found = []
    for rollout, prompt in sorted({pair for step in run["steps"] for pair in rows_of(step, "rollout", "prompt")}):
        while rollout - (stamp := stamps[prompt].pop(0)) > async_steps:
            pass
        found.append((rollout, prompt, rollout - stamp))
    return found


def check_lags(found: Sequence[tuple[int, int, int]]) -> None:
    """What the command line is read to do: weights are older, up to async_steps, by timing; the second rollout's are,
    whatever the timing, since the first training step's are never sent."""
    assert all(lag >= 0 for _, _, lag in found)
    assert {lag for rollout, _, lag in found if rollout == 0} == {0}
    assert {lag for rollout, _, lag in found if rollout == 1} == {1}


# ---- shared rows

LOST_BARS = 1000
"""Bars by which unwrapped learners that share rows miss their rollout's gradient, at least."""


def check_sequences(measured: Mapping[str, Any]) -> None:
    """Every step of ranks that share rows is within the bar, which unwrapped ones of one replica, whose rows are never
    dropped, miss by far; a target that is lost, and a rank's loss that counts twice, end the run on every rank before
    the update."""
    assert len(measured["wrapped"]) == STEPS * (2 * 4 + 2 + 1)
    for result in measured["wrapped"]:
        assert result["error"] <= bar(result), result
        assert result["norm"] > 0.1, result
    assert {result["case"] for result in measured["wrapped"]} == {
        f"shared rows{more}" for more in ("", ", k3", ", corrected")
    }
    if measured["ranks"] == 2:
        assert all(over(one) > LOST_BARS for one in measured["natively"])
    said = measured["tampered"]
    assert said["nothing"]["said"] == [""] * measured["ranks"]
    assert said["nothing"]["moved"] > 1e-3
    for name in ("lost", "doubled"):
        assert said[name]["moved"] == 0.0
        assert len(said[name]["said"]) == measured["ranks"]
        for text in said[name]["said"]:
            assert text.startswith("optimizer step 0 departs from the plan in its weights"), text


# ---- grpo.py


def check_olmo(measured: Mapping[str, Any]) -> None:
    """What is asked of grpo_fast.py's learner holds for grpo.py's, on one and on two ranks."""
    check_gradients(measured, {**OLMO_CASES, **(REPLICATED if measured["ranks"] > 1 else {})})
    check_controls(measured)
    check_taken(measured)
    check_probe(measured)
    check_tampering(measured, measured["ranks"], also={})


# ---- tools


def check_tool_masks(measured: Mapping[str, Any]) -> None:
    """Every step over completions with a tool's tokens in their middle is within the bar, which it would miss by far,
    were those trained."""
    assert len(measured["wrapped"]) == STEPS * (2 * 4 + 2)
    for result in measured["wrapped"]:
        assert result["error"] <= bar(result), result
        assert over(result, "error_with_tool_tokens") > 1000, result
        assert result["norm"] > 0.1, result


def fingerprints(ledger: Path) -> dict[str, str]:
    """Of the tokens of every completion of a run, by `prompt.sample`."""
    return {
        f"{prompt}.{sample}": text
        for step in read_steps(ledger)
        for prompt, sample, text in rows_of(step, "prompt", "sample", "completion_fingerprint")
    }


def check_tools(
    run: Mapping[str, Any],
    asked: Sequence[Mapping[str, Any]],
    initial: str,
    tokens_of: Mapping[str, str],
    *,
    ranks: int,
    masked: bool = True,
) -> None:
    """The ledger is the plan; prompts were asked for as it says; those completions that call the tool have its tokens,
    by what was trained on (tokens_of: see `fingerprints`), and no others; of a completion are trained the tokens that
    the policy wrote, and the tool's where they are not masked."""
    from batchbridge.ledger import fingerprint
    from batchbridge.testing.tiny import ScriptedRollouts
    from batchbridge_on_cpu.open_instruct.engines import turns

    check_plan(run, ranks=ranks)
    check_sent(run, asked, initial)
    script, said = ScriptedRollouts(), set[int]()
    for step in run["steps"]:
        for prompt, sample, tokens in rows_of(step, "prompt", "sample", "response_tokens"):
            own, called = script.completion(prompt, sample), len(turns(prompt, sample)) > 1
            written = len(own)
            assert (tokens_of[f"{prompt}.{sample}"] != fingerprint(own)) == called
            if called:
                said.add(tokens - written)
            else:
                assert tokens == written
    (by_tool,) = said
    assert (by_tool == 0) == masked


SCORES: Mapping[str, float] = {"counter": 1.0}
"""Environments that score what the scripted policy does, to what they give it in its last turn; without one it earns
nothing. Source: e6c3044 environments/examples.py, ground_truth_utils.LastRewardAggregator."""
ALWAYS = ("wordle",)
"""Environments that answer every turn; the others answer calls."""


def check_environment(
    name: str,
    run: Mapping[str, Any],
    asked: Sequence[Mapping[str, Any]],
    initial: str,
    tokens_of: Mapping[str, str],
    *,
    ranks: int,
) -> None:
    """The ledger is the plan, with the environment's rewards where it scores; prompts were asked for as it says; the
    environment spoke in the completions in which it had to, by what was trained on, and of each are trained the tokens
    that the policy wrote."""
    from batchbridge.ledger import fingerprint
    from batchbridge.testing.tiny import ScriptedRollouts
    from batchbridge_on_cpu.open_instruct.engines import turns

    def called(prompt: int, sample: int) -> bool:
        return len(turns(prompt, sample)) > 1

    score = SCORES.get(name)
    check_plan(run, ranks=ranks, reward=None if score is None else lambda *one: score * called(*one))
    check_sent(run, asked, initial)
    script = ScriptedRollouts()
    for step in run["steps"]:
        for prompt, sample, tokens in rows_of(step, "prompt", "sample", "response_tokens"):
            own = script.completion(prompt, sample)
            spoke = called(prompt, sample) or name in ALWAYS
            assert (tokens_of[f"{prompt}.{sample}"] != fingerprint(own)) == spoke
            assert tokens == len(own)


# ---- what the page says


def figures(
    gradients: Mapping[str, Any],
    jobs: Mapping[str, Any],
    script: Mapping[str, Any],
    tools: Mapping[str, Any],
    sequences: Mapping[str, Any],
    olmo: Mapping[str, Any],
) -> dict[str, Any]:
    """The figures of docs/open_instruct.md."""
    by_ranks = [gradients[ranks] for ranks in ("1", "2")]
    wrapped = [result for measured in by_ranks for result in measured["wrapped"]]
    native = [result for measured in by_ranks for result in measured["natively"]]
    two = gradients["2"]["natively"]
    dropped = [one for one in two if one["trained"] < 3 * GROUP and one["name"] != "tokens of each rank"]
    local = [one for one in two if one["name"] == "tokens of each rank"]
    right = [one for one in native if one not in dropped and one not in local]
    behind = lags(script["runs"]["launched observed, 2"], script["asked"]["launched observed, 2"], 1)
    jobs_here = [name for name in jobs["jobs"] if not name.startswith(("observed", "killed"))]
    return {
        "steps": len(wrapped),
        "jobs": len(jobs_here),
        "with_ray": "ray, 2" in jobs["jobs"],
        "objectives": len({result["case"].partition(", ZeRO")[0] for result in wrapped}),
        "error": max(result["error"] for result in wrapped),
        "of_the_bar": max(over(result) for result in wrapped),
        "dropped_bars": min(over(one) for one in dropped),
        "local_bars": min(over(one) for one in local),
        "right_of_the_bar": max(over(one) for one in right),
        "ranks_apart": max(jobs["ranks_apart"].values()),
        "unwrapped_apart": jobs["unwrapped_apart"],
        "moved": min(jobs["moved"].values()),
        "own_driver_apart": max(script["own_driver_apart"].values()),
        "observed_apart": script["observed_apart"],
        "groups": len(behind),
        "late_groups": sum(lag > 0 for _, _, lag in behind),
        "tools_of_the_bar": max(over(one) for ranks in ("1", "2") for one in tools["gradients"][ranks]["wrapped"]),
        "tool_tokens_bars": min(
            over(one, "error_with_tool_tokens") for ranks in ("1", "2") for one in tools["gradients"][ranks]["wrapped"]
        ),
        "shared_of_the_bar": max(over(one) for ranks in ("2", "4") for one in sequences[ranks]["wrapped"]),
        "shared_steps": sum(len(sequences[ranks]["wrapped"]) for ranks in ("2", "4")),
        "lost_bars": min(over(one) for one in sequences["2"]["natively"]),
        "olmo_steps": sum(len(olmo[ranks]["wrapped"]) for ranks in ("1", "2")),
        "olmo_of_the_bar": max(over(one) for ranks in ("1", "2") for one in olmo[ranks]["wrapped"]),
        "olmo_dropped_bars": min(over(one) for one in olmo["2"]["natively"] if one["trained"] < 3 * GROUP),
        "olmo_ranks_apart": olmo["ranks_apart"],
        "tool_steps": sum(len(tools["gradients"][ranks]["wrapped"]) for ranks in ("1", "2")),
    }


def digits(value: float) -> str:
    """Two digits, as the pages write them."""
    mantissa, _, exponent = f"{value:.1e}".partition("e")
    return f"{mantissa}e{int(exponent)}"


def table(said: Mapping[str, Any]) -> str:
    """The table of docs/open_instruct.md."""
    rows = [
        ("proof", "where", f"measured on `{said['measured_on']['commit']}`, {said['measured_on']['date']}"),
        ("---", "---", "---"),
        (
            "gradient of every optimizer step against the float64 oracle",
            "native/test_gradients_open_instruct.py",
            f"{said['steps']} steps, at most {digits(said['error'])}, {said['of_the_bar']:.2f} of the bar; "
            f"{said['objectives']} objectives (dapo with both advantage rules, k1 to k3, k1 times the ratio and the "
            "correction towards the sampler, cispo), 4 aggregations, 3 ways of packing, ZeRO-0 to 3, 1 and 2 ranks, "
            "two passes",
        ),
        (
            "the same unwrapped, where 2 ranks drop a row (token and constant)",
            "the same",
            f"at least {said['dropped_bars']:,.0f} times the bar",
        ),
        ("a known-bad denominator: each rank's own tokens", "the same", f"{said['local_bars']:,.0f} times the bar"),
        (
            "unwrapped, nothing dropped",
            "the same",
            f"{said['right_of_the_bar']:.2f} of the bar; with the ledger's members and weights also where rows are "
            "dropped; members and ranks are exactly those predicted from the order of arrival",
        ),
        (
            "answers of other weights, tampered denominators, foreign batches, mini-batches, silent rollouts",
            "the same",
            "refused before the update: no parameter moved",
        ),
        (
            "a loss times 7, by its own tokens, a mean over rows, or other code, on the last learner alone",
            "native/test_tampering_open_instruct.py",
            "no learner is wrapped, each says why, nothing is left behind",
        ),
        (
            "step 3 tampered with on the last learner: the loss, the mask, advantages, a micro-batch's loss; on all: a "
            "micro-batch's gradient, the gradient after backward; 1 and 2 ranks, modes enforce and verify",
            "the same",
            "each ends in step 3 with `BatchDrift` on every rank, after three updates; with no hand in it the job ends",
        ),
        (
            "jobs of 3 rollouts and 2 passes (SGD, AdamW) against the plan",
            "native/test_jobs_open_instruct.py",
            f"ledgers equal to the plan, {said['jobs']} jobs of 6 steps; parameters' movement (at least "
            f"{said['moved'] * 100:.1f} %) between 1 and 2 ranks within {digits(said['ranks_apart'])}",
        ),
        (
            "a job resumed from DeepSpeed's checkpoint after one rollout, 1 and 2 ranks",
            "the same",
            "with another clip norm, which nothing reaches either: bit-equal to the uninterrupted one, and every "
            "learner's report says what differs; a checkpoint of other ranks is refused",
        ),
        (
            "the same job unwrapped",
            "the same",
            f"no step has the planned members; the movement differs by {said['unwrapped_apart'] * 100:.0f} %; "
            "steps, passes, weights and ticks are those that the command line is read to mean",
        ),
    ]
    ray = (
        "the ledger of the job without Ray; Ray's error names the actor that died, its first rollout is recorded whole"
    )
    rows += [
        (
            "a learner killed in the second rollout",
            "the same",
            "the other ends with gloo's error; the first rollout is recorded whole",
        ),
        (
            "learners and actor as Ray's actors; one killed in the second rollout",
            "the same",
            ray if said["with_ray"] else "not run yet",
        ),
        (
            "grpo_fast.py itself under `batchbridge run`, 3 rollouts and 2 passes, 1 learner with 2 engines, 2 with 1",
            "native/test_script_open_instruct.py",
            "the ledger is the plan and that of the job above; every prompt was answered by the weights after as many "
            "training steps as its rollout, the same digest for all, another one per rollout; parameters move "
            + (f"within {digits(apart)} of" if (apart := said["own_driver_apart"]) else "exactly as")
            + " that job's",
        ),
        (
            "the script, observed only, async_steps 1, 2 learners",
            "the same",
            f"{said['late_groups']} of {said['groups']} trained prompts answered by weights of an earlier training "
            f"step, the whole second rollout among them; no step has the planned members; the movement differs by "
            f"{said['observed_apart'] * 100:.0f} %",
        ),
        (
            "the launched script, evaluated after every training step but the first",
            "the same",
            "ledger and parameters bit for bit those of the script that is not",
        ),
        (
            "the launched script, a learner of two killed in the second rollout; the command again, beside a half "
            "written checkpoint, with another clip norm that nothing reaches either",
            "the same",
            "Ray's error names the actor that died; the resumed run ends bit-equal to the uninterrupted one, and its "
            "output says what differs",
        ),
        (
            "a tool's tokens in the middle of completions, 1 and 2 ranks, 4 aggregations, with k3, two passes",
            "native/test_tools_open_instruct.py",
            f"{said['tool_steps']} steps, at most {said['tools_of_the_bar']:.2f} of the bar; were the tool's tokens "
            f"trained, at least {said['tool_tokens_bars']:,.0f} times the bar",
        ),
        (
            "grpo_fast.py with `--tools python` under `batchbridge run`, 1 and 2 learners: its own loop over turns "
            "asks a real server of the tool; tokens are scripted",
            "the same",
            "the ledger is the plan, prompts are asked for with its seeds and answered by the weights of their "
            "rollout, and of each completion the policy's own tokens are trained; with mask_tool_use false the tool's "
            "are, too",
        ),
        (
            "the same with `--tools counter`, wordle (two words known) and generic_sandbox (a scripted container), 1 "
            "learner",
            "the same",
            "the same; with counter the rewards are the environment's, and the advantages those of them",
        ),
        (
            "rows whose tokens two ranks share (sequence_parallel_size), 1 and 2 replicas, 4 aggregations, with k3, "
            "corrected towards the sampler, two passes; the kernel of attention is ours",
            "native/test_sequences_open_instruct.py",
            f"{said['shared_steps']} steps, at most {said['shared_of_the_bar']:.2f} of the bar; unwrapped at least "
            f"{said['lost_bars']:,.0f} times the bar; a lost target, or a rank's loss that counts twice, ends every "
            "rank before the update; grpo_fast.py under `batchbridge run` with 2 such: the ledger is the plan",
        ),
        (
            "grpo.py's learner (OLMo-core, FSDP2 on gloo), 1 and 2 ranks in shards and as replicas, the objectives, "
            "aggregations and ways of packing from above, clipped by norm; the kernel of attention is ours",
            "native/test_olmo_open_instruct.py",
            f"{said['olmo_steps']} steps, at most {said['olmo_of_the_bar']:.2f} of the bar; unwrapped, where 2 ranks "
            f"drop a row, at least {said['olmo_dropped_bars']:,.0f} times the bar; losses and steps that are tampered "
            "with are refused as grpo_fast.py's",
        ),
        (
            "grpo.py itself under `batchbridge run`, 3 rollouts and 2 passes, 1 learner with 2 engines, 2 with 1; one "
            "of two killed in the second rollout, and the command again",
            "the same",
            "the ledger is the plan, every prompt was answered by the weights after as many training steps as its "
            f"rollout; parameters on 1 and 2 ranks within {digits(said['olmo_ranks_apart'])}; the resumed run ends "
            "bit-equal to the uninterrupted one",
        ),
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows).replace("| --- | --- | --- |", "|---|---|---|")
