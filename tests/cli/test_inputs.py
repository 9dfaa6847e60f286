"""What may stand in place of FILE: folders, `-`, a pipe, a link, a command behind `--`; and frameworks' names."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batchbridge import convert, read
from batchbridge.cli import _folder
from batchbridge.cli.main import main

Run = Callable[..., tuple[int, str, str]]
VALID = "model_name_or_path: m\nnum_generations: 8\nper_device_train_batch_size: 8\nmax_completion_length: 64\n"
KNOWN = ("--framework-version", "1.16.0", "--world-size", "1", "--dataset-size", "64")
SFT = "packing: true\nmax_length: 4096\nchat_template: x\nnum_train_epochs: 1\nlearning_rate: 1.0e-5\n"


def piped(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: Run) -> Run:
    """The command line in this process, in an empty folder, with the adapters that are installed."""
    monkeypatch.chdir(tmp_path)
    return typed


@pytest.fixture
def repository(run: Run) -> Path:
    """A valid recipe, a broken one, and what is not a run."""
    for name, text in {
        "grpo/good.yaml": VALID,
        "grpo/bad.yaml": VALID.replace("num_generations: 8", "num_generations: 6"),
        "sft/config.yaml": SFT,
        "launch/serve.sh": "python serve.py --port 80\n",
        "accelerate/ddp.yaml": "num_processes: 8\n",
        "list.yml": "- 1\n",
        "README.md": "python x",
        ".hidden/good.yaml": VALID,
    }.items():
        path = Path("recipes", name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return Path("recipes")


def test_of_a_folder_the_runs_are_judged_and_the_rest_is_named(run: Run, repository: Path) -> None:
    code, out, err = run("check", str(repository), *KNOWN)
    assert (code, err) == (2, "")
    *lines, total = out.splitlines()
    assert [line.split()[:2] for line in lines] == [
        ["recipes/grpo/bad.yaml", "error"],
        ["recipes/grpo/good.yaml", "ok"],
        ["recipes/accelerate/ddp.yaml", "skipped"],
        ["recipes/launch/serve.sh", "skipped"],
        ["recipes/list.yml", "skipped"],
        ["recipes/sft/config.yaml", "skipped"],
    ]
    assert lines[1].endswith("8 completions per step")
    assert "fine-tuning" in lines[5]
    assert total == "6 files: 1 ok, 1 error, 4 skipped"


MODULE = "trainer = RayPPOTrainer(config)\n"
STARTED = f"if __name__ == '__main__':\n    {MODULE}"
COPIES = {
    "verl": ("trainer/config/ppo_trainer.yaml", "trainer/ppo/ray_trainer.py"),
    "openrlhf": ("cli/train_ppo_ray.py", "trainer/ppo_trainer.py"),
}


@pytest.mark.parametrize(
    ("package", "file", "text", "whole", "told"),
    [
        ("verl", "trainer/main_ppo.py", STARTED, True, False),
        ("verl", "trainer/main_ppo.py", STARTED, False, True),  # no copy: some program of that name
        ("verl", "workers/mine.py", MODULE, True, False),
        ("verl", "trainer/mine.py", STARTED, True, True),  # a program of the user's among the framework's
        ("openrlhf", "trainer/ray/ppo_actor.py", MODULE, True, False),
        ("openrlhf", "trainer/ray/ppo_actor.py", MODULE, False, True),
    ],
)
def test_the_code_of_a_copied_framework_is_no_trainer_that_is_not_read(
    run: Run, package: str, file: str, text: str, whole: bool, told: bool
) -> None:
    for name in COPIES[package] if whole else ():
        path = Path("lib", package, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("", encoding="utf-8")
    path = Path("lib", package, file)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    said = run("check", ".")[1]
    assert (f"lib/{package}/{file}" in said, "1 trainer not read" in said) == (told, told), said


def test_an_adapter_that_fails_to_look_for_a_copy_ends_no_check(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(adapter: object, source: object) -> None:
        raise RuntimeError

    monkeypatch.setattr("batchbridge_verl.config.VerlAdapter.own_copy", fails)
    Path("module.py").write_text(MODULE, encoding="utf-8")
    code, out, _ = run("check", ".")
    assert (code, "1 trainer not read" in out) == (0, True), out


def test_many_files_that_are_no_runs_are_counted_and_named_where_that_is_asked(run: Run, repository: Path) -> None:
    for number in range(7):
        (repository / "launch" / f"serve{number}.sh").write_text("python serve.py --port 80\n", encoding="utf-8")
    said = "13 files: 1 ok, 1 error, 11 skipped"
    assert [line.split()[0] for line in run("check", str(repository), *KNOWN)[1].splitlines()[:-1]] == [
        "recipes/grpo/bad.yaml",
        "recipes/grpo/good.yaml",
    ]
    assert run("check", str(repository), *KNOWN)[1].endswith(f"{said} (-v names them)\n")
    assert len((told := run("check", str(repository), "-v", *KNOWN)[1]).splitlines()) == 14
    assert told.endswith(f"{said}\n")
    for file in (repository / "grpo").iterdir():  # where nothing is a run, the reasons are what is asked for
        file.unlink()
    assert len(run("check", str(repository), *KNOWN)[1].splitlines()) == 12


ACCELERATE = (
    "compute_environment: LOCAL_MACHINE\ndistributed_type: DEEPSPEED\nnum_processes: 8\nmixed_precision: bf16\n"
)
VERL = "python3 -m verl.trainer.main_ppo data.train_batch_size=8 actor_rollout_ref.rollout.n=4\n"
ANOTHERS = "data:\n  rollout_batch_size: 512\nworker:\n  actor:\n    global_batch_size: 128\n  rollout:\n    n: 5\n"


def test_a_line_of_a_folder_says_what_is_missing(run: Run) -> None:
    Path("r.yaml").write_text("num_generations: 8\nper_device_train_batch_size: 8\nloss_type: grpo\n", encoding="utf-8")
    code, out, _ = run("check", ".", "--framework-version", "0.18.0")
    assert (code, "r.yaml  undecided  the world size is missing, " in out) == (0, True), out


@pytest.mark.parametrize("said", ["option", "for all", "by glob", "batchbridge.toml"])
def test_a_framework_named_for_a_folder_makes_no_run_of_what_is_none(run: Run, repository: Path, said: str) -> None:
    for name, text in {"accelerate/ddp.yaml": ACCELERATE, "launch/v.sh": VERL, "easyr1.yaml": ANOTHERS}.items():
        (repository / name).write_text(text, encoding="utf-8")
    words = ("--framework", "trl") if said == "option" else ()
    table = {
        "for all": "[tool.batchbridge]\nframework = 'trl'",
        "by glob": "[tool.batchbridge.files.'**/*']\nframework = 'trl'",
        "batchbridge.toml": "framework = 'trl'",
    }.get(said, "")
    Path("batchbridge.toml" if said == "batchbridge.toml" else "pyproject.toml").write_text(table, encoding="utf-8")
    code, out, _ = run("check", str(repository), *words, *KNOWN)
    told = {Path(line.split()[0]).name: line.split(maxsplit=2)[1:] for line in out.splitlines()[1:-1]}
    assert out.startswith("1 trainer not read\n")
    assert {name: word for name, (word, *_) in told.items() if word not in ("skipped", "not")} == {
        "bad.yaml": "error",
        "good.yaml": "ok",
    }
    assert told["ddp.yaml"][1] == "no adapter recognises this configuration"
    assert told["easyr1.yaml"][1] == "it is a configuration of easyr1"
    assert "looks like training" in told["v.sh"][1] or "main_ppo" in told["v.sh"][1]
    assert "fine-tuning" in told["config.yaml"][1]
    assert code == 2


def test_what_is_named_itself_is_judged_as_the_framework_that_is_named(run: Run, repository: Path) -> None:
    file = repository / "accelerate" / "ddp.yaml"
    file.write_text(ACCELERATE, encoding="utf-8")
    code, out, _ = run("check", str(file), "--framework", "trl", *KNOWN)
    assert (code, "has no setting compute_environment" in out) == (4, True)
    out = run("check", str(file), str(repository / "sft"), "--framework", "trl", *KNOWN)[1]
    assert out.startswith(f"1 run undecided\n{file} ")
    assert out.endswith("2 files: 1 undecided, 1 skipped\n")


def test_a_recipe_of_the_framework_that_another_is_built_upon_may_be_its(run: Run, repository: Path) -> None:
    out = run("check", str(repository), "--framework", "open_r1", *KNOWN)[1]
    assert "good.yaml" in out
    assert "1 ok, 1 error" in out


def test_a_line_about_a_folders_run_says_what_is_missing(run: Run) -> None:
    Path("recipes").mkdir()
    Path("recipes", "a.yaml").write_text(VALID, encoding="utf-8")
    code, out, _ = run("check", "recipes")
    assert (code, "the world size is missing" in out, out.splitlines()[-1]) == (0, True, "1 file: 1 undecided")
    Path("recipes", "a.yaml").write_text(f"{VALID}max_prompt_length: 8\n", encoding="utf-8")
    code, out, _ = run("check", "recipes", "--world-size", "1")
    assert (code, "valid under trl 0.15.0 to " in out) == (0, True)


def test_a_line_of_a_folder_has_the_whole_message_the_rules_code_and_how_many_more_there_are(run: Run) -> None:
    Path("recipes").mkdir()
    Path("recipes", "a.yaml").write_text(f"{VALID}loss_type: nonsense\nscale_rewards: nonsense\n", encoding="utf-8")
    said = json.loads(run("check", "recipes/a.yaml", *KNOWN, "--json")[1])["results"][0]["findings"]
    first, *others = (one for one in said if one["severity"] == "error")
    line = run("check", "recipes", *KNOWN)[1].splitlines()[0]
    assert len(others) == 1
    assert line.endswith(f"{first['message']} (and 1 more)    {first['code']}")


@pytest.mark.parametrize("short", ["-w 8", "-n 1 -g 8"])
def test_sizes_have_short_names(run: Run, short: str) -> None:
    Path("a.yaml").write_text(VALID, encoding="utf-8")
    long = ("--world-size", "8", "--dataset-size", "80", "--framework-version", "1.16.0", "--json")
    words = (*short.split(), "-d", "80", *long[4:])
    assert run("check", "a.yaml", *words) == run("check", "a.yaml", *long)


def test_a_file_that_is_not_there_is_answered_with_one_that_is(run: Run) -> None:
    Path("recipe.yaml").write_text(VALID, encoding="utf-8")
    _, out, _ = run("check", "recpie.yaml", *KNOWN)
    assert "fix: name recipe.yaml, which is there" in out
    assert "fix:" not in run("check", "nowhere/recpie.yaml", *KNOWN)[1]


def test_an_accelerate_file_is_called_so(run: Run) -> None:
    Path("zero2.yaml").write_text("compute_environment: LOCAL_MACHINE\ndistributed_type: DEEPSPEED\n", encoding="utf-8")
    assert "it is accelerate's" in run("check", "zero2.yaml")[1]


def test_a_script_of_ones_own_is_read_once_its_framework_is_named(run: Run) -> None:
    Path("own.sh").write_text("python train.py --num_generations 8\n", encoding="utf-8")
    assert "fix: --framework NAME if the command is a custom one" in run("check", "own.sh")[1]
    code, out, _ = run("check", "own.sh", "--framework", "trl", *KNOWN)
    assert (code, "right if train.py trains as TRL's GRPOTrainer does: train.py is not here" in out) == (4, True)


@pytest.mark.parametrize("version", ["1.16", "v1.16.0", "1.16.0.0", "1.16.0"])
def test_a_release_may_be_written_shorter(run: Run, version: str) -> None:
    Path("recipe.yaml").write_text(VALID, encoding="utf-8")
    asked = ("--framework-version", version, "--world-size", "1")
    assert "recipe.yaml  trl 1.16.0  1 device  VALID" in run("check", "recipe.yaml", *asked)[1]
    assert " to trl 1.16.0: " in run("convert", "recipe.yaml", *asked, "--to", "trl", "--to-version", version)[2]


def test_what_is_no_release_is_none(run: Run) -> None:
    Path("recipe.yaml").write_text(VALID, encoding="utf-8")
    code, out, _ = run("check", "recipe.yaml", "--framework-version", ">=1.16.0", "--world-size", "1")
    assert (code, "is not a release" in out) == (4, True)


def test_exit_codes_of_folders(run: Run, repository: Path) -> None:
    assert run("check", "recipes/grpo/good.yaml", "recipes/sft", *KNOWN)[0] == 0
    assert run("check", "recipes/sft")[0] == 0
    assert run("check", "recipes/sft/config.yaml")[0] == 4  # named itself, it was meant
    Path("empty").mkdir()
    assert run("check", "empty")[:2] == (0, "no file that may be a run\n")


def test_other_formats_have_the_runs_of_a_folder(run: Run, repository: Path) -> None:
    code, out, _ = run("check", str(repository), "--json", *KNOWN)
    assert [Path(one["file"]).name for one in json.loads(out)["results"]] == ["bad.yaml", "good.yaml"]
    assert code == 2
    lines = run("check", str(repository), "--output-format", "concise")[1].splitlines()
    assert all("grpo/" in line for line in lines if not line.endswith("undecided"))


def test_a_bar_is_for_somebody_who_looks(
    run: Run, repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("batchbridge.cli._progress.PATIENCE_S", 0)
    for number in range(3):
        Path(repository, f"{number}.yaml").write_text(VALID, encoding="utf-8")
    assert run("check", str(repository))[2] == ""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    seen = Terminal()
    monkeypatch.setattr("sys.stderr", seen)
    main(["check", str(repository)])
    assert "checked" in seen.getvalue()
    assert "checked" not in capsys.readouterr().out


def test_what_is_piped_in_is_read(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    piped(monkeypatch, VALID.encode())
    code, out, _ = run("check", "-", *KNOWN)
    assert (code, out.startswith("standard input  trl 1.16.0  1 device  VALID  ")) == (0, True)
    piped(monkeypatch, b"set -x\npython3 -m verl.trainer.main_ppo data.train_batch_size=64\n")
    assert "verl" in run("check", "-")[1]
    piped(monkeypatch, b"")
    assert run("check", "-")[0] == 2
    piped(monkeypatch, b"a: " + b"x" * (1 << 20))
    assert "BB002" in run("check", "-")[1]


@given(st.binary(max_size=400) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass")))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_input_ends_in_a_traceback(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    piped(monkeypatch, data)
    assert main(["check", "-"]) in (0, 2, 4)


@pytest.mark.skipif(not Path("/dev/fd").exists(), reason="the shell has no process substitution here")
def test_a_process_substitution_is_read(run: Run) -> None:
    Path("run.sh").write_text("python3 -m verl.trainer.main_ppo data.train_batch_size=0\n", encoding="utf-8")
    command = f"{sys.executable} -m batchbridge check <(cat run.sh) --framework-version 0.9.1 --output-format concise"
    ran = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 2, ran.stderr
    assert "BB-VERL-010" in ran.stdout


def test_a_pipe_that_nobody_has_opened_is_not_waited_for(run: Run) -> None:
    os.mkfifo("waits.yaml")
    code, out, _ = run("check", "waits.yaml")
    assert (code, "not a regular file" in out) == (2, True)


def test_no_network_is_used_for_a_link(run: Run) -> None:
    link = "https://github.com/huggingface/open-r1/blob/main/recipes/config.yaml"
    code, out, _ = run("check", link)
    assert code == 2
    assert out.startswith(
        f"{link}  framework unknown  INVALID  1 error\n  error  this is a link, and no network is used    BB"
    )
    assert f"curl -L {link} | batchbridge check -" in out


COMMAND = ("python3", "-m", "verl.trainer.main_ppo", "data.train_batch_size=1024", "algorithm.adv_estimator=grpo")


@pytest.mark.parametrize("name", ["check", "explain"])
def test_a_command_stands_behind_two_dashes(run: Run, name: str) -> None:
    code, out, _ = run(name, "--framework-version", "0.9.1", "--", *COMMAND)
    assert code == 2
    assert out.startswith("command  verl 0.9.1  8 devices  INVALID  ")
    same = run("check", "--framework-version", "0.9.1", "--set", "trainer.nnodes=2", "--", *COMMAND, "--json")
    assert same[0] == 2  # what stands behind the dashes is not an option of ours
    assert "command  verl" in same[1]


def test_the_arguments_of_a_script_stand_there_too(run: Run) -> None:
    text = "python3 -m verl.trainer.main_ppo data.train_batch_size=$1 actor_rollout_ref.rollout.n=${2:-4}\n"
    Path("run.sh").write_text(text, encoding="utf-8")
    said = json.loads(run("check", "run.sh", "--framework-version", "0.9.1", "--json", "--", "64", "8")[1])
    rollout = said["results"][0]["spec"]["rollout"]
    assert (rollout["prompts_per_rollout"], rollout["completions_per_prompt"]) == (64, 8)


SLURM = """\
#!/bin/bash
#SBATCH --nodes=1
TASK=$1
LAUNCHER="ACCELERATE_LOG_LEVEL=info accelerate launch --num_processes $((SLURM_NNODES * 8))"
CMD="src/open_r1/$TASK.py --config recipes/$2.yaml"
srun --wait=60 -N 1 --export=ALL bash -c "$LAUNCHER $CMD" 2>&1
"""


def test_what_slurm_starts_is_read(run: Run) -> None:
    Path("recipes").mkdir()
    Path("recipes", "demo.yaml").write_text(VALID, encoding="utf-8")
    Path("train.slurm").write_text(SLURM, encoding="utf-8")
    words = ("check", "train.slurm", "--framework-version", "1.16.0", "--env", "SLURM_NNODES=1", "--json")
    (said,) = json.loads(run(*words, "--", "grpo", "demo")[1])["results"]
    assert (said["framework"], said["verdict"]) == ("open_r1", "valid")
    assert (said["spec"]["topology"]["world_size"], said["spec"]["rollout"]["completions_per_prompt"]) == (8, 8)


def test_a_script_of_ones_own_that_accelerate_starts_is_read_by_its_recipe(run: Run) -> None:
    Path("grpo.yaml").write_text(VALID, encoding="utf-8")
    launch = ("accelerate", "launch", "--num_processes", "8", "train_grpo.py", "--config", "grpo.yaml")
    code, out, _ = run("check", "--framework-version", "1.16.0", "--", *launch)
    assert code == 4
    assert out.startswith("command  trl 1.16.0  8 devices  UNDECIDED  ")
    trainer = (
        "from trl import GRPOConfig, GRPOTrainer, TrlParser\nargs = TrlParser(GRPOConfig).parse_args_and_config()\n"
    )
    Path("train_grpo.py").write_text(f"{trainer}GRPOTrainer('m', [len], args=args[0]).train()\n", encoding="utf-8")
    code, out, _ = run("check", "--framework-version", "1.16.0", "--", *launch)
    assert code == 0
    assert out.startswith("command  trl 1.16.0  8 devices  VALID  ")


@pytest.mark.parametrize("name", ["TRL", "trl", "Trl"])
def test_a_framework_is_named_as_people_write_it(run: Run, name: str) -> None:
    words = ("--framework-version", "1.16.0", "--set", "num_generations=8", "--world-size", "1")
    assert run("check", "--framework", name, *words)[1].startswith("arguments  trl 1.16.0  ")
    reading = read({"num_generations": 8}, framework=name, version="1.16.0", world_size=1)
    assert (reading.framework, convert(reading, name).framework) == ("trl", "trl")


@pytest.mark.parametrize("name", ["open-r1", "OpenRLHF", "Open-Instruct"])
def test_such_a_name_is_none_that_nobody_knows(run: Run, name: str) -> None:
    assert "no such adapter" not in run("check", "--framework", name, "--set", "a=1")[2]
    assert "no such adapter" not in run("convert", "a.yaml", "--to", name)[2]
    assert "no such adapter" in run("check", "--framework", f"{name}x", "--set", "a=1")[2]


def test_many_files_are_shared_out_and_come_in_order_with_the_worst_exit_code(
    run: Run, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, alone, _ = run("check", str(repository))
    code = run("check", str(repository))[0]
    seen: list[int] = []

    def counted(*arguments: object, **more: object) -> ProcessPoolExecutor:
        seen.append(1)
        return ProcessPoolExecutor(*arguments, **more)  # type: ignore[arg-type]  # as they were given

    monkeypatch.setattr("concurrent.futures.ProcessPoolExecutor", counted)
    monkeypatch.setattr(_folder, "MANY", 1)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    assert run("check", str(repository))[:2] == (code, alone)
    assert seen == [1]


def test_a_wrong_setting_of_one_of_many_files_is_a_usage_error(
    run: Run, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_folder, "MANY", 1)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    code, _, err = run("check", str(repository), "--framework", "nobody")
    assert code == 64
    assert "no such adapter" in err


# ---- slips of people's hands


def test_a_colon_of_a_chinese_keyboard_is_named_at_its_line(run: Run) -> None:
    Path("r.yaml").write_text("seed: 1\nper_device_train_batch_size\uff1a16\nnum_generations: 4\n", encoding="utf-8")
    code, text, _ = run("check", "r.yaml")
    assert code == 2
    assert "error :2  this is not YAML" in text
    assert "write per_device_train_batch_size: with a plain colon" in text
    Path("r.yaml").write_text("note: a\uff1ab\nnum_generations: [4\n", encoding="utf-8")  # in a value it is one
    assert "plain colon" not in run("check", "r.yaml")[1]


def test_a_text_in_gbk_is_told_from_bytes_that_are_none(run: Run) -> None:
    Path("r.yaml").write_bytes("# 批大小\nnum_generations: 4\n".encode("gbk"))
    assert "it reads as GBK: save it as UTF-8" in run("check", "r.yaml")[1]
    Path("r.yaml").write_bytes(b"\x80\x81\xfe\xff\x00\n")
    assert "GBK" not in run("check", "r.yaml")[1]


def test_a_pattern_that_no_shell_has_put_in_place_is_told_as_one(run: Run) -> None:
    for name in ("a.yaml", "b.yaml"):
        Path(name).write_text(VALID)
    assert "give the pattern without quotes, so that the shell puts 2 files in its place" in run("check", "*.yaml")[1]
    assert "pattern" not in run("check", "*.toml")[1]


@pytest.mark.parametrize("code", ["TRL-021", "BB-TRL-21", "trl-21"])
def test_a_rules_code_may_be_short(run: Run, code: str) -> None:
    assert run("rule", code)[1].startswith("# BB-TRL-021: ")


def test_latest_is_the_newest_release_and_main_is_none(run: Run) -> None:
    Path("r.yaml").write_text(VALID)
    said = ("check", "r.yaml", "--world-size", "8", "--framework", "trl")
    newest = run(*said, "--framework-version", "latest")
    assert newest == run(*said, "--framework-version", "1.16.0")
    of_main = ("--framework-version", "main")
    assert "main is named, a git commit and not a release" in run(*said, *of_main)[1]
    scaled = run("scale", "r.yaml", "--from", "8", "--gpus", "4", "--framework", "trl", *of_main)
    assert "main is named, a git commit and not a release: trl " in scaled[1]  # scale goes on as check does


def test_a_number_of_nodes_alone_answers_a_script_that_says_the_devices_of_a_node(run: Run) -> None:
    launch = "accelerate launch --num_processes $((8 * $SLURM_NNODES)) -m trl.scripts.grpo --num_generations 8\n"
    Path("run.sh").write_text(launch)
    asked = ("check", "run.sh", *KNOWN[:2])
    assert "16 devices" in run(*asked, "--nodes", "2")[1].splitlines()[0]
    assert "--nodes needs --gpus" in run("check", "--framework", "trl", "--set", "num_generations=8", "--nodes", "2")[2]


def test_choosing_a_python_is_no_warning_and_sourcing_settings_is_one(run: Run) -> None:
    Path("train.yaml").write_text(VALID)
    launch = "accelerate launch --num_processes 1 train.py --config train.yaml\n"
    for line, warned in (("source ~/miniconda3/bin/activate rl", False), ("source ./settings.sh", True)):
        Path("run.sh").write_text(f"{line}\n{launch}")
        assert ("BB015" in run("check", "run.sh", *KNOWN[:2])[1]) is warned, line
