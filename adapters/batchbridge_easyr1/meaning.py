"""What EasyR1's settings mean: a run to canonical values."""

from __future__ import annotations

from collections.abc import Mapping

from batchbridge.kit.clipping import canonical_bound
from batchbridge.kit.schedules import schedule_text
from batchbridge.kit.values import Told
from batchbridge_easyr1.run import Run
from batchbridge_easyr1.settings import (
    ACTOR,
    BATCH,
    BOUND,
    DATA,
    DYNAMIC,
    ESTIMATOR,
    FORWARD,
    GPUS,
    GROUP,
    LOSS_TYPE,
    MICRO,
    MINI_ROLLOUT,
    MODE,
    NODES,
    PASSES,
    PROMPT_TOKENS,
    PROMPTS,
    RESPONSE_TOKENS,
    ROLLOUT,
    holds,
)

AGGREGATIONS = {"token": "token_mean", "seq": "sequence_mean"}
LOSS_TYPES: Mapping[str, tuple[str, str, bool]] = {
    # loss_type -> surrogate, what the ratio is taken over, whether it clips. Source: EasyR1 core_algos (0.3.3.dev0)
    "default": ("ppo", "token", True),
    "gspo": ("ppo", "sequence", True),  # clipped as ppo is; what differs is what the ratio is taken over
    "gspo_token": ("gspo_token", "sequence", True),
    "cispo": ("cispo", "token", True),
    "sapo": ("sapo", "token", False),
}
DUAL_CLIPPED = ("ppo", "gspo_token")
ESTIMATORS: Mapping[str, tuple[str, str, float | None, int | None]] = {
    # adv_estimator -> baseline, scale, epsilon, ddof. Source: EasyR1 core_algos
    "grpo": ("group_mean", "group", 1e-6, 1),
    "rloo": ("leave_one_out", "none", None, None),
    "reinforce_plus_plus": ("none", "batch", None, 1),
    "gae": ("value", "batch", None, 1),
}
INEXPRESSIBLE = {
    "remax": "its baseline is the reward of a greedy completion",
    "grpo_passk": "only the best completion of a group has an advantage",
}
KL_ESTIMATORS = {"kl": "k1", "abs": "abs", "mse": "k2", "low_var_kl": "k3"}
RENAMED = {
    f"{ACTOR}ulysses_size": f"{ACTOR}ulysses_sequence_parallel_size",
    "trainer.total_epochs": "trainer.total_episodes",
}
"""Key from 0.3.1 on -> the key before."""
STARTS_AT_ZERO = "<0.3.3.dev0"
"""Versions whose schedule is min(1, tick / max(1, warm-up)): no warm-up is one of a tick. Source: EasyR1
torch_functional.get_constant_schedule_with_warmup; the learning rates in tests/adapters/easyr1/recorded."""
KL_CLAMP = 10.0
"""Bound of k3. Source: EasyR1 core_algos.compute_kl."""


def meaning(run: Run) -> dict[str, Told] | None:
    """Canonical field (dotted) -> what the run says; None where sizes, loss or advantages are left open."""
    aggregation = AGGREGATIONS.get(run[MODE])
    loss = LOSS_TYPES.get(run[LOSS_TYPE], LOSS_TYPES["default"])  # an unknown one is the default: BB-EZR1-028
    estimator = ESTIMATORS.get(run[ESTIMATOR])
    if aggregation is None or estimator is None or not run.plain or run.completions_per_step < 1:
        return None
    baseline, scale, epsilon, ddof = estimator
    told = {
        "topology.world_size": Told(run.world, None, f"{NODES} x {GPUS} = {run.world}", (NODES, GPUS)),
        "topology.context_parallel": Told(run[run.ulysses_key], run.ulysses_key),
        "rollout.prompts_per_rollout": Told(run[PROMPTS], PROMPTS),
        "rollout.completions_per_prompt": Told(run[GROUP], GROUP),
        "optimizer_step.completions_per_step": Told(
            run.completions_per_step,
            None,
            f"{BATCH} {run[BATCH]} x {GROUP} {run[GROUP]} / {run.replicas} replicas, floored, = {run.share} on each",
            (BATCH, GROUP),
        ),
        "optimizer_step.passes_per_rollout": Told(run[PASSES], PASSES),
        "loss.policy.aggregation": Told(aggregation, MODE if MODE in run.native else None, "token mean"),
        "advantage.baseline": Told(baseline, ESTIMATOR),
        "advantage.scale": Told(scale, None, f"{run[ESTIMATOR]} scales so", (ESTIMATOR,)),
        "advantage.epsilon": Told(epsilon, None, "fixed in core_algos"),
        "advantage.ddof": Told(ddof, None, "fixed in core_algos"),
        "order.seed": Told(run[f"{DATA}seed"], f"{DATA}seed"),
        "order.prompt_shuffle": Told("epoch_permutation" if run[f"{DATA}shuffle"] else "none", f"{DATA}shuffle"),
        "order.last_rollout": Told("drop", None, "the data loader drops an epoch's incomplete batch"),
        "order.last_optimizer_step": Told("error", None, "DataProto.split asserts whole mini-batches"),
        "horizon.lr_tick": Told("rollout", None, "the scheduler steps once per update of the actor"),
    }
    if run[MINI_ROLLOUT] is not None:
        told["rollout.prompts_per_generation_batch"] = Told(run[MINI_ROLLOUT], MINI_ROLLOUT)
    if run["algorithm.online_filtering"]:
        told["rollout.group_filter"] = Told("drop_zero_variance", "algorithm.online_filtering")
    if run["trainer.max_steps"] is not None:
        told["horizon.rollouts"] = Told(run["trainer.max_steps"], "trainer.max_steps")
    else:
        told["horizon.epochs"] = Told(float(run[run.epochs_key]), run.epochs_key)
    told |= _micro_batch(run)
    told |= {f"objective.{name}": entry for name, entry in _objective(run, loss).items()}
    told |= {f"carried.{name}": entry for name, entry in _carried(run).items()}
    return told


def _micro_batch(run: Run) -> dict[str, Told]:
    same = run[FORWARD] == run[MICRO]
    if not run[DYNAMIC]:
        told = {"micro_batch.completions_per_device": Told(run[MICRO], MICRO)}
        return told if same else {**told, "micro_batch.forward_completions_per_device": Told(run[FORWARD], FORWARD)}
    formula = f"x ({PROMPT_TOKENS} + {RESPONSE_TOKENS} = {run.longest})"
    told = {
        "micro_batch.tokens_per_device": Told(
            run[MICRO] * run.longest, None, f"{MICRO} {run[MICRO]} {formula}", (MICRO, PROMPT_TOKENS, RESPONSE_TOKENS)
        )
    }
    if not same:
        told["micro_batch.forward_tokens_per_device"] = Told(
            run[FORWARD] * run.longest,
            None,
            f"{FORWARD} {run[FORWARD]} {formula}",
            (FORWARD, PROMPT_TOKENS, RESPONSE_TOKENS),
        )
    return told


def _objective(run: Run, loss: tuple[str, str, bool]) -> dict[str, Told]:
    surrogate, level, clips = loss
    told = {
        "surrogate": Told(surrogate, LOSS_TYPE if LOSS_TYPE in run.native else None, "the only loss"),
        "ratio_level": Told(level, None, f"loss_type {run[LOSS_TYPE]}", (LOSS_TYPE,)),
        "old_logprobs": Told("rollout_start", None, "computed once, before the first update"),
        "entropy_coefficient": Told(0.0, None, "entropy is a metric only"),
        "nonfinite_step": Told("skip", None, "the optimizer step is left out when the norm is not finite"),
    }
    if clips:
        for side in ("low", "high"):
            told[f"clip_{side}"] = Told(run[f"{ACTOR}clip_ratio_{side}"], f"{ACTOR}clip_ratio_{side}")
    if surrogate in DUAL_CLIPPED:
        told["dual_clip"] = Told(run[f"{ACTOR}clip_ratio_dual"], f"{ACTOR}clip_ratio_dual")
    if run["algorithm.disable_kl"]:
        told["kl_placement"] = Told("none", "algorithm.disable_kl")
        told["kl_coefficient"] = Told(0.0, None, "algorithm.disable_kl", ("algorithm.disable_kl",))
        return told
    estimator = KL_ESTIMATORS.get(run["algorithm.kl_penalty"], run["algorithm.kl_penalty"])
    told["kl_placement"] = Told("loss" if run["algorithm.use_kl_loss"] else "reward", "algorithm.use_kl_loss")
    told["kl_coefficient"] = Told(run["algorithm.kl_coef"], "algorithm.kl_coef")
    told["kl_estimator"] = Told(estimator, "algorithm.kl_penalty")
    if estimator == "k3":
        told["kl_clamp"] = Told(KL_CLAMP, None, "fixed in core_algos.compute_kl")
    return told


def _carried(run: Run) -> dict[str, Told]:
    optim = f"{ACTOR}optim."
    betas = run[f"{optim}betas"]
    two = len(betas) == 2 and all(isinstance(beta, (int, float)) for beta in betas)
    schedule = str(run[f"{optim}lr_scheduler_type"])
    if schedule == "cosine":
        schedule = schedule_text("cosine_with_min_lr", {"min_lr_rate": run[f"{optim}min_lr_ratio"] or 0.0})
    told = {
        "learning_rate": Told(run[f"{optim}lr"], f"{optim}lr"),
        "lr_schedule": Told(
            schedule,
            None,
            f"{optim}lr_scheduler_type, {optim}min_lr_ratio",
            (f"{optim}lr_scheduler_type", f"{optim}min_lr_ratio"),
        ),
        "optimizer": Told(run[f"{optim}strategy"], f"{optim}strategy"),
        "beta1": Told(float(betas[0]) if two else None, None, f"{optim}betas", (f"{optim}betas",)),
        "beta2": Told(float(betas[1]) if two else None, None, f"{optim}betas", (f"{optim}betas",)),
        "optimizer_epsilon": Told(1e-8, None, "torch's default"),
        "weight_decay": Told(run[f"{optim}weight_decay"], f"{optim}weight_decay"),
        "weight_decay_excludes": Told("nothing", None, "one group of parameters"),
        "max_gradient_norm": Told(canonical_bound(run[BOUND]), BOUND),
        "dropout": Told("on", None, "as the model's configuration says"),
        "max_prompt_tokens": Told(run[PROMPT_TOKENS], PROMPT_TOKENS),
        "max_completion_tokens": Told(run[RESPONSE_TOKENS], RESPONSE_TOKENS),
        "temperature": Told(run[f"{ROLLOUT}temperature"], f"{ROLLOUT}temperature"),
        "top_p": Told(run[f"{ROLLOUT}top_p"], f"{ROLLOUT}top_p"),
        "top_k": Told(run[f"{ROLLOUT}top_k"], f"{ROLLOUT}top_k"),
        "precision": Told(run[f"{ACTOR}fsdp.mp_param_dtype"], f"{ACTOR}fsdp.mp_param_dtype"),
    }
    steps, share = run[f"{optim}lr_warmup_steps"], run[f"{optim}lr_warmup_ratio"]
    if steps:
        told["warmup_steps"] = Told(float(steps), None, f"{optim}lr_warmup_steps", (f"{optim}lr_warmup_steps",))
    elif steps is None and share:
        told["warmup_ratio"] = Told(share, f"{optim}lr_warmup_ratio")
    elif holds(STARTS_AT_ZERO, run.version):
        told["warmup_steps"] = Told(
            1.0,
            None,
            "without a warm-up the first rollout's learning rate is 0",
            (f"{optim}lr_warmup_steps", f"{optim}lr_warmup_ratio"),
        )
    else:
        told["warmup_steps"] = Told(
            0.0, None, f"{optim}lr_warmup_ratio is 0", (f"{optim}lr_warmup_steps", f"{optim}lr_warmup_ratio")
        )
    return told
