"""Patches: listed, undone, and refused where the code has no such seam."""

from __future__ import annotations

import pytest

from batchbridge.errors import CannotAttach
from batchbridge.kit.patches import Patches, rebound, temporarily


class Trainer:
    rate = 1

    def step(self) -> str:
        return "native"


def test_undoing_restores_what_the_object_itself_had_and_what_its_class_had() -> None:
    trainer, patches = Trainer(), Patches()
    trainer.rate = 2
    for value in (3, 4):
        patches.set(trainer, "rate", value, what="rate", why="test")
    patches.set(trainer, "step", lambda: "ours", what="step", why="test")
    assert (trainer.rate, trainer.step()) == (4, "ours")
    assert [change.attribute for change in patches.changes] == ["rate", "rate", "step"]
    patches.undo()
    assert vars(trainer) == {"rate": 2}
    assert trainer.step() == "native"


def test_what_others_put_in_a_patchs_place_is_there_again_after_a_suspension() -> None:
    trainer, patches = Trainer(), Patches()
    patches.set(trainer, "step", lambda: "ours", what="step", why="test")
    patches.set(trainer, "rate", 3, what="rate", why="test")
    ours = trainer.step
    trainer.step = lambda: f"a user's, around {ours()}"  # type: ignore[method-assign]
    with patches.suspended():
        assert (trainer.step(), trainer.rate) == ("native", 1)
    assert (trainer.step(), trainer.rate) == ("a user's, around ours", 3)
    patches.undo()
    assert vars(trainer) == {}


def test_of_several_patches_of_one_attribute_none_is_left_in_a_suspension() -> None:
    trainer, patches = Trainer(), Patches()
    for value in (3, 4):
        patches.set(trainer, "rate", value, what="rate", why="test")
    with patches.suspended():
        assert trainer.rate == 1
    assert trainer.rate == 4


def test_an_attribute_that_is_not_there_is_a_renamed_seam() -> None:
    with pytest.raises(AttributeError, match="training_step"):
        Patches().set(Trainer(), "training_step", None, what="step", why="test")


AVERAGE = "native"


def native_function() -> str:
    return AVERAGE


def test_a_rebound_function_reads_other_names_and_the_module_keeps_its_own() -> None:
    assert rebound(native_function, AVERAGE="ours")() == "ours"
    assert native_function() == "native"


def test_a_name_that_the_native_code_does_not_use_is_a_lost_seam() -> None:
    with pytest.raises(CannotAttach, match="does not use average_loss"):
        rebound(native_function, average_loss=None)


class _WithProperty:
    inherited = 1

    def __init__(self) -> None:
        self.own, self._kept = 2, {"steps": 3}

    @property
    def steps(self) -> int:
        return self._kept["steps"]

    @steps.setter
    def steps(self, value: int) -> None:
        self._kept["steps"] = value


def test_attributes_for_a_while_are_gone_afterwards_whatever_they_were() -> None:
    target = _WithProperty()
    with temporarily(target, inherited=10, own=20, steps=30, new=40):
        assert (target.inherited, target.own, target.steps, vars(target)["new"]) == (10, 20, 30, 40)
    assert vars(target) == {"own": 2, "_kept": {"steps": 3}}
    assert target.inherited == 1
