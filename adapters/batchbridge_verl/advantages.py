"""Advantages of a rollout: in TransferQueue by the spec's rule, and those of a critic held against the spec."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from batchbridge import BatchDrift, Plan
from batchbridge.kit import RULED, group_advantages
from batchbridge.kit.step_driver import RolloutRows


def rewrite_advantages(trainer: Any, batch: Any, rows: RolloutRows, plan: Plan) -> None:
    """Puts the rule's advantages in place of verl's, where rewards decide them; others stay verl's.

    verl gives a group of one its plain reward, and whitens over every token of the rollout where the schema says batch.
    Source: verl 0.9.1 core_algos.compute_grpo_outcome_advantage.
    """
    rule = plan.spec.advantage
    if rule.baseline not in RULED or rule.scale == "batch":
        return
    import torch
    import transfer_queue as tq
    from tensordict import TensorDict

    in_reward = trainer.config.algorithm.use_kl_in_reward
    column = "token_level_rewards" if in_reward else "rm_scores"
    keys = [rows.places[row] for row in rows.costs]
    data = tq.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=[column, "response_mask"])
    rewards = [float(values.sum()) for values in data[column].unbind()]
    size = plan.completions_per_prompt
    groups = [rewards[start : start + size] for start in range(0, len(rewards), size)]
    flat = [value for group in group_advantages(groups, rule) for value in group]
    values = torch.nested.as_nested_tensor(
        [
            torch.full(mask.shape, value) * mask
            for mask, value in zip(data["response_mask"].unbind(), flat, strict=True)
        ],
        layout=torch.jagged,
    )
    fields = TensorDict({"advantages": values, "returns": values}, batch_size=len(keys))
    tq.kv_batch_put(keys=keys, partition_id=batch.partition_id, fields=fields)


GAE = ("token_level_rewards", "values", "response_mask", "advantages", "returns")
"""Columns that GAE's advantages follow from, and are."""
_TOLERANCE = 1e-3
"""The tolerance, relative to the largest: whitening over a whole rollout in float32, whose mean and deviation are sums
of all its tokens, against float64."""


def hold_advantages(trainer: Any, batch: Any, rows: RolloutRows, plan: Plan) -> None:
    """The check (`BatchDrift`) that a rollout in TransferQueue has the advantages and returns of the spec's critic."""
    import transfer_queue as tq

    rewards = "token_level_rewards" if trainer.config.algorithm.use_kl_in_reward else "rm_scores"
    data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=[rewards, *GAE[1:]])
    columns = {name: data[rewards if name == GAE[0] else name].to_padded_tensor(0) for name in GAE}
    hold_gae(columns, plan, rows.index)


def hold_gae(columns: Mapping[str, Any], plan: Plan, rollout: int) -> None:
    """The check (`BatchDrift`) that advantages and returns are GAE's over the values, whitened, as the spec says.
    columns: `GAE`, shape (rows, tokens).

    Source: verl 0.9.1 core_algos.compute_gae_advantage_return: observations are passed over.
    """
    import torch

    critic = plan.asked.critic
    assert critic is not None, "asked where a critic is trained"
    rewards, values, mask, advantages, returns = (columns[name].double() for name in GAE)
    if plan.asked.advantage.baseline != "value" or not mask.any():
        return
    following, running, found = torch.zeros_like(values[:, 0]), torch.zeros_like(values[:, 0]), []
    for place in reversed(range(values.shape[1])):
        here = mask[:, place] > 0
        error = rewards[:, place] + critic.gamma * following - values[:, place]
        running = torch.where(here, error + critic.gamma * critic.gae_lambda * running, running)
        following = torch.where(here, values[:, place], following)
        found.append(running)
    plain = torch.stack(found[::-1], dim=1)
    trained = mask > 0
    own = plain[trained]
    whitened = (plain - own.mean()) / (own.var(correction=1) + 1e-8).sqrt()
    for name, expected, seen in (("returns", plain + values, returns), ("advantages", whitened, advantages)):
        off = (expected - seen)[trained].abs().max()
        if not off <= _TOLERANCE * max(1.0, float(expected[trained].abs().max())):
            words = f"gamma = {critic.gamma:g}, lambda = {critic.gae_lambda:g}"
            step = plan.rollout(rollout).generated_at_step
            said = f"{name} of rollout {rollout} are not GAE's over the critic's values ({words}): off by {off:.2g}"
            raise BatchDrift(step, "weights", said)
