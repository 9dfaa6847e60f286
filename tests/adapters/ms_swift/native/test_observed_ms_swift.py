"""ms-swift's `GRPOTrainer` in the modes observe and verify: its native run, whose rows and weights are recorded, and
which is stopped where it trains something else than its settings say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainerCallback

from batchbridge import BatchDrift, unwrap, wrap
from batchbridge.kit.workers import WAYS_ON
from batchbridge.ledger import read_headers, read_steps
from batchbridge.ledger.verifying import verify
from batchbridge.testing.tiny import tiny_policy
from batchbridge_on_cpu.scripts import module_at
from batchbridge_trl.behaviour import native_steps
from batchbridge_trl.testing import Captured, flat_parameters, gradient_errors

_OF_TRL = Path(__file__).parents[2] / "trl" / "native"
tampering = module_at(_OF_TRL / "tampering.py", "trl_tampering")
scripted = module_at(Path(__file__).with_name("scripted.py"), "ms_swift_scripted")

LOSSES = ("dapo", "grpo", "dr_grpo", "bnpo", "cispo")
STEPS = {"one rollout a step": 2, "half a rollout a step": 4, "two rollouts a step": 1}
"""Each case's `steps_per_generation`, of two micro-batches a step."""
RUN: dict[str, Any] = {
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 2,
    "num_train_epochs": 1,
    "learning_rate": 0.05,
}
Build = Callable[..., Any]


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """Builds ms-swift's trainer."""

    def built(folder: str = "out", loss_type: str = "grpo", **given: Any) -> Any:
        clip = {"epsilon_high": 2.0} if loss_type == "cispo" else {}
        return scripted.swift_trainer(tmp_path / folder, loss_type=loss_type, **{**RUN, **clip, **given})

    return built


def trained(built: Any) -> Captured:
    captured = Captured(built.model)
    built.add_callback(captured)
    built.train()
    return captured


def departs(loss_type: str, steps: int) -> bool:
    """Whether a stock run stops, as docs/trl.md has it, with two micro-batches a step on one device."""
    return loss_type == "bnpo" or (loss_type in ("dapo", "cispo") and steps != 2)


# ---- what is recorded


@pytest.mark.parametrize("cut", STEPS)
@pytest.mark.parametrize("loss_type", LOSSES)
def test_the_ledgers_rows_and_weights_give_the_gradient_of_the_native_trainer(
    build: Build, tmp_path: Path, loss_type: str, cut: str
) -> None:
    """The gradients are those of a trainer that nobody has touched; the oracle, in float64, gets the completions and
    the weights that the ledger of an observed one has, and nothing of ms-swift's divisors."""
    run = {"loss_type": loss_type, "steps_per_generation": STEPS[cut]}
    captured = trained(build("plain", **run))
    seen = wrap(build("seen", **run), mode="observe", ledger=tmp_path / "ledger")
    seen.train()
    steps = list(read_steps(tmp_path / "ledger"))
    assert len(steps) == len(captured.gradients) == seen.state.global_step > 1
    weights = {
        (prompt, sample): weight
        for step in steps
        for prompt, sample, weight in zip(step["prompt"], step["sample"], step["weights"], strict=True)
    }
    assert len(weights) == sum(len(step["prompt"]) for step in steps), "each completion is trained once"

    def weighed(prompt: int, sample: int, old: torch.Tensor) -> torch.Tensor:
        return torch.full_like(old, weights[prompt, sample])

    spec = seen.batchbridge.request.spec
    bare = spec.replace(**{"loss.policy.aggregation": "token_sum", "loss.policy.constant": None})
    of_ledger = {"script": scripted.SCRIPT, "multiplier": weighed}
    found = gradient_errors(captured, bare, records=steps, **of_ledger)
    assert all(each.error <= each.bar for each in found), found
    # Other completions, or weights of a plan that the run does not have, miss the bar by far.
    others = [{**step, "prompt": [(prompt + 1) % 12 for prompt in step["prompt"]]} for step in steps]
    wrong = gradient_errors(captured, bare, records=others, steps=1, **of_ledger)
    assert all(each.error > 10 * each.bar for each in wrong), wrong
    planned = gradient_errors(captured, spec, records=steps, script=scripted.SCRIPT)
    exact = max(each.error / each.bar for each in planned)
    assert exact > 10 if departs(loss_type, STEPS[cut]) else exact <= 1


@pytest.mark.parametrize("steps_per_generation", [2, 4])
@pytest.mark.parametrize("loss_type", ["dapo", "cispo"])
def test_dapo_and_cispo_divide_by_the_tokens_of_the_rollout(
    build: Build, tmp_path: Path, loss_type: str, steps_per_generation: int
) -> None:
    """As the reading says of TRL 0.29.1, whatever the window is."""
    run = {"loss_type": loss_type, "steps_per_generation": steps_per_generation, "num_iterations": 2}
    built = wrap(build(**run), mode="observe", ledger=tmp_path / "ledger")
    assert built.batchbridge.request.reading.behaviour.denominator_formula == "1 / T_r"
    built.train()
    steps = list(read_steps(tmp_path / "ledger"))
    tokens: Counter[tuple[int, int]] = Counter()
    for step in steps:
        for rollout, passed, count in zip(step["rollout"], step["pass"], step["response_tokens"], strict=True):
            tokens[rollout, passed] += count
    assert {passed for _, passed in tokens} == {0, 1}
    for step in steps:
        wanted = [1 / tokens[key] for key in zip(step["rollout"], step["pass"], strict=True)]
        shown = [pair for pair in zip(step["weights"], wanted, strict=True) if pair[0] is not None]
        assert shown, "a completion whose tokens are all clipped shows no weight"
        assert [have for have, _ in shown] == pytest.approx([want for _, want in shown], rel=1e-4)


@pytest.mark.parametrize("cut", STEPS)
@pytest.mark.parametrize("loss_type", LOSSES)
def test_the_native_steps_of_the_reading_are_those_that_are_trained(
    build: Build, tmp_path: Path, loss_type: str, cut: str
) -> None:
    """To the completion and its weight: ms-swift shuffles no rollout, as TRL does."""
    built = build(loss_type=loss_type, steps_per_generation=STEPS[cut], num_train_epochs=2)
    reading = wrap(built, mode="observe", ledger=tmp_path / "ledger").batchbridge.request.reading
    assert (reading.spec.optimizer_step.rollout_shuffle, reading.behaviour.undecided) == ("none", ())
    built.train()
    lengths = {
        (prompt, sample): len(scripted.SCRIPT.completion(prompt, sample)) for prompt in range(12) for sample in range(4)
    }
    steps = list(read_steps(tmp_path / "ledger"))
    for step, native in zip(steps, native_steps(reading, 12, lengths), strict=True):
        names = ("rollout", "pass", "prompt", "sample", "weights")
        have = sorted(zip(*(step[name] for name in names), strict=True))
        wanted = sorted((row.rollout, row.pass_index, row.prompt, row.sample, float(row.weight)) for row in native.rows)
        assert [row[:4] for row in have] == [row[:4] for row in wanted]
        shown = [(one[4], other[4]) for one, other in zip(have, wanted, strict=True) if one[4] is not None]
        assert [one for one, _ in shown] == pytest.approx([other for _, other in shown], rel=1e-4)


def test_bnpo_divides_by_the_tokens_of_the_micro_batch(build: Build, tmp_path: Path) -> None:
    wrap(build(loss_type="bnpo"), mode="observe", ledger=tmp_path / "ledger").train()
    for step in read_steps(tmp_path / "ledger"):
        lengths = step["response_tokens"]
        parts = [sum(lengths[:4]), sum(lengths[4:])]
        assert parts[0] != parts[1]
        wanted = [1 / (2 * part) for part in parts for _ in range(4)]
        assert step["weights"] == pytest.approx(wanted, rel=1e-4)


@pytest.mark.parametrize("mode", ["observe", "verify"])
@pytest.mark.parametrize(
    "given",
    [{}, {"beta": 0.1, "num_iterations": 2}, {"lora": True}, {"max_grad_norm": 0.3, "log_entropy": True}],
    ids=["grpo", "a KL term, two passes", "LoRA", "clipped, with a log of entropies"],
)
def test_a_run_trains_bit_for_bit_as_without_us(build: Build, tmp_path: Path, mode: Any, given: dict[str, Any]) -> None:
    plain = build("plain", steps_per_generation=4, **given)
    plain.train()
    seen = wrap(build("seen", steps_per_generation=4, **given), mode=mode, ledger=tmp_path / "ledger")
    seen.train()
    assert torch.equal(flat_parameters(plain.model), flat_parameters(seen.model))
    assert len(list(read_steps(tmp_path / "ledger"))) == plain.state.global_step > 1


def test_every_completion_is_named_with_its_reward_and_its_tokens(build: Build, tmp_path: Path) -> None:
    built = wrap(build(steps_per_generation=4, num_iterations=2), mode="observe", ledger=tmp_path / "ledger")
    built.train()
    enforced = wrap(build("enforced", steps_per_generation=4), ledger=tmp_path / "enforced")
    enforced.train()
    seen: Counter[tuple[int, int, int]] = Counter()
    names = ("prompt", "sample", "reward", "response_tokens", "completion_fingerprint", "prompt_fingerprint")
    rows: dict[str, set[tuple[Any, ...]]] = {"ledger": set(), "enforced": set()}
    for folder, found in rows.items():
        for step in read_steps(tmp_path / folder):
            found.update(zip(*(step[name] for name in names), strict=True))
    for step in read_steps(tmp_path / "ledger"):
        seen.update(zip(step["pass"], step["prompt"], step["sample"], strict=True))
        assert step["generated_at_step"] == [rollout * 4 for rollout in step["rollout"]]
    assert set(seen.values()) == {1}
    assert len(seen) == 2 * 12 * 4
    assert rows["ledger"] == rows["enforced"]
    for prompt, sample, earned, count, *_ in rows["ledger"]:
        assert (earned, count) == (
            scripted.SCRIPT.reward(prompt, sample),
            len(scripted.SCRIPT.completion(prompt, sample)),
        )
    (header,) = read_headers(tmp_path / "ledger")
    assert (header["framework"], header["mode"]) == ("trl", "observe")


def test_an_update_that_ms_swift_leaves_out_is_left_out_while_it_is_observed(build: Build, tmp_path: Path) -> None:
    """Where the norm of the gradient is not a number: by a clipping that it puts in place while it trains."""
    left: dict[str, torch.Tensor] = {}
    for name in ("plain", "seen"):
        built = build(name, max_grad_norm=1.0, max_steps=2)
        native = built._compute_loss_and_metrics
        built._compute_loss_and_metrics = lambda *given, native=native, built=built: _broken(native(*given), built)
        if name == "seen":
            wrap(built, mode="observe", ledger=tmp_path / "ledger")
        built.train()
        left[name] = flat_parameters(built.model)
    assert torch.isfinite(left["plain"]).all()
    assert torch.equal(left["plain"], left["seen"])
    assert [step["step"] for step in read_steps(tmp_path / "ledger")] == [0, 1]


def _broken(made: Any, built: Any) -> Any:
    loss, metrics = made
    return (loss * float("nan") if built.state.global_step == 0 else loss), metrics


@pytest.mark.parametrize("mode", ["observe", "verify"])
def test_unwrapping_leaves_nothing_behind(build: Build, mode: Any) -> None:
    built = build()
    before = {name: value for name, value in vars(built).items() if name != "callback_handler"}
    of_accelerate = dict(vars(built.accelerator))
    unwrap(wrap(built, mode=mode))
    assert {name: value for name, value in vars(built).items() if name != "callback_handler"} == before
    assert vars(built.accelerator) == of_accelerate


def test_rows_that_we_cannot_read_end_the_observing_and_not_the_run(
    build: Build, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    built = wrap(build(), mode="observe", ledger=tmp_path / "ledger")
    native = built._postprocess_batch

    def by_token(samples: Any, made: Any) -> None:
        native(samples, made)
        if built.state.global_step:
            batch = made[0]["grpo_batch"]
            batch.advantages = batch.advantages * torch.arange(batch.advantages.shape[1])

    built._postprocess_batch = by_token
    built.train()
    assert built.state.global_step == built.state.max_steps > 1
    assert "the observing has ended, and the run goes on" in capsys.readouterr().err
    assert len(list(read_steps(tmp_path / "ledger"))) == 1


# ---- what is held


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("cut", STEPS)
@pytest.mark.parametrize("loss_type", LOSSES)
def test_a_stock_run_ends_well_or_stops_by_the_listed_name(
    build: Build, tmp_path: Path, loss_type: str, cut: str, passes: int
) -> None:
    steps = STEPS[cut]
    built = build(loss_type=loss_type, steps_per_generation=steps, num_iterations=passes, num_train_epochs=2)
    wrap(built, mode="verify", ledger=tmp_path / "ledger")
    twice = loss_type == "bnpo" and steps == 1 and passes == 2  # a step of the same tokens in each micro-batch
    if twice or not departs(loss_type, steps):
        built.train()
        assert built.state.global_step == built.state.max_steps > 1
        found = verify(tmp_path / "ledger")
        assert (found.departed, found.decided) == (0, True)
        return
    with pytest.raises(BatchDrift) as drift:
        built.train()
    assert (drift.value.step, drift.value.aspect) == (0, "weights")
    assert drift.value.detail.endswith(WAYS_ON)


def test_a_run_whose_kl_estimate_is_cut_ends_well(build: Build) -> None:
    """The reference is far away: many tokens' estimates are above ms-swift's bound."""
    built = wrap(build(beta=0.1, reference=tiny_policy(seed=1)), mode="verify")
    built.train()
    assert built.state.global_step == built.state.max_steps > 1


def _of_rollouts(change: Callable[[Any, list[Any]], None]) -> Callable[[Any], None]:
    """Changes the micro-batches of every rollout, behind what is observed."""

    def tamper(built: Any) -> None:
        native = built._generate_and_score_completions

        def changed(inputs: Any) -> Any:
            made = native(inputs)
            change(built, made)
            return made

        built._generate_and_score_completions = changed

    return tamper


def _twice(built: Any, made: list[Any]) -> None:
    made[-1] = made[0]


def _exchanged_advantages(built: Any, made: list[Any]) -> None:
    batch = made[0]["grpo_batch"]
    batch.advantages = batch.advantages[[1, 0, *range(2, len(batch.advantages))]]


def _exchanged_completions(built: Any, made: list[Any]) -> None:
    inputs, batch = made[0]["model_inputs"], made[0]["grpo_batch"]
    order = [1, 0, *range(2, len(batch.advantages))]
    made[0]["model_inputs"] = {
        name: value[order] if isinstance(value, torch.Tensor) else value for name, value in inputs.items()
    }
    for name in ("completion_mask", "old_per_token_logps"):
        setattr(batch, name, getattr(batch, name)[order])


def _masked(built: Any, made: list[Any]) -> None:
    batch = made[0]["grpo_batch"]
    batch.completion_mask = batch.completion_mask.clone()
    batch.completion_mask[0] = False


def _no_clipping(built: Any) -> None:
    built.epsilon_low, built.epsilon_high = 1.0, 100.0


def _loss(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Any], None]:
    def tamper(built: Any) -> None:
        native = built._compute_loss_and_metrics

        def changed(*given: Any) -> Any:
            loss, metrics = native(*given)
            return change(loss), metrics

        built._compute_loss_and_metrics = changed

    return tamper


def _other_advantages(built: Any) -> None:
    native = built._compute_advantages
    built._compute_advantages = lambda *words: 2 * native(*words)


TAMPERED: dict[str, tuple[Callable[[Any], None], str, int]] = {
    # what is done -> how, the aspect of the departure, and its step.
    "another order of prompts": (scripted.other_order, "order", 0),
    "a micro-batch twice": (_of_rollouts(_twice), "membership", 0),
    "advantages of two samples exchanged": (_of_rollouts(_exchanged_advantages), "gradient", 0),
    "completions of two samples exchanged": (_of_rollouts(_exchanged_completions), "gradient", 0),
    "a completion masked": (_of_rollouts(_masked), "gradient", 0),
    "advantages of a rollout": (_other_advantages, "advantages", 0),
    "1.01 times the loss": (_loss(lambda loss: loss * 1.01), "weights", 0),
    "a constant in the loss": (_loss(lambda loss: loss + 0.1), "loss", 0),
    "no clipping, in the second pass": (_no_clipping, "weights", 1),
}


@pytest.mark.parametrize("way", TAMPERED)
def test_a_run_that_trains_otherwise_is_stopped_before_the_update(build: Build, way: str) -> None:
    tamper, aspect, step = TAMPERED[way]
    built = build(num_iterations=2, learning_rate=0.1)
    before: list[torch.Tensor] = []

    class Before(TrainerCallback):  # type: ignore[misc]  # transformers is untyped here
        def on_step_begin(self, *given: Any, **options: Any) -> None:
            before.append(flat_parameters(built.model))

    built.add_callback(Before())
    tamper(wrap(built, mode="verify"))
    with pytest.raises(BatchDrift) as drift:
        built.train()
    assert (drift.value.step, drift.value.aspect) == (step, aspect), drift.value
    assert torch.equal(before[step], flat_parameters(built.model)), "the departing step must not be applied"


def test_a_callback_that_tampers_with_the_gradient_is_found(build: Build) -> None:
    found = tampering.stopped(tampering.scaled_gradient(wrap(build(num_train_epochs=2), mode="verify")))
    assert (found["step"], found["aspect"], found["changed"]) == (tampering.STEP, "gradient", False), found


def test_the_plan_of_another_runs_meaning_is_held(build: Build) -> None:
    built = build(dataset_shuffle=False)
    spec = wrap(built, mode="observe").batchbridge.request.spec
    for asked, aspect in (
        ({"order.seed": 5, "order.prompt_shuffle": "epoch_permutation"}, "order"),
        (
            {
                "optimizer_step.completions_per_step": 4,
                "optimizer_step.rollout_shuffle": "completions",
                "horizon.optimizer_steps": 6,
            },
            "membership",
        ),
        ({"loss.policy.aggregation": "token_mean"}, "weights"),
    ):
        wrap(built, like=spec.replace(**asked), mode="verify")
        with pytest.raises(BatchDrift) as drift:
            built.train()
        assert (drift.value.step, drift.value.aspect) == (0, aspect)


def test_a_native_resume_goes_on_in_the_first_epoch(build: Build, tmp_path: Path) -> None:
    run = {"save_strategy": "steps", "save_steps": 2, "num_train_epochs": 1}
    whole = wrap(build("whole", **run), mode="verify", ledger=tmp_path / "whole_ledger")
    whole.train()
    resumed = wrap(build("resumed", **run), mode="verify", ledger=tmp_path / "resumed_ledger")
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    assert torch.equal(flat_parameters(whole.model), flat_parameters(resumed.model))
    first, second = list(read_steps(tmp_path / "whole_ledger")), list(read_steps(tmp_path / "resumed_ledger"))
    assert [step["prompt"] for step in second] == [step["prompt"] for step in first[2:]]


def test_two_ranks_under_ddp_are_recorded_and_held(tmp_path: Path) -> None:
    words = (sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--master_port=0", "--standalone")
    script = str(Path(__file__).with_name("two_ranks_run.py"))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    command = [*words, script, str(tmp_path), "verify"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert ran.returncode == 0, ran.stderr[-5000:]
    found = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    assert found["class"] == ["GRPOTrainer", "DistributedDataParallel"]
    assert found["steps"] == [6, 6, 6]  # of 48 completions, 8 in each
    assert max(found["errors"]) <= 1, found
    assert found["tampered"] == {"the loss on the second rank": "weights", "the order": "order"}
