"""A critic's settings to canonical values, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from batchbridge import Spec
from batchbridge.kit import Critic
from batchbridge.kit.clipping import UNREACHED, canonical_bound, native_bound
from batchbridge.kit.values import FieldValue
from batchbridge_verl.run import CRITIC_WARMUP, GROUP, VerlRun
from batchbridge_verl.settings import CRITIC, holds
from batchbridge_verl.terms import AGGREGATION_VERSIONS, AGGREGATIONS, aggregations
from batchbridge_verl.writing_carried import WritingTarget

if TYPE_CHECKING:
    from batchbridge.kit.writing import Problems

_MINI, _MICRO, _GLOBAL = (
    f"{CRITIC}ppo_{name}" for name in ("mini_batch_size", "micro_batch_size_per_gpu", "micro_batch_size")
)
_CLIP = f"{CRITIC}cliprange_value"
_DYNAMIC, _BUDGET = f"{CRITIC}use_dynamic_bsz", f"{CRITIC}ppo_max_token_len_per_gpu"
_AGGREGATION, _FACTOR, _RATE = f"{CRITIC}loss_agg_mode", f"{CRITIC}loss_scale_factor", f"{CRITIC}optim.lr"
_SPLIT = ("critic.completions_per_device", "critic.tokens_per_device")


def critic(run: VerlRun) -> dict[str, FieldValue] | None:
    """Canonical field -> what the run says of its critic; nothing without one, None where its loss is not known.

    Source: verl 0.4.0 to 0.9.1 trainer/config/critic, RayPPOTrainer._update_critic, compute_value_loss.
    """
    if not run.critic:
        return {}
    aggregation = AGGREGATIONS.get(run[_AGGREGATION])
    size, replicas = run[_MINI] * run[GROUP], run.critic_replicas
    if run.legacy and replicas:
        size = size // replicas * replicas
    if aggregation is None or size < 1 or run[f"{CRITIC}ppo_epochs"] < 1:
        return None
    legacy = run.legacy and run.engine != "megatron"
    values = {
        "completions_per_step": FieldValue(size, None, f"{_MINI} {run[_MINI]} x {GROUP} {run[GROUP]}", (_MINI, GROUP)),
        "passes_per_rollout": FieldValue(run[f"{CRITIC}ppo_epochs"], f"{CRITIC}ppo_epochs"),
        "rollout_shuffle": FieldValue("none", None, "dp_critic does not shuffle")
        if legacy
        else FieldValue("completions" if run[f"{CRITIC}shuffle"] else "none", f"{CRITIC}shuffle"),
        "warmup_rollouts": FieldValue(
            max(run[CRITIC_WARMUP] - 1, 0), None, f"{CRITIC_WARMUP} counts from 1", (CRITIC_WARMUP,)
        ),
        "aggregation": FieldValue(aggregation, _AGGREGATION),
        "value_clip": FieldValue(None if run[_CLIP] >= UNREACHED else run[_CLIP], _CLIP),
        "gamma": FieldValue(run["algorithm.gamma"], "algorithm.gamma"),
        "gae_lambda": FieldValue(run["algorithm.lam"], "algorithm.lam"),
    }
    if aggregation == "sequence_sum_over_constant":
        width = "data.max_response_length"
        values["constant"] = (
            FieldValue(run[width], None, "loss_scale_factor null: the response's width", (width, _FACTOR))
            if run[_FACTOR] is None
            else FieldValue(run[_FACTOR], _FACTOR)
        )
    if run.legacy and aggregation.startswith("sequence") and holds(">=0.6.1", run.version):
        values["count_empty"] = FieldValue(False, None, "agg_loss leaves fully masked sequences out")
    rate, override = _RATE, f"{CRITIC}optim.override_optimizer_config.lr"
    if run.engine == "fsdp" and run[override] is not None:
        rate = override
    values["learning_rate"] = FieldValue(run[rate], rate)
    key = clip_key(run)
    bound = run[key]
    values["max_gradient_norm"] = FieldValue(
        bound if run.engine == "megatron" or bound is None else canonical_bound(bound), key
    )
    # Source: verl 0.8.0 to 0.9.1 EngineConfig.use_dynamic_bsz, RayPPOTrainer.init_workers, PPOTrainer._setup: a token
    # budget whatever the settings say, in the V1 trainer that of forward passes.
    if not run.legacy:
        pass
    elif run[_DYNAMIC]:
        values["tokens_per_device"] = FieldValue(run[_BUDGET], _BUDGET)
    elif run[_MICRO] is not None:
        values["completions_per_device"] = FieldValue(run[_MICRO], _MICRO)
    elif run[_GLOBAL] is not None and replicas and run[_GLOBAL] >= replicas:
        values["completions_per_device"] = FieldValue(
            run[_GLOBAL] // replicas, None, f"{_GLOBAL} / replicas", (_GLOBAL,)
        )
    return {f"critic.{name}": entry for name, entry in values.items()}


def clip_key(run: VerlRun) -> str:
    """The key that bounds the critic's gradient norm; see `meaning.clip_grad_key`."""
    if run.legacy and run.engine == "fsdp":
        return f"{CRITIC}grad_clip"
    deprecated = f"{CRITIC}optim.grad_clip"
    return f"{CRITIC}optim.clip_grad" if run[deprecated] is None else deprecated


def write_critic(spec: Spec, to: WritingTarget, values: dict[str, Any], problems: Problems) -> None:
    """Writes them, and that there is none where only the estimator would have one."""
    critic, group = spec.critic, spec.rollout.completions_per_prompt
    gae = values.get("algorithm.adv_estimator") == "gae"
    if critic is None:
        trains = "advantage.baseline = value: verl's gae trains a critic"
        ways = ({"critic.": _as_policy(spec, to)}, {"advantage.baseline": "group_mean", "advantage.scale": "group"})
        problems.need(not gae, trains, "critic.completions_per_step", nearest=ways)
        return
    if not gae:
        values[f"{CRITIC}enable"] = True  # beside another estimator, whose returns it learns
    size = critic.completions_per_step
    own = {"critic.completions_per_step": spec.optimizer_step.completions_per_step}
    is_open = "critic.completions_per_step is open: verl needs it"
    if (
        problems.need(size is not None, is_open, "critic.completions_per_step", nearest=(own,))
        and size is not None
        and problems.need(
            group > 0 and size % group == 0,
            f"critic.completions_per_step = {size}: verl counts whole groups of {group}",
            "critic.completions_per_step",
            nearest=({"critic.completions_per_step": max(size // max(group, 1), 1) * max(group, 1)},),
        )
    ):
        values[_MINI] = size // group
    values |= {
        f"{CRITIC}ppo_epochs": critic.passes_per_rollout,
        f"{CRITIC}shuffle": critic.rollout_shuffle == "completions",
        CRITIC_WARMUP: critic.warmup_rollouts and critic.warmup_rollouts + 1,
        _AGGREGATION: problems.word(critic.aggregation, "critic.aggregation", AGGREGATIONS),
        "algorithm.gamma": critic.gamma,
        "algorithm.lam": critic.gae_lambda,
    }
    needed = AGGREGATION_VERSIONS.get(values[_AGGREGATION] or "", "")
    has = f"critic.aggregation = {critic.aggregation}: verl has it {needed}"
    everywhere = ({"critic.aggregation": AGGREGATIONS[name]} for name in aggregations(to.version))
    problems.need(holds(needed, to.version), has, "critic.aggregation", nearest=everywhere)
    values[_CLIP] = UNREACHED if critic.value_clip is None else critic.value_clip
    if critic.constant is not None:
        values[_FACTOR] = critic.constant
    if critic.learning_rate is not None:
        values[_RATE] = critic.learning_rate
    if (bound := critic.max_gradient_norm) is not None:
        key = f"{CRITIC}grad_clip" if to.legacy and to.engine == "fsdp" else f"{CRITIC}optim.clip_grad"
        values[key] = bound if to.engine == "megatron" else native_bound(bound)
    if not to.legacy:
        values |= {_DYNAMIC: True}
        problems.need(
            critic.tokens_per_device is None and critic.completions_per_device is None,
            f"{' and '.join(_SPLIT)}: verl's engine workers cut the critic's steps by a budget of their own",
            *_SPLIT,
            nearest=(dict.fromkeys(_SPLIT),),
        )
    elif critic.tokens_per_device is not None:
        values |= {_DYNAMIC: True, _BUDGET: critic.tokens_per_device}
    elif problems.need(
        critic.completions_per_device is not None,
        "critic.completions_per_device is open: verl needs it",
        "critic.completions_per_device",
        nearest=(_split_as_policy(spec),),
    ):
        values |= {_DYNAMIC: False, _MICRO: critic.completions_per_device}


def _split_as_policy(spec: Spec) -> dict[str, int | None]:
    micro = spec.micro_batch
    return dict(zip(_SPLIT, (micro.completions_per_device, micro.tokens_per_device), strict=True))


def _as_policy(spec: Spec, to: WritingTarget) -> Critic:
    """A critic that is trained in the policy's steps; on legacy workers with its micro-batches, too."""
    aggregation = spec.loss.policy.aggregation
    known = aggregation in {AGGREGATIONS[name] for name in aggregations(to.version)}
    return Critic(
        completions_per_step=spec.optimizer_step.completions_per_step,
        aggregation=aggregation if known else "token_mean",
        constant=spec.loss.policy.constant if known else None,
        passes_per_rollout=spec.optimizer_step.passes_per_rollout,
        completions_per_device=spec.micro_batch.completions_per_device if to.legacy else None,
        tokens_per_device=spec.micro_batch.tokens_per_device if to.legacy else None,
    )
