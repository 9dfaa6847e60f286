"""Gradients and parameters of every optimizer step of a run, on disk: what runs are compared by.

A framework's testing kit keeps them at its optimizer's seam where `BATCHBRIDGE_STEPS` names a folder. Files are
torch's, tensors flat over all parameters in the model's order, float32, on the CPU.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

FOLDER = "BATCHBRIDGE_STEPS"
"""The environment variable that names the folder."""


@dataclass(frozen=True)
class Snapshot:
    """One optimizer step. gradient: raw, before clipping. before, after: all parameters."""

    step: int
    gradient: torch.Tensor
    before: torch.Tensor
    after: torch.Tensor


def watched(native: Callable[..., Any], look: Callable[..., object]) -> Callable[..., Any]:
    """A function that calls `look` with its arguments before every call of `native`. A trainer whose functions are
    watched so keeps its grade: `batchbridge.kit.proven` looks through what BatchBridge itself has put around a
    function."""

    @functools.wraps(native)
    def call(*arguments: Any, **options: Any) -> Any:
        look(*arguments, **options)
        return native(*arguments, **options)

    return call


class StepKeeper:
    """The keeper of the optimizer steps of one process, numbered in their order.

    writes: whether this process writes; the others call it too where gathering is collective.
    """

    def __init__(self, folder: Path, *, writes: bool) -> None:
        self._folder, self._writes, self._step = folder, writes, 0

    def around(
        self, gradient: Callable[[], torch.Tensor], parameters: Callable[[], torch.Tensor], step: Callable[[], Any]
    ) -> Any:
        """Calls `step`, the native optimizer step, and returns its result; saves
        the gradient, and the parameters before and after. gradient, parameters: flat, whole."""
        kept = {"gradient": gradient().float().cpu(), "before": parameters().float().cpu()}
        made = step()
        self._keep({**kept, "after": parameters().float().cpu()})
        return made

    def _keep(self, values: dict[str, torch.Tensor]) -> None:
        if self._writes:
            self._folder.mkdir(parents=True, exist_ok=True)
            torch.save(values, self._folder / f"{self._step:06d}.pt")
        self._step += 1


def keeper(*, writes: bool = True) -> StepKeeper | None:
    """The keeper that the environment asks for, or None."""
    folder = os.environ.get(FOLDER)
    return StepKeeper(Path(folder), writes=writes) if folder else None


def keep_steps(optimizer: Any, parameters: Sequence[Any], folder: Path) -> None:
    """Keeps every step of a torch optimizer in `folder`: for trainers that run in this process and do not clip."""
    keep, native = StepKeeper(folder, writes=True), optimizer.step

    def step(*arguments: Any, **options: Any) -> Any:
        return keep.around(
            lambda: flat(parameter.grad for parameter in parameters),
            lambda: flat(parameters),
            lambda: native(*arguments, **options),
        )

    optimizer.step = step


def flat(tensors: Iterable[Any]) -> torch.Tensor:
    """A copy of all of them, one after another, float64 on the CPU; collective where they are sharded (DTensor)."""
    whole = (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor for tensor in tensors)
    return torch.cat([tensor.detach().double().flatten().cpu().clone() for tensor in whole])


def snapshots(folder: Path) -> list[Snapshot]:
    """The steps that were kept, in their order."""
    return [Snapshot(int(file.stem), **torch.load(file, weights_only=True)) for file in sorted(folder.glob("*.pt"))]
