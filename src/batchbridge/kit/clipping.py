"""Gradient clipping where a framework has no word for "off".

`torch.nn.utils.clip_grad_norm_` multiplies a gradient by bound / norm where that is below 1. A framework that always
calls it erases every gradient with a bound of 0, which is "off" in the schema and in frameworks that ask first. Four
adapters say it in both directions, and it is no other tool's business.

Its own file: adapters and plugins import it by this name.
"""

from __future__ import annotations

UNREACHED = 1e9
"""A bound that no gradient reaches, so that clipping changes no bit: how "off" is written there."""


def canonical_bound(native: float) -> float:
    """`carried.max_gradient_norm` of such a framework's bound; 0.0 is off."""
    return 0.0 if native >= UNREACHED else native


def native_bound(canonical: float) -> float:
    """The bound of such a framework for `carried.max_gradient_norm`."""
    return canonical or UNREACHED
