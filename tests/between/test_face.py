"""What a user calls in Python: every function takes what `read` takes, and what comes back fits on a line."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from real import RECIPE

import batchbridge
from batchbridge.reports import Check, Explanation

SAID: dict[str, Any] = {"framework": "trl", "version": "1.16.0", "world_size": 8, "dataset_size": 7_680}
TRL = RECIPE.replace("warmup_ratio", "warmup_steps")


@pytest.fixture
def recipe(frameworks: None, tmp_path: Path) -> Path:
    path = tmp_path / "recipe.yaml"
    path.write_text(TRL.replace("output_dir", "max_prompt_length: 512\nshuffle_dataset: true\noutput_dir"))
    return path


@pytest.fixture
def reading(recipe: Path) -> batchbridge.Reading:
    recipe.write_text(TRL)
    return batchbridge.read(recipe, **SAID)


def test_a_path_is_explained_and_checked_as_by_the_commands(
    reading: batchbridge.Reading, recipe: Path, run: Callable[..., tuple[int, str, str]]
) -> None:
    options = ("--framework", "trl", "--framework-version", "1.16.0", "--world-size", "8", "--dataset-size", "7680")
    explained, checked = batchbridge.explain(recipe, **SAID), batchbridge.check(recipe, **SAID)
    assert isinstance(explained, Explanation)
    assert isinstance(checked, Check)
    assert run("explain", str(recipe), *options)[1] == f"{explained}\n"
    asked = "not asked: the framework's own constructor; --native asks it where it is installed\n"
    assert run("check", str(recipe), *options)[1] == f"{checked}\n{asked}"
    assert checked.findings == reading.findings
    assert checked.verdict == explained.verdict == reading.verdict
    assert checked.to_dict() == explained.to_dict()
    assert {name: value for name, value in checked.to_dict().items() if name != "enforcement"} == reading.to_dict()
    assert checked.to_dict()["enforcement"]["verdict"] == "enforced"


def test_a_reading_is_taken_wherever_a_configuration_is(reading: batchbridge.Reading) -> None:
    assert batchbridge.read(reading) is reading
    assert batchbridge.check(reading).reading is batchbridge.explain(reading, name="mine").reading is reading
    with pytest.raises(TypeError, match="world_size: the source is a Reading, which is read already"):
        batchbridge.read(reading, world_size=4)


def test_a_path_and_a_dict_are_converted(frameworks: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(TRL + "dataset_name: mine\n")
    monkeypatch.setattr("batchbridge.kit.frame.installed", lambda distribution: "1.16.0")
    found = batchbridge.convert(path, "open_r1", world_size=8, dataset_size=7_680)
    settings = {"per_device_train_batch_size": 8, "num_generations": 8, "num_train_epochs": 1, "beta": 0.04}
    again = batchbridge.convert({**settings, "output_dir": "x"}, "open_r1", world_size=8)
    assert again.written is not None
    assert again.left_behind == {}
    assert again.written.values["output_dir"] == "x"
    assert found.written is not None
    assert found.written.values["dataset_name"] == "mine"
    assert found.source.dataset_size == 7_680
    with pytest.raises(ValueError, match="there is no adapter for framework 'none'"):
        batchbridge.convert(path, "none")


def test_two_paths_are_compared(frameworks: None, tmp_path: Path) -> None:
    one, other = tmp_path / "a.yaml", tmp_path / "b.yaml"
    one.write_text(TRL)
    other.write_text(TRL.replace("beta: 0.04", "beta: 0.1"))
    sides = [batchbridge.read(path, **SAID) for path in (one, other)]
    assert [d.field for d in batchbridge.diff(*sides).differences] == ["objective.kl_coefficient"]
    by_path = batchbridge.diff(one, other, world_size=8, dataset_size=7_680)
    assert (by_path.a.dataset_size, by_path.b.dataset_size) == (7_680, 7_680)


def test_a_known_text_is_diagnosed(frameworks: None) -> None:
    assert batchbridge.doctor("nothing that is known") == ()


def test_a_known_text_is_held_against_a_recipe(recipe: Path, reading: batchbridge.Reading) -> None:
    text = "ValueError: generation_batch_size (512) must be divisible by num_generations (14)."
    (found,) = batchbridge.doctor(text, readings=[reading])
    assert found.reading == reading
    (found,) = batchbridge.doctor(text, readings=[recipe])
    assert found.reading is not None
    assert found.reading.framework == "trl"


@pytest.mark.parametrize(("text", "readings"), [(None, ()), (b"", ()), (Path("log.txt"), ()), ("", "recipe.yaml")])
def test_what_a_doctor_cannot_read_is_named(text: Any, readings: Any) -> None:
    with pytest.raises(TypeError, match="doctor"):
        batchbridge.doctor(text, readings=readings)


def test_results_are_represented_on_one_short_line(reading: batchbridge.Reading) -> None:
    assert reading.spec is not None
    conversion = batchbridge.convert(reading, "open_r1")
    scaling = batchbridge.scale(reading, 4)
    results = [
        reading,
        conversion,
        conversion.written,
        batchbridge.diff(reading, reading),
        scaling,
        *scaling.choices,
        batchbridge.Plan(reading.spec, 7_680),
        batchbridge.explain(reading),
        batchbridge.check(reading, name="a name\n" * 100),
    ]
    for result in results:
        assert len(repr(result)) < 200, result
        assert "\n" not in repr(result)
        assert type(result).__name__ in repr(result)
    assert "1 findings" not in repr(dataclasses.replace(reading, findings=reading.findings[:1]))
    assert repr(reading).startswith("<RunReading: trl 1.16.0, valid, ")
