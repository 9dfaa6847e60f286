"""The corrections towards the sampler as OpenRLHF's options describe them, in float64, one completion at a time: the
oracle's side, which knows no code of OpenRLHF's and none of the adapter's. And how this OpenRLHF spells them."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from packaging.version import Version

NEW = Version(importlib.metadata.version("openrlhf")) >= Version("0.11.2")
RATIO, KL, TV = (0.8, 1.3), (0.0, 0.00075), (0.0, 0.0045)
"""Bounds that take out a part of the scripted tokens, and of the completions."""


@dataclass(frozen=True)
class Correction:
    """unit: what is looked at, a token or the mean over a completion's trained tokens (of a ratio the geometric one).
    kind: truncate (the ratio, held in the bounds), mask (units whose ratio is outside of the bounds weigh nothing, all
    others their tokens' ratios), binary_kl and tv (the same by a divergence)."""

    unit: str
    kind: str
    low: float
    high: float

    def factor(self, old: torch.Tensor, sampled: torch.Tensor, mask: Sequence[int]) -> torch.Tensor:
        """Of each token's policy loss, from the trainer's old log-probabilities and the sampler's."""
        trains, samples = old.double(), sampled.double()
        ratio = (trains - samples).exp()
        if self.kind == "truncate":
            return ratio.clamp(self.low, self.high)
        p, q = samples.exp(), trains.exp()
        seen = {
            "mask": trains - samples,
            "binary_kl": p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log(),
            "tv": (p - q).abs(),
        }[self.kind]
        if self.unit == "sequence":
            trained = torch.tensor(list(mask)).bool()
            seen = seen[trained].mean().expand_as(seen) if trained.any() else torch.zeros_like(seen)
        if self.kind == "mask":
            seen = seen.exp()
        return torch.where((seen >= self.low) & (seen <= self.high), ratio, torch.zeros_like(ratio))


def moved(old: torch.Tensor, prompt: int, number: int) -> torch.Tensor:
    """Log-probabilities around `old`: each token's by its own number, and all of a completion by one more. In float32,
    as an engine hands them over."""
    generator = torch.Generator().manual_seed(1000 * prompt + number)
    whole = 0.25 * torch.randn(1, generator=generator)
    return (old.float() + whole + 0.2 * torch.randn(len(old), generator=generator)).clamp(max=-1e-3)


def _new(level: str, mode: str, gating: str, bounds: tuple[float, float]) -> dict[str, Any]:
    named = {"level": level, "mode": mode, "gating": gating, "threshold": list(bounds)}
    return {f"algo.advantage.is_correction_{name}": value for name, value in named.items()}


def _old(kind: str) -> dict[str, Any]:
    named = {"enable": True, "type": kind, "threshold": list(RATIO)}
    return {f"algo.advantage.is_correction_{name}": value for name, value in named.items()}


VARIANTS: dict[str, tuple[Correction, dict[str, Any]]] = {
    # What the options say, and how this release spells them.
    "truncated": (
        Correction("token", "truncate", *RATIO),
        _new("token", "clip", "ratio", RATIO) if NEW else _old("tis"),
    ),
    "masked": (Correction("token", "mask", *RATIO), _new("token", "mask", "ratio", RATIO) if NEW else _old("icepop")),
    "masked by sequence": (
        Correction("sequence", "mask", *RATIO),
        _new("seq", "mask", "ratio", RATIO) if NEW else _old("seq-mask-tis"),
    ),
}
if NEW:
    VARIANTS |= {
        f"{kind}, {unit}": (Correction(unit, kind, *bounds), _new(level, "mask", kind, bounds))
        for kind, bounds in (("binary_kl", KL), ("tv", TV))
        for unit, level in (("token", "token"), ("sequence", "seq"))
    }
