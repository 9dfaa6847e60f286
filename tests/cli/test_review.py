"""The numbers of a review by five kinds of new users, one after the other, with the commands that it prints.

Files are ours, small, and show the same. Where BATCHBRIDGE_UPSTREAM names a folder with checkouts (`open-r1`, `verl`,
`OpenRLHF`), the review's own files are asked, too; benchmarks/first_five_minutes.py counts over all of them.
"""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from batchbridge.diagnosis import doctor
from batchbridge_on_cpu.scripts import module_at

Run = Callable[..., tuple[int, str, str]]
DEMO = """\
model_name_or_path: some/model-1.5B
torch_dtype: bfloat16
dataset_name: some/dataset
use_vllm: true
num_generations: 16
per_device_train_batch_size: 16
gradient_accumulation_steps: 4
max_prompt_length: 512
max_completion_length: 2048
num_train_epochs: 1
overwrite_output_dir: true
reward_funcs: [accuracy, format, tag_count]
reward_weights: [1.0, 1.0, 1.0]
warmup_ratio: 0.1
"""
DDP = "distributed_type: MULTI_GPU\nnum_processes: 8\n"
SFT = "packing: true\nmax_length: 4096\nchat_template: '{%s}'\neos_token: x\nlearning_rate: 1.0e-5\n" % ("x" * 4863)
VERL = """\
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo \\
    data.train_batch_size=1024 data.max_prompt_length=1024 data.max_response_length=1024 \\
    actor_rollout_ref.actor.ppo_mini_batch_size=256 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=16 \\
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=16 actor_rollout_ref.rollout.n=5 \\
    actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=16 actor_rollout_ref.rollout.name=vllm \\
    trainer.n_gpus_per_node=8 trainer.nnodes=1 trainer.total_epochs=15 {more}
"""
UNDER = ("--framework-version", "0.18.0", "--world-size", "8")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: Run) -> Run:
    """The command line in this process, in a folder with a recipe and a script; (exit code, output, errors)."""
    monkeypatch.chdir(tmp_path)
    Path("demo.yaml").write_text(DEMO, encoding="utf-8")
    Path("run.sh").write_text(VERL.format(more=""), encoding="utf-8")
    return typed


def counts() -> ModuleType:
    """benchmarks/first_five_minutes.py, which names the review's files."""
    path = Path(__file__).parents[2] / "benchmarks" / "first_five_minutes.py"
    return module_at(path, "first_five_minutes")


def checkout(name: str) -> Path:
    """A checkout of the folder that BATCHBRIDGE_UPSTREAM names."""
    folder = Path(os.environ.get("BATCHBRIDGE_UPSTREAM", "/nowhere"), name)
    if not folder.is_dir():
        pytest.skip(f"BATCHBRIDGE_UPSTREAM names no folder with a checkout {name}")
    return folder


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("more", [{}, {"NO_COLOR": "1"}], ids=["colours", "NO_COLOR"])
def test_1_a_terminal_gets_no_escape_codes_as_text_and_no_table_wider_than_it(
    run: Run, columns: int, more: dict[str, str]
) -> None:
    pty = pytest.importorskip("pty", reason="this system has no pseudo-terminals")
    end, terminal = pty.openpty()
    words = ["explain", "demo.yaml", "--framework-version", "0.18.0", "--gpus", "8"]
    with subprocess.Popen(
        [sys.executable, "-m", "batchbridge", *words],
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": str(columns), **more},
        stdin=subprocess.DEVNULL,
        stdout=terminal,
        stderr=terminal,
    ):
        os.close(terminal)
        said = b""
        try:
            while chunk := os.read(end, 65536):
                said += chunk
        except OSError:  # the other end is closed
            pass
    os.close(end)
    text = said.decode().replace("\r\n", "\n")
    assert "\\x1b" not in text
    lines = re.sub(r"\x1b\[[0-9;]*m", "", text).split("\n")
    assert len(lines) > 20
    assert max(map(len, lines)) <= columns


def test_2_without_a_version_every_known_one_is_judged_and_the_repositorys_is_found(run: Run) -> None:
    code, out, _ = run("explain", "demo.yaml", "--world-size", "8")
    assert code == 4
    assert re.search(r"no version was named: .* valid; .* invalid \(BB-\S+\); .* is shown", out)
    out = run("explain", "demo.yaml", "--world-size", "8", "-v")[1]
    assert "torch_dtype is gone since trl 0.27.0" in out
    Path("setup.py").write_text('_deps = [\n    "trl==0.18.0",\n]\n', encoding="utf-8")
    code, out, _ = run("check", "demo.yaml", "--world-size", "8")
    assert code == 0
    for command in ("check", "explain"):
        for more in ([], ["-v"]):
            out = run(command, "demo.yaml", "--world-size", "8", *more)[1]
            assert out.count("setup.py:2 pins 0.18.0, which is taken") == 1


def test_2_without_devices_it_says_on_which_numbers_it_is_valid_and_a_guess_is_no_error(run: Run) -> None:
    Path("code.yaml").write_text(DEMO.replace("generations: 16", "generations: 14"), encoding="utf-8")
    code, out, _ = run("check", "code.yaml", "--framework-version", "0.18.0")
    assert code == 4
    assert "valid on 7, 14, 21" in out
    Path("accelerate_configs").mkdir()
    Path("accelerate_configs", "ddp.yaml").write_text(DDP, encoding="utf-8")
    code, out, _ = run("check", "code.yaml", "--framework", "open-r1", "--framework-version", "0.18.0")
    assert code == 4
    assert "with a guess, num_processes = 8" in out


@pytest.mark.parametrize("version", ["0.8.0.dev0", "main", "v0.8.0"])
def test_2_what_lies_between_releases_is_undecided_and_a_branch_is_what_all_of_them_say(run: Run, version: str) -> None:
    assert run("check", "run.sh", "--framework-version", version)[0] == (4 if "dev" in version else 0)


def test_3_runs_that_differ_in_model_data_and_rewards_are_not_equivalent(run: Run) -> None:
    other = DEMO.replace("1.5B", "7B").replace("some/dataset", "some/other").replace("[1.0, 1", "[5.0, 1")
    Path("other.yaml").write_text(other.replace("tag_count]", "length]"), encoding="utf-8")
    code, out, _ = run("diff", "demo.yaml", "other.yaml", *UNDER)
    assert code == 3
    for key in ("model_name_or_path", "dataset_name", "reward_funcs", "reward_weights"):
        assert key in out
    assert run("diff", "demo.yaml", "demo.yaml", *UNDER)[0] == 0


def test_4_the_meaning_begins_with_what_the_run_does_on_its_own(run: Run) -> None:
    out = run("explain", "run.sh", "--framework-version", "0.7.0")[1]
    meaning = out.partition("Meaning\n")[2]
    assert "per micro-batch" in meaning
    wrapped = meaning.find("counted per optimizer step")
    assert meaning.index("per micro-batch") < (wrapped if wrapped >= 0 else len(meaning))


def test_5_many_files_folders_standard_input_links_and_commands(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in (("recipes/a.yaml", DEMO), ("recipes/sft/b.yaml", SFT), ("recipes/ddp.yaml", DDP)):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text, encoding="utf-8")
    code, out, _ = run("check", "recipes/", *UNDER)
    assert (code, out.splitlines()[-1]) == (0, "3 files: 1 ok, 2 skipped")
    assert run("check", "demo.yaml", "recipes/a.yaml", *UNDER)[0] == 0
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(DEMO.encode())))
    assert run("check", "-", *UNDER)[0] == 0
    assert "no network is used" in run("check", "https://github.com/someone/something")[1]
    words = VERL.format(more="").replace("\\\n", " ").split()
    assert run("check", "--framework-version", "0.7.1", "--", *words)[0] == 0


def test_6_ci_has_formats_selection_settings_comments_and_a_baseline(run: Run) -> None:
    under = ("--framework-version", "1.16.0", "--world-size", "8")
    out = run("check", "demo.yaml", *under, "--output-format", "concise")[1]
    assert out.splitlines()[0].startswith("demo.yaml:2: BB-TRL-003 error: torch_dtype is gone since trl 0.27.0")
    assert run("check", "demo.yaml", *under, "--output-format", "github")[1].startswith("::error file=demo.yaml,line=2")
    for form in ("json", "gitlab", "sarif"):
        assert json.loads(run("check", "demo.yaml", *under, "--output-format", form)[1])
    assert run("check", "demo.yaml", *under, "--ignore", "BB-TRL-003")[0] == 0
    assert run("check", "demo.yaml", *under, "--baseline", "known.json", "--write-baseline")[0] == 0
    assert run("check", "demo.yaml", *under, "--baseline", "known.json")[0] == 0
    Path("batchbridge.toml").write_text('framework_version = "0.18.0"\nworld_size = 8\n', encoding="utf-8")
    assert run("check", "demo.yaml")[0] == 0


def test_7_what_bash_replaces_in_a_name_is_a_note_and_the_script_is_valid(run: Run) -> None:
    more = 'trainer.experiment_name=72b-$(date +%Y%m%d) trainer.project_name="$(pwd)/x"'
    Path("dated.sh").write_text(VERL.format(more=more), encoding="utf-8")
    code, out, _ = run("check", "dated.sh", "--framework-version", "0.7.0")
    assert code == 0
    assert "is not expected" not in out


def test_7_a_script_of_ones_own_slurm_and_a_placeholder_are_read(run: Run) -> None:
    own = "accelerate launch --num_processes 8 train_grpo.py --config demo.yaml\n"
    Path("own.sh").write_text(own, encoding="utf-8")
    assert run("check", "own.sh", "--framework-version", "0.18.0")[0] == 4
    Path("train_grpo.py").write_text("from trl import GRPOTrainer\nGRPOTrainer('m', [len]).train()\n", encoding="utf-8")
    assert run("check", "own.sh", "--framework-version", "0.18.0")[0] == 0
    slurm = (
        "#!/bin/bash\n#SBATCH --nodes=1\nCONFIG=$1\nLAUNCHER='accelerate launch --num_processes 8'\n"
        'CMD="src/open_r1/grpo.py --config $CONFIG"\nsrun bash -c "$LAUNCHER $CMD"\n'
    )
    Path("train.slurm").write_text(slurm, encoding="utf-8")
    assert run("check", "train.slurm", "--framework-version", "0.18.0", "--", "demo.yaml")[0] == 0
    more = "actor_rollout_ref.model.path='<path_to_config>'"
    Path("placed.sh").write_text(VERL.format(more=more), encoding="utf-8")
    code, out, _ = run("check", "placed.sh", "--framework-version", "0.7.0", "-v")
    assert (code, "placeholder" in out) == (0, True)


def test_8_an_sft_recipe_is_not_judged_and_no_value_is_dumped_whole(run: Run) -> None:
    Path("sft.yaml").write_text(SFT, encoding="utf-8")
    code, out, _ = run("check", "sft.yaml", "--framework-version", "0.18.0")
    assert code == 4
    assert "supervised fine-tuning" in out
    assert "remove packing" not in out
    assert max(map(len, out.splitlines())) < 400


def test_10_rules_have_pages_and_misspelt_words_a_tip(run: Run) -> None:
    assert run("rule", "BB-TRL-062")[1].startswith("# BB-TRL-062")
    for words, tip in (
        (("explain", "BB-TRL-062"), "batchbridge rule BB-TRL-062"),
        (("doctor", "BB-TRL-062"), "batchbridge rule BB-TRL-062"),
        (("chek", "demo.yaml"), "a similar command exists: 'check'"),
        (("check", "demo.yaml", "--framework", "openr2"), "tip:"),
    ):
        code, _, err = run(*words)
        assert code == 64
        assert tip in err
    assert run("check", "demo.yaml", "--framework", "open-r1", *UNDER)[0] == 0
    assert run("-V")[1].startswith("batchbridge ")
    assert "Examples:" in run("help", "check")[1]


@pytest.mark.parametrize("text", counts().PASTED)
def test_12_doctor_knows_the_texts_that_check_quotes(text: str) -> None:
    assert doctor(text)


def test_12_doctor_finds_the_line_of_the_configuration(run: Run) -> None:
    text = "TypeError: GRPOConfig.__init__() got an unexpected keyword argument 'max_prompt_length'"
    code, out, _ = run("doctor", text, "--config", "demo.yaml", "--framework-version", "1.16.0", "--world-size", "8")
    assert code == 0
    assert "demo.yaml:8" in out


def test_21_renamed_keys_are_fixed_in_the_file(run: Run) -> None:
    under = ("--framework-version", "1.16.0", "--world-size", "8")
    assert run("check", "demo.yaml", *under, "--fix")[0] == 2  # what cut the prompts is gone: the user's choice
    fixed = DEMO.replace("torch_dtype", "dtype").replace("overwrite_output_dir: true\n", "")
    assert Path("demo.yaml").read_text(encoding="utf-8") == fixed.replace("warmup_ratio", "warmup_steps")


@pytest.mark.parametrize("name", counts().NO_RUNS)
def test_the_reviews_own_files_of_open_r1_are_no_broken_recipes(name: str) -> None:
    found = counts().wrong_verdicts({"open-r1": counts().Checkout("open-r1", checkout("open-r1"), "")})
    assert {one: holds for one, _, holds in found}[name]


@pytest.mark.parametrize("name", [*counts().NOT_INVALID, *counts().DATED])
def test_the_reviews_own_scripts_of_verl_are_valid(name: str) -> None:
    import batchbridge

    assert batchbridge.check(checkout("verl") / name, version=counts().SWEPT).verdict == "valid"


def test_the_three_launch_scripts_of_the_review_are_followed() -> None:
    folders = {name: counts().Checkout(name, checkout(name), "") for name in ("open-r1", "OpenRLHF")}
    assert [name for name, holds in counts().launchers(folders) if not holds] == []
