"""Frozen records made by `batchbridge.frozen` behave as those of `dataclasses`."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from dataclasses import field
from functools import cached_property
from inspect import signature
from typing import Any

import pytest

from batchbridge.frozen import dataclass


def record(decorator: Any, *, frozen: bool = True) -> Any:
    """A class with fields of every kind, made by a decorator."""

    class Record:
        number: int
        listed: tuple[int, ...] = field(default=(), repr=False)
        made: dict[str, int] = field(default_factory=dict, compare=False)
        twice: int = field(default=0, kw_only=True)
        counted: list[int] = field(default_factory=list, init=False, compare=False)
        fixed: int = field(default=5, init=False)

        def __post_init__(self) -> None:
            object.__setattr__(self, "twice", 2 * self.number)

        @cached_property
        def half(self) -> float:
            return self.number / 2

    return decorator(frozen=frozen)(Record)


@dataclass(frozen=True, kw_only=True)
class Kept:
    """A record that can be pickled."""

    number: int


OURS, THEIRS = record(dataclass), record(dataclasses.dataclass)


def seen(made: Any) -> dict[str, Any]:
    """What can be seen of a class of records and of two of them."""
    one, other, third = made(1, (2,)), made(1, (2,), {"a": 1}), made(3)
    failures = {}
    for name, act in {
        "set": lambda: setattr(one, "number", 5),
        "new": lambda: setattr(one, "unknown", 5),
        "delete": lambda: delattr(one, "number"),
        "few": lambda: made(),
        "many": lambda: made(1, (), {}, 2),
        "strange": lambda: made(1, unknown=2),
        "unhashable": lambda: hash(made([])) and hash(made(1, [])),
    }.items():
        with pytest.raises((AttributeError, TypeError)) as caught:
            act()
        failures[name] = type(caught.value), str(caught.value)
    return {
        "repr": repr(one),
        "equal": (one == other, one == third, one != other, one == 1, one.__eq__(1)),
        "hash": hash(one) == hash(other),
        "half": one.half,
        "own": (one.counted, one.counted is not other.counted, one.fixed),
        "fields": [(each.name, each.repr, each.compare, each.kw_only) for each in dataclasses.fields(one)],
        "replaced": dataclasses.asdict(dataclasses.replace(third, listed=(7,))),
        "copied": copy.deepcopy(other) == other,
        "matched": made.__match_args__,
        "signature": str(signature(made)),
        "failures": failures,
        "parameters": (made.__dataclass_params__.frozen, made.__dataclass_params__.eq),
    }


def test_a_record_is_seen_as_the_standard_librarys() -> None:
    assert seen(OURS) == seen(THEIRS)


def test_a_record_that_is_not_frozen_is_the_same_but_for_that() -> None:
    ours, theirs = (record(decorator, frozen=False) for decorator in (dataclass, dataclasses.dataclass))
    assert str(signature(ours)) == str(signature(theirs))
    for made in (ours, theirs):
        one, other = made(1, (2,)), made(1, (2,), {"a": 1})
        assert (repr(one), one == other, one == made(2), made.__dataclass_params__.frozen) == (
            "record.<locals>.Record(number=1, made={}, twice=2, counted=[], fixed=5)",
            True,
            False,
            False,
        )
        one.number = 5
        assert (one.number, one == other) == (5, False)
        with pytest.raises(TypeError, match="unhashable type"):
            hash(one)
        more = (dataclass if made is ours else dataclasses.dataclass)(
            type("More", (made,), {"__annotations__": {"more": int}, "more": 4})
        )
        assert more(1, more=7) == more(1, more=7) != more(1)


OWN = ("__annotations__", "number", "__repr__", "__hash__")


def test_its_own_functions_stay() -> None:
    class Own:
        number: int = 1

        def __repr__(self) -> str:
            return "own"

        def __hash__(self) -> int:
            return 7

    for decorator in (dataclass, dataclasses.dataclass):
        made = decorator(frozen=True)(type("Own", (), {key: vars(Own)[key] for key in OWN}))
        assert (repr(made()), hash(made()), made() == made()) == ("own", 7, True)


def test_a_record_may_be_inherited_from() -> None:
    for decorator in (dataclass, dataclasses.dataclass):
        more = decorator(frozen=True)(type("More", (OURS,), {"__annotations__": {"more": int}, "more": 4}))
        assert dataclasses.astuple(more(1)) == (1, (), {}, 2, [], 5, 4)
        with pytest.raises(dataclasses.FrozenInstanceError):
            more(1).more = 5
        plain = type("Plain", (more,), {})(1)
        plain.own = 1  # as a plain class that inherits from a record may
        with pytest.raises(dataclasses.FrozenInstanceError):
            plain.number = 2


def test_a_record_may_be_compared_by_identity() -> None:
    for decorator in (dataclass, dataclasses.dataclass):
        made = decorator(frozen=True, eq=False)(type("Same", (), {"__annotations__": {"number": list[int]}}))
        one, other = made([1]), made([1])
        assert (one == other, one == one, hash(one) == hash(one), made.__dataclass_params__.eq) == (
            False,
            True,
            True,
            False,
        )


def test_a_record_survives_pickling() -> None:
    assert pickle.loads(pickle.dumps(Kept(number=3))) == Kept(number=3)


def test_a_record_that_holds_itself_has_a_text() -> None:
    one = OURS(1)
    object.__setattr__(one, "number", one)
    assert "..." in repr(one)
