"""What older releases of EasyR1 name or do otherwise, on functions of their shapes; native/ runs the releases."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from batchbridge_easyr1 import older

NEWER = """
def average_loss(values, mask, mode):
    return "native average"

def compute_policy_loss(values, mask, mode):
    return average_loss(values, mask, mode), {"entropy": average_loss(values, mask, mode)}

def update_policy(values, mask, mode):
    total_response_tokens = 3
    return compute_policy_loss(values, mask, mode), average_loss(values, mask, mode), total_response_tokens
"""
OLDER = """
def update_policy(values, mask):
    entropy, loss = VF.masked_mean(values, mask), core_algos.compute_policy_loss(values=values, mask=mask)
    return loss, core_algos.compute_kl(values), VF.masked_mean(values, mask), entropy
"""
ALGORITHMS = """
def compute_policy_loss(values, mask):
    return VF.masked_mean(values, mask), VF.masked_mean(values, mask), VF.masked_mean(values, mask)

def compute_kl(values):
    return "native KL"
"""


def scope_of(text: str, **names: Any) -> dict[str, Any]:
    scope: dict[str, Any] = dict(names)
    exec(text, scope)
    return scope


def rebound_update(scope: dict[str, Any], **own: Any) -> Any:
    from batchbridge.kit.patches import rebound

    return rebound(scope["update_policy"], **own)


@pytest.fixture
def of_0_3_0() -> dict[str, Any]:
    utilities = SimpleNamespace(masked_mean=lambda values, mask: "native mean", whiten="native")
    return scope_of(OLDER, VF=utilities, core_algos=SimpleNamespace(**scope_of(ALGORITHMS, VF=utilities)))


def test_every_average_of_a_newer_release_is_ours() -> None:
    scope = scope_of(NEWER)
    names = older.averages(scope["update_policy"], lambda *_: "ours", lambda native: native)
    (loss, metrics), kl, _ = rebound_update(scope, **names)([1], [1], "token")
    assert (loss, metrics, kl) == ("ours", {"entropy": "ours"}, "ours")
    assert scope["average_loss"]([1], [1], "token") == "native average"


def test_of_0_3_0_the_loss_and_what_is_added_to_it_are_ours_and_what_is_reported_is_native(
    of_0_3_0: dict[str, Any],
) -> None:
    names = older.averages(of_0_3_0["update_policy"], lambda *_: "ours", lambda native: native)
    update = rebound_update(of_0_3_0, **names)
    for _ in range(2):  # every call counts its averages from the beginning
        losses, kl, added, entropy = update([1], [1])
        assert losses == ("ours", "native mean", "native mean")
        assert (kl, added, entropy) == ("native KL", "ours", "ours")
    assert names["VF"].whiten == "native"
    assert of_0_3_0["VF"].masked_mean([1], [1]) == "native mean"


def test_a_loss_in_the_place_of_the_native_one_is_called(of_0_3_0: dict[str, Any]) -> None:
    names = older.averages(of_0_3_0["update_policy"], lambda *_: "ours", lambda native: lambda **given: "another")
    assert rebound_update(of_0_3_0, **names)([1], [1])[0] == "another"


def test_micro_batches_are_weighed_by_tokens_since_0_3_2(of_0_3_0: dict[str, Any]) -> None:
    assert older.weighs_by_tokens(scope_of(NEWER)["update_policy"])
    assert not older.weighs_by_tokens(of_0_3_0["update_policy"])


def test_names_of_settings_and_groups() -> None:
    old = SimpleNamespace(ulysses_sequence_parallel_size=2)
    new = SimpleNamespace(ulysses_size=4, dynamic_batching=True)
    assert (older.ulysses_of(old), older.ulysses_of(new)) == (2, 4)
    assert (older.cuts_by_tokens(old), older.cuts_by_tokens(new)) == (False, True)
    apart = SimpleNamespace(actor_rollout_wg="actor", ref_policy_wg="reference")
    alone = SimpleNamespace(actor_rollout_wg="actor")
    together = SimpleNamespace(actor_rollout_ref_wg="both", _make_batch_data=print)
    assert [older.actor_group(one) for one in (apart, alone, together, SimpleNamespace())] == [
        "actor",
        "actor",
        "both",
        None,
    ]
    assert [older.reference_group(one) for one in (apart, alone, together)] == ["reference", None, "both"]
    assert [older.makes_batches(one) for one in (apart, together)] == [False, True]
