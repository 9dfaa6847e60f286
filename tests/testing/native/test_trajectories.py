"""Comparing the ends of runs: what rounding makes of them, and what a fault does."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from batchbridge.meaning.candidates import CandidatePlan
from batchbridge.meaning.plan import Plan
from batchbridge.meaning.spec import Horizon, Loss, LossTerm, Objective, OptimizerStep, Order, Rollout, Spec, Topology
from batchbridge.testing.equivalence import ADAM_EPSILON, TRAJECTORY_BAR
from batchbridge.testing.oracle import Sample, ScriptedRun
from batchbridge.testing.tiny import ScriptedRollouts, tiny_policy
from batchbridge.testing.trajectories import log_probabilities
from batchbridge_on_cpu.trajectories import (
    FAULTS,
    FIGURES,
    Fault,
    adamw,
    assert_other_end,
    assert_same_end,
    distance,
    reference_run,
    sgd,
    whole,
)

SPEC = Spec(
    topology=Topology(world_size=1),
    rollout=Rollout(prompts_per_rollout=4, completions_per_prompt=4),
    optimizer_step=OptimizerStep(completions_per_step=8),
    loss=Loss(policy=LossTerm(aggregation="token_mean")),
    horizon=Horizon(optimizer_steps=4),
    order=Order(seed=5),
    objective=Objective(surrogate="ppo", ratio_level="token", clip_low=0.2, clip_high=0.2),
)
PLAN = Plan(SPEC, 8)
FILTERED = CandidatePlan(
    SPEC.replace(**{"rollout.group_filter": "replace_zero_variance", "advantage.epsilon": 1e-4}), 8
)
FLAT = ScriptedRollouts(flat=frozenset({1, 4, 6}), binary=True)


@pytest.fixture(scope="module")
def ends() -> tuple[torch.Tensor, torch.Tensor]:
    return reference_run(PLAN, adamw(1e-2))


def test_parameters_are_the_same_flat_and_by_name() -> None:
    policy = tiny_policy()
    flat = torch.nn.utils.parameters_to_vector(policy.parameters())
    shuffled = dict(reversed(policy.state_dict().items()))
    assert torch.equal(whole(flat), whole(shuffled))


@pytest.mark.parametrize(("epsilon", "apart"), [(1e-8, 1e-2), (ADAM_EPSILON, 2.5e-6)])
def test_a_gradient_of_rounding_noise_makes_a_whole_step_of_adamw_unless_its_epsilon_is_larger(
    epsilon: float, apart: float
) -> None:
    """One parameter's first gradients, clipped, on one rank and on two, on a processor with AVX-512, in verl 0.9.1."""
    steps = []
    for gradient in (-6.93e-08, -7.47e-08):
        parameter = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
        parameter.grad = torch.full_like(parameter, gradient)
        torch.optim.AdamW([parameter], lr=1.0, eps=epsilon, weight_decay=0.0).step()
        steps.append(float(parameter.detach()))
    assert apart / 2 < abs(steps[0] - steps[1]) < apart


def test_one_parameter_that_noise_has_moved_is_no_other_end(ends: tuple[torch.Tensor, torch.Tensor]) -> None:
    """The parameter that parted verl's runs."""
    start, end = ends
    policy = tiny_policy(dtype=torch.float64)
    torch.nn.utils.vector_to_parameters(end.clone(), policy.parameters())
    with torch.no_grad():
        policy.model.layers[1].mlp.down_proj.weight.view(-1)[211] += 2e-5 * (end - start).norm()
    found = distance(start, policy.state_dict(), end)
    assert found.parameters > TRAJECTORY_BAR
    assert found.said < found.parameters / 2


def test_float32_s_rounding_of_parameters_hardly_shows_in_what_a_policy_says() -> None:
    start, end = reference_run(PLAN, sgd(0.1))
    found = distance(start, end.float(), end)
    assert found.said < found.parameters / 2


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("optimizer", [adamw(1e-2), sgd(0.1)], ids=["adamw", "sgd"])
def test_a_run_with_one_fault_ends_elsewhere(optimizer: object, fault: Fault) -> None:
    start, sound = reference_run(PLAN, optimizer)  # type: ignore[arg-type]  # parametrized
    again, faulty = reference_run(PLAN, optimizer, fault=fault)  # type: ignore[arg-type]  # parametrized
    assert torch.equal(start, again)
    assert_other_end("here", start, faulty, sound)
    with pytest.raises(AssertionError, match=r"here: apart by .*, bar 1e-05"):
        assert_same_end("here", start, faulty, sound)


def test_places_of_a_rollout_are_filled_with_the_first_candidates_whose_rewards_differ() -> None:
    run = ScriptedRun(spec=FILTERED.spec, script=FLAT, tokenize=lambda text: [3], policy_at=lambda step: tiny_policy())
    offered = FILTERED.candidates(0, 16)
    kept = [prompt for prompt in offered if prompt not in FLAT.flat]
    assert [*run.fills(FILTERED, 0), *run.fills(FILTERED, 1)] == kept[:8]
    groups = {sample.group for step in (0, 1) for sample in run.planned(FILTERED, step)}
    assert groups == set(run.fills(FILTERED, 0))
    assert all(sample.advantage for step in range(4) for sample in run.planned(FILTERED, step))
    everything = dataclasses.replace(run, keeps_all=True)
    assert [*everything.fills(FILTERED, 0), *everything.fills(FILTERED, 1)] == list(offered[:8])
    assert run.fills(PLAN, 1) == PLAN.rollout(1).prompts


def test_a_run_that_once_trains_what_a_filter_drops_ends_elsewhere() -> None:
    start, sound = reference_run(FILTERED, sgd(0.1), script=FLAT)
    _, kept = reference_run(FILTERED, sgd(0.1), script=FLAT, fault="kept")
    assert_other_end("here", start, kept, sound)
    plain = reference_run(PLAN, sgd(0.1))[1]
    assert torch.equal(plain, reference_run(PLAN, sgd(0.1), fault="kept")[1]), "nothing is dropped without a filter"


def test_a_run_that_once_trains_another_completion_than_it_says_ends_elsewhere() -> None:
    def other(sample: Sample) -> Sample:
        return dataclasses.replace(sample, prompt=[*sample.prompt, 5])

    start, sound = reference_run(PLAN, sgd(0.1))
    _, altered = reference_run(PLAN, sgd(0.1), fault="altered", altered=other)
    assert_other_end("here", start, altered, sound)
    assert torch.equal(sound, reference_run(PLAN, sgd(0.1), fault="altered", altered=lambda sample: sample)[1])


def test_another_policy_s_prompts_are_read_as_it_reads_them() -> None:
    script, policy = ScriptedRollouts(), tiny_policy(1)
    parameters = torch.nn.utils.parameters_to_vector(policy.parameters())
    asked: list[tuple[int, int]] = []

    def inputs(prompt: int, completion: int) -> dict[str, torch.Tensor]:
        asked.append((prompt, completion))
        return {}

    said = log_probabilities(parameters, policy=policy, tokenize=lambda text: [3, 4], inputs=inputs)
    assert asked[0] == (0, len(script.completion(0, 0)))
    own = log_probabilities(parameters)
    assert said.shape == own.shape
    assert not torch.allclose(said, own)
    found = distance(parameters, parameters + 0.01, parameters + 0.02, says=lambda values: values)
    assert found.said == found.parameters == pytest.approx(0.5)


def test_two_ends_that_are_one_are_no_control(ends: tuple[torch.Tensor, torch.Tensor]) -> None:
    start, end = ends
    assert_same_end("here", start, end, end)
    with pytest.raises(AssertionError, match=r"apart by 0.00e\+00 only"):
        assert_other_end("here", start, end, end)


def test_a_run_that_hardly_moved_shows_nothing() -> None:
    start, end = reference_run(PLAN, sgd(1e-4))
    with pytest.raises(AssertionError, match="too little to compare"):
        assert_same_end("here", start, end, end)


def test_a_first_step_can_train_no_completion_of_an_earlier_one() -> None:
    with pytest.raises(ValueError, match="no earlier step"):
        reference_run(PLAN, sgd(0.1), steps=1, fault="swapped")


def test_the_learning_rates_of_a_schedule_replace_the_optimizers_own() -> None:
    start, end = reference_run(PLAN, sgd(0.1))
    assert torch.equal(end, reference_run(PLAN, sgd(7.0), rates=[0.1] * 4)[1])
    assert not torch.equal(end, reference_run(PLAN, sgd(0.1), max_norm=1e-3)[1])
    assert torch.equal(start, reference_run(PLAN, sgd(0.1), rates=[0.0] * 4)[1])


def test_figures_are_kept_where_they_are_asked_for(
    ends: tuple[torch.Tensor, torch.Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "figures.jsonl"
    monkeypatch.setenv(FIGURES, str(file))
    start, end = ends
    assert_same_end("a case", start, end, end)
    (line,) = file.read_text(encoding="utf-8").splitlines()
    assert json.loads(line) == {
        "case": "a case",
        "kind": "sound",
        "said": 0.0,
        "parameters": 0.0,
        "moved": pytest.approx(0.1, abs=0.05),
    }
