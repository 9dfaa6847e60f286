"""Reasons for which `wrap` does not take a run of EasyR1's."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from batchbridge import Reading, Spec
from batchbridge.kit import Request, refused
from batchbridge.kit.model_files import ASSUMED, images_of
from batchbridge.kit.refusals import Refusals, common, is_on, on, own_spec, setting
from batchbridge.kit.token_budgets import cut_of, objection
from batchbridge.kit.versions import installed
from batchbridge.kit.writing import Problems
from batchbridge_easyr1.enforced import AVERAGED
from batchbridge_easyr1.meaning import KL_ESTIMATORS, LOSS_TYPES
from batchbridge_easyr1.run import EasyR1Run
from batchbridge_easyr1.settings import ACTOR, ESTIMATOR, LOSS_TYPE, holds
from batchbridge_easyr1.writing import micro_batch_settings

MODEL = f"{ACTOR}model.model_path"
FSDP_SIZE, RANK, FROZEN = f"{ACTOR}fsdp.fsdp_size", f"{ACTOR}model.lora.rank", f"{ACTOR}model.freeze_vision_tower"
SAID = frozenset({MODEL, FSDP_SIZE, RANK, FROZEN})
"""Settings that say nothing of what is trained, and that refusals look at."""
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


def run_of(reading: Reading) -> EasyR1Run:
    """The run that a configuration is."""
    run: EasyR1Run = reading.run  # type: ignore[attr-defined]  # a `RunReading` of this adapter
    return run


def _scores_any_rows(reading: Reading) -> bool:
    """Whether EasyR1's forward runs the vision tower for rows without an image in evaluation mode, too. Source: EasyR1
    0.3.2 and 0.3.3.dev0 models/transformers/qwen2_vl.py _get_input_embeds."""
    return holds(">=0.3.3.dev0", run_of(reading).version)


def assumed(reading: Reading) -> tuple[str, ...]:
    model, lora = setting(reading, MODEL), is_on(setting(reading, RANK))
    version = run_of(reading).version
    peft = () if lora is False or holds("<0.3.3.dev0", version) else (f"peft before {UNSENT_FROM}",)
    if model is None:
        return (ASSUMED, *peft)
    videos = images_of(model) and not re.match(r"qwen2(\.5)?-vl-", _last(model))
    return (*(("a data set without videos",) if videos else ()), *peft)


def _last(model: Any) -> str:
    """A model's name without its owner or folder."""
    return str(model).rstrip("/").rpartition("/")[2].lower()


def budget(request: Request) -> tuple[dict[str, Any], Problems]:
    """The native settings of the spec's token budget, by key, and what they cannot say; none where the trainer's own
    cut is the spec's."""
    problems, own, asked = Problems(), own_spec(request), request.spec.micro_batch
    if cut_of(asked) == cut_of(own.micro_batch):
        return {}, problems
    return micro_batch_settings(own.replace(micro_batch=asked), problems), problems


SETTLED = Refusals()
"""Refusals that settings, plan and request decide, of a configuration and of a trainer alike."""


@SETTLED.row(
    "critic",
    "adv_estimator gae cannot run in any version of EasyR1: the worker gives its critic another configuration than it "
    "reads, and since October 2025 its advantages test a whole batch as one truth value",
    remedy="algorithm.adv_estimator=grpo",
)
def _critic(request: Request) -> bool:
    return bool(run_of(request.reading)[ESTIMATOR] == "gae")


SETTLED.append(refused.value_baseline("and EasyR1's cannot run", remedy="algorithm.adv_estimator=grpo"))
SETTLED.append(refused.batch_scale("EasyR1", remedy="algorithm.adv_estimator=grpo or rloo"))
SETTLED.append(refused.group_filter("algorithm.online_filtering"))


@SETTLED.row("critic_warmup", "trainer.critic_warmup leaves whole rollouts out of training; set it to 0")
def _critic_warmup(request: Request) -> bool:
    return bool(run_of(request.reading)["trainer.critic_warmup"] > 1)


@SETTLED.row("surrogate", f"worker.actor.loss_type is one of {', '.join(LOSS_TYPES)} (0.3.2: default alone)")
def _surrogate(request: Request) -> bool:
    known = LOSS_TYPES if LOSS_TYPE in run_of(request.reading).native else ("default",)
    return loss_type(request.spec) not in known


SETTLED.append(refused.aggregation("what can be enforced:", AVERAGED))
SETTLED.extend(common("EasyR1", references=lambda request: run_of(request.reading).has_kl))
SETTLED.append(refused.entropy("EasyR1"))
SETTLED.append(
    refused.kl_estimator(f"EasyR1's estimators are {', '.join(KL_ESTIMATORS.values())}", KL_ESTIMATORS.values())
)


@SETTLED.row(
    "adaptive_kl",
    "algorithm.kl_type adaptive moves the coefficient of the KL penalty; set it to fixed",
)
def _adaptive_kl(request: Request) -> bool:
    return run_of(request.reading).has_kl and run_of(request.reading)["algorithm.kl_type"] != "fixed"


SETTLED.append(refused.group_size("worker.rollout.n"))


@SETTLED.row(
    "hybrid_sharding",
    "worker.actor.fsdp.fsdp_size below the number of devices: not proven yet",
    remedy="worker.actor.fsdp.fsdp_size=-1",
)
def _hybrid_sharding(request: Request) -> bool | None:
    size = setting(request.reading, FSDP_SIZE, -1)
    return 0 < size < run_of(request.reading).world if isinstance(size, int) else None


LIVE = Refusals()
"""Refusals of what only a trainer shows: its workers, the model's processor, its data set, the peft beside it."""


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


LIVE.append(refused.tokens_per_device("EasyR1", _no_budget))


def _shared_rows(request: Request, images: bool | None) -> bool | None:
    run = run_of(request.reading)
    if run[run.ulysses_key] == 1:
        return False
    return images


@LIVE.live(
    "sequence_parallel",
    "ranks that share a row's tokens (worker.actor.ulysses_size above 1) stop in EasyR1's own forward of a model that "
    "reads images: each has a part of the tokens and all features of the images",
    foreseen=lambda request: _shared_rows(request, images_of(setting(request.reading, MODEL))),
    remedy="worker.actor.ulysses_size=1",
)
def _sequence_parallel(trainer: Any, request: Request) -> bool | None:
    return _shared_rows(request, trainer.processor is not None)


def _other_images(request: Request) -> bool | None:
    """Whether a model reads images and is not one that is proven; None: its name does not say."""
    model = setting(request.reading, MODEL)
    images = images_of(model)
    if not images:
        return images
    if not _scores_any_rows(request.reading):
        return True
    if re.match(r"qwen(2|2\.5|3)-vl-", _last(model)):
        return False
    return None if Path(str(model)).expanduser().exists() else True


@LIVE.live(
    "multi_modal",
    "images are proven with Qwen2-VL, Qwen2.5-VL and Qwen3-VL, with EasyR1 0.3.3.dev0 on; in 0.3.2 ranks wait for one "
    "that scores rows without an image",
    foreseen=_other_images,
    remedy="one of these models with a newer EasyR1, or a model that reads text only",
)
def _multi_modal(trainer: Any, request: Request) -> bool:
    proven = type(trainer.processor).__name__ in PROCESSORS and _scores_any_rows(request.reading)
    return trainer.processor is not None and not proven


@LIVE.live(
    "videos",
    "rows with videos are proven with Qwen2-VL and Qwen2.5-VL: of Qwen3-VL EasyR1 counts the tokens of the frames that "
    "its video processor samples once more, and has its image processor make the tensors of all frames",
    allowable=True,
    remedy="a data set without the column data.video_key",
)
def _videos(trainer: Any, request: Request) -> bool:
    """EasyR1 takes videos from a data set where it finds no images. Source: EasyR1 0.3.3.dev0 RLHFDataset."""
    dataset = trainer.train_dataloader.dataset
    columns = getattr(getattr(dataset, "dataset", None), "column_names", None) or ()
    shown = getattr(dataset, "video_key", None) in columns and getattr(dataset, "image_key", None) not in columns
    return type(trainer.processor).__name__ == "Qwen3VLProcessor" and shown


def _frozen_tower(request: Request, images: bool | None) -> bool | None:
    return on(request, FROZEN) and on(request, RANK) and images


@LIVE.live(
    "lora",
    "LoRA with worker.actor.model.freeze_vision_tower is not proven: adapters in a frozen tower stay in float32 beside "
    "its bf16 weights, which FSDP does not take",
    allowable=True,
    foreseen=lambda request: _frozen_tower(request, images_of(setting(request.reading, MODEL))),
    remedy="worker.actor.model.freeze_vision_tower=false",
)
def _lora(trainer: Any, request: Request) -> bool | None:
    return _frozen_tower(request, trainer.processor is not None)


@LIVE.live(
    "lora_rollouts",
    f"with peft {UNSENT_FROM} and later EasyR1's own function finds no adapter to send to vLLM, which would generate "
    "without them: rollouts of another policy than the one that is trained",
    allowable=True,
    remedy=f"pip install 'peft<{UNSENT_FROM}'",
)
def _lora_rollouts(trainer: Any, request: Request) -> bool:
    version = installed("peft")
    return on(request, RANK) is not False and version is not None and holds(f">={UNSENT_FROM}", version)


def _registered() -> Mapping[str, Any]:
    """Estimators by name. Source: EasyR1 0.3.2 to 0.3.3.dev0 core_algos.register_adv_estimator."""
    found: Mapping[str, Any] = getattr(sys.modules.get("verl.trainer.core_algos"), "ADV_ESTIMATOR_MAP", {})
    return found


LIVE.append(refused.own_estimator("EasyR1", ESTIMATOR, _registered, "verl"))

REFUSALS = (*SETTLED, *LIVE)
