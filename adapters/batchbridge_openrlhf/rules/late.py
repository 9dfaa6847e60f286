"""Errors that OpenRLHF notices after its parser: building its groups, starting workers, or at the first rollout."""

from __future__ import annotations

import math
from collections.abc import Container

from batchbridge import Fix
from batchbridge.kit import nearest_numbers
from batchbridge.kit.rule_table import GENERATING, STARTING, UPDATING, WRONG, RuleKind, Rules, says
from batchbridge_openrlhf import settings as names
from batchbridge_openrlhf.facts import ALL, OpenRlhfFacts, fix_of, fixed, fixes_of, gradients_of
from batchbridge_openrlhf.meaning import MIN_LR_SCHEDULES
from batchbridge_openrlhf.settings import holds

_STOPS, _ENDS = RuleKind("warning", "first_rollout"), RuleKind("warning", "optimizer_step")
_INTERVALS = ("logger.logging_steps", "eval.steps", "ckpt.save_steps")
_SCHEDULES = (
    *("linear", "cosine", "cosine_with_restarts", "polynomial", "constant", "constant_with_warmup", "inverse_sqrt"),
    *("reduce_lr_on_plateau", "cosine_with_min_lr", "cosine_warmup_with_min_lr", "warmup_stable_decay", "greedy"),
)
"""Names of transformers' schedules. Source: transformers 5.23.0 SchedulerType."""
_CRITICS, _REWARD, _REMOTE = "critic.lr_scheduler", "reward.model_name_or_path", "reward.remote_url"

RULES = Rules[OpenRlhfFacts]()


def _schedules(facts: OpenRlhfFacts) -> list[str]:
    """The options of the schedules that are used."""
    return [names.SCHEDULE, *([_CRITICS] if facts.has_critic and _CRITICS in facts.names else [])]


def _other_than(taken: Container[str], facts: OpenRlhfFacts) -> str:
    return " and ".join(facts.name_and_value(key) for key in _schedules(facts) if facts[key] not in taken)


def _schedule_fixes(facts: OpenRlhfFacts) -> tuple[Fix, ...]:
    ways = ("cosine_with_min_lr", "constant_with_warmup")
    return tuple(fix_of(facts, dict.fromkeys(_schedules(facts), name)) for name in ways)


@RULES.add(STARTING, "BB-ORL-036", names.SCHEDULE, _CRITICS, fixes=lambda facts: _schedule_fixes(facts)[:1])
@says("ValueError: not a valid SchedulerType", "transformers 5.23.0 get_scheduler", ">=0.8.5")
def _schedule_name(facts: OpenRlhfFacts) -> str | None:
    said = _other_than(_SCHEDULES, facts)
    return f"{said} is not a schedule of transformers" if said else None


@RULES.add(STARTING, "BB-ORL-028", names.SCHEDULE, _CRITICS, fixes=_schedule_fixes)
@says(
    "TypeError: get_wsd_schedule() missing 1 required positional argument: 'num_decay_steps'",
    "openrlhf 0.10.4 to 0.11.2 _ds_init_train_model; transformers 5.15.0 get_scheduler",
    ">=0.10.4",
)
def _decay_steps(facts: OpenRlhfFacts) -> str | None:
    broken = [key for key in _schedules(facts) if facts[key] == "warmup_stable_decay"]
    said = " and ".join(map(facts.name_and_value, broken))
    return f"{said} needs a number of steps for its decay, which openrlhf does not give it" if said else None


@RULES.add(WRONG, "BB-ORL-070", names.SCHEDULE, _CRITICS, fixes=_schedule_fixes)
@says(
    "the learning rate falls again and again; where transformers lacks greedy, the run ends while it starts",
    "openrlhf 0.8.5 to 0.11.2 strategy.prepare; deepspeed 0.19.6 DeepSpeedEngine._take_model_step; transformers 5.15.0",
    ">=0.8.5",
)
def _needs_metric(facts: OpenRlhfFacts) -> str | None:
    broken = [key for key in _schedules(facts) if facts[key] in ("reduce_lr_on_plateau", "greedy")]
    said = " and ".join(map(facts.name_and_value, broken))
    return f"{said} follows a metric, and DeepSpeed hands it the constant train batch size for one" if said else None


@RULES.add(STARTING, "BB-ORL-037", names.SCHEDULE, _CRITICS, fixes=_schedule_fixes)
@says(
    "TypeError: unexpected keyword argument 'min_lr' or 'min_lr_rate'",
    "openrlhf 0.8.5 to 0.10.3 init_model_from_pretrained, prepare; transformers 5.23.0 get_scheduler",
    ">=0.8.5,<0.10.4",
)
def _schedule_arguments(facts: OpenRlhfFacts) -> str | None:
    said = _other_than((*MIN_LR_SCHEDULES, "constant", "constant_with_warmup"), facts)
    return f"{said} gets a floor for the learning rate that it does not take" if said else None


@RULES.add(STARTING, "BB-ORL-038", "actor.dual_clip", fixes=fixed(actor__dual_clip=3.0))
@says("AssertionError: dual_clip must be > 1.0", "openrlhf 0.8.6 to 0.11.2 PolicyLoss.__init__", ">=0.8.6")
def _dual_clip(facts: OpenRlhfFacts) -> str | None:
    value = facts["actor.dual_clip"]
    return None if value is None or value > 1 else f"{facts.name_and_value('actor.dual_clip')}: must be above 1"


def _correction_fixes(facts: OpenRlhfFacts) -> tuple[Fix, ...]:
    if facts[names.MODE] == "clip":
        return fixes_of(facts, names.MODE, "mask")
    return fixes_of(facts, names.THRESHOLD, facts[names.THRESHOLD][-1:])


@RULES.add(STARTING, "BB-ORL-039", names.LEVEL, names.MODE, names.GATING, names.THRESHOLD, fixes=_correction_fixes)
@says("ValueError of PolicyLoss", "openrlhf 0.11.2 PolicyLoss.__init__", ">=0.11.2")
def _correction(facts: OpenRlhfFacts) -> str | None:
    level, mode, gating, bounds = (facts[key] for key in (names.LEVEL, names.MODE, names.GATING, names.THRESHOLD))
    if mode == "clip" and (level == "seq" or gating != "ratio"):
        return f"{facts.name_and_value(names.MODE)}: only a token's ratio can be clipped"
    if gating != "ratio" and level != "off" and len(bounds) == 2 and bounds[0] > 0:
        return (
            f"{facts.name_and_value(names.GATING)} is bounded from above only; "
            f"{facts.name(names.THRESHOLD)} has the lower bound {bounds[0]:g}"
        )
    return None


@RULES.add(STARTING, "BB-ORL-040", "train.async_queue_size", fixes=fixed(train__async_queue_size=1))
@says("ValueError: async_queue_size must be positive", "openrlhf 0.9.1 to 0.11.2 PPOTrainerAsync.__init__", ">=0.9.1")
def _queue(facts: OpenRlhfFacts) -> str | None:
    broken = facts[names.ASYNC] and facts["train.async_queue_size"] <= 0
    return f"{facts.name_and_value('train.async_queue_size')}: must be at least 1" if broken else None


_SEED, _SAMPLES = "train.seed", "data.max_samples"


def _bound_fixes(facts: OpenRlhfFacts) -> tuple[Fix, ...]:
    return (fix_of(facts, {key: 2 if key == names.ZERO else max(facts[key], 1) for key in _out_of_bounds(facts)}),)


def _out_of_bounds(facts: OpenRlhfFacts) -> dict[str, str]:
    broken = {_SEED: facts[_SEED] < 0, names.ZERO: facts[names.ZERO] not in range(4), _SAMPLES: facts[_SAMPLES] < 1}
    wanted = {_SEED: "not below 0", names.ZERO: "0, 1, 2 or 3", _SAMPLES: "at least 1"}
    return {key: wanted[key] for key, is_broken in broken.items() if is_broken}


@RULES.add(STARTING, "BB-ORL-029", _SEED, names.ZERO, _SAMPLES, fixes=_bound_fixes)
@says(
    "ValueError: Seed must be between 0 and 2**32 - 1; ValidationError of DeepSpeedZeroConfig; ValueError: num_samples "
    "should be a positive integer value",
    f"{ALL} DeepspeedStrategy.setup_distributed, get_ds_train_config, prepare_datasets",
)
def _bounds(facts: OpenRlhfFacts) -> str | None:
    return (
        "; ".join(f"{facts.name_and_value(key)}: must be {wanted}" for key, wanted in _out_of_bounds(facts).items())
        or None
    )


_OVERLONG, _STOP = "reward.overlong_buffer_len", "reward.stop_properly_penalty_coef"


def _longest(facts: OpenRlhfFacts) -> str:
    """The option that bounds a completion for the penalty."""
    return "rollout.max_new_tokens" if facts["rollout.max_new_tokens"] else "data.max_len"


def _penalty_fixes(facts: OpenRlhfFacts) -> tuple[Fix, ...]:
    broken = {_OVERLONG: facts[_longest(facts)], _STOP: 1.0}
    return (fix_of(facts, {key: most for key, most in broken.items() if (facts[key] or 0) > most}),)


@RULES.add(GENERATING, "BB-ORL-054", _OVERLONG, "rollout.max_new_tokens", "data.max_len", _STOP, fixes=_penalty_fixes)
@says(
    "AssertionError: max_new_tokens must be >= overlong_buffer_len, or stop_properly_penalty_coef must be in [0, 1]",
    "openrlhf 0.9.8 to 0.11.2 length_penalty.py",
    ">=0.9.8",
)
def _penalties(facts: OpenRlhfFacts) -> str | None:
    said = []
    if (facts[_OVERLONG] or 0) > facts[_longest(facts)]:
        said.append(f"{facts.name_and_value(_OVERLONG)} is above {facts.name_and_value(_longest(facts))}")
    if (facts[_STOP] or 0) > 1:
        said.append(f"{facts.name_and_value(_STOP)} is above 1")
    return " and ".join(said) or None


def _unserved(facts: OpenRlhfFacts) -> dict[str, str]:
    """Options that a launch command leaves out -> what is missing then; one without a model is a part of a command."""
    missing = {}
    if not (facts[names.ENGINES] or 0) > 0:
        missing[names.ENGINES] = "no vLLM engine generates"
    if not facts.remote_reward and not facts[_REWARD]:
        missing[_REWARD] = "nothing scores"
    return missing if facts.whole and facts["actor.model_name_or_path"] else {}


def _unserved_fixes(facts: OpenRlhfFacts) -> tuple[Fix, ...]:
    missing = [facts.name(key) for key in _unserved(facts)]
    return (Fix(f"give {' and '.join(missing)}"),) if _REWARD in _unserved(facts) else fixes_of(facts, names.ENGINES, 1)


@RULES.add(_STOPS, "BB-ORL-055", names.ENGINES, _REWARD, _REMOTE, fixes=_unserved_fixes)
@says(
    "IndexError: index out of range in _dispatch_prompts_to_vllm, or AttributeError: 'RewardModelActor' object has no "
    "attribute 'model'",
    "openrlhf 0.9.1 to 0.11.2 SamplesGenerator, cli/train_ppo_ray.py train",
    ">=0.9.1",
)
def _nothing_serves(facts: OpenRlhfFacts) -> str | None:
    said = [f"{why} ({facts.name_and_value(key)})" for key, why in _unserved(facts).items()]
    return f"the first rollout ends the run: {' and '.join(said)}" if said else None


def _chunk_fixes(facts: OpenRlhfFacts) -> tuple[Fix, ...]:
    s = facts.sizes
    wanted = s.forward_micro * max(s.replicas, 1)
    prompts = math.lcm(wanted, s.group) // s.group
    one_by_one = (1,) if s.forward_micro > 1 and s.completions_per_rollout >= s.replicas else ()
    rollouts = nearest_numbers(s.rollout_prompts, multiple_of=prompts)
    return (*fixes_of(facts, names.FORWARD, *one_by_one), *fixes_of(facts, names.ROLLOUT, *rollouts))


@RULES.add(
    _STOPS, "BB-ORL-041", names.ROLLOUT, names.GROUP, names.FORWARD, names.NODES, names.DEVICES, fixes=_chunk_fixes
)
@says(
    "it may hang in a collective (read from the code, not run), and ends with fewer batches than replicas; ValueError: "
    "Insufficient batch size; AssertionError: number of items < k_partitions (dynamic batches)",
    "openrlhf 0.11.2 launcher.py async_run_method_batch, ExperienceMaker.split_rollout_samples",
)
def _uneven_ranks(facts: OpenRlhfFacts) -> str | None:
    s = facts.sizes
    completions, chunk = s.completions_per_rollout, s.forward_micro
    if s.replicas < 2 or s.filtered or s.rollout_prompts * s.group // chunk < s.replicas:
        return None
    last = 0 if s.drops_tail else (facts.trained_prompts or 0) % s.prompts_per_rollout * s.group
    for count, of in ((completions, "a rollout's"), (last, "the last rollout's, of an episode,")):
        batches = count if s.dynamic else -(-count // chunk)
        if 0 < batches < s.replicas and holds(">=0.9.1", s.version):
            return (
                f"{of} {count} completions make {batches} batches, fewer than the {s.replicas} replicas that score "
                "them: the run ends there"
            )
    if s.dynamic or completions % (chunk * s.replicas) == 0:
        return None
    return (
        f"{completions} completions per rollout are not a multiple of {facts.name(names.FORWARD)} {chunk} x "
        f"{s.replicas} "
        "replicas: the last replicas get fewer of them, while every micro-batch waits for all replicas"
    )


def _zero_interval_fixes(facts: OpenRlhfFacts) -> tuple[Fix, ...]:
    off = {"logger.logging_steps": 1, "eval.steps": -1, "ckpt.save_steps": -1}
    return (fix_of(facts, {identity: off[identity] for identity in _zero_intervals(facts)}),)


def _zero_intervals(facts: OpenRlhfFacts) -> list[str]:
    """Asynchronous training divides by eval.steps only where it evaluates."""
    unread = facts[names.ASYNC] and not facts["eval.dataset"] and holds(">=0.9.8", facts.version)
    return [key for key in _INTERVALS if facts[key] == 0 and not (unread and key == "eval.steps")]


@RULES.add(UPDATING, "BB-ORL-027", *_INTERVALS, fixes=_zero_interval_fixes)
@says(
    "ZeroDivisionError: integer modulo by zero, after the first rollout is trained on",
    f"{ALL} PPOTrainer.save_logs_and_checkpoints, fit",
)
def _zero_interval(facts: OpenRlhfFacts) -> str | None:
    zero = " and ".join(facts.name(identity) for identity in _zero_intervals(facts))
    return f"{zero} = 0: the number of rollouts is divided by it; -1 turns the last two off" if zero else None


@RULES.add(_ENDS, "BB-ORL-068", names.DYNAMIC, names.ZERO, names.BUDGET, fixes=fixed(ds__zero_stage=3))
@says(
    "TypeError: 'NoneType' object is not iterable, at the second micro-batch of an optimizer step",
    "OpenRLHF/OpenRLHF issue 1131; deepspeed 0.17.6 to 0.18.2 stage_1_and_2.py, measured on CPU by "
    "tests/adapters/openrlhf/record_deepspeed.py",
    ">=0.8.6",
)
def _second_boundary(facts: OpenRlhfFacts) -> str | None:
    deepspeed, outcome = gradients_of(facts)
    if outcome != "raises":
        return None
    return (
        f"{facts.name(names.DYNAMIC)} with {facts.name_and_value(names.ZERO)}: an optimizer step of more than one "
        f"micro-batch ends the run (DeepSpeed {deepspeed}, which openrlhf {facts.version} requires). From "
        "DeepSpeed 0.18.3 on nothing stops it, and gradients are lost (BB-ORL-042)"
    )
