"""Keys of services that stand in a configuration are in no output: not in texts, not in JSON, not in a new file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from batchbridge.render.secrets import MASKED, masked, without_secrets

KEY = "0123456789abcdef0123456789abcdef01234567"
SCRIPT = f"""python3 -m openrlhf.cli.train_ppo_ray --pretrain m --prompt_data a/b --remote_rm_url r \\
  --actor_num_nodes 1 \\
  --actor_num_gpus_per_node 8 --vllm_num_engines 2 --rollout_batch_size 128 --train_batch_size 128 \\
  --n_samples_per_prompt 8 --advantage_estimator group_norm --use_wandb {KEY}
"""
VERL = f"""python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_batch_size=128 trainer.nnodes=1 \\
  actor_rollout_ref.actor.ppo_mini_batch_size=64 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 \\
  actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4 actor_rollout_ref.rollout.name=vllm \\
  actor_rollout_ref.rollout.n=8 trainer.n_gpus_per_node=8 +trainer.wandb_api_key={KEY} trainer.hf_token=hf_{KEY}
"""
Run = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize(("text", "version"), [(SCRIPT, "0.8.0"), (VERL, "0.8.0")])
@pytest.mark.parametrize("form", [(), ("--json",), ("-v",)])
def test_no_output_has_a_key(text: str, version: str, form: tuple[str, ...], tmp_path: Path, run: Run) -> None:
    file = tmp_path / "run.sh"
    file.write_text(text, encoding="utf-8")
    given = (str(file), "--framework-version", version, *form)
    calls = [
        ("check", *given),
        ("explain", *given),
        ("convert", *given, "--to", "trl", "--allow-lossy", "--dataset-size", "40960", "--dry-run"),
        ("diff", *given, "--set-b", "trainer.x=1"),
    ]
    for call in calls:
        _, out, err = run(*call)
        assert KEY not in out + err, call


def test_what_only_looks_alike_is_shown() -> None:
    same = ("data.prompt_key = question", "max_token = 16384", "project = my-first-run-2026", "tokens: 128")
    for text in (*same, "data.input_key = problem_statement_v2_long", "label_key = answers/level_5/2024-11-28"):
        assert without_secrets(text) == text
    assert masked({"data.input_key": "problem_statement_v2_long"}) == {"data.input_key": "problem_statement_v2_long"}
    assert masked({"prompt_key": "question", "seed": 7}) == {"prompt_key": "question", "seed": 7}


def test_a_key_is_hidden_by_the_name_before_it() -> None:
    assert (
        without_secrets(f"  +trainer.wandb_api_key = {KEY}, seed = 7")
        == f"  +trainer.wandb_api_key = {MASKED}, seed = 7"
    )
    for one in (
        "hf_AbCdEfGhIjKlMnOpQrStUvWxYz01234567",
        "sk-proj-a1B2c3D4e5F6g7H8i9J0",
        "0f9e8d7c6b5a49382716fedcba987654",
    ):
        assert without_secrets(f"api_key = {one}") == f"api_key = {MASKED}"
    assert masked({"key": "use_wandb", "value": KEY}) == {"key": "use_wandb", "value": MASKED}
    assert masked({"left_behind": {"hf_token": KEY}}) == {"left_behind": {"hf_token": MASKED}}
