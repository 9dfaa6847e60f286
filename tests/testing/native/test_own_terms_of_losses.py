"""What a probe says of a loss that is made of more than log-probabilities."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from batchbridge.errors import CannotAttach
from batchbridge.kit.own_terms import beside, own_terms

MODEL = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))


def probed(loss: Callable[[torch.Tensor], torch.Tensor], *, allowed: bool = False) -> torch.Tensor | None:
    """The gradient of made-up log-probabilities in a probe of the loss."""
    leaf = torch.ones(4, requires_grad=True)
    with own_terms(MODEL.named_parameters, allowed=allowed):
        loss(2 * leaf).backward()
    assert all(parameter.grad is None for parameter in MODEL.parameters())
    return leaf.grad


TERMS: dict[str, tuple[Callable[[], torch.Tensor], str]] = {
    "all parameters": (
        lambda: torch.stack([one.square().sum() for one in MODEL.parameters()]).sum(),
        r"4 parameters \(0.weight, ...\)",
    ),
    "a distance that is zero yet": (
        lambda: torch.stack([(one - one.detach()).square().sum() for one in MODEL.parameters()]).sum(),
        "4 parameters",
    ),
    "one": (lambda: MODEL[1].bias.sum(), r"1 parameters \(1.bias\)"),
    "the model, run": (lambda: MODEL(torch.ones(3)).sum(), r"4 parameters"),
    "entropies": (lambda: beside(torch.zeros(2), "entropies").sum(), "gives entropies a gradient"),
}


@pytest.mark.parametrize("term", TERMS)
def test_a_term_that_leads_elsewhere_is_refused_and_no_parameter_keeps_a_gradient(term: str) -> None:
    made, said = TERMS[term]
    with pytest.raises(CannotAttach, match=f"own_term: .*{said}"):
        probed(lambda logprobs: logprobs.sum() + made())
    assert torch.equal(probed(lambda logprobs: logprobs.sum() + made(), allowed=True), torch.full((4,), 2.0))


def test_a_loss_of_log_probabilities_alone_and_a_term_of_zero_are_taken() -> None:
    for loss in (torch.sum, lambda logprobs: logprobs.sum() + 0.0 * MODEL(torch.ones(3)).sum()):
        assert torch.equal(probed(loss), torch.full((4,), 2.0))


def test_a_loss_without_log_probabilities_gives_nothing_a_gradient() -> None:
    assert probed(lambda logprobs: MODEL[1].bias.sum(), allowed=True) is None


def test_backward_passes_after_the_probe_are_torchs() -> None:
    native = torch.autograd.backward
    with pytest.raises(CannotAttach, match="own_term"):
        probed(lambda logprobs: MODEL[1].bias.sum())
    assert torch.autograd.backward is native
