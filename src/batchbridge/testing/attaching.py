"""The contract of adapters that attach to running trainers, as tests on the real framework.

    class TestMyTrainers(AttachContract):
        wrong_losses = {"averaged by sequence": average_by_sequence}

        @pytest.fixture
        def build(self, tiny_policy, tiny_tokenizer, scripted_rollouts):
            return lambda: my_framework.Trainer(...)

Trainers are real, tiny, on a CPU and alone in their process. What is asked: wrapping is a transaction that leaves
nothing behind; the weights in the ledger are measured, and the plan's; a loss that is not the configuration's is
refused before training; and gradients that something else touches stop the run before they are applied.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from batchbridge.contract import plugins
from batchbridge.contract.enforcement import Enforcement, enforcement_of
from batchbridge.errors import BatchDrift, CannotAttach
from batchbridge.ledger import read_headers, read_steps
from batchbridge.meaning.candidates import plan_of
from batchbridge.meaning.plan import Plan
from batchbridge.meaning.spec import Spec
from batchbridge.meaning.weights import Row, token_weights
from batchbridge.reading.read import read
from batchbridge.running.wrap import unwrap, wrap

if TYPE_CHECKING:
    import pytest

BuildTrainer = Callable[[], Any]
Raised = TypeVar("Raised", bound=Exception)
ROUNDING = 1e-4
"""Relative distance of a measured weight from the plan's that rounding in float32 explains, with room."""


class AttachContract:
    """The contract of attaching, for a subclass `Test...` with `wrong_losses` and the fixture `build`: pytest runs the
    laws; see the module."""

    wrong_losses: ClassVar[Mapping[str, Callable[[Any], None]]]
    """Name to a function that gives one trainer a loss which is not what its configuration says: another average, a
    factor, another clipping. At least one."""

    refused_trainers: ClassVar[Mapping[str, Callable[[Any], None]]] = {}
    """Name of a refusal to a function that changes a trainer, settings included, so that `attach` refuses it so."""

    def train(self, trainer: Any) -> None:
        """The training of a trainer to its end. Default: `trainer.train()`."""
        trainer.train()

    def parameters_of(self, trainer: Any) -> list[Any]:
        """The parameters that are trained. Default: those of `trainer.model` that want a gradient."""
        return [parameter for parameter in trainer.model.parameters() if parameter.requires_grad]

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """The tests that pytest makes: one for each wrong loss and each way to touch gradients."""
        tables = ("wrong_loss", self.wrong_losses), ("touched", TOUCHED), ("refused", self.refused_trainers)
        for name, values in tables:
            if name in metafunc.fixturenames:
                metafunc.parametrize(name, values)

    # ---- wrapping is a transaction

    def test_unwrap_leaves_the_trainer_as_it_was(self, build: BuildTrainer) -> None:
        trainer = build()
        before = _state(trainer)
        wrap(trainer)
        assert trainer.batchbridge.changes, "wrap lists no change"
        unwrap(trainer)
        assert _state(trainer) == before

    def test_wrapping_twice_is_wrapping_once(self, build: BuildTrainer) -> None:
        trainer = build()
        wrap(trainer)
        first, wrapped = trainer.batchbridge, _state(trainer)
        wrap(trainer)
        assert trainer.batchbridge is first
        assert _state(trainer) == wrapped

    def test_another_trainer_and_its_class_are_not_touched(self, build: BuildTrainer) -> None:
        trainer, other = build(), build()
        before, classes = _state(other), _classes(trainer)
        wrap(trainer)
        assert _state(other) == before
        assert _classes(trainer) == classes

    def test_a_wrap_that_fails_late_leaves_the_trainer_as_it_was(
        self, build: BuildTrainer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        trainer = build()
        before = _state(trainer)
        with _failing_probe(trainer, monkeypatch) as patched:
            assert "made to fail" in str(_raised(CannotAttach, lambda: wrap(trainer)))
        assert patched, "nothing was patched before the probe"
        assert _state(trainer) == before

    # ---- what is trained is what was planned, and it is measured

    def test_every_step_of_the_ledger_is_the_plans(self, build: BuildTrainer, tmp_path: Path) -> None:
        spec, plan, steps = self._wrapped_run(build(), tmp_path)
        assert len(steps) == plan.total_optimizer_steps
        for step in steps:
            trained = sorted(zip(step["rollout"], step["pass"], step["prompt"], step["sample"], strict=True))
            assert trained == sorted(tuple(member)[:4] for member in plan.step(step["step"]).members)
        assert spec.loss.policy.denominator_scope == "optimizer_step"

    def test_measured_weights_are_the_plans(self, build: BuildTrainer, tmp_path: Path) -> None:
        spec, _, steps = self._wrapped_run(build(), tmp_path)
        shown = 0
        for step in steps:
            groups = zip(step["rollout"], step["prompt"], strict=True)
            rows = [
                Row(tokens=tokens, group=group) for tokens, group in zip(step["response_tokens"], groups, strict=True)
            ]
            for weight, planned in zip(step["weights"], token_weights(spec.loss.policy, rows), strict=True):
                if weight is not None and planned:
                    shown += 1
                    assert abs(weight / float(planned) - 1) <= ROUNDING, f"{weight} where {float(planned)} was planned"
        assert shown, "no weight was measured"

    def _wrapped_run(self, trainer: Any, folder: Path) -> tuple[Spec, Plan, list[Mapping[str, Any]]]:
        wrap(trainer, ledger=folder)
        self.train(trainer)
        unwrap(trainer)
        header = read_headers(folder)[0]
        spec = Spec.from_dict(header["spec"])
        return spec, plan_of(spec, header["dataset_size"]), list(read_steps(folder))

    # ---- what was said of the configuration

    def test_what_is_wrapped_was_not_called_refused(self, build: BuildTrainer) -> None:
        trainer = build()
        said = _foreseen(trainer)
        wrap(trainer)
        assert said.verdict != "refused", f"wrapped, and called refused: {said.to_dict()}"

    def test_what_is_refused_was_not_called_enforced(self, build: BuildTrainer, refused: str) -> None:
        trainer = build()
        self.refused_trainers[refused](trainer)
        said = _foreseen(trainer)
        reasons = _raised(CannotAttach, lambda: wrap(trainer)).reasons
        assert refused in reasons, f"refused for another reason: {reasons}"
        assert said.verdict != "enforced", f"called enforced, and refused: {reasons}"

    # ---- and what is not the plan's stops

    def test_a_loss_that_is_not_the_configurations_is_refused_before_training(
        self, build: BuildTrainer, wrong_loss: str
    ) -> None:
        trainer = build()
        self.wrong_losses[wrong_loss](trainer)
        before = _state(trainer)
        reasons = _raised(CannotAttach, lambda: wrap(trainer)).reasons
        assert "weight_probe" in reasons, f"refused for another reason: {reasons}"
        assert _state(trainer) == before

    def test_a_loss_that_changes_after_wrap_stops_the_run(self, build: BuildTrainer, wrong_loss: str) -> None:
        trainer = build()
        wrap(trainer)
        self.wrong_losses[wrong_loss](trainer)
        _raised(BatchDrift, lambda: self.train(trainer))

    def test_touched_gradients_stop_before_the_update(
        self, build: BuildTrainer, touched: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        trainer = build()
        weights = [(one, one.detach().clone()) for one in self.parameters_of(trainer)]
        switch = TOUCHED[touched]([parameter for parameter, _ in weights], monkeypatch)
        wrap(trainer)
        switch.on = True
        _raised(BatchDrift, lambda: self.train(trainer))
        assert not any(bool((one != before).any()) for one, before in weights), "noticed after the update was applied"


def _foreseen(trainer: Any) -> Enforcement:
    """The enforcement that is foreseen for the trainer's own configuration."""
    (owner,) = plugins.owners(trainer)
    return enforcement_of(owner, read(trainer, framework=owner.framework))


def _raised(kind: type[Raised], do: Callable[[], object]) -> Raised:
    try:
        do()
    except kind as raised:
        return raised
    raise AssertionError(f"not noticed: no {kind.__name__} was raised")


class _Switch:
    """Whether gradients are touched: off while a trainer is wrapped."""

    on = False


ReplacePatch = Callable[[list[Any], "pytest.MonkeyPatch"], _Switch]
"""The way to touch the parameters that are trained."""


def _every_gradient(change: Callable[[Any], object]) -> ReplacePatch:
    """The change of every gradient, once a backward pass has added to it, and before anything else reads it."""

    def touch(parameters: list[Any], monkeypatch: pytest.MonkeyPatch) -> _Switch:
        switch = _Switch()

        def arrive(parameter: Any) -> None:
            if switch.on:
                change(parameter.grad)

        for parameter in parameters:
            parameter.register_post_accumulate_grad_hook(arrive)
        return switch

    return touch


def _every_second_backward(instead: Callable[[Any, Any], None]) -> ReplacePatch:
    def touch(parameters: list[Any], monkeypatch: pytest.MonkeyPatch) -> _Switch:
        import torch

        switch, native, count = _Switch(), torch.Tensor.backward, [0]

        def backward(tensor: Any, *arguments: Any, **options: Any) -> None:
            count[0] += switch.on
            if switch.on and count[0] % 2:
                instead(native, tensor)
            else:
                native(tensor, *arguments, **options)

        monkeypatch.setattr(torch.Tensor, "backward", backward)
        return switch

    return touch


TOUCHED: Mapping[str, ReplacePatch] = {
    "gradients doubled after backward": _every_gradient(lambda gradient: gradient.mul_(2)),
    "gradients erased after backward": _every_gradient(lambda gradient: gradient.zero_()),
    "a loss counted twice": _every_second_backward(lambda native, tensor: native(2 * tensor)),
    "a backward pass left out": _every_second_backward(lambda native, tensor: None),
}
"""Further things that may happen to gradients, each while a trainer is wrapped."""


def _state(trainer: Any) -> dict[str, dict[str, object]]:
    """The attributes of the trainer, and of each object that it holds: plain values, identities, and sizes."""
    held = {
        name: value for name, value in vars(trainer).items() if hasattr(value, "__dict__") and name != "batchbridge"
    }
    found = {name: _attributes(value) for name, value in held.items() if not isinstance(value, type)}
    return {"": _attributes(trainer), **found}


def _attributes(one: Any) -> dict[str, object]:
    plain, sized = (bool, int, float, str, type(None)), (dict, list, set)
    return {
        name: value if isinstance(value, plain) else (id(value), len(value)) if isinstance(value, sized) else id(value)
        for name, value in vars(one).items()
        if name != "batchbridge"
    }


def _classes(trainer: Any) -> list[dict[str, int]]:
    return [{name: id(value) for name, value in vars(cls).items()} for cls in type(trainer).__mro__]


@contextmanager
def _failing_probe(trainer: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The span in which the probe acts as if it had found something: everything was patched by then. Yields what
    was."""
    (owner,) = plugins.owners(trainer)
    assert owner.runtime, "the laws are those of `Adapter.runtime`"
    module, _, name = owner.runtime.partition(":")
    runtime = getattr(importlib.import_module(module), name)
    patched: list[str] = []

    def patch(trainer: Any, request: Any, patches: Any, version: str) -> Any:
        done = runtime.patch(trainer, request, patches, version)
        patched.extend(change.attribute for change in patches.changes)

        def probe() -> None:
            raise CannotAttach({"weight_probe": "made to fail"})

        return dataclasses.replace(done, probe=probe)

    with monkeypatch.context() as changed:
        changed.setattr(f"{module}.{name}", dataclasses.replace(runtime, patch=patch))
        yield patched
