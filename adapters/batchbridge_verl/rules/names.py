"""Names that verl looks up late: of optimizers, schedules, precisions, KL estimators and rollout corrections."""

from __future__ import annotations

from collections.abc import Iterator

from batchbridge import Fix
from batchbridge.kit.rule_table import STARTING, UPDATING, Rules, says
from batchbridge_verl.meaning import precision_key, schedule_key
from batchbridge_verl.rules.row import CORRECTION, one_of
from batchbridge_verl.rules.ways_out import setting
from batchbridge_verl.run import VerlRun
from batchbridge_verl.settings import ACTOR, holds
from batchbridge_verl.terms import OPTIMIZERS, PRECISIONS, SCHEDULES, TORCH_IMPLEMENTATION, kl_estimators, optimizer_key

_OPTIM = f"{ACTOR}optim."
_OPTIMIZER, _IMPLEMENTATION = f"{_OPTIM}optimizer", f"{_OPTIM}optimizer_impl"
_ARGUMENTS = f"{_OPTIM}override_optimizer_config"
_MIXED = f"{ACTOR}fsdp_config.mixed_precision."
_IN_REWARD, _IN_LOSS = "algorithm.use_kl_in_reward", f"{ACTOR}use_kl_loss"
_REWARD_KL, _LOSS_KL = "algorithm.kl_penalty", f"{ACTOR}kl_loss_type"
_IS, _RS = f"{CORRECTION}rollout_is", f"{CORRECTION}rollout_rs"
_WITHOUT_BETAS = ("SGD", "ASGD", "Adadelta", "Adafactor", "Adagrad", "RMSprop")
_BUILD = "verl 0.6.1 to 0.9.1 workers/config/optimizer.py build_optimizer"

CORRECTION_LEVELS = ("token", "sequence")
"""Source: verl 0.6.1 to 0.9.1 rollout_corr_helper.compute_rollout_correction_weights."""
REJECTIONS = ("token", "sequence", "geometric")
"""Source: verl 0.6.1 to 0.7.0 rollout_corr_helper.compute_rollout_rejection_mask."""
NEW_REJECTIONS = (
    *("token_k1", "token_k2", "token_k3", "seq_sum_k1", "seq_sum_k2", "seq_sum_k3"),
    *("seq_mean_k1", "seq_mean_k2", "seq_mean_k3", "seq_max_k2", "seq_max_k3"),
)
"""Names of which any number may stand, with commas. Source: verl 0.7.1 to 0.9.1 SUPPORTED_ROLLOUT_RS_OPTIONS."""

RULES = Rules[VerlRun]()


def _first_optimizer(run: VerlRun) -> tuple[Fix, ...]:
    return setting(optimizer_key(run.engine, run.version) or "", next(iter(OPTIMIZERS[run.engine])))(run)


@RULES.add(STARTING, "BB-VERL-081", _OPTIMIZER, f"{_OPTIM}name", _IMPLEMENTATION, fixes=_first_optimizer)
@says(
    "AttributeError: Optimizer '...' not found in module 'torch.optim'; or TypeError: it takes no weight_decay",
    f"{_BUILD}; Megatron-Core get_megatron_optimizer; VeOmni build_optimizer",
)
def _optimizer(run: VerlRun) -> str | None:
    key = optimizer_key(run.engine, run.version)
    if key is None or (run.engine == "fsdp" and run[_IMPLEMENTATION] != TORCH_IMPLEMENTATION):
        return None
    names = [name for name in OPTIMIZERS[run.engine] if name != "muon" or holds(">=0.9.0", run.version)]
    return one_of(key, run[key], names)


@RULES.add(
    STARTING, "BB-VERL-081", f"{_ARGUMENTS}.eps", f"{_ARGUMENTS}.betas", _OPTIMIZER, fixes=setting(_ARGUMENTS, None)
)
@says(
    "TypeError: ... got an unexpected keyword argument 'eps'; or TypeError: ... got an unexpected keyword argument "
    "'betas'",
    _BUILD,
)
def _no_epsilon(run: VerlRun) -> str | None:
    """An argument that the optimizer's class does not take."""
    if run.engine != "fsdp" or run[_IMPLEMENTATION] != TORCH_IMPLEMENTATION:
        return None
    key, name = optimizer_key(run.engine, run.version), str(run[_OPTIMIZER])
    for argument, without in (("eps", ("SGD", "ASGD")), ("betas", _WITHOUT_BETAS)):
        given = f"{_ARGUMENTS}.{argument}"
        if key is not None and run[given] is not None and name in without:
            return f"{given} = {run[given]}: torch.optim.{name} takes no {argument}"
    return None


def _first_schedule(run: VerlRun) -> tuple[Fix, ...]:
    return setting(schedule_key(run) or "", SCHEDULES[run.engine][0])(run)


_SCHEDULES = [f"{_OPTIM}{name}" for name in ("warmup_style", "lr_scheduler_type", "lr_decay_style", "decay_type")]


@RULES.add(STARTING, "BB-VERL-082", *_SCHEDULES, fixes=_first_schedule)
@says(
    "NotImplementedError: Warmup style ... is not supported; Exception: ... decay style is not supported",
    "verl 0.4.0 to 0.5.0 fsdp_workers.py; Megatron-Core OptimizerParamScheduler.get_lr; VeOmni build_lr_scheduler; "
    "torchtitan LRSchedulersContainer",
)
def _schedule(run: VerlRun) -> str | None:
    key = schedule_key(run)
    if key is None or (run.engine == "fsdp" and holds(">=0.6.0", run.version)):
        return None  # none is read, or a dataclass looks at it: BB-VERL-057
    return one_of(key, run[key], [name for name in SCHEDULES[run.engine] if name != "cosine_with_min_lr"])


def _bf16(run: VerlRun) -> tuple[Fix, ...]:
    return setting(precision_key(run) or "", "bf16")(run)


_PRECISIONS = [*(f"{_MIXED}{name}_dtype" for name in ("param", "reduce", "buffer")), f"{ACTOR}fsdp_config.dtype"]


@RULES.add(STARTING, "BB-VERL-083", *_PRECISIONS, fixes=_bf16)
@says("RuntimeError: unexpected precision: ...", "verl 0.4.0 to 0.9.1 utils/torch_dtypes.py PrecisionType.to_dtype")
def _precision(run: VerlRun) -> str | None:
    key = precision_key(run)
    mixed = (f"{_MIXED}reduce_dtype", f"{_MIXED}buffer_dtype") if run.engine == "fsdp" else ()
    keys = () if run.engine == "megatron" or key is None else (key,)
    for name in (*keys, *(name for name in mixed if run[name] is not None)):
        if (message := one_of(name, run[name], tuple(PRECISIONS))) is not None:
            return message
    return None


def _other_estimator(run: VerlRun) -> tuple[Fix, ...]:
    return setting(_LOSS_KL if run[_IN_LOSS] else _REWARD_KL, "k3")(run)


@RULES.add(UPDATING, "BB-VERL-084", _LOSS_KL, _REWARD_KL, fixes=_other_estimator)
@says(
    "NotImplementedError, without a message, in core_algos.kl_penalty_forward; a trailing + before 0.8.0 too",
    "verl 0.4.0 to 0.9.1 core_algos.kl_penalty",
)
def _kl_estimator(run: VerlRun) -> str | None:
    for switch, key in ((_IN_LOSS, _LOSS_KL), (_IN_REWARD, _REWARD_KL)):
        if run[switch] and (message := one_of(key, run[key], kl_estimators(run.version))):
            return message
    return None


def _is_positive(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return False
    try:
        return float(value) > 0 and "_" not in str(value)
    except ValueError:
        return False


def _is_range(value: object) -> bool:
    lower, mark, upper = value.partition("_") if isinstance(value, str) else ("", "", "")
    return bool(mark) and _is_positive(lower.strip()) and _is_positive(upper.strip()) and float(lower) <= float(upper)


def _wrong_corrections(run: VerlRun) -> Iterator[str]:
    level, bound = run[_IS], run[f"{_IS}_threshold"]
    if level is not None:
        if (message := one_of(_IS, level, CORRECTION_LEVELS)) is not None:
            yield message
        texts = holds(">=0.8.0", run.version)
        if not (_is_positive(bound) or (texts and _is_range(bound))):
            what = "a positive number" + (" or LOWER_UPPER" if texts else "")
            yield f"{_IS}_threshold = {bound}: must be {what}"
    rejection, bounds = run[_RS], run[f"{_RS}_threshold"]
    if rejection is None:
        return
    several = holds(">=0.7.1", run.version)
    options = [option.strip() for option in rejection.split(",")] if several else [rejection]
    for option in options:
        if (message := one_of(_RS, option, NEW_REJECTIONS if several else REJECTIONS)) is not None:
            yield message
    parts = bounds.split(",") if several and isinstance(bounds, str) else [bounds]
    right = all(_is_positive(part) or (several and _is_range(part)) for part in parts)
    if not right or len(parts) not in (1, len(options)):
        yield f"{_RS}_threshold = {bounds}: must be a positive bound, or one for each of {rejection}"


def _without_correction(run: VerlRun) -> tuple[Fix, ...]:
    """Without the correction that is wrong, or without both where both are."""
    wrong = tuple(_wrong_corrections(run))
    changes = {key: None for key in (_IS, _RS) if any(message.startswith(key) for message in wrong)}
    return (Fix(", ".join(f"{key}=null" for key in changes), changes),)


@RULES.add(UPDATING, "BB-VERL-085", _IS, f"{_IS}_threshold", _RS, f"{_RS}_threshold", fixes=_without_correction)
@says(
    "ValueError: Invalid rollout_is: ...; or of rollout_rs, or of a threshold",
    "verl 0.6.1 to 0.9.1 trainer/ppo/rollout_corr_helper.py",
)
def _correction(run: VerlRun) -> str | None:
    return next(_wrong_corrections(run), None)
