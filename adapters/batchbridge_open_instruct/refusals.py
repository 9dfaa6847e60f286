"""Reasons for which `wrap` does not take learners of Open-Instruct's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from batchbridge import Reading
from batchbridge.kit import Request, refused
from batchbridge.kit.allowing import ADVANTAGES
from batchbridge.kit.refusals import Answer, Refusals, any_on, common, own_spec, setting
from batchbridge.kit.token_budgets import cut_of
from batchbridge_open_instruct import settings
from batchbridge_open_instruct.learners import Learner
from batchbridge_open_instruct.meaning import KL_ESTIMATORS

AGGREGATIONS = ("token_mean", "token_sum", "sequence_sum", "sequence_sum_over_constant")
"""Aggregations that give every token of a step one weight: upstream divides a step's sum by one number."""
LOSSES = {"ppo": "dapo", "cispo": "cispo"}
"""Surrogate to `loss_fn`."""


@dataclass(frozen=True)
class LearnerView:
    """The objects that refusals look at. args: the learner's own."""

    args: Any
    config: Any
    learner: Learner
    preparation: str = ""
    """The loop that prepares data, by its name, where it is not Open-Instruct's."""


NO_RESAMPLING = "no_resampling_pass_rate"
BY_ROW = ("rho_mask_sequence_level", "rho_mask_tv_divergence")
SAID = (NO_RESAMPLING, *BY_ROW)
"""Settings that say nothing of what is trained, and that refusals look at."""
NAMED_SO = ("hybrid", "qwen3.5", "qwen3-next", "mamba", "jamba", "falcon-h1", "granite-4", "nemotron-h", "rwkv", "lfm2")
"""Words in names of models that have layers which carry a state."""


def script(reading: Reading) -> str:
    return str(reading.native.get(settings.SCRIPT, settings.GRPO_FAST))


def _named(reading: Reading, *words: str) -> bool:
    """Whether the model's name has one of these words."""
    name = str(setting(reading, "model_name_or_path") or "").lower()
    return any(word in name for word in words)


SETTLED = Refusals()
"""Refusals that settings, plan and request decide, of a configuration and of a learner alike."""


@SETTLED.row("script", "BatchBridge works with grpo_fast.py and grpo.py alone", remedy="start grpo_fast.py")
def _script(request: Request) -> bool:
    return script(request.reading) not in (settings.GRPO_FAST, settings.GRPO)


@SETTLED.row(
    "mini_batches",
    "num_mini_batches above 1 cuts each rank's packed rows, so lengths and ranks decide what a step trains; set it to "
    "1, and a spec whose optimizer step is the whole rollout",
)
def _mini_batches(request: Request) -> bool:
    spec = request.spec
    whole = spec.optimizer_step.completions_per_step == spec.completions_per_rollout
    return setting(request.reading, "num_mini_batches", 1) != 1 or not whole


@SETTLED.row(
    "tokens_per_device",
    "open-instruct packs rows of pack_length tokens itself, and its learner is built for that: no other budget can be "
    "handed to it; set pack_length, and per_device_train_batch_size (rows of a micro-batch)",
)
def _tokens_per_device(request: Request) -> bool:
    return cut_of(request.spec.micro_batch) != cut_of(own_spec(request).micro_batch)


@SETTLED.row("passes", "the spec passes over a rollout another number of times; set num_epochs")
def _passes(request: Request) -> bool:
    wanted, own = (one.optimizer_step.passes_per_rollout for one in (request.spec, own_spec(request)))
    return wanted != own


@SETTLED.row(
    "staleness",
    "what can be enforced is generation with the weights that are trained next (staleness.mode sync), or with those of "
    "a number of rollouts before at most (bounded): ask for one of them",
)
def _staleness(request: Request) -> bool:
    asked = request.spec.staleness
    bounded = (asked.mode, asked.unit) == ("bounded", "rollouts") and asked.maximum is not None
    return asked.mode != "sync" and not bounded


SETTLED.append(refused.group_filter("active_sampling and filter_zero_std_samples"))


@SETTLED.row(
    "loss_denominator",
    "grpo divides a step's loss by a constant, however few completions the filter leaves; the specification counts "
    "the completions that are left",
    remedy="set loss_denominator to token, or active_sampling, which replaces what is dropped",
)
def _loss_denominator(request: Request) -> bool:
    constant = request.spec.loss.policy.aggregation == "sequence_sum_over_constant"
    return constant and request.spec.rollout.group_filter == "drop_zero_variance"


@SETTLED.row(
    "no_resampling",
    "no_resampling_pass_rate leaves prompts out that were solved before; what can be enforced is a plan whose rollouts "
    "are filled while the run goes on (staleness.mode bounded, or a group filter)",
    remedy="leave it open, or follow what the command itself means",
)
def _no_resampling(request: Request) -> bool:
    fills = request.spec.staleness.mode != "sync" or request.spec.rollout.group_filter != "none"
    return setting(request.reading, NO_RESAMPLING) is not None and not (request.mode == "enforce" and fills)


@SETTLED.row(
    "mask_truncated_completions",
    "it removes completions before groups are formed: groups are misaligned, or the run fails; set it to false",
)
def _mask_truncated_completions(request: Request) -> bool:
    return bool(setting(request.reading, "mask_truncated_completions", False))


SETTLED.append(refused.value_baseline("and neither script has one"))
_WEIGHED = "one number divides a step's sum, so its tokens weigh alike; what can be enforced:"
SETTLED.append(refused.aggregation(_WEIGHED, AGGREGATIONS))


@SETTLED.row(
    "surrogate",
    "open-instruct's losses are dapo (ppo) and cispo, their ratio is a token's, and none is clipped twice",
)
def _surrogate(request: Request) -> bool:
    wanted = request.spec.objective
    known = (wanted.surrogate or "ppo") in LOSSES
    return not known or wanted.ratio_level == "sequence" or wanted.dual_clip is not None


@SETTLED.row(
    "old_logprobs",
    "a rollout's first pass is the ratio's denominator; with several passes the spec takes another",
)
def _old_logprobs(request: Request) -> bool:
    otherwise = request.spec.objective.old_logprobs not in (None, "rollout_start")
    return otherwise and bool(setting(request.reading, "num_epochs", 1) > 1)


@SETTLED.row(
    "sampler_correction",
    "the spec corrects towards the sampler in another way; set use_rho_correction and its bounds",
)
def _sampler_correction(request: Request) -> bool:
    return request.spec.objective.sampler_correction != own_spec(request).objective.sampler_correction


@SETTLED.row(
    "rho_by_row",
    "rho_mask_sequence_level and rho_mask_tv_divergence average over packed rows, not completions",
    remedy="leave rho_mask_sequence_level and rho_mask_tv_divergence out",
)
def _rho_by_row(request: Request) -> bool | None:
    return any_on(request, *BY_ROW) if setting(request.reading, "use_rho_correction") else False


SETTLED.append(refused.entropy("open-instruct"))
SETTLED.append(refused.kl_estimator(f"open-instruct's estimators are {', '.join(KL_ESTIMATORS)}", KL_ESTIMATORS))
SETTLED.append(refused.group_size("num_samples_per_prompt_rollout"))


@SETTLED.row(
    "prompts_per_rollout",
    "the spec has another number of prompts per rollout; set num_unique_prompts_rollout",
)
def _prompts_per_rollout(request: Request) -> bool:
    return request.spec.rollout.prompts_per_rollout != own_spec(request).rollout.prompts_per_rollout


@SETTLED.row(
    "short_rollout",
    "the specification makes an epoch's last prompts a separate rollout; set order.last_rollout to wrap or drop",
)
def _short_rollout(request: Request) -> bool:
    plan, last = request.plan, request.spec.order.last_rollout
    return plan is not None and last in ("short", "pad") and bool(plan.dataset_size % plan.prompts_per_rollout)


LIVE = Refusals()
"""Refusals of what only a learner shows: its model's layers and attention, its schedule."""


def _shares_rows(request: Request) -> bool:
    """Whether rows are cut over ranks: grpo.py never reads sequence_parallel_size."""
    shares = setting(request.reading, "sequence_parallel_size", 1) != 1
    return shares and script(request.reading) != settings.GRPO


def _whole_micro_batches(request: Request) -> bool:
    return bool(setting(request.reading, "per_device_train_batch_size", 1) == 1)


def _in_pieces(request: Request) -> bool:
    """The condition `_sequence_parallel`, as far as a configuration says it: attention left open is the machine's
    choice."""
    attention = str(setting(request.reading, "attn_implementation") or "flash").lower()
    strange = attention in ("torch", "te") or _named(request.reading, *NAMED_SO)
    return _shares_rows(request) and (request.mode != "enforce" or not _whole_micro_batches(request) or strange)


@LIVE.live(
    "sequence_parallel",
    "sequence_parallel_size above 1 cuts rows over ranks and loses targets at the cuts; what can be enforced, and "
    "nothing watched, are rows of one micro-batch each whose tokens nothing mixes but a flash attention",
    foreseen=_in_pieces,
    remedy="set sequence_parallel_size to 1",
)
def _sequence_parallel(view: LearnerView, request: Request) -> bool:
    if not _shares_rows(request):
        return False
    if request.mode != "enforce" or not _whole_micro_batches(request) or view.learner.strange_layers:
        return True
    # Another attention is told by a mask where documents end, which Ulysses drops.
    policy = view.learner.trainer.policy.config.get_text_config()
    return not str(policy._attn_implementation).startswith("flash_attention")


def _is_fast(request: Request) -> bool:
    return script(request.reading) == settings.GRPO_FAST


@LIVE.live(
    "recurrent_layers",
    "layers of the model carry a state along a row, and open-instruct packs completions into rows without telling such "
    "layers where one ends: completions see each other",
    allowable=True,
    foreseen=lambda request: _is_fast(request) and _named(request.reading, *NAMED_SO),
    remedy="take a model of attention alone",
)
def _recurrent_layers(view: LearnerView, request: Request) -> bool:
    return _is_fast(request) and view.learner.strange_layers


@LIVE.live(
    "layers",
    "layers of the model are others than attention with a dense block behind it, and grpo.py is proven with these "
    "alone: layers of experts have a loss of their own, and recurrent ones were not run",
    foreseen=lambda request: not _is_fast(request) and _named(request.reading, *NAMED_SO, "olmoe"),
    remedy="take a model of attention and dense blocks alone, or start grpo_fast.py",
)
def _layers(view: LearnerView, request: Request) -> bool:
    return not _is_fast(request) and view.learner.strange_layers


@LIVE.live(
    ADVANTAGES,
    "a loop of your own prepares data, and computes advantages, in place of open-instruct's; "
    f'allow=("{ADVANTAGES}",) trains on what it gives, carried and not recomputed from the rewards',
    allowable=True,
    remedy="leave DataPreparationActor._data_preparation_loop as it is",
)
def _own_advantages(view: LearnerView, request: Request) -> Answer:
    return view.preparation or False


@LIVE.live(
    "clock",
    "the schedule was built for total_episodes and num_epochs, and moves after every optimizer step in grpo_fast.py, "
    "after every rollout in grpo.py; the plan has another number of rollouts or steps, or moves it otherwise",
)
def _clock(view: LearnerView, request: Request) -> bool:
    plan, args = request.plan, view.args
    return plan is not None and (
        plan.total_rollouts != args.num_training_steps
        or plan.total_optimizer_steps != args.num_training_steps * args.num_epochs
        or request.spec.horizon.lr_tick != own_spec(request).horizon.lr_tick
    )


REFUSALS = (
    *SETTLED,
    *common("Open-Instruct", references=lambda request: bool(setting(request.reading, "load_ref_policy", True))),
    *LIVE,
)
