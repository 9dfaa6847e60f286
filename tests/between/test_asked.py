"""Devices and versions by the commands' words in Python, and that a version is the source's everywhere."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import batchbridge
from batchbridge.reading.asked import asked_for
from batchbridge.render import between

RECIPE: Mapping[str, Any] = {"per_device_train_batch_size": 16, "gradient_accumulation_steps": 4, "num_generations": 14}
TRL = {"framework": "trl", "version": "1.16.0"}
READERS = {
    "read": lambda **said: batchbridge.read(dict(RECIPE), **said),
    "check": lambda **said: batchbridge.check(dict(RECIPE), **said).reading,
    "explain": lambda **said: batchbridge.explain(dict(RECIPE), **said).reading,
}


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.yaml"
    path.write_text("".join(f"{key}: {value}\n" for key, value in RECIPE.items()), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", READERS)
def test_nodes_and_gpus_are_a_world_size_and_framework_version_a_version(name: str) -> None:
    reader: Callable[..., batchbridge.Reading] = READERS[name]
    asked = reader(framework="trl", framework_version="1.16.0", nodes=2, gpus=7)
    assert asked.spec is not None
    assert (asked.spec.topology.world_size, asked.framework_version) == (14, "1.16.0")
    assert asked.spec == reader(framework="trl", version="1.16.0", world_size=14).spec
    assert reader(framework="trl", version="1.16.0", gpus=7).spec == reader(**TRL, world_size=7).spec


@pytest.mark.parametrize("name", ["read", "check", "explain", "diff", "scale", "convert"])
def test_every_function_takes_the_commands_words(name: str) -> None:
    taken = inspect.signature(getattr(batchbridge, name)).parameters
    assert {"version", "framework_version", "world_size", "nodes", "gpus", "dataset_size"} <= taken.keys()


@pytest.mark.parametrize(
    ("said", "error", "text"),
    [
        ({"version": "1", "framework_version": "1"}, TypeError, "version and framework_version are the same"),
        ({"world_size": 8, "gpus": 8}, TypeError, "or nodes and gpus do: give one"),
        ({"nodes": 2}, ValueError, "gpus, the devices of each node, are missing"),
        ({"gpus": 0}, ValueError, "gpus = 0: must be at least 1"),
        ({"gpus": "8"}, TypeError, "gpus: expected int, not str"),
        ({"gpus": True}, TypeError, "gpus: expected int, not bool"),
    ],
)
@pytest.mark.parametrize("name", READERS)
def test_two_words_for_one_thing_and_half_of_one_are_refused(
    name: str, said: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        READERS[name](framework="trl", **said)


def test_a_launch_script_sees_the_nodes_as_it_does_from_the_command() -> None:
    assert asked_for(None, None, None, 2, 8, {"A": "1"}).env == {"--nodes": "2", "--gpus": "8", "A": "1"}
    assert asked_for(None, None, 16, None, None, None) == (None, 16, None)


def test_diff_takes_them_for_both_sides(recipe: Path) -> None:
    found = batchbridge.diff(recipe, {**RECIPE, "num_generations": 8}, framework_version="1.16.0", gpus=8)
    assert (found.a.verdict, found.a.framework_version, found.b.framework_version) == ("invalid", "1.16.0", "1.16.0")
    found = batchbridge.diff(recipe, dict(RECIPE), version="1.16.0", nodes=1, gpus=7)
    assert (found.verdict, found.missing) == ("equivalent", ())


def test_scale_takes_devices_by_either_word_and_what_the_source_is_written_for(recipe: Path) -> None:
    found = batchbridge.scale(recipe, gpus=8, present=7, framework_version="1.16.0")
    assert (found.verdict, found.world_size) == ("kept", 8)
    assert (
        found.choices[0].settings == batchbridge.scale(batchbridge.read(recipe, **TRL, gpus=7), 8).choices[0].settings
    )
    with pytest.raises(TypeError, match="scale needs the devices"):
        batchbridge.scale(recipe)


def test_converts_version_is_the_sources_and_target_version_the_targets(recipe: Path) -> None:
    found = batchbridge.convert(recipe, "verl", version="1.16.0", target_version="0.9.1", gpus=7)
    assert (found.source.framework_version, found.framework_version) == ("1.16.0", "0.9.1")
    with pytest.raises(ValueError, match=r"trl 0.9.1 is not known.*target_version the target's"):
        batchbridge.convert(recipe, "verl", version="0.9.1", gpus=7)
    with pytest.raises(TypeError, match="target_version is the target's"):
        batchbridge.convert(batchbridge.read(recipe, **TRL, gpus=7), "verl", version="0.9.1")


_OPEN = (
    "python3 -m verl.trainer.main_ppo actor_rollout_ref.rollout.n=$N data.train_batch_size={} "
    "trainer.project_name={} actor_rollout_ref.actor.optim.lr=1e-6\n"
)


@pytest.mark.parametrize(
    ("sides", "fields"),
    [
        (((64, "x"), (128, "x")), [("setting.data.train_batch_size", 64, 128)]),
        (((64, "x"), (64, "y")), []),  # a run's name decides nothing
    ],
)
def test_two_open_runs_differ_in_the_settings_that_they_say(
    tmp_path: Path, sides: Sequence[tuple[int, str]], fields: list[tuple[str, int, int]]
) -> None:
    """`assert not diff(a, b).differences` must not pass on two different runs whose meaning is open."""
    files = [tmp_path / "a.sh", tmp_path / "b.sh"]
    for file, said in zip(files, sides, strict=True):
        file.write_text(_OPEN.format(*said), encoding="utf-8")
    found = batchbridge.diff(*files, framework_version="0.9.1")
    assert (found.verdict, found.example_devices) == ("undecided", None)
    assert [(one.field, one.a, one.b) for one in found.differences] == fields
    assert found.missing
    assert ("1 different setting" in between.comparison(("a", "b"), found)) == bool(fields)


def test_two_runs_that_are_not_compared_say_why() -> None:
    """`assert not diff(a, b).differences` would pass on them."""
    found = batchbridge.diff({"colour": "green"}, {"shape": "round"})
    assert (found.verdict, found.differences) == ("undecided", ())
    assert "0 differences" not in repr(found)
    assert str(found).startswith("unknown with unknown: undecided, not compared; A and B: BB020 ")
    assert len(found.missing) == 1
    assert "not compared" in found._repr_html_()
    one = batchbridge.diff(batchbridge.read(dict(RECIPE), **TRL, gpus=7), {"colour": "green"})
    assert [(each.field, each.a, each.b) for each in one.differences] == [("framework", "trl", "unknown")]
    assert [text[:9] for text in one.missing] == ["B: BB020 "]


def test_devices_that_are_asked_for_leave_no_value_of_the_script_beside_a_finding(tmp_path: Path) -> None:
    """`trainer.nnodes = 1` beside "16 devices" would send the reader to a line that was not judged."""
    script = tmp_path / "run.sh"
    sizes = "data.train_batch_size=100 actor_rollout_ref.rollout.n=5 actor_rollout_ref.actor.ppo_mini_batch_size=50"
    more = "algorithm.adv_estimator=grpo actor_rollout_ref.rollout.name=vllm trainer.nnodes=1 trainer.n_gpus_per_node=8"
    script.write_text(f"python3 -m verl.trainer.main_ppo {sizes} {more}\n", encoding="utf-8")
    asked = batchbridge.read(script, framework_version="0.9.1", nodes=2, gpus=8)
    (uneven,) = [one for one in asked.findings if one.code == "BB-VERL-020"]
    places = {where.key: (where.value, where.line) for where in uneven.where}
    assert places["trainer.nnodes"] == (None, 1)
    (told,) = [one for one in asked.findings if one.code == "BB-VERL-009"]
    assert (told.severity, [where.value for where in told.where]) == ("warning", [1, 8])
    assert "asked for 16" in asked.provenance["topology.world_size"].detail
    own = batchbridge.read(script, framework_version="0.9.1", nodes=1, gpus=8)
    assert "BB-VERL-009" not in {one.code for one in own.findings}
    assert own.given["trainer.nnodes"].value == 1


def test_a_scaling_that_rests_on_an_example_says_why_it_is_undecided(recipe: Path) -> None:
    found = batchbridge.scale(recipe, 8, version="1.16.0")
    assert (found.verdict, bool(found.choices)) == ("undecided", True)
    assert "BB-TRL-005" in str(found)
