"""Configurations that do not say their devices: they are compared, planned and scaled on as many as they can have, as
an example, on which no verdict rests."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import batchbridge as bb
from batchbridge.render import between

A: dict[str, Any] = {
    "learning_rate": 1e-6,
    "num_generations": 8,
    "per_device_train_batch_size": 16,
    "gradient_accumulation_steps": 4,
}
B = A | {"gradient_accumulation_steps": 2}


def fields(found: Any) -> list[str]:
    return [one.field for one in found.differences]


def test_two_runs_that_differ_are_not_without_differences() -> None:
    found = bb.diff(A, B)
    assert found.verdict == "undecided"  # nobody said the devices
    assert found.example_devices == 8
    assert fields(found) == ["optimizer_step.completions_per_step", "rollout.prompts_per_rollout"]
    assert [(one.a, one.b) for one in found.differences] == [(512, 256), (64, 32)]
    assert "on 8 devices, for example" in between.comparison(("a", "b"), found)


def test_alike_they_are_equivalent_for_example() -> None:
    found = bb.diff(A, A)
    assert (found.verdict, found.differences, found.example_devices) == ("undecided", (), 8)
    assert "undecided: equivalent on 8 devices, for example" in between.comparison(("a", "b"), found)


def test_a_side_that_says_its_devices_decides_how_many() -> None:
    said = bb.read(A, framework="trl", version="1.16.0", world_size=3)
    found = bb.diff(said, B)
    assert (found.verdict, found.example_devices) == ("undecided", 3)
    assert [(one.a, one.b) for one in found.differences] == [(192, 96), (24, 12)]


def test_with_sizes_there_is_no_example() -> None:
    found = bb.diff(A, B, world_size=4)
    assert (found.verdict, found.example_devices) == ("not equivalent", None)


def test_no_number_of_devices_that_both_can_have_is_no_example() -> None:
    odd = A | {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 1, "num_generations": 7}
    even = A | {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 1, "num_generations": 62}
    found = bb.diff(odd, even)
    assert (found.verdict, found.example_devices) == ("undecided", None)
    assert [(one.field, one.a, one.b) for one in found.differences] == [("setting.num_generations", 7, 62)]


def test_what_both_lack_is_said_once(tmp_path: Path, typed: Callable[..., tuple[int, str, str]]) -> None:
    for name, values in (("a", A), ("b", B)):
        (tmp_path / f"{name}.yaml").write_text("".join(f"{key}: {value}\n" for key, value in values.items()))
    code, output, _ = typed("diff", str(tmp_path / "a.yaml"), str(tmp_path / "b.yaml"))
    assert code == 4
    assert output.count("the world size is missing") == 1
    assert "  A, B BB-TRL-005" in output
    assert "undecided: 2 differences on 8 devices, for example" in output


@pytest.mark.parametrize("version", ["0.14.0", "1.16.0"])
def test_an_invalid_side_has_no_example(version: str) -> None:
    wrong = bb.read(A | {"num_generations": 0}, framework="trl", version=version)
    assert bb.diff(wrong, A).example_devices is None


def test_a_run_is_scaled_from_an_example_and_what_is_missing_is_still_said() -> None:
    found = bb.scale(A, 4)
    assert (found.verdict, found.example_devices) == ("undecided", 8)
    assert found.choices[0].title == "the same run"
    assert found.choices[0].spec.optimizer_step.completions_per_step == 512
    assert [one.code for one in found.reading.findings if one.undecided] == ["BB-TRL-005"]
    said = between.scaling("a", found)
    assert "nothing says the devices that it is written for; now: 8 devices, for example" in said
    assert found.to_dict()["example_devices"] == 8


def test_a_run_that_says_its_devices_is_scaled_from_them() -> None:
    found = bb.scale(bb.read(A, framework="trl", version="1.16.0", world_size=2), 4)
    assert (found.verdict, found.example_devices) == ("kept", None)


def test_what_is_valid_on_no_devices_has_no_example() -> None:
    assert bb.scale(A | {"per_device_train_batch_size": "x"}, 4).example_devices is None


def test_plan_shows_an_example_and_leaves_it_undecided(
    typed: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.yaml").write_text("".join(f"{key}: {value}\n" for key, value in A.items()), encoding="utf-8")
    code, out, _ = typed("plan", "a.yaml")
    assert (code, out.splitlines()[0]) == (4, "on 8 devices, for example: nothing says how many (--world-size DEVICES)")
    assert "completions_per_step: 512" in out
    (told,) = json.loads(typed("plan", "a.yaml", "--json")[1])["results"]
    assert (told["verdict"], told["example_devices"], told["totals"]["completions_per_step"]) == ("undecided", 8, 512)
    code, out, _ = typed("plan", "a.yaml", "--gpus", "4")
    assert (code, out.splitlines()[0].partition(":")[0]) == (0, "dataset")
    code, out, _ = typed("scale", "a.yaml", "--gpus", "4")
    assert (code, out.splitlines()[-1]) == (4, "--from DEVICES says what FILE is written for")
    assert typed("scale", "a.yaml", "--gpus", "4", "--from", "8")[0] == 0


def test_a_conversion_says_what_becomes_of_every_field_and_writes_nothing(
    typed: Callable[..., tuple[int, str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said, guessed = bb.convert(A, "verl", world_size=8), bb.convert(A, "verl")
    assert (guessed.verdict, guessed.example_devices, said.example_devices) == ("undecided", 8, None)
    assert guessed.fields == said.fields
    assert guessed.written == said.written
    assert "on 8 devices, for example" in str(guessed)
    assert guessed.to_dict()["example_devices"] == 8
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.yaml").write_text("".join(f"{key}: {value}\n" for key, value in A.items()), encoding="utf-8")
    code, out, err = typed("convert", "a.yaml", "--to", "verl", "-o", "run.sh", "--allow-lossy")
    assert (code, err) == (4, "")
    assert "\n  lossy on 8 devices, for example: nothing says how many there are\n" in out
    assert "nothing was written: the source is undecided" in out
    assert not (tmp_path / "run.sh").exists()
    assert "for example" not in typed("convert", "a.yaml", "--to", "verl", "--gpus", "8", "--dry-run")[1]


def test_a_conversion_of_what_lacks_more_has_no_example() -> None:
    assert bb.convert(A | {"per_device_train_batch_size": "x"}, "verl").example_devices is None
    assert bb.convert(bb.read(A), "verl").example_devices is None  # its source is not there to be read again
