"""The last moment before an update: once, inside of the outermost step, after every other hook."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from batchbridge.kit.before_update import BeforeStep, strangers
from batchbridge.kit.optimizer_groups import applied_rate


class StepOfItsBase(torch.optim.SGD):
    """An optimizer whose `step` calls that of its base, which has hooks of its own."""

    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


def weight_and(kind: type[torch.optim.SGD] = torch.optim.SGD) -> tuple[torch.nn.Parameter, torch.optim.SGD]:
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)  # its step has hooks from now on
    weight = torch.nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    return weight, kind([weight], lr=0.5)


@pytest.mark.parametrize("kind", [torch.optim.SGD, StepOfItsBase])
def test_every_update_is_looked_at_once(kind: type[torch.optim.SGD]) -> None:
    _, optimizer = weight_and(kind)
    looks: list[int] = []
    with BeforeStep(optimizer, lambda: looks.append(len(looks))):
        for _ in range(3):
            optimizer.step()
    optimizer.step()
    assert looks == [0, 1, 2]


def test_a_plain_hook_looks_twice_at_an_optimizer_that_calls_its_base() -> None:
    _, optimizer = weight_and(StepOfItsBase)
    looks: list[int] = []
    optimizer.register_step_pre_hook(lambda *_: looks.append(0))
    optimizer.step()
    assert len(looks) == 2


def test_what_a_hook_changes_that_was_registered_later_is_seen() -> None:
    weight, optimizer = weight_and()
    seen: list[float] = []
    with BeforeStep(optimizer, lambda: seen.append(float(weight.grad.sum()))):  # type: ignore[union-attr]
        handle = optimizer.register_step_pre_hook(lambda *_: setattr(weight, "grad", 3 * torch.ones(2)))
        optimizer.step()
        handle.remove()
        optimizer.step()
    assert seen == [6.0, 6.0]


def test_what_the_look_raises_comes_before_the_update() -> None:
    weight, optimizer = weight_and()

    def refuse() -> None:
        raise ValueError("no")

    with BeforeStep(optimizer, refuse), pytest.raises(ValueError, match="no"):
        optimizer.step()
    assert weight.tolist() == [1.0, 1.0]


def test_an_optimizer_is_left_as_it_was_and_keeps_the_hooks_of_others() -> None:
    _, optimizer = weight_and()
    hooks = optimizer._optimizer_step_pre_hooks
    first, second = BeforeStep(optimizer, lambda: None), BeforeStep(optimizer, lambda: None)
    first.remove()
    second.remove()
    assert optimizer._optimizer_step_pre_hooks is hooks
    calls: list[int] = []
    with BeforeStep(optimizer, lambda: None):
        handle = optimizer.register_step_pre_hook(lambda *_: calls.append(0))
    optimizer.step()
    handle.remove()
    optimizer.step()
    assert calls == [0]


def test_a_step_that_raised_hides_no_later_update() -> None:
    _, optimizer = weight_and()
    looks: list[int] = []
    with BeforeStep(optimizer, lambda: looks.append(0)) as hook:
        with pytest.raises(ZeroDivisionError):
            optimizer.step(lambda: 1 / 0)
        hook.restart()
        optimizer.step()
    assert len(looks) == 2


def test_an_optimizer_of_another_model_is_told() -> None:
    module, other = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    assert strangers(torch.optim.SGD(module.parameters(), lr=1.0), module) is None
    assert strangers(torch.optim.SGD([module.weight], lr=1.0), module) is None
    found = strangers(torch.optim.SGD([module.weight, *other.parameters()], lr=1.0), module)
    assert found == "2 of the 3 parameters that the optimizer updates are not the trained model's"


@pytest.mark.parametrize("name", ["bit16_groups", "fp16_groups", "bf16_groups"])
def test_an_engines_optimizer_of_another_model_is_told(name: str) -> None:
    """Mocks, of DeepSpeed's optimizers and of Accelerate's wrapper around one."""
    module, other = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    flat = torch.optim.SGD([torch.nn.Parameter(torch.zeros(6))], lr=1.0)
    for parameters, said in (
        ([module.weight], None),
        ([module.weight, other.weight], "1 of the 2 parameters that the optimizer updates are not the trained model's"),
    ):
        engines = SimpleNamespace(**{name: [parameters[:1], parameters[1:]]}, optimizer=flat)
        assert strangers(engines, module) == said
        assert strangers(SimpleNamespace(optimizer=engines), module) == said
    assert strangers(SimpleNamespace(optimizer=SimpleNamespace(optimizer=flat)), module) is None, "it does not say"


def test_the_rate_of_an_optimizer_that_says_none_is_not_a_number() -> None:
    assert applied_rate(weight_and()[1]) == 0.5
    assert applied_rate(object()) != applied_rate(object())
