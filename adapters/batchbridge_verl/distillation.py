"""On-policy distillation: which of verl's kinds a wrapped run follows, and what its tokens are meant to train.

Where the distance to the teacher is taken as a reward, verl's loss is PPO's over advantages of single tokens: the
negative distance of each, under the current policy. Its denominators are those of `loss_agg_mode`, so that what a token
weighs is the plan's; which advantages it has stays the teacher's. Source: verl 0.9.1 trainer/distillation/losses.py.

Read by `check`, too: imports torch and verl in functions only.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from batchbridge import Spec
from batchbridge.kit import Request
from batchbridge.kit.patches import Patches
from batchbridge.kit.refusals import is_on, on, setting
from batchbridge_verl.settings import holds
from batchbridge_verl.terms import ESTIMATORS, VerlEstimator

if TYPE_CHECKING:
    import torch

    from batchbridge_verl.run import VerlRun

ENABLED = "distillation.enabled"
_LOSS = "distillation.distillation_loss."
DEFAULTS: dict[str, Any] = {
    "loss_mode": "k3",
    "use_task_rewards": True,
    "use_policy_gradient": False,
    "policy_loss_mode": "vanilla",
    "clip_ratio_low": 0.2,
    "clip_ratio_high": 0.2,
}
"""Defaults of verl's distillation settings. Source: verl 0.9.1 trainer/config/distillation/distillation.yaml."""
DUAL_CLIP = 3.0
"""The bound of `compute_policy_loss_vanilla` where a configuration has none, as that of a distillation."""
OLDEST = "0.9.1"
_NAMED = "distillation_"
_TERM = f"advantage: {_NAMED}"
ALONE = (
    "a teacher is followed where its distance is the only reward: on verl 0.9.1's V1 trainer, "
    "distillation_loss.use_policy_gradient=True with use_task_rewards=False, loss_mode=k1, the clipping bounds of the "
    "actor, and no KL or entropy term, which verl leaves out there; other distillations have weights of their own, or "
    "make no log-probabilities that could be measured"
)


def estimator_of(run: VerlRun) -> tuple[VerlEstimator | None, str]:
    """The estimator that gives the advantages that are trained, and the key that says so. Where a teacher does, verl
    computes those of its estimator, too, and trains on none of them."""
    key, mode = "algorithm.adv_estimator", f"{_LOSS}loss_mode"
    if _says_reward(lambda name: run.native.get(f"{_LOSS}{name}", DEFAULTS[name])) and run.native.get(ENABLED):
        return VerlEstimator(f"{_NAMED}{run.native.get(mode, DEFAULTS['loss_mode'])}", "open", "none"), mode
    return ESTIMATORS.get(run[key]), key


def written(spec: Spec) -> dict[str, Any]:
    """The settings of the teacher that a specification names; none where it names none."""
    named = [name.removeprefix(_TERM) for name in spec.open_terms if name.startswith(_TERM)]
    if len(named) != 1 or (spec.advantage.baseline, spec.advantage.scale) != ("open", "none"):
        return {}
    reward = {"loss_mode": named[0], "use_policy_gradient": True, "use_task_rewards": False}
    estimator = {"algorithm.adv_estimator": "grpo", "algorithm.norm_adv_by_std_in_grpo": False}
    return {ENABLED: True, **{f"{_LOSS}{name}": value for name, value in reward.items()}, **estimator}


def _says_reward(read: Callable[[str], Any]) -> bool:
    return bool(is_on(read("use_policy_gradient"))) and not is_on(read("use_task_rewards"))


def refused(request: Request, run: VerlRun) -> bool | None:
    """Whether a run has a teacher that a wrapped one does not follow; None: its settings do not say."""
    if not (taught := on(request, ENABLED)):
        return taught
    read = functools.partial(_read, request)
    return not (run.v1 and holds(f">={OLDEST}", run.version) and _followed(read, request.spec))


def _read(request: Request, name: str) -> Any:
    return setting(request.reading, f"{_LOSS}{name}", DEFAULTS[name])


def _followed(read: Callable[[str], Any], spec: Spec) -> bool:
    objective = spec.objective
    bounds = (objective.clip_low, objective.clip_high, objective.dual_clip)
    return (
        _says_reward(read)
        and bool(written(spec))  # else the spec has advantages of rewards, which such a trainer does not train on
        and read("loss_mode") in ("k1", "kl")
        and read("policy_loss_mode") == "vanilla"
        and (objective.surrogate, objective.ratio_level) == ("ppo", "token")
        and bounds == (float(read("clip_ratio_low")), float(read("clip_ratio_high")), DUAL_CLIP)
        and objective.kl_placement != "loss"
        and not objective.entropy_coefficient
    )


@dataclass(frozen=True)
class TeacherRows:
    """A rank's rows of a teacher's log-probabilities, (rows, response tokens). bound: of a distance; infinity: none."""

    logprobs: torch.Tensor
    bound: float

    @classmethod
    def of(cls, loss: Any, data: Any) -> TeacherRows | None:
        """The teacher in a worker's loss and a batch as it arrived; None without a teacher."""
        if (config := settings_of(loss)) is None:
            return None
        from verl.workers.utils.padding import no_padding_2_padding

        found = no_padding_2_padding(data["teacher_logprobs"], data).squeeze(-1).clone()
        return cls(found, bound_of(config))

    def advantages(self, places: list[int], current: torch.Tensor) -> torch.Tensor:
        """The advantages of the rows at `places`, whose log-probabilities under the current policy are these."""
        distance = current - self.logprobs[places, : current.shape[1]].to(current)
        return -distance.clamp(-self.bound, self.bound)


def allow_fillers(loss: Any, patches: Patches) -> None:
    """Has verl's least and largest distance of a micro-batch be 0 where no token is trained: it raises there, so that a
    micro-batch of filler rows alone would end the run."""
    if settings_of(loss) is None:
        return
    import torch
    from verl.trainer.distillation import losses

    native = losses.compute_distillation_loss_range

    def of_any(distillation_losses: torch.Tensor, response_mask: torch.Tensor) -> Any:
        if not (response_mask.values() if response_mask.is_nested else response_mask).any():
            distillation_losses = torch.zeros_like(distillation_losses)
            response_mask = torch.ones_like(response_mask)
        return native(distillation_losses=distillation_losses, response_mask=response_mask)

    what, why = "filler rows have a range of distances, 0", "a step divides by ranks and micro-batches"
    patches.set(losses, "compute_distillation_loss_range", of_any, what=what, why=why)


def bound_of(config: Any) -> float:
    """The bound that a distance is cut at; infinity: nothing."""
    bound = config.distillation_loss.loss_max_clamp
    return math.inf if bound is None else float(bound)


def settings_of(loss: Any) -> Any:
    """The settings of distillation that a worker's loss has; None: it has none, or they are off."""
    config = getattr(loss, "keywords", {}).get("distillation_config")
    return config if config is not None and config.enabled else None
