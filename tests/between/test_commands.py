"""What people and programs read of the commands between readings: golden files, JSON, exit codes."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent / "golden"
Run = Callable[..., tuple[int, str, str]]

RECIPE = """\
per_device_train_batch_size: 8
gradient_accumulation_steps: 4
num_generations: 8
max_completion_length: 512
learning_rate: 1.0e-6
reward_funcs: [accuracy]
"""
TRL = ("--framework-version", "1.16.0", "--world-size", "4")

SCENES = {
    "diff": ("diff", "a.json", "b.json", "--dataset-size", "160"),
    "diff_equivalent": ("diff", "a.json", "--world-size-b", "8"),
    "diff_native": ("diff", "a.json", "a.json", "--framework-b", "narrow"),
    "diff_cannot_tell": ("diff", "a.json", "open.json"),
    "diff_invalid": ("diff", "a.json", "--framework", "narrow", "--world-size-b", "7"),
    "convert": ("convert", "a.json", "--to", "narrow", "--set", "colour=green", "-o", "out.json"),
    "convert_lossy": ("convert", "wide.json", "--to", "narrow"),
    "scale": ("scale", "a.json", "--world-size", "8"),
    "scale_not_kept": ("scale", "a.json", "--framework", "narrow", "--nodes", "1", "--gpus", "7"),
    "convert_lossy_allowed": ("convert", "wide.json", "--to", "narrow", "--allow-lossy", "-o", "out.json"),
}
"""Arguments by golden file. Refresh the files with BATCHBRIDGE_UPDATE_GOLDEN=1, and read the difference."""


@pytest.fixture
def inputs(run: Run) -> None:
    """Files of the scenes, in the folder where `run` runs."""
    from toys import plain_spec

    from batchbridge.meaning.spec import LossTerm

    Path("recipe.yaml").write_text(RECIPE, encoding="utf-8")
    kl = {"objective.kl_placement": "reward", "objective.kl_coefficient": 0.1, "objective.kl_estimator": "k1"}
    tokens = {"micro_batch.completions_per_device": None, "micro_batch.tokens_per_device": 16384}
    files = {
        "a": {},
        "b": {
            "loss.policy": LossTerm(aggregation="sequence_mean"),
            "optimizer_step.completions_per_step": 32,
            "order.seed": 2,
            "carried.learning_rate": 2e-6,
            **tokens,
            **kl,
        },
        "open": {"carried.learning_rate": None, "advantage.ddof": 1},
        "wide": {"order.last_rollout": "wrap", "loss.policy": LossTerm(aggregation="token_sum"), **tokens, **kl},
    }
    for name, changes in files.items():
        Path(f"{name}.json").write_text(json.dumps({"spec": plain_spec(**changes).to_dict()}), encoding="utf-8")


@pytest.mark.parametrize("scene", SCENES)
def test_text_is_as_people_were_shown_it(scene: str, run: Run, inputs: None) -> None:
    code, out, err = run(*SCENES[scene])
    shown = f"$ batchbridge {' '.join(SCENES[scene])}\n{out}{err}exit code {code}\n"
    path = GOLDEN / f"{scene}.txt"
    if os.environ.get("BATCHBRIDGE_UPDATE_GOLDEN"):
        path.write_text(shown, encoding="utf-8")
    assert shown == path.read_text(encoding="utf-8")


def test_diff_in_json_ranks_and_names(run: Run, inputs: None) -> None:
    code, out, _ = run(*SCENES["diff"], "--json")
    (shown,) = json.loads(out)["results"]
    assert shown["verdict"] == "not equivalent"
    assert shown["differences"][0]["field"] == "optimizer_step.completions_per_step"
    assert {"field", "aspect", "unit", "a", "b", "kind", "reason"} <= set(shown["differences"][0])
    assert code == 3


def test_diff_without_a_world_size_cannot_decide(run: Run, inputs: None) -> None:
    code, out, _ = run("diff", "recipe.yaml", "--framework", "trl", "--framework-version", "1.16.0")
    assert code == 4
    assert "undecided" in out


@pytest.mark.parametrize("to", ["trl", "open_r1"])
def test_a_converted_recipe_is_read_back_as_the_same_run(to: str, run: Run, inputs: None) -> None:
    convert = ("convert", "recipe.yaml", "--framework", "trl", *TRL, "--to", to, "--to-version", "1.16.0")
    assert run(*convert, "-o", "out.yaml")[0] == 0
    assert 'reward_funcs: ["accuracy"]' in Path("out.yaml").read_text(encoding="utf-8")
    code, out, _ = run("diff", "recipe.yaml", "out.yaml", "--framework", "trl", *TRL, "--json")
    fields = [difference["field"] for difference in json.loads(out)["results"][0]["differences"]]
    assert (code, fields) == (3, ["outside.dataset_name", "outside.model_name_or_path"])
    Path("out.yaml").write_text(re.sub(r".*<(MODEL|DATA)>.*\n", "", Path("out.yaml").read_text(encoding="utf-8")))
    code, out, _ = run("diff", "recipe.yaml", "out.yaml", "--framework", "trl", *TRL)
    assert (code, "\nequivalent\n" in out) == (0, True)


def test_the_configuration_alone_goes_to_standard_output(run: Run, inputs: None) -> None:
    code, out, err = run("convert", "recipe.yaml", "--framework", "trl", *TRL, "--to", "trl", "--to-version", "1.16.0")
    assert code == 0
    assert "num_generations: 8" in out
    assert "complete" not in out
    assert "complete" in err


def test_another_form_is_written_when_asked_for(run: Run, inputs: None) -> None:
    arguments = ("convert", "recipe.yaml", "--framework", "trl", *TRL, "--to", "trl", "--to-version", "1.16.0")
    assert "GRPOConfig(" in run(*arguments, "--format", "python")[1]


def test_a_refused_conversion_writes_nothing(run: Run, inputs: None) -> None:
    code, _, _ = run(*SCENES["convert_lossy"], "-o", "refused.json")
    assert code == 3
    assert not Path("refused.json").exists()


def test_the_account_of_a_refused_conversion_is_no_configuration(run: Run, inputs: None) -> None:
    code, out, err = run(*SCENES["convert_lossy"])
    assert (code, out) == (3, "")
    assert "lossy" in err
    assert "nothing was written: 4 fields would mean something else, see below; --allow-lossy accepts that" in err


def test_an_existing_file_is_not_replaced_unasked(run: Run, inputs: None) -> None:
    Path("out.json").write_text("mine", encoding="utf-8")
    code, _, err = run(*SCENES["convert"])
    assert code == 64
    assert "--overwrite" in err
    assert Path("out.json").read_text(encoding="utf-8") == "mine"


def test_an_existing_file_is_replaced_when_asked(run: Run, inputs: None) -> None:
    Path("out.json").write_text("mine", encoding="utf-8")
    assert run(*SCENES["convert"], "--overwrite")[0] == 0
    assert Path("out.json").read_text(encoding="utf-8") != "mine"


@pytest.mark.parametrize("option", [("--format", "toml"), ("--to", "nothing")])
def test_what_does_not_exist_is_a_usage_error(option: tuple[str, str], run: Run, inputs: None) -> None:
    assert run(*SCENES["convert"], *option)[0] == 64


def test_convert_in_json_has_the_account_and_the_text(run: Run, inputs: None) -> None:
    code, out, _ = run(*SCENES["convert"], "--json")
    (shown,) = json.loads(out)["results"]
    assert (code, shown["verdict"], shown["left_behind"]["colour"]) == (0, "complete", "green")
    assert {field["status"] for field in shown["fields"]} == {"exact", "filled"}
    assert "json" in shown["text"]


def test_scale_asks_for_what_the_file_is_written_for(run: Run, inputs: None) -> None:
    scale = ("scale", "recipe.yaml", "--framework", "trl", "--framework-version", "1.16.0", "--world-size", "8")
    code, out, _ = run(*scale)
    assert (code, "--from DEVICES" in out) == (4, True)
    assert run(*scale, "--from", "4")[0] == 0


@pytest.mark.parametrize(
    "wrong", [(), ("--nodes", "2"), ("--world-size", "2000000"), ("--world-size", "2", "--gpus", "1")]
)
def test_scale_without_a_number_of_devices_is_a_usage_error(wrong: tuple[str, ...], run: Run, inputs: None) -> None:
    assert run("scale", "a.json", *wrong)[0] == 64


def test_scale_in_json_has_the_choices(run: Run, inputs: None) -> None:
    code, out, _ = run("scale", "a.json", "--framework", "narrow", "--world-size", "7", "--json")
    (shown,) = json.loads(out)["results"]
    assert (code, shown["verdict"]) == (3, "not kept")
    assert {"title", "keeps_everything", "settings", "lost", "derived", "spec", "text"} <= set(shown["choices"][0])


def test_launch_scripts_are_compared_with_their_variables(run: Run, inputs: None) -> None:
    Path("run.sh").write_text(
        "#!/bin/bash\naccelerate launch --num_processes 4 grpo.py --num_generations 8 "
        "--per_device_train_batch_size $MICRO\n",
        encoding="utf-8",
    )
    same = ("diff", "run.sh", "--framework", "trl", "--framework-version", "1.16.0", "--env", "MICRO=8")
    code, out, _ = run(*same, "--set-b", "per_device_train_batch_size=4", "--set-b", "gradient_accumulation_steps=2")
    assert "micro_batch.completions_per_device: 8 | 4" in out
    assert code == 0
