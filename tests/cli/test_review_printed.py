"""Numbers 9, 11 and 15 to 19 of the review: what commands print, write and share, with the commands as it prints them.

Small files of ours lie at the review's paths and show the same. Where BATCHBRIDGE_UPSTREAM names a folder with
checkouts (`open-r1`, `verl`), the review's own files are asked, too.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import batchbridge
from batchbridge import Spec
from batchbridge.ledger import Header, StepRecord, Writer
from batchbridge.meaning.spec import Horizon, Loss, LossTerm, OptimizerStep, Rollout, Topology
from batchbridge.meaning.weights import Normaliser

Run = Callable[..., tuple[int, str, str]]
DEMO = """\
# accelerate launch src/open_r1/grpo.py --config demo.yaml
model_name_or_path: some/model-1.5B
dataset_name: some/dataset
dataset_prompt_column: problem
bf16: true
use_vllm: true
num_generations: 16
per_device_train_batch_size: 16
gradient_accumulation_steps: 4
max_prompt_length: 512
max_completion_length: 1024
lr_scheduler_type: cosine
num_train_epochs: 1
reward_funcs: [accuracy, format, tag_count]
reward_weights: [1.0, 1.0, 1.0]
system_prompt: "Think, then answer."
warmup_ratio: 0.1
"""
MATH = """\
python3 -m verl.trainer.main_ppo \\
    algorithm.adv_estimator=grpo \\
    data.train_files="$HOME/train.parquet" \\
    data.val_files="$HOME/test.parquet" \\
    data.train_batch_size=1024 \\
    data.max_prompt_length=1024 \\
    data.max_response_length=1024 \\
    data.filter_overlong_prompts=True \\
    actor_rollout_ref.actor.ppo_mini_batch_size=256 \\
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=16 \\
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=16 \\
    actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=16 \\
    actor_rollout_ref.rollout.name=vllm \\
    actor_rollout_ref.rollout.n=5 \\
    trainer.n_gpus_per_node=8 \\
    trainer.nnodes=1 \\
    trainer.total_epochs=15
"""
MEGATRON = """\
NNODES=${NNODES:-12}
python3 -m verl.trainer.main_ppo \\
    --config-path=config \\
    --config-name='ppo_megatron_trainer.yaml' \\
    algorithm.adv_estimator=grpo data.train_batch_size=96 data.max_prompt_length=2048 data.max_response_length=8192 \\
    actor_rollout_ref.rollout.n=8 actor_rollout_ref.rollout.name=vllm \\
    actor_rollout_ref.actor.ppo_mini_batch_size=32 actor_rollout_ref.actor.use_dynamic_bsz=True \\
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=10240 \\
    actor_rollout_ref.ref.log_prob_max_token_len_per_gpu=10240 \\
    actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu=10240 \\
    actor_rollout_ref.actor.megatron.pipeline_model_parallel_size=12 \\
    actor_rollout_ref.actor.megatron.tensor_model_parallel_size=8 \\
    trainer.n_gpus_per_node=8 trainer.nnodes="${NNODES}" trainer.total_epochs=10
"""
UNDER = ("--framework-version", "0.18.0", "--world-size", "8")
WORKSHOP = r"emulated|measured:|exp_\w+|noticed never|natively:|\w+\.py:\d+"
SCRIPT_671B = "verl/examples/grpo_trainer/run_deepseek671b_math_megatron_96gb.sh"
SCRIPT_MATH = "verl/examples/grpo_trainer/run_qwen2-7b_math.sh"
RECIPE = "open-r1/recipes/Qwen2.5-1.5B-Instruct/grpo/config_demo.yaml"
"""As the review's paths are, below a folder of checkouts."""


@pytest.fixture(params=["ours", "the review's"])
def run(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    typed: Run,
) -> Run:
    """The command line in this process, in a folder with `demo.yaml`, `run_qwen2-7b_math.sh` and the 671B script, ours
    or the review's; (exit code, output, errors)."""
    files = {RECIPE: (DEMO, "demo.yaml"), SCRIPT_MATH: (MATH, "run_qwen2-7b_math.sh"), SCRIPT_671B: (MEGATRON, "")}
    checkouts = Path(os.environ.get("BATCHBRIDGE_UPSTREAM", "/nowhere"))
    if request.param != "ours" and not all((checkouts / name).is_file() for name in files):
        pytest.skip("BATCHBRIDGE_UPSTREAM names no folder with checkouts open-r1 and verl")
    monkeypatch.chdir(tmp_path)
    for name, (ours, beside) in files.items():
        there = Path(beside or name)
        there.parent.mkdir(parents=True, exist_ok=True)
        if request.param == "ours":
            there.write_text(ours, encoding="utf-8")
        else:
            shutil.copyfile(checkouts / name, there)
    Path("requirements.txt").write_text("trl==0.18.0\n", encoding="utf-8")
    Path("accelerate_configs").mkdir()
    Path("accelerate_configs", "ddp.yaml").write_text("distributed_type: MULTI_GPU\nnum_processes: 8\n")
    return typed


def test_9_a_valid_script_takes_eight_lines_the_verdict_first(run: Run) -> None:
    code, out, err = run("check", "run_qwen2-7b_math.sh", "--framework-version", "0.7.0")
    lines = out.splitlines()
    assert (code, err) == (0, "")
    assert len(lines) <= 8
    assert re.fullmatch(
        r"run_qwen2-7b_math\.sh  verl 0\.7\.0  8 devices  VALID  1 warning, [3-9] notes \(-v shows them\)", lines[0]
    )
    assert (
        lines[1].strip() == "1,024 prompts x 5 = 5,120 completions per rollout; 4 optimizer steps of 1,280 completions"
    )
    (warning,) = [line for line in lines if line.startswith("  warning ")]
    assert re.match(r"  warning :\d+  .*micro-batch size and the devices    BB-VERL-042$", warning)
    assert not [line for line in lines if line.startswith("  note")]
    assert re.findall(WORKSHOP, out) == []
    assert max(map(len, lines)) <= 160


def test_9_the_notes_and_the_sources_are_those_of_v(run: Run) -> None:
    words = ("check", "run_qwen2-7b_math.sh", "--framework-version", "0.7.0")
    counted = re.search(r"(\d+) notes", run(*words)[1])
    out = run(*words, "-v")[1]
    assert counted is not None
    assert len(re.findall(r"(?m)^  note", out)) == int(counted[1])
    assert "    source: " in out
    assert re.findall(r"emulated|measured:|exp_\w+|noticed never|natively:", out) == []


def test_11_convert_writes_a_script_and_the_account_stands_on_standard_error(run: Run) -> None:
    code, script, account = run(
        *("convert", "demo.yaml", "--framework-version", "0.18.0", "--gpus", "8", "--to", "verl")
    )
    assert code == 0
    Path("run_verl.sh").write_text(script, encoding="utf-8")
    assert subprocess.run(["bash", "-n", "run_verl.sh"], check=False).returncode == 0
    fill_in = dict(re.findall(r"(?m)^# fill in: (\w+) +(.+)$", script))
    assert set(fill_in) == {"DATA", "VAL_DATA", "REWARDS"}
    assert "dataset_name" in fill_in["DATA"]
    assert "accuracy, format, tag_count, weights 1, 1, 1" in fill_in["REWARDS"]
    assert set(re.findall(r"\$\{(\w+):\?\}", script)) == set(fill_in)
    assert re.search(r"(?m)^    actor_rollout_ref\.model\.path=\w+/\S+ \\$", script)
    assert 'data.train_files="${DATA:?}"' in script
    assert 'custom_reward_function.path="${REWARDS:?}"' in script
    headline, first, *rest = account.splitlines()
    assert headline.endswith(": complete")
    assert first == "  1. fill in DATA, VAL_DATA, REWARDS:"
    assert "Exact" not in account
    assert max(map(len, rest)) < 200  # no system prompt is dumped
    commands = account.partition("\nNext\n")[2].splitlines()
    assert [line.split()[:2] for line in commands] == [["batchbridge", "check"], ["batchbridge", "diff"]]


def test_11_a_script_whose_variables_are_not_filled_in_stops_before_it_trains(run: Run) -> None:
    script = run("convert", "demo.yaml", "--framework-version", "0.18.0", "--gpus", "8", "--to", "verl")[1]
    pretended = script.replace("python3 -m verl.trainer.main_ppo", "echo trains")
    assert pretended != script
    filled = {"PATH": os.environ["PATH"], "DATA": "a", "VAL_DATA": "b", "REWARDS": "c"}
    for left_out in ("DATA", "VAL_DATA", "REWARDS", ""):
        environment = {name: value for name, value in filled.items() if name != left_out}
        ran = subprocess.run(["bash", "-c", pretended], env=environment, check=False, capture_output=True, text=True)
        assert (ran.returncode == 0, "trains" in ran.stdout, left_out in ran.stderr) == (
            not left_out,
            not left_out,
            True,
        )


def test_11_what_is_refused_is_no_script_and_says_so_on_standard_error(run: Run) -> None:
    Path("demo.yaml").write_text(Path("demo.yaml").read_text().replace("cosine", "linear"), encoding="utf-8")
    code, out, err = run("convert", "demo.yaml", "--framework-version", "0.18.0", "--gpus", "8", "--to", "verl")
    if "linear" not in Path("demo.yaml").read_text():
        pytest.skip("the review's own recipe names another schedule")
    assert (code, out) == (3, "")
    assert "nothing was written" in err.splitlines()[1]
    assert "--allow-lossy" in err


def test_15_explain_writes_a_page_of_one_file(run: Run) -> None:
    pytest.importorskip("jinja2", reason="the extra `html` is not installed")
    assert run("explain", "demo.yaml", *UNDER, "--html", "report.html")[0] == 0
    page = Path("report.html").read_text(encoding="utf-8")
    for words in ("512 completions", "BB-TRL-062", "<svg", "num_generations = 16"):
        assert words in page
    assert re.findall(r"(?:src|href)=\"(?!#)[^\"]*\"", page) == []


def test_15_a_plan_is_drawn_at_most_1200_pixels_wide_with_devices_and_micro_batches(run: Run) -> None:
    assert run("plan", "demo.yaml", *UNDER, "--dataset-size", "8000", "--svg", "plan.svg")[0] == 0
    root = ET.fromstring(Path("plan.svg").read_text(encoding="utf-8"))
    _, _, wide, high = (float(number) for number in root.attrib["viewBox"].split())
    assert wide <= 1200
    assert high > 78
    drawn = [rectangle for rectangle in root.findall(".//{*}rect") if rectangle.attrib.get("width") != "100%"]
    right = [float(one.attrib.get("x", 0)) + float(one.attrib["width"]) for one in drawn]
    assert max(right) <= wide
    titles = {title.text for title in root.findall(".//{*}title")}
    for device in range(8):
        for micro in range(4):
            assert any(f"device {device}, micro-batch {micro}" in (title or "") for title in titles)


def test_15_python_explains_and_a_console_gets_one_line_and_a_notebook_a_fragment(run: Run) -> None:
    found = batchbridge.explain("demo.yaml", version="0.18.0", world_size=8)
    assert "512 completions" in str(found)
    plan = batchbridge.Plan(found.reading.spec, 8000)
    for one in (found, found.reading, found.reading.spec, plan):
        assert "\n" not in repr(one)
        assert len(repr(one)) < 200
        assert " at 0x" not in repr(one)
        assert one._repr_html_().lstrip().startswith("<")


def test_15_wrap_reports_to_a_tracker() -> None:
    signature = inspect.signature(batchbridge.wrap)
    assert signature.bind(object(), report_to="wandb").arguments["report_to"] == "wandb"


def ledger(folder: Path) -> Path:
    """A run of two optimizer steps, each over two completions of one prompt."""
    spec = Spec(
        topology=Topology(world_size=1),
        rollout=Rollout(prompts_per_rollout=1, completions_per_prompt=2),
        optimizer_step=OptimizerStep(completions_per_step=2),
        loss=Loss(policy=LossTerm(aggregation="token_mean")),
        horizon=Horizon(optimizer_steps=2),
    )
    said: dict[str, Any] = {"framework": "toy", "framework_version": "2.0", "mode": "verify"}
    with Writer(folder, Header(**said, spec=spec, dataset_size=9, world_size=1, rank=0)) as writer:
        for step in range(2):
            writer.append(
                StepRecord(
                    step=step,
                    epoch=0,
                    normaliser=Normaliser(aggregation="token_mean", completions=2, tokens=7),
                    learning_rate=0.5,
                    gradient_norm=None,
                    skipped=False,
                    lr_tick=True,
                    rollout=[step, step],
                    pass_index=[0, 0],
                    prompt=[step, step],
                    sample=[0, 1],
                    prompt_fingerprint=["0" * 16] * 2,
                    completion_fingerprint=["1" * 16, "2" * 16],
                    response_tokens=[3, 4],
                    reward=[0.0, 1.0],
                    advantage=[-1.0, 1.0],
                    old_logprobs=[None, None],
                    generated_at_step=[step, step],
                )
            )
    return folder


def test_15_a_ledger_has_a_summary_and_a_table(run: Run, tmp_path: Path) -> None:
    folder = str(ledger(tmp_path / "ledger"))
    code, out, _ = run("ledger", "show", folder, "--summary")
    assert code == 0
    assert "  steps: 2: 0 to 1" in out
    assert re.search(r"(?m)^0 +4 +14$", out)  # rank, completions, response tokens
    assert run("ledger", "export", folder, "--csv", "run.csv")[0] == 0
    assert len(Path("run.csv").read_text(encoding="utf-8").splitlines()) == 1 + 4


def test_16_devices_that_do_not_hold_the_model_are_said_to(run: Run) -> None:
    Path("requirements.txt").write_text("verl==0.7.0\n", encoding="utf-8")
    code, out, _ = run("scale", SCRIPT_671B, "--world-size", "64")
    assert code == 3
    assert "64 devices do not hold tensor parallel 8 x pipeline parallel 12 = 96 devices" in out
    assert "set:" not in out


def test_16_without_a_version_it_is_the_version_that_is_asked_for(run: Run) -> None:
    Path("requirements.txt").unlink()
    code, out, _ = run("scale", SCRIPT_671B, "--world-size", "64")
    assert code == 3
    assert "no version was named: verl " in out
    assert "--from" not in out


def test_16_three_sane_choices_are_offered_and_one_is_applied(run: Run) -> None:
    before = Path("demo.yaml").read_text(encoding="utf-8")
    code, out, _ = run("scale", "demo.yaml", "--world-size", "6")
    assert code == 3
    (devices,) = re.findall(r"(?m)^devices +(.+)$", out)
    (steps,) = re.findall(r"(?m)^micro-batches per step +(.+)$", out)
    assert devices.split()[:2] == ["8", "6"]
    assert 1 <= len(devices.split()) - 1 <= 3
    assert all(int(number) <= 6 for number in devices.split()[1:])
    assert max(map(int, steps.split())) <= 2 * 4
    assert "generation_batch_size" not in out
    assert run("scale", "demo.yaml", "--world-size", "6", "--apply", "1", "-o", "six.yaml")[0] == 0
    assert Path("demo.yaml").read_text(encoding="utf-8") == before
    after = Path("six.yaml").read_text(encoding="utf-8")
    changed = [pair for pair in zip(before.splitlines(), after.splitlines(), strict=True) if pair[0] != pair[1]]
    assert 1 <= len(changed) <= 2
    assert run("check", "six.yaml", "--framework-version", "0.18.0", "--world-size", "6")[0] == 0


def test_17_an_editor_gets_the_schema_of_trls_own_file(run: Run) -> None:
    code, out, _ = run("schema", "--framework", "trl", "--framework-version", "0.18.0")
    assert code == 0
    schema = json.loads(out)
    assert "draft-07" in schema["$schema"]
    assert schema["$id"].endswith("trl:0.18.0")
    assert "yaml-language-server: $schema=" in schema["$comment"]
    assert schema["properties"]["num_generations"]["type"] == [
        "integer",
        "string",
    ]  # YAML's own, and a text that holds one
    assert schema["properties"]["vllm_device"]["not"] == {}
    assert schema["additionalProperties"] is False


TEXT = "ValueError: Unknown arguments from config file: ['vllm_device']"


@pytest.mark.parametrize(
    ("words", "files"),
    [
        (("check", "demo.yaml", *UNDER), {"file": "demo.yaml"}),
        (("diff", "demo.yaml", "demo.yaml", *UNDER), {"file_a": "demo.yaml", "file_b": "demo.yaml"}),
        (("doctor", TEXT), {"file": None}),
        (("doctor", "err.txt", "--config", "demo.yaml", *UNDER), {"file": "demo.yaml"}),
    ],
    ids=["check", "diff", "doctor", "doctor with a configuration"],
)
def test_18_the_envelope_of_json_is_one(run: Run, words: tuple[str, ...], files: dict[str, str | None]) -> None:
    Path("err.txt").write_text(TEXT, encoding="utf-8")
    code, out, _ = run(*words, "--json")
    said = json.loads(out)
    one = {"layout", "tool_version", "command", "results", "exit_code", "exit_meaning", "error"}
    assert set(said) - {"skipped", "not_read"} == one
    assert said["layout"] == "batchbridge/json/1"
    assert re.match(r"\d+\.\d+", said["tool_version"])
    assert (said["command"], said["exit_code"]) == (words[0], code)
    (result,) = said["results"]
    assert {name: result[name] for name in files} == files


def test_19_the_shape_of_the_first_rollout_needs_no_dataset(run: Run) -> None:
    code, out, _ = run("plan", "demo.yaml", *UNDER)
    assert code == 0
    assert "--dataset-size" in out
    assert re.search(r"(?m)^rollout 0  .*32 prompts x 16", out)
    assert re.search(r"(?m)^step 0  .*512 completions", out)
    assert "numbers of prompts below are places of their rollout" in out


@pytest.mark.parametrize("size", [(), ("--dataset-size", "8000")], ids=["no dataset", "8,000 prompts"])
def test_19_no_number_has_its_unit_twice(run: Run, size: tuple[str, ...]) -> None:
    for command in (("plan",), ("explain", "-v")):
        out = run(*command, "demo.yaml", *UNDER, *size)[1]
        assert re.search(r"(?m)^ *optimizer_steps_per_rollout:? +1$", out)
        assert re.findall(r"(?m)^ *(\w+_steps_per_\w+|total_\w+|\w+_per_step):? +[\d,]+ [a-z].*$", out) == []
