"""Advantages of a rollout in TransferQueue, by the spec's rule."""

from __future__ import annotations

from typing import Any

from batchbridge import Plan
from batchbridge.kit import RULED, group_advantages
from batchbridge.kit.step_driver import RolloutRows


def rewrite_advantages(trainer: Any, batch: Any, rows: RolloutRows, plan: Plan) -> None:
    """Puts the rule's advantages in the place of verl's, where rewards decide them; others stay verl's.

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
