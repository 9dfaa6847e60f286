"""What TRL never notices about rollouts: runs that train nothing, and prompts, groups and rewards that are not what the
settings say."""

from __future__ import annotations

from batchbridge.kit.rule_table import SILENT, WRONG
from batchbridge_trl.meaning import scales
from batchbridge_trl.rules.facts import ALL, ARGUMENTS, BATCH, MICRO, PASSES, POST_INIT, SIZES, STEPS, Facts, Rule
from batchbridge_trl.rules.fixes import setting, size_fixes
from batchbridge_trl.sizes import accelerator_config
from batchbridge_trl.world import KEY as WORLD


def _no_step(facts: Facts) -> str | None:
    if facts.prompts is None or facts.rollout is None or facts.prompts >= facts.rollout.prompts:
        return None
    return (
        f"the dataset's {facts.prompts} prompts do not fill one rollout of {facts.rollout.prompts} prompts: the "
        "run ends "
        "without an optimizer step"
    )


def _no_pass(facts: Facts) -> str | None:
    count = facts.sizes.iterations
    return f"{PASSES} = {count}: rollouts are trained on {count} times, so nothing is trained" if count < 1 else None


def _no_horizon(facts: Facts) -> str | None:
    epochs = facts.native["num_train_epochs"]
    return f"num_train_epochs = {epochs}: no optimizer step" if facts.native["max_steps"] <= 0 and epochs <= 0 else None


def _split(facts: Facts) -> str | None:
    if accelerator_config(facts.native).get("split_batches") is not True or facts.sizes.world < 2:
        return None
    return (
        f"accelerator_config.split_batches divides each device's {facts.sizes.micro} completions per micro-batch by "
        f"{facts.sizes.world} devices, and every rollout with them"
    )


def _wrong_world(facts: Facts) -> str | None:
    if not facts.from_object or facts.sizes.generation_batch is None:
        return None
    return (
        f"{BATCH} = {facts.sizes.generation_batch} was derived for another world size than {facts.sizes.world}: "
        "GRPOConfig "
        "reads the world size when it is constructed"
    )


def _mixed_rollout(facts: Facts) -> str | None:
    s = facts.sizes
    if s.generation_batch is None or s.steps_per_generation is not None or s.micro < 1 or s.world < 1:
        return None
    per_micro_step = s.micro * s.world
    if s.generation_batch % s.micro or s.generation_batch % per_micro_step == 0:
        return None
    taken = s.generation_batch // per_micro_step * per_micro_step
    if not taken:
        return f"{BATCH} = {s.generation_batch} is less than one micro-batch of {per_micro_step} over all devices"
    return (
        f"{BATCH} = {s.generation_batch} is sampled, and {taken} of it are taken at a time ({MICRO} {s.micro} x "
        f"{WORLD} {s.world} x {s.generation_batch // per_micro_step}): groups are torn, and advantages mix prompts"
    )


def _inverted_scale(facts: Facts) -> str | None:
    value = facts.native["scale_rewards"]
    does = scales(facts.version).get(value)
    means = {True: "group", False: "none"}.get(value, value)
    return f"scale_rewards = {value} does what {does} should do" if does not in (None, means) else None


def _last_micro_batch_wraps(facts: Facts) -> str | None:
    if facts.prompts is None or facts.rollout is None or facts.native["dataloader_drop_last"]:
        return None
    rows, draw = facts.prompts * facts.sizes.generations, facts.sizes.micro * facts.sizes.world
    if facts.sizes.world < 2 or rows % draw == 0:
        return None
    return (
        f"{rows} completions per epoch do not fill micro-batches of {draw} over all devices: accelerate fills the last "
        "one with the epoch's first prompts, which are trained twice"
    )


def _counts_dropped(facts: Facts) -> str | None:
    """0.16 to 0.19: the sampler's length counts prompts that it drops, and transformers plans with the length."""
    found, native = facts.epoch, facts.native
    if found is None or facts.rollout is None or not found.real:
        return None
    real = found.real // found.window
    if found.planned_steps == real and found.real % found.window == 0:
        return None
    stop, epochs = found.stops(native["num_train_epochs"], native["max_steps"])
    said = (
        f"the sampler's length counts the {found.prompts % facts.rollout.prompts} prompts that it drops: transformers "
        f"plans {found.planned_steps} optimizer steps per epoch where there are {real}, and makes the learning-rate "
        f"schedule for {stop} steps"
    )
    if epochs * real < stop:
        said += f"; the run ends after {epochs * real} of them"
    if found.real % found.window:
        said += (
            f"; the last {found.real % found.window} micro-batches of an epoch are trained in the next one's first step"
        )
    return said


def _dropped(facts: Facts) -> str | None:
    if facts.prompts is None or facts.rollout is None or facts.prompts < facts.rollout.prompts:
        return None
    rest = facts.prompts % facts.rollout.prompts
    return (
        f"{rest} of {facts.prompts} prompts are dropped every epoch ({facts.rollout.prompts} prompts per rollout)"
        if rest
        else None
    )


ROLLOUTS: tuple[Rule, ...] = (
    WRONG(
        "BB-TRL-050",
        _no_step,
        SIZES,
        "train() ends after 0 optimizer steps, with a warning in the log",
        "trl 1.16.0 RepeatSampler.__iter__, run; the same since 0.16.0",
        size_fixes,
        ">=0.16",
    ),
    WRONG(
        "BB-TRL-051",
        _no_pass,
        (PASSES,),
        "train() ends after 0 optimizer steps",
        "trl 1.16.0 RepeatSampler.__iter__ with repeat_count 0, run",
        setting(PASSES, 1),
    ),
    WRONG(
        "BB-TRL-052",
        _no_horizon,
        ("num_train_epochs", "max_steps"),
        "train() ends after 0 optimizer steps",
        f"{ARGUMENTS} Trainer.set_initial_training_values",
        setting("num_train_epochs", 1),
    ),
    WRONG(
        "BB-TRL-053",
        _split,
        ("accelerator_config", MICRO, WORLD),
        "micro-batches and rollouts are silently smaller by the number of devices",
        "trl 1.16.0 with accelerate 1.15.0 BatchSamplerShard, run with 2 processes",
        setting("accelerator_config", None),
    ),
    WRONG(
        "BB-TRL-054",
        _wrong_world,
        (BATCH, STEPS, WORLD),
        "rollouts of the wrong size",
        f"{ALL} {POST_INIT}: generation_batch_size from the world size of that moment",
    ),
    WRONG(
        "BB-TRL-055",
        _mixed_rollout,
        (BATCH, MICRO, WORLD),
        "accepted; advantages are taken over rows of several prompts, or a reshape fails at the first rollout",
        f"trl 0.18.0 to 0.19.0 {POST_INIT} (gbs % mb * processes) and GRPOTrainer.get_train_dataloader",
        size_fixes,
        ">=0.18,<0.19.1",
    ),
    SILENT(
        "BB-TRL-056",
        _inverted_scale,
        ("scale_rewards",),
        "accepted",
        "trl 0.22.0 and 0.22.1 GRPOTrainer._generate_and_score_completions; mended in 0.22.2",
        versions=">=0.22,<0.22.2",
    ),
    SILENT(
        "BB-TRL-057",
        _last_micro_batch_wraps,
        SIZES,
        "accelerate repeats the first rows of the epoch",
        "trl 0.15.0 to 0.15.2 RepeatRandomSampler with accelerate 1.15.0 BatchSamplerShard (even_batches)",
        versions="<0.16",
    ),
    SILENT(
        "BB-TRL-058",
        _counts_dropped,
        SIZES,
        "len(sampler) = prompts x generations x repeats, with the dropped ones",
        "trl 0.16.0 to 0.19.1 RepeatRandomSampler.__len__ and RepeatSampler.__len__; mended in 0.20.0",
        versions=">=0.16,<0.20",
    ),
    SILENT(
        "BB-TRL-060",
        _dropped,
        SIZES,
        "the sampler drops each epoch's incomplete rollout",
        "trl 0.16.0 to 1.16.0 RepeatSampler.__iter__ (RepeatRandomSampler in 0.16)",
        versions=">=0.16",
    ),
)
