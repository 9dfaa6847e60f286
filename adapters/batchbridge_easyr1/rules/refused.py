"""What EasyR1 refuses: while it builds its trainer and its workers, at the first rollout, or at the first update."""

from __future__ import annotations

from collections.abc import Mapping

from batchbridge import Fix
from batchbridge.kit.rule_table import BUILDING, GENERATING, STARTING, UPDATING
from batchbridge_easyr1.meaning import ESTIMATORS, INEXPRESSIBLE
from batchbridge_easyr1.rules.row import (
    Rule,
    generated_at_once,
    has,
    kl_counts,
    known,
    near,
    rollout_fixes,
    setting,
)
from batchbridge_easyr1.run import Run
from batchbridge_easyr1.settings import (
    ACTOR,
    AGGREGATIONS,
    BATCH,
    CRITIC_BATCH,
    CRITIC_FORWARD,
    DYNAMIC,
    ESTIMATOR,
    FORWARD,
    GPUS,
    GROUP,
    KL_ESTIMATORS,
    KL_TYPES,
    MAX_TRIES,
    MICRO,
    MINI_ROLLOUT,
    MODE,
    NODES,
    OPTIMIZERS,
    PROMPTS,
    SCHEDULES,
)

DRIVER = "EasyR1 0.3.0 to 0.3.3.dev0 trainer/ray_trainer.py RayPPOTrainer.__init__"


# ---- sizes


def generation_chunks(run: Run) -> str | None:
    size = run[MINI_ROLLOUT] or run[PROMPTS]
    if not run.plain or size % run.world == 0:
        return None
    key = MINI_ROLLOUT if run[MINI_ROLLOUT] else PROMPTS
    return f"{key} = {size} prompts per generation are no multiple of {run.world} devices"


def _no_batch(run: Run) -> str | None:
    count, size = run.prompts_in_dataset, generated_at_once(run)
    if count is None or not run.plain or size < 1 or count >= size:
        return None
    return f"the dataset's {count} prompts do not fill one batch of {size}"


def _too_many_batches(run: Run) -> str | None:
    tries, size = run[MAX_TRIES], generated_at_once(run)
    if tries < 1 or size < 1 or not run.plain or tries * size >= run[PROMPTS]:
        return None
    return f"{MAX_TRIES} = {tries} batches of {MINI_ROLLOUT} = {size} prompts stay below {PROMPTS} = {run[PROMPTS]}"


def _more_tries(run: Run) -> tuple[Fix, ...]:
    size = -(-run[PROMPTS] // run[MAX_TRIES])
    return (Fix(f"{MAX_TRIES} = -1", {MAX_TRIES: -1}), Fix(f"{MINI_ROLLOUT} = {size}", {MINI_ROLLOUT: size}))


def _forward_splits(run: Run) -> str | None:
    if run[DYNAMIC] or not run.plain or run[FORWARD] < 1 or not run.replicas or run.completions_per_rollout % run.world:
        return None
    if run.pieces(run.block, run[FORWARD]) is not None:
        return None
    return f"{run.block} completions of each replica cannot be cut into parts of {FORWARD} = {run[FORWARD]}"


def _forward_fixes(run: Run) -> tuple[Fix, ...]:
    def legal(v: Mapping[str, int]) -> bool:
        completions = v[PROMPTS] * v[GROUP]
        block = completions // run.world * run[run.ulysses_key]
        return completions % run.world == 0 and block % v[FORWARD] == 0 and v[PROMPTS] % v[BATCH] == 0

    return near(run, (FORWARD, PROMPTS, GROUP), legal)


def _balance(run: Run) -> str | None:
    if not run.plain or run.completions_per_rollout % run.world == 0 or generation_chunks(run):
        return None
    return f"{run.completions_per_rollout} completions of a rollout are no multiple of {run.world} devices"


def _balance_fixes(run: Run) -> tuple[Fix, ...]:
    def legal(v: Mapping[str, int]) -> bool:
        return v[PROMPTS] * v[GROUP] % run.world == 0 and v[PROMPTS] % v[BATCH] == 0

    return near(run, (PROMPTS, GROUP), legal)


def _single_passk(run: Run) -> str | None:
    if run[ESTIMATOR] != "grpo_passk" or run[GROUP] != 1:
        return None
    return f"{GROUP} = 1 with {ESTIMATOR} = grpo_passk: a group needs more than one completion"


def _critic_steps(run: Run) -> str | None:
    size = run[CRITIC_BATCH]
    if run[ESTIMATOR] != "gae" or not run.plain or size < 1 or run[PROMPTS] % size == 0:
        return None
    return f"{PROMPTS} = {run[PROMPTS]} (prompts) is no multiple of {CRITIC_BATCH} = {size} (prompts)"


def _critic_experience(run: Run) -> str | None:
    size = run[CRITIC_FORWARD]
    if run[ESTIMATOR] != "gae" or not run.plain or size < 1 or run.completions_per_rollout % size == 0:
        return None
    return f"{run.completions_per_rollout} completions of a rollout are no multiple of {CRITIC_FORWARD} = {size}"


# ---- words


def _broken_gae(run: Run) -> str | None:
    return (
        f"{ESTIMATOR} = gae cannot run: the critic reads settings that it is not given"
        if run[ESTIMATOR] == "gae"
        else None
    )


def _kl_penalty(run: Run, in_loss: bool) -> str | None:
    if not kl_counts(run) or run["algorithm.use_kl_loss"] is not in_loss:
        return None
    if run["algorithm.kl_penalty"] == "full":
        if in_loss and run[MICRO] == 1:
            return None  # one number for one row does fit
        return "algorithm.kl_penalty = full sums over the tokens, which then do not fit the mask of the responses"
    return known("algorithm.kl_penalty", tuple(KL_ESTIMATORS))(run)


def _kl_type(run: Run) -> str | None:
    return known("algorithm.kl_type", KL_TYPES)(run) if kl_counts(run) else None


def _kl_horizon(run: Run) -> str | None:
    horizon = run["algorithm.kl_horizon"]
    if not kl_counts(run) or run["algorithm.kl_type"] != "adaptive" or horizon > 0:
        return None
    return f"algorithm.kl_type = adaptive with algorithm.kl_horizon = {horizon}: it must be above 0"


REFUSED: tuple[Rule, ...] = (
    GENERATING(
        "BB-EZR1-024",
        _broken_gae,
        (ESTIMATOR,),
        "AttributeError: 'WorkerConfig' object has no attribute ...; from 2025-10 on also a RuntimeError",
        "EasyR1 fsdp_workers.py:452, core_algos.py:163 (run at 0.3.3.dev0; by reading before)",
        setting(ESTIMATOR, "grpo"),
    ),
    UPDATING(
        "BB-EZR1-027",
        known(MODE, tuple(AGGREGATIONS)),
        (MODE,),
        "NotImplementedError: Unknown mode",
        "EasyR1 core_algos.average_loss",
        setting(MODE, "token"),
    ),
    BUILDING(
        "BB-EZR1-029",
        lambda run: known(ESTIMATOR, (*ESTIMATORS, *(name for name in INEXPRESSIBLE if has(name, run))))(run),
        (ESTIMATOR,),
        "NotImplementedError: Unknown advantage estimator",
        DRIVER,
        setting(ESTIMATOR, "grpo"),
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
        (PROMPTS, MINI_ROLLOUT),
        "AssertionError: len(train_dataloader) >= 1",
        "EasyR1 trainer/data_loader.py create_dataloader",
        rollout_fixes,
    ),
    GENERATING(
        "BB-EZR1-035",
        _too_many_batches,
        (MINI_ROLLOUT, PROMPTS, MAX_TRIES),
        "RuntimeError (ValueError before 0.3.3): num_try_make_batch >= max_try_make_batch. Generated too many. Also "
        "without online_filtering.",
        "EasyR1 trainer/ray_trainer.py _make_batch_data",
        _more_tries,
        ">=0.3.1",
    ),
    GENERATING(
        "BB-EZR1-036",
        _forward_splits,
        (FORWARD, PROMPTS, GROUP, NODES, GPUS),
        "AssertionError: only support equal split. Got size of DataProto ... and split ... (ZeroDivisionError before "
        "0.3.2 where there are too few)",
        "EasyR1 protocol.py:583, dp_actor.py compute_log_prob",
        _forward_fixes,
    ),
    GENERATING(
        "BB-EZR1-047",
        _balance,
        (PROMPTS, GROUP, NODES, GPUS),
        "AssertionError: ... % ... != 0, after generation",
        "EasyR1 utils/seqlen_balancing.py karmarkar_karp, called by trainer/ray_trainer.py _balance_batch (run)",
        _balance_fixes,
        ">=0.3.1",
    ),
    GENERATING(
        "BB-EZR1-048",
        _single_passk,
        (GROUP, ESTIMATOR),
        "AssertionError: GRPO needs rollout.n > 1.",
        "EasyR1 core_algos.compute_grpo_passk_outcome_advantage (run)",
        setting(GROUP, 5),
        ">=0.3.3.dev0",
    ),
    BUILDING(
        "BB-EZR1-037",
        _critic_steps,
        (PROMPTS, CRITIC_BATCH),
        "ValueError: Rollout batch size must be divisible by critic global batch size.",
        DRIVER,
        setting(ESTIMATOR, "grpo"),
    ),
    BUILDING(
        "BB-EZR1-038",
        _critic_experience,
        (PROMPTS, GROUP, CRITIC_FORWARD),
        "ValueError: Rollout batch size * rollout.n must be divisible by critic micro batch size for experience.",
        DRIVER,
        setting(ESTIMATOR, "grpo"),
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
        known(f"{ACTOR}optim.strategy", OPTIMIZERS),
        (f"{ACTOR}optim.strategy",),
        "NotImplementedError: Optimizer ... not supported.",
        "EasyR1 fsdp_workers.py _build_model_optimizer",
        setting(f"{ACTOR}optim.strategy", "adamw"),
    ),
    STARTING(
        "BB-EZR1-043",
        known(f"{ACTOR}optim.lr_scheduler_type", SCHEDULES),
        (f"{ACTOR}optim.lr_scheduler_type",),
        "NotImplementedError: LR scheduler type ... is not supported",
        "EasyR1 fsdp_workers.py _build_model_optimizer",
        setting(f"{ACTOR}optim.lr_scheduler_type", "constant"),
        ">=0.3.3.dev0",
    ),
)
