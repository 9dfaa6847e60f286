"""AReaL's own modules out of a checkout that is on the path: each is run by itself, and what it imports and is not
installed is a stand-in. AReaL is on no package index with its engines, and imports Ray, SGLang, Megatron and hydra."""

from __future__ import annotations

import builtins
import sys
import types
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from batchbridge.kit.proven import folder_of

MARKER = "trainer/ppo/actor.py"
REAL = {
    "areal.api.cli_args": "api/cli_args.py",
    "areal.utils.constants": "utils/constants.py",
    "areal.utils.data": "utils/data.py",
    "areal.utils.functional": "utils/functional/functional.py",
    "areal.utils.seqpack": "utils/seqpack.py",
    "areal.utils.math": "utils/math.py",
    "areal.engine.core": "engine/core/train_engine.py",
}
"""Modules that others import, run by themselves as well."""


def folder() -> Path | None:
    """The checkout's package; None where it is not on the path."""
    found = folder_of("areal")
    return found if found is not None and (found / MARKER).is_file() else None


class StandIn:
    """Anything: a decorator that leaves its function alone, a context, a call, a type."""

    def __call__(self, *given: Any, **named: Any) -> Any:
        return given[0] if len(given) == 1 and isinstance(given[0], types.FunctionType) else StandIn()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn()

    def __enter__(self) -> StandIn:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __getitem__(self, key: object) -> StandIn:
        return self

    def __or__(self, other: object) -> StandIn:
        return self

    __ror__ = __or__


class Named(type):
    """The type of a class that is not there; its attributes are stand-ins."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn()


class Beside(types.ModuleType):
    """A module that is not there: classes by their names, and stand-ins."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = Named(name, (), {}) if name[0].isupper() and not name.isupper() else StandIn()
        setattr(self, name, made)
        return made


def _import(name: str, space: Any = None, local: Any = None, wanted: Sequence[str] = (), level: int = 0) -> Any:
    if name in REAL:
        beside = Beside(name)
        beside.__dict__.update({own: value for own, value in vars(module(REAL[name])).items() if own[:2] != "__"})
        return beside
    if name == "areal.utils" and wanted:
        beside = Beside(name)
        for one in wanted:
            if f"areal.utils.{one}" in REAL:
                setattr(beside, one, module(REAL[f"areal.utils.{one}"]))
        return beside
    if level or name.startswith(("areal", "torch.distributed.", "torch._dynamo")):
        return Beside(name)
    try:
        return builtins.__import__(name, space, local, wanted, level)
    except ImportError:
        return Beside(name)


@cache
def module(file: str) -> types.ModuleType:
    """One of AReaL's files, run with stand-ins for what it imports."""
    at = folder()
    assert at is not None
    made = types.ModuleType(f"areal_alone_{Path(file).stem}")
    sys.modules[made.__name__] = made  # where dataclasses look
    made.__dict__["__builtins__"] = {**vars(builtins), "__import__": _import}
    made.__file__ = str(at / file)
    exec(compile((at / file).read_text("utf-8"), made.__file__, "exec"), made.__dict__)
    return made
