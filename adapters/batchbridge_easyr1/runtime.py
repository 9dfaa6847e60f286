"""Attaching to a trainer of EasyR1: its `RayPPOTrainer`, in a user's own driver or in the stock entry's Ray actor."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from batchbridge import CannotAttach, Source
from batchbridge.kit import Context, Request
from batchbridge.kit.lifecycle import Patched, Runtime, is_inside
from batchbridge.kit.omegaconf import flatten
from batchbridge.kit.patches import Patches
from batchbridge.kit.refusals import SettableFields, own_spec, split
from batchbridge_easyr1.behaviour import own_rollouts
from batchbridge_easyr1.installed import installed_version
from batchbridge_easyr1.meaning import KL_ESTIMATORS
from batchbridge_easyr1.proven import CODE
from batchbridge_easyr1.refusals import REFUSALS, SAID, actor, assumed, budget, loss_type
from batchbridge_easyr1.settings import ACTOR, LOSS_TYPE, OLDEST_ENFORCED, holds, settings_of

OFF = 1e30
"""A bound that is never reached: EasyR1 has no word for a clip that is off, and infinity times zero is not a number."""


def source_of(trainer: Any) -> tuple[Source, Context]:
    """The trainer's configuration, its world size and its prompts."""
    version = installed_version()
    values = dict(flatten(dataclasses.asdict(trainer.config)))
    known = settings_of(version or "").keys() | SAID
    context = Context(
        framework_version=version,
        world_size=int(values["trainer.nnodes"]) * int(values["trainer.n_gpus_per_node"]),
        dataset_size=len(trainer.train_dataloader.dataset),
    )
    plain = {key: list(value) if isinstance(value, tuple) else value for key, value in values.items() if key in known}
    return Source(values=plain), context


UNOBSERVED = ("critic",)
"""Features that are refused in every mode: EasyR1 cannot run them."""
SETTABLE: SettableFields = {
    # Source: EasyR1 0.3.2 to 0.3.3.dev0 dp_actor.update_policy.
    "objective.surrogate": ("loss_type", lambda value, spec: loss_type(spec)),
    "objective.clip_low": ("clip_ratio_low", lambda value, spec: 1.0 if value is None else value),
    "objective.clip_high": ("clip_ratio_high", lambda value, spec: OFF if value is None else value),
    "objective.dual_clip": ("clip_ratio_dual", lambda value, spec: OFF if value is None else value),
    "objective.kl_coefficient": ("kl_coef", lambda value, spec: value or 0.0),
    "objective.kl_estimator": (
        "kl_penalty",
        lambda value, spec: next((native for native, name in KL_ESTIMATORS.items() if name == value), "low_var_kl"),
    ),
}


def _patch(trainer: Any, request: Request, patches: Patches, version: str) -> Patched:
    # What patches a trainer is imported once there is one: `check` reads the table of refusals, too.
    from batchbridge.kit.workers import orders_of
    from batchbridge_easyr1.trainer import EasyR1Observer

    if request.mode != "enforce":
        told = {"native_rollouts": own_rollouts(request.reading), "temperature": temperature_of(trainer)}
        observer = EasyR1Observer(trainer, request, orders_of(request, version, **told), patches)
        return Patched(detach=observer.detach)
    settings, left = settings_for(trainer, request)
    _follow_plan(trainer, request, version, patches, settings)
    for name in settings:
        what = f"{settings[name]} in every worker"
        patches.note(f"worker.actor.{name}", what=what, why="objective of the requested spec")
    return Patched(left_different=left)


def _follow_plan(trainer: Any, request: Request, version: str, patches: Patches, settings: dict[str, Any]) -> None:
    from batchbridge.kit.workers import orders_of
    from batchbridge_easyr1.trainer import EasyR1Driver, EasyR1PlanPatches

    assert request.plan is not None, "wrap refuses to enforce without a plan"
    objective, plan = request.spec.objective, request.plan
    per_rollout = request.spec.horizon.lr_tick == "rollout"
    orders = orders_of(
        request,
        version,
        ticks=plan.total_rollouts if per_rollout else plan.total_optimizer_steps,
        settings=settings,
        detached=objective.old_logprobs == "detached",
        temperature=temperature_of(trainer),
    )
    configure(trainer.config.worker, budget(request)[0], patches)
    if objective.kl_placement == "reward":  # subtracted in this process, before advantages
        why, wanted = "KL penalty of the spec", settings.get("kl_penalty", trainer.config.algorithm.kl_penalty)
        coefficient = objective.kl_coefficient or 0.0
        patches.set(trainer.kl_ctrl, "kl_coef", coefficient, what=f"{coefficient}", why=why)
        patches.set(trainer.config.algorithm, "kl_penalty", wanted, what=wanted, why=why)
    if settings.get("use_kl_loss"):  # else EasyR1 takes it from the rewards
        patches.set(trainer.config.algorithm, "use_kl_loss", True, what="KL in the loss", why="the spec")
    EasyR1PlanPatches(trainer, EasyR1Driver(trainer, request, orders), patches)


def temperature_of(trainer: Any) -> float:
    """The temperature that log-probabilities are of."""
    return float(trainer.config.worker.rollout.temperature)


def configure(worker: Any, settings: Mapping[str, Any], patches: Patches) -> None:
    """Gives the workers' configuration other micro-batches, by native key, before any worker has it. The reference's
    are the actor's. Source: EasyR1 0.3.2 to 0.3.3.dev0 workers/config.py WorkerConfig.post_init."""
    for key, value in settings.items():
        name = key.removeprefix(ACTOR)
        for place, config in (("actor", worker.actor), ("ref", worker.ref)):
            if place == "actor" or hasattr(config, name):
                what, why = f"worker.{place}: {value}", "token budget of the requested spec"
                patches.set(config, name, value, what=what, why=why)


def _version(trainer: Any) -> str:
    version = installed_version()
    if version is None:
        raise CannotAttach({"version": "the installed package `verl` is not EasyR1's"})
    if not holds(f">={OLDEST_ENFORCED}", version):
        reason = (
            f"EasyR1 {version} is older than {OLDEST_ENFORCED}, the oldest version whose trainer is wrapped; without "
            "flash-attn, 0.3.0 and 0.3.1 have log-probabilities of the wrong sign, and train away from what is rewarded"
        )
        raise CannotAttach({"version": reason})
    return version


def _prompts(trainer: Any) -> Sequence[Any] | None:
    """The column that EasyR1's own data set reads prompts from. Source: EasyR1 b44b311 RLHFDataset."""
    from batchbridge.kit import PromptColumn  # `check` imports this module, and reads no prompts

    dataset = trainer.train_dataloader.dataset
    rows, key = getattr(dataset, "dataset", None), getattr(dataset, "prompt_key", None)
    return None if rows is None or key is None else PromptColumn(rows, key)


RUNTIME = Runtime(
    framework="easyr1",
    version=_version,
    code=CODE,
    refusals=REFUSALS,
    always=UNOBSERVED,
    training=lambda trainer: is_inside(trainer, "fit", of=("verl",)),
    prompts=_prompts,
    patch=_patch,
    assumes=assumed,
)


def settings_for(trainer: Any, request: Request) -> tuple[dict[str, Any], dict[str, str]]:
    """Settings for the workers' actor configuration; and, by canonical field, what stays different."""
    settings, left = split(request, SETTABLE)
    if request.spec.rollout.group_filter != "none" and request.spec != own_spec(request):
        bounds = "algorithm.filter_low < mean of filter_key < filter_high in the trainer"
        left["rollout.group_filter"] = f"{request.spec.rollout.group_filter} in the requested spec, {bounds}"
    if request.spec.objective.ratio_level != own_spec(request).objective.ratio_level:
        settings["loss_type"] = loss_type(request.spec)
    if not hasattr(actor(trainer), LOSS_TYPE.rpartition(".")[2]):
        settings.pop("loss_type", None)  # 0.3.2 has one loss, and others are refused
    return settings, left
