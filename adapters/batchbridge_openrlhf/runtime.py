"""Attaching to OpenRLHF's trainers: `PPOTrainer`, the driver of a run of the command line, and `ActorPPOTrainer`, what
each training process has, for people who build the processes themselves."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import batchbridge.kit.versions  # `check` imports this module, and importlib.metadata brings email and sockets
from batchbridge import CannotAttach, Reading, Source, Spec
from batchbridge.kit import CandidatePlan, Context, Request, run_of_critic, walk
from batchbridge.kit.code_names import has_base
from batchbridge.kit.lifecycle import Patched, Runtime, is_inside, values_of_all_ranks
from batchbridge.kit.patches import Patches
from batchbridge.kit.refusals import own_spec
from batchbridge.kit.versions import readable
from batchbridge_openrlhf.critic_refusals import SET_IN_CRITIC
from batchbridge_openrlhf.critic_words import FORGOTTEN, KEPT
from batchbridge_openrlhf.facts import settings_in
from batchbridge_openrlhf.proven import CODE
from batchbridge_openrlhf.refusals import ESTIMATORS, REFUSALS
from batchbridge_openrlhf.settings import FREEZING, NEWEST, defaults_of, is_idle, options_of
from batchbridge_openrlhf.user_options import RunningArguments, as_option_value

if TYPE_CHECKING:
    from batchbridge.kit.workers import Orders

OFF = 1e30
"""A bound that is never reached, where a spec has none."""


def is_driver(trainer: object) -> bool:
    """Whether `trainer` is a `PPOTrainer`, inside its Ray actor."""
    return has_base(trainer, "openrlhf.trainer.ppo_trainer", "BasePPOTrainer")


def is_worker(trainer: object) -> bool:
    """Whether `trainer` is an `ActorPPOTrainer`."""
    return has_base(trainer, "openrlhf.trainer.ray.ppo_actor", "ActorPPOTrainer")


def source_of(trainer: Any) -> tuple[Source, Context]:
    """The trainer's arguments, its world size, and its number of prompts. An `ActorPPOTrainer` has no prompts: there it
    is the attribute `dataset_size`, which whoever builds it sets."""
    version = batchbridge.kit.versions.version("openrlhf")
    known = readable(version, NEWEST)
    options, defaults = options_of(known), defaults_of(known)
    given = {
        name: as_option_value(options[name], value)
        for name, value in _leaves(trainer.args)
        # What decides nothing here is changed while the program runs: eval.steps -1 is infinite there.
        if name in options
        and value not in (None, defaults[options[name].identity])
        and not is_idle(options[name].identity)
    }
    world, prompts = None, None
    if is_worker(trainer):
        import torch

        world, prompts = torch.distributed.get_world_size(), getattr(trainer, "dataset_size", None)
    elif hasattr(trainer, "prompts_dataloader"):
        prompts = len(trainer.prompts_dataloader.dataset)
    context = Context(framework_version=version, world_size=world, dataset_size=prompts)
    return Source(values=given, native=RunningArguments()), context


def _leaves(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in vars(node).items():
        if hasattr(value, "__dict__"):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def started(reading: Reading) -> Reading:
    """The reading of an enforced run: its order is keyed by train.seed, where nothing else keys it, its steps end with
    their rollout (`leftovers.settled`), and rollouts of a critic's warm-up are not kept."""
    if reading.spec is None:
        return reading
    spec = settled(reading.spec, reading.dataset_size)
    if spec.order.seed is None:
        spec = spec.replace(**{"order.seed": settings_in(reading)["train.seed"]})
    if KEPT in spec.open_terms:
        spec = dataclasses.replace(spec, open_terms=tuple(name for name in spec.open_terms if name != KEPT))
    return dataclasses.replace(reading, spec=spec)


def assumed(reading: Reading) -> tuple[str, ...]:
    """The treatment of leftovers, where `started` decided it: options say `none` with dynamic batches alone; and of the
    rollouts of a critic's warm-up."""
    assert reading.spec is not None, "what is not read is not asked"
    critic, own = reading.spec.critic, settings_in(reading)
    decided = reading.spec.optimizer_step.step_may_span == "none" and not own.sizes.dynamic
    warms_up = critic is not None and critic.warmup_rollouts > 0 and own[FREEZING] >= 0
    return (*([SAID] if decided else []), *([FORGOTTEN] if warms_up else []))


PLANNED = (
    "rollout.prompts_per_rollout",
    "rollout.prompts_per_generation_batch",
    "optimizer_step.",
    "loss.",
    "advantage.",
    "order.",
    "horizon.",
    "staleness.",
    "open_terms",
    *SET_IN_CRITIC,
)
"""Canonical fields (or their beginnings) that the plan, the weights and the driver of `enforce` bring about. An open
term that `started` does not settle is refused before."""
SETTABLE = (
    "objective.ratio_level",
    "objective.clip_low",
    "objective.clip_high",
    "objective.dual_clip",
    "objective.entropy_coefficient",
    "objective.kl_coefficient",
    "objective.kl_placement",
    "objective.kl_estimator",
)
"""Canonical fields that the training processes set."""


def settings_of(request: Request) -> tuple[dict[str, Any], dict[str, str]]:
    """Settings of the training processes (see `engine.OpenRlhfEngineLayer`), and what stays different by canonical
    field."""
    from batchbridge_openrlhf.engine import KL_COEFFICIENT  # as everything that acts on a run, once there is one

    spec, own = request.spec, own_spec(request)
    objective = spec.objective
    settings: dict[str, Any] = {
        "loss.token_level_loss": spec.loss.policy.aggregation == "token_mean",
        "loss.policy_loss_type": "gspo" if objective.ratio_level == "sequence" else "ppo",
        "loss.clip_eps_low": 1.0 if objective.clip_low is None else objective.clip_low,
        "loss.clip_eps_high": OFF if objective.clip_high is None else objective.clip_high,
        "loss.dual_clip": objective.dual_clip,
    }
    if objective.entropy_coefficient != own.objective.entropy_coefficient:
        settings["actor.entropy_coef"] = objective.entropy_coefficient or None
    if "loss" in (objective.kl_placement, own.objective.kl_placement):
        settings[KL_COEFFICIENT] = (objective.kl_coefficient or 0.0) if objective.kl_placement == "loss" else 0.0
        if objective.kl_estimator in ESTIMATORS:
            settings |= {"algo.kl.estimator": objective.kl_estimator, "algo.kl.unbiased_gradient": False}
    have, left = {path: value for path, value, _ in walk(own)}, {}
    for path, want, _ in walk(spec):
        brought = path in SETTABLE or path.startswith(("topology.", "micro_batch.", *PLANNED))
        if want != have.get(path) and not brought:
            left[path] = f"{want} in the requested spec, {have.get(path)} in the trainer"
    if spec.rollout.group_filter != "none" and spec != own:
        bounds = "the bounds of algo.dynamic_filtering_range in the trainer"
        left["rollout.group_filter"] = f"{spec.rollout.group_filter} in the requested spec, {bounds}"
    named = {path for path, _, _ in walk(spec)}
    left |= {
        path: f"open in the requested spec, {value} in the trainer" for path, value in have.items() if path not in named
    }
    return settings, left


HELD = ("samples_generator", "experience_maker", "actor_model_group")
"""Objects of a `PPOTrainer` whose methods are replaced, too."""
OBSERVED = ("critic", "asynchronous", "sequence_parallel", "tensor_parallel")
"""Features that cannot even be observed: completions are not told apart there, or have no weights of their own."""


def ticks_of(request: Request) -> int:
    """Learning-rate ticks of the whole run: openrlhf makes both models' schedules for one number of them, so that a
    policy that a critic's warm-up keeps from training does not come to the end of its own."""
    plan, critic = request.plan, request.spec.critic
    assert plan is not None, "wrap refuses to enforce without a plan"
    if request.spec.horizon.lr_tick == "rollout":
        return plan.total_rollouts
    if critic is not None and critic.warmup_rollouts:
        plan = type(plan)(run_of_critic(request.spec), plan.dataset_size)
    return plan.total_optimizer_steps


def _patch(trainer: Any, request: Request, patches: Patches, version: str) -> Patched:
    from batchbridge.kit.workers import orders_of  # `check` imports this module, and has no workers

    enforces = request.mode == "enforce"
    settings, left = settings_of(request) if enforces else ({}, {})
    ticks = ticks_of(request) if enforces else None
    orders = orders_of(request, version, ticks=ticks, settings=settings)
    patched = (_patch_worker if is_worker(trainer) else _patch_driver)(trainer, request, patches, orders)
    for name, value in settings.items():
        patches.note(name, what=f"{value} in every training process", why="the requested spec")
    return dataclasses.replace(patched, left_different=left)


def _patch_worker(trainer: Any, request: Request, patches: Patches, orders: Orders) -> Patched:
    if isinstance(request.plan, CandidatePlan):
        reason = "rewards decide which prompts fill a rollout, and no training process sees what was dropped"
        raise CannotAttach({"group_filter": f"{reason}: wrap the PPOTrainer"})
    if request.spec.critic is not None:
        reason = "the critic is trained in processes of its own, which this trainer does not know: wrap the PPOTrainer"
        raise CannotAttach({"critic": reason})
    import torch

    from batchbridge_openrlhf.engine import OpenRlhfEngineLayer

    shared = [orders.start_id]  # one start of all processes, which are all wrapped
    torch.distributed.broadcast_object_list(shared, src=0)
    layer = OpenRlhfEngineLayer(trainer, dataclasses.replace(orders, start_id=shared[0]), patches)
    layer.attach()
    return Patched(detach=layer.close, probe=layer.probe)


def _patch_driver(trainer: Any, request: Request, patches: Patches, orders: Orders) -> Patched:
    from batchbridge_openrlhf.candidates import CandidateDriver
    from batchbridge_openrlhf.driver import OpenRlhfDriver, check_ranks
    from batchbridge_openrlhf.observe import OpenRlhfObserver

    if request.mode != "enforce":
        return Patched(detach=OpenRlhfObserver(trainer, request, orders, patches).detach)
    check_ranks(trainer)
    kind = CandidateDriver if isinstance(request.plan, CandidatePlan) else OpenRlhfDriver
    return Patched(detach=kind(trainer, request, orders, patches).detach)


def _prompts(trainer: Any) -> Sequence[str] | None:
    """The prompts of the driver's data set, in which each is a text. Source: openrlhf 0.11.2 PromptDataset."""
    loader = None if is_worker(trainer) else getattr(trainer, "prompts_dataloader", None)
    prompts: Sequence[str] | None = getattr(getattr(loader, "dataset", None), "prompts", None)
    return prompts


RUNTIME = Runtime(
    framework="openrlhf",
    version=lambda trainer: batchbridge.kit.versions.version("openrlhf"),
    code=CODE,
    parts=lambda trainer: [trainer, *(getattr(trainer, name) for name in HELD if hasattr(trainer, name))],
    refusals=REFUSALS,
    always=OBSERVED,
    started=started,
    assumes=assumed,
    training=lambda trainer: is_inside(trainer, "fit", "ppo_train", of=("openrlhf",)),
    # Training processes are wrapped together; the driver is one.
    gather=lambda trainer, value: values_of_all_ranks(value) if is_worker(trainer) else [value],
    prompts=_prompts,
    patch=_patch,
)


SAID = (
    "completions of a rollout that fill no optimizer step are a shorter step of their own, where openrlhf trains them "
    "in the next one's first step; a specification (--spec) may drop them (step_may_span none, last_optimizer_step "
    "drop)"
)


def settled(spec: Spec, prompts: int | None) -> Spec:
    """The specification whose steps end with their pass over a rollout, where some would draw from two rollouts or a
    critic's warm-up ends between them; else `spec`.

    Also `spec`: where no rollout fills a step. Steps of one rollout each would then be more and smaller ones than
    openrlhf's, and another run. prompts: of the dataset; None: any number.
    """
    rollout, step = spec.rollout, spec.optimizer_step
    if step.step_may_span != "run" or not rollout.prompts_per_rollout or not step.completions_per_step:
        return spec
    group, size = rollout.completions_per_prompt, step.completions_per_step
    whole = rollout.prompts_per_rollout if prompts is None else min(rollout.prompts_per_rollout, prompts)
    short = spec.order.last_rollout == "short"
    last = 1 if prompts is None else prompts % rollout.prompts_per_rollout
    left = [rollout.prompts_per_rollout, *([last] if short else [])]
    crosses = any(count * group * step.passes_per_rollout % size for count in left)
    warms_up = spec.critic is not None and spec.critic.warmup_rollouts > 0
    if not (crosses or warms_up) or whole * group < size:
        return spec
    return spec.replace(**{"optimizer_step.step_may_span": "none", "order.last_optimizer_step": "short"})
