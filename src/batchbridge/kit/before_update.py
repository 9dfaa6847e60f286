"""The last moment before an optimizer of torch updates: every gradient is there, and nothing is applied yet.

Source: torch 2.13.0 optim/optimizer.py Optimizer.profile_hook_step, which wraps `step` of each class in a chain of
subclasses: an optimizer whose `step` calls that of its base runs its hooks once for each of them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any


class BeforeStep:
    """A look at an optimizer before each of its updates: once, inside of the outermost `step`, after every other
    pre-hook, whenever that was registered. As a context manager it is taken off at the end."""

    def __init__(self, optimizer: Any, look: Callable[[], None]) -> None:
        self._optimizer, self._look = optimizer, look
        self._depth = 0
        hooks = optimizer._optimizer_step_pre_hooks
        if not isinstance(hooks, _HooksWithLast):
            hooks = optimizer._optimizer_step_pre_hooks = _HooksWithLast(hooks)
        self._hooks = hooks
        hooks.last.append(self._before)
        self._after = optimizer.register_step_post_hook(self._ended)

    def _before(self, *step: Any) -> None:
        if not self._depth:
            self._look()
        self._depth += 1

    def _ended(self, *step: Any) -> None:
        self._depth -= 1

    def __enter__(self) -> BeforeStep:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()

    def restart(self) -> None:
        """Forgets a `step` that began and did not end: it raised, and someone went on."""
        self._depth = 0

    def remove(self) -> None:
        """Takes the look off."""
        self._after.remove()
        if self._before in self._hooks.last:
            self._hooks.last.remove(self._before)
        if self._optimizer._optimizer_step_pre_hooks is self._hooks and self._hooks.is_as_before:
            self._optimizer._optimizer_step_pre_hooks = self._hooks.native


class _HooksWithLast(OrderedDict[int, Callable[..., Any]]):
    """An optimizer's pre-hooks, and behind them ours. What is registered from now on is kept here, and can be removed
    by its own handle."""

    def __init__(self, native: OrderedDict[int, Callable[..., Any]]) -> None:
        super().__init__()
        self.native = native
        self.last: list[Callable[..., Any]] = []

    def values(self) -> Any:
        """The hooks in the order in which `step` calls them."""
        return [*self.native.values(), *super().values(), *self.last]

    @property
    def is_as_before(self) -> bool:
        """Whether nothing but the native hooks is left."""
        return not self and not self.last


_OF_ENGINES = ("bit16_groups", "fp16_groups", "bf16_groups")
"""The attributes in which DeepSpeed's optimizers have the parameters whose copies they update. Source: deepspeed 0.15.4
to 0.19.8 zero/stage_1_and_2.py, zero/stage3.py, bf16_optimizer.py, fp16/fused_optimizer.py, unfused_optimizer.py."""


def strangers(optimizer: Any, module: Any) -> str | None:
    """The objection that an optimizer of torch's or DeepSpeed's updates parameters which are not the trained module's;
    None where all are, and where an optimizer does not say which it updates. Parameters are compared as objects."""
    known = {id(parameter) for parameter in module.parameters()}
    held = [parameter for group in _updated(optimizer) for parameter in group]
    foreign = sum(id(parameter) not in known for parameter in held)
    if not foreign:
        return None
    return f"{foreign} of the {len(held)} parameters that the optimizer updates are not the trained model's"


def _updated(optimizer: Any) -> Sequence[Sequence[Any]]:
    """The groups of parameters that an optimizer updates; an engine's own updates copies of them."""
    from torch.optim import Optimizer

    inner = getattr(optimizer, "optimizer", optimizer)  # Accelerate's wrapper has the one of the run
    for one in (optimizer, inner):
        for name in _OF_ENGINES:
            if hasattr(one, name):
                groups: Sequence[Sequence[Any]] = getattr(one, name)
                return groups
    return [group["params"] for group in inner.param_groups] if isinstance(inner, Optimizer) else []
