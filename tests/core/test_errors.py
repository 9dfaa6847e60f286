"""The tree of exceptions: one base, the builtin bases beside it, and data that survive a process's end."""

from __future__ import annotations

import importlib
import inspect
import pickle
import pkgutil
from pathlib import Path

import pytest

import batchbridge
from batchbridge import errors
from batchbridge.errors import (
    BatchBridgeError,
    BatchDrift,
    CannotAttach,
    CannotEdit,
    CannotWrite,
    LedgerError,
    LostGradient,
    PlanError,
    Problem,
    TooLong,
)

BUILTIN = {
    "PlanError": ValueError,
    "CannotWrite": ValueError,
    "CannotEdit": ValueError,
    "TooLong": ValueError,
    "LedgerError": ValueError,
    "CannotAttach": RuntimeError,
    "BatchDrift": RuntimeError,
    "LostGradient": RuntimeError,
}


def test_every_exception_stands_under_the_base_and_its_builtin() -> None:
    found = {name: kind for name, kind in vars(errors).items() if inspect.isclass(kind) and issubclass(kind, Exception)}
    assert found.keys() - {"BatchBridgeError"} == BUILTIN.keys()
    assert all(issubclass(found[name], (BatchBridgeError,)) for name in BUILTIN)
    assert all(issubclass(found[name], builtin) for name, builtin in BUILTIN.items())
    assert BUILTIN.keys() | {"BatchBridgeError"} <= set(batchbridge.__all__)


def test_no_module_of_the_core_has_an_exception_outside_the_tree() -> None:
    outside = []
    for module in pkgutil.walk_packages(batchbridge.__path__, "batchbridge."):
        if module.name.startswith(
            ("batchbridge.testing", "batchbridge.kit.measuring", "batchbridge.kit.probing", "batchbridge.__main__")
        ):
            continue  # they import torch or pytest, or run
        try:
            members = vars(importlib.import_module(module.name))
        except ModuleNotFoundError:  # a part that needs a framework
            continue
        outside += [
            f"{module.name}.{name}"
            for name, kind in members.items()
            if inspect.isclass(kind)
            and issubclass(kind, Exception)
            and kind.__module__ == module.name
            and not issubclass(kind, BatchBridgeError)
        ]
    assert outside == []


@pytest.mark.parametrize(
    "error",
    [
        BatchDrift(3, "weights", "0.5, not 0.25"),
        CannotAttach({"plan": "open"}),
        CannotWrite("toy", [Problem(("order.seed",), "order.seed = 5: toy has none")]),
        CannotEdit("a: an anchor", "b: a list"),
        TooLong(2, 900, 512),
        LedgerError("broken", Path("a.jsonl"), 3),
        LostGradient("micro-batch 2 of 4"),
        PlanError("order.seed is open"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_is_whole_after_a_pickle(error: BatchBridgeError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


def test_a_problem_has_its_fields_as_data() -> None:
    with pytest.raises(TypeError, match=r"a tuple of canonical fields, not the text 'order\.seed'"):
        Problem("order.seed", "no")  # type: ignore[arg-type]


def test_a_refusal_in_words_alone_is_none() -> None:
    with pytest.raises(TypeError, match=r"`Problem\(fields, reason\)`; 'order.seed = 5' is none"):
        CannotWrite("toy", ["order.seed = 5"])  # type: ignore[list-item]


def test_a_ledgers_place_is_data(tmp_path: Path) -> None:
    error = errors.LedgerError("broken", tmp_path / "a.jsonl", 3)
    assert (error.what, error.line) == ("broken", 3)
