"""Settings outside the schema in a conversion: written, a variable to fill in, or listed; and what is refused."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shlex
import subprocess
from collections.abc import Callable, Mapping
from fractions import Fraction
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from real import DATASET, VERSIONS, name_of, text_of
from registered import adapters
from toys import AnyAdapter, NarrowAdapter, plain_spec, reading_of

import batchbridge
from batchbridge.comparing.convert import Conversion, convert_to
from batchbridge.comparing.effects import BY_FIELD
from batchbridge.comparing.outside import FILES, MOST_READ, OutsideReport, _accepted, all_left, plain_text
from batchbridge.contract import plugins
from batchbridge.contract.outside import SHARED, SharedSetting
from batchbridge.contract.own_copy import OwnCopy
from batchbridge.contract.reading import Context, Reading, Source, Written
from batchbridge.kit.key_table import settings_in
from batchbridge.meaning.findings import Finding, Where
from batchbridge.reading.read import read_source
from batchbridge.render import between

pytestmark = pytest.mark.usefixtures("own_adapters", "empty_folder")
RECIPE = """\
# GRPO with rewards of Open-R1
model_name_or_path: Qwen/Qwen2.5-1.5B-Instruct
dataset_name: open-r1/OpenR1-Math-220k
dataset_prompt_column: problem
system_prompt: "Think first: <think>\\n...\\n</think>"
reward_funcs: [accuracy, format, tag_count]
reward_weights: [1.0, 1.0, 1.0]
per_device_train_batch_size: 16
gradient_accumulation_steps: 4
num_generations: 16
max_prompt_length: 512
max_completion_length: 1024
num_train_epochs: 1
learning_rate: 2.0e-05
lr_scheduler_type: cosine
warmup_ratio: 0.1
seed: 42
bf16: true
use_vllm: true
gradient_checkpointing: true
report_to: [wandb]
run_name: first-try
output_dir: data/first try
save_strategy: steps
save_steps: 20
save_total_limit: 3
logging_steps: 1
"""
Run = Callable[..., tuple[int, str, str]]


def next_commands(account: str) -> list[list[str]]:
    """The commands that an account ends with, without the program's name."""
    lines = account.partition("\nNext\n")[2].splitlines()
    return [shlex.split(line)[1:] for line in lines if line.startswith("  batchbridge ")]


def started(script: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """What the script starts, word by word: `python3` only says how it was called."""
    programs = script.parent / "programs"
    programs.mkdir(exist_ok=True)
    for name in ("python3", "python"):
        (programs / name).write_text('#!/bin/sh\nfor word in "$@"; do printf "%s\\n" "$word"; done\n')
        (programs / name).chmod(0o755)
    env = {"PATH": f"{programs}:{os.environ['PATH']}", **variables}
    return subprocess.run(["bash", str(script)], env=env, capture_output=True, text=True, check=False, timeout=30)


def converted(said: Mapping[str, Any], to: str, **more: Any) -> Conversion:
    sizes = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1, "num_generations": 8}
    adapter = adapters()["trl"]
    context = Context(framework_version="0.18.0", world_size=8, dataset_size=DATASET)
    reading = read_source(Source(values={**sizes, **said}), adapter, context)
    return convert_to(adapters()[to], reading, given={**sizes, **said}, **more)


@pytest.mark.parametrize("to", ["openrlhf", "open_instruct"])
def test_a_text_that_begins_with_a_dash_is_joined_to_its_option(to: str, tmp_path: Path) -> None:
    written = converted({"output_dir": "-dash", "dataset_name": "a -b", "model_name_or_path": "m"}, to).written
    assert written is not None
    script = tmp_path / "run.sh"
    script.write_text(written.text["shell"], encoding="utf-8")
    variables = dict.fromkeys(re.findall(r"\$\{([A-Z_]+):", written.text["shell"]), "x")
    words = started(script, **variables).stdout.splitlines()
    (key,) = (key for key, value in written.values.items() if value == "-dash")
    assert f"--{key}=-dash" in words
    options = {word.partition("=")[0] for word in words if word.startswith("-")} - {"-m"}
    assert options == {f"--{key}" for key in written.values if key != "script"}
    assert f"--{key}=-dash" in written.text["argv"].splitlines()


# ---- the user's story: review 11


def test_a_recipe_of_open_r1_becomes_a_script_of_verl_that_runs_once_it_is_filled_in(typed: Run) -> None:
    Path("demo.yaml").write_text(RECIPE, encoding="utf-8")
    words = ("convert", "demo.yaml", "--framework-version", "0.18.0", "--gpus", "8", "--to", "verl")
    code, out, err = typed(*words)  # `> run_verl.sh`
    script = Path("run_verl.sh")
    script.write_text(out, encoding="utf-8")
    assert code == 0, err
    remarks = [line for line in out.splitlines() if line.startswith("# fill in:")]
    assert remarks == [
        "# fill in: DATA      open-r1/OpenR1-Math-220k as parquet files in verl's form (dataset_name)",
        "# fill in: VAL_DATA  parquet files to validate on: verl always asks for some (the source does not say it)",
        "# fill in: REWARDS   accuracy, format, tag_count, weights 1, 1, 1 as a Python file with compute_score "
        "(reward_funcs)",
    ]
    assert '\n    data.train_files="${DATA:?}" \\\n' in out
    said = err.splitlines()
    assert said[1] == "  1. fill in DATA, VAL_DATA, REWARDS:"
    assert "look at these settings, for which verl has none that fits: dataset_prompt_column = problem" in err
    assert "use_vllm" not in err
    assert "Exact" not in err

    empty = started(script)
    assert empty.returncode != 0
    assert "DATA" in empty.stderr
    filled = started(script, DATA="/data/a b.parquet", VAL_DATA="v.parquet", REWARDS="r.py")
    assert filled.returncode == 0, filled.stderr
    assert {
        "actor_rollout_ref.model.path=Qwen/Qwen2.5-1.5B-Instruct",
        "data.train_files=/data/a b.parquet",
        "reward.custom_reward_function.path=r.py",
        "trainer.logger=[console,wandb]",
        "trainer.experiment_name=first-try",
        "trainer.default_local_dir=data/first try",
        "trainer.save_freq=20",
        "trainer.max_actor_ckpt_to_keep=3",
        "data.train_batch_size=32",
    } <= set(filled.stdout.splitlines())

    code, out, err = typed("check", "run_verl.sh", "--framework-version", "0.9.1", "--json")
    findings = json.loads(out)["results"][0]["findings"]
    assert (code, json.loads(out)["results"][0]["verdict"]) == (0, "valid"), findings
    assert not [finding for finding in findings if finding["severity"] == "error"]
    (open_ones,) = (finding for finding in findings if finding["code"] == "BB017")
    assert open_ones["message"].endswith("data.train_files, data.val_files, reward.custom_reward_function.path")


def test_the_way_back_finds_model_data_and_logs_again(typed: Run) -> None:
    Path("demo.yaml").write_text(RECIPE, encoding="utf-8")
    there = ("--framework-version", "0.18.0", "--gpus", "8", "--to", "verl", "-o", "run_verl.sh")
    assert typed("convert", "demo.yaml", *there)[0] == 0
    back = ("--framework-version", "0.9.1", "--to", "open-r1", "--to-version", "0.18.0", "-o", "back.yaml")
    code, out, err = typed("convert", "run_verl.sh", *back)
    assert code == 0, out + err
    text = Path("back.yaml").read_text(encoding="utf-8")
    for line in (
        'model_name_or_path: "Qwen/Qwen2.5-1.5B-Instruct"',
        'output_dir: "data/first try"',
        "save_steps: 20",
        'report_to: ["wandb"]',
        'dataset_name: "<DATA>"',
        'reward_funcs: ["<REWARDS>"]',
        'run_name: "first-try"',
    ):
        assert line in text, text
    code, out, _ = typed(*next_commands(out)[0], "--json")
    notes = [finding["message"] for finding in json.loads(out)["results"][0]["findings"] if finding["code"] == "BB018"]
    assert (code, json.loads(out)["results"][0]["verdict"]) == (0, "valid")
    assert notes == [
        "dataset_name still has a placeholder, <DATA>",
        "reward_funcs still has a placeholder, <REWARDS>",
    ]


@pytest.mark.shared
def test_the_real_demo_of_open_r1_is_converted(typed: Run, shared: Path) -> None:
    recipe = shared / "configs" / "open-r1" / "Qwen2.5-1.5B-Instruct" / "grpo" / "config_demo.yaml"
    words = ("--framework", "open_r1", "--framework-version", "0.18.0", "--gpus", "8", "--to", "verl", "-o", "run.sh")
    code, out, _ = typed("convert", str(recipe), *words)
    assert code == 0, out
    assert typed(*next_commands(out)[0])[0] == 0


@pytest.fixture
def shared() -> Path:
    path = Path(__file__).parents[3] / "shared" / "corpus"
    if not path.exists():
        pytest.skip("../shared/corpus is not part of this repository")
    return path


# ---- every pair


@pytest.mark.parametrize(("one", "other"), list(permutations(sorted(adapters()), 2)))
def test_every_pair_writes_what_lacks_nothing_but_its_variables(one: str, other: str, typed: Run) -> None:
    Path(name_of(one)).write_text(text_of(one), encoding="utf-8")
    world = ("--world-size", "8") if name_of(one) == "recipe.yaml" else ()
    source = ("--framework", one, "--framework-version", VERSIONS[one], *world, "--dataset-size", str(DATASET))
    suffix = "yaml" if other in ("trl", "open_r1") else "sh"
    to = ("--to", other, "--to-version", VERSIONS[other], "--allow-lossy")
    words = ("convert", name_of(one), *source, *to, "-o", f"out.{suffix}")
    code, account, err = typed(*words)
    assert code == 0, account + err
    (told,) = json.loads(typed(*words, "--overwrite", "--json")[1])["results"]
    check, difference = next_commands(account)
    code, out, _ = typed(*check, "--json")
    (found,) = json.loads(out)["results"]
    assert (code, found["verdict"]) == (0, "valid"), found["findings"]
    missing = {place["key"] for one in found["findings"] if one["code"] == "BB018" for place in one["where"]}
    for finding in found["findings"]:
        missing |= (
            set(finding["message"].partition("environment: ")[2].split(", ")) if finding["code"] == "BB017" else set()
        )
    variables = {report["target_key"] for report in told["outside"] if report["status"] == "fill in"}
    assert missing == variables
    assert variables or other == "open_instruct", "no framework runs without a model or rewards"
    assert typed(*difference)[0] in (0, 3, 4)


# ---- words of a shell, lines of a comment

HOSTILE = "a b'c\"d`touch hacked`;touch hacked\\"


@pytest.mark.parametrize("to", ["verl", "easyr1", "openrlhf", "open_instruct"])
def test_a_value_is_one_word_for_a_shell_whatever_is_in_it(to: str, tmp_path: Path) -> None:
    found = converted({"output_dir": HOSTILE, "run_name": "x\ny", "model_name_or_path": "m"}, to)
    assert found.written is not None
    form = next(form for form in found.written.text if form not in FILES)
    script = tmp_path / "run.sh"
    script.write_text(found.written.text[form], encoding="utf-8")
    said = started(script, DATA="d", VAL_DATA="v", REWARDS="r", MODEL="m")
    assert said.returncode == 0, said.stderr
    assert not (tmp_path / "hacked").exists()
    assert not Path("hacked").exists()
    assert "touch hacked" in said.stdout


def test_a_remark_stays_on_its_line_and_is_short() -> None:
    found = converted({"dataset_name": "evil\npython3 -c 1\r\x1b[1m" + "x" * 500, "model_name_or_path": "m"}, "verl")
    assert found.written is not None
    for text in found.written.text.values():
        remarks = [line for line in text.splitlines() if line.startswith("# fill in: DATA")]
        assert len(remarks) == 1
        assert len(remarks[0]) < 160
        assert text.isprintable() or "\x1b" not in text
        assert not any(line.startswith("python3 -c") for line in text.splitlines())


def test_a_number_of_more_digits_than_python_writes_is_no_crash() -> None:
    assert plain_text([10**5000]) == "a number of too many digits"


@pytest.mark.parametrize("value", [float("nan"), "half \ud800", {"a": ["\udfff"]}], ids=type)
def test_a_value_that_no_form_can_say_is_left(value: object) -> None:
    sizes = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1, "num_generations": 8}
    said = {**sizes, "callbacks": value, "run_name": "fine"}
    adapter = adapters()["open_r1"]
    reading = read_source(Source(values=said), adapter, Context(framework_version="0.18.0", world_size=8))
    for to in ("open_r1", "verl"):
        found = convert_to(adapters()[to], reading, version="0.18.0" if to == "open_r1" else None, given=said)
        assert found.written is not None
        assert "fine" in found.written.values.values()
        assert any(report.keys[0].startswith("callbacks") for report in found.outside if report.status == "left")
        assert all(text.encode() for text in found.written.text.values())


def test_control_characters_do_not_get_into_a_command() -> None:
    found = converted({"run_name": "x\x1b]0;evil\x07", "output_dir": "two\nlines"}, "verl")
    assert found.written is not None
    assert not {"trainer.experiment_name", "trainer.default_local_dir"} & set(found.written.values)
    assert {report.keys[0] for report in found.outside if report.matters} == {"run_name", "output_dir"}


@pytest.mark.parametrize("value", ["red \x1b[31m", ["a", "right \u202e left"], {"a": {"\x07": 1}}], ids=type)
def test_control_characters_do_not_get_from_one_release_to_another_either(value: object) -> None:
    sizes = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1, "num_generations": 8}
    said = {**sizes, "chat_template": "two\nlines\tand a tab", "callbacks": value}
    adapter = adapters()["open_r1"]
    reading = read_source(Source(values=said), adapter, Context(framework_version="0.18.0", world_size=8))
    found = convert_to(adapter, reading, version="0.18.0", given=dict(settings_in(said)))
    assert found.written is not None
    assert found.written.values["chat_template"] == said["chat_template"]
    assert {report.keys[0].partition(".")[0] for report in found.outside if report.status == "left"} == {"callbacks"}


def test_a_key_with_keys_below_it_is_no_crash() -> None:
    said = {"gradient_checkpointing_kwargs": {"a": 1, "a.b": 2}, "reward_funcs": ["f"]}
    found = converted(said, "trl", version="0.18.0")
    assert found.written is not None
    assert found.written.values["reward_funcs"] == ["f"]


def test_a_value_that_a_script_leaves_open_is_no_value(typed: Run) -> None:
    Path("run.sh").write_text(text_of("verl").replace("data.train", "actor_rollout_ref.model.path=$MY data.train", 1))
    words = ("--framework-version", "0.9.1", "--dataset-size", str(DATASET), "--to", "easyr1", "--allow-lossy")
    out = typed("convert", "run.sh", *words)[1]
    assert 'worker.actor.model.model_path="${MODEL:?}"' in out
    assert "# fill in: MODEL     $MY as a model's folder" in out
    assert "=$MY" not in out


# ---- what is shared


def test_a_shared_word_is_one_of_those_that_are_known() -> None:
    with pytest.raises(ValueError, match="known are model"):
        SharedSetting("modle")


@pytest.mark.parametrize("framework", sorted(adapters()))
def test_every_framework_has_a_model_and_a_folder_for_checkpoints(framework: str) -> None:
    names = {row.name for row in adapters()[framework].shared_settings().values()}
    assert {"model", "train_data", "output_folder", "save_every", "run_name"} <= names <= set(SHARED)


SAMPLES: Mapping[str, Any] = {
    **dict.fromkeys(("model", "train_data", "validation_data"), "a/b"),
    **dict.fromkeys(("prompt_column", "output_folder", "project", "run_name"), "x"),
    "generator": "vllm",
    "loggers": ("wandb",),
    "save_every": Fraction(20),
    "kept_checkpoints": 3,
    "gradient_checkpointing": True,
    "trust_remote_code": True,
}


@pytest.mark.parametrize("framework", sorted(adapters()))
def test_a_shared_setting_is_read_as_it_was_written(framework: str) -> None:
    """One table serves both ways: what a row writes, it reads."""
    adapter, version = adapters()[framework], VERSIONS[framework]
    Path(name_of(framework)).write_text(text_of(framework), encoding="utf-8")
    world = 8 if name_of(framework) == "recipe.yaml" else None
    reading = batchbridge.read(name_of(framework), framework=framework, version=version, world_size=world)
    assert reading.spec is not None
    written = 0
    for key, row in adapter.shared_settings().items():
        value = row.write(SAMPLES.get(row.name, "words"), reading)
        if value is None or key == "save_strategy":
            continue
        native = {**reading.native, "save_strategy": "steps", key: value}
        assert row.read(value, dataclasses.replace(reading, native=native)) == SAMPLES[row.name], key
        written += 1
    assert written >= 6


@pytest.mark.parametrize("framework", sorted(adapters()))
@pytest.mark.parametrize(
    "value", [None, "", " ", -1, 0, 1.5, True, [], [1, None], {"a": 1}, pytest.param(10**5000, id="huge")]
)
def test_no_value_makes_a_row_fail(framework: str, value: object) -> None:
    reading = batchbridge.read({}, framework=framework, version=VERSIONS[framework])
    for row in adapters()[framework].shared_settings().values():
        row.read(value, reading)


@pytest.mark.parametrize(
    ("said", "to", "key", "value"),
    [
        ({"save_strategy": "steps", "save_steps": 40, "num_iterations": 2}, "verl", "trainer.save_freq", 20),
        ({"save_strategy": "steps", "save_steps": 25, "num_iterations": 2}, "verl", "trainer.save_freq", None),
        ({"save_strategy": "no"}, "verl", "trainer.save_freq", -1),
        ({"save_strategy": "epoch"}, "verl", "trainer.save_freq", None),
        ({"report_to": "none"}, "verl", "trainer.logger", ["console"]),
        ({"report_to": "all"}, "verl", "trainer.logger", None),
        ({"report_to": ["codecarbon"]}, "verl", "trainer.logger", None),
        ({"report_to": "wandb"}, "open_instruct", "with_tracking", True),
        ({"dataset_name": "a/b"}, "easyr1", "data.train_files", "a/b@train"),
        ({"dataset_name": "a/b", "dataset_config": "c"}, "easyr1", "data.train_files", "<DATA>"),
        ({"dataset_name": "data/x.parquet"}, "easyr1", "data.train_files", "<DATA>"),
        ({"dataset_name": "a/b"}, "open_instruct", "dataset_mixer_list", ["a/b", "1.0"]),
        ({"dataset_name": "a/b"}, "verl", "data.train_files", "<DATA>"),
        ({}, "openrlhf", "actor.model_name_or_path", "<MODEL>"),
    ],
)
def test_a_setting_is_said_in_the_target_s_own_unit_and_form(
    said: dict[str, Any], to: str, key: str, value: object
) -> None:
    found = converted(said, to)
    assert found.written is not None
    assert found.written.values.get(key) == value
    if value is None:
        assert found.left_behind is not None
        assert set(said) & set(found.left_behind)


@pytest.mark.parametrize(("version", "group"), [("0.9.1", "reward."), ("0.5.0", "")])
def test_a_key_is_spelled_as_in_the_version_that_is_written_for(version: str, group: str) -> None:
    found = converted({"reward_funcs": ["a"]}, "verl", version=version)
    assert found.written is not None
    keys = {name for name in found.written.values if "reward_function" in name}
    assert keys == {f"{group}custom_reward_function.path"}


def test_nothing_is_silently_dropped() -> None:
    said = {"reward_funcs": ["a"], "lora_r": 8, "use_peft": True, "hub_model_id": "me/x", "chat_template": "c" * 200}
    found = converted(said, "verl")
    told = {key for report in found.outside for key in report.keys}
    assert set(said) <= told
    assert {report.keys[0] for report in found.outside if report.matters} == {"lora_r", "use_peft", "chat_template"}


def test_of_one_framework_s_own_words_all_that_it_takes_come_along() -> None:
    said = {"reward_funcs": ["a"], "lora_r": 8, "gradient_checkpointing_kwargs": {"use_reentrant": False}}
    found = converted({**said, "max_prompt_length": 64, "torch_dtype": "auto"}, "trl", version="1.16.0")
    assert found.written is not None
    assert {key: found.written.values[key] for key in said} == said
    assert "torch_dtype" not in found.written.values
    assert "torch_dtype" in (found.left_behind or {})


@pytest.mark.parametrize("refused", [set(), {0}, {7, 300}, set(range(0, 400, 3)), set(range(400))])
@pytest.mark.parametrize("named", [True, False])
def test_few_readings_find_what_a_target_takes_of_many_settings(refused: set[int], named: bool) -> None:
    def offer(key: str) -> OutsideReport:
        return OutsideReport(keys=("here",), value=1, status="mapped", target_key=key, target=1)

    offers = [[offer(f"k{i}")] for i in range(400)]
    offers[7].append(offer("other"))
    wrong = {f"k{i}" for i in refused}
    back = reading_of(plain_spec())
    asked = []

    def read(values: Mapping[str, Any]) -> Reading:
        asked.append(values)
        keys = sorted(wrong & values.keys())
        where = tuple(Where(key) for key in keys) if named else ()
        return dataclasses.replace(back, findings=(Finding("BB-X-1", "error", "config", "no", where),) if keys else ())

    taken = [report.target_key for report in _accepted(offers, Written(values={}, text={}), back, read)]
    if len(refused) < (400 if named else 3):
        expected = [f"k{i}" if i not in refused else "other" for i in range(400) if i not in refused or i == 7]
        assert taken == expected
    assert not wrong & set(taken)
    assert len(asked) <= MOST_READ


def test_a_framework_without_a_table_is_written_as_its_specification_says() -> None:
    found = convert_to(NarrowAdapter(), reading_of(plain_spec(), AnyAdapter()), given={"model": "m"})
    assert found.written is not None
    assert found.written == NarrowAdapter().write(plain_spec())
    assert [(report.keys, report.status, report.matters) for report in found.outside] == [(("model",), "left", True)]


# ---- losses are graded


def test_what_is_rare_is_said_by_the_row_and_its_values() -> None:
    rare = {field for field, effect in BY_FIELD.items() if effect.rare(None, 1e9)}
    assert rare == {
        "objective.nonfinite_step",
        "objective.kl_clamp",
        "objective.kl_log_ratio_clamp",
        "objective.dual_clip",
        *(f"loss.{term}.count_empty" for term in ("policy", "kl", "entropy")),
        "critic.count_empty",
    }
    assert not BY_FIELD["objective.kl_clamp"].rare(None, 0.1)
    assert not BY_FIELD["objective.dual_clip"].rare(3.0, 1.1)


def test_differences_in_rare_steps_are_written_unless_it_is_strict(typed: Run) -> None:
    Path("demo.yaml").write_text(RECIPE, encoding="utf-8")
    words = ("convert", "demo.yaml", "--framework-version", "0.18.0", "--gpus", "8", "--to", "verl")
    code, out, err = typed(*words, "--strict")
    assert (code, out) == (3, "")
    assert "nothing was written: 2 fields would mean something else" in err
    assert typed(*words, "--strict", "--allow-lossy")[0] == 0
    _, _, err = typed(*words)
    assert "Different in rare steps only (--strict refuses that)\n  objective.kl_clamp: - -> 10 nats\n" in err
    reading = batchbridge.read("demo.yaml", version="0.18.0", world_size=8)
    assert [batchbridge.convert(reading, "verl", strict=strict).verdict for strict in (False, True)] == [
        "complete",
        "lossy",
    ]


def test_a_difference_in_every_step_is_refused(typed: Run) -> None:
    Path("demo.yaml").write_text(RECIPE.replace("cosine", "linear"), encoding="utf-8")
    words = ("convert", "demo.yaml", "--framework-version", "0.18.0", "--gpus", "8", "--to", "verl", "-o", "run.sh")
    code, out, _ = typed(*words)
    assert code == 3
    assert "  nothing was written: 1 field would mean something else, see below; --allow-lossy accepts that\n" in out
    assert not Path("run.sh").exists()
    assert "\nNext\n" not in out


# ---- the version of the target


def test_the_version_is_what_the_repository_pins(typed: Run) -> None:
    Path("demo.yaml").write_text(RECIPE, encoding="utf-8")
    Path("requirements.txt").write_text("verl==0.7.1\n", encoding="utf-8")
    words = ("convert", "demo.yaml", "--framework-version", "0.18.0", "--gpus", "8", "--to", "verl", "-o", "run.sh")
    words += ("--allow-lossy",)
    _, out, _ = typed(*words)
    assert "to verl 0.7.1 (pinned by requirements.txt:1): " in out
    assert "batchbridge check run.sh --framework-version 0.7.1" in out
    _, out, _ = typed(*words, "--overwrite", "--to-version", "0.9.0")
    assert "to verl 0.9.0: " in out
    Path("requirements.txt").write_text("verl==0.0.7\n", encoding="utf-8")
    _, out, _ = typed(*words, "--overwrite")
    assert "to verl 0.9.1 (requirements.txt:1 pins 0.0.7, which is not known: the newest that can say it; " in out


# ---- constant learning rates


@pytest.mark.parametrize(
    ("framework", "said"),
    [
        ("trl", {"lr_scheduler_type": "constant_with_warmup", "warmup_steps": 10}),
        ("verl", {"lr_scheduler_type": "constant", "lr_warmup_steps": 10}),
    ],
)
@pytest.mark.parametrize("to", ["trl", "open_r1"])
@pytest.mark.parametrize("version", ["0.18.0", "1.16.0"])
def test_a_constant_rate_with_a_warm_up_stays_constant(
    framework: str, said: dict[str, Any], to: str, version: str
) -> None:
    if framework == "trl":
        found = converted(said, to, version=version)
    else:
        words = text_of("verl").replace("\\\n", " ").replace('"$@"', "").replace("$GPUS", "8").split()
        words = words[words.index("python3") :]
        words = [word for word in words if "min_lr_ratio" not in word and "scheduler_type" not in word]
        words += [f"actor_rollout_ref.actor.optim.{key}={value}" for key, value in said.items()]
        found = convert_to(
            adapters()[to], batchbridge.read(words, version="0.9.1", dataset_size=DATASET), version=version
        )
    assert found.written is not None
    assert found.written.values["lr_scheduler_type"] == "constant_with_warmup"
    assert found.back is not None
    assert found.back.spec is not None
    assert found.back.spec.carried.lr_schedule == "constant"
    assert (found.back.spec.carried.warmup_steps or 0) > 0


def test_a_report_is_json() -> None:
    found = converted({"report_to": "wandb"}, "verl")
    told = json.loads(json.dumps([dataclasses.asdict(report) for report in found.outside]))
    assert {report["status"] for report in told} >= {"mapped", "fill in"}
    assert found.to_dict()["variables"] == ["MODEL", "DATA", "VAL_DATA", "REWARDS"]


@pytest.mark.parametrize("target", ["trl", "open_r1"])
def test_what_decides_a_field_and_more_is_carried_where_the_target_has_the_same_words(target: str) -> None:
    sizes = {"per_device_train_batch_size": 8, "num_generations": 8, "num_train_epochs": 1, "learning_rate": 1e-6}
    engine = {"use_vllm": True, "vllm_importance_sampling_correction": False}
    source = "open_r1" if target == "trl" else "trl"
    version = "1.16.0"
    reading = batchbridge.read({**sizes, **engine}, framework=source, version=version, world_size=8, dataset_size=64)
    assert "use_vllm" in {key for origin in reading.provenance.values() for key in origin.keys}
    found = convert_to(adapters()[target], reading, version=version, given={**sizes, **engine})
    assert found.written is not None
    assert {key: found.written.values.get(key) for key in engine} == engine


TRL_RUN = {"num_generations": 8, "per_device_train_batch_size": 8, "model_name_or_path": "a/b", "dataset_name": "c/d"}
OPENRLHF_RUN = {
    "actor.num_nodes": 1,
    "actor.num_gpus_per_node": 8,
    "ref.num_nodes": 1,
    "ref.num_gpus_per_node": 8,
    "rollout.batch_size": 128,
    "train.batch_size": 1024,
    "rollout.n_samples_per_prompt": 8,
    "algo.advantage.estimator": "group_norm",
    "actor.model_name_or_path": "a/b",
    "data.prompt_dataset": "c/d",
}


@pytest.mark.parametrize(
    ("source", "framework", "version", "target", "key", "column"),
    [
        (TRL_RUN, "trl", "1.16.0", "openrlhf", "data.input_key", "prompt"),
        (OPENRLHF_RUN, "openrlhf", "0.11.2", "easyr1", "data.prompt_key", "input"),
        (OPENRLHF_RUN, "openrlhf", "0.11.2", "open_r1", "dataset_prompt_column", "input"),
        ({**OPENRLHF_RUN, "data.input_key": "prompt"}, "openrlhf", "0.11.2", "easyr1", "data.prompt_key", "prompt"),
        (TRL_RUN, "trl", "1.16.0", "easyr1", "data.prompt_key", None),  # its default, too
    ],
)
def test_the_column_that_nobody_names_is_named_where_the_targets_default_is_another(
    source: dict[str, Any], framework: str, version: str, target: str, key: str, column: str | None
) -> None:
    found = batchbridge.convert(source, target, framework=framework, framework_version=version, world_size=8)
    assert found.written is not None
    assert found.written.values.get(key) == column
    told = [one for one in found.outside if one.shared == "prompt_column" and one.status == "mapped"]
    assert [one.target for one in told] == ([] if column is None else [column])
    said = between.conversion("a", found, between.ConversionUse(verbose=True))
    assert ("unsaid -> " in said) is bool(told and not told[0].keys)


def test_settings_that_only_the_users_copy_has_are_not_called_without_effect() -> None:
    verl = plugins.adapters()["verl"]
    key, place = "actor_rollout_ref.actor.archer_loss", Path("verl")
    copy = OwnCopy(folder=place, place="verl", label="0.5.0.dev", release="0.5.0", own=frozenset({key}))
    reading = Reading(framework="verl", framework_version="0.5.0", native={key: 1}, findings=())
    for given, decides in ((reading, ""), (dataclasses.replace(reading, copy=copy), None)):
        (report,) = all_left(given, {key: 1}, verl)
        assert (report.status, report.decides, report.matters) == ("left", decides, decides is None)
