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
    CRITIC_BATCH,
    CRITIC_FORWARD,
    DATA,
    DYNAMIC,
    ESTIMATOR,
    FORWARD,
    GPUS,
    GROUP,
    LOSS_TYPE,
    MAX_TRIES,
    MICRO,
    MINI_ROLLOUT,
    MODE,
    NODES,
    PASSES,
    PROMPTS,
    ROLLOUT,
    SET_BY_EASYR1,
    holds,
)


@dataclass(frozen=True)
class Rule:
    """One row. `test` gives the message where the rule is broken, else None. `keys`: the settings to point at.
    `standing`: it holds for most runs, so that `explain` says it and `check` does not."""

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
    standing: bool = False


def check(reading: Reading) -> list[Finding]:
    """Every rule that `reading` breaks; empty while its run is unknown."""
    run = getattr(reading, "run", None)
    if not isinstance(run, Run):
        return []
    given: Mapping[str, Where] = getattr(reading, "given", {})
    found = []
    for rule in RULES:
        if not rule.standing and holds(rule.versions, run.version) and (message := rule.test(run)) is not None:
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
        if rule.phase == "never" and (rule.severity == "warning" or rule.standing) and holds(rule.versions, run.version)
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
    sizes |= {
        f"{NODES} x {GPUS}": run.world,
        **({} if run[MINI_ROLLOUT] is None else {MINI_ROLLOUT: run[MINI_ROLLOUT]}),
    }
    wrong = [f"{key} = {value}" for key, value in sizes.items() if value < 1]
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
        f"{BATCH} = {run[BATCH]} (prompts) x {GROUP} = {run[GROUP]} = {asked} completions are floored for each of "
        f"{run.replicas} replicas, which trains on {run.share}: an optimizer step has "
        f"{run.completions_per_step}"
    )


def _balance(run: Run) -> str | None:
    if not run.plain or run.completions_per_rollout % run.world == 0 or _generation_chunks(run):
        return None
    return f"{run.completions_per_rollout} completions of a rollout are no multiple of {run.world} devices"


def _balance_fixes(run: Run) -> tuple[Fix, ...]:
    def legal(v: Mapping[str, int]) -> bool:
        return v[PROMPTS] * v[GROUP] % run.world == 0 and v[PROMPTS] % v[BATCH] == 0

    return _near(run, (PROMPTS, GROUP), legal)


def _split_asserts(run: Run) -> str | None:
    if not run.plain or not run.share or not run.replicas or run.completions_per_rollout % run.world:
        return None
    if _whole_steps(run) or _micro_fits(run) or _ulysses(run):
        return None
    if run.pieces(run.block, run.share) is None:
        return f"{run.block} completions of each replica cannot be cut into optimizer steps of {run.share} (floored)"
    return None


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


def _generated_at_once(run: Run) -> int:
    """Prompts of one batch of the data loader."""
    return int(run[PROMPTS] if run[MINI_ROLLOUT] is None else run[MINI_ROLLOUT])


def _no_batch(run: Run) -> str | None:
    count, size = run.prompts_in_dataset, _generated_at_once(run)
    if count is None or not run.plain or size < 1 or count >= size:
        return None
    return f"the dataset's {count} prompts do not fill one batch of {size}"


def _no_rollout(run: Run) -> str | None:
    count, size = run.prompts_in_dataset, _generated_at_once(run)
    if count is None or not run.plain or size < 1 or count < size or run["trainer.max_steps"] is not None:
        return None
    if count // size * size >= run[PROMPTS]:
        return None
    return (
        f"the dataset's {count} prompts give {count // size * size} in whole batches of {size}, fewer than {PROMPTS} = "
        f"{run[PROMPTS]}: the run has 0 steps, and only validates and saves"
    )


def _rollout_fixes(run: Run) -> tuple[Fix, ...]:
    def legal(v: Mapping[str, int]) -> bool:
        size = v[PROMPTS] if run[MINI_ROLLOUT] is None else run[MINI_ROLLOUT]
        return (run.prompts_in_dataset or 0) // size * size >= v[PROMPTS] and v[PROMPTS] % v[BATCH] == 0

    return _near(run, (PROMPTS,), legal)


def _fewer_rollouts(run: Run) -> str | None:
    steps, count = run.training_steps, run.prompts_in_dataset
    if run["trainer.max_steps"] is not None or not steps or count is None:
        return None
    whole = count // run[PROMPTS] * run[run.epochs_key]
    if steps == whole:
        return None
    return f"batches of {MINI_ROLLOUT} = {run[MINI_ROLLOUT]} leave {steps} rollouts of the {whole} that the dataset has"


def _single_passk(run: Run) -> str | None:
    if run[ESTIMATOR] != "grpo_passk" or run[GROUP] != 1:
        return None
    return f"{GROUP} = 1 with {ESTIMATOR} = grpo_passk: a group needs more than one completion"


def _too_many_batches(run: Run) -> str | None:
    tries, size = run[MAX_TRIES], _generated_at_once(run)
    if tries < 1 or size < 1 or not run.plain or tries * size >= run[PROMPTS]:
        return None
    return f"{MAX_TRIES} = {tries} batches of {MINI_ROLLOUT} = {size} prompts stay below {PROMPTS} = {run[PROMPTS]}"


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

    return _near(run, (FORWARD, PROMPTS, GROUP), legal)


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


def _kl_counts(run: Run) -> bool:
    return not run["algorithm.disable_kl"]


def _kl_type(run: Run) -> str | None:
    return _known("algorithm.kl_type", ("fixed", "adaptive"))(run) if _kl_counts(run) else None


def _kl_horizon(run: Run) -> str | None:
    horizon = run["algorithm.kl_horizon"]
    if not _kl_counts(run) or run["algorithm.kl_type"] != "adaptive" or horizon > 0:
        return None
    return f"algorithm.kl_type = adaptive with algorithm.kl_horizon = {horizon}: it must be above 0"


def _adaptive(run: Run) -> str | None:
    if not _kl_counts(run) or run["algorithm.kl_type"] != "adaptive" or run["algorithm.use_kl_loss"]:
        return None
    return "algorithm.kl_type = adaptive: the KL coefficient moves during the run, and the canonical one does not"


def _kl_penalty(run: Run, in_loss: bool) -> str | None:
    if not _kl_counts(run) or run["algorithm.use_kl_loss"] is not in_loss:
        return None
    if run["algorithm.kl_penalty"] == "full":
        if in_loss and run[MICRO] == 1:
            return None  # one number for one row does fit
        return "algorithm.kl_penalty = full sums over the tokens, which then do not fit the mask of the responses"
    return _known("algorithm.kl_penalty", tuple(KL_ESTIMATORS))(run)


def _overwritten(run: Run) -> str | None:
    keys = sorted(SET_BY_EASYR1 & run.given)
    return f"{', '.join(keys)}: EasyR1 sets this itself, whatever is given" if keys else None


def _filter_in_one_batch(run: Run) -> str | None:
    if not run["algorithm.online_filtering"]:
        return None
    return (
        "algorithm.online_filtering: a generation batch of which no group is kept ends the run, however many were kept "
        "before; steps are counted as if every group were kept, so epochs are longer; kept groups beyond "
        f"{PROMPTS} are thrown away"
    )


def _overlong(run: Run) -> str | None:
    if run.prompts_in_dataset is None:
        return None
    if run[f"{DATA}filter_overlong_prompts"]:
        return "prompts that are too long are dropped before the dataset is counted: --dataset-size is what is left"
    return "prompts that are too long are cut off on the right"


def _composition(run: Run) -> str | None:
    if not run.plain or run.world < 2 or run.completions_per_step < 1 or run.steps_per_rollout <= run[PASSES]:
        return None
    return (
        f"a rollout is balanced by length over {run.world} devices, always, and each cuts its part in order: which "
        "completions meet in an optimizer step depends on their lengths and on the number of devices"
    )


def _surplus(run: Run) -> str | None:
    size = run[MINI_ROLLOUT]
    if size is None or size < 1 or run[PROMPTS] % size == 0:
        return None
    return f"{MINI_ROLLOUT} = {size} does not divide {PROMPTS} = {run[PROMPTS]}: surplus generations are thrown away"


def _has(estimator: str, run: Run) -> bool:
    return estimator != "grpo_passk" or holds(">=0.3.3.dev0", run.version)


def _known(key: str, names: tuple[str, ...]) -> Callable[[Run], str | None]:
    return lambda run: None if run[key] in names else f"{key} = {run[key]}: must be one of {', '.join(names)}"


def _unknown_loss(run: Run) -> str | None:
    message = _known(LOSS_TYPE, tuple(LOSS_TYPES))(run)
    return None if message is None else f"{message}; this trains as default does"


def _inexpressible(run: Run) -> str | None:
    reason = INEXPRESSIBLE.get(run[ESTIMATOR]) if _has(run[ESTIMATOR], run) else None
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
        lambda run: _ulysses(run) if run.replicas < 1 else None,
        (NODES, GPUS),
        "AssertionError of PyTorch's device mesh",
        "EasyR1 fsdp_workers.py:130 (run with PyTorch 2.13)",
        lambda run: (Fix(f"{run.ulysses_key} = 1", {run.ulysses_key: 1}),),
    ),
    Rule(
        "BB-EZR1-017",
        "error",
        "first_rollout",
        lambda run: _ulysses(run) if run.replicas else None,
        (NODES, GPUS),
        "RuntimeError or IndexError of PyTorch's device mesh, on the devices beyond the last whole replica; all "
        "workers start",
        "EasyR1 fsdp_workers.py:130, sharding_manager/fsdp_ulysses.py (run with PyTorch 2.13)",
        lambda run: (Fix(f"{run.ulysses_key} = 1", {run.ulysses_key: 1}),),
    ),
    Rule(
        "BB-EZR1-018",
        "error",
        "worker_start",
        _tensor_parallel,
        (f"{ROLLOUT}tensor_parallel_size", NODES, GPUS),
        "ValueError (AssertionError in 0.3.0): rollout world size is not divisible by tp size",
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
        "AssertionError in DataProto.split (ZeroDivisionError before 0.3.2 where there are too few)",
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
        _rollout_fixes,
        ">=0.3.1",
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
        "warning",
        "never",
        _unknown_loss,
        (LOSS_TYPE,),
        "any other loss_type is the default one",
        "EasyR1 core_algos.compute_policy_loss (run)",
        _set(LOSS_TYPE, "default"),
        ">=0.3.3.dev0",
    ),
    Rule(
        "BB-EZR1-029",
        "error",
        "construction",
        lambda run: _known(ESTIMATOR, (*ESTIMATORS, *(name for name in INEXPRESSIBLE if _has(name, run))))(run),
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
        lambda run: _kl_penalty(run, in_loss=False),
        ("algorithm.kl_penalty",),
        "NotImplementedError: Unknown KL penalty; full: RuntimeError",
        "EasyR1 core_algos.compute_kl, trainer/ray_trainer.py apply_kl_penalty",
        _set("algorithm.kl_penalty", "low_var_kl"),
    ),
    Rule(
        "BB-EZR1-032",
        "error",
        "optimizer_step",
        lambda run: _kl_penalty(run, in_loss=True),
        ("algorithm.kl_penalty",),
        "NotImplementedError: Unknown KL penalty; full: RuntimeError",
        "EasyR1 core_algos.compute_kl, dp_actor.py update_policy",
        _set("algorithm.kl_penalty", "low_var_kl"),
    ),
    Rule(
        "BB-EZR1-033",
        "warning",
        "never",
        _overwritten,
        (),
        "post_init and the workers write these",
        "EasyR1 trainer/config.py PPOConfig.post_init, workers/config.py WorkerConfig.post_init",
        lambda run: (Fix("remove them", dict.fromkeys(sorted(SET_BY_EASYR1 & run.given))),),
    ),
    Rule(
        "BB-EZR1-034",
        "error",
        "construction",
        _no_batch,
        (PROMPTS, MINI_ROLLOUT),
        "AssertionError: len(train_dataloader) >= 1",
        "EasyR1 trainer/data_loader.py create_dataloader",
        _rollout_fixes,
    ),
    Rule(
        "BB-EZR1-035",
        "error",
        "first_rollout",
        _too_many_batches,
        (MINI_ROLLOUT, PROMPTS, MAX_TRIES),
        "RuntimeError (ValueError before 0.3.3): num_try_make_batch >= max_try_make_batch. Generated too many. Also "
        "without online_filtering.",
        "EasyR1 trainer/ray_trainer.py _make_batch_data",
        lambda run: (
            Fix(f"{MAX_TRIES} = -1", {MAX_TRIES: -1}),
            *(Fix(f"{MINI_ROLLOUT} = {size}", {MINI_ROLLOUT: size}) for size in (-(-run[PROMPTS] // run[MAX_TRIES]),)),
        ),
        ">=0.3.1",
    ),
    Rule(
        "BB-EZR1-036",
        "error",
        "first_rollout",
        _forward_splits,
        (FORWARD, PROMPTS, GROUP, NODES, GPUS),
        "AssertionError: only support equal split. Got size of DataProto ... and split ... (ZeroDivisionError before "
        "0.3.2 where there are too few)",
        "EasyR1 protocol.py:583, dp_actor.py compute_log_prob",
        _forward_fixes,
    ),
    Rule(
        "BB-EZR1-047",
        "error",
        "first_rollout",
        _balance,
        (PROMPTS, GROUP, NODES, GPUS),
        "AssertionError: ... % ... != 0, after generation",
        "EasyR1 utils/seqlen_balancing.py karmarkar_karp, called by trainer/ray_trainer.py _balance_batch (run)",
        _balance_fixes,
        ">=0.3.1",
    ),
    Rule(
        "BB-EZR1-048",
        "error",
        "first_rollout",
        _single_passk,
        (GROUP, ESTIMATOR),
        "AssertionError: GRPO needs rollout.n > 1.",
        "EasyR1 core_algos.compute_grpo_passk_outcome_advantage (run)",
        _set(GROUP, 5),
        ">=0.3.3.dev0",
    ),
    Rule(
        "BB-EZR1-049",
        "warning",
        "never",
        _fewer_rollouts,
        (MINI_ROLLOUT, PROMPTS),
        "training_steps = len(train_dataloader) * mini_rollout_batch_size // rollout_batch_size * total_epochs",
        "EasyR1 trainer/ray_trainer.py:238 (run)",
        lambda run: (Fix(f"remove {MINI_ROLLOUT}", {MINI_ROLLOUT: None}),),
        ">=0.3.1",
    ),
    Rule(
        "BB-EZR1-037",
        "error",
        "construction",
        _critic_steps,
        (PROMPTS, CRITIC_BATCH),
        "ValueError: Rollout batch size must be divisible by critic global batch size.",
        _DRIVER,
        _set(ESTIMATOR, "grpo"),
    ),
    Rule(
        "BB-EZR1-038",
        "error",
        "construction",
        _critic_experience,
        (PROMPTS, GROUP, CRITIC_FORWARD),
        "ValueError: Rollout batch size * rollout.n must be divisible by critic micro batch size for experience.",
        _DRIVER,
        _set(ESTIMATOR, "grpo"),
    ),
    Rule(
        "BB-EZR1-039",
        "error",
        "construction",
        _kl_type,
        ("algorithm.kl_type",),
        "ValueError: Unknown kl type",
        "EasyR1 core_algos.get_kl_controller",
        _set("algorithm.kl_type", "fixed"),
    ),
    Rule(
        "BB-EZR1-040",
        "error",
        "construction",
        _kl_horizon,
        ("algorithm.kl_type", "algorithm.kl_horizon"),
        "AssertionError: horizon must be larger than 0. (0.0 is the default of 0.3.0.)",
        "EasyR1 core_algos.get_kl_controller",
        _set("algorithm.kl_horizon", 10000.0),
    ),
    Rule(
        "BB-EZR1-041",
        "error",
        "never",
        _adaptive,
        ("algorithm.kl_type",),
        "AdaptiveKLController follows kl_target",
        "EasyR1 core_algos.AdaptiveKLController",
        _set("algorithm.kl_type", "fixed"),
        undecided=True,
    ),
    Rule(
        "BB-EZR1-042",
        "error",
        "worker_start",
        _known(f"{ACTOR}optim.strategy", ("adamw", "adamw_bf16")),
        (f"{ACTOR}optim.strategy",),
        "NotImplementedError: Optimizer ... not supported.",
        "EasyR1 fsdp_workers.py _build_model_optimizer",
        _set(f"{ACTOR}optim.strategy", "adamw"),
    ),
    Rule(
        "BB-EZR1-043",
        "error",
        "worker_start",
        _known(f"{ACTOR}optim.lr_scheduler_type", ("constant", "cosine")),
        (f"{ACTOR}optim.lr_scheduler_type",),
        "NotImplementedError: LR scheduler type ... is not supported",
        "EasyR1 fsdp_workers.py _build_model_optimizer",
        _set(f"{ACTOR}optim.lr_scheduler_type", "constant"),
        ">=0.3.3.dev0",
    ),
    Rule(
        "BB-EZR1-044",
        "note",
        "never",
        _filter_in_one_batch,
        ("algorithm.online_filtering",),
        "RuntimeError: No sample is kept after filtering. Please check your data.",
        "EasyR1 trainer/ray_trainer.py:537, :238",
        versions=">=0.3.1",
    ),
    Rule(
        "BB-EZR1-045",
        "note",
        "never",
        _overlong,
        (f"{DATA}filter_overlong_prompts",),
        "RLHFDataset filters, or truncates on the right",
        "EasyR1 trainer/data_loader.py, utils/dataset.py",
        standing=True,
    ),
    Rule(
        "BB-EZR1-046",
        "note",
        "never",
        _composition,
        (PROMPTS, BATCH, NODES, GPUS),
        "get_seqlen_balanced_partitions(..., k_partitions=world_size, equal_size=True)",
        "EasyR1 trainer/ray_trainer.py _balance_batch (measured on 1, 2 and 4 devices)",
        standing=True,
    ),
)
"""Codes are stable; a number is never used again. 001 to 009 belong to reading: see `config`."""
