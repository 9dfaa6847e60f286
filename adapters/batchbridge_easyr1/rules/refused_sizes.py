"""Refusals of EasyR1's own that are about sizes: rollouts, steps, micro-batches and their shares."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from batchbridge import Fix
from batchbridge.kit import nearest_numbers
from batchbridge.kit.rule_table import BUILDING, GENERATING, IN_CONFIG, STARTING, UPDATING, Rules, says, setting_fixes
from batchbridge_easyr1 import settings as names
from batchbridge_easyr1.rules import printed
from batchbridge_easyr1.rules.fixes import near, setting, step_fixes
from batchbridge_easyr1.run import EasyR1Run

DRIVER = "EasyR1 0.3.0 to 0.3.3.dev0 trainer/ray_trainer.py RayPPOTrainer.__init__"
_WORKER = "EasyR1 0.3.0 to 0.3.3.dev0 workers/fsdp_workers.py FSDPWorker._init_dist_mesh"
_OFFLOAD = f"{names.ACTOR}fsdp.enable_cpu_offload"
_TENSOR, _TOKENS = f"{names.ROLLOUT}tensor_parallel_size", f"{names.ROLLOUT}max_num_batched_tokens"

RULES = Rules[EasyR1Run]()


@RULES.add(IN_CONFIG, "BB-EZR1-010", names.PROMPTS, names.GROUP, names.BATCH, names.MICRO)
@says("ZeroDivisionError, or a ValueError of the worker", _WORKER)
def _not_positive(run: EasyR1Run) -> str | None:
    keys = (names.PROMPTS, names.GROUP, names.BATCH, names.MICRO, names.FORWARD, names.PASSES, run.ulysses_key)
    sizes = {**{key: run[key] for key in keys}, f"{names.NODES} x {names.GPUS}": run.world}
    if run[names.MINI_ROLLOUT] is not None:
        sizes[names.MINI_ROLLOUT] = run[names.MINI_ROLLOUT]
    wrong = [f"{key} = {value}" for key, value in sizes.items() if value < 1]
    return f"{', '.join(wrong)}: must be at least 1" if wrong else None


@near(names.BATCH, names.PROMPTS)
def _whole_step_fixes(run: EasyR1Run, v: Mapping[str, int]) -> bool:
    return v[names.PROMPTS] % v[names.BATCH] == 0


@RULES.add(BUILDING, "BB-EZR1-011", names.PROMPTS, names.BATCH, fixes=_whole_step_fixes, text=printed.ROLLOUT_OF_GLOBAL)
@says("ValueError: Rollout batch size must be divisible by actor global batch size.", DRIVER)
def _whole_steps(run: EasyR1Run) -> str | None:
    if not run.plain or run[names.PROMPTS] % run[names.BATCH] == 0:
        return None
    return (
        f"{run.key_and_value(names.PROMPTS)} (prompts) is not a multiple of {run.key_and_value(names.BATCH)} (prompts)"
    )


@near(names.FORWARD, names.PROMPTS, names.GROUP)
def _experience_fixes(run: EasyR1Run, v: Mapping[str, int]) -> bool:
    return v[names.PROMPTS] * v[names.GROUP] % v[names.FORWARD] == 0


@RULES.add(BUILDING, "BB-EZR1-012", names.PROMPTS, names.GROUP, names.FORWARD, fixes=_experience_fixes)
@says("ValueError: Rollout batch size * rollout.n must be divisible by actor micro batch size for experience.", DRIVER)
def _experience(run: EasyR1Run) -> str | None:
    if not run.plain or run[names.FORWARD] < 1 or run.completions_per_rollout % run[names.FORWARD] == 0:
        return None
    return (
        f"{run.key_and_value(names.PROMPTS)} x {run.key_and_value(names.GROUP)} is {run.completions_per_rollout} "
        "completions, no "
        f"multiple of {run.key_and_value(names.FORWARD)}"
    )


@RULES.add(
    BUILDING,
    "BB-EZR1-013",
    names.GROUP,
    names.ESTIMATOR,
    fixes=setting(names.GROUP, 5),
    core="BB127",
    text=printed.GROUP_OF_ONE,
)
@says("ValueError: GRPO and RLOO algorithm need `config.worker.rollout.n > 1`.", DRIVER)
def _single(run: EasyR1Run) -> str | None:
    if run[names.GROUP] != 1 or run[names.ESTIMATOR] not in ("grpo", "rloo"):
        return None
    return f"{names.GROUP} = 1 with {run.key_and_value(names.ESTIMATOR)}: a group needs more than one completion"


@near(names.MICRO, names.BATCH, names.GROUP)
def _micro_fixes(run: EasyR1Run, v: Mapping[str, int]) -> bool:
    share, rest = divmod(v[names.BATCH] * v[names.GROUP], max(run.replicas, 1))
    return share > 0 and share % v[names.MICRO] == 0 and rest == 0


@RULES.add(
    STARTING,
    "BB-EZR1-014",
    names.BATCH,
    names.GROUP,
    names.NODES,
    names.GPUS,
    fixes=_micro_fixes,
    text=printed.NOTHING_PER_DEVICE,
)
@says("ValueError: actor global batch size * ulysses size must be larger than num gpus.", _WORKER)
def _no_share(run: EasyR1Run) -> str | None:
    if not run.plain or not run.replicas or run.share:
        return None
    asked = f"{run.key_and_value(names.BATCH)} x {run.key_and_value(names.GROUP)} completions"
    return f"{asked} leave nothing for each of {run.replicas} replicas"


@RULES.add(
    STARTING,
    "BB-EZR1-015",
    names.MICRO,
    names.BATCH,
    names.GROUP,
    names.NODES,
    names.GPUS,
    fixes=_micro_fixes,
    core="BB122",
    text=printed.MICRO_OF_SHARE,
)
@says(
    "ValueError: actor global batch size per device must be divisible by the micro batch size. (Also with "
    "dynamic_batching.)",
    _WORKER,
)
def _micro_fits(run: EasyR1Run) -> str | None:
    if not run.plain or not run.share or run.share % run[names.MICRO] == 0:
        return None
    return (
        f"{run.share} completions per device and optimizer step are not a multiple of {run.key_and_value(names.MICRO)}"
    )


def _offload_fixes(run: EasyR1Run) -> tuple[Fix, ...]:
    return (Fix(f"{_OFFLOAD} = false", {_OFFLOAD: False}), *setting_fixes({names.MICRO: run.share}))


@RULES.add(
    STARTING,
    "BB-EZR1-016",
    _OFFLOAD,
    names.MICRO,
    names.BATCH,
    fixes=_offload_fixes,
    text=printed.OFFLOAD_WITH_ACCUMULATION,
)
@says("ValueError: cannot use FSDP's CPU offload when gradient accumulation is enabled.", _WORKER)
def _offload(run: EasyR1Run) -> str | None:
    if not run[_OFFLOAD] or not run.plain or not run.share or run.share == run[names.MICRO]:
        return None
    return f"{_OFFLOAD} with {run.share // run[names.MICRO]} micro-batches per optimizer step: it needs one"


def _ulysses(run: EasyR1Run) -> str | None:
    broken = run.plain and run.world % run[run.ulysses_key] != 0
    return f"{run.ulysses_key} = {run[run.ulysses_key]} does not divide {run.world} devices" if broken else None


def _divisor_fixes(key: str, run: EasyR1Run) -> tuple[Fix, ...]:
    """The nearest sizes that share out the devices."""
    sizes = nearest_numbers(max(run[key], 1), divides=run.world)
    return tuple(way for size in sizes for way in setting_fixes({key: size}))


def _ulysses_fixes(run: EasyR1Run) -> tuple[Fix, ...]:
    return _divisor_fixes(run.ulysses_key, run)


@RULES.add(
    STARTING, "BB-EZR1-017", "worker.actor.ulysses_size", names.NODES, names.GPUS, fixes=_ulysses_fixes, core="BB102"
)
@says("AssertionError of PyTorch's device mesh", "EasyR1 fsdp_workers.py:130 (run with PyTorch 2.13)")
def _no_replica(run: EasyR1Run) -> str | None:
    return _ulysses(run) if run.replicas < 1 else None


@RULES.add(GENERATING, "BB-EZR1-017", names.NODES, names.GPUS, fixes=_ulysses_fixes, core="BB102")
@says(
    "RuntimeError or IndexError of PyTorch's device mesh, on the devices beyond the last whole replica; all workers "
    "start",
    "EasyR1 fsdp_workers.py:130, sharding_manager/fsdp_ulysses.py (run with PyTorch 2.13)",
)
def _devices_left_over(run: EasyR1Run) -> str | None:
    return _ulysses(run) if run.replicas else None


@RULES.add(STARTING, "BB-EZR1-018", _TENSOR, names.NODES, names.GPUS, fixes=partial(_divisor_fixes, _TENSOR))
@says(
    "ValueError (AssertionError in 0.3.0): rollout world size is not divisible by tp size", "EasyR1 fsdp_workers.py:383"
)
def _tensor_parallel(run: EasyR1Run) -> str | None:
    size = run[_TENSOR]
    if run.world < 1 or (size >= 1 and run.world % size == 0):
        return None
    return f"{_TENSOR} = {size} does not divide {run.world} devices"


@RULES.add(STARTING, "BB-EZR1-019", _TOKENS, fixes=lambda run: setting_fixes({_TOKENS: run.longest}))
@says(
    "ValueError: max_num_batched_tokens should be greater than prompt_length + response_length.",
    "EasyR1 vllm_rollout_spmd.py:110",
)
def _batched_tokens(run: EasyR1Run) -> str | None:
    if run[_TOKENS] >= run.longest:
        return None
    return f"{run.key_and_value(_TOKENS)} is below the longest sequence, {run.longest} tokens"


def _chunk_fixes(run: EasyR1Run) -> tuple[Fix, ...]:
    key = names.MINI_ROLLOUT if run[names.MINI_ROLLOUT] else names.PROMPTS
    below = run[key] // run.world * run.world
    return setting_fixes(*({key: size} for size in (below, below + run.world) if size))


@RULES.add(GENERATING, "BB-EZR1-020", names.PROMPTS, names.NODES, names.GPUS, fixes=_chunk_fixes)
@says("AssertionError: only support equal chunk. Got size of DataProto ... and chunk ...", "EasyR1 protocol.py:555")
def generation_chunks(run: EasyR1Run) -> str | None:
    """Prompts per generation that the devices do not share evenly."""
    key = names.MINI_ROLLOUT if run[names.MINI_ROLLOUT] else names.PROMPTS
    if not run.plain or run[key] % run.world == 0:
        return None
    return f"{run.key_and_value(key)} prompts per generation are not a multiple of {run.world} devices"


@RULES.add(
    UPDATING,
    "BB-EZR1-021",
    names.PROMPTS,
    names.BATCH,
    names.GROUP,
    names.NODES,
    names.GPUS,
    fixes=step_fixes,
    core="BB108",
)
@says(
    "AssertionError in DataProto.split (ZeroDivisionError before 0.3.2 where there are too few)",
    "EasyR1 protocol.py:583",
)
def _split_asserts(run: EasyR1Run) -> str | None:
    if not run.plain or not run.share or not run.replicas or run.completions_per_rollout % run.world:
        return None
    if _whole_steps(run) or _micro_fits(run) or _ulysses(run) or run.pieces(run.block, run.share) is not None:
        return None
    return f"{run.block} completions of each replica cannot be cut into optimizer steps of {run.share} (floored)"
