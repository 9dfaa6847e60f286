"""A memory with a limit on a CPU: every storage that torch's operations make while a pass is measured is counted, until
it is freed; an operation that would go beyond the limit raises the error of a GPU's allocator."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from batchbridge.kit.found_budgets import PassMemory

Breaks = Callable[[int, str, int], bool]


class LimitedMemory:
    """A `DeviceMemory` of `limit` bytes. What was made outside of passes (weights, rollouts) is not counted.

    breaks: whether memory is lost to somebody else in an operation, by the number of the pass, its part ("forward" or
    "backward") and the operation's number there. most: the most bytes that a pass that fitted had at once. failed_in:
    of each pass that ran out of memory the part that did. left_behind: bytes of each such pass that were still in use
    when it was to be repeated.
    """

    out_of_memory: type[Exception] = torch.cuda.OutOfMemoryError

    def __init__(self, limit: int, breaks: Breaks = lambda number, where, operation: False) -> None:
        self.limit, self._breaks = limit, breaks
        self.measuring = False
        self.used = self.most = self.passes = 0
        self.failed_in: list[str] = []
        self.left_behind: list[int] = []
        self._peak = self._resting = 0
        self._operations: dict[str, int] = {}
        self._known: Any = WeakIdKeyDictionary()

    @contextlib.contextmanager
    def measured(self) -> Iterator[PassMemory]:
        """The span of one pass."""
        assert not self.measuring, "passes are measured one at a time"
        seen = PassMemory(resting=self.used)
        self._resting = self._peak = self.used
        self._operations, self.measuring = {"forward": 0, "backward": 0}, True
        try:
            with _Counting(self):
                yield seen
            self.most = max(self.most, self._peak)
        finally:
            self.measuring = False
            self.passes += 1
            seen.peak = self._peak

    def give_back(self) -> None:
        """Frees what is in no use; what is then left of the failed pass is told."""
        gc.collect()
        self.left_behind.append(self.used - self._resting)

    def taken(self, tensor: torch.Tensor) -> None:
        """Knows the storage of a tensor that an operation takes: what was made outside of passes is none of theirs."""
        self._known.setdefault(tensor.untyped_storage(), 0)

    def made(self, tensor: torch.Tensor) -> None:
        """Counts a tensor's storage, if it is a new one. Raises the error of a full memory."""
        where = "forward" if torch._C._current_graph_task_id() == -1 else "backward"
        self._operations[where] += 1
        if self._breaks(self.passes, where, self._operations[where]):
            self._fail(where, "somebody else has taken what was left")
        storage = tensor.untyped_storage()
        if storage in self._known:
            return
        size = storage.nbytes()
        if self.used + size > self.limit:
            self._fail(where, f"{self.used} bytes are in use, and {size} more are above {self.limit}")
        self._known[storage] = size
        self.used += size
        self._peak = max(self._peak, self.used)
        weakref.finalize(storage, self._freed, size)

    def _fail(self, where: str, what: str) -> None:
        self.failed_in.append(where)
        raise self.out_of_memory(what)

    def _freed(self, size: int) -> None:
        self.used -= size


class _Counting(TorchDispatchMode):  # type: ignore[misc]  # torch is untyped here
    def __init__(self, memory: LimitedMemory) -> None:
        super().__init__()
        self._memory = memory

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        for one in tree_leaves((arguments, options)):
            if isinstance(one, torch.Tensor):
                self._memory.taken(one)
        result = function(*arguments, **(options or {}))
        for one in tree_leaves(result):
            if isinstance(one, torch.Tensor):
                self._memory.made(one)
        return result
