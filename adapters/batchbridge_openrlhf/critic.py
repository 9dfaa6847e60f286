"""Orders of the critic's training processes: optimizer steps of their own, by what the run's specification says.

The critic is another model, with a replay buffer, an optimizer and a schedule of its own; its layer is
`critic_engine.OpenRlhfCriticLayer`. Source: openrlhf 0.11.2 ppo_critic.CriticModelActor.

Its own file: the driver imports it only where a critic is trained.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from batchbridge import Spec
from batchbridge.kit import Objective, run_of_critic
from batchbridge.kit.workers import Orders, Receipt
from batchbridge_openrlhf.engine import VALUE_CLIP, install, remove


def critics_spec(spec: Spec) -> Spec:
    """The specification whose steps are the critic's, and whose loss has no term of the policy's."""
    return dataclasses.replace(run_of_critic(spec), objective=Objective())


def critics_orders(orders: Orders) -> Orders:
    """Orders of the critic's training processes, by those of the policy's. Their ledger stands in that of the policy's,
    in a folder of its own."""
    critic, enforced = orders.spec.critic, orders.mode == "enforce"
    assert critic is not None, "asked where a critic is trained"
    settings = {VALUE_CLIP: critic.value_clip, "loss.token_level_loss": True}
    return dataclasses.replace(
        orders,
        spec=critics_spec(orders.spec),
        native=None if orders.native is None else critics_spec(orders.native),
        settings=settings if enforced else {},
        ledger=None if orders.ledger is None else orders.ledger / "critic",
        report=False,
    )


def in_critic(worker: Any, orders: Orders | None) -> Receipt | None:
    """The installation of `orders`, or with None their removal, inside a `CriticModelActor`."""
    if orders is None:
        remove(worker.trainer)
        return None
    from batchbridge_openrlhf.critic_engine import OpenRlhfCriticLayer

    return install(worker.trainer, orders, OpenRlhfCriticLayer)
