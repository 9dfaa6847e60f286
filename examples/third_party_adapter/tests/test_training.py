"""The real PocketTrainer, wrapped and not, on BatchBridge's pytest fixtures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import batchbridge
import pocketgrpo
from batchbridge import CannotAttach, Plan, Spec, unwrap, wrap
from batchbridge.contract import plugins
from batchbridge.ledger import read_headers, read_steps
from batchbridge.testing.snapshots import keep_steps, snapshots
from pocketgrpo_batchbridge.config import KEYS

PROMPTS = 9
SETTINGS = {"groups": 4, "samples": 4, "updates": 2, "epochs": 3, "lr": 0.05, "seed": 3}


@pytest.fixture
def train(
    tiny_policy: Callable[..., Any], tiny_tokenizer: Any, scripted_rollouts: Any, ledger: Any
) -> Callable[..., Path]:
    """Trains a run of that name and returns its folder."""

    def run(name: str, mode: str = "enforce", like: Any = None, **settings: Any) -> Path:
        script = scripted_rollouts
        policy = tiny_policy()
        trainer = pocketgrpo.PocketTrainer(
            policy,
            [tiny_tokenizer(script.prompt(index))["input_ids"] for index in range(PROMPTS)],
            lambda prompt, sample: (
                script.completion(prompt, sample),
                script.loss_mask(prompt, sample),
                script.reward(prompt, sample),
            ),
            **{**SETTINGS, **settings},
        )
        wrap(trainer, like, mode=mode, ledger=ledger[name])  # type: ignore[arg-type]  # one of its modes
        keep_steps(trainer.optimizer, list(policy.parameters()), ledger.run(name) / "steps")
        trainer.train()
        unwrap(trainer)
        return Path(ledger.run(name))

    return run


def test_the_adapter_was_found_like_any_plugin() -> None:
    assert "pocketgrpo" in plugins.adapters()


def test_the_settings_are_the_frameworks_own() -> None:
    assert {row.key: row.default for row in KEYS} == pocketgrpo.DEFAULTS


@pytest.mark.parametrize("average", ["token", "sequence"])
def test_wrapped_the_cut_into_micro_batches_changes_nothing(
    train: Callable[..., Path], assert_equivalent: Callable[..., Any], log_probabilities: Any, average: str
) -> None:
    runs = [train(f"micro {micro}", micro=micro, average=average) for micro in (8, 3)]
    found = assert_equivalent(*runs, says=log_probabilities)
    assert len(found.gradients) == 12


def test_negative_control_unwrapped_it_does(train: Callable[..., Path], assert_equivalent: Callable[..., Any]) -> None:
    runs = [train(f"native {micro}", mode="observe", micro=micro) for micro in (8, 3)]
    with pytest.raises(AssertionError, match="did not train the same"):
        assert_equivalent(*runs)


def test_the_ledger_of_a_wrapped_run_is_the_plan(train: Callable[..., Path]) -> None:
    folder = train("planned")
    header = read_headers(folder / "ledger")[0]
    plan = Plan(Spec.from_dict(header["spec"]), header["dataset_size"])
    steps = list(read_steps(folder / "ledger"))
    assert len(steps) == plan.total_optimizer_steps
    for step in steps:
        trained = sorted(zip(step["rollout"], step["pass"], step["prompt"], step["sample"], strict=True))
        assert trained == sorted(tuple(member) for member in plan.step(step["step"]).members)


def test_the_first_gradient_is_the_oracles(
    train: Callable[..., Path],
    oracle: Any,
    tiny_policy: Callable[..., Any],
    tiny_tokenizer: Any,
    scripted_rollouts: Any,
) -> None:
    folder = train("a", micro=3)
    spec = batchbridge.read(SETTINGS, framework="pocketgrpo", dataset_size=PROMPTS).spec
    scripted = oracle.ScriptedRun(
        spec=spec,
        script=scripted_rollouts,
        tokenize=lambda text: tiny_tokenizer(text)["input_ids"],
        policy_at=lambda step: oracle.double(tiny_policy()),
    )
    expected = scripted.gradient(scripted.planned(Plan(spec, PROMPTS), 0), 0)
    assert oracle.relative_error(snapshots(folder / "steps")[0].gradient, expected) <= 1e-6


def test_the_prediction_of_the_unwrapped_run_is_what_it_trains(
    train: Callable[..., Path], scripted_rollouts: Any
) -> None:
    settings = {**SETTINGS, "micro": 3, "reuse": 2}
    folder = train("native", mode="observe", **settings)
    reading = batchbridge.read(settings, framework="pocketgrpo", dataset_size=PROMPTS)
    lengths = {
        (prompt, sample): sum(scripted_rollouts.loss_mask(prompt, sample))
        for prompt in range(PROMPTS)
        for sample in range(4)
    }
    predicted = list(plugins.adapters()["pocketgrpo"].native_steps(reading, PROMPTS, lengths))
    recorded = list(read_steps(folder / "ledger"))
    assert len(predicted) == len(recorded)
    measured = 0
    for native, step in zip(predicted, recorded, strict=True):
        keys = zip(*(step[name] for name in ("rollout", "pass", "prompt", "sample")), strict=True)
        have = dict(zip(keys, step["weights"], strict=True))
        shown = {key: weight for key, weight in have.items() if weight is not None}  # None: clipped
        want = {(row.rollout, row.pass_index, row.prompt, row.sample): float(row.weight or 0) for row in native.rows}
        assert have.keys() == want.keys()
        assert shown == pytest.approx({key: want[key] for key in shown}, rel=1e-5)
        measured += len(shown)
    assert measured >= 40


def test_what_it_cannot_do_is_refused_by_name(train: Callable[..., Path]) -> None:
    trl = {"num_generations": 4, "beta": 0.1, "use_cpu": True}
    like = batchbridge.read(trl, framework="trl", version="1.16.0", world_size=1)
    with pytest.raises(CannotAttach) as refused:
        train("like", like=like)
    assert refused.value.reasons.keys() == {"other_settings", "step_may_span"}
    for field in ("objective.kl_coefficient", "carried.optimizer"):
        assert field in refused.value.reasons["other_settings"]
