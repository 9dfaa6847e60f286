"""What is observed and verified of copies of `GRPOTrainer` (R1-V's family), whose rows are taken from their own loss.

The stand-ins of `copies` always run, on two processes too: they show that the seams, the rows and the measured weights
are right for a trainer of this form. R1-V's and VLM-R1's own files, over the tiny policy, run where their checkouts are
named (BATCHBRIDGE_R1_V, BATCHBRIDGE_VLM_R1): they show that the projects' trainers have this form.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import copies
import pytest
import torch
from copies import SCRIPT, LaterStandIn, StandIn, config, dataset
from transformers import TrainerCallback

from batchbridge import BatchDrift, CannotAttach, unwrap, wrap
from batchbridge.kit import versions
from batchbridge.kit.versions import holds
from batchbridge.ledger import read_headers, read_steps
from batchbridge.ledger.verifying import verify
from batchbridge.testing.tiny import tiny_policy
from batchbridge_trl.testing import Captured, flat_parameters, gradient_errors, undivided

Build = Callable[..., Any]
WHOSE = ("a stand-in", "a later stand-in", "R1-V", "VLM-R1")
ALLOW = ["unproven_code"] if holds("<4.52.3", versions.version("transformers")) else []
"""Of releases that the projects pin and nobody has recorded."""
PASSES = {"a stand-in": 1, "a later stand-in": 2, "R1-V": 1, "VLM-R1": 2}
SIZES = {"a stand-in": 2, "a later stand-in": 8, "R1-V": 2, "VLM-R1": 8}


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Build:
    """Builds a copy by its name in `WHOSE`."""

    def built(whose: str, folder: str = "out", **given: Any) -> Any:
        passes = {"num_iterations": PASSES[whose]} if PASSES[whose] > 1 else {}
        given = {"per_device_train_batch_size": SIZES[whose], **passes, **given}
        torch.manual_seed(0)
        place = tmp_path / folder
        if whose in copies.CHECKOUTS:
            make = copies.r1_v if whose == "R1-V" else copies.vlm_r1
            with warnings.catch_warnings():  # of what they still import from TRL
                warnings.simplefilter("ignore")
                return undivided(make(monkeypatch, place, **given))
        kind = StandIn if whose == "a stand-in" else LaterStandIn
        return undivided(kind(config(place, **given), dataset()))

    return built


@pytest.mark.parametrize("whose", WHOSE)
@pytest.mark.parametrize("mode", ["observe", "verify"])
def test_a_copy_trains_bit_for_bit_as_without_us(build: Build, tmp_path: Path, whose: str, mode: Any) -> None:
    plain = build(whose, "plain")
    plain.train()
    seen = wrap(build(whose, "seen"), allow=ALLOW, mode=mode, ledger=tmp_path / "ledger")
    seen.train()
    assert torch.equal(flat_parameters(plain.model), flat_parameters(seen.model))
    assert len(list(read_steps(tmp_path / "ledger"))) == seen.state.global_step == plain.state.global_step > 0


@pytest.mark.parametrize("whose", WHOSE)
def test_each_completion_is_named_and_weighed_as_it_was_trained(build: Build, tmp_path: Path, whose: str) -> None:
    """The gradient of the ledger's completions and the spec's weights, by the float64 oracle, is the trainer's own."""
    built = build(whose)
    captured = Captured(built.model)
    built.add_callback(captured)
    wrap(built, allow=ALLOW, mode="observe", ledger=tmp_path / "ledger").train()
    steps = list(read_steps(tmp_path / "ledger"))
    spec, reference = built.batchbridge.request.spec, tiny_policy(seed=1)
    named = {"script": SCRIPT, "reference": reference}
    found = gradient_errors(captured, spec, records=steps, **named)
    assert len(found) == len(steps) == len(captured.gradients) > 0
    assert all(each.error <= each.bar for each in found), found
    # Other completions, and another KL coefficient, miss the bar by far.
    others = [{**step, "prompt": [(prompt + 1) % 8 for prompt in step["prompt"]]} for step in steps]
    for wrong in (
        gradient_errors(captured, spec, records=others, steps=1, **named),
        gradient_errors(captured, spec.replace(**{"objective.kl_coefficient": 0.1}), records=steps, steps=1, **named),
    ):
        assert all(each.error > 10 * each.bar for each in wrong), wrong
    for step in steps:
        weighed = [weight * tokens for weight, tokens in zip(step["weights"], step["response_tokens"], strict=True)]
        assert weighed == pytest.approx([1 / len(weighed)] * len(weighed), rel=1e-4)


@pytest.mark.parametrize("whose", WHOSE)
def test_every_sample_of_a_prompt_is_trained_once_in_each_pass(build: Build, tmp_path: Path, whose: str) -> None:
    built = wrap(build(whose), allow=ALLOW, mode="observe", ledger=tmp_path / "ledger")
    built.train()
    seen: Counter[tuple[int, int, int, int]] = Counter()
    for step in read_steps(tmp_path / "ledger"):
        seen.update(zip(step["rollout"], step["pass"], step["prompt"], step["sample"], strict=True))
        assert step["generated_at_step"] == [rollout * PASSES[whose] for rollout in step["rollout"]]
        for prompt, sample, earned in zip(step["prompt"], step["sample"], step["reward"], strict=True):
            assert earned == SCRIPT.reward(prompt, sample)
    assert set(seen.values()) == {1}
    (header,) = read_headers(tmp_path / "ledger")
    assert header["evidence"]["grade"] == "measured"
    assert any(name.endswith(".compute_loss") for name in header["evidence"]["loss"])


TAMPERED: dict[str, tuple[str, int, dict[str, Any]]] = {
    # whose: the first step that departs, and what is another one.
    "a mean over tokens": ("a stand-in", 0, {"aggregate": "tokens"}),
    "a loss of twice the size": ("a stand-in", 0, {"times": 2.0}),
    "advantages that are not divided": ("a stand-in", 0, {"own_advantages": lambda one: one - one.mean(1, True)}),
    "another KL coefficient than it says": ("a stand-in", 0, {"loss_of": copies.with_more_kl}),
    "no clipping in the second pass": ("a later stand-in", 1, {"clips": False, "learning_rate": 0.1}),
}


@pytest.mark.parametrize("tampered", TAMPERED)
def test_a_verified_copy_is_stopped_before_a_step_that_trains_otherwise(build: Build, tampered: str) -> None:
    whose, first, changes = TAMPERED[tampered]
    built = build(whose, **{name: changes[name] for name in ("learning_rate",) if name in changes})
    for name, value in changes.items():
        setattr(built, name, value)
    before: list[torch.Tensor] = []

    class Before(TrainerCallback):  # type: ignore[misc]  # transformers is untyped here
        def on_step_begin(self, *given: Any, **options: Any) -> None:
            before.append(flat_parameters(built.model))

    built.add_callback(Before())
    wrap(built, allow=ALLOW, mode="verify")
    with pytest.raises(BatchDrift, match="weights") as drift:
        built.train()
    assert drift.value.step == first == len(before) - 1
    assert torch.equal(before[-1], flat_parameters(built.model)), "the departing step must not be applied"


@pytest.mark.parametrize("whose", WHOSE)
def test_enforcing_a_copy_is_refused_by_one_reason(build: Build, whose: str) -> None:
    built = build(whose)
    with pytest.raises(CannotAttach) as refused:
        wrap(built, allow=ALLOW)
    assert list(refused.value.reasons) == ["trainer_copy"]
    assert 'mode="observe"' in refused.value.reasons["trainer_copy"]


@pytest.mark.parametrize("mode", ["observe", "verify"])
def test_unwrapping_leaves_nothing_behind(build: Build, mode: Any) -> None:
    built = build("a stand-in")
    before = {name: value for name, value in vars(built).items() if name != "callback_handler"}
    rewards, generate = built.reward_funcs, built.model.generate
    unwrap(wrap(built, allow=ALLOW, mode=mode))
    after = {name: value for name, value in vars(built).items() if name != "callback_handler"}
    assert after.keys() == before.keys()
    assert built.reward_funcs is rewards
    assert built.model.generate is generate


def test_a_loss_that_we_cannot_follow_ends_the_observing_and_not_the_run(
    build: Build, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    built, unscored = build("a stand-in"), build("a stand-in", "other")
    for one in (built, unscored):
        one.reward_funcs = [copies.reward, copies.reward]
    native = unscored.complete

    def without_one(model: Any, inputs: Any) -> Any:
        unscored.reward_funcs = unscored.reward_funcs[:1]
        return native(model, inputs)

    unscored.complete = without_one
    wrap(built, allow=ALLOW, mode="observe", ledger=tmp_path / "ledger").train()
    assert len(list(read_steps(tmp_path / "ledger"))) == built.state.global_step
    capsys.readouterr()
    made = unscored._get_per_token_logps
    unscored._get_per_token_logps = lambda *given: made(*given)[:, 1:]
    unscored.loss_of = lambda model, made: sum(one.sum() for one in model.parameters()) * 0.0
    wrap(unscored, allow=ALLOW, mode="observe", ledger=tmp_path / "second").train()
    assert unscored.state.global_step == built.state.global_step
    assert "the observing has ended, and the run goes on" in capsys.readouterr().err


@pytest.mark.skipif(bool(ALLOW), reason="a release that nobody has recorded")
def test_two_ranks_together_train_what_their_ledgers_say(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    run = subprocess.run(
        [*words, str(Path(__file__).with_name("copies_run.py")), str(tmp_path)],
        env={**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (tmp_path / "said.json").is_file(), run.stderr[-3000:]
    said = json.loads((tmp_path / "said.json").read_text(encoding="utf-8"))
    assert sorted(said) == ["Qwen2VLGRPOTrainer", "VLMGRPOTrainer"]
    for steps, error_over_bar, aspect in said.values():
        assert steps > 1
        assert error_over_bar <= 1
        assert aspect == "weights"


@pytest.mark.parametrize("whose", WHOSE[:2])
def test_the_ledger_of_a_verified_copy_is_right_by_itself(build: Build, tmp_path: Path, whose: str) -> None:
    wrap(build(whose), allow=ALLOW, mode="verify", ledger=tmp_path / "ledger").train()
    found = verify(tmp_path / "ledger")
    assert (found.departed, found.decided) == (0, True)
