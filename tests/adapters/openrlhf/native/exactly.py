"""Passes in float64 of a model whose weights, gradients and optimizer are float32, the widest that ZeRO holds.

No code of the model's is replaced: while it runs, every function of torch that it calls is given float64 for float32,
tensors and dtypes alike, and so backward is float64 up to each weight's own gradient. Models of transformers take
norms, softmax and rotary angles in float32 whatever their weights are, and OpenRLHF the logits; here all of it is
float64.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

BAR = 3 * torch.finfo(torch.float32).eps
"""The most that the gradients of such passes may be off: three times what one rounding to float32 may be. Rounded are
the gradient of each micro-batch, its sums over micro-batches and ranks, and the reference's log-probabilities. Plain
float32 has about ten times as much as its bar (`gradient_bar`)."""


class Exactly(TorchFunctionMode):
    """Functions of torch compute in float64 where they were to compute in float32; in place they do as they would."""

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        given: Sequence[Any] = (),
        named: Mapping[str, Any] | None = None,
    ) -> Any:
        named = named or {}
        if function is torch.Tensor.float:
            function = torch.Tensor.double
        if function is torch.Tensor.double or function.__name__.endswith("_"):  # "add_", and attributes ("__get__")
            return function(*given, **named)
        return function(*map(_wider, given), **{name: _wider(value) for name, value in named.items()})


def _wider(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.double() if value.dtype == torch.float32 else value
    if type(value) in (list, tuple):
        return type(value)(map(_wider, value))
    return torch.float64 if value is torch.float32 else value


@contextlib.contextmanager
def exactly(*modules: torch.nn.Module) -> Iterator[None]:
    """Forward passes of these modules are `Exactly`; what is around them, DeepSpeed's sums say, is as it was."""
    entered: list[Exactly] = []

    def enter(*_: Any) -> None:
        entered.append(Exactly())
        entered[-1].__enter__()

    def leave(*_: Any) -> None:
        entered.pop().__exit__(None, None, None)

    hooks = [
        hook
        for module in modules
        for hook in (
            module.register_forward_pre_hook(enter),
            module.register_forward_hook(leave, always_call=True),
        )
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
