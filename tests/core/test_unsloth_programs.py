"""Programs that import Unsloth: its defaults and what it rewrites, by its release, as its constructor does.

The rows are of the wheels' models/rl.py; `tests/adapters/unsloth/native` asks the constructor itself.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import batchbridge as bb
from batchbridge.contract.reading import Reading

HEAD = "from unsloth import FastLanguageModel\nfrom trl import GRPOConfig, GRPOTrainer\n"


def unsloth(folder: Path, said: str = "", release: str = "", trl: str | None = "1.15.0", head: str = HEAD) -> Reading:
    (folder / "train.py").write_text(f"{head}GRPOTrainer('m', [len], args=GRPOConfig({said})).train()\n")
    (folder / "requirements.txt").write_text(f"unsloth=={release}\n" if release else "\n")
    return bb.read(folder / "train.py", version=trl, world_size=1)


def codes(reading: Reading, severity: str = "error") -> set[str]:
    return {one.code for one in reading.findings if one.severity == severity}


def test_unsloth_fills_in_its_own_defaults(tmp_path: Path) -> None:
    reading = unsloth(tmp_path)
    assert reading.verdict == "valid"
    assert {key: reading.native[key] for key in ("per_device_train_batch_size", "gradient_accumulation_steps")} == {
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
    }
    assert reading.provenance["order.seed"].value == 3407
    assert reading.provenance["order.seed"].detail == "default of unsloth 2026.10.9"


SMALL = "per_device_train_batch_size=1, num_generations=6, gradient_accumulation_steps=1"
TWO = "per_device_train_batch_size=4, num_generations=8, gradient_accumulation_steps=2"


@pytest.mark.parametrize(
    ("release", "trl", "said", "micro"),
    [
        ("2026.10.9", "1.15.0", SMALL, 6),
        ("2026.10.9", "1.15.0", TWO, 4),  # the product divides
        ("2025.11.4", "0.24.0", TWO, 4),
        ("2025.11.3", "0.23.0", TWO, 8),  # the micro-batch alone has to
        ("2025.5.8", "0.18.0", TWO, 8),
        ("2025.5.7", "0.15.2", TWO, 8),  # by the text of TRL's own trainer
        ("2026.10.9", "1.15.0", f"{SMALL}, steps_per_generation=6", 1),
    ],
)
def test_unsloth_changes_a_batch_that_does_not_divide(
    tmp_path: Path, release: str, trl: str, said: str, micro: int
) -> None:
    reading = unsloth(tmp_path, said, release, trl)
    assert reading.verdict == "valid"
    assert reading.native["per_device_train_batch_size"] == micro
    changed = [one for one in reading.findings if one.code == "BB-TRL-096"]
    assert len(changed) == (micro not in (1, 4))
    assert all(str(one.native).startswith("Unsloth: We now expect `per_device_train") for one in changed)


def test_trl_refuses_what_unsloth_would_change(tmp_path: Path) -> None:
    reading = unsloth(tmp_path, SMALL, head="from trl import GRPOConfig, GRPOTrainer\n")
    assert codes(reading) == {"BB-TRL-021"}


@pytest.mark.parametrize(
    ("release", "trl", "said", "expected"),
    [
        ("2026.10.9", "1.15.0", "", {"loss_type": "dapo", "beta": 0.0, "mask_truncated_completions": False}),
        ("2026.10.9", "0.21.0", "", {"loss_type": "bnpo", "beta": 0.001, "weight_decay": 0.001}),
        ("2026.9.11", "0.24.0", "", {"loss_type": "bnpo", "beta": 0.001, "weight_decay": 0.001}),
        ("2026.5.6", "0.24.0", "", {"weight_decay": 0.01}),
        ("2025.8.10", "0.21.0", "", {"beta": 0.001, "auto_find_batch_size": True}),
        ("2025.6.4", "0.18.0", "", {"beta": 0.04}),
        ("2026.10.9", "1.15.0", "loss_type='bnpo'", {"beta": 0.001}),
        ("2026.10.9", "1.15.0", "loss_type='bnpo', beta=0.5", {"beta": 0.5}),
        ("2026.10.9", "1.15.0", "loss_type='dapo'", {"epsilon_high": 0.28, "mask_truncated_completions": True}),
        ("2026.10.9", "1.15.0", "loss_type='dapo', epsilon_high=0.3", {"epsilon_high": 0.3}),
        ("2026.9.11", "0.24.0", "loss_type='dapo', epsilon_high=0.3", {"epsilon_high": 0.28, "beta": 0.001}),
        ("2025.11.3", "0.23.0", "loss_type='dapo', beta=0.04", {"beta": 0.0, "loss_type": "dapo"}),
        ("2025.10.11", "0.23.0", "loss_type='dapo'", {"beta": 0.0, "loss_type": "bnpo"}),
        ("2026.10.9", "1.15.0", "loss_type='DR_GRPO'", {"loss_type": "dr_grpo", "scale_rewards": "none"}),
        ("2026.9.11", "0.24.0", "loss_type='dr_grpo'", {"scale_rewards": "group"}),
        ("2026.9.11", "0.24.0", "loss_type='dr_grpo', scale_rewards=True", {"scale_rewards": "none"}),
        ("2026.10.9", "1.15.0", "loss_type='dr_grpo', scale_rewards=None", {"scale_rewards": "group"}),
        ("2026.10.9", "1.15.0", "loss_type='cispo'", {"epsilon_high": 5.0}),
    ],
)
def test_what_the_loss_changes_is_read_by_release(
    tmp_path: Path, release: str, trl: str, said: str, expected: dict[str, Any]
) -> None:
    native = unsloth(tmp_path, said, release, trl).native
    scales = {True: "group", False: "none"}
    found = {key: native.get(key) for key in expected}
    assert {key: scales.get(one, one) if key == "scale_rewards" else one for key, one in found.items()} == expected


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (
            "loss_type='dapo', epsilon_high=0.3",
            "Unsloth changes epsilon_high = 0.3 to 0.28 with loss_type = dapo",
        ),
        (
            "loss_type='dr_grpo', scale_rewards=True",
            "Unsloth changes scale_rewards = True to False with loss_type = dr_grpo",
        ),
    ],
)
def test_a_setting_of_the_user_s_that_is_changed_is_said(tmp_path: Path, said: str, message: str) -> None:
    reading = unsloth(tmp_path, said, "2026.9.11", "0.24.0")
    assert message in [one.message for one in reading.findings if one.code == "BB-TRL-096"]


@pytest.mark.parametrize("release", ["2027.1.1", "2024.12.4", "2025.2.14"])
def test_a_release_that_is_not_known_is_undecided_by_name(tmp_path: Path, release: str) -> None:
    reading = unsloth(tmp_path, "", release)
    assert reading.verdict == "undecided"
    assert reading.spec is None
    assert f"the defaults of Unsloth {release} are not known" in " ".join(one.message for one in reading.wrong)


@pytest.mark.parametrize(("trl", "verdict"), [("0.19.1", "undecided"), ("0.20.0", "valid"), ("1.16.0", "undecided")])
def test_a_release_of_trl_that_unsloth_does_not_take_is_undecided(tmp_path: Path, trl: str, verdict: str) -> None:
    reading = unsloth(tmp_path, trl=trl)
    assert reading.verdict == verdict
    assert ("BB-TRL-100" in codes(reading)) == (verdict == "undecided")


def test_where_no_release_of_trl_is_named_those_that_unsloth_takes_are_judged(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(f"{HEAD}GRPOTrainer('m', [len], args=GRPOConfig()).train()\n")
    report = bb.check(tmp_path / "train.py", world_size=1)
    spans = report.to_dict()["releases"]
    assert (spans[0]["first"], spans[-1]["last"]) == ("0.20.0", "1.15.0")


@pytest.mark.parametrize(
    ("head", "seed", "verdict"),
    [
        ("from trl import GRPOConfig, GRPOTrainer\nimport unsloth\n", 42, "valid"),
        ("import trl\nimport unsloth\nGRPOConfig, GRPOTrainer = trl.GRPOConfig, trl.GRPOTrainer\n", 3407, "valid"),
        ("if fast:\n    import unsloth\nfrom trl import GRPOConfig, GRPOTrainer\n", 3407, "undecided"),
        ("from unsloth import PatchFastRL\nfrom trl import GRPOTrainer, GRPOConfig\n", 3407, "valid"),
    ],
)
def test_only_what_is_imported_before_the_class_replaces_it(tmp_path: Path, head: str, seed: int, verdict: str) -> None:
    reading = unsloth(tmp_path, head=head)
    assert (reading.native["seed"], reading.verdict) == (seed, verdict)
    assert ("BB-TRL-101" in codes(reading)) == (verdict == "undecided")


@pytest.mark.parametrize(("heat", "refused"), [(0.0, True), (0.5, False), (10, True)])
def test_a_temperature_that_unsloth_refuses_is_an_error(tmp_path: Path, heat: float, refused: bool) -> None:
    assert ("BB-TRL-102" in codes(unsloth(tmp_path, f"temperature={heat}"))) == refused


@pytest.mark.parametrize(
    ("release", "trl", "said", "message"),
    [
        ("2026.10.9", "1.15.0", "max_prompt_length=64", "Unsloth drops max_prompt_length = 64, which trl 1.15.0"),
        ("2026.10.9", "1.15.0", "max_seq_length=5", "Unsloth drops max_seq_length = 5, which trl 1.15.0"),
        ("2026.8.11", "0.24.0", "nonsense=1", "Unsloth drops nonsense = 1, which trl 0.24.0 does not take"),
        ("2026.8.10", "0.24.0", "nonsense=1", None),
        ("2026.10.9", "1.15.0", "wandb_log_unique_prompts=True", "Unsloth reads wandb_log_unique_prompts = True as"),
        (
            "2026.10.9",
            "1.15.0",
            "per_gpu_eval_batch_size=8",
            "Unsloth reads per_gpu_eval_batch_size = 8 as per_device",
        ),
        (
            "2026.10.9",
            "1.15.0",
            "per_gpu_eval_batch_size=8, per_device_eval_batch_size=16",
            "Unsloth drops per_gpu_eval_batch_size = 8, as per_device_eval_batch_size is given, too",
        ),
    ],
)
def test_what_trl_s_class_does_not_take_is_dropped_by_newer_releases(
    tmp_path: Path, release: str, trl: str, said: str, message: str | None
) -> None:
    reading = unsloth(tmp_path, said, release, trl)
    assert reading.verdict == ("invalid" if message is None else "valid")
    assert ("BB-TRL-003" in codes(reading)) == (message is None)
    assert message is None or any(one.message.startswith(message) for one in reading.findings)


def test_a_micro_batch_by_its_older_name_is_undecided(tmp_path: Path) -> None:
    """It counts where the micro-batch has its default after the sizes were rewritten."""
    reading = unsloth(tmp_path, "per_gpu_train_batch_size=8")
    assert (reading.verdict, codes(reading)) == ("undecided", {"BB-TRL-101"})


def test_a_renamed_setting_is_read_from_its_place(tmp_path: Path) -> None:
    assert unsloth(tmp_path, "per_gpu_eval_batch_size=8").given["per_device_eval_batch_size"].line == 3


@pytest.mark.parametrize(
    ("head", "obstacles"),
    [
        (HEAD, {"unsloth": False}),
        (
            "if fast:\n    import unsloth\nfrom trl import GRPOConfig, GRPOTrainer\n",
            {"trainer": False, "BB-TRL-101": False},
        ),
        ("from trl import GRPOConfig, GRPOTrainer\nimport unsloth\n", {"trainer": False}),
    ],
)
def test_check_says_before_a_run_whether_unsloth_s_trainer_is_refused(
    tmp_path: Path, head: str, obstacles: dict[str, bool]
) -> None:
    unsloth(tmp_path, "per_device_train_batch_size=8, gradient_accumulation_steps=1", head=head)
    said = bb.check(tmp_path / "train.py", version="1.15.0", world_size=1).to_dict()["enforcement"]
    assert {one["name"]: one["certain"] for one in said["obstacles"]} == obstacles


PARSED = """\
from unsloth import FastLanguageModel
from trl import GRPOConfig, GRPOTrainer, TrlParser

(args,) = TrlParser((GRPOConfig,)).parse_args_and_config()
trainer = GRPOTrainer(model="m", reward_funcs=[len], args=args)
trainer.train()
"""


def test_what_trl_s_parser_hands_unsloth_has_trl_s_defaults_and_is_rewritten(tmp_path: Path) -> None:
    """As trl 1.15.0's TrlParser and Unsloth 2026.10.9 were seen to do."""
    (tmp_path / "train.py").write_text(PARSED)
    (tmp_path / "recipe.yaml").write_text(
        "per_device_train_batch_size: 1\ngradient_accumulation_steps: 1\nnum_generations: 6\noutput_dir: o\n"
    )
    (tmp_path / "run.sh").write_text("python train.py --config recipe.yaml\n")
    reading = bb.read(tmp_path / "run.sh", version="1.15.0", world_size=1)
    read = {key: reading.native[key] for key in ("per_device_train_batch_size", "seed", "epsilon_high", "beta")}
    assert read == {"per_device_train_batch_size": 6, "seed": 42, "epsilon_high": 0.28, "beta": 0.0}
    assert reading.native["mask_truncated_completions"] is False
    assert (reading.verdict, codes(reading, "warning")) == ("valid", {"BB-TRL-096"})
