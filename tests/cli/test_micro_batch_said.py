"""`explain` says how many tokens a micro-batch has on a device, with prompts and completions at their longest."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from batchbridge.cli.main import main
from batchbridge.meaning.spec import Horizon, Loss, LossTerm, MicroBatch, OptimizerStep, Rollout, Spec, Topology
from batchbridge.render.sentences import micro_batch

Run = Callable[..., str]
RECIPE = "num_generations: 16\nper_device_train_batch_size: 16\nmax_prompt_length: 512\nmax_completion_length: 4096\n"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.chdir(tmp_path)

    def run(recipe: str, version: str) -> str:
        Path("recipe.yaml").write_text(recipe, encoding="utf-8")
        main(["explain", "recipe.yaml", "--framework", "trl", "--framework-version", version, "--world-size", "8"])
        return capsys.readouterr().out

    return run


def spec(**micro: object) -> Spec:
    found = Spec(
        topology=Topology(world_size=8),
        rollout=Rollout(prompts_per_rollout=4, completions_per_prompt=2),
        optimizer_step=OptimizerStep(completions_per_step=8),
        loss=Loss(policy=LossTerm(aggregation="token_mean")),
        horizon=Horizon(epochs=1),
        micro_batch=MicroBatch(**micro),  # type: ignore[arg-type]  # sizes alone
    )
    return found.replace(**{"carried.max_prompt_tokens": 512, "carried.max_completion_tokens": 4096})


def test_explain_says_how_many_tokens_a_micro_batch_has(run: Run) -> None:
    said = run(RECIPE, "0.18.0")
    assert "A micro-batch has 16 completions: up to 16 x 4,608 = 73,728 tokens per device." in said


def test_prompts_without_a_limit_are_said_to_have_none(run: Run) -> None:
    said = run(RECIPE.replace("max_prompt_length: 512\n", ""), "1.16.0")
    assert "up to 16 x 4,096 = 65,536 tokens per device, and their prompts, which have no limit." in said


def test_devices_that_share_sequences_have_a_part_of_each_rounded_up() -> None:
    odd = spec(completions_per_device=1).replace(
        **{"topology.context_parallel": 2, "carried.max_completion_tokens": 4097}
    )
    (line,) = micro_batch(odd)
    assert "1 completion: up to 1 x 4,609 / 2 = 2,305 tokens" in line


@pytest.mark.parametrize(("cap", "tokens"), [("hard", "2,048"), ("soft", "4,608")])
def test_a_token_budget_is_the_most_but_for_one_long_completion(cap: str, tokens: str) -> None:
    (line,) = micro_batch(spec(tokens_per_device=2048, cap=cap))
    assert line == f"A micro-batch has up to {tokens} tokens per device; a completion with its prompt 4,608."


def test_an_open_size_is_not_said() -> None:
    assert not list(micro_batch(spec()))
    assert not list(micro_batch(spec(completions_per_device=3).replace(**{"carried.max_completion_tokens": None})))
