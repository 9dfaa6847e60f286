"""A verdict rests on the framework's own trainer: where another one runs, errors are no errors yet, and it is said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import batchbridge
from batchbridge.contract.reading import CountedSizes, Reading
from batchbridge.meaning.findings import CONDITION

UNEVEN = "--num_generations 6 --per_device_train_batch_size 1 --learning_rate 1e-6"
STOCK = "from trl import GRPOTrainer\nGRPOTrainer(model='m', reward_funcs=[len]).train()\n"
VERL = (
    "python3 -m {program} algorithm.adv_estimator=grpo data.train_batch_size=64 actor_rollout_ref.rollout.n=8 "
    "actor_rollout_ref.actor.ppo_mini_batch_size=32 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 "
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4 actor_rollout_ref.rollout.name=vllm "
    "trainer.n_gpus_per_node=8 {more}\n"
)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def launched(script: str, program: str | None = None, **said: str) -> Reading:
    Path("run.sh").write_text(script, encoding="utf-8")
    if program is not None:
        Path("train.py").write_text(program, encoding="utf-8")
    return batchbridge.read("run.sh", **{"version": "0.17.0", **said})


def test_a_script_that_is_not_here_leaves_the_verdict_open() -> None:
    reading = launched(f"accelerate launch --num_processes 8 train.py {UNEVEN}\n")
    assert (reading.verdict, reading.supposed.verdict) == ("undecided", "invalid")
    assert reading.condition is not None
    assert reading.condition.why == "train.py is not here"
    wrong = next(one for one in reading.findings if one.code == "BB-TRL-021")
    assert (wrong.undecided, wrong.message[:42]) == (True, "if train.py trains as TRL's GRPOTrainer do")
    assert [one.code for one in reading.supposed.findings if one.code == CONDITION] == []


def test_a_script_that_builds_trls_own_trainer_is_judged() -> None:
    reading = launched(f"accelerate launch --num_processes 8 train.py {UNEVEN}\n", STOCK)
    assert (reading.verdict, reading.condition) == ("invalid", None)


@pytest.mark.parametrize(
    ("program", "who"),
    [
        ("from mine import MyGRPOTrainer\nMyGRPOTrainer().train()\n", "MyGRPOTrainer"),
        ("class Mine:\n    pass\nprint(Mine)\n", "train.py"),
        (
            "from trl import GRPOTrainer\nclass Mine(GRPOTrainer):\n"
            "    def _prepare_inputs(self, x):\n        return x\n"
            "    def training_step(self, *args):\n        return 0\nMine().train()\n",
            "Mine",
        ),
    ],
)
def test_a_trainer_of_ones_own_is_named(program: str, who: str) -> None:
    reading = launched(f"accelerate launch --num_processes 8 train.py {UNEVEN}\n", program)
    assert reading.verdict == "undecided"
    assert reading.condition is not None
    assert reading.condition.supposed == f"{who} trains as TRL's GRPOTrainer does"


def test_a_subclass_that_leaves_batches_alone_is_trls() -> None:
    adds = (
        "from trl import GRPOTrainer\nclass Mine(GRPOTrainer):\n    def note(self):\n        return 1\nMine().train()\n"
    )
    assert launched(f"accelerate launch --num_processes 8 train.py {UNEVEN}\n", adds).verdict == "invalid"


def test_a_python_program_with_its_own_trainer_is_not_judged_by_trls_numbers_without_a_word() -> None:
    text = "from trl import GRPOConfig\nfrom mine import OwnTrainer\nOwnTrainer(args=GRPOConfig()).train()\n"
    Path("own.py").write_text(text, encoding="utf-8")
    reading = batchbridge.read("own.py", version="1.16.0", world_size=1)
    assert reading.verdict == "undecided"
    assert "own.py trains with OwnTrainer, which is not TRL's own" in str(batchbridge.check("own.py", world_size=1))


def test_the_r1_v_family_repeats_each_row() -> None:
    """As Video-R1's thread 58 counts: 1 row on each of 8 devices, 6 completions each."""
    words = "src/open_r1/grpo_custom_video_mc.py --temporal false --len_control true"
    reading = launched(f"torchrun --nproc_per_node=8 {words} {UNEVEN}\n")
    assert reading.condition is not None
    assert reading.condition.sizes == CountedSizes(8, 6, 48, 48)
    assert [one.code for one in reading.findings if one.code == "BB-TRL-021"] == []  # it needs no whole groups


def test_ms_swift_starts_its_processes_itself() -> None:
    words = f"swift rlhf --rlhf_type grpo {UNEVEN.replace('6', '8', 1)}"
    before = "n=8 NPROC_PER_NODE=$n"  # bash gives each assignment those before it
    for script in (f"NPROC_PER_NODE=8 {words}\n", f"{before} {words}\n", f"export NPROC_PER_NODE=8\n{words}\n"):
        reading = launched(script)
        assert reading.native["num_processes"] == 8
        assert reading.condition is not None
        assert "ms-swift" in reading.condition.why


@pytest.mark.parametrize(("method", "codes"), [("grpo", []), ("gkd", ["BB-TRL-081"]), ("dpo", ["BB-TRL-081"])])
def test_another_method_of_ms_swifts_is_not_read_as_grpo(method: str, codes: list[str]) -> None:
    options = UNEVEN.replace("6", "8", 1)
    reading = launched(f"NPROC_PER_NODE=8 swift rlhf --rlhf_type {method} {options}\n")
    assert [one.code for one in reading.findings if one.code == "BB-TRL-081"] == codes
    assert (reading.spec is None) == bool(codes)


@pytest.mark.parametrize(
    ("program", "more", "said"),
    [
        ("recipe.dapo.main_dapo", "data.gen_batch_size=96", "drops groups without a difference"),
        ("verl.trainer.main_ppo", "+reward_model.reward_kwargs.n_votes_per_prompt=64", "in TTRL, each prompt gets"),
        ("verl.trainer.main_ppo", "+actor_rollout_ref.rollout.n_agent=5", "each prompt gets 5 x 8 completions"),
        ("recipe.cppo.src.main_cppo", "+cppo.pruning_rate=0.5", "1 - cppo.pruning_rate"),
        ("my.own.main", "", "my.own.main is not a program of verl's"),
    ],
)
def test_programs_on_verl_say_what_a_batch_counts_there(program: str, more: str, said: str) -> None:
    reading = launched(VERL.format(program=program, more=more), version="0.7.1")
    assert reading.verdict == "undecided"
    assert reading.condition is not None
    assert said in reading.condition.why


def test_a_main_ppo_that_builds_a_known_trainer_is_judged_by_that_and_its_place_is_named() -> None:
    program = Path("verl/trainer/main_ppo.py")
    program.parent.mkdir(parents=True)
    program.write_text("from mine import RayDAPOTrainer\nRayDAPOTrainer().fit()\n", encoding="utf-8")
    reading = launched(VERL.format(program="verl.trainer.main_ppo", more=""), version="0.7.1")
    assert reading.condition is not None
    assert "drops groups without a difference" in reading.condition.why
    assert [(place.file, place.line) for place in reading.condition.places] == [(str(program), 2)]


def test_verls_own_program_has_no_condition() -> None:
    assert launched(VERL.format(program="verl.trainer.main_ppo", more=""), version="0.7.1").condition is None


def test_the_second_line_marks_the_numbers_and_the_exit_code_is_4(capsys: pytest.CaptureFixture[str]) -> None:
    from batchbridge.cli.main import main

    launched(f"accelerate launch --num_processes 6 train.py {UNEVEN}\n")
    assert main(("check", "run.sh", "--framework-version", "0.17.0")) == 4
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "  1 prompt x 6 = 6 completions per rollout; 1 optimizer step of 6 completions"
    assert lines[2].startswith("  numbers of TRL's, and right if train.py trains as TRL's GRPOTrainer does: ")


def test_the_sizes_of_an_example_are_marked_too(capsys: pytest.CaptureFixture[str]) -> None:
    from batchbridge.cli.main import main

    own = "from trl import GRPOConfig\nfrom mine import MyGRPOTrainer\n"
    Path("train.py").write_text(own + "MyGRPOTrainer(args=GRPOConfig(num_generations=8)).train()\n", encoding="utf-8")
    assert main(("check", "train.py", "--framework-version", "0.17.0")) == 4
    lines = capsys.readouterr().out.splitlines()
    example = next(at for at, line in enumerate(lines) if "for example on 8 devices" in line)
    assert lines[example + 1].startswith("  numbers of TRL's, and right if MyGRPOTrainer trains as TRL's")
    assert [line for line in lines if "and right if" in line] == [lines[example + 1]]


def test_what_compares_goes_on_with_what_is_supposed() -> None:
    launched(f"accelerate launch --num_processes 6 train.py {UNEVEN}\n")
    Path("other.sh").write_text(Path("run.sh").read_text().replace("size 1", "size 2"), encoding="utf-8")
    readings = [batchbridge.read(file, version="0.17.0") for file in ("run.sh", "other.sh")]
    assert batchbridge.diff(*readings).verdict == "not equivalent"
    assert batchbridge.scale(readings[0], 12).choices


REPEATS = """
from transformers import Trainer
class {name}(Trainer):
    def __init__(self, args=None):
        self.num_generations = args.num_generations
    def compute_loss(self, model, inputs):
        prompts = [prompt for prompt in inputs for _ in range(self.{over})]
        return prompts
"""


@pytest.mark.parametrize(
    ("over", "sizes"), [("num_generations", CountedSizes(16, 6, 96, 96)), ("num_iterations", None)]
)
def test_a_trainer_that_repeats_its_rows_is_told_by_its_code(over: str, sizes: CountedSizes | None) -> None:
    program = REPEATS.format(name="AudioGRPOTrainer", over=over) + "AudioGRPOTrainer().train()\n"
    reading = launched(f"torchrun --nproc_per_node=8 train.py {UNEVEN} --gradient_accumulation_steps 2\n", program)
    assert reading.condition is not None
    assert reading.condition.sizes == sizes
    text = str(batchbridge.check("run.sh", version="0.17.0"))
    assert ("16 prompts x 6 = 96 completions per rollout; 1 optimizer step of 96" in text) is (sizes is not None)


def test_of_two_trainers_each_has_to_repeat_its_rows() -> None:
    both = REPEATS.format(name="PlainGRPOTrainer", over="num_generations")
    both += REPEATS.format(name="FastGRPOTrainer", over="{over}")
    both += "import sys\nuse = PlainGRPOTrainer if sys.flags.debug else FastGRPOTrainer\nuse().train()\n"
    command = f"torchrun --nproc_per_node=8 train.py {UNEVEN}\n"
    alike = launched(command, both.format(over="num_generations")).condition
    assert alike is not None
    assert alike.sizes == CountedSizes(8, 6, 48, 48)
    other = launched(command, both.format(over="num_iterations")).condition
    assert other is not None
    assert (other.sizes, other.otherwise) == (None, False)


@pytest.mark.parametrize(
    ("more", "sizes"),
    [
        ("--pruning=0.5 --allocation", CountedSizes(12, 8, 48, 48)),
        ("--pruning 0.5", CountedSizes(6, 8, 24, 24)),
        ("--pruning 0", CountedSizes(6, 8, 48, 48)),
        ("", CountedSizes(6, 8, 48, 48)),
        ("--pruning much", None),
    ],
)
def test_cppo_prunes_what_its_options_say(more: str, sizes: CountedSizes | None) -> None:
    """As its trainer counts: with --allocation a batch of 48 rows has 12 groups of 4, and generates 8 for each."""
    said = "--num_generations 8 --per_device_train_batch_size 4 --gradient_accumulation_steps 4 --learning_rate 1e-6"
    reading = launched(f"accelerate launch --num_processes 3 src/open_r1/grpo_gsm.py {said} {more}\n")
    assert reading.condition is not None
    assert reading.condition.sizes == sizes
    text = str(batchbridge.check("run.sh", version="0.17.0"))
    assert ("no sizes are shown, because in CPPO" in text) is (sizes is None)


def test_the_default_of_cppos_own_program_does_not_replace_what_the_command_says() -> None:
    Path("src/open_r1").mkdir(parents=True)
    Path("src/open_r1/grpo_gsm.py").write_text(
        "from dataclasses import dataclass\nimport trl\nfrom trl import TrlParser\n\n@dataclass\n"
        "class GRPOConfig(trl.GRPOConfig):\n    pruning: float = 0.0\n\n"
        "args = TrlParser((GRPOConfig,)).parse_args_and_config()\n",
        encoding="utf-8",
    )
    said = "--num_generations 8 --per_device_train_batch_size 4 --gradient_accumulation_steps 4 --learning_rate 1e-6"
    reading = launched(f"accelerate launch --num_processes 3 src/open_r1/grpo_gsm.py {said} --pruning=0.5\n")
    assert reading.condition is not None
    assert reading.condition.sizes == CountedSizes(6, 8, 24, 24)


@pytest.mark.parametrize(
    ("more", "line"),
    [
        (
            "+actor_rollout_ref.rollout.n_agent=5 actor_rollout_ref.rollout.n=1",
            "64 prompts x 5 = 320 completions per rollout; 10 optimizer steps of 32 completions",
        ),
        (
            "+agent_grpo.n=16 actor_rollout_ref.rollout.n=1",
            "64 prompts x 16 = 1,024 completions per rollout; 32 optimizer steps of 32 completions",
        ),
        (
            "+actor_rollout_ref.rollout.n_repeat=5 actor_rollout_ref.rollout.n=1",
            "64 prompts x 5 = 320 completions per rollout; 10 optimizer steps of 32 completions",
        ),
        (
            "+trainer.rejection_sample=True",
            "64 prompts x 8 = 512 completions per rollout; what an optimizer step has is not decided",
        ),
        (
            "+trainer.rejection_sample=False",
            "64 prompts x 8 = 512 completions per rollout; 2 optimizer steps of 256 completions",
        ),
    ],
)
def test_a_known_programs_own_sizes_are_the_headline(more: str, line: str) -> None:
    launched(VERL.format(program="verl.trainer.main_ppo", more=more), version="0.7.1")
    said = str(batchbridge.check("run.sh", version="0.7.1")).splitlines()
    assert said[1] == f"  {line}"
    own = not more.endswith("False")
    assert said[2].startswith("  its own sizes: in ") is own
    explained = str(batchbridge.explain("run.sh", version="0.7.1")).splitlines()
    assert (explained[1:3] == said[1:3]) is own
    assert ("Meaning" in explained) is (not own), "the sizes of verl's own program"
    scaled = batchbridge.scale("run.sh", 16, version="0.7.1")
    assert any(one.startswith("the program counts batches itself: ") for one in scaled.problems) is own
    assert (scaled.choices == ()) is own


def test_options_of_a_programs_own_are_nobodys_errors() -> None:
    own = "import argparse\np = argparse.ArgumentParser()\np.add_argument('--data-root')\np.parse_known_args()\n"
    command = f"accelerate launch --num_processes 6 train.py {UNEVEN} --data-root x --data_rot y\n"
    found = [one.where[0].key for one in launched(command, own + STOCK).findings if one.code == "BB-TRL-003"]
    assert found == ["data_rot"]
    classes = (
        "from dataclasses import dataclass\nfrom trl import TrlParser, GRPOConfig\n"
        "@dataclass\nclass Mine:\n    data_rot: str = ''\nTrlParser((Mine, GRPOConfig)).parse_args_and_config()\n"
    )
    assert [one.code for one in launched(command, classes + own + STOCK).findings if one.code == "BB-TRL-003"] == []


def test_a_notebook_with_trl_0_14_repeats_its_rows() -> None:
    cells = ["!pip install trl==0.14.0", "from trl import GRPOConfig, GRPOTrainer", "a = GRPOConfig(num_generations=2,"]
    cells[-1] += (
        "per_device_train_batch_size=1, gradient_accumulation_steps=8)\nGRPOTrainer('m', [len], args=a).train()"
    )
    book = {"cells": [{"cell_type": "code", "source": [text]} for text in cells], "nbformat": 4, "metadata": {}}
    Path("n.ipynb").write_text(json.dumps(book), encoding="utf-8")
    line = "32 prompts x 2 = 64 completions per rollout; 1 optimizer step of 64 completions"
    assert line in str(batchbridge.check("n.ipynb", world_size=4))
    book["cells"][0]["source"] = ['%pip install "peft==0.14.0" \\\n', '  "trl==0.14.0"\n']
    Path("n.ipynb").write_text(json.dumps(book), encoding="utf-8")
    assert line in str(batchbridge.check("n.ipynb", world_size=4))
    book["cells"][0]["source"] = ["!pip install trl==0.17.0"]
    Path("n.ipynb").write_text(json.dumps(book), encoding="utf-8")
    assert line not in str(batchbridge.check("n.ipynb", world_size=4))
