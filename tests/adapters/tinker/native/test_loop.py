"""The loop that `convert --to tinker` writes, run as it is written against a stand-in of the service, with the SDK's
own types: every optimizer step has the oracle's gradient. By name: `nox -s tinker`. The service itself is in no
test."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tinker import types

from batchbridge import Plan, Spec, convert
from batchbridge.testing.oracle import Sample, advantages, double, gradient_bar, logprobs, relative_error, step_gradient
from batchbridge.testing.tiny import ScriptedRollouts
from batchbridge_on_cpu.scripts import module_at
from batchbridge_tinker.config import TinkerAdapter

stand_in = module_at(Path(__file__).with_name("stand_in.py"), "tinker_stand_in")

SCRIPT = ScriptedRollouts(empty=frozenset())
PROMPTS, GROUP, OF_A_ROLLOUT, EPOCHS, LONGEST = 8, 4, 4, 2, 24
TRL: dict[str, Any] = {
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 4,
    "num_generations": GROUP,
    "steps_per_generation": 8,  # 16 completions
    "num_train_epochs": EPOCHS,
    "learning_rate": 0.01,
    "lr_scheduler_type": "linear",
    "max_completion_length": LONGEST,
    "shuffle_dataset": False,
    "output_dir": "out",
}
IN_ORDER = {"optimizer_step.rollout_shuffle": "none", "optimizer_step.step_may_span": "none"}
REMAINDER = {"optimizer_step.completions_per_step": 12}
REWARDS = {
    (number, tuple(SCRIPT.completion(number, sample))): SCRIPT.reward(number, sample)
    for number in range(PROMPTS)
    for sample in range(GROUP)
}
assert len(REWARDS) == PROMPTS * GROUP
Members = list[tuple[int, int, int]]
"""Rollout, prompt and sample of the completions of a step."""


def token_ids(number: int) -> list[int]:
    return [3 + int(word[1:]) for word in SCRIPT.prompt(number).split()]


@functools.cache
def converted(loss_type: str) -> Spec:
    """What a run of TRL's is as a loop."""
    settings = {**TRL, "loss_type": loss_type}
    found = convert(settings, "tinker", framework="trl", version="1.16.0", world_size=1, dataset_size=PROMPTS)
    assert found.back is not None
    assert found.back.spec is not None
    return found.back.spec


def loop(folder: Path, fields: dict[str, Any], loss_type: str = "dapo") -> Any:
    """The written program as a module. fields: of the specification, before it is written."""
    adapter = TinkerAdapter()
    values = adapter.write(converted(loss_type).replace(**fields), "0.38.0").values
    file = folder / "loop.py"
    file.write_text(adapter.forms({**values, "base_model": "a model"}, "0.38.0", 1)["python"], encoding="utf-8")
    return module_at(file, f"loop_{folder.name}")


def trained(module: Any, change: Any = None) -> Any:
    """The client after the whole run."""
    service = stand_in.Service(SCRIPT, change)
    dataset = [token_ids(number) for number in range(PROMPTS)]
    client = module.train(service, dataset, lambda number, tokens: REWARDS[number, tuple(tokens)])
    assert service.asked == {"base_model": "a model", "rank": 32}
    return client


def steps_by_hand(size: int, passes: int) -> list[Members]:
    """The completions of every step where nothing is permuted: prompt by prompt, each pass cut by itself."""
    steps: list[Members] = []
    for rollout in range(EPOCHS * PROMPTS // OF_A_ROLLOUT):
        first = rollout * OF_A_ROLLOUT % PROMPTS
        numbers = range(first, first + OF_A_ROLLOUT)
        completions = [(rollout, number, sample) for number in numbers for sample in range(GROUP)]
        for _ in range(passes):
            steps += [completions[start : start + size] for start in range(0, len(completions), size)]
    return steps


def weights_by_hand(aggregation: str, lengths: list[int]) -> list[float]:
    """The weight of each completion's tokens; a length of 0 counts as a completion."""
    total, count = sum(lengths), len(lengths)
    if aggregation == "token_mean":
        return [1 / total] * count
    if aggregation == "sequence_mean":
        return [1 / (count * max(length, 1)) for length in lengths]
    assert aggregation == "sequence_sum_over_constant"
    return [1 / (count * LONGEST)] * count


@dataclasses.dataclass(frozen=True)
class Found:
    """How far each step is off, its bar, and the share of its tokens that the clip cuts."""

    errors: list[float]
    bar: float
    clipped: list[float]


def samples_of(
    client: Any, spec: Spec, steps: list[Members], members: Members, kind: Callable[[Any], Any], only_kept: bool
) -> list[Sample]:
    """The completions of a step. kind: the precision of the policies that old log-probabilities are of."""
    samples = []
    for rollout, number, sample in members:
        tokens = SCRIPT.completion(number, sample)
        kept = not (only_kept and stand_in.is_cut(number, sample))
        rewards = [SCRIPT.reward(number, each) for each in range(GROUP)]
        made = Sample(
            prompt=token_ids(number),
            completion=tokens,
            loss_mask=[int(kept)] * len(tokens),
            group=number,
            advantage=advantages(rewards, GROUP, spec.advantage)[sample],
        )
        if spec.objective.old_logprobs != "detached":
            start = next(place for place, others in enumerate(steps) if rollout in {other[0] for other in others})
            with torch.no_grad():
                old = logprobs(kind(client.policies[start]), made)
            more = stand_in.off(len(tokens)) if spec.objective.old_logprobs == "sampler" else 0.0
            made = dataclasses.replace(made, old_logprobs=old + more)
        samples.append(made)
    return samples


def compared(client: Any, spec: Spec, steps: list[Members], only_kept: bool = False) -> Found:
    """The gradients of a run against the oracle's, in float64, one completion at a time, by weights and steps that are
    counted here."""
    assert len(client.gradients) == len(steps)
    exact, rounded, shares = [], [], []
    for index, members in enumerate(steps):
        policy = client.policies[index]
        sides = []
        for model, kind in ((double(policy), double), (policy, lambda one: one)):
            samples = samples_of(client, spec, steps, members, kind, only_kept)
            weights = weights_by_hand(spec.loss.policy.aggregation, [sum(each.loss_mask) for each in samples])
            asked: dict[str, Any] = {"term": spec.loss.policy, "objective": spec.objective, "weights": weights}
            sides.append((step_gradient(model, samples, **asked), samples))
        exact.append(sides[0][0])
        rounded.append(sides[1][0])
        shares.append(clipped(spec, policy, sides[0][1]))
    floors = [relative_error(one, other) for one, other in zip(rounded, exact, strict=True)]
    errors = [relative_error(one, other) for one, other in zip(client.gradients, exact, strict=True)]
    return Found(errors, gradient_bar(*floors), shares)


def clipped(spec: Spec, policy: Any, samples: list[Sample]) -> float:
    cut = total = 0
    for sample in samples:
        with torch.no_grad():
            now = logprobs(double(policy), sample)
        ratio = (now - (now if sample.old_logprobs is None else sample.old_logprobs)).exp()
        low, high = spec.objective.clip_low, spec.objective.clip_high
        outside = ratio > 1 + (high or 0) if sample.advantage > 0 else ratio < 1 - (low or 0)
        cut, total = cut + int(outside.sum()), total + len(ratio)
    return cut / total


@pytest.mark.parametrize("fields", [{}, REMAINDER], ids=["whole", "remainder"])
@pytest.mark.parametrize("old", ["detached", "rollout_start", "sampler"])
@pytest.mark.parametrize("loss_type", ["dapo", "grpo", "dr_grpo"])
def test_every_step_has_the_oracles_gradient(tmp_path: Path, loss_type: str, old: str, fields: dict[str, Any]) -> None:
    several = {"optimizer_step.passes_per_rollout": 2 if old != "detached" else 1}
    module = loop(tmp_path, {**IN_ORDER, **several, **fields, "objective.old_logprobs": old}, loss_type=loss_type)
    client, spec = trained(module), module.SPEC
    size, passes = spec.optimizer_step.completions_per_step, spec.optimizer_step.passes_per_rollout
    steps = steps_by_hand(size, passes)
    assert {len(step) for step in steps} == ({12, 4} if fields else {8})
    found = compared(client, spec, steps)
    assert max(found.errors) <= found.bar, found
    assert set(client.losses) == {"cross_entropy" if old == "detached" else "ppo"}
    assert (max(found.clipped) > 0.01) == (old != "detached")
    rows = spec.micro_batch.completions_per_device
    calls = [[rows] * (len(step) // rows) + ([len(step) % rows] if len(step) % rows else []) for step in steps]
    assert client.calls == [*calls, []]  # one optimizer step behind them
    rates = [0.01 * (1 - step / len(steps)) for step in range(len(steps))]
    assert client.rates == pytest.approx(rates)


@pytest.mark.parametrize(
    "fields",
    [
        {"objective.surrogate": "cispo", "objective.clip_low": None, "objective.clip_high": 0.1},
        {"objective.clip_low": None, "objective.clip_high": None},
    ],
    ids=["cispo", "importance_sampling"],
)
def test_so_it_has_under_the_services_other_losses(tmp_path: Path, fields: dict[str, Any]) -> None:
    more = {"optimizer_step.passes_per_rollout": 2, "objective.old_logprobs": "rollout_start"}
    module = loop(tmp_path, {**IN_ORDER, **more, **fields})
    client = trained(module)
    found = compared(client, module.SPEC, steps_by_hand(8, 2))
    assert max(found.errors) <= found.bar, found
    assert set(client.losses) == {fields.get("objective.surrogate", "importance_sampling")}


@pytest.mark.parametrize("loss_type", ["dapo", "grpo"])
def test_completions_that_were_cut_weigh_nothing_where_they_are_masked(tmp_path: Path, loss_type: str) -> None:
    module = loop(tmp_path, {**IN_ORDER, "rollout.truncated_completions": "mask"}, loss_type=loss_type)
    found = compared(trained(module), module.SPEC, steps_by_hand(8, 1), only_kept=True)
    assert max(found.errors) <= found.bar, found
    other = compared(trained(module), module.SPEC, steps_by_hand(8, 1))
    assert max(other.errors) > 10 * other.bar


def test_permuted_steps_that_span_rollouts_are_the_plans(tmp_path: Path) -> None:
    fields = {"optimizer_step.completions_per_step": 12, "order.prompt_shuffle": "epoch_permutation"}
    module = loop(tmp_path, fields)
    plan = Plan(module.SPEC, PROMPTS)
    steps = [[(one.rollout, one.prompt, one.sample) for one in step.members] for step in plan.steps()]
    assert any(len({rollout for rollout, _, _ in step}) > 1 for step in steps)
    found = compared(trained(module), module.SPEC, steps)
    assert max(found.errors) <= found.bar, found


# ---- negative controls


def scaled(step: int, datum: types.Datum) -> types.Datum:
    """Weights x 1.01 in one step."""
    by = 1.01 if step == 1 else 1.0
    inputs = {
        name: value.to_torch() * by if name in ("weights", "advantages") else value
        for name, value in datum.loss_fn_inputs.items()
    }
    return types.Datum(model_input=datum.model_input, loss_fn_inputs=inputs)


def moved(module: Any) -> None:
    """A row of each of the first two steps is trained in the other one."""

    class Moved(Plan):
        def steps(self, start: int = 0, stop: int | None = None) -> Any:
            first, second, *rest = super().steps(start, stop)
            for one, other in ((first, second), (second, first)):
                yield dataclasses.replace(
                    one,
                    members=(other.members[0], *one.members[1:]),
                    positions=(other.positions[0], *one.positions[1:]),
                )
            yield from rest

    module.Plan = Moved


def halved(module: Any) -> None:
    """A token's weight is that of a step of half the size."""
    native = module.token_weights
    module.token_weights = lambda term, rows: [2 * weight for weight in native(term, rows)]


CONTROLS: dict[str, tuple[Callable[[Any], None], Any]] = {
    "weights x 1.01": (lambda module: None, scaled),
    "a row in another step": (moved, None),
    "weights of half a step": (halved, None),
}


@pytest.mark.parametrize("old", ["detached", "sampler"])
@pytest.mark.parametrize("control", CONTROLS)
def test_negative_control_the_bar_is_missed_tenfold(tmp_path: Path, control: str, old: str) -> None:
    tamper, change = CONTROLS[control]
    module = loop(tmp_path, {**IN_ORDER, "objective.old_logprobs": old})
    tamper(module)
    found = compared(trained(module, change), module.SPEC, steps_by_hand(8, 1))
    assert max(found.errors) > 10 * found.bar, found


def test_negative_control_the_samplers_log_probabilities_are_not_the_trainers(tmp_path: Path) -> None:
    module = loop(tmp_path, {**IN_ORDER, "objective.old_logprobs": "sampler"})
    other = module.SPEC.replace(**{"objective.old_logprobs": "rollout_start"})
    found = compared(trained(module), other, steps_by_hand(8, 1))
    assert max(found.errors) > 10 * found.bar


# ---- what ends a run


def test_a_step_of_which_a_call_failed_is_not_applied(tmp_path: Path) -> None:
    module = loop(tmp_path, IN_ORDER)

    def fails(step: int, datum: types.Datum) -> types.Datum:
        if step == 2:
            raise RuntimeError("the service is gone")
        return datum

    service = stand_in.Service(SCRIPT, fails)
    with pytest.raises(RuntimeError, match="is gone"):
        module.train(service, [token_ids(one) for one in range(PROMPTS)], lambda number, tokens: float(len(tokens)))
    assert len(service.client.gradients) == 2


@pytest.mark.parametrize(("lost", "said"), [("logprobs_np", "0 old log-probabilities"), ("", "3 completions came")])
def test_an_answer_that_lacks_something_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str, said: str
) -> None:
    module = loop(tmp_path, {**IN_ORDER, "objective.old_logprobs": "sampler"})
    native = stand_in.Sampler.sample

    def less(self: Any, prompt: Any, num_samples: int, sampling_params: Any) -> Any:
        whole = native(self, prompt, num_samples, sampling_params).result().sequences
        kept = [dataclasses.replace(one, **{lost: None}) for one in whole] if lost else whole[1:]
        return stand_in.Done(types.SampleResponse(sequences=kept))

    monkeypatch.setattr(stand_in.Sampler, "sample", less)
    with pytest.raises(ValueError, match=said):
        trained(module)


def test_a_prompt_that_is_too_long_and_what_is_not_filled_in_end_it_at_once(tmp_path: Path) -> None:
    module = loop(tmp_path, {**IN_ORDER, "carried.max_prompt_tokens": 3})
    service = stand_in.Service(SCRIPT)
    with pytest.raises(ValueError, match="longer than 3 tokens"):
        module.train(service, [token_ids(one) for one in range(PROMPTS)], lambda number, tokens: 0.0)
    assert service.asked == {}
    with pytest.raises(NotImplementedError, match="prompts: fill in"):
        module.prompts()
    with pytest.raises(NotImplementedError, match="reward: fill in"):
        module.reward(0, [1])


# ---- the stand-in


def test_the_stand_in_has_the_methods_that_the_sdk_has() -> None:
    import inspect

    from tinker import ServiceClient
    from tinker.lib.public_interfaces.sampling_client import SamplingClient
    from tinker.lib.public_interfaces.training_client import TrainingClient

    pairs = ((stand_in.Service, ServiceClient), (stand_in.Policy, TrainingClient), (stand_in.Sampler, SamplingClient))
    for ours, theirs in pairs:
        for name in (name for name in vars(ours) if not name.startswith("_")):
            own = list(inspect.signature(getattr(ours, name)).parameters)
            sdk = list(inspect.signature(getattr(theirs, name)).parameters)
            assert sdk[: len(own)] == own, (ours.__name__, name, sdk)
