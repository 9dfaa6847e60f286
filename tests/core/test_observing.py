"""Guarded functions: an error of ours hands on what the native function gave, an error of the native one passes."""

from __future__ import annotations

import asyncio
import pickle

import pytest

from batchbridge.errors import CannotAttach
from batchbridge.kit.observing import Observation
from batchbridge.kit.patches import Patches


class Trainer:
    calls = 0

    def step(self, loss: float) -> float:
        self.calls += 1
        if loss < 0:
            raise ValueError("the framework's own")
        return 2 * loss


def watched(mode: str, *, before: bool = False, after: bool = False) -> tuple[Trainer, Observation]:
    """A trainer whose step is read by a function that fails before or after it calls the native one."""
    trainer, observation = Trainer(), Observation(mode)  # type: ignore[arg-type]  # one of the three

    def ours(loss: float) -> float:
        if before:
            raise KeyError("a field")
        result: float = native(loss)
        if after:
            raise KeyError("a field")
        return result

    native = Patches(observation).read(trainer, "step", ours, what="read", why="test")
    return trainer, observation


@pytest.mark.parametrize("where", ["before", "after"])
def test_an_error_of_ours_calls_the_native_function_once_and_ends_the_observing(
    where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer, observation = watched("observe", **{where: True})
    assert [trainer.step(1.0), trainer.step(3.0)] == [2.0, 6.0]
    assert trainer.calls == 2
    assert (observation.why or "").startswith("KeyError: 'a field' (test_observing.py:")
    assert capsys.readouterr().err.count("the observing has ended, and the run goes on") == 1


@pytest.mark.parametrize("where", [None, "after"])
def test_an_error_of_the_native_function_passes_as_it_is(where: str | None) -> None:
    trainer, observation = watched("observe", **({} if where is None else {where: True}))
    with pytest.raises(ValueError, match="the framework's own"):
        trainer.step(-1.0)
    assert trainer.calls == 1
    assert not observation.over


@pytest.mark.parametrize("mode", ["enforce", "verify"])
def test_in_the_other_modes_an_error_of_ours_stops_the_run(mode: str) -> None:
    trainer, observation = watched(mode, after=True)
    with pytest.raises(KeyError):
        trainer.step(1.0)
    assert not observation.over
    with pytest.raises(KeyError):
        observation.read({}.__getitem__, "a field")


@pytest.mark.parametrize("where", [None, "before", "after", "native"])
def test_a_function_that_is_awaited_is_guarded_likewise_by_each_of_its_tasks(where: str | None) -> None:
    """Two calls go on side by side: what one of them was given is not handed on by the other."""
    observation, asked = Observation("observe"), []

    async def give(number: int) -> int:
        asked.append(number)
        await asyncio.sleep(0.01 * number)
        if where == "native" and number == 1:
            raise ValueError("the framework's own")
        return 10 * number

    async def ours(number: int) -> int:
        if where == "before" and number == 2:
            raise KeyError("a field")
        result: int = await native(number)
        if where == "after" and number == 2:
            raise KeyError("a field")
        return result + 1

    guarded, native = observation.guarded(give, ours)

    async def both() -> list[int | BaseException]:
        return await asyncio.gather(guarded(2), guarded(1), return_exceptions=True)

    two, one = asyncio.run(both())
    assert sorted(asked) == [1, 2]
    assert two == (20 if where in ("before", "after") else 21)
    if where == "native":
        assert isinstance(one, ValueError)
    else:
        assert one == (10 if where == "before" else 11)  # which begins when the observing is over
    assert observation.over is (where in ("before", "after"))
    if observation.over:
        assert asyncio.run(guarded(3)) == 30, "the native one alone"


def test_a_refusal_of_ours_is_told_by_its_names_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    observation = Observation("observe")
    observation.fail(CannotAttach({"clock": "it stands", "rows": "none"}))
    assert (observation.why or "").startswith("clock: it stands; rows: none")
    assert capsys.readouterr().err.count("\n") == 1


def test_a_process_that_failed_tells_the_others_before_it_leaves_an_exchange() -> None:
    failed, other = Observation("observe"), Observation("observe")
    failed.read({}.__getitem__, "a field")
    said = [other.why, failed.why]
    assert not failed.agree(lambda mine: said)
    assert not other.agree(lambda mine: said)
    assert (failed.ended, other.ended) == (True, True)
    assert (other.why or "").startswith("on rank 1: KeyError")

    def hangs(mine: object) -> list[object]:
        raise AssertionError("nobody is there to answer")

    assert not other.agree(hangs)  # all know it


def test_an_observation_travels_to_a_loaders_process() -> None:
    travelled = pickle.loads(pickle.dumps(Observation("observe")))
    assert travelled.observes
    assert not travelled.over


def test_what_exchanges_something_goes_on_until_all_know() -> None:
    trainer, observation = Trainer(), Observation("observe")
    seen: list[float] = []

    def ours(loss: float) -> float:
        seen.append(loss)
        result: float = native(loss)
        return result

    native = Patches(observation).read(trainer, "step", ours, what="read", why="test", exchanges=True)
    observation.fail(KeyError("elsewhere"))
    trainer.step(1.0)
    observation.agree(lambda mine: mine)
    trainer.step(2.0)
    assert (seen, trainer.calls) == ([1.0], 2)
