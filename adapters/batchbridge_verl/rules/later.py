"""Rules that verl finds broken later: while it builds the trainer or its workers, at the first rollout or update."""

from __future__ import annotations

import math
from collections.abc import Collection

from batchbridge import Fix
from batchbridge.kit.rule_table import BUILDING, GENERATING, STARTING, UPDATING, Rules, says
from batchbridge_verl.rules import printed
from batchbridge_verl.rules.row import DEVICES, ENGINE_WORKERS, ESTIMATOR, FILTERED, MODE
from batchbridge_verl.rules.validated import replica_fixes, replicas_message
from batchbridge_verl.rules.ways_out import fix, instead, setting
from batchbridge_verl.run import (
    BUDGET,
    DYNAMIC,
    EPOCHS,
    GENERATION,
    GLOBAL_MICRO,
    GROUP,
    MICRO,
    MINI,
    PROMPTS,
    TRAINER_MODE,
    VerlRun,
)
from batchbridge_verl.settings import ACTOR, PARALLEL, ROLLOUT, SQUARES, holds
from batchbridge_verl.terms import ESTIMATORS, LOSS_MODES, names_in

_TRAINERS = ("sync", "colocate_async", "separate_async")
_METRIC = "algorithm.filter_groups.metric"
_LOG_PROB, _LOG_PROB_PER_GPU = f"{ROLLOUT}log_prob_micro_batch_size", f"{ROLLOUT}log_prob_micro_batch_size_per_gpu"
_LOG_PROB_DYNAMIC, _CLIP = f"{ROLLOUT}log_prob_use_dynamic_bsz", f"{ACTOR}clip_ratio_c"
_NAME, _ROLLOUT_MODE, _EXPERTS = f"{ROLLOUT}name", f"{ROLLOUT}mode", f"{ROLLOUT}expert_parallel_size"
_ROLLOUT_SIZES = tuple(f"{ROLLOUT}{name}_parallel_size" for name in ("tensor_model", "data", "pipeline_model"))

RULES = Rules[VerlRun]()


# ---- while the trainer and its workers are built


@RULES.add(STARTING, "BB-VERL-010", PROMPTS, GROUP, MINI, EPOCHS, MICRO, *DEVICES, core="BB101")
@says(
    "an empty resource pool, an empty data loader, a division by zero, or no update at all",
    "verl 0.9.1 trainer/ppo/v1/trainer_base.py, engine_workers.py",
)
def _not_positive(run: VerlRun) -> str | None:
    named = {
        **{key: run[key] for key in (PROMPTS, GROUP, MINI, EPOCHS)},
        "trainer.nnodes x trainer.n_gpus_per_node": run.world,
        **{key: run[key] for key in (*PARALLEL[run.engine], run.context_key) if key is not None},
    }
    if not run[DYNAMIC] and run[MICRO] is not None:
        named[MICRO] = run[MICRO]
    if run[DYNAMIC]:
        named[BUDGET] = run[BUDGET]
    wrong = [f"{key} = {value}" for key, value in named.items() if value < 1]
    return f"{', '.join(wrong)}: must be at least 1" if wrong else None


@RULES.add(BUILDING._replace(undecided=True), "BB-VERL-070", TRAINER_MODE, fixes=setting(TRAINER_MODE, "sync"))
@says(
    "ValueError: Unknown trainer '...'. Available trainers: ...",
    "verl 0.9.0 to 0.9.1 trainer/ppo/v1/trainer_base.py get_trainer_cls",
)
def _unknown_mode(run: VerlRun) -> str | None:
    if not run.v1 or run.entry == "main_ppo_sync" or run[TRAINER_MODE] in _TRAINERS:
        return None
    return _foreign(run, TRAINER_MODE, "verl's", _TRAINERS)


def _foreign(run: VerlRun, key: str, whose: str, names: Collection[str]) -> str:
    own = f"{key} = {run[key]} is not one of {whose} own ({', '.join(names)})"
    return f"{own}; one that is registered by the run's own code is not read"


@RULES.add(BUILDING, "BB-VERL-068", _METRIC, FILTERED, fixes=setting(_METRIC, "reward"))
@says(
    "ValueError: algorithm.filter_groups.metric must be set when group filtering is enabled",
    "verl 0.9.0 to 0.9.1 trainer/ppo/v1/trainer_base.py _resolve_filter_groups_metric",
    ">=0.9.0",
)
def _no_filter_metric(run: VerlRun) -> str | None:
    if not run.v1 or not run[FILTERED] or run[_METRIC]:
        return None
    return f"{_METRIC} is not set: V1 filters groups by it"


def _whole_dataset(run: VerlRun) -> tuple[Fix, ...]:
    prompts = run.prompts_in_dataset or 0
    return (fix({PROMPTS: prompts}),) if prompts >= run[MINI] else ()


@RULES.add(BUILDING, "BB-VERL-049", PROMPTS, GENERATION, fixes=_whole_dataset, core="BB113")
@says("AssertionError: Train dataloader is empty!", "verl 0.9.1 ray_trainer.py:427")
def _no_rollout(run: VerlRun) -> str | None:
    size = run.fetched
    if run.prompts_in_dataset is None or run.prompts_in_dataset >= size:
        return None
    return f"the dataset's {run.prompts_in_dataset} prompts do not fill one batch of {size} prompts: nothing is trained"


_EVERY_SIZE = [key for keys in PARALLEL.values() for key in keys if key]


@RULES.add(STARTING, "BB-VERL-017", *DEVICES, *_EVERY_SIZE, fixes=replica_fixes, core="BB102")
@says(
    "the device mesh of data x sequence parallel cannot be built; Megatron: world_size is not divisible by ...",
    "verl 0.9.1 workers/engine/fsdp/transformer_impl.py",
)
def _replicas(run: VerlRun) -> str | None:
    if not run.plain or run.replicas is not None:
        return None
    if run.engine == "megatron" and (not run[DYNAMIC] or holds("<0.6.0", run.version)):
        return None  # validate_config says so
    return replicas_message(run)


def _rollout_replica_fixes(run: VerlRun) -> tuple[Fix, ...]:
    key, *others = _ROLLOUT_SIZES
    rest = math.prod([max(run[other], 1) for other in others])
    legal = [size for size in range(1, max(run[key], 1) + 1) if run.world % (size * rest) == 0]
    return (fix({key: legal[-1]}),) if legal else (fix({key: 1, **dict.fromkeys(others, 1)}),)


@RULES.add(
    STARTING, "BB-VERL-019", *_ROLLOUT_SIZES, *DEVICES, fixes=_rollout_replica_fixes, text=printed.ENGINE_DEVICES
)
@says(
    "AssertionError: rollout world_size: ... is not divisible by infer_world_size: ...",
    "verl 0.9.1 engine_workers.py:659; 0.4.0 fsdp_workers._build_rollout",
)
def _rollout_replicas(run: VerlRun) -> str | None:
    size = math.prod([int(run[key]) for key in _ROLLOUT_SIZES])
    if run.entry == "one_step_off" or run.world < 1 or (size >= 1 and run.world % size == 0):
        return None
    named = " x ".join(f"{key} = {run[key]}" for key in _ROLLOUT_SIZES if run[key] != 1)
    return f"{named or f'{_ROLLOUT_SIZES[0]} = 1'} does not divide {run.world} devices"


def _plain_rollout(run: VerlRun) -> tuple[Fix, ...]:
    return (fix({_ROLLOUT_MODE: "async", _EXPERTS: 1, _ROLLOUT_SIZES[2]: 1}),)


@RULES.add(STARTING, "BB-VERL-069", _ROLLOUT_MODE, _EXPERTS, _ROLLOUT_SIZES[2], _NAME, fixes=_plain_rollout)
@says(
    "ValueError: Rollout mode 'sync' has been removed; AssertionError: expert_parallel_size must be equal to ...; "
    "NotImplementedError: ... not implemented pipeline_model_parallel_size > 1 yet",
    "verl 0.6.0 to 0.9.1 workers/config/rollout.py RolloutConfig.__post_init__",
    ">=0.6.0",
)
def _rollout_config(run: VerlRun) -> str | None:
    name, experts = run[_NAME], run[_EXPERTS]
    tensor, data, pipeline = (run[key] for key in _ROLLOUT_SIZES)
    if run[_ROLLOUT_MODE] == "sync" and holds(">=0.7.0", run.version):
        return f"{_ROLLOUT_MODE} = sync: only async is left"
    if name != "trtllm" and experts > 1 and experts != tensor * data:
        return f"{_EXPERTS} = {experts}: must be tensor x data parallel size = {tensor * data}"
    served = ("vllm", "sglang", *(("trtllm",) if holds(">=0.7.1", run.version) else ()))
    if pipeline > 1 and name in served:
        return f"{_ROLLOUT_SIZES[2]} = {pipeline}: {name} has none"
    return None


@RULES.add(STARTING, "BB-VERL-035", _NAME, fixes=setting(_NAME, "vllm"))
@says(
    "MissingMandatoryValue: Missing mandatory value: actor_rollout_ref.rollout.name", "verl 0.6.0 to 0.9.1 rollout.yaml"
)
def _no_rollout_name(run: VerlRun) -> str | None:
    return f"{_NAME} is mandatory (vllm, sglang)" if run[_NAME] is None else None


def _as_the_actor(run: VerlRun) -> tuple[Fix, ...]:
    return setting(_LOG_PROB_DYNAMIC, run[DYNAMIC])(run)


@RULES.add(STARTING, "BB-VERL-048", DYNAMIC, _LOG_PROB_DYNAMIC, fixes=_as_the_actor)
@says(
    "AssertionError: actor.use_dynamic_bsz == rollout.log_prob_use_dynamic_bsz",
    "verl 0.9.1 engine_workers.py:616",
    ENGINE_WORKERS,
)
def _two_kinds_of_batches(run: VerlRun) -> str | None:
    if run.legacy or run[DYNAMIC] == run[_LOG_PROB_DYNAMIC]:
        return None
    return f"{DYNAMIC} = {run[DYNAMIC]} but {_LOG_PROB_DYNAMIC} = {run[_LOG_PROB_DYNAMIC]}"


@RULES.add(STARTING, "BB-VERL-050", GLOBAL_MICRO, MICRO, fixes=instead(MICRO, GLOBAL_MICRO))
@says(
    "AssertionError: self.config.actor.ppo_micro_batch_size_per_gpu is not None",
    "verl 0.9.1 engine_workers.py:637",
    ENGINE_WORKERS,
)
def _deprecated_micro(run: VerlRun) -> str | None:
    return _deprecated(GLOBAL_MICRO, MICRO, run)


def _log_prob_of_one(run: VerlRun) -> tuple[Fix, ...]:
    return (fix({_LOG_PROB: None, _LOG_PROB_PER_GPU: 1}),)


@RULES.add(STARTING, "BB-VERL-050", _LOG_PROB, _LOG_PROB_PER_GPU, fixes=_log_prob_of_one)
@says(
    "AssertionError: self.config.rollout.log_prob_micro_batch_size_per_gpu is not None",
    "verl 0.9.1 engine_workers.py:636",
    ENGINE_WORKERS,
)
def _deprecated_log_prob(run: VerlRun) -> str | None:
    return _deprecated(_LOG_PROB, _LOG_PROB_PER_GPU, run)


def _deprecated(whole: str, per_gpu: str, run: VerlRun) -> str | None:
    """A micro-batch over all devices, in place of one for each."""
    if run[DYNAMIC] or run.legacy or run[whole] is None or run[per_gpu] is not None:
        return None
    return f"{whole} = {run[whole]} is deprecated, and the engine workers do not read it"


# ---- at the first rollout and the first update


@RULES.add(GENERATING._replace(undecided=True), "BB-VERL-026", ESTIMATOR, fixes=setting(ESTIMATOR, "grpo"))
@says("ValueError: Unknown advantage estimator simply: ...", "verl 0.9.1 core_algos.get_adv_estimator_fn")
def _estimator_known(run: VerlRun) -> str | None:
    own = names_in(run.version, ESTIMATORS)
    return None if run[ESTIMATOR] in own else _foreign(run, ESTIMATOR, f"verl {run.version}'s", own)


def _of_v0(native: str, *names: str) -> None:
    """The row of estimators that need what RayPPOTrainer alone hands them."""

    @RULES.add(GENERATING, "BB-VERL-088", ESTIMATOR, "trainer.use_v1", fixes=setting("trainer.use_v1", False))
    @says(native, "verl 0.9.1 trainer/ppo/v1/utils.py compute_advantage_for_multi_trajectories")
    def broken(run: VerlRun) -> str | None:
        if not run.v1 or run[ESTIMATOR] not in names:
            return None
        needs = ESTIMATORS[run[ESTIMATOR]].needs
        return f"{ESTIMATOR} = {run[ESTIMATOR]} needs {needs}, and the V1 trainer does not hand that over"


_SQUARES_MISSING = "AssertionError: Step-dependent optimal baseline requires sum_pi_squared from actor."
_of_v0(
    "TypeError: compute_remax_outcome_advantage() missing 1 required positional argument: 'reward_baselines'", "remax"
)
_of_v0('KeyError: \'key "prompts" not found in TensorDict with keys ...', "gdpo")
_of_v0(_SQUARES_MISSING, "optimal_token_baseline", "tir_optimal_token_baseline")


@RULES.add(GENERATING, "BB-VERL-088", ESTIMATOR, SQUARES, fixes=setting(SQUARES, True))
@says(_SQUARES_MISSING, "verl 0.9.1 trainer/ppo/ray_trainer.py compute_advantage")
def _no_squares(run: VerlRun) -> str | None:
    if run.v1 or not run[ESTIMATOR].endswith("optimal_token_baseline") or run[SQUARES]:
        return None
    return f"{ESTIMATOR} = {run[ESTIMATOR]} needs {SQUARES}=True"


@RULES.add(GENERATING, "BB-VERL-088", ESTIMATOR, GROUP, fixes=setting(GROUP, 2))
@says(
    "ValueError: Pass@k requires at least 2 samples per group.",
    "verl 0.9.1 core_algos.compute_grpo_passk_outcome_advantage",
)
def _pass_at_k_of_one(run: VerlRun) -> str | None:
    if run[ESTIMATOR] != "grpo_passk" or run[GROUP] != 1:
        return None
    return f"{ESTIMATOR} = grpo_passk compares the best two completions of a prompt, and {GROUP} is 1"


@RULES.add(UPDATING, "BB-VERL-025", MODE, fixes=setting(MODE, "vanilla"))
@says("ValueError: Unsupported loss mode: ...", "verl 0.9.1 core_algos.get_policy_loss_fn")
def _mode_known(run: VerlRun) -> str | None:
    names = names_in(run.version, LOSS_MODES)
    if run.surrogate in ("bypass_mode", "rollout_correction", *names):
        return None
    return f"{MODE} = {run.surrogate}: verl {run.version} has {', '.join(names)}"


@RULES.add(UPDATING, "BB-VERL-054", _CLIP, fixes=setting(_CLIP, 3.0))
@says(
    "AssertionError: The lower bound of the clip_ratio_c for dual-clip PPO should be greater than 1.0",
    "verl 0.9.1 core_algos.py:1331",
)
def _dual_clip(run: VerlRun) -> str | None:
    return f"{_CLIP} = {run[_CLIP]}: must be above 1" if run.surrogate == "vanilla" and run[_CLIP] <= 1 else None
