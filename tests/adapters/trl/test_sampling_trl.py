"""Which seeds a colocated vLLM engine is asked to draw by. The engine here only keeps what it is asked: that real ones
draw by them is shown in tests/sampling."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from batchbridge_trl.sampling import seeded


class Engine:
    """Keeps the seeds of every call."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def generate(self, prompts: list[Any], *, sampling_params: Any, use_tqdm: bool) -> None:
        alone = not isinstance(sampling_params, list)
        self.asked.append(sampling_params.seed if alone else [params.seed for params in sampling_params])


def trainer(engine: Engine, *, use_vllm: bool = True, mode: str = "colocate") -> Any:
    generation = SimpleNamespace(mode=mode, llm=engine, tensor_parallel_size=1)
    return SimpleNamespace(use_vllm=use_vllm, vllm_generation=generation)


def ask(engine: Engine, prompts: int) -> Any:
    params = SimpleNamespace(seed=None)
    engine.generate([{}] * prompts, sampling_params=params, use_tqdm=False)
    return engine.asked[-1]


def test_every_row_of_a_rollout_is_drawn_by_its_seed() -> None:
    engine = Engine()
    with seeded(trainer(engine), [5, 6, 7]):
        assert ask(engine, 3) == [5, 6, 7]
    assert ask(engine, 3) is None, "the engine is itself again"


def test_a_later_turn_of_some_rows_is_drawn_as_ever() -> None:
    engine = Engine()
    with seeded(trainer(engine), [5, 6, 7]):
        assert ask(engine, 2) is None


@pytest.mark.parametrize("how", [{"mode": "server"}, {"use_vllm": False}])
def test_servers_and_other_samplers_are_left_alone(how: Any) -> None:
    engine = Engine()
    with seeded(trainer(engine, **how), [5, 6, 7]):
        assert ask(engine, 3) is None
