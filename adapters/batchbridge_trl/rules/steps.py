"""Departures in optimizer steps that TRL never notices: weights that depend on the split, steps and rollouts that do
not line up, and runs that do not go on as they were."""

from __future__ import annotations

from batchbridge import Fix
from batchbridge.kit.rule_table import NOTE, SILENT, Rules, says
from batchbridge_trl.meaning import loss_types, records_old_logprobs, scales
from batchbridge_trl.rules.facts import ARGUMENTS, LOSS, SCORES, TrlFacts
from batchbridge_trl.rules.fixes import setting, window_fixes
from batchbridge_trl.settings import holds
from batchbridge_trl.sizes import ACCUMULATION, BATCH, PASSES, STEPS
from batchbridge_trl.world import KEY as WORLD


def _misaligned(facts: TrlFacts) -> str | None:
    micro_steps, window = facts.micro_steps_per_rollout, facts.sizes.window
    if micro_steps < 1 or window < 1 or micro_steps % window == 0 or window % micro_steps == 0:
        return None
    return (
        f"rollouts of {micro_steps} micro-batches and optimizer steps of {window} do not line up: a step mixes "
        "completions of different policies"
    )


def _counted_over_more(facts: TrlFacts) -> tuple[Fix, ...]:
    """The nearest loss type of the version that does not count a micro-batch's own tokens."""
    there = [name for name in ("dapo", "dr_grpo") if name in loss_types(facts.version)]
    return setting("loss_type", there[0])(facts) if there else ()


RULES = Rules[TrlFacts]()


@RULES.add(SILENT, "BB-TRL-061", "loss_type", STEPS, BATCH, ACCUMULATION, fixes=window_fixes)
@says(
    "the loss of a micro-batch is divided by rollout tokens / processes",
    f"trl 0.22.0 to 1.9.0 {LOSS}; huggingface/trl issue 5619, mended in 1.9.1",
    ">=0.22,<1.9.1",
)
def _rollout_tokens_per_micro_batch(facts: TrlFacts) -> str | None:
    if (uneven := _counts_another_size(facts)) is None:
        return None
    loss, steps, window = uneven
    return (
        f"loss_type = {loss} divides by the tokens of the whole rollout ({steps} micro-batches) in an optimizer step "
        f"of {window}: gradients are {window}/{steps} of a mean over the step's tokens"
    )


def _counts_another_size(facts: TrlFacts) -> tuple[str, int, int] | None:
    """A loss that counts tokens over the rollout, the micro-batches of one, and those of a step, if not as many."""
    if facts.rollout is None or facts.loss is None or not facts.loss.rollout_denominator:
        return None
    steps, window = facts.rollout.steps_per_generation, facts.sizes.window
    return None if steps == window else (facts.loss.name, steps, window)


@RULES.add(SILENT, "BB-TRL-061", "loss_type", STEPS, BATCH, ACCUMULATION, fixes=window_fixes)
@says(
    "the loss of a micro-batch is divided by rollout tokens / processes x window / steps_per_generation",
    f"trl 1.9.1 to 1.16.0 {LOSS} (num_items_in_batch)",
    ">=1.9.1",
)
def _rollout_denominator(facts: TrlFacts) -> str | None:
    if (uneven := _counts_another_size(facts)) is None:
        return None
    loss, steps, window = uneven
    effect = "each rollout in an optimizer step is normalised by its own tokens"
    if steps > window:
        effect = (
            "every optimizer step is normalised by the rollout's average step, so steps with long completions weigh "
            "more"
        )
    return (
        f"loss_type = {loss} counts tokens over the rollout ({steps} micro-batches), not over the optimizer step "
        f"({window}): {effect}"
    )


@RULES.add(SILENT, "BB-TRL-062", "loss_type", ACCUMULATION, WORLD, fixes=_counted_over_more)
@says("the mean of micro-batch means", f"trl 0.16.0 to 1.16.0 {LOSS} (compute_loss in 0.16)", ">=0.16")
def _local_tokens(facts: TrlFacts) -> str | None:
    if facts.native["loss_type"] != "bnpo" or facts.sizes.window * facts.sizes.world <= 1:
        return None
    return (
        f"loss_type = bnpo divides by each micro-batch's own tokens: the gradient depends on how {facts.sizes.window} "
        f"micro-batches x {facts.sizes.world} devices share the completions"
    )


@RULES.add(SILENT, "BB-TRL-063", STEPS, BATCH, PASSES, ACCUMULATION, fixes=window_fixes)
@says("accepted; old log-probabilities are recorded at the rollout", f"trl 0.18.0 to 1.16.0 {SCORES}", ">=0.18")
def _recorded_misaligned(facts: TrlFacts) -> str | None:
    return None if _stale_ratio(facts) else _misaligned(facts)


@RULES.add(SILENT, "BB-TRL-059", STEPS, BATCH, PASSES, ACCUMULATION, fixes=window_fixes)
@says(
    "accepted; the ratio is taken as 1, although the weights have moved since the rollout",
    f"trl 0.18.0 to 0.19.1 {SCORES}; mended in 0.20.0",
    ">=0.18,<0.20",
)
def _stale_ratio(facts: TrlFacts) -> str | None:
    """Stale completions that 0.18 and 0.19 train as if they were fresh."""
    if facts.rollout is None or (said := _misaligned(facts)) is None:
        return None
    return None if records_old_logprobs(facts.sizes, facts.rollout.steps_per_generation, facts.version) else said


@RULES.add(SILENT, "BB-TRL-064", ACCUMULATION, STEPS, BATCH)
@says(
    "current_gradient_accumulation_steps is the remainder",
    f"{ARGUMENTS} Trainer.get_batch_samples and _inner_training_loop",
)
def _short_step(facts: TrlFacts) -> str | None:
    found = facts.epoch
    if found is None or (rest := found.real % found.window) == 0 or found.real < found.promised:
        return None
    ends = f"every epoch ends with an optimizer step of {rest} instead of {found.window} micro-batches"
    if found.loop.plans_short_steps:
        return f"{ends}, with full weight and a full learning-rate tick"
    return (
        f"{ends}, each weighing 1/{found.window}, that transformers does not plan: the run ends before its last prompts"
    )


@RULES.add(NOTE, "BB-TRL-065", "save_strategy")
@says(
    "the sampler's generator and the rollout buffer start afresh",
    "trl 1.16.0 RepeatSampler (no state) and GRPOTrainer._prepare_inputs, run; earlier versions read",
)
def _resume(facts: TrlFacts) -> str | None:
    if facts.native["save_strategy"] in ("no", False) or facts.rollout is None:
        return None
    lost = []
    if facts.micro_steps_per_rollout > facts.sizes.window:
        lost.append("a checkpoint inside a rollout loses it")
    if facts.native["max_steps"] > 0 or facts.native["num_train_epochs"] > 1:
        lost.append("epochs after the first replay the first epoch's prompt order")
    return f"a resumed run does not continue the same run: {' and '.join(lost)}" if lost else None


@RULES.add(SILENT, "BB-TRL-066", "scale_rewards", STEPS, ACCUMULATION, fixes=window_fixes)
@says("one deviation per rollout", f"trl 0.22.0 to 1.16.0 {SCORES}", ">=0.22")
def _batch_scale(facts: TrlFacts) -> str | None:
    if scales(facts.version).get(facts.native["scale_rewards"]) != "batch" or facts.rollout is None:
        return None
    micro_steps = facts.micro_steps_per_rollout
    if micro_steps < 1 or (micro_steps >= facts.sizes.window and micro_steps % facts.sizes.window == 0):
        return None
    return 'scale_rewards = "batch" takes the deviation over each rollout, and an optimizer step draws from several'


@RULES.add(SILENT, "BB-TRL-067", "accelerator_config", ACCUMULATION, fixes=setting("accelerator_config", None))
@says("accepted", f"{ARGUMENTS} Trainer.create_accelerator_and_postprocess", ">=0.18")
def _rewritten(facts: TrlFacts) -> str | None:
    steps = facts.sizes.rewritten_accumulation
    if steps is None or steps < 2 or facts.sizes.accumulation != 1:
        return None
    return (
        f"gradient_accumulation_kwargs.num_steps = {steps} replaces {ACCUMULATION} = 1 after {STEPS} was derived "
        f"from it: {steps} rollouts per optimizer step"
    )


@RULES.add(SILENT, "BB-TRL-068", "entropy_coef", "use_adaptive_entropy", fixes=setting("entropy_coef", 0.0))
@says("the mean of micro-batch means", f"trl 1.8.0 to 1.16.0 {LOSS}; the dapo family since 1.10.0 only")
def _entropy(facts: TrlFacts) -> str | None:
    if not facts.native["entropy_coef"] and not facts.native["use_adaptive_entropy"]:
        return None
    if facts.sizes.window * facts.sizes.world <= 1:
        return None
    if facts.loss is not None and facts.loss.rollout_denominator and holds("<1.10", facts.version):
        return None  # it has the policy loss's own denominator there
    return "the entropy bonus is a mean over each micro-batch's tokens: it depends on the split"


@RULES.add(SILENT, "BB-TRL-069", "top_entropy_quantile", fixes=setting("top_entropy_quantile", 1.0))
@says(
    "a quantile over all processes, once per micro-batch",
    "trl 0.21.0 to 1.16.0 GRPOTrainer.get_high_entropy_mask; over one process in 0.20.0",
)
def _entropy_quantile(facts: TrlFacts) -> str | None:
    quantile = facts.native["top_entropy_quantile"]
    if quantile >= 1 or facts.sizes.window <= 1:
        return None
    said = "takes its threshold per micro-batch: which tokens train depends on the split"
    return f"top_entropy_quantile = {quantile} {said}"


@RULES.add(
    SILENT,
    "BB-TRL-070",
    "loss_type",
    "importance_sampling_level",
    "beta",
    fixes=setting("importance_sampling_level", "sequence"),
)
@says("(loss x length).mean() over the padded matrix", f"trl 0.28.0 to 1.9.2 {LOSS}; mended in 1.10.0", ">=0.28,<1.10")
def _luspo_padding(facts: TrlFacts) -> str | None:
    native = facts.native
    widened = native["importance_sampling_level"] == "token" or native["beta"] or native["top_entropy_quantile"] < 1
    if native["loss_type"] != "luspo" or not widened:
        return None
    return "loss_type = luspo averages over padded positions and counts unmasked ones, unless ratios are per sequence"


@RULES.add(SILENT, "BB-TRL-071", "use_liger_kernel", "loss_type", fixes=setting("use_liger_kernel", False))
@says(
    "num_items_in_batch is not passed on",
    "trl 0.22.0 to 1.10.0 GRPOTrainer.compute_liger_loss; mended in 1.11.0",
    "<1.11",
)
def _liger_tokens(facts: TrlFacts) -> str | None:
    if not facts.liger or facts.loss is None or not facts.loss.rollout_denominator:
        return None
    return f"use_liger_kernel with loss_type = {facts.loss.name} divides by each micro-batch's own tokens"
