"""Sizes are shown beside settings that are open where none of them decides a size, and never where one does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import batchbridge

TRL = {"num_generations": 8, "per_device_train_batch_size": 8, "learning_rate": 1e-6}
VERL = """python3 -m verl.trainer.main_ppo algorithm.adv_estimator=ESTIMATOR data.train_batch_size=64 \\
  actor_rollout_ref.rollout.n=8 actor_rollout_ref.actor.ppo_mini_batch_size=MINI \\
  actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1 \\
  actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1 \\
  actor_rollout_ref.rollout.name=vllm actor_rollout_ref.actor.use_dynamic_bsz=DYNAMIC trainer.n_gpus_per_node=8
"""
OPENRLHF = """python3 -m openrlhf.cli.train_ppo_ray --pretrain m --prompt_data d --actor_num_nodes 1 \\
  --actor_num_gpus_per_node 4 --rollout_batch_size 64 --n_samples_per_prompt 8 --train_batch_size 512 \\
  --micro_train_batch_size 2 --advantage_estimator mine --my_own_flag 3
"""


def checked(folder: Path, text: str, version: str | None, **words: str) -> batchbridge.Check:
    """The check of a launch script with these words in the place of its names."""
    for name, word in words.items():
        text = text.replace(name, word)
    (folder / "run.sh").write_text(text, encoding="utf-8")
    return batchbridge.check(str(folder / "run.sh"), version=version, world_size=None)


def sizes(check: batchbridge.Check) -> tuple[Any, ...] | None:
    """The sizes beside open settings, and these settings."""
    said = check.to_dict().get("sizes_beside_open")
    if said is None:
        return None
    keys = said.pop("open_keys")
    return tuple(keys), tuple(said.values())


def test_an_estimator_that_a_fork_registers_hides_no_sizes(tmp_path: Path) -> None:
    check = checked(tmp_path, VERL, "0.7.1", ESTIMATOR="psr_nsr", MINI="16", DYNAMIC="False")
    assert check.verdict == "undecided"
    assert check.reading.spec is None  # no verdict, difference or conversion rests on them
    assert sizes(check) == (("algorithm.adv_estimator",), (8, 64, 8, 128))
    text = str(check)
    assert "64 prompts x 8 = 512 completions per rollout; 4 optimizer steps of 128 completions" in text
    assert "so counted, and right if algorithm.adv_estimator, which is open here, changes no sizes" in text


def test_an_unknown_variable_behind_a_switch_hides_no_sizes(tmp_path: Path) -> None:
    check = checked(tmp_path, VERL, "0.7.1", ESTIMATOR="grpo", MINI="16", DYNAMIC="$DYNAMIC")
    assert sizes(check) == (("actor_rollout_ref.actor.use_dynamic_bsz",), (8, 64, 8, 128))


def test_what_decides_a_size_is_not_replaced(tmp_path: Path) -> None:
    check = checked(tmp_path, VERL, "0.7.1", ESTIMATOR="grpo", MINI="$MINI", DYNAMIC="False")
    assert check.verdict == "undecided"
    assert sizes(check) is None
    assert "per rollout" not in str(check)


def test_a_size_and_another_setting_that_are_open_show_nothing(tmp_path: Path) -> None:
    check = checked(tmp_path, VERL, "0.7.1", ESTIMATOR="psr_nsr", MINI="$MINI", DYNAMIC="False")
    assert sizes(check) is None


def test_a_certain_error_shows_nothing(tmp_path: Path) -> None:
    wrong = VERL.replace("rollout.name=vllm", "rollout.nmae=vllm")
    check = checked(tmp_path, wrong, "0.7.1", ESTIMATOR="psr_nsr", MINI="16", DYNAMIC="False")
    assert check.verdict == "invalid"
    assert sizes(check) is None


def test_a_switch_that_changes_a_size_shows_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Both values of a switch are asked: sizes may differ by it though no field says that it comes from it."""
    from batchbridge.comparing import beside_open

    told = beside_open.read

    def doubled(source: Any, **said: Any) -> batchbridge.Reading:
        reading = told(source, **said)
        if reading.spec is None or not reading.native["actor_rollout_ref.actor.use_dynamic_bsz"]:
            return reading
        from dataclasses import replace

        return replace(reading, spec=reading.spec.replace(**{"rollout.completions_per_prompt": 16}))

    monkeypatch.setattr(beside_open, "read", doubled)
    assert sizes(checked(tmp_path, VERL, "0.7.1", ESTIMATOR="grpo", MINI="16", DYNAMIC="$DYNAMIC")) is None


def test_a_word_of_a_command_line_is_left_out(tmp_path: Path) -> None:
    """OpenRLHF says no default without a command: the option is read as if it were not given."""
    check = checked(tmp_path, OPENRLHF, None)
    assert sizes(check) == (("advantage_estimator",), (4, 64, 8, 512))
    assert "right if advantage_estimator, which is open here" in str(check)


def test_a_value_that_only_the_program_decides_hides_no_sizes(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(
        "import os\nfrom trl import GRPOConfig, GRPOTrainer\n"
        "config = GRPOConfig(num_generations=8, per_device_train_batch_size=8, max_completion_length=longest(data),\n"
        "    dataloader_num_workers=os.cpu_count())\n"
        "GRPOTrainer(model='m', reward_funcs=[len], args=config).train()\n",
        encoding="utf-8",
    )
    check = batchbridge.check(str(program), version="1.16.0", world_size=2)
    found = sizes(check)
    assert found is not None
    assert set(found[0]) == {"max_completion_length", "dataloader_num_workers"}
    assert found[1] == (2, 2, 8, 16)


def test_a_configuration_that_is_read_has_no_such_sizes() -> None:
    check = batchbridge.check(TRL, framework="trl", version="1.16.0", world_size=2)
    assert check.verdict == "valid"
    assert sizes(check) is None


def test_a_group_whose_file_is_not_here_hides_the_sizes_that_it_may_say(tmp_path: Path) -> None:
    """A fork's `data/mine.yaml` may have another batch; one that the command says wins over it."""
    named = {"ESTIMATOR": "grpo data=mine", "MINI": "16", "DYNAMIC": "False"}
    check = checked(tmp_path, VERL, "0.9.1", **named)
    assert (check.verdict, sizes(check)) == ("undecided", (("data",), (8, 64, 8, 128)))
    silent = checked(tmp_path, VERL.replace("data.train_batch_size=64", ""), "0.9.1", **named)
    assert (silent.verdict, sizes(silent)) == ("undecided", None)
