"""The real driver and two Ray workers, wrapped and not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("ray")

import batchbridge
import pocketray
from batchbridge import BatchDrift, CannotAttach, Plan, Spec, unwrap, wrap
from batchbridge.contract import plugins
from batchbridge.ledger import read_headers, read_steps
from batchbridge.testing.snapshots import snapshots
from inside_workers import PROMPTS, keep, on
from pocketray_batchbridge.config import KEYS

SETTINGS = {"epochs": 3, "lr": 0.05}


@pytest.fixture
def train(build: Callable[..., Any], ledger: Any) -> Callable[..., Path]:
    """Trains a run of that name and returns its folder."""

    def run(name: str, mode: str = "enforce", like: Any = None, **settings: Any) -> Path:
        driver = build(**{**SETTINGS, **settings})
        wrap(driver, like, mode=mode, ledger=ledger[name])  # type: ignore[arg-type]  # one of its modes
        on(driver.workers[0], keep, ledger.run(name) / "steps")
        driver.train()
        unwrap(driver)
        return Path(ledger.run(name))

    return run


def test_the_adapter_was_found_like_any_plugin() -> None:
    assert "pocketray" in plugins.adapters()


def test_the_settings_are_the_frameworks_own() -> None:
    assert {row.key: row.default for row in KEYS} == pocketray.DEFAULTS


@pytest.mark.parametrize("average", ["token", "sequence"])
def test_wrapped_the_cut_into_micro_batches_and_workers_changes_nothing(
    train: Callable[..., Path], assert_equivalent: Callable[..., Any], log_probabilities: Any, average: str
) -> None:
    one, *others = [
        train(f"{workers} workers, micro {micro}", workers=workers, micro=micro, average=average)
        for workers, micro in ((2, 3), (2, 1), (1, 8))
    ]
    for other in others:
        found = assert_equivalent(one, other, says=log_probabilities)
        assert len(found.gradients) == 12


def test_negative_control_unwrapped_it_does(train: Callable[..., Path], assert_equivalent: Callable[..., Any]) -> None:
    runs = [train(f"native {micro}", mode="observe", micro=micro) for micro in (3, 1)]
    with pytest.raises(AssertionError, match="did not train the same"):
        assert_equivalent(*runs)


def test_every_gradient_is_the_oracles(
    train: Callable[..., Path],
    oracle: Any,
    tiny_policy: Callable[..., Any],
    tiny_tokenizer: Any,
    scripted_rollouts: Any,
) -> None:
    folder = train("a", micro=3, passes=2, clip=0.02, lr=0.5)
    spec = Spec.from_dict(read_headers(folder / "ledger")[0]["spec"])
    kept = snapshots(folder / "steps")

    def policy_at(step: int) -> Any:
        policy = tiny_policy()
        torch.nn.utils.vector_to_parameters(kept[step].before, policy.parameters())
        return oracle.double(policy)

    scripted = oracle.ScriptedRun(
        spec=spec,
        script=scripted_rollouts,
        tokenize=lambda text: tiny_tokenizer(text)["input_ids"],
        policy_at=policy_at,
    )
    plan = Plan(spec, PROMPTS)
    assert len(kept) == plan.total_optimizer_steps == 24
    for step, seen in enumerate(kept):
        expected = scripted.gradient(scripted.planned(plan, step), step)
        assert oracle.relative_error(seen.gradient, expected) <= 1e-5


def test_an_order_and_rollouts_that_pocketray_does_not_have_are_the_plans(train: Callable[..., Path]) -> None:
    own = batchbridge.read(SETTINGS, framework="pocketray", dataset_size=PROMPTS).spec
    assert own is not None
    asked = own.replace(
        **{
            "order.prompt_shuffle": "epoch_permutation",
            "order.seed": 7,
            "order.last_rollout": "short",
            "order.last_optimizer_step": "short",
            "rollout.completions_per_prompt": 4,
            "rollout.prompts_per_rollout": 2,
            "optimizer_step.completions_per_step": 3,
        }
    )
    folder = train("asked", like=asked)
    plan, steps = Plan(asked, PROMPTS), list(read_steps(folder / "ledger"))
    assert len(steps) == plan.total_optimizer_steps
    assert any(len(step["prompt"]) % 2 for step in steps), "no step needed a filler row"
    for step in steps:
        trained = sorted(zip(step["rollout"], step["pass"], step["prompt"], step["sample"], strict=True))
        assert trained == sorted(tuple(member)[:4] for member in plan.step(step["step"]).members)


def test_the_prediction_of_the_unwrapped_run_is_what_it_trains(
    train: Callable[..., Path], scripted_rollouts: Any
) -> None:
    settings = {**SETTINGS, "micro": 3, "passes": 2}
    folder = train("native", mode="observe", **settings)
    reading = batchbridge.read(settings, framework="pocketray", dataset_size=PROMPTS)
    lengths = {
        (prompt, sample): sum(scripted_rollouts.loss_mask(prompt, sample))
        for prompt in range(PROMPTS)
        for sample in range(4)
    }
    predicted = list(plugins.adapters()["pocketray"].native_steps(reading, PROMPTS, lengths))
    recorded = list(read_steps(folder / "ledger"))
    assert len(predicted) == len(recorded) == 24
    measured = 0
    for native, step in zip(predicted, recorded, strict=True):
        keys = zip(*(step[name] for name in ("rollout", "pass", "prompt", "sample")), strict=True)
        have = dict(zip(keys, step["weights"], strict=True))
        shown = {key: weight for key, weight in have.items() if weight is not None}  # None: clipped
        want = {(row.rollout, row.pass_index, row.prompt, row.sample): float(row.weight or 0) for row in native.rows}
        assert have.keys() == want.keys()
        assert shown == pytest.approx({key: want[key] for key in shown}, rel=1e-5)
        measured += len(shown)
    assert measured >= 100


def test_verified_a_run_that_weighs_by_micro_batch_is_stopped_and_one_that_does_not_is_not(
    train: Callable[..., Path],
) -> None:
    train("by sequence, equal parts", mode="verify", average="sequence", micro=2)
    with pytest.raises(BatchDrift, match="weight"):
        train("by token", mode="verify", micro=2)


def test_what_it_cannot_do_is_refused_by_name(train: Callable[..., Path]) -> None:
    trl = {"num_generations": 4, "beta": 0.1, "use_cpu": True}
    like = batchbridge.read(trl, framework="trl", version="1.16.0", world_size=1)
    with pytest.raises(CannotAttach) as refused:
        train("like", like=like)
    assert "other_settings" in refused.value.reasons
    for field in ("objective.kl_coefficient", "carried.optimizer"):
        assert field in refused.value.reasons["other_settings"]
