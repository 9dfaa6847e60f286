"""Advantages of a rollout: in TransferQueue by the spec's rule, and those of a critic held against the spec."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from batchbridge import BatchDrift, Plan
from batchbridge.kit.producers import HeldAdvantages
from batchbridge.kit.step_driver import RolloutRows
from batchbridge_verl.driver import VerlDriver


def rewrite_advantages(trainer: Any, batch: Any, rows: RolloutRows, driver: VerlDriver) -> None:
    """The rule's advantages in TransferQueue in place of verl's, where rewards decide them; others stay verl's, and so
    do those of a function of the user's own that is allowed. `BatchDrift` where it is not, see `HeldAdvantages`.

    verl gives a group of one its plain reward, and whitens over every token of the rollout where the schema says batch.
    Source: verl 0.9.1 core_algos.compute_grpo_outcome_advantage.
    """
    if not driver.held_advantages.looks:
        return
    import torch
    import transfer_queue as tq
    from tensordict import TensorDict

    keys = [rows.places[row] for row in rows.costs]
    columns = scored_in_queue(trainer, batch, keys)
    rewards = driver.held_advantages.hold_tokens(columns, driver.generated_at(rows.index))
    if (flat := driver.held_advantages.replacing(rewards)) is None:
        return
    masks = columns[1]
    values = torch.nested.as_nested_tensor(
        [torch.full(mask.shape, value) * mask for mask, value in zip(masks, flat, strict=True)],
        layout=torch.jagged,
    )
    fields = TensorDict({"advantages": values, "returns": values}, batch_size=len(keys))
    tq.kv_batch_put(keys=keys, partition_id=batch.partition_id, fields=fields)


def scored_in_queue(trainer: Any, batch: Any, keys: Sequence[str]) -> list[Sequence[Any]]:
    """Rewards, masks and advantages of rows in TransferQueue, of the tokens of each."""
    import transfer_queue as tq

    rewards = "token_level_rewards" if trainer.config.algorithm.use_kl_in_reward else "rm_scores"
    names = [rewards, "response_mask", "advantages"]
    data = tq.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=names)
    return [data[name].unbind() for name in names]


def held_in_queue(trainer: Any, batch: Any, advantages: HeldAdvantages, size: int, step: int) -> None:
    """The check (`BatchDrift` at `step`) of the advantages of a rollout in TransferQueue, of a run that is not
    enforced, whose groups are whole, with one output for each session of an agent loop. size: of a group."""
    groups: dict[str, dict[str, str]] = {}
    for key in keys_of_rows(batch):
        uid, session, output = key.rsplit("_", 2)
        if output != "0":
            return
        groups.setdefault(uid, {})[session] = key
    if not advantages.looks or any(len(group) != size for group in groups.values()):
        return
    keys = [key for group in groups.values() for key in group.values()]
    advantages.hold_tokens(scored_in_queue(trainer, batch, keys), step)


def keys_of_rows(batch: Any) -> list[str]:
    """The keys of a rollout's rows in TransferQueue, without verl's own fillers. Source: verl 0.9.1
    padding_utils.upsample_batch_to_divisible_size."""
    return [key for key in batch.keys if not key.startswith("pad")]


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
