"""What EasyR1 refuses of sizes: rollouts, steps, micro-batches and their shares."""

from __future__ import annotations

from collections.abc import Mapping

from batchbridge import Fix
from batchbridge.kit.rule_table import BUILDING, GENERATING, IN_CONFIG, STARTING, UPDATING
from batchbridge_easyr1 import settings as names
from batchbridge_easyr1.rules.refused import DRIVER, generation_chunks
from batchbridge_easyr1.rules.row import Rule, fix_of, near, setting, step_fixes
from batchbridge_easyr1.run import Run

_OFFLOAD = f"{names.ACTOR}fsdp.enable_cpu_offload"
_WORKER = "EasyR1 0.3.0 to 0.3.3.dev0 workers/fsdp_workers.py FSDPWorker._init_dist_mesh"


def _not_positive(run: Run) -> str | None:
    keys = (names.PROMPTS, names.GROUP, names.BATCH, names.MICRO, names.FORWARD, names.PASSES, run.ulysses_key)
    sizes = {**{key: run[key] for key in keys}, f"{names.NODES} x {names.GPUS}": run.world}
    if run[names.MINI_ROLLOUT] is not None:
        sizes[names.MINI_ROLLOUT] = run[names.MINI_ROLLOUT]
    wrong = [f"{key} = {value}" for key, value in sizes.items() if value < 1]
    return f"{', '.join(wrong)}: must be at least 1" if wrong else None


def _whole_steps(run: Run) -> str | None:
    if not run.plain or run[names.PROMPTS] % run[names.BATCH] == 0:
        return None
    return f"{run.said(names.PROMPTS)} (prompts) is no multiple of {run.said(names.BATCH)} (prompts)"


def _cuts_rollout(run: Run, v: Mapping[str, int]) -> bool:
    return v[names.PROMPTS] % v[names.BATCH] == 0


def _experience(run: Run) -> str | None:
    if not run.plain or run[names.FORWARD] < 1 or run.completions_per_rollout % run[names.FORWARD] == 0:
        return None
    return (
        f"{run.said(names.PROMPTS)} x {run.said(names.GROUP)} is {run.completions_per_rollout} completions, no "
        f"multiple of {run.said(names.FORWARD)}"
    )


def _cuts_experience(run: Run, v: Mapping[str, int]) -> bool:
    return v[names.PROMPTS] * v[names.GROUP] % v[names.FORWARD] == 0


def _single(run: Run) -> str | None:
    if run[names.GROUP] != 1 or run[names.ESTIMATOR] not in ("grpo", "rloo"):
        return None
    return f"{names.GROUP} = 1 with {run.said(names.ESTIMATOR)}: a group needs more than one completion"


def _no_share(run: Run) -> str | None:
    if not run.plain or not run.replicas or run.share:
        return None
    asked = f"{run.said(names.BATCH)} x {run.said(names.GROUP)} completions"
    return f"{asked} leave nothing for each of {run.replicas} replicas"


def _micro_fits(run: Run) -> str | None:
    if not run.plain or not run.share or run.share % run[names.MICRO] == 0:
        return None
    return f"{run.share} completions per device and optimizer step are no multiple of {run.said(names.MICRO)}"


def _cuts_share(run: Run, v: Mapping[str, int]) -> bool:
    share, rest = divmod(v[names.BATCH] * v[names.GROUP], max(run.replicas, 1))
    return share > 0 and share % v[names.MICRO] == 0 and rest == 0


_micro_fixes = near((names.MICRO, names.BATCH, names.GROUP), _cuts_share)


def _offload(run: Run) -> str | None:
    if not run[_OFFLOAD] or not run.plain or not run.share or run.share == run[names.MICRO]:
        return None
    return f"{_OFFLOAD} with {run.share // run[names.MICRO]} micro-batches per optimizer step: it needs one"


def _ulysses(run: Run) -> str | None:
    broken = run.plain and run.world % run[run.ulysses_key] != 0
    return f"{run.ulysses_key} = {run[run.ulysses_key]} does not divide {run.world} devices" if broken else None


def _tensor_parallel(run: Run) -> str | None:
    size = run[f"{names.ROLLOUT}tensor_parallel_size"]
    broken = run.world >= 1 and (size < 1 or run.world % size != 0)
    return f"{names.ROLLOUT}tensor_parallel_size = {size} does not divide {run.world} devices" if broken else None


def _batched_tokens(run: Run) -> str | None:
    budget = run[f"{names.ROLLOUT}max_num_batched_tokens"]
    if budget >= run.longest:
        return None
    return f"{names.ROLLOUT}max_num_batched_tokens = {budget} is below the longest sequence, {run.longest} tokens"


def _chunk_fixes(run: Run) -> tuple[Fix, ...]:
    key = names.MINI_ROLLOUT if run[names.MINI_ROLLOUT] else names.PROMPTS
    below = run[key] // run.world * run.world
    return tuple(fix_of({key: size}) for size in (below, below + run.world) if size)


def _split_asserts(run: Run) -> str | None:
    if not run.plain or not run.share or not run.replicas or run.completions_per_rollout % run.world:
        return None
    if _whole_steps(run) or _micro_fits(run) or _ulysses(run):
        return None
    if run.pieces(run.block, run.share) is None:
        return f"{run.block} completions of each replica cannot be cut into optimizer steps of {run.share} (floored)"
    return None


REFUSED_SIZES: tuple[Rule, ...] = (
    IN_CONFIG(
        "BB-EZR1-010",
        _not_positive,
        (names.PROMPTS, names.GROUP, names.BATCH, names.MICRO),
        "ZeroDivisionError, or a ValueError of the worker",
        _WORKER,
    ),
    BUILDING(
        "BB-EZR1-011",
        _whole_steps,
        (names.PROMPTS, names.BATCH),
        "ValueError: Rollout batch size must be divisible by actor global batch size.",
        DRIVER,
        near((names.BATCH, names.PROMPTS), _cuts_rollout),
    ),
    BUILDING(
        "BB-EZR1-012",
        _experience,
        (names.PROMPTS, names.GROUP, names.FORWARD),
        "ValueError: Rollout batch size * rollout.n must be divisible by actor micro batch size for experience.",
        DRIVER,
        near((names.FORWARD, names.PROMPTS, names.GROUP), _cuts_experience),
    ),
    BUILDING(
        "BB-EZR1-013",
        _single,
        (names.GROUP, names.ESTIMATOR),
        "ValueError: GRPO and RLOO algorithm need `config.worker.rollout.n > 1`.",
        DRIVER,
        setting(names.GROUP, 5),
    ),
    STARTING(
        "BB-EZR1-014",
        _no_share,
        (names.BATCH, names.GROUP, names.NODES, names.GPUS),
        "ValueError: actor global batch size * ulysses size must be larger than num gpus.",
        _WORKER,
        _micro_fixes,
    ),
    STARTING(
        "BB-EZR1-015",
        _micro_fits,
        (names.MICRO, names.BATCH, names.GROUP, names.NODES, names.GPUS),
        "ValueError: actor global batch size per device must be divisible by the micro batch size. (Also with "
        "dynamic_batching.)",
        _WORKER,
        _micro_fixes,
    ),
    STARTING(
        "BB-EZR1-016",
        _offload,
        (_OFFLOAD, names.MICRO, names.BATCH),
        "ValueError: cannot use FSDP's CPU offload when gradient accumulation is enabled.",
        _WORKER,
        lambda run: (Fix(f"{_OFFLOAD} = false", {_OFFLOAD: False}), fix_of({names.MICRO: run.share})),
    ),
    STARTING(
        "BB-EZR1-017",
        lambda run: _ulysses(run) if run.replicas < 1 else None,
        ("worker.actor.ulysses_size", names.NODES, names.GPUS),
        "AssertionError of PyTorch's device mesh",
        "EasyR1 fsdp_workers.py:130 (run with PyTorch 2.13)",
        lambda run: (fix_of({run.ulysses_key: 1}),),
    ),
    GENERATING(
        "BB-EZR1-017",
        lambda run: _ulysses(run) if run.replicas else None,
        (names.NODES, names.GPUS),
        "RuntimeError or IndexError of PyTorch's device mesh, on the devices beyond the last whole replica; all "
        "workers start",
        "EasyR1 fsdp_workers.py:130, sharding_manager/fsdp_ulysses.py (run with PyTorch 2.13)",
        lambda run: (fix_of({run.ulysses_key: 1}),),
    ),
    STARTING(
        "BB-EZR1-018",
        _tensor_parallel,
        (f"{names.ROLLOUT}tensor_parallel_size", names.NODES, names.GPUS),
        "ValueError (AssertionError in 0.3.0): rollout world size is not divisible by tp size",
        "EasyR1 fsdp_workers.py:383",
        setting(f"{names.ROLLOUT}tensor_parallel_size", 1),
    ),
    STARTING(
        "BB-EZR1-019",
        _batched_tokens,
        (f"{names.ROLLOUT}max_num_batched_tokens",),
        "ValueError: max_num_batched_tokens should be greater than prompt_length + response_length.",
        "EasyR1 vllm_rollout_spmd.py:110",
        lambda run: setting(f"{names.ROLLOUT}max_num_batched_tokens", run.longest)(run),
    ),
    GENERATING(
        "BB-EZR1-020",
        generation_chunks,
        (names.PROMPTS, names.NODES, names.GPUS),
        "AssertionError: only support equal chunk. Got size of DataProto ... and chunk ...",
        "EasyR1 protocol.py:555",
        _chunk_fixes,
    ),
    UPDATING(
        "BB-EZR1-021",
        _split_asserts,
        (names.PROMPTS, names.BATCH, names.GROUP, names.NODES, names.GPUS),
        "AssertionError in DataProto.split (ZeroDivisionError before 0.3.2 where there are too few)",
        "EasyR1 protocol.py:583",
        step_fixes,
    ),
)
