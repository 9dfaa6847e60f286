"""A method that only hands on is told by its text; whatever else a body does, it does not pass through."""

from __future__ import annotations

import functools
import logging
import time
from typing import Any

import pytest

from batchbridge.kit.pass_through import passes_through

logger = logging.getLogger(__name__)
KEPT: list[Any] = []


def keep(value: Any) -> Any:
    KEPT.append(value)
    return value


class Base:
    """What is overridden."""

    state = 3

    def step(self, model: Any, inputs: Any, count: Any = None) -> Any:
        return [model, inputs, count]


def decorated(function: Any) -> Any:
    @functools.wraps(function)
    def around(*arguments: Any) -> Any:
        return [*function(*arguments), 1]

    return around


class Hands:
    """Bodies that hand on."""

    class at_once(Base):
        def step(self, model: Any, inputs: Any, count: Any = None) -> Any:
            """A docstring."""
            return super().step(model, inputs, count)

    class all_of_it(Base):
        def step(self, *arguments: Any, **options: Any) -> Any:
            return super().step(*arguments, **options)

    class by_name(Base):
        def step(self, model: Any, inputs: Any, count: Any = None) -> Any:
            return super().step(model, inputs, count=count)

    class logged(Base):
        def step(self, model: Any, inputs: Any, count: Any = None) -> Any:
            begun = time.perf_counter()
            loss = super().step(model, inputs, count)
            took = time.perf_counter() - begun
            if self.state % 10 == 0:
                logger.info("step %d took %.1f", self.state, took)
                print(f"loss {loss.detach().item():.3f} of {len(inputs)} rows", float(loss))
            return loss

    class with_more(Base):
        def step(self, model: Any, *rest: Any, **options: Any) -> Any:
            result = super().step(model, *rest, **options)
            logging.info("rows: %d", len(result["rows"]))
            return result


class Changes:
    """Bodies that do something else."""

    class scales(Base):
        def step(self, model: Any, inputs: Any, count: Any = None) -> Any:
            return super().step(model, inputs, count) * 2

    class mutates_the_result(Base):
        def step(self, model: Any, inputs: Any, count: Any = None) -> Any:
            result = super().step(model, inputs, count)
            result[0] = 1
            return result

    class mutates_in_place(Base):
        def step(self, model: Any, inputs: Any, count: Any = None) -> Any:
            result = super().step(model, inputs, count)
            result.mul_(2)
            return result

    class adds_to_it(Base):
        def step(self, model: Any, inputs: Any, count: Any = None) -> Any:
            result = super().step(model, inputs, count)
            result += 1
            return result

    class names_it_twice(Base):
        def step(self, model: Any, inputs: Any, count: Any = None) -> Any:
            result = super().step(model, inputs, count)
            other = result
            print(1)
            return other

    class hands_it_to_a_function(Base):
        def step(self, model: Any, inputs: Any, count: Any = None) -> Any:
            result = super().step(model, inputs, count)
            keep(result)
            return result

    class hands_it_to_a_method(Base):
        def step(self, model: Any, inputs: Any, count: Any = None) -> Any:
            result = super().step(model, inputs, count)
            self.seen(result)
            return result

    class prints_the_whole_value(Base):
        def step(self, model: Any, inputs: Any, count: Any = None) -> Any:
            result = super().step(model, inputs, count)
            print(result)
            return result

    class stores_it_on_itself(Base):
        def step(self, model: Any, inputs: Any, count: Any = None) -> Any:
            result = self.last = super().step(model, inputs, count)
            return result

    class stores_a_setting(Base):
        def step(self, model: Any, inputs: Any, count: Any = None) -> Any:
            self.state = 4
            return super().step(model, inputs, count)

    class counts_on_itself(Base):
        def step(self, model: Any, inputs: Any, count: Any = None) -> Any:
            self.state += 1
            return super().step(model, inputs, count)

    class changes_an_argument(Base):
        def step(self, model: Any, inputs: Any, count: Any = None) -> Any:
            inputs = inputs[:1]
            return super().step(model, inputs, count)

    class changes_inside_an_argument(Base):
        def step(self, model: Any, inputs: Any, count: Any = None) -> Any:
            inputs["mask"] = None
            return super().step(model, inputs, count)

    class hands_on_another(Base):
        def step(self, model: Any, inputs: Any, count: Any = None) -> Any:
            return super().step(model, inputs, None)

    class exchanges_arguments(Base):
        def step(self, model: Any, inputs: Any, count: Any = None) -> Any:
            return super().step(inputs, model, count)

    class leaves_one_out(Base):
        def step(self, model: Any, inputs: Any, count: Any = None) -> Any:
            return super().step(model, inputs)

    class drops_options(Base):
        def step(self, *arguments: Any, **options: Any) -> Any:
            return super().step(*arguments)

    class has_another_default(Base):
        def step(self, model: Any, inputs: Any, count: Any = 1) -> Any:
            return super().step(model, inputs, count)

    class is_decorated(Base):
        @decorated
        def step(self, model: Any, inputs: Any, count: Any = None) -> Any:
            return super().step(model, inputs, count)

    class returns_on_a_condition(Base):
        def step(self, model: Any, inputs: Any, count: Any = None) -> Any:
            if self.state > 2:
                return None
            return super().step(model, inputs, count)

    class calls_on_a_condition(Base):
        def step(self, model: Any, inputs: Any, count: Any = None) -> Any:
            result = None
            if self.state > 2:
                result = super().step(model, inputs, count)
            return result

    class calls_twice(Base):
        def step(self, model: Any, inputs: Any, count: Any = None) -> Any:
            first = super().step(model, inputs, count)
            super().step(model, inputs, count)
            return first

    class returns_nothing(Base):
        def step(self, model: Any, inputs: Any, count: Any = None) -> Any:
            super().step(model, inputs, count)

    class returns_another(Base):
        def step(self, model: Any, inputs: Any, count: Any = None) -> Any:
            result = super().step(model, inputs, count)
            return float(result)

    class calls_another_method(Base):
        def step(self, model: Any, inputs: Any, count: Any = None) -> Any:
            return super().other(model, inputs, count)

    class calls_another_class(Base):
        def step(self, model: Any, inputs: Any, count: Any = None) -> Any:
            return Base.step(self, model, inputs, count)

    class stands_in_a_block(Base):
        def step(self, model: Any, inputs: Any, count: Any = None) -> Any:
            with logger:
                return super().step(model, inputs, count)

    class catches(Base):
        def step(self, model: Any, inputs: Any, count: Any = None) -> Any:
            try:
                return super().step(model, inputs, count)
            except ValueError:
                return None

    class waits(Base):
        async def step(self, model: Any, inputs: Any, count: Any = None) -> Any:
            return super().step(model, inputs, count)

    class has_its_own_print(Base):
        def step(self, model: Any, inputs: Any, print: Any = None) -> Any:
            result = super().step(model, inputs, print)
            print(1)
            return result

    class reads_by_a_property(Base):
        def step(self, model: Any, inputs: Any, count: Any = None) -> Any:
            print(inputs.next)
            return super().step(model, inputs, count)

    class takes_from_an_iterator(Base):
        def step(self, model: Any, inputs: Any, count: Any = None) -> Any:
            print(len(list(inputs)))
            return super().step(model, inputs, count)


def of(home: type) -> dict[str, type]:
    return {name: one for name, one in vars(home).items() if isinstance(one, type)}


@pytest.mark.parametrize("name", of(Hands))
def test_a_method_that_only_hands_on_passes_through(name: str) -> None:
    assert passes_through(of(Hands)[name], "step")


@pytest.mark.parametrize("name", of(Changes))
def test_a_method_that_does_more_does_not(name: str) -> None:
    assert not passes_through(of(Changes)[name], "step")


def test_a_method_without_a_text_or_with_another_one_does_not() -> None:
    scope: dict[str, Any] = {"Base": Base}
    text = "def step(self, model, inputs, count=None):\n        return super().step(model, inputs, count)"
    exec(f"class NoText(Base):\n    {text}", scope)
    assert not passes_through(scope["NoText"], "step")

    class Other(Base):
        step = Changes.scales.__dict__["step"]

    assert not passes_through(Other, "step"), "its super() is another class's"
    replaced = type("Replaced", (Base,), dict(vars(Hands.at_once)))
    assert not passes_through(replaced, "step")

    class Edited(Base):
        def step(self, model: Any, inputs: Any, count: Any = None) -> Any:
            return super().step(model, inputs, count)

    assert passes_through(Edited, "step")
    Edited.step.__code__ = Edited.step.__code__.replace(co_consts=(*Edited.step.__code__.co_consts, 2))
    assert not passes_through(Edited, "step"), "the file was changed after it was imported"
    assert not passes_through(Base, "no_such")
