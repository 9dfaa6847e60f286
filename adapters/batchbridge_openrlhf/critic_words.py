"""The critic that gae trains, in options and in canonical words.

It trains each rollout in steps of the policy's size, in as many passes and with the same micro-batches; no option of
its own says otherwise. Source: openrlhf 0.8.0 to 0.11.2 ppo_critic.CriticPPOTrainer, loss.ValueLoss.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from batchbridge import Spec
from batchbridge.kit.values import FieldValue
from batchbridge_openrlhf import settings as names
from batchbridge_openrlhf.settings import defaults_of, holds
from batchbridge_openrlhf.sizes import OpenRlhfSizes

if TYPE_CHECKING:
    from batchbridge.kit.writing import Problems

KEPT = "critic: the policy trains on rollouts of the warm-up later"
"""The word for OpenRLHF's use of rollouts on which the policy has not trained; the schema has no word for it. Source:
openrlhf 0.8.0 to 0.11.2 BasePPOTrainer.ppo_train, PolicyModelActor.fit, which alone empties the replay buffer."""
FORGOTTEN = (
    "the policy never trains on the rollouts of a critic's warm-up (critic.freezing_steps), where openrlhf keeps them "
    "and trains it on them later"
)
OPTIONS = {
    "critic.value_clip": "critic.value_clip",
    "critic.gamma": "algo.advantage.gamma",
    "critic.gae_lambda": "algo.advantage.lambd",
}
"""Canonical field -> the option that says it alone, in all releases."""


def told_of_critic(settings: Mapping[str, Any], sizes: OpenRlhfSizes, *, shuffled: bool) -> dict[str, FieldValue]:
    """Canonical field -> what the options say of the critic; empty without one.

    shuffled: whether each pass permutes its rollout's completions.
    """
    if settings[names.ESTIMATOR] != "gae":
        return {}
    rate, norm = _carried(settings.get("critic.optim"), sizes.version)
    same = "as the policy's: openrlhf has no option of the critic's for it"
    values = {
        "critic.completions_per_step": FieldValue(sizes.train, names.TRAIN, same),
        "critic.passes_per_rollout": FieldValue(sizes.passes, names.PASSES, same),
        "critic.rollout_shuffle": FieldValue("completions" if shuffled else "none", None, same),
        "critic.aggregation": FieldValue("token_mean", None, "openrlhf averages the value loss over tokens"),
        **{path: FieldValue(settings[key], key) for path, key in OPTIONS.items()},
        "critic.learning_rate": FieldValue(
            settings[rate], rate, None, ("critic.optim",) if holds(">=0.10.2", sizes.version) else ()
        ),
        "critic.max_gradient_norm": FieldValue(settings[norm], norm),
    }
    if settings[names.FREEZING] >= 0:
        values["critic.warmup_rollouts"] = FieldValue(
            settings[names.FREEZING] + 1, names.FREEZING, "the policy trains from the next one on"
        )
        values["open_terms"] = FieldValue((KEPT,), names.FREEZING)
    return values


def write_critic(spec: Spec, version: str, values: dict[str, Any], problems: Problems) -> None:
    """The options that say `spec.critic`."""
    critic, step = spec.critic, spec.optimizer_step
    if critic is None:
        return
    rate, norm = _carried(values.get("critic.optim"), version)
    policys = {
        "critic.completions_per_step": (None, step.completions_per_step),
        "critic.passes_per_rollout": (step.passes_per_rollout,),
        "critic.completions_per_device": (None, spec.micro_batch.completions_per_device),
        "critic.tokens_per_device": (None, spec.micro_batch.tokens_per_device),
    }
    for path, allowed in policys.items():
        same = f"openrlhf's critic has the policy's, {allowed[-1]}"
        problems.fits(spec.values[path] in allowed, path, same, allowed[::-1])
    by_token = critic.aggregation == "token_mean"
    problems.fits(by_token, "critic.aggregation", "openrlhf averages the value loss over tokens", ("token_mean",))
    problems.need(
        spec.advantage.baseline == "value",
        f"critic: openrlhf trains one for gae alone, and advantage.baseline is {spec.advantage.baseline}",
        "advantage.baseline",
        nearest=({"critic.": None},),
    )
    kept = "openrlhf keeps these rollouts, and trains the policy on them later"
    problems.fits(not critic.warmup_rollouts, "critic.warmup_rollouts", kept, (0,))
    always = "critic.value_clip is off: openrlhf always clips values"
    clips = {"critic.value_clip": defaults_of(version)["critic.value_clip"]}
    if problems.need(critic.value_clip is not None, always, "critic.value_clip", nearest=(clips,)):
        values["critic.value_clip"] = critic.value_clip
    values |= {"algo.advantage.gamma": critic.gamma, "algo.advantage.lambd": critic.gae_lambda}
    if critic.learning_rate is not None:
        values[rate] = critic.learning_rate
    if critic.max_gradient_norm is not None:
        own = norm == "critic.max_norm" or critic.max_gradient_norm == spec.carried.max_gradient_norm
        one = "openrlhf before 0.10.2 clips both models' gradients at one bound"
        if problems.fits(own, "critic.max_gradient_norm", one, (spec.carried.max_gradient_norm,)):
            values[norm] = critic.max_gradient_norm


def _carried(optimizer: Any, version: str) -> tuple[str, str]:
    """The options of the critic's learning rate and gradient clipping."""
    rate = "critic.muon.lr" if optimizer == "muon" else "critic.adam.lr"
    return rate, "critic.max_norm" if holds(">=0.10.2", version) else "actor.max_norm"
