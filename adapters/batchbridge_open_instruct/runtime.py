"""Attaching to a learner of Open-Instruct's grpo_fast.py or grpo.py, in its process, and to the actor that prepares its
data.

`check` imports this module for its refusals: what patches a learner is imported once there is one."""

from __future__ import annotations

import dataclasses
from typing import Any

from batchbridge import CannotAttach, Source
from batchbridge.kit import Context, Request, proven
from batchbridge.kit.lifecycle import Patched, Runtime, is_inside, values_of_all_ranks
from batchbridge.kit.patches import Patches
from batchbridge.kit.producers import HeldAdvantages
from batchbridge.kit.refusals import SettableFields, own_spec, split
from batchbridge_open_instruct import settings
from batchbridge_open_instruct.learners import PLACE, FastLearner, Learner, OlmoLearner, learner_of
from batchbridge_open_instruct.meaning import KL_ESTIMATORS
from batchbridge_open_instruct.proven import CODE, OPEN_INSTRUCT, checkout_of
from batchbridge_open_instruct.refusals import LOSSES, REFUSALS, SAID, LearnerView, script

OFF = 1e30
"""A bound that is never reached: upstream has no word for a clip that is off."""


def source_of(trainer: Any) -> tuple[Source, Context]:
    """The learner's arguments, its world size, and the prompts of the actor that prepares its data.

    Raises `CannotAttach` for a learner that is not loaded.
    """
    checkout, learner = _checkout(), learner_of(trainer)
    if not learner.is_loaded:
        raise CannotAttach({"not_loaded": f"the learner has no model yet; wrap it after {learner.loading}"})
    holders = (_own_args(trainer), trainer.streaming_config, trainer.vllm_config)
    values = {**values_of(checkout, *holders), settings.SCRIPT: learner.script}
    prompts = int(_asked(learner, "prompts_of"))
    context = Context(framework_version=checkout, world_size=int(trainer.world_size), dataset_size=prompts)
    return Source(values=values), context


def values_of(checkout: str, *holders: Any) -> dict[str, Any]:
    """Every setting of the checkout that one of the configurations has, as the script's parser would take it."""
    values: dict[str, Any] = {}
    for key, row in settings.settings_of(checkout).items():
        holder = next((one for one in holders if hasattr(one, key)), None)
        if holder is not None and (getattr(holder, key) is not None or row.kind.endswith("?")):
            values[key] = _plain(getattr(holder, key))
    for key in SAID:
        holder = next((one for one in holders if hasattr(one, key)), None)
        if holder is not None and getattr(holder, key) is not None:
            values[key] = getattr(holder, key)
    return values


def _plain(value: Any) -> Any:
    """A value as a file would say it: text of an enumeration's member, a list of a tuple."""
    return str(value) if isinstance(value, str) else list(value) if isinstance(value, (list, tuple)) else value


def _checkout() -> str:
    """The recorded checkout whose code this is; the newest where it is none, which `attach` then grades."""
    folder = proven.folder_of(OPEN_INSTRUCT.name)
    if folder is None:
        raise CannotAttach({"version": "the package open_instruct is not in reach of this process"})
    return checkout_of(folder) or settings.NEWEST


UNOBSERVED = ("mask_truncated_completions", "sequence_parallel")
"""Features that are refused in every mode: completions are not told apart."""
SETTABLE: SettableFields = {
    "objective.surrogate": ("loss_fn", lambda value, spec: LOSSES[value or "ppo"]),
    "objective.clip_low": ("clip_lower", lambda value, spec: OFF if value is None else value),
    "objective.clip_high": ("clip_higher", lambda value, spec: OFF if value is None else value),
    "objective.kl_coefficient": ("beta", lambda value, spec: value or 0.0),
    "objective.kl_estimator": ("kl_estimator", lambda value, spec: KL_ESTIMATORS.index(value or "k3")),
}
"""The learner's arguments that the native loss reads; see `refusals.SettableFields`."""


def _view(trainer: Any) -> LearnerView:
    learner = learner_of(trainer)
    own = str(_asked(learner, "own_preparation")) if learner.is_loaded else ""
    return LearnerView(_own_args(trainer), trainer.streaming_config, learner, own)


def _asked(learner: Learner, name: str) -> Any:
    """The answer of the function `feed.NAME` in the actor that prepares the data of a loaded learner."""
    from batchbridge_open_instruct import engine, feed

    return engine.ask(learner, getattr(feed, name))


def _own_args(trainer: Any) -> Any:
    """The learner's arguments, wrapped or not."""
    layer = vars(trainer).get(PLACE)
    return learner_of(trainer).args if layer is None else layer.native_args


def _patch(trainer: Any, request: Request, patches: Patches, checkout: str) -> Patched:
    """Patches the learner and its actor as `request.mode` says. Collective: all learners are wrapped together."""
    import torch.distributed as dist

    from batchbridge.kit.workers import orders_of
    from batchbridge_open_instruct.engine import install, remove

    own, left = split(request, SETTABLE) if request.mode == "enforce" else ({}, {})
    own.pop("use_kl_loss", None)  # the coefficient says it
    temperature = float(trainer.streaming_config.temperature)
    told = {"temperature": temperature, "leaves_out": leaves_out(request)}
    orders = orders_of(request, checkout, settings=own, **told)
    advantages = None if request.mode == "observe" else HeldAdvantages.of(request)
    shared = [orders.start_id]  # one start of all learners
    dist.broadcast_object_list(shared, src=0)
    layer = install(learner_of(trainer), dataclasses.replace(orders, start_id=shared[0]), advantages)
    # One change: while data preparation runs, none of it can be undone.
    patches.made(PLACE, lambda: remove(trainer), what="held", why="what follows is undone with it")
    for change in layer.patches.changes:
        patches.note(change.attribute, what=change.what, why=change.why)
    for name, value in own.items():
        patches.note(name, what=f"{value} in the loss", why="objective of the requested spec")
    return Patched(left_different=left, probe=layer.probe)


def leaves_out(request: Request) -> bool:
    """Whether an unwrapped run leaves completions of its rollouts out: those of groups that are dropped and not
    replaced, and packed rows beyond a multiple of the learners. Source: open-instruct e6c3044 data_loader.py
    accumulate_inference_batches, prepare_collated_data_for_workers."""
    spec = own_spec(request)
    replicas = (spec.topology.world_size or 1) // (spec.topology.context_parallel or 1)
    return spec.rollout.group_filter == "drop_zero_variance" or replicas > 1


RUNTIME = Runtime(
    framework="open_instruct",
    version=lambda trainer: _checkout(),
    code=CODE,
    refusals=REFUSALS,
    always=UNOBSERVED,
    subject=_view,
    uses=lambda trainer: (learner_of(trainer).package,),
    would_use=lambda reading: (OlmoLearner.package if script(reading) == settings.GRPO else FastLearner.package,),
    training=lambda trainer: is_inside(trainer, *learner_of(trainer).training, of=("open_instruct", "olmo_core")),
    gather=lambda trainer, value: values_of_all_ranks(value),
    patch=_patch,
    prompts=lambda trainer: _asked(learner_of(trainer), "digest_of_prompts"),
)
