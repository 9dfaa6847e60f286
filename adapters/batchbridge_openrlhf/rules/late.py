"""Errors that OpenRLHF notices after its parser: building its groups, starting workers, or at the first rollout."""

from __future__ import annotations

import math

from batchbridge import Fix
from batchbridge.kit import nearest_numbers
from batchbridge.kit.rule_table import STARTING, UPDATING, Make, Rules, says
from batchbridge_openrlhf import settings as names
from batchbridge_openrlhf.facts import ALL, Facts, fix_of, fixed, fixes_of, gradients_of
from batchbridge_openrlhf.meaning import MIN_LR_SCHEDULES

_MAY_HANG, _ENDS = Make("warning", "first_rollout"), Make("warning", "optimizer_step")
_INTERVALS = ("logger.logging_steps", "eval.steps", "ckpt.save_steps")
_SCHEDULES = (
    *("linear", "cosine", "cosine_with_restarts", "polynomial", "constant", "constant_with_warmup", "inverse_sqrt"),
    *("reduce_lr_on_plateau", "cosine_with_min_lr", "cosine_warmup_with_min_lr", "warmup_stable_decay", "greedy"),
)
"""Names of transformers' schedules. Source: transformers 5.23.0 SchedulerType."""

RULES = Rules[Facts]()


@RULES.add(STARTING, "BB-ORL-036", names.SCHEDULE, fixes=fixed(actor__lr_scheduler="cosine_with_min_lr"))
@says("ValueError: not a valid SchedulerType", "transformers 5.23.0 get_scheduler", ">=0.8.5")
def _schedule_name(facts: Facts) -> str | None:
    if facts[names.SCHEDULE] in _SCHEDULES:
        return None
    return f"{facts.said(names.SCHEDULE)} is no schedule of transformers"


def _schedule_fixes(facts: Facts) -> tuple[Fix, ...]:
    return fixes_of(facts, names.SCHEDULE, "cosine_with_min_lr", "constant_with_warmup")


@RULES.add(STARTING, "BB-ORL-037", names.SCHEDULE, fixes=_schedule_fixes)
@says(
    "TypeError: unexpected keyword argument 'min_lr' or 'min_lr_rate'",
    "openrlhf 0.8.5 to 0.10.3 init_model_from_pretrained, prepare; transformers 5.23.0 get_scheduler",
    ">=0.8.5,<0.10.4",
)
def _schedule_arguments(facts: Facts) -> str | None:
    if facts[names.SCHEDULE] in (*MIN_LR_SCHEDULES, "constant", "constant_with_warmup"):
        return None
    return f"{facts.said(names.SCHEDULE)} gets a floor for the learning rate that it does not take"


@RULES.add(STARTING, "BB-ORL-038", "actor.dual_clip", fixes=fixed(actor__dual_clip=3.0))
@says("AssertionError: dual_clip must be > 1.0", "openrlhf 0.8.6 to 0.11.2 PolicyLoss.__init__", ">=0.8.6")
def _dual_clip(facts: Facts) -> str | None:
    value = facts["actor.dual_clip"]
    return None if value is None or value > 1 else f"{facts.said('actor.dual_clip')}: must be above 1"


def _correction_fixes(facts: Facts) -> tuple[Fix, ...]:
    if facts[names.MODE] == "clip":
        return fixes_of(facts, names.MODE, "mask")
    return fixes_of(facts, names.THRESHOLD, facts[names.THRESHOLD][-1:])


@RULES.add(STARTING, "BB-ORL-039", names.LEVEL, names.MODE, names.GATING, names.THRESHOLD, fixes=_correction_fixes)
@says("ValueError of PolicyLoss", "openrlhf 0.11.2 PolicyLoss.__init__", ">=0.11.2")
def _correction(facts: Facts) -> str | None:
    level, mode, gating, bounds = (facts[key] for key in (names.LEVEL, names.MODE, names.GATING, names.THRESHOLD))
    if mode == "clip" and (level == "seq" or gating != "ratio"):
        return f"{facts.said(names.MODE)}: only a token's ratio can be clipped"
    if gating != "ratio" and level != "off" and len(bounds) == 2 and bounds[0] > 0:
        return (
            f"{facts.said(names.GATING)} is bounded from above only; "
            f"{facts.name(names.THRESHOLD)} has the lower bound {bounds[0]:g}"
        )
    return None


@RULES.add(STARTING, "BB-ORL-040", "train.async_queue_size", fixes=fixed(train__async_queue_size=1))
@says("ValueError: async_queue_size must be positive", "openrlhf 0.9.1 to 0.11.2 PPOTrainerAsync.__init__", ">=0.9.1")
def _queue(facts: Facts) -> str | None:
    broken = facts[names.ASYNC] and facts["train.async_queue_size"] <= 0
    return f"{facts.said('train.async_queue_size')}: must be at least 1" if broken else None


def _chunk_fixes(facts: Facts) -> tuple[Fix, ...]:
    s = facts.sizes
    wanted = s.forward_micro * max(s.replicas, 1)
    prompts = math.lcm(wanted, s.group) // s.group
    one_by_one = (1,) if s.forward_micro > 1 and s.completions_per_rollout >= s.replicas else ()
    rollouts = nearest_numbers(s.rollout_prompts, multiple_of=prompts)
    return (*fixes_of(facts, names.FORWARD, *one_by_one), *fixes_of(facts, names.ROLLOUT, *rollouts))


@RULES.add(
    _MAY_HANG, "BB-ORL-041", names.ROLLOUT, names.GROUP, names.FORWARD, names.NODES, names.DEVICES, fixes=_chunk_fixes
)
@says(
    "it may hang in a collective (read from the code, not run)",
    "openrlhf 0.11.2 launcher.py async_run_method_batch, ExperienceMaker.split_rollout_samples",
)
def _uneven_ranks(facts: Facts) -> str | None:
    s = facts.sizes
    if s.dynamic or s.replicas < 2 or s.filtered:
        return None
    completions, chunk = s.completions_per_rollout, s.forward_micro
    if completions % (chunk * s.replicas) == 0 or completions // chunk < s.replicas:
        return None
    return (
        f"{completions} completions per rollout are no multiple of {facts.name(names.FORWARD)} {chunk} x {s.replicas} "
        "replicas: the last replicas get fewer of them, while every micro-batch waits for all replicas"
    )


def _zero_interval_fixes(facts: Facts) -> tuple[Fix, ...]:
    off = {"logger.logging_steps": 1, "eval.steps": -1, "ckpt.save_steps": -1}
    return (fix_of(facts, {identity: off[identity] for identity in _INTERVALS if facts[identity] == 0}),)


@RULES.add(UPDATING, "BB-ORL-027", *_INTERVALS, fixes=_zero_interval_fixes)
@says(
    "ZeroDivisionError: integer modulo by zero, after the first rollout is trained on",
    f"{ALL} PPOTrainer.save_logs_and_checkpoints, fit",
)
def _zero_interval(facts: Facts) -> str | None:
    zero = " and ".join(facts.name(identity) for identity in _INTERVALS if facts[identity] == 0)
    return f"{zero} = 0: the number of rollouts is divided by it; -1 turns the last two off" if zero else None


@RULES.add(_ENDS, "BB-ORL-068", names.DYNAMIC, names.ZERO, names.BUDGET, fixes=fixed(ds__zero_stage=3))
@says(
    "TypeError: 'NoneType' object is not iterable, at the second micro-batch of an optimizer step",
    "OpenRLHF/OpenRLHF issue 1131; deepspeed 0.17.6 to 0.18.2 stage_1_and_2.py, measured on CPU by "
    "tests/adapters/openrlhf/record_deepspeed.py",
    ">=0.8.6",
)
def _second_boundary(facts: Facts) -> str | None:
    deepspeed, outcome = gradients_of(facts)
    if outcome != "raises":
        return None
    return (
        f"{facts.name(names.DYNAMIC)} with {facts.said(names.ZERO)}: an optimizer step of more than one "
        f"micro-batch ends the run (DeepSpeed {deepspeed}, which openrlhf {facts.version} requires). From "
        "DeepSpeed 0.18.3 on nothing stops it, and gradients are lost (BB-ORL-042)"
    )
