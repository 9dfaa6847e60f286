"""A term of a user's own in a loss: what gives a parameter a gradient although no model ran.

In a probe (`batchbridge.kit.probing`) log-probabilities are leaves. A loss that is made of them alone leads back to no
parameter; one with an added term (a distance from the first weights, a mix with supervised data) does.
The gradients are asked for and given to nobody: no parameter keeps one, and no engine hears of one.
Imports torch; knows no framework.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch

from batchbridge.errors import CannotAttach
from batchbridge.kit.allowing import OWN_TERM
from batchbridge.kit.patches import temporarily

_BESIDE = "_batchbridge_beside"
"""The attribute of a stand-in that a loss without terms of its own does not use: what it stands for."""


def beside(stand_in: torch.Tensor, what: str) -> torch.Tensor:
    """A stand-in of a probe for what the configured loss does not use (entropies, say): a loss that does has a term of
    its own. what: in words, plural."""
    stand_in = stand_in.detach().requires_grad_()
    setattr(stand_in, _BESIDE, what)
    return stand_in


@contextlib.contextmanager
def own_terms(named: Callable[[], Iterable[tuple[str, Any]]], *, allowed: bool) -> Iterator[None]:
    """The span of a probe, in which a loss with a term of its own is refused (`CannotAttach`, unless `allowed`), and no
    parameter is given a gradient. named: the parameters of the trained model by name, asked for when one is told."""
    native = torch.autograd.backward

    def backward(tensors: Any, *given: Any, **options: Any) -> Any:
        roots = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        own, others = _leaves(roots)
        if own and not allowed and (moved := _moved(roots, own)):
            raise CannotAttach({OWN_TERM: _refusal(moved, dict(named()))})
        if not own or options.get("inputs") is not None:
            return native(tensors, *given, **options)
        return native(tensors, *given, **{**options, "inputs": others}) if others else None

    with temporarily(torch.autograd, backward=backward):
        yield


def _leaves(roots: Iterable[torch.Tensor]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The leaves that tensors were made of: parameters and stand-ins of `beside`; and all others."""
    nodes: list[Any] = [root.grad_fn for root in roots if root.grad_fn is not None]
    own: list[torch.Tensor] = []
    others: list[torch.Tensor] = []
    seen = set(nodes)
    while nodes:
        node = nodes.pop()
        if type(node).__name__ == "AccumulateGrad":
            leaf = node.variable
            is_own = isinstance(leaf, torch.nn.Parameter) or hasattr(leaf, _BESIDE)
            (own if is_own else others).append(leaf)
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                nodes.append(following)
    return own, others


def _moved(roots: list[torch.Tensor], own: list[torch.Tensor]) -> list[torch.Tensor]:
    """Those of the leaves that a backward pass gives a gradient other than zero, now or at other values of theirs: a
    distance from the first weights has none yet."""
    with torch.enable_grad():
        sums = [root.sum() for root in roots if root.requires_grad]
        gradients = torch.autograd.grad(sums, own, create_graph=True, allow_unused=True)
        moved = [_is_any(gradient) for gradient in gradients]
        curved = [found.sum() for found in gradients if found is not None and found.requires_grad]
        if curved and not any(moved):
            try:
                moved = [_is_any(found) for found in torch.autograd.grad(curved, own, allow_unused=True)]
            except RuntimeError:  # nobody knows: an operation without a second derivative
                moved = [found is not None for found in gradients]
    return [leaf for leaf, is_moved in zip(own, moved, strict=True) if is_moved]


def _is_any(gradient: torch.Tensor | None) -> bool:
    """Whether a gradient has a value other than zero; of a DTensor, in this rank's part."""
    return gradient is not None and bool(getattr(gradient, "_local_tensor", gradient).any())


def _refusal(moved: list[torch.Tensor], named: Mapping[str, Any]) -> str:
    """The reason against terms that lead to these leaves."""
    parameters = {id(leaf) for leaf in moved if not hasattr(leaf, _BESIDE)}
    if parameters:
        name = next((name for name, parameter in named.items() if id(parameter) in parameters), "the model's")
        through = f"{len(parameters)} parameters ({name}{', ...' if len(parameters) > 1 else ''})"
    else:
        through = str(getattr(moved[0], _BESIDE))
    return (
        f"the trainer's own loss has a term that does not come from the log-probabilities: it gives {through} a "
        f'gradient of its own, and the plan does not weigh it; allow=("{OWN_TERM}",) keeps it at its native size, and '
        "nothing is then compared with it"
    )
