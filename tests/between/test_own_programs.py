"""A user's own program beside a recipe, and a copy of TRL: what they declare is no error, and whose trainer trains."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

import batchbridge
from batchbridge.comparing.releases import judged
from batchbridge.kit import own_copy
from batchbridge.kit.function_forms import forms_in
from batchbridge.kit.own_copy import ends_of, near_folder
from batchbridge.render.headline import HeadlineFacts, lines
from batchbridge_trl.copies import FACTS

RECIPE = "model_name_or_path: m\ndataset_name: d\nper_device_train_batch_size: 4\nloss_type: grpo\n"
CONFIGS = """import trl
from dataclasses import dataclass, field
@dataclass
class GRPOConfig(trl.GRPOConfig):
    num_generations: int = 4
    humanline: bool = False
    humanline_steps: int = 16
"""
PROGRAM = """from open_r1.configs import GRPOConfig
from trl import GRPOTrainer, ModelConfig, ScriptArguments, TrlParser
{trainer}
parser = TrlParser((ScriptArguments, GRPOConfig, ModelConfig))
script, args, model = parser.parse_args_and_config()
trainer = {name}(model=model.model_name_or_path, reward_funcs=[len], args=args)
trainer.train()
"""
COPY_OF_CONFIG = """from transformers import TrainingArguments
class GRPOConfig(TrainingArguments):
    num_generations: int = 4
    max_completion_length: int = 256
    loss_type: str = "grpo"
    own_bonus: float = 0.5
    def __post_init__(self):
        pass
"""
COPY_OF_TRAINER = "class GRPOTrainer:\n    def _prepare_inputs(self, inputs):\n        return {said}\n"


def _write(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")


def _open_r1(folder: Path, recipe: str, *, trainer: str = "", name: str = "GRPOTrainer") -> Path:
    (folder / ".git").mkdir(parents=True, exist_ok=True)
    files = {
        "src/open_r1/__init__.py": "",
        "src/open_r1/configs.py": CONFIGS,
        "src/open_r1/grpo.py": PROGRAM.format(trainer=trainer, name=name),
        "recipes/mine/grpo/config.yaml": recipe,
    }
    _write(folder, files)
    return folder / "recipes/mine/grpo/config.yaml"


def _read(file: Path, version: str | None = "0.18.0") -> batchbridge.Reading:
    return batchbridge.read(str(file), framework="open_r1", version=version, world_size=2)


def _errors(reading: batchbridge.Reading) -> list[str]:
    return [f"{one.code} {one.where[0].key}" for one in reading.findings if one.severity in ("error", "warning")]


def test_settings_that_the_program_of_a_recipe_declares_are_not_judged(tmp_path: Path) -> None:
    reading = _read(_open_r1(tmp_path, f"{RECIPE}humanline: true\nhumanline_steps: 8\n"))
    assert _errors(reading) == []
    assert reading.verdict == "valid"
    told = [one.message for one in reading.findings if one.code == "BB038"]
    assert len(told) == 1
    assert told[0].endswith("your program: 2 settings of its own, not judged: humanline, humanline_steps")


def test_a_default_of_the_programs_own_class_counts(tmp_path: Path) -> None:
    reading = _read(_open_r1(tmp_path, RECIPE))
    assert reading.spec is not None
    assert reading.spec.rollout.completions_per_prompt == 4  # TRL's own is 8


def test_a_key_that_nobody_declares_is_named(tmp_path: Path) -> None:
    recipe = _open_r1(tmp_path, f"{RECIPE}humanlines: true\n")
    assert _errors(_read(recipe)) == ["BB-TRL-003 humanlines"]
    assert _errors(_read(recipe, version="0.19.0")) == ["BB-TRL-003 humanlines"]


READS_ITSELF = """import argparse, yaml
from trl import GRPOConfig, GRPOTrainer
parser = argparse.ArgumentParser()
parser.add_argument("--config", default="configs/own.yaml")
config = yaml.safe_load(open(parser.parse_args().config))
args = GRPOConfig(num_generations=config["num_generations"])
"""


@pytest.mark.parametrize(
    ("program", "verdict"),
    [
        (READS_ITSELF, "undecided"),
        (READS_ITSELF.replace("own.yaml", "another.yaml"), "invalid"),
        (f"{READS_ITSELF}from trl import TrlParser\n", "invalid"),
    ],
)
def test_a_key_that_is_gone_is_open_where_a_program_reads_the_file_itself(
    tmp_path: Path, program: str, verdict: str
) -> None:
    recipe = f"{RECIPE}num_generations: 4\ntorch_dtype: bfloat16\n"
    _write(tmp_path, {"requirements.txt": "", "configs/own.yaml": recipe, "scripts/train.py": program})
    said = {"framework": "trl", "version": "1.16.0", "world_size": 1}
    reading = batchbridge.read(tmp_path / "configs" / "own.yaml", **said)
    assert reading.verdict == verdict
    (gone,) = (one for one in reading.findings if one.code == "BB-TRL-003")
    assert ("scripts/train.py names this file and reads it itself" in gone.message) == (verdict == "undecided")


def test_a_trainer_of_the_programs_own_makes_the_verdict_conditional(tmp_path: Path) -> None:
    own = "class Mine(GRPOTrainer):\n    def _compute_loss(self, model, inputs):\n        return 0\n"
    broken = RECIPE.replace("loss_type: grpo", "loss_type: dapo")  # which 0.18's loss does not know
    assert _read(_open_r1(tmp_path / "stock", broken)).verdict == "invalid"
    reading = _read(_open_r1(tmp_path / "own", broken, trainer=own, name="Mine"))
    assert reading.verdict == "undecided"
    assert reading.condition is not None
    assert "Mine replaces _compute_loss of TRL's GRPOTrainer" in reading.condition.why
    plain = "class Mine(GRPOTrainer):\n    def log(self, logs):\n        return None\n"
    assert _read(_open_r1(tmp_path / "plain", broken, trainer=plain, name="Mine")).verdict == "invalid"


def test_a_command_that_starts_the_program_takes_its_settings(tmp_path: Path) -> None:
    _open_r1(tmp_path, RECIPE)
    script = tmp_path / "run.sh"
    line = "accelerate launch --num_processes 2 src/open_r1/grpo.py --config recipes/mine/grpo/config.yaml"
    script.write_text(f"{line} --humanline_steps 8 --humanline\n", encoding="utf-8")
    reading = _read(script)
    assert _errors(reading) == []
    script.write_text(f"{line} --humanline_step_count 8\n", encoding="utf-8")
    assert _errors(_read(script)) == ["BB-TRL-003 humanline_step_count"]


def _copy_of_trl(folder: Path, said: str = "1") -> Path:
    files = {
        "trl/trainer/grpo_config.py": COPY_OF_CONFIG,
        "trl/trainer/grpo_trainer.py": COPY_OF_TRAINER.format(said=said),
        "trl/__init__.py": '__version__ = "0.19.0.dev0"\n',
        "recipe.yaml": f"{RECIPE}own_bonus: 0.1\n",
    }
    _write(folder, files)
    return folder / "recipe.yaml"


def _copied(file: Path, **said: object) -> batchbridge.Reading:
    return batchbridge.read(str(file), framework="trl", world_size=2, **said)  # type: ignore[arg-type]  # of read


def test_a_copy_of_trl_is_the_yardstick_and_its_code_says_whose_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = _copy_of_trl(tmp_path)
    forms = forms_in(tmp_path / "trl", FACTS.functions)
    monkeypatch.setattr(
        own_copy, "recorded_forms", lambda home: {key: {one: ("0.19.0",)} for key, one in forms.items()}
    )
    reading = _copied(recipe)
    assert reading.verdict == "valid"
    assert reading.copy is not None
    assert (reading.copy.title("trl"), reading.copy.release) == ("trl 0.19.0.dev0, your copy", "0.19.0")
    assert reading.copy.own == {"own_bonus"}
    assert reading.spec is not None
    assert reading.spec.rollout.completions_per_prompt == 4
    other = _copied(_copy_of_trl(tmp_path, said="2"))
    assert other.verdict == "undecided"
    why = "rollout size, step size, passes: as trl 0.19.0 would; your GRPOTrainer._prepare_inputs differs here"
    assert [one.message for one in other.findings if one.code == "BB039"] == [why]
    first = "as trl 0.19.0 would count them; your GRPOTrainer._prepare_inputs differs here"
    assert first in lines(other, HeadlineFacts(), sizes=True, verbose=False)


def test_the_devices_of_a_copy_are_asked_of_the_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = _copy_of_trl(tmp_path)
    other = batchbridge.check(str(recipe), framework="trl")  # whose code is no release's: valid on no number
    assert (other.devices, other.example) == ((), None)
    forms = forms_in(tmp_path / "trl", FACTS.functions)
    known = {key: {one: ("0.19.0",)} for key, one in forms.items()}
    monkeypatch.setattr(own_copy, "recorded_forms", lambda home: known)
    found = batchbridge.check(str(recipe), framework="trl")
    assert found.devices[:2] == (1, 2)  # of 4 completions a prompt; 0.19.0 has 8 and no own_bonus
    assert found.example is not None
    assert found.example.spec is not None
    assert found.example.spec.rollout.completions_per_prompt == 4


def test_a_setting_that_the_copy_of_trl_lacks_is_open_and_a_named_release_is_judged(tmp_path: Path) -> None:
    recipe = _copy_of_trl(tmp_path)
    recipe.write_text(f"{RECIPE}delta: 2.0\n", encoding="utf-8")
    lacking = [one for one in _copied(recipe).findings if one.code == "BB-TRL-003"]
    assert [one.message.partition(" in ")[0] for one in lacking] == ["your copy of trl"]
    assert "BB-TRL-003 delta" not in _errors(_copied(recipe, version="0.19.0"))


@pytest.mark.parametrize(
    ("path", "ends"),
    [
        ("algorithms/mine", ["algorithms/mine"]),
        ("<your_path>/scripts/config", ["scripts/config", "config"]),
        ("/data/she/work/repo/verl_mine", ["work/repo/verl_mine", "repo/verl_mine", "verl_mine"]),
        ("$HOME/verl_mine", ["verl_mine"]),
        ("$PYTHONPATH", []),
        ("/", []),
    ],
)
def test_a_path_of_another_machine_has_ends(path: str, ends: list[str]) -> None:
    assert list(ends_of(path)) == ends


def test_a_folder_that_a_placeholder_names_is_found_above_the_script_alone(tmp_path: Path) -> None:
    _write(tmp_path, {"repo/scripts/run.sh": "", "repo/scripts/config/a.yaml": "", "config/b.yaml": ""})
    (tmp_path / "repo/.git").mkdir()
    script = tmp_path / "repo/scripts/run.sh"
    assert near_folder("<path>/scripts/config", script) == tmp_path / "repo/scripts/config"
    assert near_folder("<path>/elsewhere", script) is None
    assert near_folder("/abs/config", tmp_path / "repo/run.sh") is None  # above the repository


def test_a_word_that_no_release_takes_is_open_beside_a_key_that_none_has(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    run = "python3 -m openrlhf.cli.train_ppo_ray --pretrain m --prompt_data d --advantage_estimator grpo"
    script.write_text(f"{run}\n", encoding="utf-8")
    plain = judged(str(script), batchbridge.read(script))
    assert plain is not None
    assert plain.reading.verdict == "invalid"
    script.write_text(f"{run} --env_file mine\n", encoding="utf-8")
    beside = judged(str(script), batchbridge.read(script))
    assert beside is not None
    assert beside.reading.verdict == "undecided"
    opened = [one.message for one in beside.reading.findings if one.code == "BB-ORL-004"]
    assert opened
    assert "your own copy, with env_file, may take it" in opened[0]
