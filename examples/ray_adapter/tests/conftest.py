"""Ray on this machine alone, and drivers whose workers are pairs of its processes."""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for `inside_workers`, here and in Ray's processes

from inside_workers import PROMPTS


@contextlib.contextmanager
def rays_own_warnings() -> Iterator[None]:
    """Ray leaves files of the processes that it starts open, and announces its next versions."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        warnings.simplefilter("ignore", FutureWarning)
        yield
        gc.collect()


@pytest.fixture(scope="session")
def cluster() -> Iterator[dict[int, list[list[Any]]]]:
    """Idle groups of workers, by their number: processes are started once, replicas for every driver."""
    ray = pytest.importorskip("ray")
    pytest.importorskip("torch")
    folder = tempfile.mkdtemp(prefix="bb")  # paths of Ray's sockets must be short
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))  # workers import what these tests do
    with rays_own_warnings():
        ray.init(num_cpus=4, include_dashboard=False, _temp_dir=folder, object_store_memory=100_000_000)
    yield {}
    with rays_own_warnings():
        ray.shutdown()
    if before is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = before
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def build(
    cluster: dict[int, list[list[Any]]],
    tiny_policy: Callable[..., Any],
    tiny_tokenizer: Any,
    scripted_rollouts: Any,
) -> Iterator[Callable[..., Any]]:
    """A new driver for each call, of PROMPTS prompts; its workers are no other driver's."""
    import pocketray

    used: list[list[Any]] = []
    script = scripted_rollouts

    def driver(**settings: Any) -> Any:
        count = settings.get("workers", pocketray.DEFAULTS["workers"])
        idle = cluster.setdefault(count, [])
        used.append(idle.pop() if idle else pocketray.start(count))
        return pocketray.Driver(
            tiny_policy,
            [tiny_tokenizer(script.prompt(index))["input_ids"] for index in range(PROMPTS)],
            lambda prompt, sample: (
                script.completion(prompt, sample),
                script.loss_mask(prompt, sample),
                script.reward(prompt, sample),
            ),
            used[-1],
            **settings,
        )

    yield driver
    for workers in used:
        cluster[len(workers)].append(workers)
