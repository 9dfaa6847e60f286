"""The table of what differs between releases of TRL, against the installed one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

from batchbridge import CannotAttach, unwrap, wrap
from batchbridge.kit.measuring import Rows
from batchbridge.kit.patches import Patches
from batchbridge_trl import releases
from batchbridge_trl.watching import TrlStepProbe


def test_every_attribute_is_there_where_the_table_says(trainer: Callable[..., Any]) -> None:
    built = trainer()
    for name in releases.ATTRIBUTES:
        found = hasattr(built, name) or hasattr(built.args, name)
        assert found != releases.lacks(name), name
    assert hasattr(built, "_calculate_rewards") == releases.has(releases.HAS_CALCULATE_REWARDS)
    assert hasattr(built, "_current_train_step_time") == releases.has(releases.TIMES_STEPS)
    assert hasattr(built, "_get_grad_norm") == releases.has(releases.HAS_GET_GRAD_NORM, "transformers")
    with pytest.raises(AttributeError):
        releases.value(object(), "loss_type")


def test_log_probabilities_come_in_the_form_that_the_table_says(trainer: Callable[..., Any]) -> None:
    built, row = trainer(), releases.producer()
    assert not any(hasattr(built, other.name) for other in releases.PRODUCERS if other.name != row.name)
    ids = torch.ones((2, 5), dtype=torch.long)
    result = getattr(built, row.name)(built.model, ids, torch.ones_like(ids), 3)
    assert row.logprobs(result).shape == (2, 3)
    assert (len(result) if isinstance(result, tuple) else 1) == row.values
    assert row.logprobs(row.returned("logprobs", "entropies")) == "logprobs"


def test_the_losses_of_the_table_are_those_that_the_trainer_knows(trainer: Callable[..., Any]) -> None:
    for name in ("grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo"):
        if releases.has_loss(name):
            wrap(trainer(name, loss_type=name))
    assert not releases.has_loss("nothing")


@pytest.mark.skipif(not releases.lacks("importance_sampling_level"), reason="this TRL has ratios per sequence")
def test_a_setting_that_the_release_has_not_is_refused_by_name(trainer: Callable[..., Any]) -> None:
    built = trainer()
    spec = wrap(built, mode="observe").batchbridge.request.spec
    with pytest.raises(CannotAttach) as refused:
        wrap(unwrap(built), like=spec.replace(**{"objective.ratio_level": "sequence"}))
    assert list(refused.value.reasons) == ["missing_setting"]


@pytest.mark.skipif(releases.has_loss("cispo"), reason="this TRL has cispo")
def test_a_surrogate_that_the_release_has_not_is_refused_by_name(trainer: Callable[..., Any]) -> None:
    built = trainer()
    spec = wrap(built, mode="observe").batchbridge.request.spec
    asked = {"objective.surrogate": "cispo", "objective.clip_low": None, "objective.clip_high": 0.05}
    with pytest.raises(CannotAttach) as refused:
        wrap(unwrap(built), like=spec.replace(**asked))
    assert list(refused.value.reasons) == ["aggregation"]


def test_a_reference_that_the_loss_scores_itself_is_measured_like_one_that_it_was_given(
    trainer: Callable[..., Any],
) -> None:
    """trl 0.18 makes the reference policy's log-probabilities inside of its loss, after the policy's."""
    objective = wrap(trainer(beta=0.1), mode="observe").batchbridge.request.spec.objective
    objective = dataclasses.replace(objective, kl_estimator="k3")  # later releases multiply it by the ratio
    logprobs, reference = torch.tensor([[-1.0, -2.0]]), torch.tensor([[-1.5, -1.0]])
    mask, advantages = torch.ones(1, 2), torch.tensor([[0.5]])
    found = []
    for given in (True, False):
        watched = trainer(beta=0.1)
        watch = TrlStepProbe(watched, objective, Patches())
        leaf = logprobs.clone().requires_grad_()
        made = iter([leaf, reference])
        watch._native_producer = lambda watch=watch, made=made: watch.producer.returned(next(made), torch.zeros(1, 2))
        produce = getattr(watched, watch.producer.name)
        with watch.expecting(Rows(mask=mask, advantages=advantages, reference=reference if given else None)):
            produce()
            if not given:
                with torch.no_grad():
                    produce()
        distance = reference - leaf
        loss = -(leaf - leaf.detach()).exp() * advantages + 0.1 * (distance.exp() - distance - 1)
        (loss.sum() / 4).backward()
        found.append(watch.take())
    assert found[0] == found[1]
    assert found[0][0][0].weight == pytest.approx(0.25)
    assert found[0][0][0].departure <= found[0][0][0].tolerance
