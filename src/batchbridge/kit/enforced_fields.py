"""Tables of what a wrapped run brings about where its configuration cannot say it, for `Adapter.enforces`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

Promises = Mapping[str, Callable[[object], bool]]
"""Canonical field to whether a value of it is brought about."""


def given(value: object) -> bool:
    """Any value; None says nothing, and nothing is promised for it."""
    return value is not None


def also_off(value: object) -> bool:
    """Any value, and None: off, or said by another field."""
    return True


def one_of(*values: object) -> Callable[[object], bool]:
    """These values."""
    return lambda value: value in values


def kept(promises: Promises, path: str, value: object) -> bool:
    """Whether `promises` bring `value` of the field `path` about."""
    return path in promises and promises[path](value)
