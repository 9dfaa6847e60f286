"""The contract of adapters that attach, on the real PocketTrainer; and worse adapters, which must fail it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest

torch = pytest.importorskip("torch")

import pocketgrpo
from batchbridge.kit.refusals import RefusalRow
from batchbridge.testing import AttachContract
from pocketgrpo_batchbridge import engine, runtime


def by_sequence(trainer: Any) -> None:
    """An average over sequences, where the settings say tokens."""
    native = trainer.loss

    def loss(piece: list[Any]) -> Any:
        settings = trainer.settings
        trainer.settings = {**settings, "average": "sequence"}
        try:
            return native(piece)
        finally:
            trainer.settings = settings

    trainer.loss = loss


def halved(trainer: Any) -> None:
    """Half of the loss."""
    native = trainer.loss
    trainer.loss = lambda piece: native(piece) / 2


def unclipped(trainer: Any) -> None:
    """A clipping range that is never left."""
    native = trainer.loss

    def loss(piece: list[Any]) -> Any:
        settings = trainer.settings
        trainer.settings = {**settings, "clip": 50.0}
        try:
            return native(piece)
        finally:
            trainer.settings = settings

    trainer.loss = loss


@pytest.fixture
def build(tiny_policy: Callable[..., Any], tiny_tokenizer: Any, scripted_rollouts: Any) -> Callable[[], Any]:
    """A new trainer for each call: ratios leave the clipping range, and micro-batches cut steps unevenly."""
    script = scripted_rollouts
    settings = {"updates": 2, "micro": 3, "reuse": 3, "lr": 0.5, "clip": 0.02}
    return lambda: pocketgrpo.PocketTrainer(
        tiny_policy(),
        [tiny_tokenizer(script.prompt(index))["input_ids"] for index in range(8)],
        lambda prompt, sample: (
            script.completion(prompt, sample),
            script.loss_mask(prompt, sample),
            script.reward(prompt, sample),
        ),
        **settings,
    )


class TestPocketTrainers(AttachContract):
    wrong_losses: ClassVar = {"averaged by sequence": by_sequence, "halved": halved, "without clipping": unclipped}

    def parameters_of(self, trainer: Any) -> list[Any]:
        return list(trainer.policy.parameters())


LAWS = TestPocketTrainers()


def without_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    native = runtime.patch

    def patch(*arguments: Any) -> Any:
        return dataclasses.replace(native(*arguments), probe=lambda: None)

    monkeypatch.setattr(runtime, "RUNTIME", dataclasses.replace(runtime.RUNTIME, patch=patch))


def without_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine._Run, "before_the_update", lambda *arguments: None)


def leaving_a_patch(monkeypatch: pytest.MonkeyPatch) -> None:
    native = runtime.patch

    def patch(trainer: Any, *arguments: Any) -> Any:
        trainer.left_behind = True
        return native(trainer, *arguments)

    monkeypatch.setattr(runtime, "RUNTIME", dataclasses.replace(runtime.RUNTIME, patch=patch))


def patching_the_class(monkeypatch: pytest.MonkeyPatch) -> None:
    native = runtime.patch

    def patch(trainer: Any, *arguments: Any) -> Any:
        monkeypatch.setattr(type(trainer), "share", lambda self, piece, part, pieces: 1 / pieces)
        return native(trainer, *arguments)

    monkeypatch.setattr(runtime, "RUNTIME", dataclasses.replace(runtime.RUNTIME, patch=patch))


def planning_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights are measured, and nobody compares them."""
    monkeypatch.setattr(engine._Run, "share", lambda self, piece, part, pieces: 0.5)
    monkeypatch.setattr(engine._Run, "probe", lambda self: None)
    monkeypatch.setattr(engine.Recorder, "compare", lambda *arguments, **options: None)


def in_another_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine._Run, "choose", engine._Run.note_choice)
    monkeypatch.setattr(engine.Recorder, "compare", lambda *arguments, **options: None)


CHEATS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], Callable[..., None]]] = {
    "no probe": (
        without_probe,
        lambda build, **_: LAWS.test_a_loss_that_is_not_the_configurations_is_refused_before_training(build, "halved"),
    ),
    "no comparison": (
        without_measuring,
        lambda build, **_: LAWS.test_a_loss_that_changes_after_wrap_stops_the_run(build, "halved"),
    ),
    "no witness": (
        without_measuring,
        lambda build, monkeypatch, **_: LAWS.test_touched_gradients_stop_before_the_update(
            build, "gradients doubled after backward", monkeypatch
        ),
    ),
    "something stays": (leaving_a_patch, lambda build, **_: LAWS.test_unwrap_leaves_the_trainer_as_it_was(build)),
    "the class is patched": (
        patching_the_class,
        lambda build, **_: LAWS.test_another_trainer_and_its_class_are_not_touched(build),
    ),
    "other weights": (
        planning_otherwise,
        lambda build, tmp_path, **_: LAWS.test_measured_weights_are_the_plans(build, tmp_path),
    ),
    "another order": (
        in_another_order,
        lambda build, tmp_path, **_: LAWS.test_every_step_of_the_ledger_is_the_plans(build, tmp_path),
    ),
}
"""Name to a worse adapter, and the law that must fail for it."""


@pytest.mark.parametrize("cheat", CHEATS)
def test_a_worse_adapter_fails(
    cheat: str, build: Callable[[], Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    worsen, law = CHEATS[cheat]
    law(build, monkeypatch=monkeypatch, tmp_path=tmp_path / "before")
    worsen(monkeypatch)
    with pytest.raises(AssertionError):
        law(build, monkeypatch=monkeypatch, tmp_path=tmp_path / "after")


def to_sequences(trainer: Any) -> None:
    """Its settings and what it does: an average over sequences."""
    trainer.settings = {**trainer.settings, "average": "sequence"}


@pytest.mark.parametrize("told", [None, True, False])
def test_a_refusal_that_is_called_enforced_fails(
    told: bool | None, build: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = RefusalRow(
        "sequences",
        "averages over sequences are not followed",
        lambda request: told and request.reading.native["average"] == "sequence",
        lambda trainer, request: trainer.settings["average"] == "sequence",
    )
    changed = dataclasses.replace(runtime.RUNTIME, refusals=(*runtime.REFUSALS, row))
    monkeypatch.setattr(runtime, "RUNTIME", changed)
    monkeypatch.setattr(LAWS, "refused_trainers", {"sequences": to_sequences}, raising=False)
    if told is not False:
        LAWS.test_what_is_refused_was_not_called_enforced(build, "sequences")
        return
    with pytest.raises(AssertionError, match="called enforced, and refused"):
        LAWS.test_what_is_refused_was_not_called_enforced(build, "sequences")
