"""The functions that verl calls on `torch.cuda`, for processes without one.

Its own file: releases with platforms and without both use it.
"""

from __future__ import annotations

import types
from typing import Any

import torch


class Device(types.ModuleType):
    """The functions that verl calls on `torch.cuda`: torch.cpu where that has it, else nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if hasattr(torch.cpu, name):
            return getattr(torch.cpu, name)
        answers = {
            "mem_get_info": (8 << 30, 16 << 30),
            "get_device_name": "cpu",
            **dict.fromkeys(("max_memory_allocated", "max_memory_reserved", "memory_allocated", "memory_reserved"), 0),
        }
        if name == "get_rng_state":
            return lambda *arguments, **options: torch.get_rng_state()
        if name == "set_rng_state":
            return lambda state, *arguments, **options: torch.set_rng_state(state)
        return lambda *arguments, **options: answers.get(name)
