"""Comparisons of real configurations: of two frameworks, and of one framework in two versions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from registered import adapters

from batchbridge.cli.main import main
from batchbridge.comparing.comparison import Comparison
from batchbridge.comparing.diff_sources import diff
from batchbridge.contract.reading import Context, Reading, Source
from batchbridge.reading.read import read_source

TRL = {"num_generations": 8, "per_device_train_batch_size": 8, "gradient_accumulation_steps": 4}
EASYR1 = {
    "data.rollout_batch_size": 512,
    "worker.actor.global_batch_size": 128,
    "worker.rollout.n": 5,
    "trainer.n_gpus_per_node": 8,
}
VERL = {
    "algorithm.adv_estimator": "grpo",
    "data.train_batch_size": 64,
    "actor_rollout_ref.actor.ppo_mini_batch_size": 16,
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 2,
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": 2,
    "actor_rollout_ref.rollout.name": "vllm",
    "actor_rollout_ref.rollout.n": 8,
    "trainer.n_gpus_per_node": 8,
}
FLAT = {
    "train_batch_size": 128,
    "rollout_batch_size": 128,
    "micro_train_batch_size": 4,
    "n_samples_per_prompt": 8,
    "actor_num_gpus_per_node": 8,
    "advantage_estimator": "group_norm",
    "init_kl_coef": 0.001,
}
DOTTED = {
    "train.batch_size": 128,
    "rollout.batch_size": 128,
    "train.micro_batch_size": 4,
    "rollout.n_samples_per_prompt": 8,
    "actor.num_gpus_per_node": 8,
    "algo.advantage.estimator": "group_norm",
    "algo.kl.init_coef": 0.001,
}


def read(framework: str, version: str, values: dict[str, Any], dataset_size: int | None = None) -> Reading:
    context = Context(framework_version=version, world_size=8, dataset_size=dataset_size)
    reading = read_source(Source(values=values), adapters()[framework], context)
    assert reading.verdict == "valid", reading.findings
    return reading


def compare(framework: str, one: tuple[str, dict[str, Any]], other: tuple[str, dict[str, Any]]) -> Comparison:
    return diff(read(framework, *one), read(framework, *other))


def fields(found: Comparison) -> list[str]:
    return [difference.field for difference in found.differences]


def test_a_default_that_changed_between_versions_is_a_difference() -> None:
    found = compare("trl", ("1.9.1", TRL), ("1.16.0", TRL))
    assert fields(found) == ["carried.max_completion_tokens"]
    (length,) = found.differences
    assert (length.a, length.b) == (256, 512)
    assert length.from_a == "max_completion_length = 256 (default of trl 1.9.1)"


def test_a_default_that_became_the_models_own_cannot_be_told() -> None:
    found = compare("trl", ("1.9.1", TRL), ("1.16.0", TRL))
    assert [field.field for field in found.cannot_tell] == ["carried.router_loss_coefficient"]


def test_the_same_settings_with_lengths_said_are_equivalent_in_two_versions_of_trl() -> None:
    said = {**TRL, "max_completion_length": 512}
    found = compare("trl", ("1.14.0", said), ("1.16.0", said))
    assert (found.verdict, fields(found)) == ("equivalent", [])


def test_dapo_before_1_9_1_divides_by_something_else_though_the_specifications_agree() -> None:
    found = compare("trl", ("1.9.0", TRL), ("1.9.1", TRL))
    assert "native.denominator_formula" in fields(found)
    assert found.verdict == "not equivalent"


def test_easyr1s_seq_turned_round_in_0_3_2() -> None:
    seq = {**EASYR1, "worker.actor.loss_avg_mode": "seq"}
    found = compare("easyr1", ("0.3.1", seq), ("0.3.2", seq))
    assert found.differences[0].field == "native.denominator_scope"
    assert (found.differences[0].a, found.differences[0].b) != (None, None)
    assert "native.defect.BB-EZR1-023" in fields(found)
    assert found.verdict == "not equivalent"


def test_a_defect_that_both_versions_have_is_no_difference_in_other_spelling() -> None:
    found = compare("openrlhf", ("0.10.1", FLAT), ("0.10.2", DOTTED))
    assert found.a.behaviour is not None
    assert found.a.behaviour.defects
    assert (found.verdict, fields(found)) == ("equivalent", [])


def test_a_defect_of_one_setting_counts_where_the_other_run_has_it_not() -> None:
    plain = read("easyr1", "0.3.2", {**EASYR1, "worker.actor.loss_avg_mode": "token"})
    seq = read("easyr1", "0.3.2", {**EASYR1, "worker.actor.loss_avg_mode": "seq"})
    assert "native.defect.BB-EZR1-023" in fields(diff(plain, seq))


@pytest.mark.parametrize(
    ("framework", "version", "values", "gspo"),
    [
        ("trl", "1.16.0", TRL, {"importance_sampling_level": "sequence"}),
        ("open_r1", "1.16.0", TRL, {"importance_sampling_level": "sequence"}),
        ("verl", "0.9.1", VERL, {"actor_rollout_ref.actor.policy_loss.loss_mode": "gspo"}),
        ("easyr1", "0.3.3.dev0", EASYR1, {"worker.actor.loss_type": "gspo"}),
        ("openrlhf", "0.11.2", DOTTED, {"actor.policy_loss_type": "gspo"}),
    ],
)
def test_gspo_is_the_same_thing_in_every_framework(
    framework: str, version: str, values: dict[str, Any], gspo: dict[str, Any]
) -> None:
    reading = read(framework, version, {**values, **gspo})
    assert reading.spec is not None
    assert (reading.spec.objective.surrogate, reading.spec.objective.ratio_level) == ("ppo", "sequence")


def test_gspo_differs_from_grpo_in_the_level_of_the_ratio() -> None:
    found = compare("trl", ("1.16.0", TRL), ("1.16.0", {**TRL, "importance_sampling_level": "sequence"}))
    assert fields(found) == ["objective.ratio_level"]


def test_plan_comes_before_weights_before_objective_before_carried_in_two_frameworks() -> None:
    found = diff(read("trl", "1.16.0", TRL), read("verl", "0.9.1", VERL))
    aspects = [one.aspect for one in found.differences if one.aspect != "native"]
    order = ["plan", "weights", "clock", "objective", "carried", "order"]
    assert aspects == sorted(aspects, key=order.index)
    assert {"plan", "weights", "objective", "carried"} <= set(aspects)


def test_a_number_of_steps_and_epochs_are_compared_with_the_dataset() -> None:
    steps, epochs = {**TRL, "max_steps": 100}, {**TRL, "num_train_epochs": 2}
    one, other = (read("trl", "1.16.0", values, dataset_size=1600) for values in (steps, epochs))
    assert diff(one, other).verdict == "equivalent"


# ---- the command


@pytest.fixture
def shell(
    own_adapters: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Any:
    """Runs the command line with all adapters registered: (exit code, standard output)."""
    monkeypatch.chdir(tmp_path)
    Path("recipe.yaml").write_text("".join(f"{key}: {value}\n" for key, value in TRL.items()), encoding="utf-8")
    flags = " ".join(f"--{key} {value}" for key, value in FLAT.items())
    dotted = " ".join(f"--{key} {value}" for key, value in DOTTED.items())
    Path("flat.sh").write_text(f"python3 -m openrlhf.cli.train_ppo_ray {flags}\n", encoding="utf-8")
    Path("dotted.sh").write_text(f"python3 -m openrlhf.cli.train_ppo_ray {dotted}\n", encoding="utf-8")

    def run(*arguments: str) -> tuple[int, str]:
        code = main(arguments)
        return code, capsys.readouterr().out

    return run


def test_one_file_in_two_versions_is_exit_code_3_where_they_differ(shell: Any) -> None:
    versions = ("--framework", "trl", "--version-a", "1.9.1", "--version-b", "1.16.0", "--world-size", "8")
    code, out = shell("diff", "recipe.yaml", *versions)
    assert code == 3
    assert "carried.max_completion_tokens: 256 | 512 tokens" in out


def test_two_spellings_of_one_run_are_exit_code_0(shell: Any) -> None:
    code, out = shell("diff", "flat.sh", "dotted.sh", "--version-a", "0.10.1", "--version-b", "0.10.2")
    assert (code, "equivalent" in out) == (0, True)


def test_known_defects_are_in_the_json(shell: Any) -> None:
    code, out = shell(
        "diff",
        "recipe.yaml",
        "flat.sh",
        "--version-a",
        "1.16.0",
        "--version-b",
        "0.10.1",
        "--world-size-a",
        "8",
        "--json",
    )
    (shown,) = json.loads(out)["results"]
    assert (code, shown["verdict"]) == (3, "not equivalent")
    assert any(row["field"].startswith("native.defect.BB-ORL-") for row in shown["differences"])
    assert {"field", "aspect", "unit", "a", "b", "kind", "reason", "from_a", "from_b"} == set(shown["differences"][0])
