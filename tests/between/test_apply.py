"""`scale --apply`: a choice written into the user's own file, and nothing else in it changed."""

from __future__ import annotations

import difflib
import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from real import text_of

import batchbridge

Run = Callable[..., tuple[int, str, str]]
pytestmark = pytest.mark.usefixtures("own_adapters", "empty_folder")
RECIPE = """\
# mine, and every word of it stays
model_name_or_path: a/b  # small
per_device_train_batch_size: 16
gradient_accumulation_steps: 4   # on 8 devices
num_generations: 16
output_dir: out
"""
TRL = ("--framework", "trl", "--framework-version", "1.16.0")


def changed(before: str, after: str) -> list[str]:
    """Lines that went, and that came."""
    return [
        line
        for line in difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=0)
        if line[0] in "+-" and line[:3] not in ("+++", "---")
    ]


def test_a_choice_is_written_into_a_recipe_whose_comments_stay(typed: Run) -> None:
    Path("recipe.yaml").write_text(RECIPE, encoding="utf-8")
    scale = ("scale", "recipe.yaml", *TRL, "--from", "8", "--world-size", "6")
    code, out, _ = typed(*scale, "--apply", "2", "-o", "six.yaml")
    assert code == 0, out
    assert changed(RECIPE, Path("six.yaml").read_text(encoding="utf-8")) == [
        "-gradient_accumulation_steps: 4   # on 8 devices",
        "+gradient_accumulation_steps: 5   # on 8 devices",
    ]
    assert Path("recipe.yaml").read_text(encoding="utf-8") == RECIPE
    assert out.splitlines()[0] == (
        "2, a smaller optimizer step, 6 devices: written to six.yaml; recipe.yaml stays as it is; 1 setting changed"
    )
    check = shlex.split(out.partition("\nNext\n")[2])[1:]
    assert typed(*check)[0] == 0
    six = batchbridge.read("six.yaml", framework="trl", version="1.16.0", world_size=6)
    assert six.derived["completions_per_step"] == 480


SAID_IN_STEPS = """\
num_generations: 8
per_device_train_batch_size: 2
gradient_accumulation_steps: 3
steps_per_generation: 8  # of 16 devices
"""


def test_a_setting_that_contradicts_a_choice_goes(typed: Run) -> None:
    Path("recipe.yaml").write_text(SAID_IN_STEPS, encoding="utf-8")
    scale = ("scale", "recipe.yaml", *TRL, "--from", "16", "--world-size", "8")
    assert "generation_batch_size = 256 (was unset), steps_per_generation removed (was 8)" in typed(*scale)[1]
    code, out, _ = typed(*scale, "--apply", "1", "-o", "eight.yaml")
    assert code == 0, out
    eight, before = (
        batchbridge.read(file, framework="trl", version="1.16.0", world_size=size)
        for file, size in (("eight.yaml", 8), ("recipe.yaml", 16))
    )
    assert before.spec is not None
    assert eight.spec == before.spec.replace(**{"topology.world_size": 8})
    options = "--num_generations 8 --per_device_train_batch_size 2 --gradient_accumulation_steps 3"
    Path("run.sh").write_text(f"trl grpo {options} --steps_per_generation 8\n", encoding="utf-8")
    words = ("scale", "run.sh", *TRL, "--from", "16", "--world-size", "8", "--apply", "1", "-o", "eight.sh")
    code, out, _ = typed(*words)
    assert code == 0, out
    script = Path("eight.sh").read_text(encoding="utf-8")
    assert ("steps_per_generation" in script, script.count("generation_batch_size 256")) == (False, 1)
    Path("run.sh").write_text(f"S=8\ntrl grpo {options} --steps_per_generation=${{S}}{{,}}\n", encoding="utf-8")


def test_a_choice_is_written_into_a_script_of_options_that_have_other_names_today(typed: Run) -> None:
    words = "--rollout_batch_size 1024 --n_samples_per_prompt 2 --train_batch_size 32 --advantage_estimator rloo"
    script = f"python3 -m openrlhf.cli.train_ppo_ray --actor_num_nodes 1 --actor_num_gpus_per_node 2 {words}\n"
    Path("run.sh").write_text(script, encoding="utf-8")
    scale = ("scale", "run.sh", "--framework-version", "0.9.0", "--world-size", "1")
    code, out, _ = typed(*scale, "--apply", "1", "-o", "one.sh")
    assert code == 0, out
    assert Path("one.sh").read_text(encoding="utf-8") == script.replace("per_node 2", "per_node 1")


def test_the_file_itself_is_replaced_when_asked(typed: Run) -> None:
    Path("recipe.yaml").write_text(RECIPE, encoding="utf-8")
    scale = ("scale", "recipe.yaml", *TRL, "--from", "8", "--world-size", "4", "--apply", "1", "-o", "recipe.yaml")
    code, _, err = typed(*scale)
    assert (code, "--overwrite" in err) == (64, True)
    assert typed(*scale, "--overwrite")[0] == 0
    assert changed(RECIPE, Path("recipe.yaml").read_text(encoding="utf-8"))[1] == (
        "+gradient_accumulation_steps: 8   # on 8 devices"
    )


@pytest.mark.parametrize("above", ["", "# a page\f ends,\u2028so does a line\n"], ids=["plain", "other line ends"])
def test_a_choice_is_written_into_a_launch_script(above: str, typed: Run) -> None:
    script = text_of("verl").replace("$GPUS", "8").replace("python3 ", f"{above}python3 ", 1)
    Path("run.sh").write_text(script, encoding="utf-8")
    scale = ("scale", "run.sh", "--framework-version", "0.9.1", "--world-size", "6")
    choice = json.loads(typed(*scale, "--json")[1])["results"][0]["choices"][0]
    code, out, _ = typed(*scale, "--apply", "1", "-o", "six.sh", "--json")
    assert code == 0, out
    lines = changed(script, Path("six.sh").read_text(encoding="utf-8"))
    assert len(lines) == 2 * len(choice["settings"])
    assert "+    trainer.n_gpus_per_node=6 \\" in lines
    found = batchbridge.read("six.sh", version="0.9.1")
    assert found.spec is not None
    assert found.spec.to_dict() == choice["spec"]
    assert json.loads(out)["results"][0]["applied"]["choice"] == choice


@pytest.mark.parametrize("framework", ["openrlhf", "easyr1", "open_instruct"])
def test_every_framework_s_script_is_edited_or_the_setting_is_named(framework: str, typed: Run) -> None:
    versions = {"openrlhf": "0.11.2", "easyr1": "0.3.3.dev0", "open_instruct": "2026.8.20"}
    script = text_of(framework)
    Path("run.sh").write_text(script, encoding="utf-8")
    scale = ("scale", "run.sh", "--framework-version", versions[framework], "--world-size", "4")
    choice = json.loads(typed(*scale, "--json")[1])["results"][0]["choices"][0]
    code, out, _ = typed(*scale, "--apply", "1", "-o", "four.sh")
    if code == 0:
        found = batchbridge.read("four.sh", version=versions[framework])
        assert found.spec is not None
        assert found.spec.to_dict() == choice["spec"]
        return
    assert "run.sh is not edited" in out
    assert any(key in out for key in choice["settings"])
    assert not Path("four.sh").exists()


@pytest.mark.parametrize(
    ("above", "word", "edited"),
    [
        ("", "${GPUS:-8}", "trainer.n_gpus_per_node=${GPUS:-4}"),
        ("", '"${GPUS-8}"', 'trainer.n_gpus_per_node="${GPUS-4}"'),
        ("GPUS=8\n", "$GPUS", "GPUS=4"),
        ("export GPUS=${GPUS:-8}  # of a node\n", '"${GPUS}"', "export GPUS=${GPUS:-4}  # of a node"),
    ],
)
def test_a_value_is_changed_where_a_variable_says_it(above: str, word: str, edited: str, typed: Run) -> None:
    script = above + text_of("verl").replace("GPUS=${GPUS:-8}\n", "").replace("$GPUS", word)
    Path("run.sh").write_text(script, encoding="utf-8")
    scale = ("scale", "run.sh", "--framework-version", "0.9.1", "--world-size", "4", "--apply", "1", "-o", "four.sh")
    code, out, _ = typed(*scale)
    assert code == 0, out
    _, added = changed(script, Path("four.sh").read_text(encoding="utf-8"))
    assert added.removeprefix("+").strip(" \\") == edited


@pytest.mark.parametrize(
    ("above", "word"),
    [("", "$((GPUS))"), ('GPUS=8\nif [ -n "$X" ]; then GPUS=8; fi\n', "$GPUS"), ("OF=8\nGPUS=$OF\n", "$GPUS")],
)
def test_a_value_that_several_places_decide_is_left_to_the_user(above: str, word: str, typed: Run) -> None:
    script = (above or "GPUS=8\n") + text_of("verl").replace("GPUS=${GPUS:-8}\n", "").replace("$GPUS", word)
    Path("run.sh").write_text(script, encoding="utf-8")
    scale = ("scale", "run.sh", "--framework-version", "0.9.1", "--world-size", "4", "--apply", "1", "-o", "four.sh")
    code, out, _ = typed(*scale)
    assert code == 2
    said = r"  line \d+ does not say trainer.n_gpus_per_node as one plain word: set it to 4 there\n"
    assert re.fullmatch(f"run.sh is not edited\n{said}", out)
    assert not Path("four.sh").exists()


def test_a_text_that_would_mean_something_else_is_not_written(typed: Run) -> None:
    """The word stands twice: what counts is the last one, which is another line's."""
    script = text_of("verl").replace("$GPUS", "8")
    script = script.replace("trainer.total_epochs=15", "trainer.total_epochs=15 trainer.n_gpus_per_node=$MINE")
    Path("run.sh").write_text(script, encoding="utf-8")
    words = ("--framework-version", "0.9.1", "--env", "MINE=8", "--world-size", "4", "--apply", "1", "-o", "four.sh")
    code, out, _ = typed("scale", "run.sh", *words)
    assert code == 2, out
    assert not Path("four.sh").exists()


@pytest.mark.parametrize(
    "wrong",
    [("--apply", "1"), ("-o", "x.yaml"), ("--apply", "9", "-o", "x.yaml"), ("--apply", "0", "-o", "x.yaml")],
)
def test_a_choice_that_is_not_there_is_a_usage_error(wrong: tuple[str, ...], typed: Run) -> None:
    Path("recipe.yaml").write_text(RECIPE, encoding="utf-8")
    code, _, _ = typed("scale", "recipe.yaml", *TRL, "--from", "8", "--world-size", "6", *wrong)
    assert code == 64
    assert not Path("x.yaml").exists()
