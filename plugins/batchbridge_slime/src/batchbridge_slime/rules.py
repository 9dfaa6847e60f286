"""Rules that slime and Megatron refuse by, change or ignore: `rules.json` has values that do not go together; numbers
that do not fit, and what the schema has no words for, are here."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

from batchbridge import Fix
from batchbridge.kit.rule_table import (
    BUILDING,
    GENERATING,
    IN_CONFIG,
    NOTE,
    OPEN,
    SILENT,
    STARTING,
    UPDATING,
    Rule,
    RuleKind,
    nearest_fixes,
    recorded_rules,
    setting_fixes,
)
from batchbridge_slime.settings import (
    GROUPED,
    ICEPOP,
    RECORDED,
    Native,
    corrected,
    in_time,
    replica,
    replicas,
    rollout_size,
    size_of_step,
    steps_of_rollout,
)

SlimeTest = Callable[[Native], str | None]
STEP, STEPS, PROMPTS, GROUP = "global-batch-size", "num-steps-per-rollout", "rollout-batch-size", "n-samples-per-prompt"
OVER, EPOCHS, MICRO = "over-sampling-batch-size", "num-epoch", "micro-batch-size"
CLUSTER = ("actor-num-nodes", "actor-num-gpus-per-node")
PARALLEL = tuple(f"{kind}-parallel-size" for kind in ("tensor-model", "pipeline-model", "context"))
FIRST, LAST = "rollout-max-prompt-len", "rollout-max-context-len"


def _temperature(native: Native) -> str | None:
    value = native["rollout-temperature"]
    return f"--rollout-temperature {value} samples nothing at random" if value <= 0 else None


def _two_penalties(native: Native) -> str | None:
    both = native["kl-coef"] and native["kl-loss-coef"]
    return "one of --kl-coef and --kl-loss-coef can be set" if both else None


def _two_sizes(native: Native) -> str | None:
    if not (native[STEP] and native[STEPS]) or native[STEP] == (size := rollout_size(native) // native[STEPS]):
        return None
    return f"--{STEP} {native[STEP]} is not the {size} of a rollout's {rollout_size(native)} in {native[STEPS]} steps"


def _too_few(native: Native) -> str | None:
    text = f"--{OVER} {native[OVER]} is less than the {native[PROMPTS]} prompts of a rollout"
    return text if native[OVER] and native[OVER] < (native[PROMPTS] or 0) else None


def _devices(native: Native) -> str | None:
    world, parts = native[CLUSTER[0]] * native[CLUSTER[1]], replica(native)
    return f"{world} devices are not a multiple of the {parts} of a replica" if world % parts else None


def _uneven(native: Native) -> str | None:
    """The size of a step is checked even where nothing calculates with it: 0.3.1 megatron_utils/initialize.py."""
    unit, size = native[MICRO] * replicas(native), size_of_step(native)
    return f"a step of {size} completions is not a multiple of {MICRO} x replicas = {unit}" if size % unit else None


def _no_step(native: Native) -> str | None:
    total, size = rollout_size(native), size_of_step(native)
    short = native[PROMPTS] and total < size
    return f"a rollout has {total} completions, and a step takes {size}" if short else None


def _even(native: Native) -> tuple[Fix, ...]:
    """The nearest sizes of a step that fit, beside the numbers that decide it."""

    def legal(now: Native) -> bool:
        return not any(test(now) for test in (_uneven, _no_step, _dropped))

    start = {**native, STEP: size_of_step(native), STEPS: None}
    found = nearest_fixes(start, (STEP,), legal)
    return tuple(Fix(fix.text, {**fix.changes, STEPS: None}) for fix in found)[:3]


def _dual(native: Native) -> str | None:
    bound = native["eps-clip-c"]
    wrong = bound is not None and bound <= 1 and native["advantage-estimator"] != "cispo"
    return f"--eps-clip-c {bound} must exceed 1" if wrong else None


def _lengths(native: Native) -> str | None:
    first, both = native[FIRST], native[LAST]
    wrong = both is not None and (first or 0) > both - 1
    return f"a prompt of {first} tokens leaves none of {both} to generate" if wrong else None


def _ticks(native: Native) -> int | None:
    if native["lr-decay-iters"] is not None or native["num-rollout"] is None:
        return native["lr-decay-iters"]  # type: ignore[no-any-return]
    return int(native["num-rollout"] * rollout_size(native) // size_of_step(native))


def _warmup(native: Native) -> str | None:
    if native["lr-warmup-fraction"] is not None and native["lr-warmup-iters"]:
        return "one of --lr-warmup-fraction and --lr-warmup-iters can be set"
    return None


def _long_warmup(native: Native) -> str | None:
    length, share = _ticks(native), native["lr-warmup-fraction"]
    if length is None or not length:
        return None
    steps = native["lr-warmup-iters"] if share is None else share * length
    return f"a warm-up of {steps:g} steps is not over before the schedule of {length} is" if steps >= length else None


def _floor(native: Native) -> str | None:
    peak, floor, start = native["lr"], native["min-lr"], native["lr-warmup-init"]
    return (
        f"--lr {peak:g} is below --min-lr {floor:g} or --lr-warmup-init {start:g}" if max(floor, start) > peak else None
    )


def _dropped(native: Native) -> str | None:
    total, size = rollout_size(native), size_of_step(native)
    text = f"{total % size} of a rollout's {total} completions are never trained: a step takes {size}"
    return text if total % size and total > size else None


def _more_steps(native: Native) -> str | None:
    asked, made = native[STEPS], steps_of_rollout(native)
    wrong = asked and made != asked
    return f"--{STEPS} {asked} makes {made} steps of {size_of_step(native)} completions" if wrong else None


def _default_step(native: Native) -> str | None:
    text = f"no size of a step is given, and Megatron takes {MICRO} x replicas = {size_of_step(native)} completions"
    return None if native[STEP] or native[STEPS] or not native[PROMPTS] else text


def _alone(native: Native) -> str | None:
    text = "every group has one completion, whose reward less the group's mean is 0: nothing is learned"
    compared = native["advantage-estimator"] in GROUPED and not native["disable-rewards-normalization"]
    return text if native[GROUP] == 1 and native[PROMPTS] and compared and not _no_run(native) else None


def _unread_penalty(native: Native) -> str | None:
    text = f"{native['advantage-estimator']} takes no KL from the rewards: --kl-coef {native['kl-coef']} has no effect"
    return text if native["kl-coef"] and native["advantage-estimator"] in GROUPED else None


def _unread_kl(native: Native) -> str | None:
    text = f"--kl-loss-coef {native['kl-loss-coef']} has no effect without --use-kl-loss"
    return text if native["kl-loss-coef"] and not native["use-kl-loss"] else None


def _dropout(native: Native) -> str | None:
    text = (
        f"Megatron's dropout is on, {native['attention-dropout']} and {native['hidden-dropout']}: the ratio is random"
    )
    return text if native["attention-dropout"] or native["hidden-dropout"] else None


def _ignored_epochs(native: Native) -> str | None:
    text = f"--{EPOCHS} {native[EPOCHS]} is ignored beside --num-rollout {native['num-rollout']}"
    return text if native[EPOCHS] is not None and native["num-rollout"] is not None else None


def _unread_budget(native: Native) -> str | None:
    own = native["log-probs-max-tokens-per-gpu"]
    text = f"log-probabilities are computed in the micro-batches of training, and a budget of {own} tokens is not read"
    return text if own not in (None, native["max-tokens-per-gpu"]) else None


def _short_ones(native: Native) -> str | None:
    more = (native[OVER] or 0) > (native[PROMPTS] or 0) and native["dynamic-sampling-filter-path"] is None
    text = (
        f"of {native[OVER]} prompts the {native[PROMPTS]} whose groups end first are trained: short ones are favoured"
    )
    return text if more else None


def _idle_kl(native: Native) -> str | None:
    on = native["use-kl-loss"] and native["kl-loss-coef"] and native["kl-loss-type"] == "k1"
    text = "the gradient of k1 is 0 on average where nothing moved since the sampling: it holds nothing back"
    return text if on and not native["use-unbiased-kl"] else None


def _lower(native: Native) -> str | None:
    low = native["eps-clip"]
    text = f"CISPO keeps a lower bound of {1 - low:g} where --eps-clip is below 1"
    return text if native["advantage-estimator"] == "cispo" and low < 1 else None


OWN_CODE = (
    *(
        key
        for key in RECORDED["settings"]
        if key.endswith("-path") and key.split("-")[0] in ("buffer", "data", "rollout")
    ),
    *(key for key in RECORDED["settings"] if key.startswith("custom-") and key.endswith("-path")),
)
READ = ("custom-rm-path", "custom-generate-function-path", "custom-config-path")
"""Functions whose place is known: rewards are outside of the schema, a completion is a trajectory; and a file."""


def _own_code(key: str, native: Native) -> str | None:
    value, default = native[key], RECORDED["settings"][key][1]
    if (
        value == default
        or _no_run(native)
        or (key == "custom-tis-function-path" and (value == ICEPOP or not corrected(native)))
    ):
        return None
    return f"--{key} {value}: the user's own code decides what is trained, and it is not read"


def _estimator(native: Native) -> str | None:
    kind = native["advantage-estimator"]
    return f"what {kind} makes of rewards, token by token, is not read here" if kind not in GROUPED else None


UNSAID = {
    "normalize-advantages": "advantages are whitened over the tokens of a rollout",
    "use-opd": "a teacher's log-probabilities go into the advantages",
    "keep-old-actor": "the old log-probabilities are those of an older policy",
    "mask-offpolicy-in-partial-rollout": "tokens of older weights are masked, which a run decides",
    "disable-compute-advantages-and-returns": "there are no advantages",
    "reset-optimizer-states": "the optimizer forgets its moments after each rollout",
    "use-stateless-adam": "the optimizer keeps no moments",
}


def _unsaid(key: str, native: Native) -> str | None:
    return (
        f"--{key}: {UNSAID[key]}, and the schema has no words for it" if native[key] and not _no_run(native) else None
    )


def _epochs(native: Native) -> str | None:
    whole = native[EPOCHS] in (None, 1) and not in_time(native)
    if native["num-rollout"] is not None or native[EPOCHS] is None or whole or _no_run(native):
        return None
    count = f"{native[EPOCHS]} x (prompts // {native[PROMPTS]})"
    return (
        f"--{EPOCHS} {native[EPOCHS]}: the run has {count} rollouts, and goes on into the next epoch: say --num-rollout"
    )


def _handed_over(native: Native) -> str | None:
    interval = native["update-weights-interval"]
    text = f"weights are handed over every {interval} rollouts, and the schema has no words for that age"
    return text if interval > 1 and native["program"] == "train_async.py" else None


def _other_optimizer(native: Native) -> str | None:
    if native["optimizer"] not in ("adam", "sgd"):
        return f"--optimizer {native['optimizer']} is not read"
    if native["lr-decay-style"] == "WSD":
        return "the schedule WSD is not read"
    if native["decoupled-lr"] is not None:
        return "some layers have a learning rate of their own"
    return "the weight decay moves" if native["weight-decay-incr-style"] != "constant" else None


def _file(native: Native) -> str | None:
    said = [key for key in ("custom-config-path", "yaml-cfg") if native[key] is not None]
    return f"--{said[0]} {native[said[0]]} replaces any option, and the file is not read" if said else None


def _no_run(native: Native) -> str | None:
    debugged = [key for key in DEBUGGED if native[key]]
    if debugged:
        return f"--{debugged[0]}: half of a run, to look for mistakes"
    if native["loss-type"] == "sft_loss" or native["rollout-function-path"].endswith("sft_rollout.generate_rollout"):
        return "fine-tuning on given answers, without rewards"
    return None


def _own_loss(native: Native) -> str | None:
    return "--loss-type custom_loss: the user's own loss is not read" if native["loss-type"] == "custom_loss" else None


DEBUGGED = ("debug-rollout-only", "debug-train-only", "load-debug-rollout-data")
ASSERTS, TRAINS, UNREAD = "AssertionError", "it trains so", "it is not read"
VALIDATE, MEGATRON = "slime 0.3.1 arguments.slime_validate_args", "Megatron-LM arguments.validate_args"
SCHEDULE, LOSS = "slime 0.3.1 dp_schedule.build_dp_schedule", "slime 0.3.1 loss.policy_loss_function"
CALCULATOR = "slime 0.3.1 megatron_utils/initialize.py, Megatron-LM num_microbatches_calculator"
SCHEDULER = "Megatron-LM OptimizerParamScheduler.__init__"
SIZES = (STEP, STEPS, MICRO, PROMPTS, GROUP)
Fixes = Callable[[Native], tuple[Fix, ...]]


def _row(
    number: int,
    kind: RuleKind,
    test: SlimeTest,
    keys: tuple[str, ...],
    native: str,
    source: str,
    fixes: Fixes | None = None,
) -> Rule[Native]:
    return kind(f"BB-SLIME-{number:03}", test, keys, native, source, fixes or (lambda native: ()))


def _set(**changes: object) -> Fixes:
    return lambda native: setting_fixes({key.replace("_", "-"): value for key, value in changes.items()})


def _off(key: str) -> Fixes:
    return lambda native: setting_fixes({key: RECORDED["settings"][key][1]})


RULES = (
    *recorded_rules(json.loads(Path(__file__).with_name("rules.json").read_text("utf-8")), "BB-SLIME"),
    _row(11, IN_CONFIG, _temperature, ("rollout-temperature",), "ValueError", VALIDATE, _set(rollout_temperature=1.0)),
    _row(12, IN_CONFIG, _two_penalties, ("kl-coef", "kl-loss-coef"), ASSERTS, VALIDATE, _off("kl-coef")),
    _row(17, IN_CONFIG, _two_sizes, (STEP, STEPS), ASSERTS, VALIDATE, lambda native: setting_fixes({STEP: None})),
    _row(18, IN_CONFIG, _too_few, (OVER, PROMPTS), ASSERTS, VALIDATE, _off(OVER)),
    _row(30, IN_CONFIG, _lengths, (FIRST, LAST), ASSERTS, VALIDATE, _off(LAST)),
    _row(19, IN_CONFIG, _devices, (*CLUSTER, *PARALLEL), ASSERTS, MEGATRON),
    _row(25, IN_CONFIG, _warmup, ("lr-warmup-fraction", "lr-warmup-iters"), ASSERTS, MEGATRON, _set(lr_warmup_iters=0)),
    _row(20, STARTING, _uneven, SIZES, ASSERTS, CALCULATOR, _even),
    _row(
        26,
        BUILDING,
        _long_warmup,
        ("lr-warmup-iters", "lr-warmup-fraction", "lr-decay-iters"),
        ASSERTS,
        SCHEDULER,
        _set(lr_warmup_iters=0, lr_warmup_fraction=None),
    ),
    _row(
        27,
        BUILDING,
        _floor,
        ("lr", "min-lr", "lr-warmup-init"),
        ASSERTS,
        SCHEDULER,
        _set(min_lr=0.0, lr_warmup_init=0.0),
    ),
    _row(21, GENERATING, _no_step, SIZES, ASSERTS, SCHEDULE, _even),
    _row(
        22, UPDATING, _dual, ("eps-clip-c",), ASSERTS, "slime 0.3.1 ppo_utils.compute_policy_loss", _off("eps-clip-c")
    ),
    _row(31, SILENT, _more_steps, (STEPS, PROMPTS, GROUP), TRAINS, VALIDATE),
    _row(32, SILENT, _dropped, SIZES, "it trains on the others", SCHEDULE, _even),
    _row(
        34,
        SILENT,
        _default_step,
        (STEP, STEPS),
        TRAINS,
        MEGATRON,
        lambda native: setting_fixes({STEP: rollout_size(native)}),
    ),
    _row(35, SILENT, _alone, (GROUP,), TRAINS, "slime 0.3.1 ray/rollout.RolloutManager._post_process_rewards"),
    _row(36, SILENT, _unread_penalty, ("kl-coef",), UNREAD, "slime 0.3.1 ppo_utils.get_grpo_returns", _off("kl-coef")),
    _row(37, SILENT, _unread_kl, ("kl-loss-coef", "use-kl-loss"), UNREAD, LOSS, _set(kl_loss_coef=0.0)),
    _row(
        38,
        SILENT,
        _dropout,
        ("attention-dropout", "hidden-dropout"),
        TRAINS,
        "Megatron-LM TransformerConfig",
        _set(attention_dropout=0.0, hidden_dropout=0.0),
    ),
    _row(
        39,
        SILENT,
        _ignored_epochs,
        (EPOCHS, "num-rollout"),
        "logger.info: num_epoch will be ignored",
        VALIDATE,
        _off(EPOCHS),
    ),
    _row(
        40,
        SILENT,
        _unread_budget,
        ("log-probs-max-tokens-per-gpu",),
        UNREAD,
        SCHEDULE,
        _off("log-probs-max-tokens-per-gpu"),
    ),
    _row(
        41,
        SILENT,
        _short_ones,
        (OVER, PROMPTS),
        "the others are aborted",
        "slime 0.3.1 sglang_rollout.generate_rollout_async",
        _off(OVER),
    ),
    _row(
        44,
        NOTE,
        _idle_kl,
        ("kl-loss-type",),
        TRAINS,
        "slime 0.3.1 ppo_utils.compute_approx_kl",
        _set(kl_loss_type="low_var_kl"),
    ),
    _row(
        47,
        NOTE,
        _lower,
        ("eps-clip",),
        "logger.warning: CISPO is canonically single-sided",
        VALIDATE,
        _set(eps_clip=1.0),
    ),
    _row(60, OPEN, _no_run, ("loss-type", "rollout-function-path", *DEBUGGED), TRAINS, VALIDATE),
    *(
        _row(50, OPEN, partial(_own_code, key), (key,), "it is called", VALIDATE, _off(key))
        for key in dict.fromkeys(OWN_CODE)
        if key not in READ
    ),
    _row(51, OPEN, _estimator, ("advantage-estimator",), TRAINS, "slime 0.3.1 loss.compute_advantages_and_returns"),
    *(_row(52, OPEN, partial(_unsaid, key), (key,), TRAINS, VALIDATE, _off(key)) for key in UNSAID),
    _row(54, OPEN, _epochs, (EPOCHS, OVER), TRAINS, "slime 0.3.1 ray/placement_group.create_rollout_manager"),
    _row(
        55,
        OPEN,
        _handed_over,
        ("update-weights-interval",),
        TRAINS,
        "slime 0.3.1 train_async.train",
        _off("update-weights-interval"),
    ),
    _row(
        56,
        OPEN,
        _other_optimizer,
        ("optimizer", "lr-decay-style", "decoupled-lr", "weight-decay-incr-style"),
        TRAINS,
        MEGATRON,
    ),
    _row(57, OPEN, _file, ("custom-config-path", "yaml-cfg"), "setattr of any option", VALIDATE),
    _row(58, OPEN, _own_loss, ("loss-type",), "it is called", "slime 0.3.1 loss.loss_function", _off("loss-type")),
)
"""In slime's order, then Megatron's; below them what is silent, and what is left open."""
