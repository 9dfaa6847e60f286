"""`check` of Python programs, notebooks and the scripts that start them, from the file to the verdict."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import batchbridge as bb
from batchbridge.cli.main import main
from batchbridge.contract.reading import Reading

PROGRAM = """\
from trl import GRPOConfig, GRPOTrainer

args = GRPOConfig(
    output_dir="out",
    per_device_train_batch_size={micro},
    num_generations={group},
    {more}
)
GRPOTrainer(model="m", reward_funcs=[len], args=args).train()
"""


def written(folder: Path, name: str = "train.py", micro: object = 4, group: object = 4, more: str = "") -> Path:
    file = folder / name
    file.write_text(PROGRAM.format(micro=micro, group=group, more=more))
    return file


def read(file: Path, **options: object) -> Reading:
    return bb.read(file, **{"version": "1.16.0", "world_size": 1, **options})  # type: ignore[arg-type]


def codes(reading: Reading, severity: str = "error") -> set[str]:
    return {one.code for one in reading.findings if one.severity == severity}


def test_a_program_is_read_like_the_object_that_it_builds(tmp_path: Path) -> None:
    reading = read(written(tmp_path, more="gradient_accumulation_steps=2,"))
    assert reading.framework == "trl"
    assert reading.verdict == "valid"
    assert reading.derived is not None
    assert reading.derived["completions_per_step"] == 8
    origin = reading.provenance["rollout.completions_per_prompt"]
    assert (origin.value, origin.line, origin.file) == (4, 6, str(tmp_path / "train.py"))


def test_what_does_not_divide_is_an_error_with_its_line(tmp_path: Path) -> None:
    reading = read(written(tmp_path, micro=6))
    (error,) = [one for one in reading.findings if one.severity == "error"]
    assert error.code == "BB-TRL-021"
    assert {where.line for where in error.where if where.key == "per_device_train_batch_size"} == {5}


def test_what_only_running_would_tell_is_undecided_and_can_be_said(tmp_path: Path) -> None:
    file = written(tmp_path, group='int(__import__("os").environ["G"])')
    reading = read(file)
    assert reading.verdict == "undecided"
    assert "BB011" in codes(reading)
    file = written(tmp_path, group='int(os.environ["G"])')
    file.write_text("import os\n" + file.read_text())
    assert read(file, env={"G": "4"}).verdict == "valid"
    assert read(file, env={"G": "3"}).verdict == "invalid"


def test_an_option_that_the_program_needs_is_named_and_can_be_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path, group='load(a.config)["group"]')
    before = (
        "import argparse, yaml\np = argparse.ArgumentParser()\np.add_argument('--config', required=True)\n"
        "a = p.parse_args()\ndef load(path):\n    with open(path) as f:\n        return yaml.safe_load(f)\n"
    )
    file.write_text(before + file.read_text())
    (tmp_path / "c.yaml").write_text("group: 3\n")
    (finding,) = [one for one in read(file).findings if one.code == "BB011"]
    assert finding.message.endswith("would tell: --config")
    assert finding.fixes[0].text == "give it behind the file: -- --config VALUE"
    assert main(["check", str(file), "-w", "1", "--", "--config", str(tmp_path / "c.yaml")]) == 2
    assert "BB-TRL-021" in capsys.readouterr().out


def test_an_unknown_mapping_leaves_the_run_open(tmp_path: Path) -> None:
    reading = read(written(tmp_path, more="**somewhere(),"))
    assert reading.verdict == "undecided"
    assert "somewhere()" in " ".join(one.message for one in reading.findings)


def test_a_setting_that_a_call_gives_twice_is_an_error_as_it_is_to_python(tmp_path: Path) -> None:
    reading = read(written(tmp_path, more="save_steps=5,\n    max_steps=9, save_steps=5,"))
    (error,) = [one for one in reading.findings if one.severity == "error"]
    assert (error.code, error.undecided, error.where[0].line) == ("BB008", False, 8)
    assert error.native == "SyntaxError: keyword argument repeated: save_steps"
    assert read(written(tmp_path, more="save_steps=5,")).verdict == "valid"


def test_a_setting_of_a_class_of_the_program_is_its_own(tmp_path: Path) -> None:
    text = PROGRAM.format(micro=4, group=4, more="mine=3,").replace("args = GRPOConfig(", "args = Mine(")
    own = "\nfrom dataclasses import dataclass\n@dataclass\nclass Mine(GRPOConfig):\n    mine: int = 1\n"
    (tmp_path / "train.py").write_text(text.replace("\n\nargs", f"{own}\nargs"))
    assert read(tmp_path / "train.py").verdict == "valid"
    assert codes(read(written(tmp_path, more="mine=3,"))) == {"BB-TRL-003"}  # TRL's own class takes no such argument


def test_several_configurations_are_several_runs(tmp_path: Path) -> None:
    first, second = PROGRAM.format(micro=4, group=4, more=""), PROGRAM.format(micro=6, group=4, more="")
    (tmp_path / "train.py").write_text(first + second)
    reading = read(tmp_path / "train.py")
    assert codes(reading, "warning") == {"BB012"}
    assert "differ in per_device_train_batch_size" in " ".join(one.message for one in reading.findings)
    assert read(tmp_path / "train.py", command=2).verdict == "invalid"
    assert codes(read(tmp_path / "train.py", command=3)) == {"BB012"}


def test_a_configuration_that_no_trainer_gets_is_not_the_run(tmp_path: Path) -> None:
    text = PROGRAM.format(micro=4, group=4, more="").replace(
        "args = GRPO", "other = GRPOConfig(num_generations=3)\nargs = GRPO"
    )
    (tmp_path / "train.py").write_text(text)
    assert read(tmp_path / "train.py").verdict == "valid"


def test_a_program_that_takes_its_settings_from_the_command_line_says_so(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(
        "from trl import GRPOConfig, TrlParser\n(args,) = TrlParser((GRPOConfig,)).parse_args_and_config()\n"
    )
    reading = read(file)
    assert (reading.verdict, codes(reading)) == ("undecided", {"BB010"})
    assert "command line" in reading.findings[0].message


def test_a_program_of_another_trainer_is_not_called_wrong(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("from trl import SFTConfig, SFTTrainer\nSFTTrainer(args=SFTConfig(packing=True)).train()\n")
    reading = read(file)
    assert (reading.verdict, codes(reading)) == ("undecided", {"BB010"})
    assert "it trains with SFTTrainer" in reading.findings[0].message


def test_a_program_that_is_too_large_says_what_it_trains_with(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("MyTrainer().train()\ndef f(n):\n    f(n + 1)\n    f(n + 2)\nf(1)\n")
    (said,) = [one.message for one in read(file).findings if one.severity == "error"]
    assert said.startswith("the program is too large to be read")
    assert said.endswith("; it trains with MyTrainer")


def test_a_file_that_is_no_python_is_not_read_and_not_wrong(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("def broken(:\n")
    (tmp_path / "nb.ipynb").write_text("{")
    for name in ("train.py", "nb.ipynb"):
        assert read(tmp_path / name).verdict == "undecided"


def notebook(folder: Path, *cells: str) -> Path:
    file = folder / "train.ipynb"
    file.write_text(json.dumps({"cells": [{"cell_type": "code", "source": cell, "outputs": []} for cell in cells]}))
    return file


def test_a_notebook_is_read_and_its_places_are_cells(tmp_path: Path) -> None:
    file = notebook(tmp_path, "!pip install trl==0.21.0", PROGRAM.format(micro=6, group=4, more=""))
    reading = bb.read(file, world_size=1)
    assert (reading.framework_version, reading.verdict) == ("0.21.0", "invalid")
    assert {where.file for one in reading.findings for where in one.where if where.key == "num_generations"} == {
        f"{file}[cell 2]"
    }


def test_a_large_notebook_is_read(tmp_path: Path) -> None:
    file = notebook(tmp_path, PROGRAM.format(micro=4, group=4, more=""))
    document = json.loads(file.read_text())
    document["cells"][0]["outputs"] = [{"data": {"image/png": "A" * (3 << 20)}}]
    file.write_text(json.dumps(document))
    assert read(file).verdict == "valid"


# ---- launch scripts


OPTIONS = """\
import argparse
from trl import GRPOConfig, GRPOTrainer

parser = argparse.ArgumentParser()
parser.add_argument("--gens", type=int, default=4)
options = parser.parse_args()
GRPOTrainer('m', [len], args=GRPOConfig(per_device_train_batch_size=4, num_generations=options.gens)).train()
"""


@pytest.mark.parametrize(
    ("command", "verdict"),
    [
        ("accelerate launch --num_processes 2 train.py", "valid"),
        ("accelerate launch --num_processes 2 train.py --gens 8", "valid"),
        ("accelerate launch --num_processes 2 train.py --gens 3", "invalid"),
        ("torchrun --nproc_per_node 2 train.py --gens=3", "invalid"),
        ("torchrun --nproc_per_node 2 train.py --gens $UNKNOWN", "undecided"),
        ("torchrun --nproc_per_node 2 -m train --gens 3", "invalid"),
    ],
)
def test_a_launch_script_goes_on_into_the_program_that_it_starts(tmp_path: Path, command: str, verdict: str) -> None:
    (tmp_path / "train.py").write_text(OPTIONS)
    (tmp_path / "run.sh").write_text(f"#!/bin/bash\n{command}\n")
    reading = bb.read(tmp_path / "run.sh", version="1.16.0")
    assert reading.verdict == verdict, reading.findings
    assert reading.native["num_processes"] == 2


def test_a_command_goes_on_into_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text(OPTIONS)
    monkeypatch.chdir(tmp_path)
    words = ["python", "train.py", "--gens", "3"]
    assert bb.read(words, version="1.16.0", world_size=1).verdict == "invalid"


# ---- folders and commands


def test_a_folder_s_programs_are_judged_and_its_other_python_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path, micro=6)
    written(tmp_path, "test_train.py", micro=6)
    (tmp_path / "rewards.py").write_text("def reward(**_):\n    return 0\n")
    code = main(["check", str(tmp_path), "--framework-version", "1.16.0", "--gpus", "1"])
    out = capsys.readouterr().out
    assert code == 2
    assert out.count("\n") == 2, out
    assert "train.py  error" in out


def test_the_exit_code_of_a_named_program_that_is_not_read_is_undecided(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("print('hello')\n")
    assert main(["check", str(tmp_path / "a.py")]) == 4


def test_of_a_program_only_the_renamed_keyword_is_edited(tmp_path: Path) -> None:
    file = written(tmp_path, more="dtype_of_old=1, torch_dtype='auto',")
    before = file.read_text()
    main(["check", str(file), "--framework-version", "1.16.0", "--gpus", "1"])
    assert file.read_text() == before
    main(["check", str(file), "--framework-version", "1.16.0", "--gpus", "1", "--fix"])
    assert file.read_text() == before.replace("torch_dtype=", "dtype=")


# ---- settings of transformers


@pytest.mark.parametrize(
    ("key", "value", "verdict"),
    [("warmup_ratio", 0.1, "undecided"), ("logging_dir", "logs", "undecided"), ("max_prompt_length", 64, "invalid")],
)
def test_a_setting_that_only_newer_transformers_lost_is_no_certain_error(
    tmp_path: Path, key: str, value: object, verdict: str
) -> None:
    """TRL 1.16.0 runs with transformers 4.56.2 and later; 5.14.0 still takes warmup_ratio, 5.15.0 does not."""
    reading = read(written(tmp_path, more=f"{key}={value!r},"))
    assert reading.verdict == verdict


@pytest.mark.parametrize(
    ("version", "key", "value", "verdict"),
    [
        ("5.14.0", "warmup_ratio", 0.1, "valid"),
        ("5.14.0", "warmup_ratio", 1, "undecided"),  # one step under the new name, all of them under this one
        ("5.14.0", "logging_dir", "logs", "valid"),
        ("5.15.0", "warmup_ratio", 0.1, "invalid"),
    ],
)
def test_the_transformers_that_is_pinned_decides_what_newer_ones_lost(
    tmp_path: Path, version: str, key: str, value: object, verdict: str
) -> None:
    (tmp_path / "requirements.txt").write_text(f"sentence-transformers==2.0\ntransformers=={version}\n")
    reading = read(written(tmp_path, more=f"{key}={value!r},"))
    assert reading.verdict == verdict
    if verdict == "valid" and reading.spec is not None:
        assert reading.spec.carried.warmup_ratio == (value if key == "warmup_ratio" else None)


def test_what_a_program_leaves_open_is_said_of_the_script_that_starts_it_too(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(OPTIONS.replace("num_generations=options.gens", "**somewhere()"))
    (tmp_path / "run.sh").write_text("#!/bin/bash\ntorchrun --nproc_per_node 2 train.py\n")
    reading = bb.read(tmp_path / "run.sh", version="1.16.0")
    assert reading.verdict == "undecided"
    assert "somewhere()" in " ".join(one.message for one in reading.findings)


def test_a_program_behind_a_launcher_that_run_does_not_reach_is_not_enforced(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(OPTIONS)
    (tmp_path / "run.sh").write_text("#!/bin/bash\nsudo python train.py\n")
    source = bb.read(tmp_path / "run.sh", version="1.16.0", world_size=2)
    assert source.verdict == "valid"
    assert (
        bb.check(tmp_path / "run.sh", version="1.16.0", world_size=2).to_dict()["enforcement"]["verdict"] != "enforced"
    )


def test_the_words_behind_a_program_are_its_arguments(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(
        "import argparse\nfrom trl import GRPOConfig\np = argparse.ArgumentParser()\n"
        "p.add_argument('--n', type=int, default=4)\na = p.parse_args()\n"
        "GRPOConfig(output_dir='o', per_device_train_batch_size=8, num_generations=a.n)\n"
    )
    groups = [read(file, env=env).provenance["rollout.completions_per_prompt"].value for env in (None, {"1": "--n=2"})]
    assert groups == [4, 2]


def test_a_program_whose_parser_takes_a_recipe_is_read_with_the_recipe_behind_it(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("per_device_train_batch_size: 4\nnum_generations: 2\nmax_completion_length: 64\nbeta: 0.1\n")
    file = tmp_path / "train.py"
    file.write_text(
        "from trl import GRPOConfig, TrlParser\n(args,) = TrlParser((GRPOConfig,)).parse_args_and_config()\n"
    )
    assert codes(read(file)) == {"BB010"}
    reading = read(file, env={"1": "--config", "2": str(recipe)})
    assert reading.framework == "trl"
    assert reading.derived is not None
    assert reading.derived["completions_per_step"] == 4


@pytest.mark.parametrize("more", ["top_p=None,", "resume_from_checkpoint=False,"])
def test_what_pythons_constructor_takes_is_no_error_where_no_batch_depends_on_it(tmp_path: Path, more: str) -> None:
    reading = read(written(tmp_path, more=more))
    assert reading.verdict == "valid"
    assert "BB-TRL-004" in codes(reading, "warning")
    assert codes(read(written(tmp_path, group=None))) == {"BB-TRL-004"}


VERL = (
    "actor_rollout_ref:\n"
    "  rollout: {name: vllm, n: 4, log_prob_micro_batch_size_per_gpu: 1, tensor_model_parallel_size: 1}\n"
    "  actor: {ppo_mini_batch_size: 2, ppo_micro_batch_size_per_gpu: 1}\n"
    "data: {train_batch_size: 2, train_files: '${oc.env:DATA}/a.parquet'}\n"
    "algorithm: {adv_estimator: grpo}\ntrainer: {n_gpus_per_node: 1, nnodes: 1}\n"
    "defaults: [ppo_trainer, _self_]\nhydra: {searchpath: ['pkg://verl/trainer/config']}\n"
)
STARTS = """\
import os, subprocess, sys
from pathlib import Path
ROOT = Path(__file__).resolve().parent
env = dict(os.environ)
env.update({"DATA": "/data"})
command = [sys.executable, "-m", "verl.trainer.main_ppo", f"--config-path={ROOT / 'configs'}", "--config-name=mine"]
raise SystemExit(subprocess.call([*command, %s], env=env))
"""


def test_a_program_that_starts_verl_is_read_by_what_it_starts(tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "mine.yaml").write_text(VERL)
    file = tmp_path / "train.py"
    file.write_text(STARTS % "'trainer.total_epochs=2'")
    reading = bb.read(file, version="0.8.0")
    assert (reading.framework, reading.verdict) == ("verl", "valid")
    assert reading.spec is not None
    assert (reading.spec.rollout.prompts_per_rollout, reading.spec.rollout.completions_per_prompt) == (2, 4)
    file.write_text(STARTS % "*sys.argv[1:]")
    assert "right if" in str(bb.check(file, version="0.8.0"))


def test_a_hydra_program_that_hands_on_to_verl_is_named_and_read_with_its_overrides(tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "mine.yaml").write_text(VERL.replace("'${oc.env:DATA}/a.parquet'", "a.parquet"))
    file = tmp_path / "train.py"
    file.write_text(
        "import hydra\nfrom verl.trainer.main_ppo import run_ppo\n"
        "@hydra.main(config_path='configs', config_name='mine')\ndef main(config):\n    run_ppo(config)\nmain()\n"
    )
    (said,) = bb.read(file).findings
    assert (said.code, said.undecided) == ("BB010", True)
    assert "verl.trainer.main_ppo.run_ppo" in said.message
    reading = bb.read(file, env={"1": "data.train_batch_size=4"}, version="0.8.0")
    assert reading.spec is not None
    assert reading.spec.completions_per_rollout == 16


def test_the_processes_that_a_program_asks_its_environment_for_are_those_that_are_said(tmp_path: Path) -> None:
    before = "import os\nWORLD = int(os.environ.get('WORLD_SIZE', '1'))\n"
    file = written(tmp_path, more="generation_batch_size=8 * WORLD,")
    file.write_text(before + file.read_text())
    reading = read(file, world_size=4)
    assert reading.spec is not None
    assert reading.spec.completions_per_rollout == 32
    script = tmp_path / "run.sh"
    script.write_text("accelerate launch --num_processes 2 train.py\n")
    launched = bb.read(script, version="1.16.0")
    assert launched.spec is not None
    assert launched.spec.completions_per_rollout == 16


def test_a_class_of_ones_own_that_has_the_name_alone_is_no_run(tmp_path: Path) -> None:
    file = written(tmp_path)
    own = "from dataclasses import dataclass\n@dataclass\nclass GRPOConfig:\n    size: int = 3\nmine = GRPOConfig()\n"
    file.write_text(
        own
        + file.read_text()
        .replace("import GRPOConfig", "import GRPOConfig as Theirs")
        .replace("args = GRPO", "args = Theirs #GRPO")
        .replace("#GRPOConfig(", "(", 1)
    )
    reading = read(file)
    assert (reading.framework, reading.verdict) == ("trl", "valid")
    assert not [one for one in reading.findings if one.code == "BB012"]
    file.write_text(own + "Trainer(mine).train()\n")
    assert (read(file).framework, read(file).verdict) == ("unknown", "undecided")
    for bases in ("BaseModel", "Settings"):  # pydantic's, and a class of the program's own that is derived from it
        classes = f"from pydantic import BaseModel\nclass Settings(BaseModel):\n    pass\nclass GRPOConfig({bases}):\n"
        file.write_text(classes + "    num_generations: int = 3\nMyTrainer(config=GRPOConfig()).train()\n")
        assert (read(file).framework, read(file).verdict) == ("unknown", "undecided")
    copied = "from transformers import TrainingArguments\nclass GRPOConfig(TrainingArguments):\n    pass\n"
    file.write_text(copied + "class Mine(GRPOConfig):\n    pass\nMyTrainer(args=Mine(num_generations=4)).train()\n")
    assert read(file).framework == "trl"


def test_a_key_that_no_release_takes_is_told_whatever_its_value(tmp_path: Path) -> None:
    reading = read(written(tmp_path, more="reward_func=len_of_it,"))
    assert [one.code for one in reading.findings if one.where and one.where[0].key == "reward_func"] == ["BB-TRL-003"]


# ---- programs that build a trainer and do not train

BUILDS = PROGRAM.partition("GRPOTrainer(model")[0].format(micro=4, group=4, more="")
TRAINER = 'GRPOTrainer(model="m", reward_funcs=[len], args=args)'


@pytest.mark.parametrize(
    "ends",
    [
        f"trainer = {TRAINER}\nprint(trainer.evaluate())\n",
        f"trainer = {TRAINER}\nif trainer is not None:\n    trainer.predict([])\n",
        f"{TRAINER}.evaluate()\n",
        f"def made():\n    return {TRAINER}\nmade().evaluate()\n",
        f"def main():\n    trainer: object = {TRAINER} if args else None\n    trainer.evaluate()\nmain()\n",
        "class Mine(GRPOTrainer):\n    pass\nMine('m', args=args).evaluate()\n",
    ],
)
def test_a_program_that_only_evaluates_is_no_run(tmp_path: Path, ends: str) -> None:
    (tmp_path / "evaluate.py").write_text(BUILDS + ends)
    reading = read(tmp_path / "evaluate.py")
    assert (reading.verdict, reading.spec) == ("undecided", None)
    (finding,) = reading.findings
    assert finding.code == "BB010"
    assert "does not train" in finding.message
    (tmp_path / "evaluate.sh").write_text("accelerate launch evaluate.py\n")
    assert read(tmp_path / "evaluate.sh").spec is None
    if "def " not in ends and "class " not in ends:
        cells = [{"cell_type": "code", "source": part} for part in (BUILDS, ends)]
        (tmp_path / "evaluate.ipynb").write_text(json.dumps({"cells": cells}))
        assert read(tmp_path / "evaluate.ipynb").spec is None


@pytest.mark.parametrize(
    "ends",
    [
        f"trainer = {TRAINER}\ntrainer.evaluate()\ntrainer.train()\n",
        f"trainer = {TRAINER}\ntrains_elsewhere(trainer)\n",
        f"trainer = {TRAINER}\n",  # an excerpt: nothing is done with it
        f"trainer = {TRAINER}\ngetattr(trainer, 'train')()\n",
        f"trainer = {TRAINER}\nstart = trainer.train\nstart()\n",
        f"trainer = {TRAINER}\nother = trainer\nother.train()\n",
        f"trainer = {TRAINER}\nfor batch in trainer.get_train_dataloader():\n    trainer.training_step(batch)\n",
        f"trainers = [{TRAINER}]\ntrainers[0].train()\n",
        f"def made():\n    return {TRAINER}\nmade().train()\n",
        f"def made():\n    return {TRAINER}\n",
        f"class Holds:\n    trainer = {TRAINER}\nHolds.trainer.train()\n",
        f"class Holds:\n    def __init__(self):\n        self.trainer = {TRAINER}\n"
        "    def go(self):\n        self.trainer.train()\nHolds().go()\n",
        "class Mine(GRPOTrainer):\n    def __init__(self, **more):\n        super().__init__(**more)\n"
        "        self.train()\nMine(model='m', args=args)\n",
        f"trainer = {TRAINER}\nwith trainer as t:\n    t.train()\n",
    ],
)
def test_a_trainer_that_may_be_trained_is_a_run(tmp_path: Path, ends: str) -> None:
    (tmp_path / "train.py").write_text(BUILDS + ends)
    reading = read(tmp_path / "train.py")
    assert reading.spec is not None
    assert "BB010" not in codes(reading)


def test_a_trainer_in_a_module_of_the_program_may_be_trained_by_whoever_imports_it(tmp_path: Path) -> None:
    (tmp_path / "built.py").write_text(f"{BUILDS}trainer = {TRAINER}\n")
    (tmp_path / "train.py").write_text("from built import trainer\ntrainer.train()\n")
    assert read(tmp_path / "train.py").verdict == "valid"


@pytest.mark.parametrize(
    ("marked", "followed"), [(None, False), ("pyproject.toml", True), ("setup.py", True), (".git", True)]
)
def test_a_package_in_whose_folder_the_program_lies_is_followed_where_a_project_begins_above(
    tmp_path: Path, marked: str | None, followed: bool
) -> None:
    """`tinker/train.py` imports an installed `tinker`: the folder above is on Python's path as a project's alone."""
    (tmp_path / ".git").mkdir()  # of a repository in which all of this lies
    folder = tmp_path / "work" / "ember"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "built.py").write_text(f"{BUILDS}trainer = {TRAINER}\n")
    (folder / "train.py").write_text("from ember.built import trainer\ntrainer.train()\n")
    if marked:
        (tmp_path / "work" / marked).touch()
    assert (read(folder / "train.py").verdict == "valid") is followed


@pytest.mark.parametrize("inside", [True, False])
def test_a_module_above_the_root_of_the_repository_is_another_project_s(tmp_path: Path, inside: bool) -> None:
    folder = tmp_path / "work" / "examples"
    folder.mkdir(parents=True)
    (tmp_path / ".git" if inside else tmp_path / "work" / ".git").mkdir()
    (tmp_path / "built.py").write_text(f"{BUILDS}trainer = {TRAINER}\n")
    (folder / "train.py").write_text("from built import trainer\ntrainer.train()\n")
    assert (read(folder / "train.py").verdict == "valid") is inside


def test_of_two_trainers_the_one_that_trains_is_the_run(tmp_path: Path) -> None:
    other = BUILDS.replace("args =", "of_eval =").replace("batch_size=4", "batch_size=8")
    more = f"seen = {TRAINER.replace('args=args', 'args=of_eval')}\nseen.evaluate()\n{TRAINER}.train()\n"
    (tmp_path / "train.py").write_text(f"{BUILDS}{other}{more}")
    reading = read(tmp_path / "train.py")
    assert reading.derived is not None
    assert reading.derived["completions_per_step"] == 4
    assert "BB012" not in codes(reading, "warning")
