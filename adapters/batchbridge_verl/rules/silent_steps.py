"""What verl never says of its steps: their order, members, remainders and clock."""

from __future__ import annotations

import math

from batchbridge.kit.rule_table import NOTE, OPEN, SILENT, STANDING
from batchbridge_verl.rules.later_sizes import remainder
from batchbridge_verl.rules.row import DEVICES, WORKERS, product
from batchbridge_verl.rules.silent import OF_V1
from batchbridge_verl.rules.ways_out import fix, setting, whole_shares, whole_steps
from batchbridge_verl.run import EPOCHS, GROUP, MINI, PROMPTS, TRAINER_MODE, Run
from batchbridge_verl.settings import ACTOR, CRITIC, PREFIX_GROUPER, holds

_FILTERED = "algorithm.filter_groups.enable"


_REFILL = "trainer.v1.sampler.sync_refill_failed_groups"


def _step_floored(run: Run) -> str | None:
    if not run.legacy or not run.plain or not run.replicas or not run.share or run.asked_per_step % run.replicas == 0:
        return None
    return (
        f"{product(run, MINI)} = {run.asked_per_step} completions are floored to {run.share} on each of {run.replicas} "
        f"replicas: an optimizer step has {run.completions_per_step}"
    )


def _remainder_padded(run: Run) -> str | None:
    if not run.v1 or not run.plain or not run.replicas:
        return None
    multiple, warmup = run.replicas, run["trainer.critic_warmup"]
    parts = f"{run.replicas} replicas, {run.asked_per_step} completions per step"
    if run.critic and run[f"{CRITIC}ppo_mini_batch_size"] >= 1:
        critic = run[f"{CRITIC}ppo_mini_batch_size"] * run[GROUP]
        multiple = math.lcm(multiple, critic)
        if critic != run.asked_per_step:
            parts += f", {critic} per step of the critic"
    early = -run.completions_per_rollout % multiple
    multiple = math.lcm(multiple, run.asked_per_step)
    padding = -run.completions_per_rollout % multiple
    if not padding:
        return None
    when = f" from rollout {warmup} on (trainer.critic_warmup; {early} rows before)" if warmup > 1 else ""
    return (
        f"a rollout of {run.completions_per_rollout} completions is padded with {padding} rows{when} to a multiple of "
        f"lcm({parts}) = {multiple}; they weigh nothing, but count in the mean over sequences, and are mixed into all "
        "steps"
    )


def _remainder_short(run: Run) -> str | None:
    if not run.legacy or not remainder(run) or not run.replicas:
        return None
    return (
        f"{run.completions_per_rollout} completions per rollout in steps of {run.completions_per_step} leave "
        f"{remainder(run)} for a last, smaller step, whose loss is still divided as for a whole one"
    )


def _failed_groups(run: Run) -> str | None:
    if not run.v1 or run[_REFILL] or run[_FILTERED]:
        return None
    return (
        "completions whose generation fails are left out and padded, and their group is normalised over fewer: of one "
        "that is left the raw reward is the advantage"
    )


def _generation_batch_ignored(run: Run) -> str | None:
    key = "data.gen_batch_size"
    if not run.v1 or run[key] in (None, 1):
        return None
    asynchronous = run.entry == "main_ppo" and run[TRAINER_MODE] != "sync"
    if not (run[_FILTERED] or run[_REFILL] or asynchronous):
        return None
    return f"{key} = {run[key]} is overridden to 1 where groups are filtered or refilled, or generated asynchronously"


def _epochs_misaligned(run: Run) -> str | None:
    size = run["data.gen_batch_size"]
    if size is None or size == run[PROMPTS] or (run.v1 and (run[_FILTERED] or run[_REFILL])):
        return None
    counted = "epochs are counted in rollouts and end elsewhere than the data does"
    taken = f"the trainer takes every fetched batch for a rollout, of {size} prompts"
    return f"data.gen_batch_size = {size} is not {PROMPTS} = {run[PROMPTS]}: {counted if run.v1 else taken}"


def _groups_bound_ignored(run: Run) -> str | None:
    key = "algorithm.filter_groups.max_num_gen_batches"
    if not run.v1 or key not in run.given or not run[key]:
        return None
    return f"{key} = {run[key]} is ignored by the V1 trainer"


def _overlong_dropped(run: Run) -> str | None:
    if not run["data.filter_overlong_prompts"]:
        return None
    return (
        f"prompts above data.max_prompt_length = {run['data.max_prompt_length']} tokens are dropped at loading: the "
        "dataset that is trained is smaller than the file, and epochs are shorter"
    )


def _balance_ignored(run: Run) -> str | None:
    key = "trainer.balance_batch"
    if not run.v1 or key not in run.given or run[key]:
        return None
    return f"{key} = False is ignored: the V1 trainer always balances"


def _order_by_workers(run: Run) -> str | None:
    if not run["data.shuffle"] or run[WORKERS] == 0:
        return None
    return (
        f"{WORKERS} = {run[WORKERS]}: above 0 the sampler is drawn twice per epoch, so the order of prompts differs "
        "from that of 0 workers; a throughput setting decides the data order"
    )


def _arrival_order(run: Run) -> str | None:
    if not run.v1 or not run.plain or run.completions_per_rollout <= run.completions_per_step:
        return None
    return (
        "the V1 trainer takes completions in the order in which they finish: which optimizer step trains a completion "
        "is decided by timing, not by a seed"
    )


def _ordered_by_length(run: Run) -> str | None:
    if run.v1 or not run["trainer.balance_batch"] or run[PREFIX_GROUPER] or not _several_steps(run):
        return None
    return (
        "balancing orders each replica's rows by length, up and down again: the optimizer steps of a rollout differ in "
        "length, and groups are split over them"
    )


def _strided_steps(run: Run) -> str | None:
    if run.v1 or run["trainer.balance_batch"] or not _several_steps(run) or (run.replicas or 1) == 1:
        return None
    return (
        f"every optimizer step takes its rows from the blocks of all {run.replicas} replicas: the first one is not the "
        f"first {run[MINI]} prompts of the rollout"
    )


def _several_steps(run: Run) -> bool:
    return run.plain and run.completions_per_step >= 1 and run.completions_per_rollout > run.completions_per_step


def _same_shuffle(run: Run) -> str | None:
    key = f"{ACTOR}shuffle"
    if not run[key] or (run.legacy and run.engine != "megatron"):
        return None
    seed = run[f"{ACTOR}data_loader_seed"]
    return (
        f"{key} draws from a generator that starts anew at every rollout (seed {seed} + replica): all rollouts of one "
        "size are permuted alike"
    )


def _unseeded(run: Run) -> str | None:
    if not run["data.shuffle"] or run["data.seed"] is not None:
        return None
    return "data.seed is null: the order is that of a new torch.Generator, the same in every run, not a random one"


def _slow_clock(run: Run) -> str | None:
    if not run.plain or run.completions_per_step < 1 or run.steps_per_rollout <= 1:
        return None
    return (
        f"the learning rate moves once per rollout, that is once in {math.ceil(run.steps_per_rollout)} optimizer "
        "steps; warm-up and schedule count rollouts"
    )


def _asynchronous(run: Run) -> str | None:
    mode = run[TRAINER_MODE]
    if not run.v1 or run.entry == "main_ppo_sync" or mode != "separate_async":
        return None
    return (
        f"{TRAINER_MODE} = {mode}: weights are sent after parameter_sync_step local updates, each with its own passes "
        "over a part of the rollout; this is not read"
    )


def _half_engine(run: Run) -> str | None:
    key = "trainer.use_legacy_worker_impl"
    if run[key] != "disable" or not holds("<0.7.1", run.version):
        return None
    return f"{key} = disable: the engine workers of verl {run.version} are not read"


SILENT_STEPS = (
    SILENT(
        "BB-VERL-041",
        _step_floored,
        (MINI, GROUP, *DEVICES),
        "the mini-batch is divided by the replicas and floored",
        "verl 0.7.1 fsdp_workers.py:249",
        whole_shares,
        "<0.8.0",
    ),
    SILENT(
        "BB-VERL-023",
        _remainder_padded,
        (PROMPTS, GROUP, MINI, f"{CRITIC}ppo_mini_batch_size", *DEVICES),
        "padding_utils.upsample_batch_to_divisible_size adds rows of 128 tokens",
        "verl 0.9.1 trainer/ppo/padding_utils.py:144, trainer/ppo/v1/trainer_base.py _get_required_batch_multiple",
        whole_steps,
        OF_V1,
    ),
    SILENT(
        "BB-VERL-023",
        _remainder_short,
        (PROMPTS, GROUP, MINI),
        "DataProto.split makes a smaller last mini-batch; the loss is scaled by the accumulation of a whole one",
        "verl 0.7.1 dp_actor.py:548",
        whole_steps,
        "<0.8.0",
    ),
    SILENT(
        "BB-VERL-031",
        _balance_ignored,
        ("trainer.balance_batch",),
        "only RayPPOTrainer reads it",
        "verl 0.9.1 ray_trainer.py:1549, trainer/ppo/v1/trainer_base.py:1608",
        setting("trainer.use_v1", False),
    ),
    NOTE(
        "BB-VERL-032",
        _order_by_workers,
        (WORKERS, "data.seed"),
        "StatefulDataLoader with workers draws the sampler twice per epoch",
        "torchdata StatefulDataLoader",
        setting(WORKERS, 0),
    ),
    NOTE(
        "BB-VERL-033",
        _slow_clock,
        (PROMPTS, MINI, EPOCHS),
        "update_lr_scheduler is true for the last mini-batch only",
        "verl 0.9.1 engine_workers.py; 0.7.1 fsdp_workers.update_actor",
        lambda run: (fix({MINI: run[PROMPTS], EPOCHS: 1}),),
    ),
    NOTE(
        "BB-VERL-036",
        _arrival_order,
        ("trainer.use_v1", PROMPTS, MINI),
        "rows are listed in the order of their arrival in TransferQueue",
        "verl 0.9.1 trainer/ppo/v1/replay_buffer.py _materialize_batch",
        lambda run: (fix({MINI: run[PROMPTS]}), fix({"trainer.use_v1": False})),
    ),
    SILENT(
        "BB-VERL-039",
        _groups_bound_ignored,
        ("algorithm.filter_groups.max_num_gen_batches",),
        "a warning is logged",
        "verl 0.9.1 trainer/ppo/v1/trainer_base.py:186",
        setting("algorithm.filter_groups.max_num_gen_batches", 0),
    ),
    SILENT(
        "BB-VERL-040",
        _generation_batch_ignored,
        ("data.gen_batch_size", _FILTERED, _REFILL),
        "gen_batch_size is overridden to 1 with a warning",
        "verl 0.9.1 trainer/ppo/v1/trainer_base.py:731",
        setting("data.gen_batch_size", None),
    ),
    SILENT(
        "BB-VERL-040",
        _epochs_misaligned,
        ("data.gen_batch_size", PROMPTS),
        "steps per epoch are len(dataset) // train_batch_size in V1, the data loader's length in V0",
        "verl 0.9.1 trainer/ppo/v1/trainer_base.py; ray_trainer.py:407",
        setting("data.gen_batch_size", None),
    ),
    NOTE(
        "BB-VERL-046",
        _unseeded,
        ("data.seed", "data.shuffle"),
        "torch.Generator() has a fixed default seed",
        "verl 0.6.1 to 0.9.1 create_rl_sampler",
        setting("data.seed", 42),
    ),
    OPEN(
        "BB-VERL-052",
        _asynchronous,
        ("trainer.v1.trainer_mode",),
        "it runs",
        "verl 0.9.1 trainer/ppo/v1/trainer_base.py:129",
        setting("trainer.v1.trainer_mode", "sync"),
    ),
    OPEN(
        "BB-VERL-053",
        _half_engine,
        ("trainer.use_legacy_worker_impl",),
        "it runs",
        "verl 0.5.0 to 0.7.0 main_ppo",
        setting("trainer.use_legacy_worker_impl", "auto"),
    ),
    NOTE(
        "BB-VERL-071",
        _overlong_dropped,
        ("data.filter_overlong_prompts", "data.max_prompt_length"),
        "filter dataset len: ... is logged",
        "verl 0.9.1 utils/dataset/rl_dataset.py maybe_filter_out_long_prompts",
        setting("data.filter_overlong_prompts", False),
    ),
    STANDING(
        "BB-VERL-072",
        _failed_groups,
        (_REFILL,),
        "the missing rows are padded",
        "verl 0.9.1 trainer/ppo/v1/replay_buffer.py ReplayBuffer, core_algos.py:268",
        setting(_REFILL, True),
        ">=0.9.0",
    ),
    STANDING(
        "BB-VERL-074",
        _ordered_by_length,
        ("trainer.balance_batch",),
        "get_seqlen_balanced_partitions, then each partition ordered by workload",
        "verl 0.9.1 ray_trainer.py _balance_batch",
        setting("trainer.balance_batch", False),
        ">=0.4.1",
    ),
    STANDING(
        "BB-VERL-075",
        _strided_steps,
        (PROMPTS, MINI, *DEVICES),
        "rows are dispatched in contiguous blocks, and each replica cuts its own block into mini-batches",
        "verl 0.9.1 engine_workers.py train_mini_batch",
        lambda run: (fix({MINI: run[PROMPTS]}),),
    ),
    NOTE(
        "BB-VERL-076",
        _same_shuffle,
        (f"{ACTOR}shuffle", f"{ACTOR}data_loader_seed"),
        "make_iterator seeds a new generator at every call",
        "verl 0.9.1 utils/tensordict_utils.py make_iterator",
        setting(f"{ACTOR}shuffle", False),
    ),
)
