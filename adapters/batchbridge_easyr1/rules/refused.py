"""What EasyR1 refuses: while it builds its trainer and its workers, at the first rollout, or at the first update."""

from __future__ import annotations

from collections.abc import Mapping

from batchbridge import Fix
from batchbridge.kit.rule_table import BUILDING, GENERATING, STARTING, UPDATING
from batchbridge_easyr1 import settings as names
from batchbridge_easyr1.meaning import estimators_of
from batchbridge_easyr1.rules.row import Rule, fix_of, known, near, rollout_fixes, setting
from batchbridge_easyr1.run import Run
from batchbridge_easyr1.settings import AGGREGATIONS, KL_ESTIMATORS, KL_TYPES, OPTIMIZERS, SCHEDULES

DRIVER = "EasyR1 0.3.0 to 0.3.3.dev0 trainer/ray_trainer.py RayPPOTrainer.__init__"


# ---- sizes


def generation_chunks(run: Run) -> str | None:
    size = run[names.MINI_ROLLOUT] or run[names.PROMPTS]
    if not run.plain or size % run.world == 0:
        return None
    key = names.MINI_ROLLOUT if run[names.MINI_ROLLOUT] else names.PROMPTS
    return f"{key} = {size} prompts per generation are no multiple of {run.world} devices"


def _no_batch(run: Run) -> str | None:
    count, size = run.prompts_in_dataset, run.prompts_at_once
    broken = count is not None and run.plain and size >= 1 and count < size
    return f"the dataset's {count} prompts do not fill one batch of {size}" if broken else None


def _too_many_batches(run: Run) -> str | None:
    tries, size = run[names.MAX_TRIES], run.prompts_at_once
    if tries < 1 or size < 1 or not run.plain or tries * size >= run[names.PROMPTS]:
        return None
    batches = f"{run.said(names.MAX_TRIES)} batches of {names.MINI_ROLLOUT} = {size} prompts"
    return f"{batches} stay below {run.said(names.PROMPTS)}"


def _more_tries(run: Run) -> tuple[Fix, ...]:
    size = -(-run[names.PROMPTS] // run[names.MAX_TRIES])
    return (fix_of({names.MAX_TRIES: -1}), fix_of({names.MINI_ROLLOUT: size}))


def _forward_splits(run: Run) -> str | None:
    size = run[names.FORWARD]
    if run[names.DYNAMIC] or not run.plain or size < 1 or not run.replicas or run.completions_per_rollout % run.world:
        return None
    if run.pieces(run.block, size) is not None:
        return None
    return f"{run.block} completions of each replica cannot be cut into parts of {run.said(names.FORWARD)}"


def _cuts_forward(run: Run, v: Mapping[str, int]) -> bool:
    completions = v[names.PROMPTS] * v[names.GROUP]
    block = completions // run.world * run[run.ulysses_key]
    return completions % run.world == 0 and block % v[names.FORWARD] == 0 and v[names.PROMPTS] % v[names.BATCH] == 0


def _balance(run: Run) -> str | None:
    if not run.plain or run.completions_per_rollout % run.world == 0 or generation_chunks(run):
        return None
    return f"{run.completions_per_rollout} completions of a rollout are no multiple of {run.world} devices"


def _balances(run: Run, v: Mapping[str, int]) -> bool:
    return v[names.PROMPTS] * v[names.GROUP] % run.world == 0 and v[names.PROMPTS] % v[names.BATCH] == 0


def _single_passk(run: Run) -> str | None:
    if run[names.ESTIMATOR] != "grpo_passk" or run[names.GROUP] != 1:
        return None
    return f"{names.GROUP} = 1 with {names.ESTIMATOR} = grpo_passk: a group needs more than one completion"


def _critic_steps(run: Run) -> str | None:
    size = run[names.CRITIC_BATCH]
    if run[names.ESTIMATOR] != "gae" or not run.plain or size < 1 or run[names.PROMPTS] % size == 0:
        return None
    return f"{run.said(names.PROMPTS)} (prompts) is no multiple of {names.CRITIC_BATCH} = {size} (prompts)"


def _critic_experience(run: Run) -> str | None:
    size = run[names.CRITIC_FORWARD]
    if run[names.ESTIMATOR] != "gae" or not run.plain or size < 1 or run.completions_per_rollout % size == 0:
        return None
    return f"{run.completions_per_rollout} completions of a rollout are no multiple of {names.CRITIC_FORWARD} = {size}"


# ---- words


def _broken_gae(run: Run) -> str | None:
    return (
        f"{names.ESTIMATOR} = gae cannot run: the critic reads settings that it is not given"
        if run[names.ESTIMATOR] == "gae"
        else None
    )


def _kl_penalty(run: Run, in_loss: bool) -> str | None:
    if not run.has_kl or run["algorithm.use_kl_loss"] is not in_loss:
        return None
    if run["algorithm.kl_penalty"] == "full":
        if in_loss and run[names.MICRO] == 1:
            return None  # one number for one row does fit
        return "algorithm.kl_penalty = full sums over the tokens, which then do not fit the mask of the responses"
    return known("algorithm.kl_penalty", tuple(KL_ESTIMATORS))(run)


def _kl_type(run: Run) -> str | None:
    return known("algorithm.kl_type", KL_TYPES)(run) if run.has_kl else None


def _kl_horizon(run: Run) -> str | None:
    horizon = run["algorithm.kl_horizon"]
    broken = run.has_kl and run["algorithm.kl_type"] == "adaptive" and horizon <= 0
    return f"algorithm.kl_type = adaptive with algorithm.kl_horizon = {horizon}: it must be above 0" if broken else None


REFUSED: tuple[Rule, ...] = (
    GENERATING(
        "BB-EZR1-024",
        _broken_gae,
        (names.ESTIMATOR,),
        "AttributeError: 'WorkerConfig' object has no attribute ...; from 2025-10 on also a RuntimeError",
        "EasyR1 fsdp_workers.py:452, core_algos.py:163 (run at 0.3.3.dev0; by reading before)",
        setting(names.ESTIMATOR, "grpo"),
    ),
    UPDATING(
        "BB-EZR1-027",
        known(names.MODE, tuple(AGGREGATIONS)),
        (names.MODE,),
        "NotImplementedError: Unknown mode",
        "EasyR1 core_algos.average_loss",
        setting(names.MODE, "token"),
    ),
    BUILDING(
        "BB-EZR1-029",
        lambda run: known(names.ESTIMATOR, estimators_of(run.version))(run),
        (names.ESTIMATOR,),
        "NotImplementedError: Unknown advantage estimator",
        DRIVER,
        setting(names.ESTIMATOR, "grpo"),
    ),
    GENERATING(
        "BB-EZR1-032",
        lambda run: _kl_penalty(run, in_loss=False),
        ("algorithm.kl_penalty",),
        "NotImplementedError: Unknown KL penalty; full: RuntimeError",
        "EasyR1 core_algos.compute_kl, trainer/ray_trainer.py apply_kl_penalty",
        setting("algorithm.kl_penalty", "low_var_kl"),
    ),
    UPDATING(
        "BB-EZR1-032",
        lambda run: _kl_penalty(run, in_loss=True),
        ("algorithm.kl_penalty",),
        "NotImplementedError: Unknown KL penalty; full: RuntimeError",
        "EasyR1 core_algos.compute_kl, dp_actor.py update_policy",
        setting("algorithm.kl_penalty", "low_var_kl"),
    ),
    BUILDING(
        "BB-EZR1-034",
        _no_batch,
        (names.PROMPTS, names.MINI_ROLLOUT),
        "AssertionError: len(train_dataloader) >= 1",
        "EasyR1 trainer/data_loader.py create_dataloader",
        rollout_fixes,
    ),
    GENERATING(
        "BB-EZR1-035",
        _too_many_batches,
        (names.MINI_ROLLOUT, names.PROMPTS, names.MAX_TRIES),
        "RuntimeError (ValueError before 0.3.3): num_try_make_batch >= max_try_make_batch. Generated too many. Also "
        "without online_filtering.",
        "EasyR1 trainer/ray_trainer.py _make_batch_data",
        _more_tries,
        ">=0.3.1",
    ),
    GENERATING(
        "BB-EZR1-036",
        _forward_splits,
        (names.FORWARD, names.PROMPTS, names.GROUP, names.NODES, names.GPUS),
        "AssertionError: only support equal split. Got size of DataProto ... and split ... (ZeroDivisionError before "
        "0.3.2 where there are too few)",
        "EasyR1 protocol.py:583, dp_actor.py compute_log_prob",
        near((names.FORWARD, names.PROMPTS, names.GROUP), _cuts_forward),
    ),
    GENERATING(
        "BB-EZR1-047",
        _balance,
        (names.PROMPTS, names.GROUP, names.NODES, names.GPUS),
        "AssertionError: ... % ... != 0, after generation",
        "EasyR1 utils/seqlen_balancing.py karmarkar_karp, called by trainer/ray_trainer.py _balance_batch (run)",
        near((names.PROMPTS, names.GROUP), _balances),
        ">=0.3.1",
    ),
    GENERATING(
        "BB-EZR1-048",
        _single_passk,
        (names.GROUP, names.ESTIMATOR),
        "AssertionError: GRPO needs rollout.n > 1.",
        "EasyR1 core_algos.compute_grpo_passk_outcome_advantage (run)",
        setting(names.GROUP, 5),
        ">=0.3.3.dev0",
    ),
    BUILDING(
        "BB-EZR1-037",
        _critic_steps,
        (names.PROMPTS, names.CRITIC_BATCH),
        "ValueError: Rollout batch size must be divisible by critic global batch size.",
        DRIVER,
        setting(names.ESTIMATOR, "grpo"),
    ),
    BUILDING(
        "BB-EZR1-038",
        _critic_experience,
        (names.PROMPTS, names.GROUP, names.CRITIC_FORWARD),
        "ValueError: Rollout batch size * rollout.n must be divisible by critic micro batch size for experience.",
        DRIVER,
        setting(names.ESTIMATOR, "grpo"),
    ),
    BUILDING(
        "BB-EZR1-039",
        _kl_type,
        ("algorithm.kl_type",),
        "ValueError: Unknown kl type",
        "EasyR1 core_algos.get_kl_controller",
        setting("algorithm.kl_type", "fixed"),
    ),
    BUILDING(
        "BB-EZR1-040",
        _kl_horizon,
        ("algorithm.kl_type", "algorithm.kl_horizon"),
        "AssertionError: horizon must be larger than 0. (0.0 is the default of 0.3.0.)",
        "EasyR1 core_algos.get_kl_controller",
        setting("algorithm.kl_horizon", 10000.0),
    ),
    STARTING(
        "BB-EZR1-042",
        known(f"{names.ACTOR}optim.strategy", OPTIMIZERS),
        (f"{names.ACTOR}optim.strategy",),
        "NotImplementedError: Optimizer ... not supported.",
        "EasyR1 fsdp_workers.py _build_model_optimizer",
        setting(f"{names.ACTOR}optim.strategy", "adamw"),
    ),
    STARTING(
        "BB-EZR1-043",
        known(f"{names.ACTOR}optim.lr_scheduler_type", SCHEDULES),
        (f"{names.ACTOR}optim.lr_scheduler_type",),
        "NotImplementedError: LR scheduler type ... is not supported",
        "EasyR1 fsdp_workers.py _build_model_optimizer",
        setting(f"{names.ACTOR}optim.lr_scheduler_type", "constant"),
        ">=0.3.3.dev0",
    ),
)
