"""Files that look like a run and are somebody else's are skipped by name; what trains and is not read is said."""

from __future__ import annotations

from pathlib import Path

import pytest

import batchbridge
from batchbridge.cli import _folder
from batchbridge.meaning.findings import LOOKS_LIKE_TRAINING
from batchbridge.reading.foreign_files import foreign_file
from batchbridge.reading.looks import starts_training, trains_by_rewards

TRL = "num_generations: 8\nper_device_train_batch_size: 8\n"


@pytest.mark.parametrize(
    ("text", "code", "what"),
    [
        ("stage: dpo\nfinetuning_type: lora\nlearning_rate: 1.0e-5\n", "BB020", "LLaMA-Factory's (dpo)"),
        ("stage: ppo\nfinetuning_type: lora\n", LOOKS_LIKE_TRAINING, "LLaMA-Factory's (ppo)"),
        ("actor_train: {}\nactor_infer: {}\nrollout_batch_size: 8\ninit_kl_coef: 0\n", LOOKS_LIKE_TRAINING, "ROLL's"),
        ("base_model: m\nrl: grpo\ntrl: {num_generations: 8}\n", LOOKS_LIKE_TRAINING, "axolotl's (grpo)"),
        ("program: t.py\nmethod: grid\nparameters: {num_generations: {values: [8]}}\n", "BB020", "a sweep of W&B's"),
        (
            "dataset_mixer: {a: 1}\nbeta: 0.1\ntokenizer_name_or_path: m\nlearning_rate: 1.0e-5\n"
            "max_prompt_length: 512\nper_device_train_batch_size: 8\nnum_train_epochs: 1\n",
            "BB020",
            "the alignment handbook's",
        ),
        ("tasks: [a]\nmodel_args: m\n", "BB020", "an evaluation"),
        (f"defaults: [base, _self_]\n{TRL}max_completion_length: 9\n", "BB020", "a part of a Hydra configuration"),
    ],
)
def test_it_is_named_and_not_judged(tmp_path: Path, text: str, code: str, what: str) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(text, encoding="utf-8")
    reading = batchbridge.read(file, world_size=8)
    assert [one.code for one in reading.findings] == [code]
    assert what in reading.findings[0].message
    assert (reading.verdict, reading.framework) == ("undecided", "unknown")


@pytest.mark.parametrize(
    ("text", "framework"),
    [
        (TRL, "trl"),
        ("num_generations: 8\nlearning_rate: 0.1\n", "unknown"),
        ("zero_stage: 3\ntrain_batch_size: 64\nmax_epochs: 2\n", "unknown"),
        ("train: {batch_size: 8, seed: 1}\ndata: {max_len: 4}\n", "unknown"),
        ("worker: {replicas: 2}\n", "unknown"),
        ("per_device_train_batch_size: 8\nbeta: 0.1\nlearning_rate: 1.0e-6\nloss_type: x\nmax_steps: 4\n", "unknown"),
        (f"{TRL}system_prompt: think\n", "open_r1"),
    ],
)
def test_two_keys_that_only_it_has_claim_a_file(tmp_path: Path, text: str, framework: str) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(text, encoding="utf-8")
    assert batchbridge.read(file, world_size=8).framework == framework


def test_several_documents_are_told_and_what_the_first_is_counts(tmp_path: Path) -> None:
    file = tmp_path / "service.yaml"
    file.write_text("apiVersion: v1\nkind: Service\n---\napiVersion: v1\nkind: Pod\n", encoding="utf-8")
    reading = batchbridge.read(file)
    assert [(one.code, [place.line for place in one.where]) for one in reading.findings] == [
        ("BB004", [3]),
        ("BB020", []),
    ]
    assert "Kubernetes'" in reading.findings[1].message
    file.write_text(f"{TRL}---\nseed: 1\n", encoding="utf-8")
    recipe = batchbridge.read(file, world_size=8)
    assert (recipe.framework, recipe.verdict) == ("trl", "invalid")
    assert [(one.code, one.where[0].line) for one in recipe.findings if one.severity == "error"] == [("BB004", 3)]


def test_a_recipe_is_no_foreign_file() -> None:
    assert foreign_file({"num_generations": 8, "beta": 0.0, "loss_type": "dapo"}) is None


def test_a_loop_of_ones_own_looks_like_training() -> None:
    loop = "def grpo_loss(advantages):\n  return policy_loss(advantages)\nloss = grpo_loss(advantage)\n"
    loop += "loss.backward()\noptimizer.step()\n"
    assert trains_by_rewards(loop)
    assert trains_by_rewards("trainer = WordleGRPOTrainer(model)\n")
    assert not trains_by_rewards("class MyGRPOTrainer(Trainer):\n    pass\n")
    assert not trains_by_rewards("loss = mse(x)\nloss.backward()\noptimizer.step()\n")


_LOOP = """
for step in range(100):
    out = model.generate(**batch, num_return_sequences=8)
    rewards = score(out).view(-1, 8)
    adv = rewards - rewards.mean(1, keepdim=True)
    logp = model(out).logits.log_softmax(-1).gather(-1, out[..., None]).squeeze(-1)
    loss = -(adv.view(-1, 1) * logp).mean()
    loss.backward()
    optimizer.step()
"""
"""A loop that names no method: it samples, and rewards weigh log-probabilities."""


@pytest.mark.parametrize(
    ("part", "without"),
    [
        ("", ""),
        ("rewards", "scores"),
        ("adv", "margin"),
        ("logp", "scores_of"),
        (".generate(", ".forward("),
        ("loss.backward()", ""),
    ],
)
def test_a_loop_without_a_methods_name_looks_like_training_by_its_parts(part: str, without: str) -> None:
    text = _LOOP.replace(part, without) if part else _LOOP
    text = text.replace(".log_softmax(-1)", "") if part == "logp" else text
    assert trains_by_rewards(text) == (not part)


def test_commands_that_look_like_training() -> None:
    assert starts_training(["python3", "scripts/run_sage_grpo.py", "--seed", "1"])
    assert starts_training(["torchrun", "train.py", "--num-generations", "8"])
    assert not starts_training(["python", "merge_grpo_for_vllm.py", "--x", "1"])
    assert not starts_training(["grep", "grpo", "train.py"])
    assert not starts_training(["python", "-c", "from train_grpo import reward"])


def test_a_folder_says_first_what_was_not_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from batchbridge.cli.main import main

    (tmp_path / "own.sh").write_text("python train_grpo.py --lr 1\n", encoding="utf-8")
    (tmp_path / "own.py").write_text("WordleGRPOTrainer(model).train()\n", encoding="utf-8")
    (tmp_path / "open.yaml").write_text(TRL, encoding="utf-8")
    (tmp_path / "sweep.yaml").write_text("program: t.py\nmethod: grid\nparameters: {}\n", encoding="utf-8")
    (tmp_path / "test_own.py").write_text("WordleGRPOTrainer(model).train()\n", encoding="utf-8")
    assert main(("check", str(tmp_path))) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "2 trainers not read, 1 run undecided"
    assert out[-1] == "4 files: 1 undecided, 2 not read, 1 skipped"
    for least, code in (("error", 0), ("unread", 4), ("undecided", 4)):
        assert main(("check", str(tmp_path), "--fail-on", least)) == code
    capsys.readouterr()
    assert main(("check", str(tmp_path), "--output-format", "github")) == 0
    first = "::warning title=BatchBridge::2 trainers not read, 1 run undecided"
    assert capsys.readouterr().out.splitlines()[0] == first
    assert main(("check", str(tmp_path / "own.py"))) == 4
    assert "NOT READ" in capsys.readouterr().out
    assert _folder.open_ones([]) == ""


_COMMAND = (
    "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_batch_size=64 "
    "actor_rollout_ref.rollout.name=vllm actor_rollout_ref.actor.use_dynamic_bsz=True "
    "actor_rollout_ref.actor.ppo_mini_batch_size=32 actor_rollout_ref.rollout.n="
)
_SKY = """resources: {{accelerators: H100:4}}
num_nodes: 2
envs: {{N: 8, KEY: null}}
run: |
  set -x
  if [ "$SKYPILOT_NODE_RANK" == "0" ]; then
    {command}$N \\
      trainer.nnodes=$SKYPILOT_NUM_NODES trainer.n_gpus_per_node=$SKYPILOT_NUM_GPUS_PER_NODE
  fi
"""
_DSTACK = """type: task
nodes: 2
env: [N=8, KEY]
commands:
  - pip install verl
  - {command}$N trainer.nnodes=$DSTACK_NODES_NUM trainer.n_gpus_per_node=$(nvidia-smi -L | wc -l)
resources: {{gpu: 80GB:4}}
"""


@pytest.mark.parametrize(("text", "line"), [(_SKY, 7), (_DSTACK, 6)])
def test_the_launch_inside_a_task_is_read_with_its_lines(tmp_path: Path, text: str, line: int) -> None:
    file = tmp_path / "task.yaml"
    file.write_text(text.format(command=_COMMAND), encoding="utf-8")
    reading = batchbridge.read(file, version="0.9.1")
    assert reading.spec is not None, reading.findings
    assert (reading.verdict, reading.spec.topology.world_size) == ("valid", 8)
    assert reading.spec.rollout.completions_per_prompt == 8
    assert reading.provenance["rollout.completions_per_prompt"].line == line
    asked = batchbridge.read(file, version="0.9.1", env={"N": "4"})
    assert asked.spec is not None
    assert asked.spec.rollout.completions_per_prompt == 4


@pytest.mark.parametrize(
    "text",
    ["resources: {}\nrun: echo hello\n", "type: task\ncommands: [python serve.py]\n", "type: task\ncommands: 4\n"],
)
def test_a_task_that_trains_nothing_is_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / "task.yaml"
    file.write_text(text, encoding="utf-8")
    (found,) = batchbridge.read(file).findings
    assert (found.code, "it is a task of" in found.message) == ("BB020", True)


def test_an_unknown_variable_of_a_task_stays_one(tmp_path: Path) -> None:
    """It is given at the start: `sky launch --env KEY=...`."""
    file = tmp_path / "task.yaml"
    file.write_text(_SKY.format(command=_COMMAND).replace("$N ", "$KEY "), encoding="utf-8")
    reading = batchbridge.read(file, version="0.9.1")
    assert (reading.verdict, reading.spec) == ("undecided", None)
