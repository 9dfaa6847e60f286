"""`batchbridge ledger show|diff` over ledgers written by the real writer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from batchbridge import Spec
from batchbridge.ledger import Header, StepRecord, Writer
from batchbridge.meaning.spec import Horizon, Loss, LossTerm, OptimizerStep, Rollout, Topology
from batchbridge.meaning.weights import Normaliser

Run = Callable[..., tuple[int, str, str]]

SPEC = Spec(
    topology=Topology(world_size=1),
    rollout=Rollout(prompts_per_rollout=1, completions_per_prompt=2),
    optimizer_step=OptimizerStep(completions_per_step=2),
    loss=Loss(policy=LossTerm(aggregation="token_mean")),
    horizon=Horizon(optimizer_steps=2),
)


def write(folder: Path, prompts: tuple[int, int]) -> str:
    """A run of two optimizer steps, each over one prompt's two completions."""
    header = Header(
        framework="toy", framework_version="2.0", mode="verify", spec=SPEC, dataset_size=9, world_size=1, rank=0
    )
    with Writer(folder, header) as writer:
        for step, prompt in enumerate(prompts):
            writer.append(
                StepRecord(
                    step=step,
                    epoch=0,
                    normaliser=Normaliser(aggregation="token_mean", completions=2, tokens=7),
                    learning_rate=0.5,
                    gradient_norm=None,
                    skipped=False,
                    lr_tick=True,
                    rollout=[step, step],
                    pass_index=[0, 0],
                    prompt=[prompt, prompt],
                    sample=[0, 1],
                    prompt_fingerprint=["0" * 16] * 2,
                    completion_fingerprint=["1" * 16, "2" * 16],
                    response_tokens=[3, 4],
                    reward=[float("nan"), 1.0],
                    advantage=[-1.0, 1.0],
                    old_logprobs=[None, None],
                    generated_at_step=[step, step],
                )
            )
    return str(folder)


def test_show_prints_one_line_per_optimizer_step(run: Run, tmp_path: Path) -> None:
    code, out, _ = run("ledger", "show", write(tmp_path / "a", (3, 4)))
    assert out.splitlines()[0] == (
        "step 0  epoch 0  rollout 0  2 completions of 1 prompts  7 response tokens  learning rate 0.5  "
        "gradient norm unset"
    )
    assert (code, len(out.splitlines())) == (0, 2)


def test_show_prints_each_step_on_a_line_of_valid_json(run: Run, tmp_path: Path) -> None:
    code, out, _ = run("ledger", "show", write(tmp_path / "a", (3, 4)), "--step", "1", "--json")
    head, line, tail = out.splitlines()
    record = json.loads(line)
    assert json.loads(f"{head}{tail}")["results"] == []
    assert (record["step"], record["prompt"], record["reward"]) == (1, [4, 4], ["nan", 1.0])
    assert code == 0


def test_equal_runs_exit_with_0(run: Run, tmp_path: Path) -> None:
    code, out, _ = run("ledger", "diff", write(tmp_path / "a", (3, 4)), write(tmp_path / "b", (3, 4)))
    assert (code, out.splitlines()[0]) == (0, "equal: 2 optimizer steps")


def test_different_runs_exit_with_3_and_name_the_first_step(run: Run, tmp_path: Path) -> None:
    folders = write(tmp_path / "a", (3, 4)), write(tmp_path / "b", (3, 5))
    assert run("ledger", "diff", *folders)[0] == 3
    code, out, _ = run("ledger", "diff", *folders, "--json")
    assert (code, json.loads(out)["results"][0]["step"]) == (3, 1)


def test_a_ledger_that_is_broken_says_where(run: Run, tmp_path: Path) -> None:
    folder = Path(write(tmp_path / "a", (3, 4)))
    (file,) = folder.iterdir()
    file.write_text("nonsense\n" + file.read_text(encoding="utf-8"), encoding="utf-8")
    code, out, err = run("ledger", "show", str(folder))
    assert (code, out) == (2, "")
    assert "rank-00000.jsonl:1" in err
