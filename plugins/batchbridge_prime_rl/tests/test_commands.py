"""The commands find the adapter through its entry point, on files, command lines and between frameworks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import batchbridge
from batchbridge import CannotWrite, Reading, Source
from batchbridge.kit import Context, load_source
from batchbridge_prime_rl.config import PrimeRLAdapter

RECIPE = """\
max_steps = 20
seq_len = 2048

[deployment]
num_train_gpus = 1
num_infer_gpus = 1

[orchestrator]
batch_size = 128
group_size = 16

[orchestrator.train.sampling]
max_completion_tokens = 128

[[orchestrator.train.source]]
name = "reverse-text"

[orchestrator.train.source.env.taskset]
id = "reverse-text"

[trainer.optim]
lr = 3e-6

[ckpt] # at the end

[inference]
"""
TRL = {
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 4,
    "num_generations": 8,
    "max_completion_length": 512,
    "loss_type": "dapo",
    "scale_rewards": "none",
    "beta": 0.0,
    "learning_rate": 1e-6,
    "max_steps": 100,
}


def _recipe(folder: Path, text: str = RECIPE) -> Path:
    file = folder / "rl.toml"
    file.write_text(text, encoding="utf-8")
    return file


def _run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "batchbridge", *words], capture_output=True, text=True, check=False)


def test_check_and_explain_read_a_file(tmp_path: Path) -> None:
    file = str(_recipe(tmp_path))
    good = _run("check", file, "--framework-version", "0.8.0")
    assert good.returncode == 0, good.stdout + good.stderr
    told = json.loads(_run("explain", file, "--framework-version", "0.8.0", "--json").stdout)["results"][0]
    assert (told["framework"], told["verdict"]) == ("prime_rl", "valid")
    assert told["spec"]["optimizer_step"]["completions_per_step"] == 128
    assert told["provenance"]["rollout.completions_per_prompt"]["line"] == 10
    assert "loss: train.filter_zero_advantages" in told["spec"]["open_terms"]


def test_check_names_the_setting_its_line_and_a_way_out(tmp_path: Path) -> None:
    broken = _run(
        "check", str(_recipe(tmp_path, RECIPE.replace("128\ngroup", "100\ngroup"))), "--framework-version", "0.8.0"
    )
    assert broken.returncode != 0
    assert "BB-PRIME-014" in broken.stdout
    assert "error :9 " in broken.stdout
    assert "orchestrator.batch_size = 96" in broken.stdout or "orchestrator.batch_size = 112" in broken.stdout


def test_a_command_s_files_and_options_count_in_their_order(tmp_path: Path) -> None:
    first = _recipe(tmp_path)
    second, trainer = tmp_path / "over.toml", tmp_path / "trainer.toml"
    second.write_text("[orchestrator]\nbatch_size = 64\n", encoding="utf-8")
    trainer.write_text("[optim]\nlr = 1e-5\nmax_norm = 0.5\n", encoding="utf-8")
    words = ["uv", "run", "rl", "@", str(first), "@", str(second), "--trainer", "@", str(trainer)]
    words += ["--max-steps", "7", "--trainer.optim.max-norm", "None", "--no-ckpt"]
    reading = PrimeRLAdapter().read(load_source(words), Context(framework_version="0.8.0"))
    assert (reading.verdict, reading.spec is not None) == ("valid", True), reading.findings
    assert reading.spec is not None
    assert reading.spec.optimizer_step.completions_per_step == 64
    assert (reading.spec.horizon.optimizer_steps, reading.spec.carried.max_gradient_norm) == (7, 0.0)
    assert reading.spec.carried.learning_rate == 1e-5
    group = reading.provenance["rollout.completions_per_prompt"]
    assert (group.origin, group.line) == ("file", 10)
    assert reading.provenance["optimizer_step.completions_per_step"].origin == "argument"


def test_a_launch_script_s_file_is_found_from_its_folder_upwards(tmp_path: Path) -> None:
    _recipe(tmp_path)
    (tmp_path / "scripts").mkdir()
    script = tmp_path / "scripts" / "run.sh"
    script.write_text("#!/bin/bash\nuv run rl @ rl.toml --orchestrator.batch-size 32\n", encoding="utf-8")
    told = json.loads(_run("explain", str(script), "--framework-version", "0.8.0", "--json").stdout)["results"][0]
    assert (told["framework"], told["verdict"]) == ("prime_rl", "valid")
    assert told["spec"]["optimizer_step"]["completions_per_step"] == 32


@pytest.mark.parametrize("framework", ["trl", "verl", "open_r1", "easyr1", "openrlhf", "open_instruct"])
def test_a_conversion_to_another_framework_accounts_for_every_field(tmp_path: Path, framework: str) -> None:
    made = batchbridge.convert(batchbridge.read(_recipe(tmp_path), version="0.8.0"), framework)
    told = {field.field: field for field in made.fields}
    assert made.written is not None
    assert told["open_terms"].status != "exact"
    if framework != "open_instruct":  # it cuts a rollout into parts of as many tokens
        assert told["rollout.completions_per_prompt"].status == "exact"
        assert told["optimizer_step.completions_per_step"].target == 128


@pytest.mark.parametrize("framework", ["trl", "verl"])
def test_what_another_framework_says_comes_to_prime_rl(framework: str, tmp_path: Path) -> None:
    if framework == "trl":
        source = batchbridge.read(TRL, framework="trl", version="1.16.0", world_size=4)
    else:
        made = batchbridge.convert(batchbridge.read(TRL, framework="trl", version="1.16.0", world_size=4), "verl")
        assert made.written is not None
        source = batchbridge.read(
            dict(made.written.values),
            framework="verl",
            version=made.written.framework_version,
            world_size=4,
            dataset_size=6400,
        )
    there = batchbridge.convert(source, "prime_rl")
    assert there.written is not None
    values = there.written.values
    assert (values["orchestrator.batch_size"], values["orchestrator.group_size"]) == (8 * 4 * 4, 8)
    assert values["orchestrator.train.filter_zero_advantages"] is False
    assert values["trainer.loss.kl_tau"] == 0.0
    file = tmp_path / "rl.toml"
    file.write_text(there.written.text["toml"], encoding="utf-8")
    again = PrimeRLAdapter().read(load_source(file), Context(framework_version="0.8.0"))
    assert again.verdict == "valid"


def _read(*words: str) -> Reading:
    source = load_source(["uv", "run", "rl", *words])
    return PrimeRLAdapter().read(source, Context(framework_version="0.8.0"))


def test_numbers_are_pydantics_whatever_their_spelling(tmp_path: Path) -> None:
    words = ("--trainer.optim.lr", "1e-6", "--orchestrator.train.sampling.extra-body", '{"min_p": 5e-2}')
    reading = _read("@", str(_recipe(tmp_path)), *words)
    assert reading.spec is not None, reading.findings
    assert reading.spec.carried.learning_rate == 1e-6
    assert 'carried: sampling.extra_body {"min_p": 0.05}' in reading.spec.open_terms


@pytest.mark.parametrize("words", [("--trainer.optim", '{"lr": 2e-6}'), ("@",)])
def test_json_for_a_table_and_a_sign_without_a_file_are_refused(tmp_path: Path, words: tuple[str, ...]) -> None:
    reading = _read("@", str(_recipe(tmp_path)), *words)
    (found,) = reading.findings
    assert (reading.verdict, found.code, found.severity) == ("invalid", "BB-PRIME-005", "error")
    assert _read("@").verdict == "invalid"


def test_a_file_that_a_script_leaves_open_is_undecided(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text("#!/bin/bash\nuv run rl @ $CONFIG\n", encoding="utf-8")
    assert batchbridge.read(script, framework="prime_rl", version="0.8.0").verdict == "undecided"


@pytest.mark.parametrize("devices", [1, 7, 8, 14, 16])
def test_a_run_of_any_number_of_devices_comes_to_prime_rl(devices: int) -> None:
    values = {key: value for key, value in TRL.items() if key != "scale_rewards"} | {"loss_type": "grpo"}
    source = batchbridge.read(values, framework="trl", version="1.16.0", world_size=devices)
    there = batchbridge.convert(source, "prime_rl")
    assert there.written is not None
    assert there.written.values["max_steps"] == 100
    again = batchbridge.read(dict(there.written.values), framework="prime_rl", version="0.8.0").spec
    assert again is not None
    assert again.topology.world_size == devices


def test_a_run_that_is_counted_in_epochs_is_written_where_the_prompts_are_known() -> None:
    values = {key: value for key, value in TRL.items() if key != "max_steps"} | {"num_train_epochs": 2}
    open_ = batchbridge.read(values, framework="trl", version="1.16.0", world_size=8)
    assert open_.spec is not None
    with pytest.raises(CannotWrite, match="--dataset-size N"):
        PrimeRLAdapter().write(open_.spec)
    known = batchbridge.read(values, framework="trl", version="1.16.0", world_size=8, dataset_size=3200)
    there = batchbridge.convert(known, "prime_rl")
    assert there.written is not None
    assert there.written.values["max_steps"] == 2 * 3200 * 8 // (8 * 4 * 8)


def test_other_frameworks_files_are_not_taken(tmp_path: Path) -> None:
    sft = {"model": {"name": "a"}, "data": {"name": "b", "batch_size": 32}, "optim": {"lr": 1e-5}}
    assert PrimeRLAdapter().detect(Source(values=sft)) == 0.0
