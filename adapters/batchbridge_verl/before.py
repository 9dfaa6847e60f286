"""verl 0.2 and 0.3, which people's own copies carry: what their code does otherwise than 0.4.0's.

Read in the wheels of 0.2, 0.2.0.post2, 0.3.0.post0 and 0.3.0.post1: trainer/ppo/ray_trainer.py and core_algos.py,
workers/fsdp_workers.py, workers/actor/dp_actor.py. The wheel of 0.1 has no `workers`: nothing says what it does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from batchbridge import Finding, Fix, Where
from batchbridge_verl.run import EPOCHS
from batchbridge_verl.settings import ACTOR, CRITIC, OF_COPIES, holds

RELEASES = ("0.2.0", "0.3.0")
WITHOUT_PASSES = "<0.3.0"
"""Versions without a loop over `ppo_epochs`, and whose last rollout is not made. Source: verl 0.2
dp_actor.update_policy, dp_critic.update_critic; fit returns when `global_steps`, which begins at 1, has come to
`total_training_steps`."""
SHARD = f"{ACTOR}fsdp_config.fsdp_size"


def is_read(version: str | None) -> bool:
    """Whether these are the numbers of a release that only copies have."""
    return version in RELEASES


def as_run(native: dict[str, Any], declared: Mapping[str, Any], version: str) -> dict[str, Any]:
    """The settings as the code takes them. declared: the keys of the configuration, which a copy may have more of.

    Without a key of their own the bounds of the clip are both `clip_ratio`, and the KL is in the reward wherever it is
    not in the loss (0.2 and 0.3 RayPPOTrainer.fit).
    """
    if not holds(OF_COPIES, version):
        return native
    made: dict[str, Any] = {f"{ACTOR}clip_ratio_low": None, f"{ACTOR}clip_ratio_high": None}
    made["algorithm.use_kl_in_reward"] = not native[f"{ACTOR}use_kl_loss"]
    made = {key: value for key, value in made.items() if key not in declared}
    if holds(WITHOUT_PASSES, version):
        made |= {EPOCHS: 1, f"{CRITIC}ppo_epochs": 1}
    return {**native, **made}


def shared_otherwise(values: Mapping[str, Any], places: Mapping[str, Where], world: int, version: str) -> list[Finding]:
    """The finding of a 0.2 whose mini-batches are shared out over groups of devices, which is not read. Source: verl
    0.2 ActorRolloutRefWorker.__init__ divides by `device_mesh.shape[0]`, which `fsdp_size` makes smaller."""
    size = values.get(SHARD)
    if not holds(WITHOUT_PASSES, version) or not isinstance(size, int) or size < 0 or size >= world:
        return []
    groups = f"{world} / {size} groups of devices"
    text = f"{SHARD} = {size}: verl 0.2 shares a mini-batch out over {groups}, which is not read"
    where = (places.get(SHARD) or Where(SHARD, size),)
    return [Finding("BB039", "error", "config", text, where, (Fix(f"{SHARD} = -1", {SHARD: -1}),), undecided=True)]
