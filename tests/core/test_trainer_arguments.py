"""The arguments that a program gives TRL's trainer: what its constructor refuses, by release, and what is open."""

from __future__ import annotations

from pathlib import Path

import pytest

import batchbridge as bb
from batchbridge.contract.reading import Finding, Reading
from batchbridge.diagnosis import doctor

HEAD = "from trl import GRPOConfig, GRPOTrainer\nargs = GRPOConfig(per_device_train_batch_size=8, num_generations=8)\n"
CODE = "BB-TRL-099"


def read(folder: Path, text: str, version: str | None = "1.16.0") -> Reading:
    (folder / "train.py").write_text(HEAD + text)
    return bb.read(folder / "train.py", version=version, world_size=1)


def said(reading: Reading) -> list[Finding]:
    return [one for one in reading.findings if one.code == CODE]


def built(given: str, name: str = "GRPOTrainer") -> str:
    return f"trainer = {name}({given})\ntrainer.train()\n"


@pytest.mark.parametrize("version", ["0.15.0", "0.18.0", "0.29.1", "1.16.0"])
def test_a_tokenizer_is_refused_by_every_release(tmp_path: Path, version: str) -> None:
    reading = read(tmp_path, built("model='m', reward_funcs=[f], args=args,\n    tokenizer=tokenizer"), version)
    (found,) = said(reading)
    assert reading.verdict == "invalid"
    assert found.message.startswith("tokenizer is not an argument of GRPOTrainer in trl ")
    assert found.native == "TypeError: GRPOTrainer.__init__() got an unexpected keyword argument 'tokenizer'"
    assert found.fixes[0].text == "write processing_class"
    assert [(one.key, one.line) for one in found.where] == [("tokenizer", 4)]


@pytest.mark.parametrize(
    ("given", "version", "messages"),
    [
        ("model='m', reward_funcs=[f], args=args, peft_config=p, processing_class=t", "0.15.0", []),
        ("'m', [f], args, train_dataset=data, callbacks=[]", "1.16.0", []),
        ("model='m', reward_funcs=[f], rollout_func=f", "0.24.0", ["rollout_func is not"]),
        ("model='m', reward_funcs=[f], rollout_func=f", "0.25.0", []),
        ("model='m', reward_funcs=[f], beta=0.1", "1.16.0", ["beta is not"]),
        ("model='m', reward_func=[f]", "1.16.0", ["reward_func is not"]),
        ("model='m', reward_func=[f]", "1.7.1", ["reward_func is not"]),
        ("model='m', args=args", "1.7.1", ["reward_funcs is missing"]),
        ("model='m', args=args", "1.8.0", ["reward_funcs is missing"]),
        ("model='m', args=args, environment_factory=e", "1.8.0", []),
        ("model='m', args=args, environment_factory=e", "1.7.1", ["reward_funcs is missing"]),
        ("reward_funcs=[f], args=args", "1.16.0", ["model is missing"]),
        ("'m', [f], model='m'", "1.16.0", ["model is given twice"]),
        ("'m', [f], None, None, None, None, None, None, (None, None), None, 1", "0.15.0", ["GRPOTrainer takes 10"]),
    ],
)
def test_arguments_are_those_of_the_release(tmp_path: Path, given: str, version: str, messages: list[str]) -> None:
    found = said(read(tmp_path, built(given), version))
    assert [one.message[: len(start)] for one, start in zip(found, messages, strict=True)] == messages
    assert all(one.severity == "error" and not one.undecided for one in found)


def test_where_a_setting_belongs_is_said(tmp_path: Path) -> None:
    (found,) = said(read(tmp_path, built("model='m', reward_funcs=[f], args=args, beta=0.1")))
    assert found.fixes[0].text == "give it to GRPOConfig: args=GRPOConfig(beta=...)"
    (found,) = said(read(tmp_path, built("model='m', reward_funcs=[f], tools=[t]"), "0.25.1"))
    assert "trl >=0.26 has it" in found.message


@pytest.mark.parametrize(
    "text",
    [
        built("**anything()"),
        built("*anything()"),
        built("..., args=args"),
        "keywords = {'model': 'm', 'reward_funcs': [f], 'args': args}\n" + built("**keywords"),
        "import unsloth\n" + built("model='m', reward_funcs=[f], args=args, tokenizer=t"),
        "class Mine(GRPOTrainer):\n    def __init__(self, *args, tokenizer=None, **more):\n        pass\n"
        + built("model='m', reward_funcs=[f], args=args, tokenizer=t", "Mine"),
        "class Mine(mixin(), GRPOTrainer):\n    pass\n" + built("model='m', args=args, tokenizer=t", "Mine"),
        "from other import Mixin\nclass Mine(Mixin, GRPOTrainer):\n    pass\n"
        + built("model='m', args=args, tokenizer=t", "Mine"),
        "@patched\nclass Mine(GRPOTrainer):\n    pass\n" + built("model='m', args=args, tokenizer=t", "Mine"),
        "GRPOTrainer.__init__ = mine\n" + built("model='m', reward_funcs=[f], args=args, tokenizer=t"),
        "from trl import SFTTrainer\nSFTTrainer(model='m', tokenizer=t)\n" + built("'m', [f], args=args"),
    ],
)
def test_what_may_be_right_is_not_refused(tmp_path: Path, text: str) -> None:
    assert said(read(tmp_path, text)) == []


def test_a_class_of_the_programs_own_without_a_constructor_has_trls(tmp_path: Path) -> None:
    text = "class Mine(GRPOTrainer):\n    def log(self, logs):\n        super().log(logs)\n"
    (found,) = said(read(tmp_path, text + built("model='m', reward_funcs=[f], args=args, tokenizer=t", "Mine")))
    assert not found.undecided


@pytest.mark.parametrize(
    ("handler", "severity"),
    [
        ("except TypeError:\n    trainer = GRPOTrainer('m', [f], args, processing_class=t)\n", "warning"),
        ("except Exception as error:\n    print(error)\n", "warning"),
        ("except Exception as error:\n    print(error)\n    raise\n", "error"),
        ("except ImportError:\n    pass\n", "error"),
        ("except Exception as error:\n    sys.exit(1)\n", "error"),
    ],
)
def test_an_error_that_the_program_catches_is_a_warning(tmp_path: Path, handler: str, severity: str) -> None:
    text = f"import sys\ntry:\n    trainer = GRPOTrainer('m', [f], args, tokenizer=t)\n{handler}trainer.train()\n"
    (found,) = said(read(tmp_path, text))
    assert found.severity == severity


def test_a_call_that_may_not_be_reached_is_undecided(tmp_path: Path) -> None:
    text = "if old():\n    trainer = GRPOTrainer('m', [f], args, tokenizer=t)\n"
    text += "else:\n    trainer = GRPOTrainer('m', [f], args, processing_class=t)\ntrainer.train()\n"
    reading = read(tmp_path, text)
    (found,) = said(reading)
    assert (found.undecided, reading.verdict) == (True, "undecided")
    assert "old()" in found.message


def test_a_script_that_starts_a_program_has_its_arguments_judged(tmp_path: Path) -> None:
    read(tmp_path, built("model='m', reward_funcs=[f], args=args, tokenizer=t"))
    (tmp_path / "run.sh").write_text("accelerate launch --num_processes 1 train.py\n")
    (found,) = said(bb.read(tmp_path / "run.sh", version="1.16.0"))
    assert [(Path(one.file or "").name, one.line) for one in found.where] == [("train.py", 3)]


def test_the_constructor_of_a_users_own_copy_is_asked(tmp_path: Path) -> None:
    folder = tmp_path / "trl" / "trainer"
    folder.mkdir(parents=True)
    (tmp_path / "trl" / "__init__.py").write_text("")
    (folder / "grpo_config.py").write_text("class GRPOConfig:\n    num_generations: int = 8\n")
    start = "class GRPOTrainer:\n    def __init__(self, model, reward_funcs, args=None, *, {}=None):\n        pass\n"
    text = built("model='m', reward_funcs=[f], args=args, tokenizer=t")
    (folder / "grpo_trainer.py").write_text(start.format("tokenizer"))
    assert said(read(tmp_path, text, None)) == []
    (folder / "grpo_trainer.py").write_text(start.format("processing_class"))
    (found,) = said(read(tmp_path, text, None))
    assert "your copy of trl in " in found.message


def test_doctor_knows_what_python_says_of_the_call() -> None:
    for text in (
        "TypeError: GRPOTrainer.__init__() got an unexpected keyword argument 'tokenizer'",
        "TypeError: GRPOTrainer.__init__() missing 1 required positional argument: 'reward_funcs'",
    ):
        assert [code for one in doctor(text) for code in one.codes] == [CODE]
