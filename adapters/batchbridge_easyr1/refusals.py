"""Reasons for which `wrap` does not take a run of EasyR1's."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from batchbridge import Reading, Spec
from batchbridge.kit import Request, refused
from batchbridge.kit.model_files import ASSUMED, images_of
from batchbridge.kit.refusals import Refusal, common, is_on, never, own_spec, setting
from batchbridge.kit.token_budgets import cut_of, objection
from batchbridge.kit.versions import installed
from batchbridge.kit.writing import Problems
from batchbridge_easyr1.enforced import AVERAGED
from batchbridge_easyr1.meaning import KL_ESTIMATORS, LOSS_TYPES
from batchbridge_easyr1.run import Run
from batchbridge_easyr1.settings import ACTOR, ESTIMATOR, holds
from batchbridge_easyr1.writing import micro_batch_settings

MODEL = f"{ACTOR}model.model_path"
PROCESSORS = ("Qwen2VLProcessor", "Qwen2_5_VLProcessor", "Qwen3VLProcessor")
"""Processors of the models whose images are proven to follow their rows."""
UNSENT_FROM = "0.21"
"""The release of peft from which `get_peft_model_state_dict` finds weights by their whole names alone: EasyR1 gives it
those of one layer. Source: EasyR1 0.3.3.dev0 FSDPVLLMShardingManager._collect_lora_weights; peft 0.20.0 and 0.21.0."""


def actor(trainer: Any) -> Any:
    return trainer.config.worker.actor


def loss_type(spec: Spec) -> str | None:
    """EasyR1's word for the spec's surrogate; None where it has none."""
    level = spec.objective.ratio_level
    fitting = [name for name, row in LOSS_TYPES.items() if row[0] == (spec.objective.surrogate or "ppo")]
    return next((name for name in fitting if level in (None, LOSS_TYPES[name][1])), None)


def _hybrid(trainer: Any, request: Request) -> bool:
    return bool(0 < actor(trainer).fsdp.fsdp_size < own_spec(request).topology.world_size)


def run_of(reading: Reading) -> Run:
    """The run that a configuration is."""
    run: Run = reading.run  # type: ignore[attr-defined]  # a `RunReading` of this adapter
    return run


def _hybrid_in(reading: Reading) -> bool | None:
    size = setting(reading, f"{ACTOR}fsdp.fsdp_size", -1)
    return bool(0 < size < run_of(reading).world) if isinstance(size, int) else None


def _other_images(reading: Reading) -> bool | None:
    """Whether a model reads images and is none that is proven; None: its name does not say."""
    model = setting(reading, MODEL)
    images = images_of(model)
    if not images:
        return images
    if not _scores_any_rows(reading):
        return True
    if re.match(r"qwen(2|2\.5|3)-vl-", _last(model)):
        return False
    return None if Path(str(model)).expanduser().exists() else True


def _rows_in_parts(reading: Reading) -> bool | None:
    """Whether ranks share the tokens of rows as EasyR1's own forward cannot; None: the model's name does not say."""
    run = run_of(reading)
    return False if run[run.ulysses_key] == 1 else images_of(setting(reading, MODEL))


def _scores_any_rows(reading: Reading) -> bool:
    """Whether EasyR1's forward runs the vision tower for rows without an image in evaluation mode, too. Source: EasyR1
    0.3.2 and 0.3.3.dev0 models/transformers/qwen2_vl.py _get_input_embeds."""
    return holds(">=0.3.3.dev0", run_of(reading).version)


def assumed(reading: Reading) -> tuple[str, ...]:
    model, lora = setting(reading, MODEL), is_on(setting(reading, f"{ACTOR}model.lora.rank"))
    version = run_of(reading).version
    peft = () if lora is False or holds("<0.3.3.dev0", version) else (f"peft before {UNSENT_FROM}",)
    if model is None:
        return (ASSUMED, *peft)
    videos = images_of(model) and not re.match(r"qwen2(\.5)?-vl-", _last(model))
    return (*(("a data set without videos",) if videos else ()), *peft)


def _last(model: Any) -> str:
    """A model's name without its owner or folder."""
    return str(model).rstrip("/").rpartition("/")[2].lower()


def _has_videos(dataset: Any) -> bool:
    """Whether EasyR1 takes videos from a data set: it looks for images first. Source: EasyR1 0.3.3.dev0 RLHFDataset."""
    columns = getattr(getattr(dataset, "dataset", None), "column_names", None) or ()
    return getattr(dataset, "video_key", None) in columns and getattr(dataset, "image_key", None) not in columns


def budget(request: Request) -> tuple[dict[str, Any], Problems]:
    """The native settings of the spec's token budget, by key, and what they cannot say; none where the trainer's own
    cut is the spec's."""
    problems, own, asked = Problems(), own_spec(request), request.spec.micro_batch
    if cut_of(asked) == cut_of(own.micro_batch):
        return {}, problems
    return micro_batch_settings(own.replace(micro_batch=asked), problems), problems


def _no_budget(trainer: Any, request: Request) -> str | None:
    """The reason why the spec's micro-batches cannot be EasyR1's; None where they can, or are already."""
    settings, problems = budget(request)
    if not settings:
        return None
    if request.spec.micro_batch.tokens_per_device is None:
        return "give micro_batch.tokens_per_device; fixed sizes, and budgets of forward-only passes alone, stay its own"
    if problems:
        return "; ".join(problem.reason for problem in problems)
    if getattr(trainer, "actor_rollout_ref_wg", None) is not None:
        return (
            "its workers have started with their micro-batches; wrap before init_workers(), or set "
            "worker.actor.dynamic_batching and worker.actor.micro_batch_size_per_device_for_update in the configuration"
        )
    return objection(request.reading, settings, request.spec.micro_batch)


def _rank(trainer: Any) -> int:
    return int(getattr(getattr(actor(trainer).model, "lora", None), "rank", 0))


def _adapters_are_lost() -> bool:
    version = installed("peft")
    return version is not None and holds(f">={UNSENT_FROM}", version)


REFUSALS: tuple[Refusal, ...] = (
    Refusal(
        "critic",
        "adv_estimator gae cannot run in any version of EasyR1: the worker gives its critic another configuration than "
        "it reads, and since October 2025 its advantages test a whole batch as one truth value",
        lambda trainer, request: bool(trainer.use_critic),
        configured=lambda reading: reading.native[ESTIMATOR] == "gae",
        remedy="algorithm.adv_estimator=grpo",
    ),
    refused.value_baseline("and EasyR1's cannot run", remedy="algorithm.adv_estimator=grpo"),
    refused.batch_scale("EasyR1", remedy="algorithm.adv_estimator=grpo or rloo"),
    refused.tokens_per_device("EasyR1", _no_budget),
    refused.group_filter("algorithm.online_filtering"),
    Refusal(
        "critic_warmup",
        "trainer.critic_warmup leaves whole rollouts out of training; set it to 0",
        lambda trainer, request: trainer.config.trainer.critic_warmup > 1,
        configured=lambda reading: reading.native["trainer.critic_warmup"] > 1,
    ),
    Refusal(
        "surrogate",
        f"worker.actor.loss_type is one of {', '.join(LOSS_TYPES)} (0.3.2: default alone)",
        lambda trainer, request: (
            loss_type(request.spec) is None
            or (not hasattr(actor(trainer), "loss_type") and loss_type(request.spec) != "default")
        ),
        configured=never,
    ),
    refused.aggregation("what can be enforced:", AVERAGED),
    *common("EasyR1"),
    refused.entropy("EasyR1"),
    refused.kl_estimator(f"EasyR1's estimators are {', '.join(KL_ESTIMATORS.values())}", KL_ESTIMATORS.values()),
    Refusal(
        "adaptive_kl",
        "algorithm.kl_type adaptive moves the coefficient of the KL penalty; set it to fixed",
        lambda trainer, request: bool(trainer.use_reference_policy) and trainer.config.algorithm.kl_type != "fixed",
        configured=lambda reading: (
            not reading.native["algorithm.disable_kl"] and reading.native["algorithm.kl_type"] != "fixed"
        ),
    ),
    refused.group_size("worker.rollout.n", lambda trainer: trainer.config.worker.rollout.n),
    Refusal(
        "sequence_parallel",
        "ranks that share a row's tokens (worker.actor.ulysses_size above 1) stop in EasyR1's own forward of a model "
        "that reads images: each has a part of the tokens and all features of the images",
        lambda trainer, request: actor(trainer).ulysses_size > 1 and trainer.processor is not None,
        configured=_rows_in_parts,
        remedy="worker.actor.ulysses_size=1",
    ),
    Refusal(
        "hybrid_sharding",
        "worker.actor.fsdp.fsdp_size below the number of devices: not proven yet",
        _hybrid,
        configured=lambda reading: _hybrid_in(reading),
        remedy="worker.actor.fsdp.fsdp_size=-1",
    ),
    Refusal(
        "multi_modal",
        "images are proven with Qwen2-VL, Qwen2.5-VL and Qwen3-VL, with EasyR1 0.3.3.dev0 on; in 0.3.2 ranks wait for "
        "one that scores rows without an image",
        lambda trainer, request: (
            trainer.processor is not None
            and (type(trainer.processor).__name__ not in PROCESSORS or not _scores_any_rows(request.reading))
        ),
        configured=lambda reading: _other_images(reading),
        remedy="one of these models with a newer EasyR1, or a model that reads text only",
    ),
    Refusal(
        "videos",
        "rows with videos are proven with Qwen2-VL and Qwen2.5-VL: of Qwen3-VL EasyR1 counts the tokens of the frames "
        "that its video processor samples once more, and has its image processor make the tensors of all frames",
        lambda trainer, request: (
            type(trainer.processor).__name__ == "Qwen3VLProcessor" and _has_videos(trainer.train_dataloader.dataset)
        ),
        allowable=True,
        configured=never,
        remedy="a data set without the column data.video_key",
    ),
    Refusal(
        "lora",
        "LoRA with worker.actor.model.freeze_vision_tower is not proven: adapters in a frozen tower stay in float32 "
        "beside its bf16 weights, which FSDP does not take",
        lambda trainer, request: (
            trainer.processor is not None and bool(actor(trainer).model.freeze_vision_tower) and _rank(trainer) > 0
        ),
        allowable=True,
        configured=lambda reading: (
            is_on(setting(reading, f"{ACTOR}model.freeze_vision_tower"))
            and is_on(setting(reading, f"{ACTOR}model.lora.rank"))
            and images_of(setting(reading, MODEL))
        ),
        remedy="worker.actor.model.freeze_vision_tower=false",
    ),
    Refusal(
        "lora_rollouts",
        f"with peft {UNSENT_FROM} and later EasyR1's own function finds no adapter to send to vLLM, which would "
        "generate without them: rollouts of another policy than the one that is trained",
        lambda trainer, request: _rank(trainer) > 0 and _adapters_are_lost(),
        allowable=True,
        configured=never,
        remedy=f"pip install 'peft<{UNSENT_FROM}'",
    ),
)
