"""The canonical fields that a wrapped run of TRL brings about, whatever its configuration says.

Its own file: a role of an adapter (docs/house.md), imported only when it is needed.
"""

from __future__ import annotations

from batchbridge.kit.enforced_fields import EnforceableValues, also_off, one_of

ENFORCED: EnforceableValues = {
    "rollout.prompts_per_rollout": also_off,
    "optimizer_step.completions_per_step": also_off,
    "optimizer_step.passes_per_rollout": also_off,
    "optimizer_step.rollout_shuffle": also_off,
    "optimizer_step.step_may_span": also_off,
    "order.seed": also_off,
    "order.last_rollout": one_of("drop", "short", "pad", "wrap"),
    "order.last_optimizer_step": one_of("drop", "short", "pad"),
    "horizon.rollouts": also_off,
    "horizon.lr_tick": also_off,
    "advantage.baseline": one_of("group_mean", "leave_one_out", "none"),
    "advantage.scale": one_of("group_others"),
    "advantage.epsilon": also_off,
    "advantage.ddof": also_off,
    "advantage.minimum": also_off,
    "advantage.maximum": also_off,
    "objective.old_logprobs": one_of("detached", "rollout_start"),
}
"""Canonical field to whether `attach` brings a value of it about. Source: `PLANNED` and `REFUSALS` of `runtime`,
`engine.Enforcer`; a conversion reports them as patched."""
