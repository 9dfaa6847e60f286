"""A specification in AReaL's settings, where no row of `settings` says it. What is written is read back by the kit, so
that nothing here refuses what comes back as something else."""

from __future__ import annotations

import json
import re
from typing import Any

from batchbridge import Spec
from batchbridge.kit.key_table import Unsayable
from batchbridge.kit.schedules import schedule_parts
from batchbridge_areal.settings import ENDLESS, MANDATORY, NORM, REJECTION

NODE = 8
"""Devices of a node."""
STEP, PARTS = "optimizer_step.completions_per_step", "optimizer_step.parts_per_rollout"
CORRECTION = (
    r"(?P<level>token|sequence)_(?:(?P<geometric>geometric_weight)_|(?P<metric>kl_k[123])_)?(?:(?P<agg>sum|mean|max)_)?"
    r"(?P<kind>mask|truncate) \[(?P<low>-|[\d.e+-]+), (?P<high>[\d.e+-]+)\]"
)
"""The words of `meaning.correction`."""
DEFAULTS = {name: default for name, (_, default) in NORM.items()}
REFERENCE = {"path": "${actor.path}", "backend": "${actor.backend}"}
"""The least that a reference needs."""
FLAGS = ("enable_tree_training", "mask_no_eos_with_zero", "discount", "gae_lambda", "adv_norm", "reward_norm")


def settings_of_spec(spec: Spec) -> dict[str, Any]:
    """Settings by key. Raises `Unsayable`."""
    settings: dict[str, Any] = dict(MANDATORY)
    for part in (_sizes, _length, _generated, _advantage, _objective, _correction, _trained, _opened):
        settings |= part(spec)
    return settings


def _sizes(spec: Spec) -> dict[str, Any]:
    top, step, whole = spec.topology, spec.optimizer_step, spec.completions_per_rollout
    replica = top.tensor_parallel * top.pipeline_parallel * top.context_parallel
    if top.world_size % replica:
        fields = [
            f"topology.{name}" for name in ("world_size", "tensor_parallel", "pipeline_parallel", "context_parallel")
        ]
        raise Unsayable(f"{top.world_size} devices are not a multiple of the {replica} of a replica", *fields)
    name = (
        "megatron" if top.pipeline_parallel > 1 or spec.carried.weight_decay_excludes == "biases_and_norms" else "fsdp"
    )
    replicas = top.world_size // replica
    letters = {"t": top.tensor_parallel, "p": top.pipeline_parallel, "c": top.context_parallel}
    more = "".join(f"{letter}{size}" for letter, size in letters.items() if size > 1)
    parts, size = step.parts_per_rollout, step.completions_per_step
    if parts is None:
        if not whole or not size or whole % size:
            nearest = tuple({STEP: None, PARTS: max(round(whole / size), 1)} for _ in range(1) if whole and size)
            text = f"{STEP} = {size}: a rollout of {whole} completions is cut into so many parts"
            raise Unsayable(text, STEP, nearest=nearest)
        parts = whole // size
    budget, micro = spec.micro_batch.tokens_per_device, spec.micro_batch.completions_per_device
    cut, left = divmod(whole, replicas * parts * micro) if micro and whole and parts and not budget else (1, 0)
    return {
        "actor.backend": f"{name}:d{replicas}{more}",
        "actor.ppo_n_minibatches": parts,
        "actor.mb_spec.max_tokens_per_mb": budget and budget * top.context_parallel,
        "actor.mb_spec.n_mbs": cut if cut > 1 and not left and top.pipeline_parallel == 1 else None,
    }


def _length(spec: Spec) -> dict[str, Any]:
    epochs, steps = spec.horizon.epochs, spec.horizon.optimizer_steps
    if steps is not None or (epochs is None and spec.horizon.rollouts is None):
        fields = [f"horizon.{name}" for name in ("rollouts", "epochs", "optimizer_steps")]
        raise Unsayable("a run is counted in epochs, and may end after so many rollouts", *fields)
    if epochs is None or epochs % 1 or epochs < 1:
        whole = max(round(epochs or 1), 1)
        raise Unsayable(
            "epochs are whole, and there is one at least", "horizon.epochs", nearest=({"horizon.epochs": float(whole)},)
        )
    return {"total_train_epochs": int(epochs), "train_dataset.drop_last": spec.order.last_rollout != "wrap"}


def _generated(spec: Spec) -> dict[str, Any]:
    stale, prompts = spec.staleness, spec.rollout.prompts_per_rollout
    age = ENDLESS if stale.mode == "unbounded" else stale.maximum if stale.mode != "sync" else 0
    settings: dict[str, Any] = {"rollout.max_head_offpolicyness": age or 0, "rollout.consumer_batch_size": prompts}
    greedy = spec.carried.temperature == 0.0
    hot = 1.0 if greedy or spec.carried.temperature is None else spec.carried.temperature
    settings |= {"gconfig.temperature": hot, "actor.temperature": hot, "gconfig.greedy": greedy}
    styles = {"turn": "individual", "trajectory": "concat"}
    if style := styles.get(spec.rollout.sample_unit):
        settings["rollout.agent"] = {"export_style": style}
    return settings


def _advantage(spec: Spec) -> dict[str, Any]:
    ours, group = spec.advantage, spec.rollout.completions_per_prompt
    if ours.baseline not in ("group_mean", "leave_one_out"):
        return {}
    scaled = ours.scale == "group"
    epsilon = DEFAULTS["eps"] if ours.epsilon is None else ours.epsilon
    return {
        "actor.reward_norm": {
            "mean_level": "group",
            "mean_leave1out": ours.baseline == "leave_one_out",
            "std_level": "group" if scaled else None,
            "std_unbiased": ours.ddof != 0,
            "eps": epsilon,
            "group_size": group,
        }
    }


def _objective(spec: Spec) -> dict[str, Any]:
    ours, settings = spec.objective, dict[str, Any]()
    settings["actor.use_sapo_loss"] = ours.surrogate == "sapo"
    if ours.surrogate != "sapo":
        settings |= {
            "actor.eps_clip": ours.clip_low,
            "actor.eps_clip_higher": ours.clip_high,
            "actor.c_clip": ours.dual_clip,
        }
    settings["actor.recompute_logprob"] = ours.old_logprobs not in ("sampler", None)
    in_reward = ours.kl_placement == "reward"
    settings |= {"actor.kl_ctl": ours.kl_coefficient if in_reward else 0.0, "ref": REFERENCE if in_reward else None}
    if in_reward:
        if ours.kl_estimator not in ("k1", "k2", "k3"):
            raise Unsayable(f"objective.kl_estimator = {ours.kl_estimator}", "objective.kl_estimator")
        settings["actor.kl_estimator"] = ours.kl_estimator
    return settings


def _correction(spec: Spec) -> dict[str, Any]:
    if (said := spec.objective.sampler_correction) is None:
        return {}
    found = re.fullmatch(CORRECTION, said)
    if found is None:
        field = "objective.sampler_correction"
        raise Unsayable(f"AReaL has no {said}", field, nearest=({field: None},))
    metric, kind, low, high = (found[name] for name in ("metric", "kind", "low", "high"))
    level = {"level": found["level"], "agg": found["agg"] or "mean"}
    parts = {name: default for name, (_, default) in REJECTION.items()}
    parts |= {"metric": metric or "ratio", "action": "clamp" if kind == "truncate" else "mask", **level}
    parts |= {"lower": None if low == "-" else float(low), "upper": float(high)}
    return {"actor.rejection_sampling": parts, "actor.use_decoupled_loss": True}


def _trained(spec: Spec) -> dict[str, Any]:
    carried, settings = spec.carried, dict[str, Any]()
    settings["actor.optimizer.type"] = "sgd" if carried.optimizer == "sgd" else "adam"
    if carried.lr_schedule is not None:
        try:
            name, arguments = schedule_parts(carried.lr_schedule)
        except ValueError:
            name, arguments = "", {}
        kind = name.partition("_")[0]
        if kind not in ("constant", "linear", "cosine"):
            raise Unsayable(f"AReaL has no schedule {carried.lr_schedule}", "carried.lr_schedule")
        settings["actor.optimizer.lr_scheduler_type"] = kind
        settings["actor.optimizer.min_lr_ratio"] = arguments.get("min_lr_rate", 0.0)
    ratio = carried.warmup_ratio
    if ratio is None and carried.warmup_steps:
        field = "carried.warmup_steps"
        raise Unsayable(f"{field} = {carried.warmup_steps}: a warm-up is a share of the run's rollouts", field)
    settings["actor.optimizer.warmup_steps_proportion"] = ratio or 0.0
    return settings


def _opened(spec: Spec) -> dict[str, Any]:
    """Terms whose names are settings; of others the reading back says that they are not there."""
    settings: dict[str, Any] = {}
    for name, _, value in (term.partition(": ")[2].partition(" ") for term in spec.open_terms):
        if name in ("m2_threshold", "sapo_tau_pos", "sapo_tau_neg", *FLAGS):
            try:
                settings[f"actor.{name}"] = json.loads(value)
            except ValueError:
                continue
        elif name == "prox_logp_method":
            settings |= {"actor.prox_logp_method": value, "actor.use_decoupled_loss": True}
        elif name == "optimizer.type":
            settings["actor.optimizer.type"] = value
        elif name == "dynamic_bs":
            settings["dynamic_bs"] = True
        elif name == "kl_ctl" and (found := re.fullmatch(r"(-?[\d.e-]+) without a reference, (k[123])", value)):
            settings |= {"actor.kl_ctl": float(found[1]), "actor.kl_estimator": found[2]}
        elif name == "schedule" and (found := re.fullmatch(r"over all epochs, warm-up ([\d.e-]+)", value)):
            settings["actor.optimizer.warmup_steps_proportion"] = float(found[1])
    return settings
