"""Rules about what verl never says of its steps: their order, members, remainders and clock."""

from __future__ import annotations

import math

from batchbridge import Fix
from batchbridge.kit.rule_table import NOTE, OPEN, SILENT, STANDING, Rules, says
from batchbridge_verl.known_programs import taken_by_program
from batchbridge_verl.rules.later_sizes import remainder
from batchbridge_verl.rules.row import BALANCE, DEVICES, FILTERED, OF_V1, V1, product
from batchbridge_verl.rules.ways_out import fix, setting, whole_shares, whole_steps
from batchbridge_verl.run import (
    CRITIC_WARMUP,
    EPOCHS,
    FULLY_ASYNC,
    GENERATION,
    GROUP,
    MINI,
    PROMPTS,
    TOTAL_EPOCHS,
    TOTAL_STEPS,
    TRAINER_MODE,
    VerlRun,
)
from batchbridge_verl.settings import ACTOR, CRITIC, PREFIX_GROUPER, holds

_REFILL = "trainer.v1.sampler.sync_refill_failed_groups"
_MOST_GENERATIONS = "algorithm.filter_groups.max_num_gen_batches"
_WORKERS, _OVERLONG = "data.dataloader_num_workers", "data.filter_overlong_prompts"
_CRITIC_MINI, _SHUFFLE, _LEGACY = f"{CRITIC}ppo_mini_batch_size", f"{ACTOR}shuffle", "trainer.use_legacy_worker_impl"
_SAVE, _RESUME = "trainer.save_freq", "trainer.resume_mode"

RULES = Rules[VerlRun]()


@RULES.add(SILENT, "BB-VERL-041", MINI, GROUP, *DEVICES, fixes=whole_shares)
@says("the mini-batch is divided by the replicas and floored", "verl 0.7.1 fsdp_workers.py:249", "<0.8.0")
def _step_floored(run: VerlRun) -> str | None:
    if not run.legacy or not run.plain or not run.replicas or not run.share or run.asked_per_step % run.replicas == 0:
        return None
    return (
        f"{product(run, MINI)} = {run.asked_per_step} completions are floored to {run.share} on each of {run.replicas} "
        f"replicas: an optimizer step has {run.completions_per_step}"
    )


@RULES.add(SILENT, "BB-VERL-023", PROMPTS, GROUP, MINI, _CRITIC_MINI, *DEVICES, fixes=whole_steps, core="BB123")
@says(
    "padding_utils.upsample_batch_to_divisible_size adds rows of 128 tokens",
    "verl 0.9.1 trainer/ppo/padding_utils.py:144, trainer/ppo/v1/trainer_base.py _get_required_batch_multiple",
    OF_V1,
)
def _remainder_padded(run: VerlRun) -> str | None:
    if not run.v1 or not run.plain or not run.replicas:
        return None
    multiple, warmup = run.replicas, run["trainer.critic_warmup"]
    parts = f"{run.replicas} replicas, {run.asked_per_step} completions per step"
    if run.critic and run[_CRITIC_MINI] >= 1:
        critic = run[_CRITIC_MINI] * run[GROUP]
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


@RULES.add(SILENT, "BB-VERL-023", PROMPTS, GROUP, MINI, fixes=whole_steps, core="BB123")
@says(
    "DataProto.split makes a smaller last mini-batch; the loss is scaled by the accumulation of a whole one",
    "verl 0.7.1 dp_actor.py:548",
    "<0.8.0",
)
def _remainder_short(run: VerlRun) -> str | None:
    if not run.legacy or not remainder(run) or not run.replicas:
        return None
    return (
        f"{run.completions_per_rollout} completions per rollout in steps of {run.completions_per_step} leave "
        f"{remainder(run)} for a last, smaller step, whose loss is still divided as for a whole one"
    )


@RULES.add(SILENT, "BB-VERL-031", BALANCE, fixes=setting(V1, False))
@says("only RayPPOTrainer reads it", "verl 0.9.1 ray_trainer.py:1549, trainer/ppo/v1/trainer_base.py:1608")
def _balance_ignored(run: VerlRun) -> str | None:
    if not run.v1 or BALANCE not in run.given_keys or run[BALANCE]:
        return None
    return f"{BALANCE} = False is ignored: the V1 trainer always balances"


@RULES.add(NOTE, "BB-VERL-032", _WORKERS, "data.seed", fixes=setting(_WORKERS, 0))
@says("StatefulDataLoader with workers draws the sampler twice per epoch", "torchdata StatefulDataLoader")
def _order_by_workers(run: VerlRun) -> str | None:
    if not run["data.shuffle"] or run[_WORKERS] == 0:
        return None
    return (
        f"{_WORKERS} = {run[_WORKERS]}: above 0 the sampler is drawn twice per epoch, so the order of prompts differs "
        "from that of 0 workers; a throughput setting decides the data order"
    )


@RULES.add(
    NOTE, "BB-VERL-033", PROMPTS, MINI, EPOCHS, fixes=lambda run: (fix({MINI: run[PROMPTS], EPOCHS: 1}),), core="BB142"
)
@says(
    "update_lr_scheduler is true for the last mini-batch only",
    "verl 0.9.1 engine_workers.py; 0.7.1 fsdp_workers.update_actor",
)
def _slow_clock(run: VerlRun) -> str | None:
    if not run.plain or run.completions_per_step < 1 or run.steps_per_rollout <= 1:
        return None
    return (
        f"the learning rate moves once per rollout, that is once in {math.ceil(run.steps_per_rollout)} optimizer "
        "steps; warm-up and schedule count rollouts"
    )


def _one_step(run: VerlRun) -> tuple[Fix, ...]:
    return (fix({MINI: run[PROMPTS]}),)


@RULES.add(NOTE, "BB-VERL-036", V1, PROMPTS, MINI, fixes=lambda run: (*_one_step(run), fix({V1: False})))
@says(
    "rows are listed in the order of their arrival in TransferQueue",
    "verl 0.9.1 trainer/ppo/v1/replay_buffer.py _materialize_batch",
)
def _arrival_order(run: VerlRun) -> str | None:
    if not run.v1 or not run.plain or run.completions_per_rollout <= run.completions_per_step:
        return None
    return (
        "the V1 trainer takes completions in the order in which they finish: which optimizer step trains a completion "
        "is decided by timing, not by a seed"
    )


@RULES.add(SILENT, "BB-VERL-039", _MOST_GENERATIONS, fixes=setting(_MOST_GENERATIONS, 0))
@says("a warning is logged", "verl 0.9.1 trainer/ppo/v1/trainer_base.py:186")
def _groups_bound_ignored(run: VerlRun) -> str | None:
    if not run.v1 or _MOST_GENERATIONS not in run.given_keys or not run[_MOST_GENERATIONS]:
        return None
    return f"{_MOST_GENERATIONS} = {run[_MOST_GENERATIONS]} is ignored by the V1 trainer"


@RULES.add(SILENT, "BB-VERL-040", GENERATION, FILTERED, _REFILL, fixes=setting(GENERATION, None))
@says("gen_batch_size is overridden to 1 with a warning", "verl 0.9.1 trainer/ppo/v1/trainer_base.py:731")
def _generation_batch_ignored(run: VerlRun) -> str | None:
    if not run.v1 or run[GENERATION] in (None, 1):
        return None
    asynchronous = run.entry == "main_ppo" and run[TRAINER_MODE] != "sync"
    if not (run[FILTERED] or run[_REFILL] or asynchronous):
        return None
    when = "where groups are filtered or refilled, or generated asynchronously"
    return f"{GENERATION} = {run[GENERATION]} is overridden to 1 {when}"


@RULES.add(SILENT, "BB-VERL-040", GENERATION, PROMPTS, fixes=setting(GENERATION, None))
@says(
    "steps per epoch are len(dataset) // train_batch_size in V1, the data loader's length in V0",
    "verl 0.9.1 trainer/ppo/v1/trainer_base.py; ray_trainer.py:407",
)
def _epochs_misaligned(run: VerlRun) -> str | None:
    size = run[GENERATION]
    if size is None or size == run[PROMPTS] or (run.v1 and (run[FILTERED] or run[_REFILL])):
        return None
    if GENERATION in taken_by_program(run.own_program):
        return None
    counted = "epochs are counted in rollouts and end elsewhere than the data does"
    taken = f"the trainer takes every fetched batch for a rollout, of {size} prompts"
    return f"{GENERATION} = {size} is not {PROMPTS} = {run[PROMPTS]}: {counted if run.v1 else taken}"


@RULES.add(NOTE, "BB-VERL-046", "data.seed", "data.shuffle", fixes=setting("data.seed", 42))
@says("torch.Generator() has a fixed default seed", "verl 0.6.1 to 0.9.1 create_rl_sampler")
def _unseeded(run: VerlRun) -> str | None:
    if not run["data.shuffle"] or run["data.seed"] is not None:
        return None
    return "data.seed is null: the order is that of a new torch.Generator, the same in every run, not a random one"


@RULES.add(OPEN, "BB-VERL-052", TRAINER_MODE, fixes=setting(TRAINER_MODE, "sync"))
@says("it runs", "verl 0.9.1 trainer/ppo/v1/trainer_base.py:129")
def _asynchronous(run: VerlRun) -> str | None:
    if not run.v1 or run.entry == "main_ppo_sync" or run[TRAINER_MODE] != "separate_async":
        return None
    return (
        f"{TRAINER_MODE} = separate_async: weights are sent after parameter_sync_step local updates, each with its own "
        "passes over a part of the rollout; this is not read"
    )


@RULES.add(OPEN, "BB-VERL-097", CRITIC_WARMUP, fixes=setting(CRITIC_WARMUP, 0))
@says("the actor is left out while critic_warmup > global_steps", "verl 0.4.0 to 0.9.1 fit, V1 _step_once")
def _idle_warmup(run: VerlRun) -> str | None:
    if run[CRITIC_WARMUP] <= 1 or run.critic:
        return None
    return (
        f"{CRITIC_WARMUP} = {run[CRITIC_WARMUP]} without a critic: nothing trains on the first "
        f"{run[CRITIC_WARMUP] - 1} rollouts, and no specification says so"
    )


def _reached(run: VerlRun) -> tuple[Fix, ...]:
    per_epoch = (run.prompts_in_dataset or 0) // run.fetched
    epochs = math.ceil(run[TOTAL_STEPS] / per_epoch)
    return fix({TOTAL_STEPS: run[TOTAL_EPOCHS] * per_epoch}), fix({TOTAL_EPOCHS: epochs})


@RULES.add(SILENT, "BB-VERL-096", TOTAL_STEPS, TOTAL_EPOCHS, PROMPTS, fixes=_reached)
@says("the loop ends with its epochs", "verl 0.9.1 ray_trainer.py fit, trainer/ppo/v1/trainer_base.py fit")
def _ends_before(run: VerlRun) -> str | None:
    steps, prompts = run[TOTAL_STEPS], run.prompts_in_dataset
    if steps is None or prompts is None or not run.plain or run.entry == FULLY_ASYNC:
        return None
    rollouts = run[TOTAL_EPOCHS] * (prompts // run.fetched)
    if not 0 < rollouts < steps:
        return None
    return (
        f"{TOTAL_EPOCHS} = {run[TOTAL_EPOCHS]} ends the run after {rollouts} rollouts, before {TOTAL_STEPS} = {steps}: "
        f"the learning rate's schedule is made for {steps}"
    )


def _exhausted_at(run: VerlRun) -> int | None:
    """The first saved step that ends an epoch, of those after which an epoch follows."""
    prompts, every = run.prompts_in_dataset, run[_SAVE]
    per_epoch = 0 if prompts is None or not run.plain else prompts // run.fetched
    if per_epoch < 1 or every < 1 or run[_RESUME] == "disable":
        return None
    step = math.lcm(per_epoch, every)
    return step if step < run[TOTAL_EPOCHS] * per_epoch else None


def _no_exhausted(run: VerlRun) -> tuple[Fix, ...]:
    return (fix({_SAVE: run[_SAVE] - 1}),) if run[_SAVE] > 2 else (fix({_SAVE: run[_SAVE] + 1}),)


@RULES.add(SILENT, "BB-VERL-101", _SAVE, _RESUME, PROMPTS, TOTAL_EPOCHS, fixes=_no_exhausted)
@says(
    "the data loader's state is exhausted, and the loop begins with the epoch after it",
    "verl 0.7.0 and 0.7.1 ray_trainer.py fit and _load_checkpoint; mended in 0.8.0",
    ">=0.7.0,<0.8.0",
)
def _resumed_at_an_epochs_end(run: VerlRun) -> str | None:
    if run.entry == FULLY_ASYNC or (step := _exhausted_at(run)) is None:
        return None
    left_out = "the next epoch is left out"
    if step == (run[TOTAL_EPOCHS] - 1) * ((run.prompts_in_dataset or 0) // run.fetched):
        left_out = "no rollout is left"
    return f"{_SAVE} = {run[_SAVE]} saves at step {step}, an epoch's end: in a run that is resumed from it {left_out}"


@RULES.add(OPEN, "BB-VERL-053", _LEGACY, fixes=setting(_LEGACY, "auto"))
@says("it runs", "verl 0.5.0 to 0.7.0 main_ppo")
def _half_engine(run: VerlRun) -> str | None:
    if run[_LEGACY] != "disable" or not holds("<0.7.1", run.version):
        return None
    return f"{_LEGACY} = disable: the engine workers of verl {run.version} are not read"


@RULES.add(NOTE, "BB-VERL-071", _OVERLONG, "data.max_prompt_length", fixes=setting(_OVERLONG, False))
@says("filter dataset len: ... is logged", "verl 0.9.1 utils/dataset/rl_dataset.py maybe_filter_out_long_prompts")
def _overlong_dropped(run: VerlRun) -> str | None:
    if not run[_OVERLONG]:
        return None
    return (
        f"prompts above data.max_prompt_length = {run['data.max_prompt_length']} tokens are dropped at loading: the "
        "dataset that is trained is smaller than the file, and epochs are shorter"
    )


@RULES.add(STANDING, "BB-VERL-072", _REFILL, fixes=setting(_REFILL, True))
@says(
    "the missing rows are padded",
    "verl 0.9.1 trainer/ppo/v1/replay_buffer.py ReplayBuffer, core_algos.py:268",
    ">=0.9.0",
)
def _failed_groups(run: VerlRun) -> str | None:
    if not run.v1 or run[_REFILL] or run[FILTERED]:
        return None
    return (
        "completions whose generation fails are left out, and their group is normalised over the others; where one is "
        "left, its advantage is its raw reward"
    )


@RULES.add(STANDING, "BB-VERL-074", BALANCE, fixes=setting(BALANCE, False))
@says(
    "get_seqlen_balanced_partitions, then each partition ordered by workload",
    "verl 0.9.1 ray_trainer.py _balance_batch",
    ">=0.4.1",
)
def _ordered_by_length(run: VerlRun) -> str | None:
    if run.v1 or not run[BALANCE] or run[PREFIX_GROUPER] or not _several_steps(run):
        return None
    return (
        "balancing orders each replica's rows by length, up and down again: the optimizer steps of a rollout differ in "
        "length, and groups are split over them"
    )


@RULES.add(STANDING, "BB-VERL-075", PROMPTS, MINI, *DEVICES, fixes=_one_step)
@says(
    "rows are dispatched in contiguous blocks, and each replica cuts its own block into mini-batches",
    "verl 0.9.1 engine_workers.py train_mini_batch",
)
def _strided_steps(run: VerlRun) -> str | None:
    if run.v1 or run[BALANCE] or not _several_steps(run) or (run.replicas or 1) == 1:
        return None
    return (
        f"every optimizer step takes its rows from the blocks of all {run.replicas} replicas: the first one is not the "
        f"first {run[MINI]} prompts of the rollout"
    )


def _several_steps(run: VerlRun) -> bool:
    return run.plain and run.completions_per_step >= 1 and run.completions_per_rollout > run.completions_per_step


@RULES.add(NOTE, "BB-VERL-076", _SHUFFLE, f"{ACTOR}data_loader_seed", fixes=setting(_SHUFFLE, False))
@says("make_iterator seeds a new generator at every call", "verl 0.9.1 utils/tensordict_utils.py make_iterator")
def _same_shuffle(run: VerlRun) -> str | None:
    if not run[_SHUFFLE] or (run.legacy and run.engine != "megatron"):
        return None
    seed = run[f"{ACTOR}data_loader_seed"]
    return (
        f"{_SHUFFLE} draws from a generator that starts anew at every rollout (seed {seed} + replica): all rollouts "
        "of one size are permuted alike"
    )
