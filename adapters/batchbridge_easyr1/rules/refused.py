"""EasyR1's own refusals: while it builds its trainer and its workers, at the first rollout, or at the first update."""

from __future__ import annotations

from collections.abc import Mapping

from batchbridge import Fix
from batchbridge.kit.rule_table import BUILDING, GENERATING, STARTING, UPDATING, Rules, says, setting_fixes
from batchbridge_easyr1 import settings as names
from batchbridge_easyr1.meaning import estimators_of
from batchbridge_easyr1.rules.fixes import known, near, rollout_fixes, setting
from batchbridge_easyr1.rules.refused_sizes import DRIVER, generation_chunks
from batchbridge_easyr1.run import EasyR1Run
from batchbridge_easyr1.settings import AGGREGATIONS, KL_ESTIMATORS, KL_TYPES, OPTIMIZERS, SCHEDULES

_KL_PENALTY, _KL_TYPE, _KL_HORIZON = "algorithm.kl_penalty", "algorithm.kl_type", "algorithm.kl_horizon"
_OPTIMIZER, _SCHEDULE = f"{names.ACTOR}optim.strategy", f"{names.ACTOR}optim.lr_scheduler_type"

RULES = Rules[EasyR1Run]()


@RULES.add(GENERATING, "BB-EZR1-024", names.ESTIMATOR, fixes=setting(names.ESTIMATOR, "grpo"))
@says(
    "AttributeError: 'WorkerConfig' object has no attribute ...; from 2025-10 on also a RuntimeError",
    "EasyR1 fsdp_workers.py:452, core_algos.py:163 (run at 0.3.3.dev0; by reading before)",
)
def _broken_gae(run: EasyR1Run) -> str | None:
    broken = run[names.ESTIMATOR] == "gae"
    return f"{names.ESTIMATOR} = gae cannot run: the critic reads settings that it is not given" if broken else None


RULES.add(UPDATING, "BB-EZR1-027", names.MODE, fixes=setting(names.MODE, "token"))(
    says("NotImplementedError: Unknown mode", "EasyR1 core_algos.average_loss")(known(names.MODE, AGGREGATIONS))
)


@RULES.add(BUILDING, "BB-EZR1-029", names.ESTIMATOR, fixes=setting(names.ESTIMATOR, "grpo"))
@says("NotImplementedError: Unknown advantage estimator", DRIVER)
def _unknown_estimator(run: EasyR1Run) -> str | None:
    return known(names.ESTIMATOR, estimators_of(run.version))(run)


def _kl_penalty(run: EasyR1Run, in_loss: bool) -> str | None:
    if not run.has_kl or run["algorithm.use_kl_loss"] is not in_loss:
        return None
    if run[_KL_PENALTY] == "full":
        if in_loss and run[names.MICRO] == 1:
            return None  # one number for one row does fit
        return f"{_KL_PENALTY} = full sums over the tokens, which then do not fit the mask of the responses"
    return known(_KL_PENALTY, KL_ESTIMATORS)(run)


@RULES.add(GENERATING, "BB-EZR1-032", _KL_PENALTY, fixes=setting(_KL_PENALTY, "low_var_kl"))
@says(
    "NotImplementedError: Unknown KL penalty; full: RuntimeError",
    "EasyR1 core_algos.compute_kl, trainer/ray_trainer.py apply_kl_penalty",
)
def _kl_penalty_in_rewards(run: EasyR1Run) -> str | None:
    return _kl_penalty(run, in_loss=False)


@RULES.add(UPDATING, "BB-EZR1-032", _KL_PENALTY, fixes=setting(_KL_PENALTY, "low_var_kl"))
@says(
    "NotImplementedError: Unknown KL penalty; full: RuntimeError",
    "EasyR1 core_algos.compute_kl, dp_actor.py update_policy",
)
def _kl_penalty_in_loss(run: EasyR1Run) -> str | None:
    return _kl_penalty(run, in_loss=True)


@RULES.add(BUILDING, "BB-EZR1-034", names.PROMPTS, names.MINI_ROLLOUT, fixes=rollout_fixes)
@says("AssertionError: len(train_dataloader) >= 1", "EasyR1 trainer/data_loader.py create_dataloader")
def _no_batch(run: EasyR1Run) -> str | None:
    count, size = run.prompts_in_dataset, run.prompts_at_once
    broken = count is not None and run.plain and size >= 1 and count < size
    return f"the dataset's {count} prompts do not fill one batch of {size}" if broken else None


def _more_tries(run: EasyR1Run) -> tuple[Fix, ...]:
    size = -(-run[names.PROMPTS] // run[names.MAX_TRIES])
    return setting_fixes({names.MAX_TRIES: -1}, {names.MINI_ROLLOUT: size})


@RULES.add(GENERATING, "BB-EZR1-035", names.MINI_ROLLOUT, names.PROMPTS, names.MAX_TRIES, fixes=_more_tries)
@says(
    "RuntimeError (ValueError before 0.3.3): num_try_make_batch >= max_try_make_batch. Generated too many. Also "
    "without online_filtering.",
    "EasyR1 trainer/ray_trainer.py _make_batch_data",
    ">=0.3.1",
)
def _too_many_batches(run: EasyR1Run) -> str | None:
    tries, size = run[names.MAX_TRIES], run.prompts_at_once
    if tries < 1 or size < 1 or not run.plain or tries * size >= run[names.PROMPTS]:
        return None
    batches = f"{run.key_and_value(names.MAX_TRIES)} batches of {names.MINI_ROLLOUT} = {size} prompts"
    return f"{batches} stay below {run.key_and_value(names.PROMPTS)}"


@near(names.FORWARD, names.PROMPTS, names.GROUP)
def _forward_fixes(run: EasyR1Run, v: Mapping[str, int]) -> bool:
    completions = v[names.PROMPTS] * v[names.GROUP]
    block = completions // run.world * run[run.ulysses_key]
    return completions % run.world == 0 and block % v[names.FORWARD] == 0 and v[names.PROMPTS] % v[names.BATCH] == 0


@RULES.add(
    GENERATING, "BB-EZR1-036", names.FORWARD, names.PROMPTS, names.GROUP, names.NODES, names.GPUS, fixes=_forward_fixes
)
@says(
    "AssertionError: only support equal split. Got size of DataProto ... and split ... (ZeroDivisionError before "
    "0.3.2 where there are too few)",
    "EasyR1 protocol.py:583, dp_actor.py compute_log_prob",
)
def _forward_splits(run: EasyR1Run) -> str | None:
    size = run[names.FORWARD]
    if run[names.DYNAMIC] or not run.plain or size < 1 or not run.replicas or run.completions_per_rollout % run.world:
        return None
    if run.pieces(run.block, size) is not None:
        return None
    return f"{run.block} completions of each replica cannot be cut into parts of {run.key_and_value(names.FORWARD)}"


@near(names.PROMPTS, names.GROUP)
def _balance_fixes(run: EasyR1Run, v: Mapping[str, int]) -> bool:
    return v[names.PROMPTS] * v[names.GROUP] % run.world == 0 and v[names.PROMPTS] % v[names.BATCH] == 0


@RULES.add(GENERATING, "BB-EZR1-047", names.PROMPTS, names.GROUP, names.NODES, names.GPUS, fixes=_balance_fixes)
@says(
    "AssertionError: ... % ... != 0, after generation",
    "EasyR1 utils/seqlen_balancing.py karmarkar_karp, called by trainer/ray_trainer.py _balance_batch (run)",
    ">=0.3.1",
)
def _balance(run: EasyR1Run) -> str | None:
    if not run.plain or run.completions_per_rollout % run.world == 0 or generation_chunks(run):
        return None
    return f"{run.completions_per_rollout} completions of a rollout are not a multiple of {run.world} devices"


@RULES.add(GENERATING, "BB-EZR1-048", names.GROUP, names.ESTIMATOR, fixes=setting(names.GROUP, 5))
@says(
    "AssertionError: GRPO needs rollout.n > 1.",
    "EasyR1 core_algos.compute_grpo_passk_outcome_advantage (run)",
    ">=0.3.3.dev0",
)
def _single_passk(run: EasyR1Run) -> str | None:
    if run[names.ESTIMATOR] != "grpo_passk" or run[names.GROUP] != 1:
        return None
    return f"{names.GROUP} = 1 with {names.ESTIMATOR} = grpo_passk: a group needs more than one completion"


@RULES.add(BUILDING, "BB-EZR1-037", names.PROMPTS, names.CRITIC_BATCH, fixes=setting(names.ESTIMATOR, "grpo"))
@says("ValueError: Rollout batch size must be divisible by critic global batch size.", DRIVER)
def _critic_steps(run: EasyR1Run) -> str | None:
    size = run[names.CRITIC_BATCH]
    if run[names.ESTIMATOR] != "gae" or not run.plain or size < 1 or run[names.PROMPTS] % size == 0:
        return None
    return f"{run.key_and_value(names.PROMPTS)} (prompts) is not a multiple of {names.CRITIC_BATCH} = {size} (prompts)"


@RULES.add(
    BUILDING, "BB-EZR1-038", names.PROMPTS, names.GROUP, names.CRITIC_FORWARD, fixes=setting(names.ESTIMATOR, "grpo")
)
@says("ValueError: Rollout batch size * rollout.n must be divisible by critic micro batch size for experience.", DRIVER)
def _critic_experience(run: EasyR1Run) -> str | None:
    size = run[names.CRITIC_FORWARD]
    if run[names.ESTIMATOR] != "gae" or not run.plain or size < 1 or run.completions_per_rollout % size == 0:
        return None
    return (
        f"{run.completions_per_rollout} completions of a rollout are not a multiple of {names.CRITIC_FORWARD} = {size}"
    )


@RULES.add(BUILDING, "BB-EZR1-039", _KL_TYPE, fixes=setting(_KL_TYPE, "fixed"))
@says("ValueError: Unknown kl type", "EasyR1 core_algos.get_kl_controller")
def _kl_type(run: EasyR1Run) -> str | None:
    return known(_KL_TYPE, KL_TYPES)(run) if run.has_kl else None


@RULES.add(BUILDING, "BB-EZR1-040", _KL_TYPE, _KL_HORIZON, fixes=setting(_KL_HORIZON, 10000.0))
@says(
    "AssertionError: horizon must be larger than 0. (0.0 is the default of 0.3.0.)",
    "EasyR1 core_algos.get_kl_controller",
)
def _kl_horizon(run: EasyR1Run) -> str | None:
    if not run.has_kl or run[_KL_TYPE] != "adaptive" or run[_KL_HORIZON] > 0:
        return None
    return f"{_KL_TYPE} = adaptive with {run.key_and_value(_KL_HORIZON)}: it must be above 0"


RULES.add(STARTING, "BB-EZR1-042", _OPTIMIZER, fixes=setting(_OPTIMIZER, "adamw"))(
    says("NotImplementedError: Optimizer ... not supported.", "EasyR1 fsdp_workers.py _build_model_optimizer")(
        known(_OPTIMIZER, OPTIMIZERS)
    )
)
RULES.add(STARTING, "BB-EZR1-043", _SCHEDULE, fixes=setting(_SCHEDULE, "constant"))(
    says(
        "NotImplementedError: LR scheduler type ... is not supported",
        "EasyR1 fsdp_workers.py _build_model_optimizer",
        ">=0.3.3.dev0",
    )(known(_SCHEDULE, SCHEDULES))
)
