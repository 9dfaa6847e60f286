"""Reasons for which `wrap` does not take learners of Open-Instruct's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from batchbridge import Reading, Spec
from batchbridge.kit import CandidatePlan, Request, refused
from batchbridge.kit.refusals import Refusal, common, is_on, never, only_asked, own_spec, setting
from batchbridge.kit.token_budgets import cut_of
from batchbridge_open_instruct import settings
from batchbridge_open_instruct.engine import AGGREGATIONS
from batchbridge_open_instruct.learners import Learner
from batchbridge_open_instruct.meaning import KL_ESTIMATORS

LOSSES = {"ppo": "dapo", "cispo": "cispo"}
"""Surrogate to `loss_fn`."""


@dataclass(frozen=True)
class View:
    """The objects that refusals look at. args: the learner's own."""

    args: Any
    config: Any
    learner: Learner

    @property
    def use_reference_policy(self) -> bool:
        """Whether a reference policy is loaded; see `refusals.common`."""
        return self.learner.references


def _whole_rollout(spec: Spec) -> bool:
    return spec.optimizer_step.completions_per_step == spec.completions_per_rollout


def _clock(view: View, request: Request) -> bool:
    plan, args = request.plan, view.args
    return plan is not None and (
        plan.total_rollouts != args.num_training_steps
        or plan.total_optimizer_steps != args.num_training_steps * args.num_epochs
        or request.spec.horizon.lr_tick != own_spec(request).horizon.lr_tick
    )


def _scores_otherwise(reading: Reading) -> bool:
    return reading.spec is not None and reading.spec.objective.old_logprobs not in (None, "rollout_start")


def _rho(reading: Reading) -> bool | None:
    if not setting(reading, "use_rho_correction", False):
        return False
    masks = {is_on(setting(reading, f"rho_mask_{name}")) for name in ("sequence_level", "tv_divergence")}
    return True if True in masks else None if None in masks else False


NAMED_SO = ("hybrid", "qwen3.5", "qwen3-next", "mamba", "jamba", "falcon-h1", "granite-4", "nemotron-h", "rwkv", "lfm2")
"""Words in names of models that have such layers."""


def script(reading: Reading) -> str:
    return str(reading.native.get(settings.SCRIPT, settings.GRPO_FAST))


def _named_recurrent(reading: Reading) -> bool:
    name = str(setting(reading, "model_name_or_path") or "").lower()
    return any(word in name for word in NAMED_SO)


def _named_otherwise(reading: Reading) -> bool:
    return _named_recurrent(reading) or "olmoe" in str(setting(reading, "model_name_or_path") or "").lower()


def _shares_nothing(reading: Reading) -> bool:
    """Whether rows are whole: grpo.py never reads sequence_parallel_size."""
    return setting(reading, "sequence_parallel_size", 1) == 1 or script(reading) == settings.GRPO


def _in_pieces(view: View, request: Request) -> bool:
    """Whether rows are cut over ranks in a way that is not followed."""
    if _shares_nothing(request.reading):
        return False
    if request.mode != "enforce" or view.args.per_device_train_batch_size != 1 or view.learner.strange_layers:
        return True
    # Another attention is told by a mask where documents end, which Ulysses drops.
    policy = view.learner.trainer.policy.config.get_text_config()
    return not str(policy._attn_implementation).startswith("flash_attention")


def _said_in_pieces(reading: Reading) -> bool:
    """The condition `_in_pieces`, as far as a configuration says it: attention left open is the machine's choice."""
    if _shares_nothing(reading):
        return False
    slow = str(setting(reading, "attn_implementation") or "flash").lower() in ("torch", "te")
    return setting(reading, "per_device_train_batch_size", 1) != 1 or slow or _named_recurrent(reading)


REFUSALS: tuple[Refusal, ...] = (
    Refusal(
        "script",
        "BatchBridge works with grpo_fast.py and grpo.py alone",
        only_asked,
        configured=lambda reading: script(reading) not in (settings.GRPO_FAST, settings.GRPO),
        remedy="start grpo_fast.py",
    ),
    Refusal(
        "mini_batches",
        "num_mini_batches above 1 cuts each rank's packed rows, so lengths and ranks decide what a step trains; set it "
        "to 1, and a spec whose optimizer step is the whole rollout",
        lambda view, request: view.args.num_mini_batches != 1 or not _whole_rollout(request.spec),
        configured=lambda reading: setting(reading, "num_mini_batches", 1) != 1,
    ),
    Refusal(
        "tokens_per_device",
        "open-instruct packs rows of pack_length tokens itself, and its learner is built for that: no other budget can "
        "be handed to it; set pack_length, and per_device_train_batch_size (rows of a micro-batch)",
        lambda view, request: cut_of(request.spec.micro_batch) != cut_of(own_spec(request).micro_batch),
    ),
    Refusal(
        "passes",
        "the spec passes over a rollout another number of times; set num_epochs",
        lambda view, request: request.spec.optimizer_step.passes_per_rollout != view.args.num_epochs,
        configured=never,
    ),
    Refusal(
        "staleness",
        "what can be enforced is generation with the weights that are trained next (staleness.mode sync), or with "
        "those of a number of rollouts before at most (bounded): ask for one of them",
        lambda trainer, request: (
            not (
                request.spec.staleness.mode == "sync"
                or (
                    request.spec.staleness.mode == "bounded"
                    and request.spec.staleness.unit == "rollouts"
                    and request.spec.staleness.maximum is not None
                )
            )
        ),
    ),
    refused.group_filter("active_sampling and filter_zero_std_samples"),
    Refusal(
        "loss_denominator",
        "a constant divides a step's loss whatever the filter leaves of it, and the spec's counts what is left",
        lambda view, request: (
            request.spec.rollout.group_filter == "drop_zero_variance"
            and request.spec.loss.policy.aggregation == "sequence_sum_over_constant"
        ),
        remedy="set loss_denominator to token, or active_sampling, which replaces what is dropped",
    ),
    Refusal(
        "no_resampling",
        "no_resampling_pass_rate leaves prompts out that were solved before; what can be enforced is a plan whose "
        "rollouts are filled while the run goes on (staleness.mode bounded, or a group filter)",
        lambda view, request: (
            view.config.no_resampling_pass_rate is not None
            and not (request.mode == "enforce" and isinstance(request.plan, CandidatePlan))
        ),
        configured=never,  # what a command line means is bounded
        remedy="leave it open, or follow what the command itself means",
    ),
    Refusal(
        "mask_truncated_completions",
        "it removes completions before groups are formed: groups are misaligned, or the run fails; set it to false",
        lambda view, request: bool(view.config.mask_truncated_completions),
        configured=lambda reading: bool(setting(reading, "mask_truncated_completions", False)),
    ),
    Refusal(
        "sequence_parallel",
        "sequence_parallel_size above 1 cuts rows over ranks and loses targets at the cuts; what can be enforced, and "
        "nothing watched, are rows of one micro-batch each whose tokens nothing mixes but a flash attention",
        _in_pieces,
        configured=_said_in_pieces,
        remedy="set sequence_parallel_size to 1",
    ),
    Refusal(
        "recurrent_layers",
        "layers of the model carry a state along a row, and open-instruct packs completions into rows without telling "
        "such layers where one ends: completions see each other",
        lambda view, request: script(request.reading) == settings.GRPO_FAST and view.learner.strange_layers,
        allowable=True,
        configured=lambda reading: script(reading) == settings.GRPO_FAST and _named_recurrent(reading),
        remedy="take a model of attention alone",
    ),
    Refusal(
        "layers",
        "layers of the model are others than attention with a dense block behind it, and grpo.py is proven with these "
        "alone: layers of experts have a loss of their own, and recurrent ones were not run",
        lambda view, request: script(request.reading) == settings.GRPO and view.learner.strange_layers,
        configured=lambda reading: script(reading) == settings.GRPO and _named_otherwise(reading),
        remedy="take a model of attention and dense blocks alone, or start grpo_fast.py",
    ),
    refused.value_baseline("and neither script has one"),
    refused.aggregation(
        "one number divides a step's sum, so its tokens weigh alike; what can be enforced:", AGGREGATIONS
    ),
    Refusal(
        "surrogate",
        "open-instruct's losses are dapo (ppo) and cispo, their ratio is a token's, and none is clipped twice",
        lambda view, request: (
            (request.spec.objective.surrogate or "ppo") not in LOSSES
            or request.spec.objective.ratio_level == "sequence"
            or request.spec.objective.dual_clip is not None
        ),
    ),
    Refusal(
        "old_logprobs",
        "a rollout's first pass is the ratio's denominator; with several passes the spec takes another",
        lambda view, request: (
            view.args.num_epochs > 1 and request.spec.objective.old_logprobs not in (None, "rollout_start")
        ),
        configured=lambda reading: setting(reading, "num_epochs", 1) > 1 and _scores_otherwise(reading),
    ),
    Refusal(
        "sampler_correction",
        "the spec corrects towards the sampler in another way; set use_rho_correction and its bounds",
        lambda view, request: (
            request.spec.objective.sampler_correction != own_spec(request).objective.sampler_correction
        ),
    ),
    Refusal(
        "rho_by_row",
        "rho_mask_sequence_level and rho_mask_tv_divergence average over packed rows, not completions",
        lambda view, request: bool(
            view.args.use_rho_correction and (view.args.rho_mask_sequence_level or view.args.rho_mask_tv_divergence)
        ),
        configured=lambda reading: _rho(reading),
        remedy="leave rho_mask_sequence_level and rho_mask_tv_divergence out",
    ),
    refused.entropy("open-instruct"),
    refused.kl_estimator(f"open-instruct's estimators are {', '.join(KL_ESTIMATORS)}", KL_ESTIMATORS),
    refused.group_size("num_samples_per_prompt_rollout", lambda view: view.config.num_samples_per_prompt_rollout),
    Refusal(
        "prompts_per_rollout",
        "the spec has another number of prompts per rollout; set num_unique_prompts_rollout",
        lambda view, request: request.spec.rollout.prompts_per_rollout != view.config.num_unique_prompts_rollout,
        configured=never,
    ),
    Refusal(
        "short_rollout",
        "the spec has an epoch's remainder of prompts in a rollout of its own; take order.last_rollout wrap or drop",
        lambda view, request: (
            request.plan is not None
            and request.spec.order.last_rollout in ("short", "pad")
            and bool(request.plan.dataset_size % request.plan.prompts_per_rollout)
        ),
    ),
    Refusal(
        "clock",
        "the schedule was built for total_episodes and num_epochs, and moves after every optimizer step in "
        "grpo_fast.py, after every rollout in grpo.py; the plan has another number of rollouts or steps, or moves it "
        "otherwise",
        _clock,
        configured=never,
    ),
    *common("Open-Instruct"),
)
