"""EasyR1's own rules, and what it does silently: a table, each row with phase, source and ways out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from batchbridge.adapter import Defect, Reading
from batchbridge.findings import Finding, Fix, Phase, Severity, Where
from batchbridge.solve import Variable, neighbours
from batchbridge_easyr1.meaning import AGGREGATIONS, ESTIMATORS, INEXPRESSIBLE, KL_ESTIMATORS, LOSS_TYPES
from batchbridge_easyr1.run import Run
from batchbridge_easyr1.settings import (
    ACTOR,
    BATCH,
    ESTIMATOR,
    FORWARD,
    GPUS,
    GROUP,
    LOSS_TYPE,
    MICRO,
    MINI_ROLLOUT,
    MODE,
    NODES,
    PASSES,
    PROMPTS,
    ROLLOUT,
    holds,
)


@dataclass(frozen=True)
class Rule:
    """One row. `test` gives the message where the rule is broken, else None. `keys`: the settings to point at."""

    code: str
    severity: Severity
    phase: Phase
    test: Callable[[Run], str | None]
    keys: tuple[str, ...]
    native: str
    source: str
    fixes: Callable[[Run], tuple[Fix, ...]] = lambda run: ()
    versions: str = ""
    undecided: bool = False


def check(reading: Reading) -> list[Finding]:
    """Every rule that `reading` breaks; empty while its run is unknown."""
    run = getattr(reading, "run", None)
    if not isinstance(run, Run):
        return []
    given: Mapping[str, Where] = getattr(reading, "given", {})
    found = []
    for rule in RULES:
        if holds(rule.versions, run.version) and (message := rule.test(run)) is not None:
            found.append(
                Finding(
                    rule.code,
                    rule.severity,
                    rule.phase,
                    message,
                    where=tuple(given.get(key) or Where(key, run[key]) for key in rule.keys),
                    fixes=rule.fixes(run),
                    native=rule.native,
                    source=rule.source,
                    undecided=rule.undecided,
                )
            )
    return found


def defects(run: Run) -> tuple[Defect, ...]:
    """The rows that apply, that EasyR1 itself never reports, and that change what is trained."""
    return tuple(
        Defect(code=rule.code, summary=message, source=rule.source)
        for rule in RULES
        if rule.phase == "never" and rule.severity == "warning" and holds(rule.versions, run.version)
        if (message := rule.test(run)) is not None
    )


def _near(run: Run, keys: tuple[str, ...], legal: Callable[[Mapping[str, int]], bool]) -> tuple[Fix, ...]:
    """The nearest legal values of `keys`, one at a time where that suffices."""
    present = {key: run[key] for key in (PROMPTS, BATCH, GROUP, MICRO, FORWARD)}
    sizes = [Variable(key, max(present[key], 1)) for key in keys]
    changes = neighbours(sizes, lambda changed: legal({**present, **changed}))
    return tuple(Fix(", ".join(f"{key} = {value}" for key, value in change.items()), change) for change in changes)


def _set(key: str, value: Any) -> Callable[[Run], tuple[Fix, ...]]:
    return lambda run: (Fix(f"{key} = {value}", {key: value}),)


def _not_positive(run: Run) -> str | None:
    sizes = {key: run[key] for key in (PROMPTS, GROUP, BATCH, MICRO, FORWARD, PASSES, run.ulysses_key)}
    wrong = [f"{key} = {value}" for key, value in {**sizes, f"{NODES} x {GPUS}": run.world}.items() if value < 1]
    return f"{', '.join(wrong)}: must be at least 1" if wrong else None


def _whole_steps(run: Run) -> str | None:
    if not run.plain or run[PROMPTS] % run[BATCH] == 0:
        return None
    return f"{PROMPTS} = {run[PROMPTS]} (prompts) is no multiple of {BATCH} = {run[BATCH]} (prompts)"


def _experience(run: Run) -> str | None:
    if not run.plain or run[FORWARD] < 1 or run.completions_per_rollout % run[FORWARD] == 0:
        return None
    return (
        f"{PROMPTS} = {run[PROMPTS]} x {GROUP} = {run[GROUP]} is {run.completions_per_rollout} completions, no "
        f"multiple of {FORWARD} = {run[FORWARD]}"
    )


def _single(run: Run) -> str | None:
    if run[GROUP] != 1 or run[ESTIMATOR] not in ("grpo", "rloo"):
        return None
    return f"{GROUP} = 1 with {ESTIMATOR} = {run[ESTIMATOR]}: a group needs more than one completion"


def _no_share(run: Run) -> str | None:
    if not run.plain or not run.replicas or run.share:
        return None
    return (
        f"{BATCH} = {run[BATCH]} x {GROUP} = {run[GROUP]} completions leave nothing for each of {run.replicas} replicas"
    )


def _micro_fits(run: Run) -> str | None:
    if not run.plain or not run.share or run.share % run[MICRO] == 0:
        return None
    return f"{run.share} completions per device and optimizer step are no multiple of {MICRO} = {run[MICRO]}"


def _micro_fixes(run: Run) -> tuple[Fix, ...]:
    def legal(v: Mapping[str, int]) -> bool:
        share = v[BATCH] * v[GROUP] // max(run.replicas, 1)
        return share > 0 and share % v[MICRO] == 0 and v[BATCH] * v[GROUP] % max(run.replicas, 1) == 0

    return _near(run, (MICRO, BATCH, GROUP), legal)


def _offload(run: Run) -> str | None:
    if not run[f"{ACTOR}fsdp.enable_cpu_offload"] or not run.plain or not run.share or run.share == run[MICRO]:
        return None
    return (
        f"{ACTOR}fsdp.enable_cpu_offload with {run.share // run[MICRO]} micro-batches per optimizer step: it needs one"
    )


def _tensor_parallel(run: Run) -> str | None:
    size = run[f"{ROLLOUT}tensor_parallel_size"]
    if run.world < 1 or (size >= 1 and run.world % size == 0):
        return None
    return f"{ROLLOUT}tensor_parallel_size = {size} does not divide {run.world} devices"


def _batched_tokens(run: Run) -> str | None:
    budget = run[f"{ROLLOUT}max_num_batched_tokens"]
    if budget >= run.longest:
        return None
    return f"{ROLLOUT}max_num_batched_tokens = {budget} is below the longest sequence, {run.longest} tokens"


def _generation_chunks(run: Run) -> str | None:
    size = run[MINI_ROLLOUT] or run[PROMPTS]
    if not run.plain or size % run.world == 0:
        return None
    key = MINI_ROLLOUT if run[MINI_ROLLOUT] else PROMPTS
    return f"{key} = {size} prompts per generation are no multiple of {run.world} devices"


def _chunk_fixes(run: Run) -> tuple[Fix, ...]:
    key = MINI_ROLLOUT if run[MINI_ROLLOUT] else PROMPTS
    below = run[key] // run.world * run.world
    return tuple(Fix(f"{key} = {size}", {key: size}) for size in (below, below + run.world) if size)


def _ulysses(run: Run) -> str | None:
    if not run.plain or run.world % run[run.ulysses_key] == 0:
        return None
    return f"{run.ulysses_key} = {run[run.ulysses_key]} does not divide {run.world} devices"


def _floored(run: Run) -> str | None:
    asked = run[BATCH] * run[GROUP] if run.plain else 0
    if not asked or not run.share or run.completions_per_step == asked:
        return None
    return (
        f"{BATCH} = {run[BATCH]} (prompts) x {GROUP} = {run[GROUP]} = {asked} completions are floored to {run.share} "
        f"on each of {run.replicas} replicas: an optimizer step has {run.completions_per_step}"
    )


def _split_asserts(run: Run) -> str | None:
    if not run.plain or not run.share or not run.replicas or run.completions_per_rollout % run.replicas:
        return None
    block = run.completions_per_rollout // run.replicas
    if block % run.share == 0 or _whole_steps(run):
        return None
    return f"{block} completions of each replica cannot be cut into optimizer steps of {run.share} (floored)"


def _step_fixes(run: Run) -> tuple[Fix, ...]:
    def legal(v: Mapping[str, int]) -> bool:
        return v[BATCH] * v[GROUP] % max(run.replicas, 1) == 0 and v[PROMPTS] % v[BATCH] == 0

    return _near(run, (BATCH, GROUP, PROMPTS), legal)


def _wrong_scope(run: Run) -> str | None:
    if not run.depends_on_split:
        return None
    if run.token_weighted:
        return (
            f"{MODE} = seq: the means over sequences of micro-batches are weighed by their tokens, so the gradient "
            "depends on the micro-batch size and the devices; with one completion per micro-batch it is the token mean"
        )
    return (
        f"{MODE} = token: each micro-batch's token mean counts alike, so the gradient depends on the micro-batch "
        "size and the devices"
    )


def _broken_gae(run: Run) -> str | None:
    return (
        f"{ESTIMATOR} = gae cannot run: the critic reads settings that it is not given"
        if run[ESTIMATOR] == "gae"
        else None
    )


def _no_rollout(run: Run) -> str | None:
    count, size = run.prompts_in_dataset, run[MINI_ROLLOUT] or run[PROMPTS]
    if count is None or not run.plain or size < 1 or count // size * size >= run[PROMPTS]:
        return None
    return (
        f"the dataset's {count} prompts give {count // size * size} in whole batches of {size}, fewer than {PROMPTS} = "
        f"{run[PROMPTS]}: the run has 0 steps, and only validates and saves"
    )


def _surplus(run: Run) -> str | None:
    size = run[MINI_ROLLOUT]
    if size is None or size < 1 or run[PROMPTS] % size == 0:
        return None
    return f"{MINI_ROLLOUT} = {size} does not divide {PROMPTS} = {run[PROMPTS]}: surplus generations are thrown away"


def _known(key: str, names: tuple[str, ...]) -> Callable[[Run], str | None]:
    return lambda run: None if run[key] in names else f"{key} = {run[key]}: must be one of {', '.join(names)}"


def _inexpressible(run: Run) -> str | None:
    reason = INEXPRESSIBLE.get(run[ESTIMATOR])
    return f"{ESTIMATOR} = {run[ESTIMATOR]} has no canonical form: {reason}" if reason else None


def _slow_clock(run: Run) -> str | None:
    if not run.plain or run.completions_per_step < 1 or run.steps_per_rollout <= 1:
        return None
    return (
        f"the learning rate moves once per rollout, that is once in {run.steps_per_rollout:g} optimizer steps; "
        "warm-up and schedule count rollouts"
    )


_DRIVER = "EasyR1 0.3.0 to 0.3.3.dev0 trainer/ray_trainer.py RayPPOTrainer.__init__"
_WORKER = "EasyR1 0.3.0 to 0.3.3.dev0 workers/fsdp_workers.py FSDPWorker._init_dist_mesh"

RULES = (
    Rule(
        "BB-EZR1-010",
        "error",
        "config",
        _not_positive,
        (PROMPTS, GROUP, BATCH, MICRO),
        "ZeroDivisionError, or a ValueError of the worker",
        _WORKER,
    ),
    Rule(
        "BB-EZR1-011",
        "error",
        "construction",
        _whole_steps,
        (PROMPTS, BATCH),
        "ValueError: Rollout batch size must be divisible by actor global batch size.",
        _DRIVER,
        lambda run: _near(run, (BATCH, PROMPTS), lambda v: v[PROMPTS] % v[BATCH] == 0),
    ),
    Rule(
        "BB-EZR1-012",
        "error",
        "construction",
        _experience,
        (PROMPTS, GROUP, FORWARD),
        "ValueError: Rollout batch size * rollout.n must be divisible by actor micro batch size for experience.",
        _DRIVER,
        lambda run: _near(run, (FORWARD, PROMPTS, GROUP), lambda v: v[PROMPTS] * v[GROUP] % v[FORWARD] == 0),
    ),
    Rule(
        "BB-EZR1-013",
        "error",
        "construction",
        _single,
        (GROUP, ESTIMATOR),
        "ValueError: GRPO and RLOO algorithm need `config.worker.rollout.n > 1`.",
        _DRIVER,
        _set(GROUP, 5),
    ),
    Rule(
        "BB-EZR1-014",
        "error",
        "worker_start",
        _no_share,
        (BATCH, GROUP, NODES, GPUS),
        "ValueError: actor global batch size * ulysses size must be larger than num gpus.",
        _WORKER,
        _micro_fixes,
    ),
    Rule(
        "BB-EZR1-015",
        "error",
        "worker_start",
        _micro_fits,
        (MICRO, BATCH, GROUP, NODES, GPUS),
        "ValueError: actor global batch size per device must be divisible by the micro batch size. (Also with "
        "dynamic_batching.)",
        _WORKER,
        _micro_fixes,
    ),
    Rule(
        "BB-EZR1-016",
        "error",
        "worker_start",
        _offload,
        (f"{ACTOR}fsdp.enable_cpu_offload", MICRO, BATCH),
        "ValueError: cannot use FSDP's CPU offload when gradient accumulation is enabled.",
        _WORKER,
        lambda run: (
            Fix(f"{ACTOR}fsdp.enable_cpu_offload = false", {f"{ACTOR}fsdp.enable_cpu_offload": False}),
            Fix(f"{MICRO} = {run.share}", {MICRO: run.share}),
        ),
    ),
    Rule(
        "BB-EZR1-017",
        "error",
        "worker_start",
        _ulysses,
        (NODES, GPUS),
        "the device mesh of replicas x ulysses does not fit the world",
        "EasyR1 fsdp_workers.py:130",
        lambda run: (Fix(f"{run.ulysses_key} = 1", {run.ulysses_key: 1}),),
    ),
    Rule(
        "BB-EZR1-018",
        "error",
        "worker_start",
        _tensor_parallel,
        (f"{ROLLOUT}tensor_parallel_size", NODES, GPUS),
        "ValueError: rollout world size is not divisible by tp size",
        "EasyR1 fsdp_workers.py:383",
        _set(f"{ROLLOUT}tensor_parallel_size", 1),
    ),
    Rule(
        "BB-EZR1-019",
        "error",
        "worker_start",
        _batched_tokens,
        (f"{ROLLOUT}max_num_batched_tokens",),
        "ValueError: max_num_batched_tokens should be greater than prompt_length + response_length.",
        "EasyR1 vllm_rollout_spmd.py:110",
        lambda run: _set(f"{ROLLOUT}max_num_batched_tokens", run.longest)(run),
    ),
    Rule(
        "BB-EZR1-020",
        "error",
        "first_rollout",
        _generation_chunks,
        (PROMPTS, NODES, GPUS),
        "AssertionError: only support equal chunk. Got size of DataProto ... and chunk ...",
        "EasyR1 protocol.py:555",
        _chunk_fixes,
    ),
    Rule(
        "BB-EZR1-021",
        "error",
        "optimizer_step",
        _split_asserts,
        (PROMPTS, BATCH, GROUP, NODES, GPUS),
        "AssertionError in DataProto.split",
        "EasyR1 protocol.py:583",
        _step_fixes,
    ),
    Rule(
        "BB-EZR1-022",
        "warning",
        "never",
        _floored,
        (BATCH, GROUP, NODES, GPUS),
        "global_batch_size x n // replicas",
        "EasyR1 fsdp_workers.py:146 (measured with a mocked world)",
        _step_fixes,
    ),
    Rule(
        "BB-EZR1-023",
        "warning",
        "never",
        _wrong_scope,
        (MODE, MICRO),
        "loss x tokens of the micro-batch x devices / tokens of the mini-batch; before 0.3.2 loss / micro-batches",
        "EasyR1 dp_actor.py:287, changed by #417 in 0.3.2 (measured: gradcheck2, gradcheck31b)",
        lambda run: _set(MODE, "token" if run.token_weighted else "seq")(run),
        ">=0.3.1",
    ),
    Rule(
        "BB-EZR1-023",
        "warning",
        "never",
        _wrong_scope,
        (MICRO,),
        "loss / micro-batches",
        "EasyR1 0.3.0 dp_actor.py",
        versions="<0.3.1",
    ),
    Rule(
        "BB-EZR1-024",
        "error",
        "first_rollout",
        _broken_gae,
        (ESTIMATOR,),
        "AttributeError: 'WorkerConfig' object has no attribute ...; from 2025-10 on also a RuntimeError",
        "EasyR1 fsdp_workers.py:452, core_algos.py:163 (run at 0.3.3.dev0; by reading before)",
        _set(ESTIMATOR, "grpo"),
    ),
    Rule(
        "BB-EZR1-025",
        "warning",
        "never",
        _no_rollout,
        (PROMPTS,),
        "training_steps = 0: fit() validates and saves",
        "EasyR1 trainer/ray_trainer.py:238 (measured)",
        lambda run: (
            (Fix(f"{PROMPTS} = {run.prompts_in_dataset}", {PROMPTS: run.prompts_in_dataset}),)
            if run.prompts_in_dataset
            else ()
        ),
    ),
    Rule(
        "BB-EZR1-026",
        "warning",
        "never",
        _surplus,
        (MINI_ROLLOUT, PROMPTS),
        "the batch is cut to rollout_batch_size x n",
        "EasyR1 trainer/ray_trainer.py:543",
    ),
    Rule(
        "BB-EZR1-027",
        "error",
        "optimizer_step",
        _known(MODE, tuple(AGGREGATIONS)),
        (MODE,),
        "NotImplementedError: Unknown mode",
        "EasyR1 core_algos.average_loss",
        _set(MODE, "token"),
    ),
    Rule(
        "BB-EZR1-028",
        "error",
        "optimizer_step",
        _known(LOSS_TYPE, tuple(LOSS_TYPES)),
        (LOSS_TYPE,),
        "NotImplementedError, or the default loss",
        "EasyR1 core_algos.compute_policy_loss",
        _set(LOSS_TYPE, "default"),
    ),
    Rule(
        "BB-EZR1-029",
        "error",
        "construction",
        _known(ESTIMATOR, (*ESTIMATORS, *INEXPRESSIBLE)),
        (ESTIMATOR,),
        "NotImplementedError: Unknown advantage estimator",
        _DRIVER,
        _set(ESTIMATOR, "grpo"),
    ),
    Rule(
        "BB-EZR1-030",
        "error",
        "never",
        _inexpressible,
        (ESTIMATOR,),
        "it runs",
        "EasyR1 core_algos",
        undecided=True,
    ),
    Rule(
        "BB-EZR1-031",
        "note",
        "never",
        _slow_clock,
        (PROMPTS, BATCH, PASSES),
        "lr_scheduler.step() once per update_actor",
        "EasyR1 fsdp_workers.py:584",
    ),
    Rule(
        "BB-EZR1-032",
        "error",
        "first_rollout",
        lambda run: None if run["algorithm.disable_kl"] else _known("algorithm.kl_penalty", tuple(KL_ESTIMATORS))(run),
        ("algorithm.kl_penalty",),
        "NotImplementedError: Unknown KL penalty",
        "EasyR1 core_algos.compute_kl",
        _set("algorithm.kl_penalty", "low_var_kl"),
    ),
)
"""Codes are stable; a number is never used again. 001 to 009 belong to reading: see `config`."""
