"""KL estimators by their gradient: against the exact derivative of what each stands for, over a whole vocabulary."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from batchbridge.kit.objectives import kl_losses
from batchbridge.meaning.spec import Objective

VOCABULARY = 6
ESTIMATES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "k1": lambda log_ratio: -log_ratio,
    "k2": lambda log_ratio: 0.5 * log_ratio**2,
    "k3": lambda log_ratio: log_ratio.exp() - log_ratio - 1,
}
"""Of the log ratio, reference minus policy."""


def policies() -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of a policy, and the reference's log-probabilities."""
    generator = torch.Generator().manual_seed(7)
    logits, reference = torch.randn(2, VOCABULARY, dtype=torch.float64, generator=generator)
    return logits.requires_grad_(), torch.log_softmax(1.7 * reference, -1)


def kl_of(estimator: str, new: torch.Tensor, reference: torch.Tensor, **bounds: float) -> torch.Tensor:
    objective = Objective(kl_placement="loss", kl_coefficient=1.0, kl_estimator=estimator, **bounds)
    found = kl_losses(objective, new[None], new[None].detach(), reference[None], torch.ones_like(new[None]))
    assert found is not None
    return found[0]


@pytest.mark.parametrize(("estimator", "plain"), [("k1_with_score", "k1"), ("k2_with_score", "k2"), ("k3+", "k3")])
def test_with_the_score_s_term_the_gradient_is_that_of_the_expected_estimate(estimator: str, plain: str) -> None:
    """Of sum_v p(v) k(v), whose derivative sees that the policy draws the tokens: each token's own, drawn by p."""
    logits, reference = policies()
    new = torch.log_softmax(logits, -1)
    (wanted,) = torch.autograd.grad((new.exp() * ESTIMATES[plain](reference - new)).sum(), logits, retain_graph=True)
    drawn = (new.exp().detach() * kl_of(estimator, new, reference)).sum()
    (found,) = torch.autograd.grad(drawn, logits, retain_graph=True)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    (without,) = torch.autograd.grad((new.exp().detach() * kl_of(plain, new, reference)).sum(), logits)
    assert not torch.allclose(without, wanted, rtol=1e-3), "the plain estimate has another gradient"


@pytest.mark.parametrize("kind", ["k1", "k2"])
def test_the_score_s_term_is_the_estimate_weighted_by_the_policy_over_itself(kind: str) -> None:
    logits, reference = policies()
    new = torch.log_softmax(logits, -1)
    stated = (new - new.detach()).exp() * ESTIMATES[kind](reference - new)
    weights = torch.arange(1.0, VOCABULARY + 1, dtype=torch.float64)
    (wanted,) = torch.autograd.grad((weights * stated).sum(), logits, retain_graph=True)
    found = kl_of(f"{kind}_with_score", new, reference)
    torch.testing.assert_close(found, ESTIMATES[kind](reference - new), rtol=0, atol=0)
    (gradient,) = torch.autograd.grad((weights * found).sum(), logits)
    torch.testing.assert_close(gradient, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3", "k3+", "abs", "k1_with_score", "k2_with_score"])
@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_beyond_the_bound_of_the_log_ratio_a_penalty_is_that_of_the_bound_and_has_no_gradient(
    estimator: str, sign: float
) -> None:
    new = torch.tensor([-1.0, -1.0, -1.0], dtype=torch.float64, requires_grad=True)
    apart = new.detach() + sign * torch.tensor([0.5, 2.0, 7.0], dtype=torch.float64)  # log ratios; the bound is 3
    found = kl_of(estimator, new, apart, kl_log_ratio_clamp=3.0)
    free = kl_of(estimator, new, apart)
    at_the_bound = kl_of(estimator, new, new.detach() + sign * 3.0)
    torch.testing.assert_close(found, torch.cat([free[:2], at_the_bound[2:]]))
    (gradient,) = torch.autograd.grad(found.sum(), new)
    (unbound,) = torch.autograd.grad(free.sum(), new)
    assert gradient[2] == 0 != unbound[2]
    torch.testing.assert_close(gradient[:2], unbound[:2])


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3", "k1_with_score", "k2_with_score"])
def test_the_bound_of_the_estimate_comes_after_that_of_the_log_ratio(estimator: str) -> None:
    new = torch.tensor([-1.0, -1.0], dtype=torch.float64, requires_grad=True)
    apart = new.detach() - torch.tensor([0.5, 4.0], dtype=torch.float64)
    found = kl_of(estimator, new, apart, kl_log_ratio_clamp=3.0, kl_clamp=2.0)
    both = ESTIMATES[estimator.removesuffix("_with_score")](torch.tensor([-0.5, -3.0], dtype=torch.float64))
    torch.testing.assert_close(found, both.clamp(-2.0, 2.0))
    assert found[1] == 2.0
    (gradient,) = torch.autograd.grad(found.sum(), new)
    assert gradient[1] == 0 != gradient[0]


def test_an_estimator_without_a_formula_is_refused() -> None:
    new = torch.zeros(2, requires_grad=True)
    with pytest.raises(ValueError, match="k1_with_score"):
        kl_of("k3_with_score", new, new)
