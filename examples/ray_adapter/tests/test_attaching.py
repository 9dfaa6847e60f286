"""The contract of adapters that attach, on the real driver, with every fault in one of the two workers alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest

torch = pytest.importorskip("torch")
ray = pytest.importorskip("ray")

import inside_workers
import pocketray
from batchbridge import BatchDrift, CannotAttach, unwrap, wrap
from batchbridge.testing import AttachContract
from inside_workers import attributes, on, parameters

SETTINGS = {"micro": 3, "passes": 3, "lr": 0.5, "clip": 0.02}
"""Ratios leave the clipping range, and micro-batches cut shares unevenly."""


@pytest.fixture
def build(build: Callable[..., Any]) -> Callable[[], Any]:
    """A new driver for each call, of these settings."""
    return lambda: build(**SETTINGS)


def in_the_second(function: Callable[[Any], None]) -> Callable[[Any], None]:
    """Of a driver's workers, the first one stays as it is."""
    return lambda driver: on(driver.workers[1], function)


class TestPocketRayDrivers(AttachContract):
    wrong_losses: ClassVar = {
        "averaged by sequence": in_the_second(inside_workers.by_sequence),
        "halved": in_the_second(inside_workers.halved),
        "without clipping": in_the_second(inside_workers.unclipped),
    }

    # Parameters are in the workers: there they are touched, and compared.
    @pytest.mark.parametrize("fault", ["doubled", "erased", "first_left_out", "own_gradients"])
    def test_touched_gradients_stop_before_the_update(self, build: Callable[[], Any], fault: str) -> None:  # type: ignore[override]  # as said
        driver = build()
        before = [on(worker, parameters) for worker in driver.workers]
        wrap(driver)
        on(driver.workers[1], getattr(inside_workers, fault))
        with pytest.raises(BatchDrift):
            driver.train()
        for worker, weights in zip(driver.workers, before, strict=True):
            assert torch.equal(on(worker, parameters), weights), "noticed after the update was applied"


def test_unwrap_leaves_every_worker_as_it_was(build: Callable[[], Any]) -> None:
    driver = build()
    before = [on(worker, attributes) for worker in driver.workers]
    wrap(driver)
    assert all(on(worker, attributes) != was for worker, was in zip(driver.workers, before, strict=True))
    unwrap(driver)
    assert [on(worker, attributes) for worker in driver.workers] == before


def test_a_refusal_of_one_worker_leaves_the_others_as_they_were(build: Callable[[], Any]) -> None:
    driver = build()
    on(driver.workers[1], inside_workers.halved)
    before = [on(worker, attributes) for worker in driver.workers]
    with pytest.raises(CannotAttach, match="weight"):
        wrap(driver)
    assert [on(worker, attributes) for worker in driver.workers] == before


def test_a_worker_that_the_driver_does_not_name_is_a_refusal(build: Callable[[], Any]) -> None:
    driver = build()
    before = on(driver.workers[1], attributes)
    driver.workers = driver.workers[1:]
    with pytest.raises(CannotAttach, match=r"of 1 training workers those answered that have the ranks \[1\]"):
        wrap(driver)
    assert on(driver.workers[0], attributes) == before


def test_a_worker_that_is_gone_is_a_refusal(build: Callable[[], Any], tiny_policy: Callable[..., Any]) -> None:
    driver = build()
    driver.workers = pocketray.start(2)
    ray.get([worker.load.remote(tiny_policy, driver.settings) for worker in driver.workers])
    before = on(driver.workers[0], attributes)
    ray.kill(driver.workers[1])
    with pytest.warns(UserWarning, match="1 of 2 training workers are gone"), pytest.raises(CannotAttach, match="gone"):
        wrap(driver)
    assert on(driver.workers[0], attributes) == before


def test_negative_control_where_nobody_compares_a_fault_is_trained(build: Callable[[], Any]) -> None:
    driver = build()
    before = on(driver.workers[0], parameters)
    wrap(driver)
    for worker in driver.workers:
        on(worker, inside_workers.compare_nothing)
    on(driver.workers[1], inside_workers.doubled)
    driver.train()
    assert not torch.equal(on(driver.workers[0], parameters), before)


def test_what_a_wrapped_driver_did_not_send_is_not_trained(build: Callable[[], Any]) -> None:
    driver = build()
    wrap(driver)
    answers = driver.collect(driver.choose(0))
    with pytest.raises(CannotAttach, match="did not send"):
        driver.update(answers[:8])
