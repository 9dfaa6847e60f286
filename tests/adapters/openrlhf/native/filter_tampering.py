"""Ways to make a `PPOTrainer` with dynamic filtering train something else than what its filter keeps.

`filtered_fits.py` runs them in its processes; each takes a `filtered_fits.Bench`, wrapped unless it says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from batchbridge_openrlhf.turns import IDENTITY


def wider(bench: Any) -> None:
    """The filter keeps every group."""
    bench.args.algo.dynamic_filtering_range = [-1.0, 99.0]


def narrower(bench: Any) -> None:
    """The filter drops some groups that it should keep."""
    bench.args.algo.dynamic_filtering_range = [2.9, 3.6]


def none_passes(bench: Any) -> None:
    """No group can be kept; set before the trainer is wrapped."""
    bench.args.algo.dynamic_filtering_range = [50.0, 60.0]


def _appended(change: Callable[[list[Any]], list[Any]]) -> Callable[[Any], None]:
    """What reaches the replay buffers is changed before the driver sends it on."""

    def tamper(bench: Any) -> None:
        maker = bench.trainer.experience_maker
        native = maker.make_experience_batch

        def make(samples: Any) -> Any:
            made = native(samples)
            for batch in made:
                batch.info[IDENTITY] = torch.tensor(change(batch.info[IDENTITY].tolist()))
            return made

        maker.make_experience_batch = make

    return tamper


def _swap(rows: list[list[int]]) -> list[list[int]]:
    """Two groups change their places."""
    return [[*row[:2], {0: 1, 1: 0}.get(row[2], row[2]), *row[3:]] for row in rows]


def _dropped(rows: list[list[int]]) -> list[list[int]]:
    """Every group is said to be the next candidate."""
    return [[row[0], row[1] + 1, *row[2:]] for row in rows]


def in_the_buffer(bench: Any) -> None:
    """Two groups change their places in the replay buffer, on every rank."""
    native = bench.worker.append

    def append(experience: Any) -> Any:
        rows = [[int(value) for value in row] for row in experience.info[IDENTITY]]
        experience.info[IDENTITY] = [torch.tensor(row) for row in _swap(rows)]
        return native(experience)

    bench.worker.append = append


def left_out(bench: Any) -> None:
    """A group does not reach the replay buffers."""
    native = bench.worker.append

    def append(experience: Any) -> Any:
        from openrlhf.trainer.ppo_utils.experience import make_experience_batch, split_experience_batch

        items = [item for item in split_experience_batch(experience) if int(item.info[IDENTITY][2]) != 1]
        return native(make_experience_batch(items))

    bench.worker.append = append


TAMPERED: Mapping[str, Callable[[Any], None]] = {
    "dropped groups are kept": wider,
    "kept groups are dropped": narrower,
    "another order": _appended(_swap),
    "other candidates": _appended(_dropped),
    "another order in the buffer": in_the_buffer,
    "a group is left out": left_out,
}
