"""The runs of `fits.py`, and two more whose numbers are in OpenRLHF's own logs: `python logged_fits.py FOLDER`.

A script of its own: figures that were measured with `fits.py` carry its digest.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import fits
import torch

from batchbridge import wrap


class Logger:
    """Stands in for OpenRLHF's `TensorboardLogger`: it keeps what it is given. Only that it is called, and with which
    numbers, is shown; the writing of event files is shown with TRL's trainer."""

    def __init__(self) -> None:
        self.logged: list[tuple[int, dict[str, Any]]] = []

    def log_train(self, global_step: int, logs_dict: dict[str, Any]) -> None:
        own = {name: value for name, value in logs_dict.items() if name.startswith("batchbridge/")}
        self.logged.append((global_step, {**own, "losses": sum("loss" in name for name in logs_dict)}))

    def close(self) -> None:
        pass


def logged(folder: Path, name: str, *, every: int, mode: str) -> list[tuple[int, dict[str, Any]]]:
    """What the trainer's own logger got of a run."""
    bench = fits.Bench(folder, **{"train.micro_batch_size": 2, "logger.logging_steps": every})
    bench.trainer.tensorboard_logger = Logger()
    wrap(bench.trainer, ledger=folder / name, report_to="trainer", mode=mode)
    bench.fit()
    found: list[tuple[int, dict[str, Any]]] = bench.trainer.tensorboard_logger.logged
    return found


def main(folder: Path) -> None:
    fits.main(folder)
    found = {
        "logged_enforced": logged(folder, "logged_enforced", every=2, mode="enforce"),
        "logged_observed": logged(folder, "logged_observed", every=1, mode="observe"),
    }
    torch.save(found, folder / "logged.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
