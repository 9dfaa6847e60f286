"""What is asked of the running trainer's runs, and the figures of docs/easyr1.md that they leave.

What was measured is JSON: `gradients` by bench (native/gradients.py); `runs` by name (`summary` of a ledger and the
command's arguments), outcomes of those that failed, and how far they moved and ended apart; `tampering`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batchbridge.contract.reading import Context, Mode
from batchbridge.ledger import read_headers, read_steps
from batchbridge.meaning.advantages import group_advantages
from batchbridge.meaning.candidates import CandidatePlan, plan_of
from batchbridge.meaning.plan import Completion, Plan
from batchbridge.meaning.spec import Spec
from batchbridge.meaning.weights import Row, token_weights
from batchbridge.reading.files import load_source
from batchbridge.reading.read import read_source
from batchbridge_easyr1.config import EasyR1Adapter

THREE = "trainer.max_steps=3"
SAVED = "trainer.save_freq=1"
RESUMED = "trainer.find_last_checkpoint=true"
EVALUATED = ["trainer.val_freq=1", "trainer.val_before_train=true"]
SEQ = "worker.actor.loss_avg_mode=seq"
KL = ["algorithm.disable_kl=false", "algorithm.use_kl_loss=true", "algorithm.kl_penalty=low_var_kl"]
ULYSSES: Mapping[str, Any] = {"worker.actor.ulysses_size": 2, "worker.actor.padding_free": True}
"""Two ranks share the tokens of their rows."""
SHARED = [f"{key}={str(value).lower()}" for key, value in ULYSSES.items()]
BENCHES: Mapping[str, tuple[int, Mapping[str, Any]]] = {
    "1": (1, {}),
    "2": (2, {}),
    "ulysses, 2": (2, ULYSSES),
    "ulysses, 4": (4, ULYSSES),
    "ulysses, padded": (2, {**ULYSSES, "worker.actor.padding_free": False}),
}
"""What native/gradients.py and native/tampering.py measure on: ranks, and settings."""
FEW = ("ulysses, 4", "ulysses, padded")
"""Benches with two objectives: what differs there is where rows are."""
SMOKE = "ulysses, padded"
"""The bench of every commit: two objectives on two ranks."""
MEASURED_ON = {"gradients": tuple(BENCHES), "tampering": ("1", "2", "ulysses, 2")}
LEFT = {"gradients": "measured.json", "tampering": "tampering.json", "signs": "signs.json"}
"""Script -> the benches that it measures on, and the file that it leaves."""
LIKE: Mapping[str, Any] = {
    "objective.kl_coefficient": 0.1,
    "loss.policy.aggregation": "sequence_sum_over_constant",
    "loss.policy.constant": 24,
    "advantage.epsilon": 1e-4,
    "horizon.lr_tick": "optimizer_step",
    "order.seed": 7,
}
"""What the scenario "like" asks for beside its configuration: with KL in the loss, what EasyR1 has no words for."""
KEPT = (2.2, 3.6)
"""Bounds of a group's mean reward, both exclusive, that the filtered scenarios set."""
FILTERED = [
    *(THREE, SAVED, "algorithm.online_filtering=true", "data.mini_rollout_batch_size=3"),
    *(f"algorithm.filter_low={KEPT[0]}", f"algorithm.filter_high={KEPT[1]}"),
]
TAMPERED_WITH = "orderly, tampered with"
OTHER_SETTINGS = "resumed with other settings"
FITS: Mapping[str, tuple[Mode, list[str]]] = {
    "enforced": ("enforce", [THREE, *EVALUATED]),
    "seq": ("enforce", [THREE, SEQ, "worker.actor.dynamic_batching=true"]),
    "sgd": ("enforce", [THREE, "worker.actor.optim.lr=0.3"]),
    "like": ("enforce", [THREE, *KL]),
    "observed": ("observe", [THREE]),
    "predicted": ("observe", [THREE, SEQ, "worker.actor.ppo_epochs=2"]),
    "verified": ("verify", [THREE]),
    "orderly": ("verify", [THREE, "data.shuffle=false"]),
    TAMPERED_WITH: ("verify", [THREE, "data.shuffle=false"]),
    "killed": ("enforce", [THREE, SAVED]),
    "resumed": ("enforce", [THREE, SAVED, RESUMED]),
    "other code": ("enforce", [THREE]),
    "other loss": ("enforce", [THREE]),
    OTHER_SETTINGS: ("enforce", [THREE, SAVED, RESUMED, "worker.actor.dynamic_batching=true"]),
    "filtered": ("enforce", FILTERED),
    "filtered, killed": ("enforce", FILTERED),
    "filtered, resumed": ("enforce", [*FILTERED, RESUMED]),
    "filtered, observed": ("observe", FILTERED),
    "enforced, ulysses": ("enforce", [THREE, *SHARED]),
    "seq, ulysses": ("enforce", [THREE, SEQ, "worker.actor.dynamic_batching=true", *SHARED]),
    "like, ulysses": ("enforce", [THREE, *KL, *SHARED]),
    "observed, ulysses": ("observe", [THREE, *SHARED]),
    "killed, ulysses": ("enforce", [THREE, SAVED, *SHARED]),
    "resumed, ulysses": ("enforce", [THREE, SAVED, RESUMED, *SHARED]),
}
"""What native/fits.py runs: mode and settings by name."""
SHARED_ROWS = ("enforced, ulysses", "seq, ulysses", "like, ulysses")
"""Of these, on two ranks, those that follow the plan from its beginning."""
FOUR = "enforced, ulysses, 4"
CONTINUES = {
    "resumed": "killed",
    OTHER_SETTINGS: "killed, copied",
    "filtered, resumed": "filtered, killed",
    "resumed, ulysses": "killed, ulysses",
}
"""A scenario that goes on from another's checkpoint, in its ledger."""


@dataclass(frozen=True)
class Planned:
    """A run with Ray.

    folder: short; runs that go on from one another's checkpoint share one. options: of `batchbridge run`. kill: see
    `KILL`. said: what is in the line that tells why the run ended.
    """

    folder: str
    ranks: int
    settings: tuple[str, ...]
    options: tuple[str, ...] = ()
    kill: str = ""
    said: str = ""


FIRST_KILL = "0/4"
"""The same of the rank that writes the rows down that the two share."""
KILL = "1/4"
"""Rank and optimizer step, see `batchbridge_on_cpu.easyr1.cpu.Killer`: after the third rollout's first step."""
OBSERVED = ("--mode", "observe")
OWN_DRIVER, ON_ONE_RANK = "own driver", "stock entry on one rank"
WITH_ULYSSES = "stock entry with ulysses"
OTHER_CODE, OTHER_LOSS = "other code", "other loss"
CHANGED: Mapping[str, tuple[str, str]] = {
    # scenario on a copy of the checkout -> the function that begins with another statement there
    OTHER_CODE: ("workers/actor/dp_actor.py", "update_policy"),
    OTHER_LOSS: ("trainer/core_algos.py", "average_loss"),
}
REFUSED_CODE = "workers/actor/dp_actor.py: DataParallelPPOActor.update_policy"
"""What the refusal of `OTHER_CODE` names. `OTHER_LOSS` is not a control flow, weighs as before, and goes on."""
BUDGET = 96
"""Tokens per device that the run on one rank is handed beside fixed micro-batches of two: three of its longest
sequences. A step has twelve completions of 160 tokens or fewer together."""
RUNS: Mapping[str, Planned] = {
    "stock entry": Planned("a", 2, (THREE, SAVED)),
    ON_ONE_RANK: Planned("b", 1, (THREE,), ("--tokens-per-device", str(BUDGET))),
    "stock entry observed": Planned("n", 2, (THREE,), OBSERVED),
    "stock entry predicted": Planned("g", 1, (THREE, SEQ), OBSERVED),
    "killed": Planned("d", 2, (THREE, SAVED), kill=KILL, said="died"),
    "resumed": Planned("d", 2, (THREE, SAVED, RESUMED)),
    "resumed on one rank": Planned("d", 1, (THREE, RESUMED), said="resume: "),
    OTHER_CODE: Planned("u", 2, (THREE,), said="unproven_code: "),
    OWN_DRIVER: Planned("o", 2, (THREE,)),
    WITH_ULYSSES: Planned("y", 2, (THREE, *SHARED)),
}
"""What native/started.py runs: the stock entry through `batchbridge run`, `OTHER_CODE` on a copy of the checkout with
one function changed; and native/own_driver.py."""
FAULTS = ("killed", "resumed on one rank", OTHER_CODE)
"""Those that must fail."""
FIT_FAULTS: Mapping[str, tuple[int, str]] = {
    # scenario that must fail -> ranks, and what is in the line that tells why
    "killed": (2, "SIGKILL"),
    "filtered, killed": (2, "SIGKILL"),
    "killed, ulysses": (2, "SIGKILL"),
    "resumed": (1, "resume: "),  # on the checkpoint of two ranks
    TAMPERED_WITH: (1, "departs from the plan"),
    OTHER_CODE: (1, "unproven_code: "),
}
COLUMNS = ("rollout", "pass", "prompt", "sample", "rank", "response_tokens", "weights", "advantage")
SCALARS = ("step", "ranks", "gradient_norm", "learning_rate", "lr_tick", "skipped")
CASES = {"default": 5, "default, k3": 5, "default, k1": 2, "default, k2": 2, "default, abs": 2}
LATER_CASES = {"gspo": 5, "gspo_token": 5, "cispo": 5, "sapo": 5}
"""Objectives and how many aggregations each is measured with; the later ones are not in 0.3.2."""
GROUP, PROMPTS = 4, 12
MEASURED_TO = 64 * 2.0**-23
"""Relative, of a weight measured in float32; see `batchbridge.kit.rounding.TOLERANCE`."""


def summary(ledger: Path) -> dict[str, Any]:
    """A ledger as JSON: its spec, and every step's rows."""
    header = read_headers(ledger)[0]
    steps = [{name: step[name] for name in (*SCALARS, *COLUMNS)} for step in read_steps(ledger)]
    kept = {name: header[name] for name in ("framework", "framework_version", "mode", "spec", "dataset_size")}
    return {**kept, "grade": header["evidence"]["grade"], "steps": steps}


def bar(result: Mapping[str, Any]) -> float:
    """DESIGN 8: of a gradient's relative error."""
    return float(max(1e-6, 3 * result["floor"]))


# ---- L2


def replicas(bench: str) -> int:
    """How many sets of rows a bench has."""
    ranks, settings = BENCHES[bench]
    return int(ranks // settings.get("worker.actor.ulysses_size", 1))


def check_gradients(measured: Mapping[str, Any], bench: str) -> None:
    """Every objective, aggregation, split and step is within the bar, and weighs something."""
    wanted = CASES if measured["version"] == "0.3.2" else CASES | LATER_CASES
    if bench in FEW:
        wanted = {case: CASES[case] for case in ("default", "default, k3")}
    found: dict[str, int] = {}
    for result in measured["wrapped"]:
        assert result["error"] <= bar(result), result
        assert result["norm"] > 0.1, result
        found[result["case"]] = found.get(result["case"], 0) + 1
    assert found == {
        case: 3 * (4 if case == "default" and replicas(bench) == 1 else 2) * aggregations
        for case, aggregations in wanted.items()
    }
    assert max(result["clipped"] for result in measured["wrapped"]) >= 0.05


def check_controls(measured: Mapping[str, Any], bench: str) -> None:
    """EasyR1 alone misses the bar where it should, meets it where it should, and its weights are those recorded; an
    oracle without EasyR1's clamp of k3 is missed. Of rows that ranks share: a gathering without its factor misses it,
    and weights that are read as if each rank had rows of its own are not the plan's."""
    said, (ranks, settings) = measured["natively"], BENCHES[bench]
    wrong = ["seq", "seq, two per micro-batch", "seq, by token budget", *(["floors"] if ranks > 1 else [])]
    for name in wrong:
        assert said[name] > 10, name
    assert said["positive control: token"] <= 1
    for name, ratio in said.items():
        if name.startswith("weights of "):
            assert ratio <= 1, name
    assert ranks > 1 or measured["unclamped"] > 10
    if replicas(bench) < ranks:
        assert (measured["unscaled"] > 10) is settings["worker.actor.padding_free"]
        counted = measured["counted by ranks"]
        assert counted.startswith("optimizer step 0 departs from the plan in its weights: ")
        assert "0.5 times what the plan says" in counted


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


CONTROLS = ("times 7", "own tokens", "mean over rows")
TAMPERED: Mapping[str, str] = {
    # what has a hand in step 3 -> the aspect in which it departs from the plan
    "loss times 7": "weights",
    "value of the loss": "loss",
    "mask": "weights",
    "advantages": "weights",
    "one gradient dropped": "gradient",
    "loss detached": "gradient",
    "gradients times 3": "gradient",
    "gradients times 3, by a hook of the optimizer": "gradient",
    "a hook on one weight": "gradient",
    "a hook on all weights": "gradient",
}


def check_probe(measured: Mapping[str, Any]) -> None:
    """Everything that is enforced can be attached to, a custom loss too; three that weigh otherwise cannot."""
    assert measured["failed"] == []
    assert measured["probed"]["as EasyR1"] == []
    for name in CONTROLS:
        (reason,) = measured["probed"][name]
        assert reason.startswith("weight_probe: the trainer's own loss gives a token of a completion of 1 tokens "), (
            name
        )


def check_tampering(measured: Mapping[str, Any], ranks: int) -> None:
    """A run in which something has a hand in step 3 ends there, on every rank, before the update; another does not."""
    found = dict(measured["tampered"])
    assert found.pop("nothing") == {"said": [""] * ranks, "updates": 4, "recorded": 4}
    # EasyR1 leaves the update out.
    assert found.pop("a loss that is not a number") == {"said": [""] * ranks, "updates": 3, "recorded": 4}
    assert found.keys() == TAMPERED.keys()
    for name, aspect in TAMPERED.items():
        assert (found[name]["updates"], found[name]["recorded"]) == (3, 3), name
        assert len(found[name]["said"]) == ranks
        for said in found[name]["said"]:
            assert said.startswith(f"optimizer step 3 departs from the plan in its {aspect}: "), (name, said)


def check_unreadable(measured: Mapping[str, Any]) -> None:
    """A field that is not there, on one rank alone, ends the observing and not the run: gradients stay EasyR1's."""
    assert measured["unreadable"].keys() == {"_expected", "look"}
    for place, found in measured["unreadable"].items():
        assert found["apart"] < 1e-6, place
        assert found["seen"] == [0], place
        assert "nothing was observed from optimizer step 1 on, the run went on: " in found["incomplete"], place
        assert "KeyError: 'a field that is not there'" in found["incomplete"], place


# ---- L3


def rows_of(step: Mapping[str, Any], *names: str) -> list[tuple[Any, ...]]:
    return list(zip(*(step[name] for name in names), strict=True))


def check_plan(run: Mapping[str, Any], *, ranks: int) -> None:
    """The ledger is the plan: members, token weights, clock; gradients are not zero."""
    assert run["mode"] == "enforce"
    plan = Plan(Spec.from_dict(run["spec"]), run["dataset_size"])
    assert [step["step"] for step in run["steps"]] == list(range(plan.total_optimizer_steps))
    _check_steps(run, plan, lambda member: member.prompt, ranks=ranks)


def check_candidates(run: Mapping[str, Any], *, ranks: int) -> None:
    """The ledger of a filtered run is the plan's places, filled with the candidates that the filter keeps, in order."""
    assert run["mode"] == "enforce"
    plan = plan_of(Spec.from_dict(run["spec"]), run["dataset_size"])
    assert isinstance(plan, CandidatePlan)
    assert len(run["steps"]) == plan.total_optimizer_steps
    size = plan.prompts_per_rollout
    candidates = plan.candidates(0, 10 * plan.total_rollouts * size)
    kept = [prompt for prompt in candidates if passes(prompt)]
    assert kept != list(candidates[: len(kept)])
    _check_steps(run, plan, lambda member: kept[member.rollout * size + member.prompt], ranks=ranks)


def passes(prompt: int) -> bool:
    """Whether the filter of the filtered scenarios keeps the prompt's group. Source: EasyR1 _make_batch_data."""
    from batchbridge.testing.tiny import ScriptedRollouts

    script = ScriptedRollouts()
    mean = sum(script.reward(prompt, sample) for sample in range(GROUP)) / GROUP
    return KEPT[0] < mean < KEPT[1]


def _check_steps(run: Mapping[str, Any], plan: Plan, prompt_of: Callable[[Completion], int], *, ranks: int) -> None:
    ticks, begun = 0, set[int]()
    for step in run["steps"]:
        planned = plan.step(step["step"])
        trained = sorted(rows_of(step, "rollout", "pass", "prompt", "sample"))
        assert trained == sorted((member[0], member[1], prompt_of(member), member[3]) for member in planned.members)
        assert {step["ranks"], len(set(step["rank"]))} == {ranks}
        members = [Row(tokens=tokens, group=group) for tokens, group in rows_of(step, "response_tokens", "prompt")]
        wanted = map(float, token_weights(plan.spec.loss.policy, members))
        rows = list(zip(step["weights"], wanted, step["advantage"], strict=True))
        _check_weights(rows, on_policy=step["rollout"][0] not in begun)
        begun.add(step["rollout"][0])
        _check_advantages(step, plan.spec)
        assert step["gradient_norm"] > 1e-2
        assert step["lr_tick"] == planned.lr_tick
        assert (step["learning_rate"] == 0.0) is (ticks < (plan.spec.carried.warmup_steps or 0))
        ticks += planned.lr_tick


def _check_weights(rows: Sequence[tuple[float | None, float, float | None]], *, on_policy: bool) -> None:
    """(measured, wanted, advantage) of a step's rows. One whose advantage is zero shows no weight; off policy, nor does
    one all of whose tokens are clipped. on_policy: the first step on a rollout, whose ratios are one."""
    for have, want, advantage in rows:
        if have is None:
            assert advantage == 0.0 or not on_policy
        else:
            assert math.isclose(have, want, rel_tol=MEASURED_TO)
    assert any(have for have, _, _ in rows)


def check_members(run: Mapping[str, Any]) -> None:
    """Every step has the plan's prompts and samples, whoever brought that about."""
    plan = Plan(Spec.from_dict(run["spec"]), run["dataset_size"])
    assert len(run["steps"]) == plan.total_optimizer_steps
    for step in run["steps"]:
        members = [(member.prompt, member.sample) for member in plan.step(step["step"]).members]
        assert sorted(rows_of(step, "prompt", "sample")) == sorted(members)


def _check_advantages(step: Mapping[str, Any], spec: Spec) -> None:
    from batchbridge.testing.tiny import ScriptedRollouts

    script = ScriptedRollouts()
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


def seed_of(line: str) -> tuple[int, int, int]:
    """Of a line that `batchbridge_on_cpu.easyr1.rollouts` left: prompt, sample, seed."""
    prompt, sample, seed = map(int, line.split())
    return prompt, sample, seed


def planned_seeds(run: Mapping[str, Any]) -> list[tuple[int, int, int]]:
    """(prompt, sample, seed) of every completion of the run's plan, sorted."""
    plan = Plan(Spec.from_dict(run["spec"]), run["dataset_size"])
    return sorted(
        (prompt, sample, first + sample)
        for rollout in range(plan.total_rollouts)
        for prompt, first in zip(plan.rollout(rollout).prompts, plan.sampling_seeds(rollout), strict=True)
        for sample in range(GROUP)
    )


def check_cuts(run: Mapping[str, Any]) -> None:
    """EasyR1 itself cut every batch of a run on one rank by the budget, which its configuration did not have."""
    assert "worker.actor.dynamic_batching=false" in run["argv"]
    assert "worker.actor.dynamic_batching=true" not in run["argv"]
    micro = run["spec"]["micro_batch"]
    assert (micro["tokens_per_device"], micro["completions_per_device"]) == (BUDGET, None)
    assert {cut["budget"] for cut in run["cuts"]} == {BUDGET}
    trained = [cut["tokens"] for cut in run["cuts"] if cut["train"]]
    assert len(trained) == len(run["steps"])
    assert len(run["cuts"]) > len(trained)  # forward-only passes are cut, too
    for parts in trained:
        assert [len(part) for part in parts] != [2] * 6
        assert len(parts) < 6
        assert sum(map(len, parts)) == 12


def differing_steps(run: Mapping[str, Any], other: Mapping[str, Any]) -> int:
    """Steps whose members differ."""
    names = ("rollout", "prompt", "sample")
    pairs = zip(run["steps"], other["steps"], strict=True)
    return sum(set(rows_of(mine, *names)) != set(rows_of(theirs, *names)) for mine, theirs in pairs)


def check_identical(run: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    """Two runs are the same to the last digit, rank by rank."""
    for mine, theirs in zip(run["steps"], other["steps"], strict=True):
        assert {name: mine[name] for name in SCALARS} == {name: theirs[name] for name in SCALARS}
        assert sorted(rows_of(mine, *COLUMNS), key=str) == sorted(rows_of(theirs, *COLUMNS), key=str)


def check_evaluated(run: Mapping[str, Any]) -> None:
    """Before the first rollout and after each of three; others of the same run are not, and train the same."""
    assert run["evaluations"] == 4


def check_driver(report: Mapping[str, Any]) -> None:
    """The driver of native/own_driver.py wrapped once, whatever it asked for, and unwrapped everything; with a dead
    worker, too."""
    assert report["wrapped_twice"] == report["changes"] != []
    assert report["left"] == []
    assert report["dead"] == ["1 of 2 training workers are gone; unwrapped without them"]


# ---- faults


def check_killed(outcome: Mapping[str, Any]) -> None:
    """Rank 1 died in optimizer step 4: the run says so, and its ledger has every step before."""
    assert outcome["code"] != 0
    assert outcome["said"]
    assert outcome["steps"] == [0, 1, 2, 3, *([] if outcome["incomplete"] else [4])]


def check_tampered_with(outcome: Mapping[str, Any]) -> None:
    """A run that kept to the plan ended in step 3, in which its loss was multiplied by 7, and before its update."""
    assert outcome["code"] != 0
    assert "optimizer step 3 departs from the plan in its weights: " in outcome["said"]
    assert "7 times what the plan says" in outcome["said"]
    assert outcome["steps"] == [0, 1, 2]


def check_refused(outcome: Mapping[str, Any], reason: str) -> None:
    """The run ended with this reason and without a step of its own."""
    assert outcome["code"] != 0
    assert reason in outcome["said"]
    assert outcome["steps"] == []


# ---- L1


def argv_of(name: str, ranks: int) -> list[str]:
    """The command that a scenario of `FITS` stands for."""
    from batchbridge_on_cpu.easyr1.scripted import arguments

    return ["python3", "-m", "verl.trainer.main", *arguments(Path("run"), ranks), *FITS[name][1]]


def check_prediction(run: Mapping[str, Any], argv: Sequence[str]) -> None:
    """The adapter's `native_steps` against the unwrapped run's ledger, completion by completion."""
    from batchbridge.testing.tiny import ScriptedRollouts

    context = Context(framework_version=run["framework_version"], dataset_size=run["dataset_size"])
    reading = read_source(load_source(list(argv)), EasyR1Adapter(), context)
    script = ScriptedRollouts()
    lengths = {
        (prompt, sample): sum(script.loss_mask(prompt, sample)) for prompt in range(PROMPTS) for sample in range(GROUP)
    }
    predicted = list(EasyR1Adapter().native_steps(reading, run["dataset_size"], lengths))
    begun: set[int] = set()
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
        rows = [
            (weight, want[row], advantage)
            for (row, weight), advantage in zip(have.items(), step["advantage"], strict=True)
        ]
        _check_weights(rows, on_policy=step["rollout"][0] not in begun)
        begun.add(step["rollout"][0])


# ---- what docs/easyr1.md says


def figures(gradients: Mapping[str, Any], runs: Mapping[str, Any]) -> dict[str, float]:
    """Of one version, by name; two digits of what was measured, the worst of its kind."""
    wrapped = [result for ranks in ("1", "2") for result in gradients[ranks]["wrapped"]]
    sharing = [bench for bench in BENCHES if BENCHES[bench][1]]
    shared = [result for bench in sharing for result in gradients[bench]["wrapped"]]
    natively = [case for ranks in ("1", "2") for case in gradients[ranks]["natively"].items()]
    apart = runs["ends_apart"]
    found = {
        "error": max(result["error"] for result in wrapped),
        "of_the_bar": max(result["error"] / bar(result) for result in wrapped),
        "natively_bars": min(ratio for name, ratio in natively if name.startswith("seq")),
        "floors_bars": gradients["2"]["natively"]["floors"],
        "unclamped_bars": gradients["1"]["unclamped"],
        "moved": min(runs["moved"][f"fit {name}, 2"] for name in ("enforced", "seq", "sgd", "like")),
        "ranks_apart": apart["fit enforced, 1"],
        "seq_ranks_apart": apart["fit seq, 1"],
        "sgd_ranks_apart": apart["fit sgd, 1"],
        "like_ranks_apart": apart["fit like, 1"],
        "unwrapped_apart": apart["fit observed, 2"],
        "ulysses_error": max(result["error"] for result in shared),
        "ulysses_of_the_bar": max(result["error"] / bar(result) for result in shared),
        "ulysses_unscaled_bars": min(gradients[bench]["unscaled"] for bench in ("ulysses, 2", "ulysses, 4")),
        "ulysses_apart": max(apart[f"fit {name}"] for name in (*(f"{name}, 2" for name in SHARED_ROWS), FOUR)),
        "ulysses_unwrapped_apart": apart["fit observed, ulysses, 2"],
    }
    if ON_ONE_RANK in apart:
        found["budget_apart"] = apart[ON_ONE_RANK]
    counts = {
        "steps": len(wrapped),
        "ulysses_steps": len(shared),
        "objectives": len({result["case"] for result in wrapped}),
    }
    return {**counts, **rounded(found)}


def rounded(figures: Mapping[str, float]) -> dict[str, float]:
    """Two digits each; counts as they are."""
    return {name: value if isinstance(value, int) else float(f"{value:.1e}") for name, value in figures.items()}


def of_gradients(cases: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """The figures that images, videos and LoRA have in common, of measured cases by name."""
    results = [result for case in cases.values() for result in case["wrapped"]]
    return {
        "steps": len(results),
        "error": max(result["error"] for result in results),
        "of_the_bar": max(result["error"] / bar(result) for result in results),
    }
