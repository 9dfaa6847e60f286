"""Rules that AReaL refuses by, or that let something else be trained than one would think: `rules.json` has values that
do not go together; numbers that do not fit, and what is left open, are here."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from batchbridge import Fix
from batchbridge.kit.rule_table import (
    GENERATING,
    IN_CONFIG,
    NOTE,
    OPEN,
    SILENT,
    UPDATING,
    WRONG,
    Rule,
    RuleKind,
    nearest_fixes,
    recorded_rules,
    setting_fixes,
)
from batchbridge_areal.settings import (
    MANDATORY,
    ArealSettings,
    against_nothing,
    allocation,
    compares_groups,
    engine,
    rows_vary,
    share,
)

ArealTest = Callable[[ArealSettings], str | None]
BATCH, GROUP, PARTS, BACKEND = (
    "train_dataset.batch_size",
    "gconfig.n_samples",
    "actor.ppo_n_minibatches",
    "actor.backend",
)
AGE, ADMITTED, QUEUE = "rollout.max_head_offpolicyness", "rollout.consumer_batch_size", "rollout.queue_size"
RUNNING, NORMS = "rollout.max_concurrent_rollouts", ("actor.reward_norm", "actor.adv_norm")
REJECTION, LENGTH, DROPS = "actor.rejection_sampling", "total_train_steps", "train_dataset.drop_last"
FLOOR, SCHEDULE = "actor.optimizer.min_lr_ratio", "actor.optimizer.lr_scheduler_type"


def _backend(native: ArealSettings) -> str | None:
    if allocation(native):
        return None
    said = native[BACKEND]
    if said is None:
        old = f": {native['allocation_mode']} in allocation_mode is read by the launcher alone"
        return f"{BACKEND} is not said{old if native['allocation_mode'] else ''}"
    return f"{BACKEND} = {said}: expected an engine and its dimensions, such as fsdp:d4t2"


def _missing(native: ArealSettings) -> str | None:
    missing = [key for key in MANDATORY if native[key] is None]
    return f"{', '.join(missing)}: not said, and there is no default" if missing else None


def _named(native: ArealSettings) -> tuple[Fix, ...]:
    return setting_fixes({key: value for key, value in MANDATORY.items() if native[key] is None})


def _dimensions(native: ArealSettings) -> str | None:
    name, sizes = allocation(native) or ("", {})
    wrong = name == "fsdp" and (sizes["p"] > 1 or sizes["e"] > 1)
    return f"{BACKEND} = {native[BACKEND]}: FSDP has no pipeline and no experts of its own" if wrong else None


def _experts(native: ArealSettings) -> str | None:
    said = native[BACKEND] or ""
    _, sizes = allocation(native) or ("", None)
    if sizes is None or "ffn" in said or sizes["e"] == 1:
        return None
    devices, part = sizes["d"] * sizes["t"] * sizes["p"] * sizes["c"], sizes["e"] * sizes["p"]
    return f"{devices} devices are not a multiple of the {part} that share the experts" if devices % part else None


def _epochs(native: ArealSettings) -> str | None:
    count = native["total_train_epochs"]
    return f"total_train_epochs = {count} must be positive" if count <= 0 else None


def _divides(native: ArealSettings) -> str | None:
    _, sizes = allocation(native) or ("", {"d": 1})
    text = f"{native[BATCH]} prompts of a rollout are not a multiple of the {sizes['d']} replicas of {native[BACKEND]}"
    return text if native[BATCH] % sizes["d"] else None


def _few(native: ArealSettings) -> str | None:
    own = share(native)
    text = f"a replica has {own} completions of a rollout, too few for {PARTS} = {native[PARTS]}"
    return text if own < native[PARTS] and not rows_vary(native) and not _divides(native) else None


def _even(native: ArealSettings) -> tuple[Fix, ...]:
    return nearest_fixes(dict(native), (BATCH, PARTS), lambda now: not (_divides(now) or _few(now)))


def _queue(native: ArealSettings) -> str | None:
    room = native[QUEUE] or 16 * (native[RUNNING] or native[ADMITTED])
    text = f"the queue has room for {room} prompts, and a rollout takes {native[BATCH]}"
    return text if room < native[BATCH] else None


def _ends(native: ArealSettings) -> int | None:
    """Rollouts after which no prompt is admitted any more; None where the run goes on.

    Prompts are admitted up to (age + version + 1) x consumer_batch_size, and a rollout of version v ends when
    (v + 1) x batch_size are accepted.
    """
    batch, admitted, last = native[BATCH], max(native[ADMITTED], 1), native[LENGTH]
    if admitted >= batch:
        return None
    ended = int(native[AGE] * admitted // (batch - admitted))
    return None if last is not None and last <= ended else ended


def _waits(native: ArealSettings) -> str:
    return (
        f"{native[ADMITTED]} prompts are admitted for each version of the weights, and a rollout takes {native[BATCH]}"
    )


def _starved(native: ArealSettings) -> str | None:
    return f"{_waits(native)}: the first rollout waits for ever" if _ends(native) == 0 else None


def _starved_later(native: ArealSettings) -> str | None:
    return f"{_waits(native)}: after {ended} rollouts the run waits for ever" if (ended := _ends(native)) else None


def _ahead(native: ArealSettings) -> str | None:
    batch, admitted = native[BATCH], native[ADMITTED]
    text = f"{admitted} prompts are admitted for each version of the weights, and {batch} are trained on: {AGE}"
    return f"{text} = {native[AGE]} bounds no age" if admitted > batch else None


def _dual(native: ArealSettings) -> str | None:
    bound = native["actor.c_clip"]
    wrong = bound is not None and bound <= 1 and not native["actor.use_sapo_loss"]
    return f"actor.c_clip = {bound} must exceed 1" if wrong else None


def _temperatures(native: ArealSettings) -> str | None:
    found = [native[f"actor.sapo_tau_{end}"] for end in ("pos", "neg")]
    wrong = native["actor.use_sapo_loss"] and min(found) <= 0
    return f"actor.sapo_tau_pos and _neg = {found[0]} and {found[1]} must be positive" if wrong else None


def _bounds(native: ArealSettings) -> str | None:
    """Source: RejectionSamplingConfig.__post_init__, in its order."""
    if (said := native[REJECTION]) is None:
        return None
    lower, upper, metric = said["lower"], said["upper"], said["metric"]
    if lower is not None and lower > upper:
        return f"{REJECTION}: lower {lower} exceeds upper {upper}"
    if metric == "ratio" and (upper <= 1 or (lower is not None and lower <= 0)):
        return f"{REJECTION}: a ratio is bounded by an upper above 1 and a lower above 0"
    if metric in ("kl_k2", "kl_k3") and upper <= 0:
        return f"{REJECTION}: upper {upper} of {metric} must be positive"
    wrong = said["action"] == "clamp" and metric != "ratio"
    return f"{REJECTION}: only a ratio is clamped, {metric} is not" if wrong else None


def _groups(native: ArealSettings) -> str | None:
    if not compares_groups(native) or rows_vary(native):
        return None
    wrong = [
        key
        for key in NORMS
        if native[key] is not None
        and "group" in (native[key]["mean_level"], native[key]["std_level"])
        and native[key]["group_size"] != native[GROUP]
    ]
    if not wrong:
        return None
    size = native[wrong[0]]["group_size"]
    return f"{wrong[0]}.group_size = {size}, and a prompt has {native[GROUP]} completions: other rows are compared"


def _same_groups(native: ArealSettings) -> tuple[Fix, ...]:
    changes = {
        key: {**native[key], "group_size": native[GROUP]}
        for key in NORMS
        if native[key] is not None and native[key]["group_size"] != native[GROUP]
    }
    return setting_fixes(changes)


def _alone(native: ArealSettings) -> str | None:
    norm = native["actor.reward_norm"]
    centred = norm is not None and norm["mean_level"] == "group" and not norm["mean_leave1out"]
    text = "every group has one completion, whose reward less the group's mean is 0: nothing is learned"
    return text if native[GROUP] == 1 and centred and native["critic"] is None and not rows_vary(native) else None


def _no_reference(native: ArealSettings) -> str | None:
    text = f"actor.kl_ctl = {native['actor.kl_ctl']} and no reference: log-probabilities themselves are held back"
    return text if against_nothing(native) else None


def _unread_rejection(native: ArealSettings) -> str | None:
    said = native[REJECTION]
    text = f"{REJECTION} has no effect without actor.use_decoupled_loss: its ratio is 1"
    return text if said is not None and not native["actor.use_decoupled_loss"] and not _cut(native) else None


def _cut(native: ArealSettings) -> str | None:
    """Source: grpo_loss_fn hands it on; of a ratio of 1, or an estimate of 0, what is out of bounds is everything."""
    said = native[REJECTION]
    if said is None or native["actor.use_decoupled_loss"] or native["actor.use_sapo_loss"]:
        return None
    found, least = (1.0 if said["metric"] == "ratio" else 0.0), said["lower"]
    out = found > said["upper"] or (least is not None and found < least)
    return (
        f"{REJECTION}: without actor.use_decoupled_loss every ratio is 1, which is out of its bounds" if out else None
    )


def _sampled(native: ArealSettings) -> str | None:
    mine, theirs = native["actor.temperature"], native["gconfig.temperature"]
    text = (
        f"actor.temperature = {mine}, and completions are sampled at gconfig.temperature = {theirs}: the ratio is off"
    )
    return text if mine != theirs else None


def _unended(native: ArealSettings) -> str | None:
    text = "the longest row of each replica counts as one that was cut, however it ended, and its reward becomes 0"
    return f"actor.mask_no_eos_with_zero: {text}" if native["actor.mask_no_eos_with_zero"] else None


def _unread_floor(native: ArealSettings) -> str | None:
    idle = (native[SCHEDULE] == "linear" and engine(native) in ("fsdp", "archon")) or native[SCHEDULE] == "constant"
    return f"{FLOOR} = {native[FLOOR]} has no effect on {native[SCHEDULE]}" if native[FLOOR] and idle else None


def _erased(native: ArealSettings) -> str | None:
    erased = native["actor.optimizer.gradient_clipping"] == 0 and engine(native) != "megatron"
    return "actor.optimizer.gradient_clipping = 0 makes every gradient 0" if erased else None


def _fewer(native: ArealSettings) -> str | None:
    _, sizes = allocation(native) or ("", {"d": 1})
    text = f"dynamic_bs: where groups are rejected, the others must be a multiple of the {sizes['d']} replicas"
    return text if native["dynamic_bs"] and sizes["d"] > 1 else None


def _wrapped_epochs(native: ArealSettings) -> str | None:
    text = "rollouts go on into the next epoch, and each epoch is counted as its prompts / a rollout, rounded up"
    return f"{DROPS}: {text}" if not native[DROPS] and native["total_train_epochs"] > 1 else None


def _critic(native: ArealSettings) -> str | None:
    return (
        "critic: what values make of rewards, token by token, is not read here"
        if native["critic"] is not None
        else None
    )


def _teacher(native: ArealSettings) -> str | None:
    text = "teacher: a distance to its log-probabilities goes into the loss, and the schema has no words for it"
    return text if native["teacher"] is not None else None


def _online(native: ArealSettings) -> str | None:
    agent = native["rollout.agent"]
    online = isinstance(agent, Mapping) and agent.get("mode") == "online"
    return "rollout.agent.mode = online: users decide which prompts come, and when" if online else None


def _no_run(native: ArealSettings) -> str | None:
    kind = native["train_dataset.type"]
    if kind in ("sft", "dpo", "rw", "rm"):
        return f"train_dataset.type = {kind}: training on what is given, without rollouts"
    alone = native[BACKEND] is None and not native["actor.path"] and not native["allocation_mode"]
    return "no policy is said: rollouts alone" if alone and native["rollout.backend"] is not None else None


STOPS, TRAINS, ASSERTS = "ValueError", "it trains so", "AssertionError"
CONFIG, TRAINER, ACTOR = (
    "AReaL 1.0.4 api/cli_args.",
    "AReaL 1.0.4 trainer/rl_trainer.",
    "AReaL 1.0.4 trainer/ppo/actor.",
)
ALLOCATION, ADMISSION = (
    "AReaL 1.0.4 api/alloc_mode.",
    "AReaL 1.0.4 infra/staleness_manager.StalenessManager.get_capacity",
)
EXECUTOR = "AReaL 1.0.4 infra/workflow_executor."
ArealFixes = Callable[[ArealSettings], tuple[Fix, ...]]


def _row(
    number: int,
    kind: RuleKind,
    test: ArealTest,
    keys: tuple[str, ...],
    native: str,
    source: str,
    fixes: ArealFixes = lambda native: (),
) -> Rule[ArealSettings]:
    def asked(settings: ArealSettings) -> str | None:
        return None if number < 60 and _no_run(settings) else test(settings)

    return kind(f"BB-AREAL-{number:03}", asked, keys, native, source, fixes)


def _set(changes: Mapping[str, object]) -> ArealFixes:
    return lambda native: setting_fixes(changes)


def _admit(native: ArealSettings) -> tuple[Fix, ...]:
    return setting_fixes({ADMITTED: native[BATCH]})


def _rows() -> Iterator[Rule[ArealSettings]]:
    yield _row(
        10, IN_CONFIG, _backend, (BACKEND,), "MissingMandatoryValue, or ValueError", f"{TRAINER}PPOTrainer.__init__"
    )
    yield _row(11, IN_CONFIG, _dimensions, (BACKEND,), "AllocationValidationError", f"{ALLOCATION}ModelAllocation")
    yield _row(12, IN_CONFIG, _experts, (BACKEND,), ASSERTS, f"{ALLOCATION}ParallelStrategy.__post_init__")
    yield _row(13, IN_CONFIG, _epochs, ("total_train_epochs",), STOPS, f"{CONFIG}BaseExperimentConfig")
    yield _row(
        14, IN_CONFIG, _temperatures, ("actor.sapo_tau_pos", "actor.sapo_tau_neg"), STOPS, f"{CONFIG}PPOActorConfig"
    )
    yield _row(15, IN_CONFIG, _bounds, (REJECTION,), STOPS, f"{CONFIG}RejectionSamplingConfig")
    yield _row(22, IN_CONFIG, _missing, tuple(MANDATORY), "MissingMandatoryValue", f"{CONFIG}load_expr_config", _named)
    yield _row(
        17,
        GENERATING,
        _queue,
        (QUEUE, RUNNING, BATCH),
        STOPS,
        f"{EXECUTOR}BatchTaskDispatcher",
        lambda native: setting_fixes({QUEUE: native[BATCH]}),
    )
    yield _row(18, WRONG, _starved, (ADMITTED, AGE, BATCH), "it waits for ever", ADMISSION, _admit)
    yield _row(
        19, UPDATING, _divides, (BATCH, BACKEND), STOPS, "AReaL 1.0.4 utils/seqpack.balanced_greedy_partition", _even
    )
    yield _row(
        20, UPDATING, _few, (PARTS, BATCH, GROUP), "RuntimeError", "AReaL 1.0.4 utils/seqpack.ffd_allocate", _even
    )
    yield _row(21, UPDATING, _dual, ("actor.c_clip",), ASSERTS, f"{ACTOR}grpo_loss_fn", _set({"actor.c_clip": None}))
    yield _row(30, WRONG, _groups, NORMS, TRAINS, "AReaL 1.0.4 utils/data.Normalization", _same_groups)
    yield _row(
        31, WRONG, _erased, ("actor.optimizer.gradient_clipping",), "clips to 0", "AReaL 1.0.4 fsdp_utils/grad.py"
    )
    yield _row(32, WRONG, _cut, (REJECTION,), TRAINS, f"{ACTOR}grpo_loss_fn", _set({REJECTION: None}))
    yield _row(
        33, SILENT, _no_reference, ("actor.kl_ctl", "ref"), TRAINS, f"{ACTOR}PPOActor", _set({"actor.kl_ctl": 0.0})
    )
    yield _row(34, SILENT, _alone, (GROUP,), TRAINS, "AReaL 1.0.4 utils/data.Normalization")
    yield _row(35, SILENT, _ahead, (ADMITTED, BATCH), TRAINS, ADMISSION, _admit)
    yield _row(
        36,
        SILENT,
        _unread_rejection,
        (REJECTION,),
        "logger.warning",
        f"{CONFIG}PPOActorConfig",
        _set({REJECTION: None}),
    )
    yield _row(
        37, SILENT, _sampled, ("actor.temperature", "gconfig.temperature"), TRAINS, "AReaL 1.0.4 engine/fsdp_engine.py"
    )
    yield _row(38, SILENT, _unended, ("actor.mask_no_eos_with_zero",), TRAINS, f"{ACTOR}PPOActor._compute_advantages")
    yield _row(39, NOTE, _unread_floor, (FLOOR, SCHEDULE), "it is not read", "AReaL 1.0.4 FSDPEngine._create_optimizer")
    yield _row(40, NOTE, _fewer, ("dynamic_bs",), STOPS, "AReaL 1.0.4 utils/seqpack.balanced_greedy_partition")
    yield _row(42, SILENT, _starved_later, (ADMITTED, AGE, BATCH), "it waits for ever", ADMISSION, _admit)
    yield _row(50, OPEN, _critic, ("critic",), TRAINS, f"{TRAINER}PPOTrainer.train")
    yield _row(51, OPEN, _teacher, ("teacher",), TRAINS, f"{ACTOR}grpo_loss_fn")
    yield _row(52, OPEN, _wrapped_epochs, (DROPS, "total_train_epochs"), TRAINS, f"{TRAINER}PPOTrainer.train")
    yield _row(53, OPEN, _online, ("rollout.agent",), TRAINS, f"{TRAINER}PPOTrainer.__init__")
    yield _row(60, OPEN, _no_run, ("train_dataset.type",), TRAINS, f"{CONFIG}SFTConfig, DPOConfig, RWConfig")
    yield from recorded_rules(json.loads(Path(__file__).with_name("rules.json").read_text("utf-8")), "BB-AREAL")


RULES = tuple(sorted(_rows(), key=lambda rule: (rule.undecided, rule.code)))
"""In AReaL's order; below them what is left open."""
