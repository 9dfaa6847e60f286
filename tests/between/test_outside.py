"""Settings that the schema has no field for: two runs of one framework that differ in them are not said to agree."""

from __future__ import annotations

from typing import Any

import pytest
from real import DATASET, VERSIONS, text_of

from batchbridge import Reading, convert, read
from batchbridge.comparing.differences import compare, outside_of
from batchbridge.render.between import comparison

RUNS = {
    "trl": ("model_name_or_path", "dataset_name", "reward_funcs", "output_dir"),
    "open_r1": ("model_name_or_path", "dataset_name", "reward_funcs", "output_dir"),
    "verl": (
        *("actor_rollout_ref.model.path", "data.train_files", "reward.custom_reward_function.path"),
        "trainer.experiment_name",
    ),
    "easyr1": (
        *("worker.actor.model.model_path", "data.train_files", "worker.reward.reward_function"),
        "trainer.experiment_name",
    ),
    "openrlhf": ("actor.model_name_or_path", "data.prompt_dataset", "reward.remote_url", "logger.wandb.run_name"),
    "open_instruct": ("model_name_or_path", "dataset_mixer_list", "verification_reward", "exp_name"),
}
"""By framework: keys of the model, of the prompts, of the rewards, and one that decides nothing."""
DECIDES = ("the model", "the prompts", "the rewards")


def reading(framework: str, said: dict[str, Any]) -> Reading:
    version = VERSIONS[framework]
    if framework in ("trl", "open_r1"):
        sizes = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1, "num_generations": 8}
        return read({**sizes, **said}, framework=framework, version=version, world_size=8, dataset_size=DATASET)
    words = text_of(framework).replace("\\\n", " ").replace('"$@"', "").replace("$GPUS", "8").split()
    words = words[words.index("python" if "python" in words else "python3") :]
    for key, value in said.items():
        words += [f"--{key}", str(value)] if any(word.startswith("--") for word in words) else [f"{key}={value}"]
    return read(words, framework=framework, version=version, dataset_size=DATASET)


@pytest.mark.parametrize("framework", RUNS)
def test_runs_of_another_model_data_or_reward_are_not_equivalent(framework: str) -> None:
    *keys, idle = RUNS[framework]
    for key, what in zip(keys, DECIDES, strict=True):
        one, other = (reading(framework, {key: value, idle: value}) for value in ("1", "2"))
        found = compare(one, other)
        assert found.verdict == "not equivalent", comparison(("a", "b"), found)
        assert [(each.field, each.reason) for each in found.differences] == [
            (f"outside.{key}", f"the schema has no field for it; it decides {what}")
        ]
        assert "same batches, but not the same run: 1 difference outside the schema" in comparison(("a", "b"), found)


@pytest.mark.parametrize("framework", RUNS)
def test_names_and_logs_of_a_run_are_no_difference(framework: str) -> None:
    idle = RUNS[framework][-1]
    assert compare(*(reading(framework, {idle: value}) for value in ("1", "2"))).verdict == "equivalent"


@pytest.mark.parametrize(
    ("framework", "key", "values"),
    [
        ("trl", "dtype", ("float32", "bfloat16")),
        ("trl", "model_init_kwargs", ({"dtype": "float32"}, {"dtype": "bfloat16"})),
        ("trl", "cast_lm_head_to_fp32", (False, True)),
        ("verl", "data.train_max_samples", ("64", "128")),
        ("verl", "data.filter_overlong_prompts", ("True", "False")),
        ("easyr1", "data.filter_overlong_prompts", ("true", "false")),
        ("openrlhf", "algo.kl.target", ("1", "2")),
        ("openrlhf", "critic.freezing_steps", ("1", "2")),
        ("openrlhf", "actor.muon.momentum", ("0.9", "0.5")),
    ],
)
def test_what_an_adapter_reads_and_no_field_says_is_no_agreement(framework: str, key: str, values: Any) -> None:
    found = compare(*(reading(framework, {key: value}) for value in values))
    assert f"outside.{key}" in [each.field for each in found.differences]
    left = convert(
        reading(framework, {key: values[1]}), "verl" if framework == "trl" else "trl", given={key: values[1]}
    )
    assert [report.matters for report in left.outside if report.keys and report.keys[0].startswith(key)] == [True]


@pytest.mark.parametrize("key", ["gamma", "lam", "vf_coef", "cliprange_value"])
def test_what_open_instructs_ppo_script_tells_its_critic_is_no_agreement(key: str) -> None:
    command = [
        "python",
        "ppo_vllm_thread_ray_gtrl.py",
        "--actor_num_gpus_per_node",
        "4",
        "--local_rollout_batch_size",
        "8",
    ]
    one, other, again = (
        read([*command, f"--{key}", value], framework="open_instruct", version="2025.11.3")
        for value in ("0.25", "0.5", "0.5")
    )
    assert [each.field for each in compare(one, other).differences] == [f"outside.{key}"]
    assert compare(other, again).differences == ()


@pytest.mark.parametrize(("workers", "differs"), [(("0", "8"), ["native.order"]), (("4", "8"), [])])
def test_workers_that_draw_another_order_of_the_prompts_are_a_difference(workers: Any, differs: list[str]) -> None:
    found = compare(*(reading("verl", {"data.dataloader_num_workers": number}) for number in workers))
    assert [each.field for each in found.differences] == differs


def test_a_default_that_is_given_is_no_difference() -> None:
    said: dict[str, Any] = {"reward_weights": None, "model_name_or_path": "m"}
    assert compare(reading("trl", said), reading("trl", {"model_name_or_path": "m"})).verdict == "equivalent"


def test_a_setting_that_nobody_knows_leaves_it_open() -> None:
    one, other = (reading("verl", {"actor_rollout_ref.rollout.max_model_len": value}) for value in (2048, 4096))
    assert compare(one, other).verdict == "undecided"
    assert compare(one, one).verdict == "equivalent"


@pytest.mark.parametrize(("model", "differs"), [("m", []), ("other", ["outside.model"])])
def test_between_frameworks_what_both_have_a_word_for_is_compared(model: str, differs: list[str]) -> None:
    one = reading("trl", {"model_name_or_path": "m", "output_dir": "x"})
    other = reading("verl", {"actor_rollout_ref.model.path": model, "trainer.default_local_dir": "y"})
    found = compare(one, other)
    outside = [each for each in found.differences if each.aspect == "outside"]
    assert [each.field for each in outside] == differs
    assert [(each.a, each.b) for each in outside] == [("m", model)] * len(differs)
    assert found.not_compared == ((), ())


def test_between_frameworks_what_is_not_compared_is_named() -> None:
    one = reading("trl", {"model_name_or_path": "m", "lora_r": 8})
    other = reading("verl", {"actor_rollout_ref.model.path": "m", "data.train_files": "d.parquet"})
    found = compare(one, other)
    assert found.not_compared == (("lora_r",), ("data.train_files",))
    assert "settings outside the schema, not compared, A:\n  lora_r\n" in comparison(("a", "b"), found)


def test_a_long_value_is_cut() -> None:
    one, other = (reading("trl", {"system_prompt": letter * 500}) for letter in "ab")
    lines = comparison(("a", "b"), compare(one, other)).splitlines()
    assert f"  1  outside    outside.system_prompt: {'a' * 57}... | {'b' * 57}..." in lines


@pytest.mark.parametrize("framework", RUNS)
def test_a_key_that_a_canonical_field_comes_from_decides_nothing_else(framework: str) -> None:
    found = reading(framework, {})
    used = {key for origin in found.provenance.values() for key in origin.keys}
    assert used
    assert not used & set(outside_of(found))
