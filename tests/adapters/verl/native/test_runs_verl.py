"""L3, faults and resume: the stock `python -m verl.trainer.main_ppo`, V1 and V0, through `batchbridge run` and without.

CPU, gloo, scripted rollouts that arrive out of order; three rollouts of two optimizer steps. Every run is a process of
its own with a Ray of its own, started once.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch

from batchbridge.kit import Row, token_weights
from batchbridge.kit.versions import holds
from batchbridge.ledger import diff, read_headers, read_steps
from batchbridge.ledger.verifying import verify
from batchbridge.meaning.candidates import CandidatePlan
from batchbridge.meaning.plan import Plan
from batchbridge.meaning.spec import Spec
from batchbridge.reading.read import read
from batchbridge.testing.tiny import ScriptedRollouts
from batchbridge_on_cpu.half_saved import half_saved
from batchbridge_on_cpu.trajectories import (
    FAULTS,
    Fault,
    adamw,
    assert_other_end,
    assert_same_end,
    reference_run,
)
from batchbridge_on_cpu.verl.critic import OVERRIDES as CRITIC
from batchbridge_on_cpu.verl.critic import save_critic
from batchbridge_on_cpu.verl.cuts import cuts_in
from batchbridge_on_cpu.verl.scripted import (
    ADAMW,
    GREEDY,
    MAX_NORM,
    MODULES,
    SGD,
    command,
    environment,
    legacy_workers,
    overrides,
    packed,
    prepare,
)

HAS_V1 = holds(">=0.9.0", importlib.metadata.version("verl"))
"""0.7.1 and 0.8.0 have one trainer, V0, under the name that is V1's since."""
V0 = ("trainer.use_v1=False",) if HAS_V1 else ()
needs_candidates = pytest.mark.skipif(
    importlib.metadata.version("verl") != "0.9.1", reason="filters and colocate_async are followed on 0.9.1"
)
needs_v1 = pytest.mark.skipif(not HAS_V1, reason="the V1 trainer came with verl 0.9.0")
needs_sync = pytest.mark.skipif(
    holds(">=0.7.0", importlib.metadata.version("verl")), reason="rollout.mode=sync is gone since verl 0.7.0"
)
STOCK = "verl.trainer.main_ppo"
PROMPTS = 12
ROLLOUTS = 3
BUDGET = 88 if legacy_workers() else 60
"""Tokens per device; a step has twelve completions, 160 tokens or fewer. Legacy workers want room for a padded row."""
THREE = f"trainer.total_training_steps={ROLLOUTS}"
EVALUATED = ("trainer.test_freq=1", "trainer.val_before_train=True")


@dataclass(frozen=True)
class Run:
    """A finished run: what it said, its ledger, and the weights after each rollout, by rollouts done."""

    code: int
    text: str
    ledger: Path
    weights: dict[int, dict[str, torch.Tensor]]

    @property
    def start(self) -> dict[str, torch.Tensor]:
        """The weights before the first rollout."""
        return self.weights[0]

    @property
    def end(self) -> dict[str, torch.Tensor]:
        """The weights after the last one."""
        return self.weights[max(self.weights)]


def run(
    folder: Path,
    ranks: int,
    *more: str,
    options: tuple[str, ...] = (),
    optimizer: Sequence[str] = ADAMW,
    program: str = STOCK,
    **env: str,
) -> Run:
    """Runs the stock entry, or another module, in `folder`; `options` are those of `batchbridge run`."""
    if not (folder / "policy").exists():
        folder.mkdir(parents=True, exist_ok=True)
        prepare(folder, prompts=PROMPTS)
    launcher = [sys.executable, "-m", "batchbridge", "run", "-v", "--ledger", str(folder / "ledger")]
    started = [program if word == STOCK else word for word in command(folder, ranks, *more, optimizer=optimizer)]
    words = [*launcher, *options, "--", *started]
    own = {**environment(os.environ), "BATCHBRIDGE_WEIGHTS": str(folder / "weights"), "BATCHBRIDGE_JITTER": "1", **env}
    key = hashlib.sha256(json.dumps([words, env]).encode()).hexdigest()[:8]
    answer, ledger = folder / f"{key}.json", folder / f"ledger-{key}"  # a folder may see several runs
    if not answer.exists():
        # In its folder: hydra leaves its own there.
        ran = subprocess.run(
            words, env=own, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        if (folder / "ledger").exists():
            shutil.copytree(folder / "ledger", ledger)
        answer.write_text(json.dumps([ran.returncode, ran.stdout]), encoding="utf-8")
    code, text = json.loads(answer.read_text(encoding="utf-8"))
    weights = {int(file.stem): torch.load(file, weights_only=True) for file in (folder / "weights").glob("*.pt")}
    return Run(code, text, ledger, weights)


def plan_of(run: Run) -> Plan:
    header = read_headers(run.ledger)[0]
    return Plan(Spec.from_dict(header["spec"]), header["dataset_size"])


def members(step: Mapping[str, Any]) -> list[tuple[int, ...]]:
    """What a step of a ledger trained, sorted: (rollout, pass, prompt, sample)."""
    return sorted(zip(step["rollout"], step["pass"], step["prompt"], step["sample"], strict=True))


def planned_members(plan: Plan, index: int) -> list[tuple[int, ...]]:
    return sorted(tuple(member) for member in plan.step(index).members)


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """Short: paths of Ray's sockets have at most 107 bytes, and pytest's own folders are too long under xdist.
    `BATCHBRIDGE_VERL_RUNS`: a folder that keeps finished runs, for work on a single test."""
    kept = os.environ.get("BATCHBRIDGE_VERL_RUNS")
    if kept is not None:
        yield Path(kept)
        return
    with tempfile.TemporaryDirectory(prefix="v", ignore_cleanup_errors=True) as folder:  # Ray may still be ending
        yield Path(folder)


@pytest.fixture(scope="module")
def two_ranks(place: Path) -> Run:
    seeds, told = str(place / "a" / "seeds"), ("--report-to", "trainer")
    more = {"BATCHBRIDGE_JITTER_SEED": "1", "BATCHBRIDGE_SEEDS": seeds}
    return run(place / "a", 2, THREE, "trainer.save_freq=1", options=told, **more)


@pytest.fixture(scope="module")
def one_rank(place: Path) -> Run:
    """Other micro-batches (a token budget beside fixed ones in its configuration), another order of arrival, another
    number of loader workers; and it is evaluated, before and between."""
    cuts, options = str(place / "b" / "cuts"), ("--tokens-per-device", str(BUDGET))
    settings = [THREE, "data.dataloader_num_workers=0", *EVALUATED]
    return run(place / "b", 1, *settings, options=options, BATCHBRIDGE_JITTER_SEED="2", BATCHBRIDGE_CUTS=cuts)


@pytest.fixture(scope="module")
def in_workers(place: Path) -> Run:
    """The training process itself generates, the default of 0.6.1."""
    return run(place / "f", 1, THREE, "actor_rollout_ref.rollout.mode=sync")


@pytest.fixture(scope="module")
def v0(place: Path) -> Run:
    seeds, told = str(place / "c" / "seeds"), ("--report-to", "trainer")
    more = {"BATCHBRIDGE_JITTER_SEED": "3", "BATCHBRIDGE_SEEDS": seeds}
    return run(place / "c", 2, THREE, *V0, *EVALUATED, options=told, **more)


@pytest.fixture(scope="module")
def sequence(place: Path) -> Run:
    """Packed rows, each on both ranks (Ulysses)."""
    return run(place / "m", 2, THREE, *packed(2), BATCHBRIDGE_JITTER_SEED="13")


@pytest.fixture(scope="module")
def opo(place: Path) -> Run:
    """An estimator that the schema has no words for."""
    return run(place / "ea", 2, THREE, "algorithm.adv_estimator=opo", BATCHBRIDGE_JITTER_SEED="14")


@pytest.fixture(scope="module")
def remax(place: Path) -> Run:
    """Another one: RayPPOTrainer generates a greedy completion beside each one that is drawn."""
    return run(place / "eb", 2, THREE, *V0, "algorithm.adv_estimator=remax", BATCHBRIDGE_JITTER_SEED="15")


@pytest.fixture(scope="module")
def own_program(place: Path) -> Run:
    mine = "batchbridge_on_cpu.verl.own_program"
    return run(place / "ec", 1, THREE, program=mine, BATCHBRIDGE_JITTER_SEED="16")


CORRECTION = "algorithm.rollout_correction."
CORRECTED = (
    "actor_rollout_ref.rollout.calculate_log_probs=True",
    f"{CORRECTION}rollout_is=sequence",
    f"{CORRECTION}rollout_is_threshold=2.0",
    f"{CORRECTION}rollout_is_batch_normalize=True",
    f"{CORRECTION}rollout_rs=token_k1",
    f"{CORRECTION}rollout_rs_threshold=0.9_1.1",
)
"""Those of a published script, but for the bounds, which reject some of the tokens that are played here."""


@pytest.fixture(scope="module")
def corrected_v1(place: Path) -> Run:
    return run(place / "ed", 2, THREE, *CORRECTED, BATCHBRIDGE_JITTER_SEED="17")


@pytest.fixture(scope="module")
def corrected_v0(place: Path) -> Run:
    return run(place / "ee", 1, THREE, *V0, *CORRECTED, BATCHBRIDGE_JITTER_SEED="18")


BYPASS = (f"{CORRECTION}bypass_mode=True", "actor_rollout_ref.rollout.calculate_log_probs=True")
"""Old log-probabilities are the sampler's."""


@pytest.fixture(scope="module")
def bypassed_v1(place: Path) -> Run:
    return run(place / "eg", 2, THREE, *BYPASS, BATCHBRIDGE_JITTER_SEED="20")


@pytest.fixture(scope="module")
def bypassed_v0(place: Path) -> Run:
    return run(place / "eh", 1, THREE, *V0, *BYPASS, BATCHBRIDGE_JITTER_SEED="21")


@pytest.fixture(scope="module")
def own_engine(place: Path) -> Run:
    """An engine that is not FSDP's, allowed."""
    modules = environment()["VERL_USE_EXTERNAL_MODULES"]
    return run(
        place / "ef",
        1,
        THREE,
        "actor_rollout_ref.actor.strategy=own",
        options=("--allow", "unproven_engine"),
        BATCHBRIDGE_JITTER_SEED="19",
        VERL_USE_EXTERNAL_MODULES=f"{modules},batchbridge_on_cpu.verl.own_engine",
    )


UNBALANCED = (THREE, *V0, "trainer.balance_batch=False")


@pytest.fixture(scope="module")
def observed_v0(place: Path) -> Run:
    """What can be predicted of an unwrapped run: V0 without balancing."""
    return run(place / "g", 2, *UNBALANCED, options=("--mode", "observe"))


@pytest.fixture(scope="module")
def observed_v1(place: Path) -> Run:
    return run(place / "n", 2, THREE, options=("--mode", "observe"), BATCHBRIDGE_JITTER_SEED="1")


def run_cut(folder: Path, ranks: int, *more: str, last_rollout: str, last_optimizer_step: str, **env: str) -> Run:
    """Three rollouts of 5 of the 12 prompts in steps of 8 completions: nothing divides anything. SGD: AdamW would hide
    the factor that a step with fillers in its denominator has."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = plan_spec().replace(
        **{
            "rollout.prompts_per_rollout": 5,
            "optimizer_step.completions_per_step": 8,
            "order.last_rollout": last_rollout,
            "order.last_optimizer_step": last_optimizer_step,
        }
    )
    file = folder / "spec.json"
    file.write_text(json.dumps(wanted.to_dict()), encoding="utf-8")
    return run(folder, ranks, THREE, *more, options=("--spec", str(file)), optimizer=SGD, **env)


@pytest.fixture(scope="module")
def wrapping(place: Path) -> Run:
    return run_cut(place / "s", 2, last_rollout="wrap", last_optimizer_step="short", BATCHBRIDGE_JITTER_SEED="8")


@pytest.fixture(scope="module")
def padding(place: Path) -> Run:
    return run_cut(place / "t", 1, *V0, last_rollout="wrap", last_optimizer_step="pad", BATCHBRIDGE_JITTER_SEED="9")


FLAT = frozenset({2, 3, 7, 11})
"""Prompts whose groups a filter drops: 4 of 12."""
FILTER = ("algorithm.filter_groups.enable=True", "algorithm.filter_groups.metric=reward")


def run_filtered(folder: Path, ranks: int, *more: str, **env: str) -> Run:
    flat = ",".join(map(str, sorted(FLAT)))
    return run(folder, ranks, THREE, "trainer.save_freq=1", *FILTER, *more, BATCHBRIDGE_FLAT=flat, **env)


@pytest.fixture(scope="module")
def filtered(place: Path) -> Run:
    return run_filtered(place / "w", 2, BATCHBRIDGE_JITTER_SEED="11")


@pytest.fixture(scope="module")
def ahead(place: Path) -> Run:
    """Completions take up to 4 seconds, and a rollout begins before the last one's are trained."""
    mode = "trainer.v1.trainer_mode=colocate_async"
    return run(place / "x", 2, THREE, mode, BATCHBRIDGE_JITTER="4", BATCHBRIDGE_JITTER_SEED="12")


LIKE = """\
data: {rollout_batch_size: 6, seed: 7, max_response_length: 24}
algorithm: {adv_estimator: grpo, disable_kl: false, use_kl_loss: true, kl_penalty: low_var_kl, kl_coef: 0.1}
worker:
  rollout: {n: 4, tensor_parallel_size: 1}
  actor:
    global_batch_size: 3
    micro_batch_size_per_device_for_update: 3
    micro_batch_size_per_device_for_experience: 3
    clip_ratio_high: 0.28
    loss_avg_mode: seq
trainer: {total_epochs: 2, n_gpus_per_node: 2}
"""
"""A configuration of EasyR1: KL in the loss, the mean over sequences, two epochs in an order of its own."""
LIKE_RELEASE = "0.3.2"


def run_like(folder: Path, ranks: int, *more: str, options: tuple[str, ...] = (), **env: str) -> Run:
    """A run of SGD with a reference policy, as `LIKE` says the rest."""
    folder.mkdir(parents=True, exist_ok=True)
    like = folder / "like.yaml"
    like.write_text(LIKE, encoding="utf-8")
    own = [
        "actor_rollout_ref.actor.use_kl_loss=True",
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=2",
    ]
    told = ("--like", str(like), "--like-version", LIKE_RELEASE, *options)
    return run(folder, ranks, *own, *more, options=told, optimizer=SGD, **env)


@pytest.fixture(scope="module")
def like_v1(place: Path) -> Run:
    return run_like(place / "i", 2, BATCHBRIDGE_JITTER_SEED="6")


@pytest.fixture(scope="module")
def like_v0(place: Path) -> Run:
    cuts, budget = str(place / "j" / "cuts"), ("--tokens-per-device", str(BUDGET))
    return run_like(place / "j", 1, *V0, options=budget, BATCHBRIDGE_JITTER_SEED="7", BATCHBRIDGE_CUTS=cuts)


@pytest.fixture(scope="module")
def killed(place: Path) -> Run:
    """Rank 1 dies after optimizer step 4, the first of the third rollout."""
    return run(place / "d", 2, THREE, "trainer.save_freq=1", BATCHBRIDGE_KILL="1/4", BATCHBRIDGE_JITTER_SEED="4")


@pytest.fixture(scope="module")
def resumed(place: Path, killed: Run) -> Run:
    """It goes on beside a checkpoint that would have been the killed run's next, and is half written."""
    assert killed.code != 0
    saved, other = place / "d" / "checkpoints", place / "d2" / "checkpoints"
    if not (saved / "global_step_3").exists():
        shutil.copytree(saved, other)
        half_saved(saved / "global_step_2", saved / "global_step_3")
    return run(place / "d", 2, THREE, "trainer.save_freq=1", "trainer.resume_mode=auto", BATCHBRIDGE_JITTER_SEED="5")


def test_the_ledger_of_a_run_on_two_ranks_is_the_plan(two_ranks: Run) -> None:
    assert two_ranks.code == 0, two_ranks.text[-20000:]
    plan = plan_of(two_ranks)
    steps = list(read_steps(two_ranks.ledger))
    assert len(steps) == plan.total_optimizer_steps == 2 * ROLLOUTS
    for step in steps:
        planned = plan.step(step["step"])
        assert members(step) == planned_members(plan, step["step"])
        assert step["ranks"] == 2
        assert step["gradient_norm"] > 1e-2
        assert step["lr_tick"] == planned.lr_tick


@pytest.mark.parametrize(("name", "folder"), [("two_ranks", "a"), pytest.param("v0", "c", marks=needs_v1)])
def test_every_request_has_the_plans_sampling_seed(
    place: Path, name: str, folder: str, request: pytest.FixtureRequest
) -> None:
    plan = plan_of(request.getfixturevalue(name))
    seeds = {
        (prompt, sample, first + sample)
        for rollout in range(ROLLOUTS)
        for prompt, first in zip(plan.rollout(rollout).prompts, plan.sampling_seeds(rollout), strict=True)
        for sample in range(plan.completions_per_prompt)
    }
    lines = (place / folder / "seeds").read_text(encoding="utf-8").splitlines()
    planned = [line for line in lines if not line.endswith("None")]
    assert len(planned) == len(seeds)
    assert {tuple(map(int, line.split())) for line in planned} == seeds
    assert (len(planned) < len(lines)) == (name == "v0")  # requests of an evaluation have none of the plan's


@pytest.mark.parametrize("name", ["one_rank", "v0"])
def test_a_run_is_evaluated_between_its_rollouts(name: str, request: pytest.FixtureRequest) -> None:
    """The same runs are held against one that is not: `test_ranks_micro_batches_and_trainer_do_not_change_the_run`."""
    assert request.getfixturevalue(name).text.count("val-core/scripted/reward/mean") >= 1 + ROLLOUTS


def test_groups_stay_whole_in_every_step(two_ranks: Run) -> None:
    for step in read_steps(two_ranks.ledger):
        samples: dict[int, set[int]] = {}
        for prompt, sample in zip(step["prompt"], step["sample"], strict=True):
            samples.setdefault(prompt, set()).add(sample)
        assert set(map(frozenset, samples.values())) == {frozenset(range(4))}


@pytest.mark.parametrize(
    "other",
    [
        "one_rank",
        pytest.param("v0", marks=needs_v1),
        pytest.param("in_workers", marks=needs_sync),
        pytest.param("sequence", marks=pytest.mark.by_hand),
    ],
)
def test_ranks_micro_batches_and_trainer_do_not_change_the_run(
    two_ranks: Run, other: str, request: pytest.FixtureRequest, record: Callable[..., None]
) -> None:
    found: Run = request.getfixturevalue(other)
    assert found.code == 0, found.text[-20000:]
    compared = diff(two_ranks.ledger, found.ledger, rtol=1e-4)
    assert compared.equal, compared.text()
    apart = assert_same_end(f"verl, adamw: V1 on two ranks and {other}", two_ranks.start, found.end, two_ranks.end)
    record("ends", other, said=apart.said)


@pytest.mark.by_hand
@needs_candidates
def test_a_run_with_an_engine_of_ones_own_is_the_run_with_fsdps(
    two_ranks: Run, own_engine: Run, record: Callable[..., None]
) -> None:
    assert own_engine.code == 0, own_engine.text[-20000:]
    assert read_headers(own_engine.ledger)[0]["evidence"]["grade"] == "measured"
    compared = diff(two_ranks.ledger, own_engine.ledger, rtol=1e-4)
    assert compared.equal, compared.text()
    apart = assert_same_end(
        "verl, adamw: FSDP on two ranks, own engine", two_ranks.start, own_engine.end, two_ranks.end
    )
    record("ends", "own engine", said=apart.said)


@pytest.mark.by_hand
@needs_candidates
def test_corrected_rollouts_are_the_same_on_both_trainers_and_the_kept_tokens_alone_are_counted(
    two_ranks: Run, corrected_v1: Run, corrected_v0: Run, record: Callable[..., None]
) -> None:
    for found in (corrected_v1, corrected_v0):
        assert found.code == 0, found.text[-20000:]
    compared = diff(corrected_v1.ledger, corrected_v0.ledger, rtol=1e-4)
    assert compared.equal, compared.text()
    for plain, step in zip(read_steps(two_ranks.ledger), read_steps(corrected_v1.ledger), strict=True):
        assert members(plain) == members(step)
        assert 0 < step["normaliser"]["tokens"] < plain["normaliser"]["tokens"]
    ends = corrected_v1.start, corrected_v0.end, corrected_v1.end
    record("ends", "corrected", said=assert_same_end("verl, adamw: corrected, V1 and V0", *ends).said)


@needs_candidates
@pytest.mark.by_hand
def test_with_the_samplers_log_probabilities_as_the_old_ones_both_trainers_train_one_policy(
    two_ranks: Run, bypassed_v1: Run, bypassed_v0: Run, record: Callable[..., None]
) -> None:
    for found in (bypassed_v1, bypassed_v0):
        assert found.code == 0, found.text[-20000:]
        assert plan_of(found).spec.objective.old_logprobs == "sampler"
    compared = diff(bypassed_v1.ledger, bypassed_v0.ledger, rtol=1e-4)
    assert compared.equal, compared.text()
    for step, scored in zip(read_steps(bypassed_v1.ledger), read_steps(two_ranks.ledger), strict=True):
        assert members(step) == members(scored)
        assert not set(step["old_logprobs"]) & set(scored["old_logprobs"])
    ends = bypassed_v1.start, bypassed_v0.end, bypassed_v1.end
    record("ends", "bypass_mode", said=assert_same_end("verl, adamw, bypass_mode: V1 and V0", *ends).said)


@needs_candidates
@pytest.mark.by_hand
def test_what_is_asked_for_beside_bypass_mode_reaches_no_loss_of_verls_workers(place: Path) -> None:
    """RayPPOTrainer names the loss of bypass_mode in its own configuration. A loss without ratios, or with factors,
    would show no weights, or others: what is measured is held against PPO's."""
    asked = (f"{CORRECTION}loss_type=reinforce", f"{CORRECTION}rollout_is=sequence")
    found = run(place / "ei", 1, *UNBALANCED, *BYPASS, *asked, options=("--mode", "observe"))
    assert found.code == 0, found.text[-20000:]
    for step in read_steps(found.ledger):
        tokens = sum(step["response_tokens"])
        pairs = zip(step["weights"], step["response_tokens"], strict=True)
        shown = [weight for weight, own in pairs if own and weight is not None]
        assert len(shown) > len(step["weights"]) / 2
        assert shown == pytest.approx([1 / tokens] * len(shown), rel=1e-4)


def logged(run: Run) -> list[dict[str, float]]:
    """What verl's console logger said of the actor after each rollout."""
    steps = [line for line in run.text.splitlines() if re.search(r"step:[1-9]\d* - ", line) and "actor/lr" in line]
    number = r"(actor/[\w/]+):(?:np\.float64\()?(-?[\d.]+(?:e-?\d+)?|nan)"
    return [{name: float(value) for name, value in re.findall(number, line)} for line in steps]


@pytest.mark.parametrize("other", ["one_rank", pytest.param("v0", marks=needs_v1)])
def test_losses_gradient_norm_and_learning_rate_are_logged_whatever_ranks_and_micro_batches(
    two_ranks: Run, other: str, request: pytest.FixtureRequest
) -> None:
    """verl takes clip fractions and `ppo_kl` as means over micro-batches, as natively: they depend on the cut. Legacy
    workers log no whole loss, and of each micro-batch its share."""
    losses = () if legacy_workers() else ("actor/loss", "actor/pg_loss")
    mine, theirs = logged(two_ranks), logged(request.getfixturevalue(other))
    assert len(mine) == len(theirs) == ROLLOUTS
    for one, two in zip(mine, theirs, strict=True):
        for name in (*losses, "actor/grad_norm", "actor/lr"):
            assert one[name] == pytest.approx(two[name], rel=1e-4), name
    if other == "one_rank":
        assert any(one["actor/pg_clipfrac"] != two["actor/pg_clipfrac"] for one, two in zip(mine, theirs, strict=True))


@pytest.mark.parametrize("name", ["two_ranks", pytest.param("v0", marks=needs_v1)])
def test_what_verl_logs_of_a_rollout_is_what_the_ledger_says_of_its_steps(
    name: str, request: pytest.FixtureRequest
) -> None:
    found: Run = request.getfixturevalue(name)
    term = Spec.from_dict(read_headers(found.ledger)[0]["spec"]).loss.policy
    lines = [line for line in found.text.splitlines() if "batchbridge/completions:" in line]
    number = r"(batchbridge/\w+):(?:np\.float64\()?([\d.]+(?:e-?\d+)?)"
    said = [{name: float(value) for name, value in re.findall(number, line)} for line in lines]
    steps, expected = list(read_steps(found.ledger)), []
    for rollout in range(ROLLOUTS):
        drifts, sizes, tokens = [], [], []
        for step in steps[2 * rollout : 2 * rollout + 2]:
            groups = zip(step["rollout"], step["prompt"], strict=True)
            rows = zip(step["response_tokens"], groups, strict=True)
            planned = token_weights(term, [Row(tokens=count, group=group) for count, group in rows])
            pairs = [(seen, want) for seen, want in zip(step["weights"], planned, strict=True) if want and seen]
            drifts += [abs(float(Fraction(seen) / want - 1)) for seen, want in pairs]
            sizes.append(len(step["prompt"]))
            tokens.append(sum(step["response_tokens"]))
        expected.append((sum(sizes) / 2, sum(tokens) / 2, max(drifts)))
    assert [
        (line["batchbridge/completions"], line["batchbridge/response_tokens"], line["batchbridge/drift"])
        for line in said
    ] == [(size, tokens, pytest.approx(drift, abs=1e-12)) for size, tokens, drift in expected]
    assert all(0 < drift < 1e-5 for *_, drift in expected)
    assert not any("batchbridge/padding_saved" in line for line in said)  # verl packs rows: nobody knows


def check_against_plain_torch(case: str, found: Run, fault: Fault | None = None) -> None:
    """A run ends where its plan leads in plain torch, and elsewhere than where a plan with a fault in it leads."""
    steps = len(list(read_steps(found.ledger)))
    start, end = reference_run(plan_of(found), adamw(1e-2), steps=steps, max_norm=MAX_NORM, fault=fault)
    if fault is None:
        assert_same_end(f"verl, adamw, {case}: plain torch", start, found.end, end)
    else:
        assert_other_end(f"verl, adamw, {case}: plain torch, {fault}", start, found.end, end)


@pytest.mark.parametrize("name", ["two_ranks", "one_rank", pytest.param("v0", marks=needs_v1)])
def test_a_run_ends_where_its_plan_leads_in_plain_torch(name: str, request: pytest.FixtureRequest) -> None:
    check_against_plain_torch(name, request.getfixturevalue(name))


@pytest.mark.parametrize("fault", FAULTS)
def test_negative_control_with_one_fault_the_plan_leads_elsewhere(two_ranks: Run, fault: Fault) -> None:
    check_against_plain_torch("two_ranks", two_ranks, fault)


def check_cuts(folder: Path, *, steps: int) -> None:
    """verl itself cut every batch of a run on one rank by the budget, which its configuration did not have."""
    every = cuts_in(folder)
    # The probe of the loss, before training, brings its own: two micro-batches of three rows.
    probed = [[len(part) for part in cut["tokens"]] for cut in every if cut["budget"] is None]
    assert probed.count([3, 3]) == len(probed) <= 2, probed
    cuts = [cut for cut in every if cut["budget"] is not None]
    assert {cut["budget"] for cut in cuts} == {BUDGET}
    assert all(sum(part) <= BUDGET for cut in cuts for part in cut["tokens"])
    trained = [cut["tokens"] for cut in cuts if cut["train"]]
    assert len(trained) == steps
    assert len(cuts) > len(trained), "forward-only passes are cut, too"
    sizes = {len(part) for parts in trained for part in parts}
    assert max(sizes) > 2, "fixed micro-batches have two completions each"
    assert all(1 < len(parts) < 6 for parts in trained), "two of twelve at a time are six micro-batches"


@pytest.mark.skipif(not HAS_V1, reason="before 0.9.0 the engine is loaded before its cuts can be recorded")
def test_a_budget_that_is_handed_to_a_run_of_fixed_micro_batches_is_what_verl_cuts_by(
    place: Path, one_rank: Run
) -> None:
    assert one_rank.code == 0, one_rank.text[-20000:]
    assert f"actor_rollout_ref.actor.ppo_max_token_len_per_gpu: {BUDGET}, not 16384" in one_rank.text
    check_cuts(place / "b" / "cuts", steps=2 * ROLLOUTS)


@pytest.mark.by_hand
def test_v0_cuts_by_the_budget_that_it_is_handed_beside_another_configurations_meaning(
    place: Path, like_v0: Run
) -> None:
    assert like_v0.code == 0, like_v0.text[-20000:]
    check_cuts(place / "j" / "cuts", steps=8)


@pytest.mark.by_hand
def test_a_run_like_another_frameworks_configuration_trains_its_plan_over_both_epochs(like_v1: Run) -> None:
    assert like_v1.code == 0, like_v1.text[-20000:]
    plan, steps = plan_of(like_v1), list(read_steps(like_v1.ledger))
    assert plan.spec.objective.kl_coefficient == 0.1
    assert plan.spec.loss.policy.aggregation == "sequence_mean"
    assert [step["epoch"] for step in steps] == [0] * 4 + [1] * 4
    for step in steps:
        assert members(step) == planned_members(plan, step["step"])
    epochs = [[prompt for rollout in pair for prompt in plan.rollout(rollout).prompts] for pair in ((0, 1), (2, 3))]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(PROMPTS))
    assert epochs[0] != epochs[1]


@pytest.mark.by_hand
def test_with_kl_and_sgd_trainer_ranks_and_micro_batches_do_not_change_the_run(like_v1: Run, like_v0: Run) -> None:
    assert like_v0.code == 0, like_v0.text[-20000:]
    compared = diff(like_v1.ledger, like_v0.ledger, rtol=1e-4)
    assert compared.equal, compared.text()
    assert_same_end("verl, sgd, like EasyR1: V1 on two ranks and V0 on one", like_v1.start, like_v0.end, like_v1.end)


SHARED = ("--padding", "free")
"""Each prompt once, its completions behind it, in the policy's passes and the reference's."""


@needs_v1
@pytest.mark.by_hand
@pytest.mark.parametrize(
    ("trainer", "ranks", "more", "options"),
    [("V1", 2, (), SHARED), ("V0", 1, V0, (*SHARED, "--tokens-per-device", str(BUDGET)))],
    ids=["V1", "V0"],
)
def test_a_run_that_shares_prompts_is_the_run_that_does_not(
    place: Path, like_v1: Run, trainer: str, ranks: int, more: tuple[str, ...], options: tuple[str, ...]
) -> None:
    asked = (*more, *packed(attention="sdpa"))
    found = run_like(place / f"p{trainer}", ranks, *asked, options=options, BATCHBRIDGE_JITTER_SEED="11")
    assert found.code == 0, found.text[-20000:]
    assert "engine: each prompt once, its completions behind it, in every worker" in found.text
    compared = diff(like_v1.ledger, found.ledger, rtol=1e-4)
    assert compared.equal, compared.text()
    assert_same_end(f"verl, sgd, prompts shared in {trainer}", like_v1.start, found.end, like_v1.end)


@needs_v1
@pytest.mark.by_hand
def test_a_program_of_ones_own_is_followed(own_program: Run, two_ranks: Run) -> None:
    assert own_program.code == 0, own_program.text[-20000:]
    assert "a user's own program" in own_program.text
    compared = diff(two_ranks.ledger, own_program.ledger, rtol=1e-4)
    assert compared.equal, compared.text()


def less_mean_token(rewards: Sequence[float], tokens: Sequence[int], prompt: int) -> list[float]:
    """OPO: less the mean of the group's rewards, weighed by length (arXiv 2505.23585)."""
    mean = sum(reward * count for reward, count in zip(rewards, tokens, strict=True)) / sum(tokens)
    return [reward - mean for reward in rewards]


def less_greedy(rewards: Sequence[float], tokens: Sequence[int], prompt: int) -> list[float]:
    return [reward - ScriptedRollouts().reward(prompt, GREEDY) for reward in rewards]


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        pytest.param("opo", less_mean_token, marks=[needs_v1, pytest.mark.by_hand]),
        pytest.param("remax", less_greedy, marks=pytest.mark.by_hand),
    ],
)
def test_advantages_that_the_schema_has_no_words_for_stay_verls_and_all_else_is_the_plan(
    name: str,
    rule: Callable[[Sequence[float], Sequence[int], int], list[float]],
    request: pytest.FixtureRequest,
    record: Callable[..., None],
) -> None:
    done: Run = request.getfixturevalue(name)
    assert done.code == 0, done.text[-20000:]
    plan = plan_of(done)
    assert (plan.spec.advantage.baseline, plan.spec.open_terms) == ("open", (f"advantage: {name}",))
    steps, moved = list(read_steps(done.ledger)), 0
    assert len(steps) == 2 * ROLLOUTS
    for step in steps:
        assert members(step) == planned_members(plan, step["step"])
        rows: dict[int, list[int]] = {}
        for row, prompt in enumerate(step["prompt"]):
            rows.setdefault(prompt, []).append(row)
        for prompt, places in rows.items():
            rewards, tokens, found = (
                [step[column][place] for place in places] for column in ("reward", "response_tokens", "advantage")
            )
            trained = [value for value, count in zip(found, tokens, strict=True) if count]
            wanted = [value for value, count in zip(rule(rewards, tokens, prompt), tokens, strict=True) if count]
            assert trained == pytest.approx(wanted, rel=1e-5)
            moved += trained != pytest.approx([reward for reward, count in zip(rewards, tokens, strict=True) if count])
    assert moved > len(steps)  # what the word "none" would have put in their place
    record("run", name, steps=len(steps), prompts_moved=moved)


@pytest.mark.parametrize(
    ("trainer", "name"),
    [("V0", "observed_v0"), pytest.param("V1", "observed_v1", marks=[needs_v1, pytest.mark.by_hand])],
)
def test_negative_control_the_same_run_unwrapped_trains_other_steps_and_ends_elsewhere(
    two_ranks: Run, trainer: str, name: str, request: pytest.FixtureRequest, record: Callable[..., None]
) -> None:
    observed: Run = request.getfixturevalue(name)
    assert observed.code == 0, observed.text[-20000:]
    compared = diff(two_ranks.ledger, observed.ledger, rtol=1e-4)
    assert not compared.equal
    planned, native = (
        [set(zip(step["rollout"], step["prompt"], step["sample"], strict=True)) for step in read_steps(found.ledger)]
        for found in (two_ranks, observed)
    )
    assert len(planned) == len(native)
    assert all(mine != theirs for mine, theirs in zip(planned, native, strict=True))
    apart = assert_other_end(f"verl, adamw: {trainer} unwrapped", two_ranks.start, observed.end, two_ranks.end)
    record("ends", f"unwrapped {trainer}", said=apart.said)


def candidate_plan_of(run: Run) -> CandidatePlan:
    header = read_headers(run.ledger)[0]
    return CandidatePlan(Spec.from_dict(header["spec"]), header["dataset_size"])


@pytest.mark.by_hand
@needs_candidates
def test_a_rollout_of_filtered_groups_has_the_first_candidates_that_keep_a_variance(
    filtered: Run, record: Callable[..., None]
) -> None:
    assert filtered.code == 0, filtered.text[-20000:]
    plan, steps = candidate_plan_of(filtered), list(read_steps(filtered.ledger))
    kept = [prompt for prompt in plan.candidates(0, 4 * PROMPTS) if prompt not in FLAT]
    per_step = plan.completions_per_step // plan.completions_per_prompt
    assert len(steps) == 2 * ROLLOUTS
    for index, step in enumerate(steps):
        assert Counter(step["prompt"]) == Counter(kept[index * per_step : (index + 1) * per_step] * 4)
        assert Counter(step["sample"]) == Counter(list(range(4)) * per_step)
        assert set(step["rollout"]) == {index // 2}
        assert set(step["generated_at_step"]) == {index // 2 * 2}
        assert step["gradient_norm"] > 1e-2
    assert "decided while it runs: rollout.group_filter = replace_zero_variance: rewards decide" in filtered.text
    record("run", "filtered", steps=len(steps))


@needs_candidates
@pytest.mark.by_hand
def test_arrival_ranks_and_how_much_is_offered_at_once_do_not_change_a_filtered_run(
    place: Path, filtered: Run, record: Callable[..., None]
) -> None:
    budget = ["actor_rollout_ref.actor.use_dynamic_bsz=True", "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=60"]
    more = ["algorithm.filter_groups.max_inflight_gen_batches=3", "data.dataloader_num_workers=0", *budget]
    other = run_filtered(place / "y", 1, *more, BATCHBRIDGE_JITTER_SEED="13")
    assert other.code == 0, other.text[-20000:]
    compared = diff(filtered.ledger, other.ledger, rtol=1e-4)
    assert compared.equal, compared.text()
    apart = assert_same_end("verl, adamw, filtered groups: two ranks and one", filtered.start, other.end, filtered.end)
    record("ends", "filtered", said=apart.said)


@needs_candidates
@pytest.mark.by_hand
def test_a_filtered_run_that_was_killed_goes_on_where_it_was(place: Path, filtered: Run) -> None:
    killed = run_filtered(place / "z", 2, BATCHBRIDGE_KILL="1/4", BATCHBRIDGE_JITTER_SEED="14")
    assert killed.code != 0
    resumed = run_filtered(place / "z", 2, "trainer.resume_mode=auto", BATCHBRIDGE_JITTER_SEED="15")
    assert resumed.code == 0, resumed.text[-20000:]
    assert all(torch.equal(value, resumed.end[name]) for name, value in filtered.end.items())


@needs_candidates
@pytest.mark.by_hand
def test_negative_control_unwrapped_a_filter_takes_other_prompts(place: Path, filtered: Run) -> None:
    flat = ",".join(map(str, sorted(FLAT)))
    native = run(
        place / "A",
        2,
        THREE,
        *FILTER,
        options=("--mode", "observe"),
        BATCHBRIDGE_FLAT=flat,
        BATCHBRIDGE_JITTER_SEED="11",
    )
    assert native.code == 0, native.text[-20000:]
    pairs = list(zip(read_steps(filtered.ledger), read_steps(native.ledger), strict=True))
    assert len(pairs) == 2 * ROLLOUTS
    assert all(sorted(mine["prompt"]) != sorted(theirs["prompt"]) for mine, theirs in pairs)


@needs_candidates
@pytest.mark.by_hand
def test_a_run_that_generates_ahead_offers_the_plans_candidates_and_trains_whole_groups_of_them(ahead: Run) -> None:
    assert ahead.code == 0, ahead.text[-20000:]
    plan, steps = candidate_plan_of(ahead), list(read_steps(ahead.ledger))
    assert plan.undecided.keys() == {"staleness.mode"}
    offered = plan.candidates(0, (ROLLOUTS + 1) * plan.prompts_per_rollout)
    trained = Counter(prompt for step in steps for prompt in step["prompt"])
    assert trained <= Counter(offered * 4)
    assert set(trained.values()) <= {4, 8}
    assert [len(step["prompt"]) for step in steps] == [12] * 2 * ROLLOUTS
    lags = [step["rollout"][0] * 2 - made for step in steps for made in step["generated_at_step"]]
    assert 0 in lags
    assert max(lags) > 0
    assert [step["lr_tick"] for step in steps] == [False, True] * ROLLOUTS


@pytest.mark.by_hand
def test_rollouts_that_reach_into_the_next_epoch_and_their_short_last_steps_are_trained_as_planned(
    wrapping: Run,
) -> None:
    assert wrapping.code == 0, wrapping.text[-20000:]
    plan, steps = plan_of(wrapping), list(read_steps(wrapping.ledger))
    assert [len(step["prompt"]) for step in steps] == [8, 8, 4] * ROLLOUTS
    assert [step["normaliser"]["completions"] for step in steps] == [8, 8, 4] * ROLLOUTS
    assert all(members(step) == planned_members(plan, step["step"]) for step in steps)
    seen = [prompt for rollout in range(ROLLOUTS) for prompt in plan.rollout(rollout).prompts]
    assert sorted(seen[:PROMPTS]) == list(range(PROMPTS))
    assert len(seen[PROMPTS:]) == 3


@pytest.mark.by_hand
def test_a_last_step_filled_with_rows_that_weigh_nothing_is_the_short_one(
    wrapping: Run, padding: Run, record: Callable[..., None]
) -> None:
    assert padding.code == 0, padding.text[-20000:]
    short, padded = list(read_steps(wrapping.ledger)), list(read_steps(padding.ledger))
    for name in ("normaliser", "lr_tick"):
        assert [step[name] for step in short] == [step[name] for step in padded]
    assert list(map(members, short)) == list(map(members, padded))
    apart = assert_same_end("verl, sgd: short last steps and padded ones", wrapping.start, padding.end, wrapping.end)
    record("ends", "padding", said=apart.said)


@pytest.mark.by_hand
def test_a_short_last_rollout_is_trained_as_planned(place: Path) -> None:
    short = run_cut(place / "u", 2, last_rollout="short", last_optimizer_step="pad", BATCHBRIDGE_JITTER_SEED="10")
    assert short.code == 0, short.text[-20000:]
    plan, steps = plan_of(short), list(read_steps(short.ledger))
    assert [len(plan.rollout(rollout).prompts) for rollout in range(ROLLOUTS)] == [5, 5, 2]
    assert [len(step["prompt"]) for step in steps] == [8, 8, 4, 8, 8, 4, 8]
    assert all(members(step) == planned_members(plan, step["step"]) for step in steps)


@pytest.mark.by_hand
def test_verifying_lets_the_stock_run_pass_in_verls_own_order_and_the_order_of_arrival(place: Path) -> None:
    """Its rollouts have other prompts than the plan's; a rollout's completions are dealt out as they arrive."""
    stock = run(place / "k", 1, THREE, options=("--mode", "verify"), BATCHBRIDGE_JITTER_SEED="1")
    assert stock.code == 0, stock.text[-20000:]
    found = verify(stock.ledger)
    assert (found.departed, found.decided) == (0, True)
    plan = plan_of(stock)
    assert any(members(step) != planned_members(plan, step["step"]) for step in read_steps(stock.ledger))


@pytest.mark.by_hand
def test_verifying_leaves_a_native_run_alone_that_keeps_to_the_plan(place: Path) -> None:
    orderly = ["data.shuffle=False", "trainer.balance_batch=False", "data.dataloader_num_workers=0"]
    orderly.append("trainer.total_training_steps=2")
    verified = run(place / "l", 1, *V0, *orderly, options=("--mode", "verify"))
    assert verified.code == 0, verified.text[-20000:]
    plan = plan_of(verified)
    for step in read_steps(verified.ledger):
        trained = sorted(zip(step["prompt"], step["sample"], strict=True))
        assert trained == sorted((member.prompt, member.sample) for member in plan.step(step["step"]).members)


@pytest.mark.smoke
def test_a_killed_worker_ends_the_run_and_leaves_a_readable_ledger(killed: Run, record: Callable[..., None]) -> None:
    assert killed.code != 0
    assert "died" in killed.text or "killed" in killed.text.lower()
    steps = read_steps(killed.ledger)
    numbers = [step["step"] for step in steps]
    assert numbers == [0, 1, 2, 3, *([4] if not steps.incomplete else [])]
    told = f"the command ended with exit code {killed.code}; the ledger goes to optimizer step {numbers[-1]} "
    assert told in killed.text, killed.text[-4000:]
    assert "to go on, from the newest checkpoint and in the same ledger: the same command, with trainer" in killed.text
    record("run", "killed", whole_steps=len(numbers))


@pytest.mark.smoke
def test_the_resumed_run_continues_the_plan_exactly(two_ranks: Run, resumed: Run, record: Callable[..., None]) -> None:
    assert resumed.code == 0, resumed.text[-20000:]
    compared = diff(two_ranks.ledger, resumed.ledger, exact=True)
    assert compared.equal, compared.text()
    for name, value in two_ranks.weights[ROLLOUTS].items():
        assert torch.equal(value, resumed.weights[ROLLOUTS][name]), name
    record(
        "run", "resumed", equal_weights=len(two_ranks.weights[ROLLOUTS]), steps=len(list(read_steps(resumed.ledger)))
    )


@pytest.mark.by_hand  # which settings may differ is asked without verl, too: test_runtime_verl
def test_resumed_with_a_token_budget_it_goes_on_with_a_note_and_ends_within_the_bar(
    place: Path, two_ranks: Run, resumed: Run, record: Callable[..., None]
) -> None:
    assert resumed.code == 0
    budget = ("--tokens-per-device", str(BUDGET))
    other = run(place / "d2", 2, THREE, "trainer.resume_mode=auto", options=budget, BATCHBRIDGE_JITTER_SEED="13")
    assert other.code == 0, other.text[-20000:]
    assert f"micro_batch.tokens_per_device: open in the checkpoint, {BUDGET} now" in other.text
    steps = list(read_steps(other.ledger))
    assert [step["step"] for step in steps] == [4, 5]
    for mine, theirs in zip(steps, list(read_steps(two_ranks.ledger))[4:], strict=True):
        assert members(mine) == members(theirs)
    said = "verl, adamw, resumed with a token budget"
    record("ends", "resumed", said=assert_same_end(said, two_ranks.start, other.end, two_ranks.end).said)


@pytest.mark.by_hand  # what it asks is asked without verl, too: tests/core/test_checkpoints.py
def test_a_half_written_checkpoint_that_is_asked_for_by_name_ends_the_run(place: Path, resumed: Run) -> None:
    assert resumed.code == 0
    saved = place / "d2" / "checkpoints"
    half = half_saved(saved / "global_step_2", saved / "global_step_4")
    asked = ("trainer.resume_mode=resume_path", f"trainer.resume_from_path={half}")
    failed = run(place / "d2", 2, THREE, *asked)
    assert failed.code != 0
    assert "is cut off: the checkpoint was not finished when the run was killed" in failed.text
    assert f"the newest whole one is {saved}/global_step_" in failed.text


@pytest.mark.by_hand  # what it asks is asked without verl, too: test_runtime_verl
def test_another_number_of_ranks_cannot_resume(place: Path, resumed: Run) -> None:
    other = run(place / "d", 1, THREE, "trainer.resume_mode=auto")
    assert other.code != 0
    assert "was written by 2 ranks, this run has 1: start as many" in other.text


def made_whole(checkpoint: Path, folder: Path) -> Path:
    """A checkpoint in another run's folder, with its shards put together by the documented command."""
    saved = folder / "checkpoints" / checkpoint.name
    shutil.copytree(checkpoint, saved)
    subprocess.run([sys.executable, "-m", "batchbridge_verl.whole", str(saved)], check=True)
    number = checkpoint.name.rpartition("_")[2]
    (folder / "checkpoints" / "latest_checkpointed_iteration.txt").write_text(number, encoding="utf-8")
    return saved


@pytest.mark.by_hand
def test_another_number_of_ranks_goes_on_once_the_shards_are_put_together(
    place: Path, two_ranks: Run, record: Callable[..., None]
) -> None:
    """From two ranks to one, and from there to two again; with first moments of zero it ends elsewhere."""
    from batchbridge.kit.whole_state import WholeState

    settings = (THREE, "trainer.resume_mode=auto", "trainer.save_freq=1")
    for name, ranks, before, rollouts in (("w1", 1, "a", 1), ("w2", 2, "w1", 2), ("w0", 1, "a", 1)):
        folder = place / name
        folder.mkdir()
        prepare(folder, prompts=PROMPTS)
        saved = made_whole(place / before / "checkpoints" / f"global_step_{rollouts}", folder)
        if name == "w0":
            state = WholeState.read(saved / "actor")
            for moments in state.moments.values():
                moments["exp_avg"].zero_()
            state.write(saved / "actor")
        other = run(folder, ranks, *settings, BATCHBRIDGE_JITTER_SEED="17")
        assert other.code == 0, other.text[-20000:]
        assert "resumed from the whole state in" in other.text
        compared = diff(two_ranks.ledger, other.ledger, rtol=1e-4)
        assert compared.equal, compared.text()
        assert [step["step"] for step in read_steps(other.ledger)] == [*range(2 * rollouts, 2 * ROLLOUTS)]
        if name == "w0":
            assert_other_end("verl, whole, without moments", two_ranks.start, other.end, two_ranks.end)
        else:
            said = f"verl, adamw, resumed on {ranks} from a whole state"
            record("ends", name, said=assert_same_end(said, two_ranks.start, other.end, two_ranks.end).said)


MEDDLED = {
    # what a user's module has a hand in, from the second rollout on -> how that rollout's first step departs
    "rate": r"learning_rate: group 0 of the optimizer has learning_rate 0\.015\b",
    "gradient": r"gradient: the gradients that the optimizer finds of 1 of .* \(2 times\)",
}


@pytest.mark.parametrize("what", ["rate", pytest.param("gradient", marks=pytest.mark.by_hand)])
def test_a_whole_run_whose_optimizer_something_has_a_hand_in_ends_before_that_update(place: Path, what: str) -> None:
    modules = f"{environment()['VERL_USE_EXTERNAL_MODULES']},batchbridge_on_cpu.verl.meddling"
    ended = run(place / f"n{what}", 1, THREE, BATCHBRIDGE_MEDDLES=what, VERL_USE_EXTERNAL_MODULES=modules)
    assert ended.code != 0
    said = f"optimizer step 2 departs from the plan in its {MEDDLED[what]}"
    assert re.search(said, ended.text), ended.text[-20000:]
    assert [step["step"] for step in read_steps(ended.ledger)] == [0, 1]


@needs_v1
def test_a_setting_that_is_changed_between_rollouts_ends_the_run_before_the_next_one_is_trained(place: Path) -> None:
    own = "+actor_rollout_ref.rollout.agent.agent_loop_manager_class=batchbridge_on_cpu.verl.changing.Changing"
    ended = run(place / "nsetting", 1, THREE, own, BATCHBRIDGE_TEMPERATURE="0.5")
    assert ended.code != 0
    said = r"settings: actor_rollout_ref\.rollout\.temperature was 1\.0 when the trainer was wrapped, and is 0\.5"
    assert re.search(f"optimizer step 2 departs from the plan in its {said}", ended.text), ended.text[-20000:]
    assert [step["step"] for step in read_steps(ended.ledger)] == [0, 1]


@needs_v1  # V0 ends with the agent loop's own error
def test_a_missing_completion_ends_the_run_before_the_step(place: Path) -> None:
    prompt, sample = Plan(plan_spec(), PROMPTS).rollout(0).prompts[0], 2
    failed = run(place / "e", 1, THREE, BATCHBRIDGE_FAIL=f"{prompt}/{sample}")
    assert failed.code != 0
    assert f"came back without (prompt, sample) [({prompt}, {sample})]" in failed.text
    assert list(failed.ledger.glob("rank-*")) == []  # the folder was tried, and nothing is recorded


def plan_spec() -> Spec:
    reading = read(["python", "-m", "verl.trainer.main_ppo", *overrides(Path("x"), 1), THREE], dataset_size=PROMPTS)
    assert reading.spec is not None
    return reading.spec


def test_what_cannot_be_followed_is_refused_before_any_worker_starts(place: Path) -> None:
    refused = run(place / "f", 1, THREE, "actor_rollout_ref.actor.policy_loss.loss_mode=geo_mean")
    assert refused.code != 0
    assert "surrogate: policy_loss.loss_mode" in refused.text
    assert "create worker group" not in refused.text


def test_v0_follows_its_behaviour_completion_by_completion(observed_v0: Run) -> None:
    """L1: the adapter's prediction against the recorded steps of the unwrapped run."""
    assert observed_v0.code == 0, observed_v0.text[-20000:]
    reading = read([*command(Path("x"), 2, *UNBALANCED)[1:]], framework="verl", dataset_size=PROMPTS)
    from batchbridge.contract import plugins
    from batchbridge.testing.tiny import ScriptedRollouts

    script = ScriptedRollouts()
    lengths = {
        (prompt, sample): sum(script.loss_mask(prompt, sample)) for prompt in range(PROMPTS) for sample in range(4)
    }
    predicted = list(plugins.adapters()["verl"].native_steps(reading, PROMPTS, lengths))
    recorded = list(read_steps(observed_v0.ledger))
    assert len(predicted) == len(recorded) == 2 * ROLLOUTS
    for native, step in zip(predicted, recorded, strict=True):
        want: dict[tuple[Any, ...], float] = {
            (row.rollout, row.pass_index, row.prompt, row.sample, row.rank): float(row.weight or 0)
            for row in native.rows
        }
        have = {
            tuple(values): weight
            for *values, weight in zip(
                *(step[name] for name in ("rollout", "pass", "prompt", "sample", "rank", "weights")), strict=True
            )
        }
        assert have.keys() == want.keys()
        for (row, weight), advantage in zip(have.items(), step["advantage"], strict=True):
            if weight is None:  # nothing shows it
                assert advantage == 0.0, json.dumps(row)
            else:
                assert weight == pytest.approx(want[row], rel=1e-6), json.dumps(row)
        assert sum(weight is not None for weight in have.values()) >= 6


@pytest.mark.by_hand
def test_a_trainer_of_the_users_own_is_wrapped_after_its_workers_started_and_unwrapped(
    place: Path, two_ranks: Run, record: Callable[..., None]
) -> None:
    folder = place / "h"
    folder.mkdir()
    prepare(folder, prompts=PROMPTS)
    script = Path(__file__).parent / "own_driver.py"
    ran = subprocess.run([sys.executable, str(script), str(folder)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-20000:]
    report = json.loads((folder / "report.json").read_text())
    assert report["left"] == [[]]
    assert set(report["hand_seeds"]) == {True}
    assert set(report["still_hand_seeds"]) == {False}
    assert "agent_loop_workers._run_agent_loop" in report["changes"]
    assert report["wrapped_once"] == report["changes"]
    assert report["second"] == ["begun"]
    again = report["again"]
    assert "in_training" in again["inside"]
    assert (again["after"], again["left"]) == ("observe", [])
    assert "1 of 1 training workers are gone; unwrapped without them" in again["warned"]
    for ledger in (folder / "ledger", folder / "second"):
        first, second = read_steps(ledger)
        for mine, theirs in zip((first, second), read_steps(two_ranks.ledger), strict=False):
            assert mine["prompt"] == theirs["prompt"]
            assert mine["completion_fingerprint"] == theirs["completion_fingerprint"]
    walked = [len(list(read_steps(folder / name))) for name in ("ledger", "second")]
    record("run", "a driver of one's own, wrapped twice", first_steps=walked[0], second_steps=walked[1])


# ---- a critic

GAE = (
    "algorithm.adv_estimator=gae",
    "algorithm.gamma=0.99",
    "algorithm.lam=0.95",
    "critic.ppo_mini_batch_size=2",
    "critic.ppo_epochs=2",
    "critic.optim.optimizer=SGD",
    "critic.optim.lr=0.05",
)


def run_critic(folder: Path, ranks: int, *more: str, **env: str) -> Run:
    folder.mkdir(parents=True, exist_ok=True)
    save_critic(folder / "critic")
    external = ",".join((*MODULES, "batchbridge_on_cpu.verl.critic"))
    words = (THREE, f"critic.model.path={folder}/critic", *CRITIC, *GAE, *more)
    return run(folder, ranks, *words, optimizer=SGD, VERL_USE_EXTERNAL_MODULES=external, **env)


@pytest.fixture(scope="module")
def critic_v1(place: Path) -> Run:
    return run_critic(place / "ka", 2, BATCHBRIDGE_JITTER_SEED="1")


@pytest.fixture(scope="module")
def critic_v0(place: Path) -> Run:
    return run_critic(place / "kb", 1, *V0, BATCHBRIDGE_JITTER_SEED="2")


@pytest.fixture(scope="module")
def critic_sequence(place: Path) -> Run:
    """The policy's rows each on both ranks (Ulysses), the critic's on one: one replica and two."""
    return run_critic(place / "kc", 2, *packed(2), BATCHBRIDGE_JITTER_SEED="3")


@pytest.fixture(
    params=[
        pytest.param("critic_v1", marks=needs_v1),
        pytest.param("critic_v0", marks=pytest.mark.by_hand),
        pytest.param("critic_sequence", marks=[needs_v1, pytest.mark.by_hand]),
    ]
)
def followed(request: pytest.FixtureRequest) -> Run:
    found: Run = request.getfixturevalue(request.param)
    assert found.code == 0, found.text[-20000:]
    return found


def critics(followed: Run) -> Run:
    """The critic's ledger in place of the policy's."""
    return Run(followed.code, followed.text, followed.ledger / "critic", followed.weights)


def test_the_policys_ledger_is_the_plan(followed: Run) -> None:
    plan, steps = plan_of(followed), list(read_steps(followed.ledger))
    assert len(steps) == plan.total_optimizer_steps == 2 * ROLLOUTS
    assert [members(step) for step in steps] == [planned_members(plan, step["step"]) for step in steps]


def test_the_critics_ledger_is_the_critics_plan_with_its_weights(followed: Run) -> None:
    own = critics(followed)
    plan, steps = plan_of(own), list(read_steps(own.ledger))
    assert plan.completions_per_step == 8
    assert len(steps) == plan.total_optimizer_steps == 3 * 2 * ROLLOUTS
    for step in steps:
        assert members(step) == planned_members(plan, step["step"])
        assert step["gradient_norm"] > 1e-3
        assert step["lr_tick"] == plan.step(step["step"]).lr_tick
        rows = [Row(tokens=tokens, group=0) for tokens in step["response_tokens"]]
        weights = zip(token_weights(plan.spec.loss.policy, rows), rows, step["weights"], strict=True)
        # A completion whose values are all clipped shows no weight.
        shown = [(float(weight) if row.tokens else 0.0, seen) for weight, row, seen in weights if seen is not None]
        assert len(shown) > len(rows) / 2
        assert [seen for _, seen in shown] == pytest.approx([weight for weight, _ in shown], rel=1e-4)


@pytest.mark.by_hand
@pytest.mark.skipif(not HAS_V1, reason="the V1 trainer came with verl 0.9.0")
def test_one_rank_of_v0_and_two_of_v1_train_the_same_critic(critic_v1: Run, critic_v0: Run) -> None:
    for run_of in (critics, lambda one: one):
        one, other = (list(read_steps(run_of(found).ledger)) for found in (critic_v1, critic_v0))
        norms: list[Any] = [[step["gradient_norm"] for step in steps] for steps in (one, other)]
        assert norms[0] == pytest.approx(norms[1], rel=2e-3)
    compared = diff(critics(critic_v1).ledger, critics(critic_v0).ledger, rtol=1e-3)
    assert not [line for line in compared.text().splitlines() if "members" in line], compared.text()


# ---- a critic's warm-up: two of four rollouts are its alone

WARM = (
    "trainer.critic_warmup=3",
    "trainer.total_training_steps=4",
    "actor_rollout_ref.actor.optim.lr_scheduler_type=cosine",
)


@pytest.fixture(scope="module")
def warm_v1(place: Path) -> Run:
    return run_critic(place / "la", 2, *WARM, *EVALUATED, "trainer.save_freq=1", BATCHBRIDGE_JITTER_SEED="4")


@pytest.fixture(scope="module")
def warm_v0(place: Path) -> Run:
    return run_critic(place / "lb", 1, *WARM, *EVALUATED, *V0, "trainer.save_freq=1", BATCHBRIDGE_JITTER_SEED="5")


@pytest.fixture(params=[pytest.param("warm_v1", marks=needs_v1), pytest.param("warm_v0", marks=pytest.mark.by_hand)])
def warm(request: pytest.FixtureRequest) -> Run:
    found: Run = request.getfixturevalue(request.param)
    assert found.code == 0, found.text[-20000:]
    return found


def test_in_the_warm_up_the_critic_is_trained_and_the_policy_is_bit_for_bit_what_it_was(warm: Run) -> None:
    plan, steps = plan_of(warm), list(read_steps(warm.ledger))
    assert (plan.total_rollouts, plan.total_optimizer_steps) == (4, 4)
    assert [members(step) for step in steps] == [planned_members(plan, index) for index in range(4)]
    assert {row[0] for step in steps for row in members(step)} == {2, 3}
    own = critics(warm)
    trained = list(read_steps(own.ledger))
    assert [members(step) for step in trained] == [planned_members(plan_of(own), index) for index in range(3 * 2 * 4)]
    assert all(step["gradient_norm"] > 1e-3 for step in trained)
    for rollouts in (1, 2):
        assert all(torch.equal(value, warm.weights[rollouts][name]) for name, value in warm.start.items())
    assert any(not torch.equal(value, warm.weights[3][name]) for name, value in warm.start.items())


def test_the_policys_schedule_stands_still_in_the_warm_up_and_is_as_long_as_the_run(warm: Run) -> None:
    rates = [step["learning_rate"] for step in read_steps(warm.ledger)]
    second = 0.1 * (1 + math.cos(math.pi / 4)) / 2
    assert rates == pytest.approx([0.1, 0.1, second, second])


@needs_v1
@pytest.mark.by_hand
def test_one_rank_of_v0_and_two_of_v1_warm_up_alike(warm_v1: Run, warm_v0: Run) -> None:
    for run_of in (critics, lambda one: one):
        one, other = (list(read_steps(run_of(found).ledger)) for found in (warm_v1, warm_v0))
        norms: list[Any] = [[step["gradient_norm"] for step in steps] for steps in (one, other)]
        assert norms[0] == pytest.approx(norms[1], rel=2e-3)


@needs_v1
@pytest.mark.by_hand
def test_a_run_that_was_killed_in_the_warm_up_goes_on_where_it_was(place: Path, warm_v1: Run) -> None:
    def again(*more: str, **env: str) -> Run:
        return run_critic(place / "lc", 2, *WARM, *EVALUATED, "trainer.save_freq=1", *more, **env)

    killed = again(BATCHBRIDGE_KILL="1/7", BATCHBRIDGE_JITTER_SEED="6")  # a critic's step of the second rollout
    assert killed.code != 0
    assert sorted(killed.weights) == [0, 1]
    resumed = again("trainer.resume_mode=auto", BATCHBRIDGE_JITTER_SEED="7")
    assert resumed.code == 0, resumed.text[-20000:]
    assert all(torch.equal(value, resumed.end[name]) for name, value in warm_v1.end.items())
    for run_of in (critics, lambda one: one):
        compared = diff(run_of(warm_v1).ledger, run_of(resumed).ledger, exact=True)
        assert compared.equal, compared.text()


@needs_v1
@pytest.mark.by_hand
@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ("0", r"step 0 departs from the plan in its membership: rollout 0 is of the critic's warm-up"),
        ("4", r"step 0 departs from the plan in its membership: rollout 2 is over, and the step was not trained"),
    ],
    ids=["shorter", "longer"],
)
def test_a_warm_up_that_is_changed_under_a_wrapped_run_ends_it(place: Path, changed: str, said: str) -> None:
    own = "+actor_rollout_ref.rollout.agent.agent_loop_manager_class=batchbridge_on_cpu.verl.changing.Changing"
    ended = run_critic(place / f"ld{changed}", 1, *WARM, own, BATCHBRIDGE_WARMUP=changed)
    assert ended.code != 0
    assert re.search(said, ended.text), ended.text[-20000:]
    assert not [file for file in ended.ledger.glob("*.jsonl") if file.is_file()], "no step of the policy was applied"
