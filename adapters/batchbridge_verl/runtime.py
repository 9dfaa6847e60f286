"""Attaching to a trainer of verl: V1 (`PPOTrainerSync`, the default of 0.9) and V0 (`RayPPOTrainer`)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from batchbridge import CannotAttach, Reading, Source
from batchbridge.kit import CandidatePlan, Context, MicroBatch, Request
from batchbridge.kit.lifecycle import Patched, Runtime, is_inside
from batchbridge.kit.model_files import images_of
from batchbridge.kit.patches import Patches
from batchbridge.kit.refusals import SettableFields, own_spec, setting, split
from batchbridge.kit.token_budgets import cut_of
from batchbridge_verl.behaviour import own_rollouts
from batchbridge_verl.installed import installed
from batchbridge_verl.proven import CODE
from batchbridge_verl.refusals import OFF, REFUSALS, SAID, is_v1, loss_mode
from batchbridge_verl.settings import BY_KEY
from batchbridge_verl.sharing import in_the_way
from batchbridge_verl.terms import AGGREGATIONS, KL_NAMES
from batchbridge_verl.writing import resolved_budget_settings


def source_of(trainer: Any) -> tuple[Source, Context]:
    """The trainer's configuration with every interpolation resolved, its world size and its prompts."""
    from omegaconf import OmegaConf

    if is_v1(trainer) and not hasattr(trainer, "train_dataset"):
        trainer._init_tokenizer()
        trainer._init_dataloader()
    values = OmegaConf.to_container(trainer.config, resolve=True)
    assert isinstance(values, dict), "verl's configuration is a mapping"
    values["trainer"]["use_v1"] = is_v1(trainer)
    found = installed()
    context = Context(
        framework_version=None if found is None or found.project != "verl" else found.version,
        world_size=int(values["trainer"]["nnodes"]) * int(values["trainer"]["n_gpus_per_node"]),
        dataset_size=len(trainer.train_dataset),
    )
    # What is read, and no more: a resolved interpolation has keys below it that no table knows.
    known = {key: value for key, value in _flat(values) if key in BY_KEY or key in SAID}
    return Source(values=known), context


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _budget(request: Request) -> dict[str, Any]:
    """The native settings of the spec's token budget; none where the trainer's own cut is the spec's."""
    asked = request.spec.micro_batch
    same = cut_of(asked) == cut_of(own_spec(request).micro_batch)
    return {} if same else resolved_budget_settings(asked)


MODEL = "actor_rollout_ref.model.path"


def _assumed(reading: Reading) -> tuple[str, ...]:
    """Assumptions about a rollout's images. Source: verl 0.9.1 models/transformers/qwen2_vl.py, _get_input_embeds:
    without an image it ends."""
    return ("an image in every prompt",) if images_of(setting(reading, MODEL)) else ()


def _prompts(trainer: Any) -> Sequence[Any] | None:
    """The column that verl's own data set reads prompts from. Source: verl 0.9.1 RLHFDataset."""
    from batchbridge.kit import PromptColumn  # `check` imports this module, and reads no prompts

    dataset = getattr(trainer, "train_dataset", None)
    rows, key = getattr(dataset, "dataframe", None), getattr(dataset, "prompt_key", None)
    return None if rows is None or key is None else PromptColumn(rows, key)


ALWAYS = ("legacy_workers", "earlier_release", "critic", "distillation", "asynchronous", "initialised")
"""Refusals that hold in every mode."""
SETTABLE: SettableFields = {
    # Source: verl 0.8.0 to 0.9.1 workers/utils/losses.py, core_algos.py.
    "objective.surrogate": ("policy_loss.loss_mode", lambda value, spec: loss_mode(spec)),
    "objective.ratio_level": ("policy_loss.loss_mode", lambda value, spec: loss_mode(spec)),
    "objective.clip_low": ("clip_ratio_low", lambda value, spec: 1.0 if value is None else value),
    "objective.clip_high": ("clip_ratio_high", lambda value, spec: OFF if value is None else value),
    "objective.dual_clip": ("clip_ratio_c", lambda value, spec: OFF if value is None else value),
    "objective.kl_coefficient": ("kl_loss_coef", lambda value, spec: value or 0.0),
    "objective.kl_estimator": (
        "kl_loss_type",
        lambda value, spec: (
            "low_var_kl" if value is None else KL_NAMES[value.removesuffix("+")] + ("+" if value.endswith("+") else "")
        ),
    ),
    "objective.entropy_coefficient": ("entropy_coeff", lambda value, spec: value or 0.0),
}


def _own_rollouts(trainer: Any, request: Request) -> Callable[[], Iterator[Sequence[int]]] | None:
    """verl's own order of prompts; None where it is not known, as of a sampler that someone handed to the trainer."""
    sampler = getattr(getattr(trainer, "train_dataloader", None), "sampler", None)
    stock = type(sampler).__name__ in ("RandomSampler", "SequentialSampler")
    return own_rollouts(request.reading) if stock and type(sampler).__module__.startswith("torch") else None


def _patch(trainer: Any, request: Request, patches: Patches, version: str) -> Patched:
    # What patches a trainer is imported once there is one: `check` reads the table of refusals, too.
    from batchbridge.kit.workers import orders_of
    from batchbridge_verl.driver import VerlDriver, critic_driver

    temperature = float(trainer.config.actor_rollout_ref.rollout.temperature)
    if request.mode != "enforce":
        from batchbridge_verl.observe import VerlObserver

        told = {"native_rollouts": _own_rollouts(trainer, request), "temperature": temperature}
        VerlObserver(trainer, request, orders_of(request, version, **told), patches)
        return Patched()
    settings, left_different = settings_of(request)
    assert request.plan is not None, "wrap refuses to enforce without a plan"
    shares = request.padding != "padded" and in_the_way(trainer, request) is None
    ticks_per_rollout = request.spec.horizon.lr_tick == "rollout"
    orders = orders_of(
        request,
        version,
        ticks=request.plan.total_rollouts if ticks_per_rollout else request.plan.total_optimizer_steps,
        settings=settings,
        detached=request.spec.objective.old_logprobs == "detached",
        padding=request.padding if shares else "padded",
        temperature=temperature,
    )
    driver = VerlDriver(trainer, request, orders)
    if trainer.use_critic:
        driver.critic = critic_driver(trainer, request, orders)
    configure(trainer.config, _budget(request), patches)
    if isinstance(request.plan, CandidatePlan):
        from batchbridge_verl.candidates_v1 import VerlCandidatesV1

        VerlCandidatesV1(trainer, driver, request.plan, patches)
    elif is_v1(trainer):
        from batchbridge_verl.trainer_v1 import VerlTrainerV1

        VerlTrainerV1(trainer, driver, patches)
    else:
        from batchbridge_verl.trainer_v0 import VerlTrainerV0

        VerlTrainerV0(trainer, driver, patches)
    if shares:
        where = "in every worker" if request.padding == "free" else "in every worker whose model is proven"
        patches.note("engine", what=f"each prompt once, its completions behind it, {where}", why="padding")
    for path, (name, _) in SETTABLE.items():
        if name in settings:
            patches.note(f"actor.{name}", what=f"{settings[name]} in every worker", why=f"{path} of the requested spec")
    return Patched(left_different=left_different)


def configure(config: Any, settings: Mapping[str, Any], patches: Patches) -> None:
    """Gives a trainer's configuration other values, by dotted key; an interpolation is undone to what it was.

    Raises `AttributeError` for a key that it does not have.
    """
    for key, value in settings.items():
        *groups, name = key.split(".")
        group = functools.reduce(getattr, groups, config)
        native = _unresolved(group, name)
        setattr(group, name, value)
        undo, again = (functools.partial(setattr, group, name, one) for one in (native, value))
        patches.made(key, undo, what=f"{value}, not {native}", why="token budget of the requested spec", again=again)


def _unresolved(group: Any, name: str) -> Any:
    """A setting as the configuration has it: the text of an interpolation, not what it stands for."""
    from omegaconf import OmegaConf

    values = OmegaConf.to_container(group, resolve=False)
    if not isinstance(values, dict) or name not in values:
        raise AttributeError(f"no setting {name}")
    return values[name]


def _version(trainer: Any) -> str:
    found = installed()
    if found is None or found.project != "verl" or found.version is None:
        raise CannotAttach({"version": "the installed package `verl` is not a release of verl"})
    return found.version


def _budgets(micro: MicroBatch) -> list[int]:
    return [budget for budget in (micro.tokens_per_device, micro.forward_tokens_per_device) if budget is not None]


def settings_of(request: Request) -> tuple[dict[str, Any], dict[str, str]]:
    """Settings for the workers' actor configuration; and, by canonical field, what stays different."""
    term = request.spec.loss.policy
    native = {canonical: name for name, canonical in AGGREGATIONS.items()}
    settings, left = split(request, SETTABLE)
    micro, carried = request.spec.micro_batch, own_spec(request).carried
    longest = (carried.max_prompt_tokens or 0) + (carried.max_completion_tokens or 0)
    if _budget(request) and micro.cap == "soft" and min(_budgets(micro)) < longest:
        reason = f"verl ends the run at a completion above its budget; the longest can be {longest} tokens"
        left["micro_batch.cap"] = f"soft in the requested spec; {reason}"
    return {"loss_agg_mode": native[term.aggregation], "loss_scale_factor": term.constant, **settings}, left


RUNTIME = Runtime(
    framework="verl",
    version=_version,
    code=CODE,
    refusals=REFUSALS,
    always=ALWAYS,
    training=lambda trainer: is_inside(trainer, "fit", of=("verl",)),
    prompts=_prompts,
    patch=_patch,
    assumes=_assumed,
)
