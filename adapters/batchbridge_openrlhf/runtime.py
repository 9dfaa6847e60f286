"""Attaching to OpenRLHF's trainers: `PPOTrainer`, the driver of a run of the command line, and `ActorPPOTrainer`, what
each training process has, for people who build the processes themselves."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import batchbridge.kit.versions  # `check` imports this module, and importlib.metadata brings email and sockets
from batchbridge import CannotAttach, Reading, Source, Spec
from batchbridge.kit import CandidatePlan, Context, Request, run_of_critic, walk
from batchbridge.kit.lifecycle import Patched, Runtime, is_inside, values_of_all_ranks
from batchbridge.kit.patches import Patches
from batchbridge.kit.ranks import steps_cross_rollouts
from batchbridge.kit.refusals import Refusal, never, own_spec
from batchbridge.kit.versions import readable
from batchbridge.kit.workers import Orders, orders_of
from batchbridge_openrlhf.critic_refusals import CRITIC, SET_IN_CRITIC
from batchbridge_openrlhf.critic_words import FORGOTTEN, KEPT
from batchbridge_openrlhf.facts import settings_in
from batchbridge_openrlhf.given import Running
from batchbridge_openrlhf.leftovers import SAID, settled
from batchbridge_openrlhf.proven import CODE
from batchbridge_openrlhf.settings import FREEZING, NEWEST, Option, defaults_of, is_idle, options_of

ESTIMATORS = ("k1", "k2", "k3")
"""KL estimators whose gradient is held against the oracle, and that a like-run may ask for."""
OFF = 1e30
"""A bound that is never reached, where a spec has none."""
AGGREGATIONS = ("token_mean", "sequence_mean")


def is_driver(trainer: object) -> bool:
    """Whether `trainer` is a `PPOTrainer`, inside its Ray actor."""
    return _has_base(trainer, "openrlhf.trainer.ppo_trainer", "BasePPOTrainer")


def is_worker(trainer: object) -> bool:
    """Whether `trainer` is an `ActorPPOTrainer`."""
    return _has_base(trainer, "openrlhf.trainer.ray.ppo_actor", "ActorPPOTrainer")


def _has_base(trainer: object, module: str, name: str) -> bool:
    return any(base.__module__ == module and base.__name__ == name for base in type(trainer).__mro__)


def source_of(trainer: Any) -> tuple[Source, Context]:
    """The trainer's arguments, its world size, and its number of prompts. An `ActorPPOTrainer` has no prompts: there it
    is the attribute `dataset_size`, which whoever builds it sets."""
    version = batchbridge.kit.versions.version("openrlhf")
    known = readable(version, NEWEST)
    options, defaults = options_of(known), defaults_of(known)
    given = {
        name: _as_given(options[name], value)
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
    return Source(values=given, native=Running()), context


def _as_given(option: Option, value: Any) -> Any:
    """A value as the parser takes it: the program splits some texts at commas, and makes pairs of numbers."""
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value)) if option.kind == "str" else list(value)
    return value


def _leaves(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in vars(node).items():
        if hasattr(value, "__dict__"):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _kl_estimator(spec: Spec) -> str | None:
    return spec.objective.kl_estimator if spec.objective.kl_placement == "loss" else None


PROVEN_CORRECTIONS = (
    *("token_truncate", "token_mask", "sequence_geometric_mask"),
    *("sequence_binary_kl_mask", "token_tv_mask", "sequence_tv_mask"),
)
"""Corrections towards the sampler whose gradient is held against the oracle, by the words of `meaning`."""


def _unproven_correction(request: Request) -> bool:
    named = own_spec(request).objective.sampler_correction
    return named is not None and named.partition(" ")[0] not in PROVEN_CORRECTIONS


def _tensor_parallel_with_more(reading: Reading) -> bool:
    own = settings_in(reading)
    more = (
        own["ds.zero_stage"] == 3
        or own["ds.ring_attn_size"] > 1
        or own["data.max_images_per_prompt"] > 0
        or own["algo.advantage.estimator"] == "gae"
    )
    return bool(own["ds.tensor_parallel_size"] > 1 and more)


def _observed_in_vain(reading: Reading) -> bool:
    """Whether it is an asynchronous run whose ledger could not say which weights generated a completion that is
    trained."""
    own = settings_in(reading)
    mixed = own["train.partial_rollout_enable"] or own["algo.advantage.estimator"] == "gae"
    return bool(own["train.async_enable"] and mixed)


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
    """What becomes of leftovers, where `started` decided it: options say `none` with dynamic batches alone; and of the
    rollouts of a critic's warm-up."""
    assert reading.spec is not None, "what is not read is not asked"
    critic, own = reading.spec.critic, settings_in(reading)
    decided = reading.spec.optimizer_step.step_may_span == "none" and not own.sizes.dynamic
    warms_up = critic is not None and critic.warmup_rollouts > 0 and own[FREEZING] >= 0
    return (*([SAID] if decided else []), *([FORGOTTEN] if warms_up else []))


REFUSALS: tuple[Refusal, ...] = (
    *CRITIC,
    Refusal(
        "batch_scale",
        "openrlhf whitens advantages over every token of the rollout; the spec takes the deviation over completions, "
        "or the trainer's estimator is another one",
        lambda args, request: (
            request.spec.advantage.scale == "batch" and request.spec.advantage != own_spec(request).advantage
        ),
        remedy="algo.advantage.estimator group_norm",
    ),
    Refusal(
        "advantage_with_kl",
        "the spec's advantages are another rule's than the trainer's, and the KL penalty is inside of them: openrlhf "
        "adds it per token",
        lambda args, request: (
            request.spec.advantage != own_spec(request).advantage and request.spec.objective.kl_placement == "reward"
        ),
    ),
    Refusal(
        "asynchronous",
        "train.async_enable trains on what has arrived: timing decides. It can be observed without "
        "train.partial_rollout_enable, which mixes versions of the weights in one completion, and without a critic",
        lambda args, request: (
            _observed_in_vain(request.reading) if request.mode == "observe" else bool(args.train.async_enable)
        ),
        configured=lambda reading: bool(settings_in(reading)["train.async_enable"]),
        remedy="leave train.async_enable out",
    ),
    Refusal(
        "staleness",
        "the spec and the trainer differ in how far generation runs ahead: set train.async_enable as it says",
        lambda args, request: request.spec.staleness != own_spec(request).staleness,
    ),
    Refusal(
        "group_filter",
        "the spec and the trainer filter groups differently: set algo.dynamic_filtering_enable, and its range",
        lambda args, request: request.spec.rollout.group_filter != own_spec(request).rollout.group_filter,
    ),
    Refusal(
        "agent",
        "train.agent_func_path with data.max_images_per_prompt: an environment may show images between a completion's "
        "own tokens; not proven",
        lambda args, request: bool(args.train.agent_func_path) and args.data.max_images_per_prompt > 0,
        configured=lambda reading: (
            bool(settings_in(reading)["train.agent_func_path"])
            and settings_in(reading)["data.max_images_per_prompt"] > 0
        ),
        remedy="data.max_images_per_prompt 0, or leave train.agent_func_path out",
    ),
    Refusal(
        "ema",
        "train.enable_ema moves its average by micro-batches that openrlhf counts itself; not proven",
        lambda args, request: bool(args.train.enable_ema),
        configured=lambda reading: bool(settings_in(reading)["train.enable_ema"]),
        remedy="leave train.enable_ema out",
    ),
    Refusal(
        "adaptive_kl",
        "algo.kl.target changes the KL coefficient while the run goes on",
        lambda args, request: args.algo.kl.target is not None,
        configured=lambda reading: settings_in(reading)["algo.kl.target"] is not None,
        remedy="leave algo.kl.target out",
    ),
    Refusal(
        "sequence_parallel",
        "a critic with ds.ring_attn_size above 1 is not proven",
        lambda args, request: args.ds.ring_attn_size > 1 and args.algo.advantage.estimator == "gae",
        configured=lambda reading: (
            settings_in(reading)["ds.ring_attn_size"] > 1 and settings_in(reading)["algo.advantage.estimator"] == "gae"
        ),
        remedy="ds.ring_attn_size 1",
    ),
    Refusal(
        "tensor_parallel",
        "ds.tensor_parallel_size above 1 with ZeRO-3, ring attention, images or a critic: under ZeRO-3 transformers "
        "(5.15.0) does not load a model whose weights deepspeed cuts; the others are not proven",
        lambda args, request: (
            args.ds.tensor_parallel_size > 1
            and (
                args.ds.zero_stage == 3
                or args.ds.ring_attn_size > 1
                or args.data.max_images_per_prompt > 0
                or args.algo.advantage.estimator == "gae"
            )
        ),
        configured=lambda reading: _tensor_parallel_with_more(reading),
        remedy="ds.tensor_parallel_size 1, or ds.zero_stage 2 with neither of the others",
    ),
    Refusal(
        "fp16",
        "the fp16 loss scaler leaves steps out on its own; use ds.param_dtype bf16",
        lambda args, request: args.ds.param_dtype == "fp16",
        configured=lambda reading: settings_in(reading)["ds.param_dtype"] == "fp16",
    ),
    Refusal(
        "router_loss",
        "actor.aux_loss_coef: the router's loss is a mean per micro-batch and depends on the split; "
        'allow=("router_loss",) accepts that',
        lambda args, request: args.actor.aux_loss_coef > 1e-8,
        allowable=True,
        configured=lambda reading: settings_in(reading)["actor.aux_loss_coef"] > 1e-8,
        remedy="actor.aux_loss_coef 0",
    ),
    Refusal(
        "sampler_correction",
        "a correction by the binary KL divergence of single tokens leaves out tokens on which policy and engine agree: "
        "in float32 their divergence may come out below 0, which openrlhf takes for out of bounds (0.11.2); "
        'allow=("sampler_correction",) accepts it as openrlhf computes it',
        lambda args, request: _unproven_correction(request),
        allowable=True,
        remedy="algo.advantage.is_correction_level seq, or algo.advantage.is_correction_gating tv or ratio",
    ),
    Refusal(
        "other_correction",
        "the spec corrects towards the sampler otherwise than the trainer's own options do; set "
        "algo.advantage.is_correction_* as it says (before 0.11.2 is_correction_enable, is_correction_type)",
        lambda args, request: (
            request.spec.objective.sampler_correction != own_spec(request).objective.sampler_correction
        ),
    ),
    Refusal(
        "surrogate",
        "openrlhf's losses are ppo and gspo (ppo with a ratio over sequences)",
        lambda args, request: request.spec.objective.surrogate != "ppo",
    ),
    Refusal(
        "sequence_ratio",
        "openrlhf averages the loss over sequences where the ratio is the sequence's; the spec averages over tokens",
        lambda args, request: (
            request.spec.objective.ratio_level == "sequence" and request.spec.loss.policy.aggregation != "sequence_mean"
        ),
    ),
    Refusal(
        "aggregation",
        f"openrlhf's losses aggregate as {', '.join(AGGREGATIONS)}",
        lambda args, request: request.spec.loss.policy.aggregation not in AGGREGATIONS,
    ),
    Refusal(
        "denominator_scope",
        "only weights at optimizer-step scope are enforced: any other scope makes the gradient depend on the split",
        lambda args, request: request.spec.loss.policy.denominator_scope != "optimizer_step",
    ),
    Refusal(
        "loss_per_term",
        "openrlhf averages the KL and entropy terms over the step's tokens, whatever the policy term does; the spec "
        "gives them other weights",
        lambda args, request: any(
            coefficient and (term or request.spec.loss.policy).aggregation != "token_mean"
            for term, coefficient in (
                (request.spec.loss.kl, _kl_estimator(request.spec) and request.spec.objective.kl_coefficient),
                (request.spec.loss.entropy, request.spec.objective.entropy_coefficient),
            )
        ),
    ),
    Refusal(
        "kl_placement",
        "the spec and the trainer put the KL penalty in different places (none, reward, loss): what the loss needs is "
        "computed where the trainer's own options say it",
        lambda args, request: (
            (
                bool(request.spec.objective.kl_coefficient)
                and request.spec.objective.kl_placement != own_spec(request).objective.kl_placement
            )
            or (
                own_spec(request).objective.kl_placement == "reward"
                and request.spec.objective.kl_coefficient != own_spec(request).objective.kl_coefficient
            )
        ),
    ),
    Refusal(
        "kl_estimator",
        f"proven against the oracle are {', '.join(ESTIMATORS)}; "
        'allow=("kl_estimator",) accepts the trainer\'s own (algo.kl.unbiased_gradient)',
        lambda args, request: _kl_estimator(request.spec) not in (None, *ESTIMATORS),
        allowable=True,
    ),
    Refusal(
        "old_logprobs",
        "openrlhf scores a rollout before it trains on it; the spec takes the ratio over something else",
        lambda args, request: request.spec.objective.old_logprobs != "rollout_start",
    ),
    Refusal(
        "truncated_completions",
        "the spec masks or drops completions that were cut off; openrlhf trains on them",
        lambda args, request: request.spec.rollout.truncated_completions != "keep",
    ),
    Refusal(
        "group_size",
        "the spec has another number of completions per prompt; set rollout.n_samples_per_prompt",
        lambda args, request: request.spec.rollout.completions_per_prompt != args.rollout.n_samples_per_prompt,
        configured=never,
    ),
    Refusal(
        "step_crosses_rollouts",
        "some optimizer step would draw from two rollouts: no rollout fills one (rollout.batch_size x "
        "rollout.n_samples_per_prompt completions below train.batch_size, or fewer prompts), or the specification asks "
        "for it. Give rollouts of at least train.batch_size completions, or a specification whose "
        "optimizer_step.step_may_span is none",
        lambda args, request: request.plan is not None and steps_cross_rollouts(request.plan),
    ),
    Refusal(
        "no_step",
        "the plan has no optimizer step: fewer prompts than one rollout takes, no pass over it, or a critic's warm-up "
        "that is as long as the run",
        lambda args, request: request.plan is not None and request.plan.total_optimizer_steps == 0,
    ),
)

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
    """What the training processes set (see `engine.EngineLayer`), and what stays different by canonical field."""
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
"""What cannot even be observed: completions are not told apart there, or have no weights of their own."""


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

    from batchbridge_openrlhf.engine import EngineLayer

    shared = [orders.start_id]  # one start of all processes, which are all wrapped
    torch.distributed.broadcast_object_list(shared, src=0)
    layer = EngineLayer(trainer, dataclasses.replace(orders, start_id=shared[0]), patches)
    return Patched(detach=layer.close, probe=layer.probe)


def _patch_driver(trainer: Any, request: Request, patches: Patches, orders: Orders) -> Patched:
    from batchbridge_openrlhf.candidates import CandidateDriver
    from batchbridge_openrlhf.driver import Driver, check_ranks
    from batchbridge_openrlhf.observe import Observer

    if request.mode != "enforce":
        return Patched(detach=Observer(trainer, request, orders, patches).detach)
    check_ranks(trainer)
    kind = CandidateDriver if isinstance(request.plan, CandidatePlan) else Driver
    return Patched(detach=kind(trainer, request, orders, patches).detach)


RUNTIME = Runtime(
    framework="openrlhf",
    version=lambda trainer: batchbridge.kit.versions.version("openrlhf"),
    code=CODE,
    parts=lambda trainer: [trainer, *(getattr(trainer, name) for name in HELD if hasattr(trainer, name))],
    refusals=REFUSALS,
    always=OBSERVED,
    started=started,
    assumes=assumed,
    subject=lambda trainer: trainer.args,
    training=lambda trainer: is_inside(trainer, "fit", "ppo_train"),
    # Training processes are wrapped together; the driver is one.
    gather=lambda trainer, value: values_of_all_ranks(value) if is_worker(trainer) else [value],
    patch=_patch,
)
