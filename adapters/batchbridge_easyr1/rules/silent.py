"""Departures that EasyR1 never reports: sizes that are floored or cut, weights that depend on the split, settings that
are not read; and what runs but has no canonical words."""

from __future__ import annotations

from batchbridge import Fix
from batchbridge.kit.clipping import UNREACHED
from batchbridge.kit.rule_table import NOTE, OPEN, SILENT, STANDING, WRONG, Rules, says, setting_fixes
from batchbridge_easyr1 import settings as names
from batchbridge_easyr1.meaning import INEXPRESSIBLE, LOSS_TYPES, STARTS_AT_ZERO, estimators_of
from batchbridge_easyr1.rules.fixes import known, rollout_fixes, setting, step_fixes
from batchbridge_easyr1.run import EasyR1Run
from batchbridge_easyr1.settings import SET_BY_EASYR1

RULES = Rules[EasyR1Run]()
WARMUP = "trainer.critic_warmup"


@RULES.add(SILENT, "BB-EZR1-022", names.BATCH, names.GROUP, names.NODES, names.GPUS, fixes=step_fixes)
@says("global_batch_size x n // replicas", "EasyR1 fsdp_workers.py:146 (measured with a mocked world)")
def _floored(run: EasyR1Run) -> str | None:
    asked = run[names.BATCH] * run[names.GROUP] if run.plain else 0
    if not asked or not run.share or run.completions_per_step == asked:
        return None
    return (
        f"{run.key_and_value(names.BATCH)} (prompts) x {run.key_and_value(names.GROUP)} = {asked} completions are "
        "floored for each of "
        f"{run.replicas} replicas, which trains on {run.share}: an optimizer step has {run.completions_per_step}"
    )


def _scope_fixes(run: EasyR1Run) -> tuple[Fix, ...]:
    return setting_fixes({names.MODE: "token" if run.token_weighted else "seq"})


@RULES.add(SILENT, "BB-EZR1-023", names.MICRO)
@says("loss / micro-batches", "EasyR1 0.3.0 dp_actor.py", "<0.3.1")
@RULES.add(SILENT, "BB-EZR1-023", names.MODE, names.MICRO, fixes=_scope_fixes)
@says(
    "loss x tokens of the micro-batch x devices / tokens of the mini-batch; before 0.3.2 loss / micro-batches",
    "EasyR1 dp_actor.py:287, changed by #417 in 0.3.2",
    ">=0.3.1",
)
def _wrong_scope(run: EasyR1Run) -> str | None:
    if not run.depends_on_split:
        return None
    if run.token_weighted:
        return (
            f"{names.MODE} = seq: the means over sequences of micro-batches are weighed by their tokens, so the "
            "gradient depends on the micro-batch size and the devices; with one completion per micro-batch it is the "
            "token mean"
        )
    return (
        f"{names.MODE} = token: each micro-batch's token mean counts alike, so the gradient depends on the micro-batch "
        "size and the devices"
    )


@RULES.add(WRONG, "BB-EZR1-025", names.PROMPTS, fixes=rollout_fixes, core="BB113")
@says("training_steps = 0: fit() validates and saves", "EasyR1 trainer/ray_trainer.py:238 (measured)", ">=0.3.1")
def _no_rollout(run: EasyR1Run) -> str | None:
    count, size = run.prompts_in_dataset, run.prompts_at_once
    if count is None or not run.plain or size < 1 or count < size or run["trainer.max_steps"] is not None:
        return None
    if (whole := count // size * size) >= run[names.PROMPTS]:
        return None
    return (
        f"the dataset's {count} prompts give {whole} in whole batches of {size}, fewer than "
        f"{run.key_and_value(names.PROMPTS)}: "
        "the run has 0 steps, and only validates and saves"
    )


@RULES.add(SILENT, "BB-EZR1-026", names.MINI_ROLLOUT, names.PROMPTS)
@says("the batch is cut to rollout_batch_size x n", "EasyR1 trainer/ray_trainer.py:543")
def _surplus(run: EasyR1Run) -> str | None:
    size = run[names.MINI_ROLLOUT]
    if size is None or size < 1 or run[names.PROMPTS] % size == 0:
        return None
    return (
        f"{names.MINI_ROLLOUT} = {size} does not divide {run.key_and_value(names.PROMPTS)}: surplus generations are "
        "thrown away"
    )


@RULES.add(SILENT, "BB-EZR1-028", names.LOSS_TYPE, fixes=setting(names.LOSS_TYPE, "default"))
@says("any other loss_type is the default one", "EasyR1 core_algos.compute_policy_loss (run)", ">=0.3.3.dev0")
def _unknown_loss(run: EasyR1Run) -> str | None:
    message = known(names.LOSS_TYPE, LOSS_TYPES)(run)
    return None if message is None else f"{message}; this trains as default does"


@RULES.add(OPEN, "BB-EZR1-030", names.ESTIMATOR)
@says("it runs", "EasyR1 core_algos")
def _inexpressible(run: EasyR1Run) -> str | None:
    reason = INEXPRESSIBLE.get(run[names.ESTIMATOR]) if run[names.ESTIMATOR] in estimators_of(run.version) else None
    return f"{run.key_and_value(names.ESTIMATOR)} has no canonical form: {reason}" if reason else None


@RULES.add(NOTE, "BB-EZR1-031", names.PROMPTS, names.BATCH, names.PASSES, core="BB142")
@says("lr_scheduler.step() once per update_actor", "EasyR1 fsdp_workers.py:584")
def _slow_clock(run: EasyR1Run) -> str | None:
    if not run.plain or run.completions_per_step < 1 or run.steps_per_rollout <= 1:
        return None
    return (
        f"the learning rate moves once per rollout, that is once in {run.steps_per_rollout:g} optimizer steps; "
        "warm-up and schedule count rollouts"
    )


@RULES.add(NOTE, "BB-EZR1-051", names.WARMUP_STEPS, names.WARMUP_SHARE)
@says(
    "min(1, tick / max(1, warm-up))",
    "EasyR1 torch_functional.get_constant_schedule_with_warmup (recorded: runs_0.3.2.json)",
    STARTS_AT_ZERO,
)
def _idle_start(run: EasyR1Run) -> str | None:
    if run[names.WARMUP_STEPS] or (run[names.WARMUP_STEPS] is None and run[names.WARMUP_SHARE]):
        return None
    return "without a warm-up the learning rate of the first rollout is 0: it trains nothing"


def _overwritten_fixes(run: EasyR1Run) -> tuple[Fix, ...]:
    return (Fix("remove them", dict.fromkeys(sorted(SET_BY_EASYR1 & run.given_keys))),)


@RULES.add(SILENT, "BB-EZR1-033", fixes=_overwritten_fixes)
@says(
    "post_init and the workers write these",
    "EasyR1 trainer/config.py PPOConfig.post_init, workers/config.py WorkerConfig.post_init",
)
def _overwritten(run: EasyR1Run) -> str | None:
    keys = sorted(SET_BY_EASYR1 & run.given_keys)
    return f"{', '.join(keys)}: EasyR1 sets this itself, whatever is given" if keys else None


def _whole_rollout_fixes(run: EasyR1Run) -> tuple[Fix, ...]:
    return (Fix(f"remove {names.MINI_ROLLOUT}", {names.MINI_ROLLOUT: None}),)


@RULES.add(SILENT, "BB-EZR1-049", names.MINI_ROLLOUT, names.PROMPTS, fixes=_whole_rollout_fixes)
@says(
    "training_steps = len(train_dataloader) * mini_rollout_batch_size // rollout_batch_size * total_epochs",
    "EasyR1 trainer/ray_trainer.py:238 (run)",
    ">=0.3.1",
)
def _fewer_rollouts(run: EasyR1Run) -> str | None:
    steps, count = run.training_steps, run.prompts_in_dataset
    if run["trainer.max_steps"] is not None or not steps or count is None:
        return None
    whole = count // run[names.PROMPTS] * run[run.epochs_key]
    if steps == whole:
        return None
    return (
        f"batches of {run.key_and_value(names.MINI_ROLLOUT)} leave {steps} rollouts of the {whole} that the dataset has"
    )


@RULES.add(WRONG, "BB-EZR1-050", names.BOUND, fixes=setting(names.BOUND, UNREACHED))
@says("torch's clip_grad_norm_ multiplies by bound / norm", "EasyR1 workers/actor/dp_actor.py:159")
def _erased(run: EasyR1Run) -> str | None:
    if run[names.BOUND] > 0:
        return None
    return f"{run.key_and_value(names.BOUND)} multiplies every gradient by 0: nothing is trained; it does not mean off"


@RULES.add(OPEN, "BB-EZR1-041", "algorithm.kl_type", fixes=setting("algorithm.kl_type", "fixed"))
@says("AdaptiveKLController moves it towards kl_target", "EasyR1 core_algos.AdaptiveKLController")
def _adaptive(run: EasyR1Run) -> str | None:
    if not run.has_kl or run["algorithm.kl_type"] != "adaptive" or run["algorithm.use_kl_loss"]:
        return None
    return "algorithm.kl_type = adaptive: the KL coefficient moves during the run, and the canonical one does not"


@RULES.add(OPEN, "BB-EZR1-052", WARMUP, fixes=setting(WARMUP, 0))
@says("update_actor is left out while critic_warmup > global_step", "EasyR1 trainer/ray_trainer.py fit")
def _idle_warmup(run: EasyR1Run) -> str | None:
    if run[WARMUP] <= 1:
        return None
    return (
        f"{run.key_and_value(WARMUP)}: the policy does not train on the first {run[WARMUP] - 1} rollouts, and no "
        "specification "
        "without a critic says so"
    )


@RULES.add(NOTE, "BB-EZR1-044", names.FILTER)
@says(
    "RuntimeError: No sample is kept after filtering. Please check your data.",
    "EasyR1 trainer/ray_trainer.py:537, :238",
    ">=0.3.1",
)
def _filter_in_one_batch(run: EasyR1Run) -> str | None:
    if not run[names.FILTER]:
        return None
    return (
        f"{names.FILTER}: a generation batch of which no group is kept ends the run, however many were kept "
        "before; steps are counted as if every group were kept, so epochs are longer; kept groups beyond "
        f"{names.PROMPTS} are thrown away"
    )


@RULES.add(STANDING, "BB-EZR1-045", f"{names.DATA}filter_overlong_prompts")
@says("RLHFDataset filters, or truncates on the right", "EasyR1 trainer/data_loader.py, utils/dataset.py")
def _overlong(run: EasyR1Run) -> str | None:
    if run.prompts_in_dataset is None:
        return None
    if run[f"{names.DATA}filter_overlong_prompts"]:
        return "prompts that are too long are dropped before the dataset is counted: --dataset-size is what is left"
    return "prompts that are too long are cut off on the right"


@RULES.add(STANDING, "BB-EZR1-046", names.PROMPTS, names.BATCH, names.NODES, names.GPUS)
@says(
    "get_seqlen_balanced_partitions(..., k_partitions=world_size, equal_size=True)",
    "EasyR1 trainer/ray_trainer.py _balance_batch (measured on 1, 2 and 4 devices)",
)
def _composition(run: EasyR1Run) -> str | None:
    if not run.plain or run.world < 2 or run.completions_per_step < 1 or run.steps_per_rollout <= run[names.PASSES]:
        return None
    return (
        f"a rollout is balanced by length over {run.world} devices, always, and each cuts its part in order: which "
        "completions meet in an optimizer step depends on their lengths and on the number of devices"
    )
