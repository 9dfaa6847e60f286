"""Reasons for which `wrap` does not take a run of OpenRLHF's. Settings, plan and request decide each of them: options
of a command, or the arguments of a trainer."""

from __future__ import annotations

from typing import Any

from batchbridge import Spec
from batchbridge.kit import Request, refused
from batchbridge.kit.producers import is_recomputed
from batchbridge.kit.ranks import steps_cross_rollouts
from batchbridge.kit.refusals import Answer, Refusals, common, own_spec
from batchbridge_openrlhf.critic_refusals import CRITIC
from batchbridge_openrlhf.facts import OpenRlhfFacts, settings_in

ESTIMATORS = ("k1", "k2", "k3")
"""KL estimators whose gradient is held against the oracle, and that a like-run may ask for."""
AGGREGATIONS = ("token_mean", "sequence_mean")
PROVEN_CORRECTIONS = (
    *("token_truncate", "token_mask", "sequence_geometric_mask"),
    *("sequence_binary_kl_mask", "token_tv_mask", "sequence_tv_mask"),
)
"""Corrections towards the sampler whose gradient is held against the oracle, by the words of `meaning`."""


def _own(request: Request) -> OpenRlhfFacts:
    return settings_in(request.reading)


def _kl_estimator_of(spec: Spec) -> str | None:
    return spec.objective.kl_estimator if spec.objective.kl_placement == "loss" else None


REFUSALS = Refusals([*CRITIC, refused.batch_scale("openrlhf", remedy="algo.advantage.estimator group_norm")])


@REFUSALS.row(
    "advantage_with_kl",
    "the spec's advantages are another rule's than the trainer's, and the KL penalty is inside them: openrlhf adds "
    "it per token",
)
def _advantage_with_kl(request: Request) -> bool:
    return request.spec.advantage != own_spec(request).advantage and request.spec.objective.kl_placement == "reward"


@REFUSALS.live(
    "advantages",
    "a function of your own computes the advantages in place of openrlhf's; "
    'allow=("advantages",) trains on what it gives, carried and not recomputed from the rewards',
    allowable=True,
    remedy="leave the experience maker's compute_advantages_and_returns as it is",
)
def _own_advantages(trainer: Any, request: Request) -> Answer:
    maker = getattr(trainer, "experience_maker", None)  # a training process has none
    if maker is None or not is_recomputed(own_spec(request).advantage):
        return False
    made = maker.compute_advantages_and_returns
    module = str(getattr(made, "__module__", ""))
    known = module.partition(".")[0] in ("openrlhf", "batchbridge_openrlhf")
    return False if known else f"{module}.{getattr(made, '__qualname__', 'compute_advantages_and_returns')}"


@REFUSALS.row(
    "asynchronous",
    "train.async_enable trains on what has arrived: timing decides. It can be observed without "
    "train.partial_rollout_enable, which mixes versions of the weights in one completion, and without a critic",
    remedy="leave train.async_enable out",
)
def _asynchronous(request: Request) -> bool:
    own = _own(request)
    mixed = own["train.partial_rollout_enable"] or own.has_critic  # a ledger could not say which weights generated
    return bool(own["train.async_enable"] and (request.mode != "observe" or mixed))


REFUSALS.append(refused.staleness("train.async_enable as it says"))
REFUSALS.append(refused.group_filter("algo.dynamic_filtering_enable, and its range"))


@REFUSALS.row(
    "agent",
    "train.agent_func_path with data.max_images_per_prompt: an environment may show images between a completion's own "
    "tokens; not proven",
    remedy="data.max_images_per_prompt 0, or leave train.agent_func_path out",
)
def _agent(request: Request) -> bool:
    own = _own(request)
    return bool(own["train.agent_func_path"]) and own["data.max_images_per_prompt"] > 0


@REFUSALS.row(
    "ema",
    "train.enable_ema moves its average by micro-batches that openrlhf counts itself; not proven",
    remedy="leave train.enable_ema out",
)
def _ema(request: Request) -> bool:
    return bool(_own(request)["train.enable_ema"])


@REFUSALS.row(
    "adaptive_kl",
    "algo.kl.target changes the KL coefficient while the run goes on",
    remedy="leave algo.kl.target out",
)
def _adaptive_kl(request: Request) -> bool:
    return bool(_own(request)["algo.kl.target"])


@REFUSALS.row(
    "sequence_parallel",
    "a critic with ds.ring_attn_size above 1 is not proven",
    remedy="ds.ring_attn_size 1",
)
def _sequence_parallel(request: Request) -> bool:
    return _own(request)["ds.ring_attn_size"] > 1 and _own(request).has_critic


@REFUSALS.row(
    "tensor_parallel",
    "ds.tensor_parallel_size above 1 with ZeRO-3, ring attention, images or a critic: under ZeRO-3 transformers "
    "(5.15.0) does not load a model whose weights deepspeed cuts; the others are not proven",
    remedy="ds.tensor_parallel_size 1, or ds.zero_stage 2 with neither of the others",
)
def _tensor_parallel(request: Request) -> bool:
    own = _own(request)
    beside = own["ds.ring_attn_size"] > 1 or own["data.max_images_per_prompt"] > 0 or own.has_critic
    return own["ds.tensor_parallel_size"] > 1 and (own["ds.zero_stage"] == 3 or beside)


@REFUSALS.row("fp16", "the fp16 loss scaler leaves steps out on its own; use ds.param_dtype bf16")
def _fp16(request: Request) -> bool:
    return bool(_own(request)["ds.param_dtype"] == "fp16")


@REFUSALS.row(
    "router_loss",
    "actor.aux_loss_coef: the router's loss is a mean per micro-batch and depends on the split; "
    'allow=("router_loss",) accepts that',
    allowable=True,
    remedy="actor.aux_loss_coef 0",
)
def _router_loss(request: Request) -> bool:
    return bool(_own(request)["actor.aux_loss_coef"] > 1e-8)


@REFUSALS.row(
    "sampler_correction",
    "a correction by the binary KL divergence of single tokens leaves out tokens on which policy and engine agree: in "
    "float32 their divergence may come out below 0, which openrlhf takes for out of bounds (0.11.2); "
    'allow=("sampler_correction",) accepts it as openrlhf computes it',
    allowable=True,
    remedy="algo.advantage.is_correction_level seq, or algo.advantage.is_correction_gating tv or ratio",
)
def _sampler_correction(request: Request) -> bool:
    named = own_spec(request).objective.sampler_correction
    return named is not None and named.partition(" ")[0] not in PROVEN_CORRECTIONS


@REFUSALS.row(
    "other_correction",
    "the spec corrects towards the sampler otherwise than the trainer's own options do; set "
    "algo.advantage.is_correction_* as it says (before 0.11.2 is_correction_enable, is_correction_type)",
)
def _other_correction(request: Request) -> bool:
    return request.spec.objective.sampler_correction != own_spec(request).objective.sampler_correction


@REFUSALS.row("surrogate", "openrlhf's losses are ppo and gspo (ppo with a ratio over sequences)")
def _surrogate(request: Request) -> bool:
    return request.spec.objective.surrogate != "ppo"


@REFUSALS.row(
    "sequence_ratio",
    "openrlhf averages the loss over sequences where the ratio is the sequence's; the spec averages over tokens",
)
def _sequence_ratio(request: Request) -> bool:
    by_sequence = request.spec.objective.ratio_level == "sequence"
    return by_sequence and request.spec.loss.policy.aggregation != "sequence_mean"


REFUSALS.append(refused.aggregation("openrlhf's losses aggregate as", AGGREGATIONS))
REFUSALS.extend(common("openrlhf", "denominator_scope"))


@REFUSALS.row(
    "loss_per_term",
    "openrlhf averages the KL and entropy terms over the step's tokens, whatever the policy term does; the spec gives "
    "them other weights",
)
def _loss_per_term(request: Request) -> bool:
    loss, objective = request.spec.loss, request.spec.objective
    terms = (
        (loss.kl, _kl_estimator_of(request.spec) and objective.kl_coefficient),
        (loss.entropy, objective.entropy_coefficient),
    )
    return any(coefficient and (term or loss.policy).aggregation != "token_mean" for term, coefficient in terms)


@REFUSALS.row(
    "kl_placement",
    "the spec and the trainer put the KL penalty in different places (none, reward, loss): what the loss needs is "
    "computed where the trainer's own options say it",
)
def _kl_placement(request: Request) -> bool:
    wanted, own = request.spec.objective, own_spec(request).objective
    if wanted.kl_coefficient and wanted.kl_placement != own.kl_placement:
        return True
    return own.kl_placement == "reward" and wanted.kl_coefficient != own.kl_coefficient


@REFUSALS.row(
    "kl_estimator",
    f"proven against the oracle are {', '.join(ESTIMATORS)}; "
    'allow=("kl_estimator",) accepts the trainer\'s own (algo.kl.unbiased_gradient)',
    allowable=True,
)
def _kl_estimator(request: Request) -> bool:
    return _kl_estimator_of(request.spec) not in (None, *ESTIMATORS)


@REFUSALS.row(
    "old_logprobs",
    "openrlhf scores a rollout before it trains on it; the spec takes the ratio over something else",
)
def _old_logprobs(request: Request) -> bool:
    return request.spec.objective.old_logprobs != "rollout_start"


REFUSALS.extend(common("openrlhf", "truncated_completions"))
REFUSALS.append(refused.group_size("rollout.n_samples_per_prompt"))


@REFUSALS.row(
    "step_crosses_rollouts",
    "some optimizer step would draw from two rollouts: no rollout fills one (rollout.batch_size x "
    "rollout.n_samples_per_prompt completions below train.batch_size, or fewer prompts), or the specification asks for "
    "it. Give rollouts of at least train.batch_size completions, or a specification whose "
    "optimizer_step.step_may_span is none",
)
def _step_crosses_rollouts(request: Request) -> bool:
    return request.plan is not None and steps_cross_rollouts(request.plan)


REFUSALS.append(refused.no_step("no pass over it, or a critic's warm-up that is as long as the run"))
