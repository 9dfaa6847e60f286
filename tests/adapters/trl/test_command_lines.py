"""TRL's and Open-R1's command lines: recipes that they name, and the processes that a launcher starts."""

from __future__ import annotations

from pathlib import Path

import pytest

import batchbridge
from batchbridge.reading.files import load_source

RECIPE = "num_generations: 8\nper_device_train_batch_size: 4\nmax_completion_length: 64\nlearning_rate: 1.0e-6\n"


def read(folder: Path, command: str, name: str = "run.sh", recipe: str = RECIPE) -> batchbridge.Reading:
    (folder / "recipe.yaml").write_text(recipe)
    script = folder / name
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(f"#!/bin/bash\n{command}\n")
    return batchbridge.read(script, version="1.16.0")


def test_a_recipe_that_the_command_names_is_read(tmp_path: Path) -> None:
    reading = read(tmp_path, "trl grpo --config recipe.yaml --num_processes 2 --per_device_train_batch_size 8")
    assert (reading.framework, reading.verdict) == ("trl", "valid")
    assert reading.spec is not None
    assert (reading.spec.topology.world_size, reading.spec.optimizer_step.completions_per_step) == (2, 16)


def test_places_of_recipe_and_command_are_kept_apart(tmp_path: Path) -> None:
    reading = read(tmp_path, "trl grpo --config recipe.yaml --num_processes 2 \\\n  --learning_rate 1e-5")
    group, rate = (reading.provenance[p] for p in ("rollout.completions_per_prompt", "carried.learning_rate"))
    assert (Path(str(group.file)).name, group.line) == ("recipe.yaml", 1)
    assert (Path(str(rate.file)).name, rate.line) == ("run.sh", 3)


def test_a_recipe_is_found_from_a_folder_above_the_script(tmp_path: Path) -> None:
    reading = read(tmp_path, "trl grpo --config recipe.yaml --num_processes 2", "scripts/slurm/run.slurm")
    assert reading.verdict == "valid"


def test_a_recipe_that_is_not_there_is_undecided(tmp_path: Path) -> None:
    reading = read(tmp_path, "trl grpo --config nowhere.yaml --num_processes 2")
    assert "BB-TRL-009" in [finding.code for finding in reading.findings]
    assert reading.verdict == "undecided"


def test_sizes_beside_a_recipe_that_is_not_there_are_said_under_that_condition(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("trl grpo --config nowhere.yaml --num_processes 3\n")
    said = batchbridge.check(tmp_path / "run.sh", version="1.16.0").text()
    assert "so counted, and right if the recipe nowhere.yaml says nothing of them" in said
    assert [
        one.code for one in batchbridge.read(tmp_path / "run.sh", version="1.16.0").wrong if not one.undecided
    ] == []


def test_a_key_of_a_recipe_that_its_program_drops_hides_no_sizes_that_the_launcher_decides(tmp_path: Path) -> None:
    (tmp_path / "grpo.py").write_text("from trl import GRPOConfig, TrlParser\nTrlParser((GRPOConfig,))\n")
    (tmp_path / "recipe.yaml").write_text(f"num_processes: 7\n{RECIPE}")
    (tmp_path / "run.sh").write_text("accelerate launch --num_processes 2 src/open_r1/grpo.py --config recipe.yaml\n")
    found = batchbridge.check(tmp_path / "run.sh")
    assert found.nowhere == ("num_processes",)
    assert found.refused == ()
    assert found.reading.spec is not None
    assert found.reading.spec.optimizer_step.completions_per_step == 8


def test_accelerate_says_the_world_size(tmp_path: Path) -> None:
    reading = read(
        tmp_path,
        "accelerate launch --num_processes 4 grpo.py --num_generations 8 --steps_per_generation 1 "
        "--gradient_accumulation_steps 1 --per_device_train_batch_size 4 --max_completion_length 9",
    )
    assert reading.spec is not None
    assert (reading.spec.topology.world_size, reading.spec.optimizer_step.completions_per_step) == (4, 16)
    assert "accelerate launch" in reading.provenance["topology.world_size"].detail


@pytest.mark.parametrize("flag", ["--multi_gpu", "--same_network", "--dynamo_use_dynamic", "--enable_cpu_affinity"])
def test_a_flag_of_accelerate_takes_no_value(tmp_path: Path, flag: str) -> None:
    options = "--num_generations 8 --per_device_train_batch_size 8 --max_completion_length 9"
    for command in (f"accelerate launch {flag} --num_processes 4 grpo.py", f"trl grpo {flag} --num_processes 4"):
        reading = read(tmp_path, f"{command} {options}")
        assert ([code for code, _ in errors(reading)], reading.native["num_processes"]) == ([], 4)


@pytest.mark.parametrize(
    ("options", "sharding", "stage", "fsdp"),
    [
        ("--use_deepspeed --zero_stage 2", "deepspeed", 2, None),
        ("--use-deepspeed --zero-stage=3", "deepspeed", 3, None),
        ("--use_fsdp --fsdp_version 2", "fsdp", None, 2),
        ("--multi_gpu", "none", None, None),
    ],
)
def test_trl_hands_options_of_the_launcher_on(options: str, sharding: str, stage: int | None, fsdp: int | None) -> None:
    reading = words_read(*options.split())
    start = reading.run.start
    assert (errors(reading), start.sharding, start.zero_stage, start.fsdp) == ([], sharding, stage, fsdp)


def test_options_of_the_launcher_are_no_settings_of_a_recipe_or_a_script(tmp_path: Path) -> None:
    assert [code for code, _ in errors(words_read("--multi_gpu", start=("python", "trl/scripts/grpo.py", *SIZES)))]
    reading = read(tmp_path, "trl grpo --config recipe.yaml --num_processes 1", recipe=RECIPE + "multi_gpu: true\n")
    assert "BB-TRL-003" in [code for code, _ in errors(reading)]


def test_the_file_that_accelerate_is_given_says_the_world_size(tmp_path: Path) -> None:
    (tmp_path / "z3.yaml").write_text("num_processes: 3\n")
    reading = read(
        tmp_path,
        "accelerate launch --config_file z3.yaml grpo.py --num_generations 6 --beta 0.1 "
        "--steps_per_generation 1 --max_completion_length 9 --per_device_train_batch_size 4",
    )
    assert reading.spec is not None
    assert reading.spec.topology.world_size == 3


def test_open_r1_is_known_by_its_script(tmp_path: Path) -> None:
    reading = read(tmp_path, "accelerate launch --num_processes 2 src/open_r1/grpo.py --config recipe.yaml")
    assert reading.framework == "open_r1"
    assert reading.spec is not None
    assert reading.spec.rollout.completions_per_prompt == 8


SFT = "packing: false\nmax_length: 512\nper_device_train_batch_size: 3\ngradient_accumulation_steps: 8\n"


@pytest.mark.parametrize(
    ("command", "framework"),
    [
        ("trl sft --config recipe.yaml", "trl"),
        ("python -m trl.scripts.sft --config recipe.yaml", "trl"),
        ("accelerate launch --num_processes 7 src/open_r1/sft.py --config recipe.yaml", "open_r1"),
        ("accelerate launch --num_processes 7 src/open_r1/sft.py --per_device_train_batch_size 2", "open_r1"),
    ],
)
def test_supervised_fine_tuning_is_recognised_and_not_judged(tmp_path: Path, command: str, framework: str) -> None:
    reading = read(tmp_path, command, recipe=SFT)
    assert (reading.framework, reading.verdict, reading.spec) == (framework, "undecided", None)
    assert [finding.code for finding in reading.findings] == ["BB-TRL-081"]


def test_a_recipe_of_supervised_fine_tuning_is_recognised_by_its_keys(tmp_path: Path) -> None:
    recipe = tmp_path / "config.yaml"
    recipe.write_text(SFT)
    (finding,) = batchbridge.read(recipe, version="1.16.0").findings
    assert (finding.code, finding.undecided, finding.where[0].line) == ("BB-TRL-081", True, 1)


def test_a_filter_of_prompts_is_recognised_and_not_judged(tmp_path: Path) -> None:
    recipe = tmp_path / "filter.yaml"
    recipe.write_text("num_generations: 8\nreward_funcs: [accuracy]\npass_rate_min: 0.1\noutput_dataset_name: d\n")
    found = batchbridge.read(recipe, framework="trl", version="0.18.0", world_size=8)
    (finding,) = (finding for finding in found.findings if finding.severity == "error")
    assert (found.verdict, finding.code, finding.where[0].key) == ("undecided", "BB-TRL-081", "pass_rate_min")
    assert "a filter of prompts by their pass rate" in finding.message


def test_a_grpo_recipe_with_a_key_of_supervised_fine_tuning_is_judged(tmp_path: Path) -> None:
    reading = read(tmp_path, "trl grpo --config recipe.yaml --num_processes 2", recipe=RECIPE + "packing: false\n")
    assert [finding.code for finding in reading.findings if finding.severity == "error"] == ["BB-TRL-003"]


def test_a_script_that_fine_tunes_first_is_read_by_its_grpo_command(tmp_path: Path) -> None:
    reading = read(tmp_path, "trl sft --config sft.yaml\ntrl grpo --config recipe.yaml --num_processes 2")
    assert reading.verdict == "valid"


@pytest.mark.parametrize(("version", "fix"), [("0.16.1", None), ("0.18.0", "dr_grpo"), ("1.16.0", "dapo")])
def test_the_nearest_loss_type_is_one_that_the_version_has(version: str, fix: str | None) -> None:
    given = {"num_generations": 8, "per_device_train_batch_size": 8, "gradient_accumulation_steps": 4}
    given |= {"loss_type": "bnpo"} if fix else {}
    reading = batchbridge.read(given, framework="trl", version=version, world_size=2)
    (found,) = [finding for finding in reading.findings if finding.code == "BB-TRL-062"]
    assert [each.changes for each in found.fixes] == ([{"loss_type": fix}] if fix else [])


SIZES = ("--num_generations", "8", "--per_device_train_batch_size", "8", "--max_completion_length", "64")
TRL = ("trl", "grpo", "--num_processes", "1", *SIZES)
OWN = ("python", "train.py", *SIZES)


def words_read(*words: str, version: str = "1.16.0", start: tuple[str, ...] = TRL) -> batchbridge.Reading:
    return batchbridge.read([*start, *words], framework="trl", version=version, world_size=1)


def errors(reading: batchbridge.Reading) -> list[tuple[str, str]]:
    return [(found.code, found.message) for found in reading.findings if found.severity == "error"]


@pytest.mark.parametrize(
    ("words", "key", "value"),
    [
        ("--per-device-train-batch-size 16", "per_device_train_batch_size", 16),
        ("--no_shuffle_dataset", "shuffle_dataset", False),
        ("--no-shuffle-dataset", "shuffle_dataset", False),
        ("--no_shuffle", "shuffle_dataset", False),
        ("--shuffle_dataset 0", "shuffle_dataset", False),
        ("--no_gradient_checkpointing --gradient-checkpointing", "gradient_checkpointing", True),
        ("--bet 0.1", "beta", 0.1),
        ("--reward_weights 1.0 0.5", "reward_weights", [1.0, 0.5]),
        ("--reward-weights 1", "reward_weights", [1.0]),
        ("--reward_funcs accuracy format", "reward_funcs", ["accuracy", "format"]),
        ("--max_completion_length none", "max_completion_length", None),
        ("--run_name null", "run_name", "null"),
        ("--num-processes 1", "num_processes", 1),
        ("--seed=5 --seed 1_0", "seed", 10),
    ],
)
def test_words_are_read_as_the_parser_reads_them(words: str, key: str, value: object) -> None:
    reading = words_read(*words.split())
    assert (errors(reading), reading.native[key]) == ([], value)


@pytest.mark.parametrize(
    ("words", "message", "native"),
    [
        ("--reward_weights", "--reward_weights needs values; given: nothing", "argument --reward_weights"),
        (
            "--reward_weights 1.0,0.5",
            "reward_weights = ['1.0,0.5']: expected a number",
            "invalid float value: '1.0,0.5'",
        ),
        ("--seed 0x10", "seed = 16: expected an integer", "argument --seed: invalid int value: '0x10'"),
        ("--seed x --seed 3", "seed = 'x': expected an integer", "invalid int value: 'x'"),
        ("--seed", "--seed needs a value; given: nothing", "argument --seed"),
        ("--beta -1e-3", "--beta needs a value; given: nothing", "argument --beta"),
        ("--bf16", "--bf16 needs a value; given: nothing", "argument --bf16"),
        ("--shuffle_dataset= x", "shuffle_dataset = None: expected true or false", "Truthy value expected"),
        ("--no_shuffle_dataset=1", "--no_shuffle_dataset takes no value; given: 1", "ignored explicit argument"),
        ("--dtype float64", "dtype = 'float64': expected one of auto", "argument --dtype: invalid choice"),
        ("--train_sampling_strategy x", "train_sampling_strategy = 'x': expected one of", "invalid choice"),
        ("stray", "no option takes 'stray'", "not used by the HfArgumentParser"),
        ("-- --seed 3", "no option takes '-- --seed 3'", "not used by the HfArgumentParser"),
        ("--learn 1e-5", "--learn could be short for learning_rate, learning-rate", "ambiguous option"),
        ("-s 3", "trl 1.16.0 with transformers 5.23.0 has no setting -s", ""),
        ("--per-device_train_batch_size 8", "has no setting per-device_train_batch_size", ""),
        ("--no_log_completions", "has no setting no_log_completions", ""),
        ("--config=recipe.yaml", "has no setting config", ""),
    ],
)
def test_words_that_the_parser_refuses_are_findings(words: str, message: str, native: str) -> None:
    reading = words_read(*words.split())
    assert reading.verdict == "invalid"
    (found,) = [found for found in reading.findings if message in found.message]
    assert (found.severity, native in (found.native or "")) == ("error", True), found
    assert found.code == (
        "BB-TRL-004" if "setting" not in message and "option" not in native + message else "BB-TRL-003"
    )


def test_a_word_for_no_number_is_one_since_1_6() -> None:
    assert errors(words_read("--steps_per_generation", "null", version="1.6.0")) == []
    assert [code for code, _ in errors(words_read("--steps_per_generation", "null", version="1.5.1"))] == ["BB-TRL-004"]


@pytest.mark.parametrize("words", ["--bf16", "--reward_weights 1.0,0.5", "data.json", "--reward_funcs", "-v 3"])
def test_a_script_of_one_s_own_may_take_words_otherwise(words: str) -> None:
    assert errors(words_read(*words.split(), start=OWN)) == []


@pytest.mark.parametrize(
    "words", ["--bet 0.1", "--per-device_train_batch_size 1", "--model m", "--my_own [1,2]", "-s 3"]
)
def test_an_option_of_a_script_s_own_is_a_warning(words: str) -> None:
    reading = words_read(*words.split(), start=OWN)
    (found,) = [found for found in reading.findings if found.code == "BB-TRL-003"]
    assert (found.severity, "train.py may take it itself" in found.message) == ("warning", True)
    assert reading.native["beta"] == 0.0


def test_a_script_of_one_s_own_takes_dashes_and_settings_too() -> None:
    reading = words_read("--no-shuffle-dataset", "beta=0.5", start=OWN)
    assert (errors(reading), reading.native["shuffle_dataset"], reading.native["beta"]) == ([], False, 0.5)


@pytest.mark.parametrize(
    "launcher", ["accelerate launch --num_processes 2", "torchrun --nproc_per_node 2", "deepspeed"]
)
@pytest.mark.parametrize("script", ["trl/scripts/grpo.py", "src/open_r1/grpo.py", "-m trl.scripts.grpo"])
def test_words_behind_a_launcher_are_read_alike(tmp_path: Path, launcher: str, script: str) -> None:
    if launcher == "deepspeed" and script.startswith("-m"):
        script = script.replace("-m", "--module")
    reading = read(tmp_path, f"{launcher} {script} --config recipe.yaml --per-device-train-batch-size 8 --no_shuffle_d")
    found = [found.code for found in reading.findings if found.code in ("BB-TRL-003", "BB-TRL-004")]
    values = [reading.native[key] for key in ("num_generations", "per_device_train_batch_size", "shuffle_dataset")]
    assert (found, values) == ([], [8, 8, False])
    assert [code for code, _ in errors(read(tmp_path, f"{launcher} {script} --config recipe.yaml stray"))] == [
        "BB-TRL-003"
    ]


def test_what_a_script_leaves_open_is_open_whatever_its_option_is_spelled(tmp_path: Path) -> None:
    command = "trl grpo --config recipe.yaml --num-processes 2 --per-device-train-batch-size $MICRO"
    reading = read(tmp_path, command)
    assert (reading.verdict, [code for code, _ in errors(reading)]) == ("undecided", ["BB011"])
    source = load_source(tmp_path / "run.sh", overrides={"per_device_train_batch_size": 8})
    reading = batchbridge.read(source, version="1.16.0")
    assert (reading.verdict, reading.native["per_device_train_batch_size"]) == ("valid", 8)


def test_what_is_set_on_top_replaces_what_is_refused(tmp_path: Path) -> None:
    read(tmp_path, "trl grpo --config recipe.yaml --num_processes 2 --seed x")
    reading = batchbridge.read(load_source(tmp_path / "run.sh", overrides={"seed": 7}), version="1.16.0")
    assert (reading.verdict, reading.native["seed"]) == ("valid", 7)
