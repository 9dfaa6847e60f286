"""Departures in rollouts that TRL never notices: runs that train nothing, and prompts, groups and rewards that are not
what the settings say."""

from __future__ import annotations

from batchbridge.kit.rule_table import SILENT, WRONG, Rules, says
from batchbridge_trl.meaning import scales
from batchbridge_trl.rules.facts import ALL, ARGUMENTS, LOSS, POST_INIT, SCORES, SIZES, TrlFacts
from batchbridge_trl.rules.fixes import setting, size_fixes
from batchbridge_trl.sizes import BATCH, MICRO, PASSES, STEPS, accelerator_config
from batchbridge_trl.world import KEY as WORLD

RULES = Rules[TrlFacts]()


@RULES.add(WRONG, "BB-TRL-050", *SIZES, fixes=size_fixes, core="BB113")
@says(
    "train() ends after 0 optimizer steps, with a warning in the log",
    "trl 1.16.0 RepeatSampler.__iter__, run; the same since 0.16.0",
    ">=0.16",
)
def _no_step(facts: TrlFacts) -> str | None:
    if facts.prompts is None or facts.rollout is None or facts.prompts >= facts.rollout.prompts:
        return None
    return (
        f"the dataset's {facts.prompts} prompts do not fill one rollout of {facts.rollout.prompts} prompts: the run "
        "ends without an optimizer step"
    )


@RULES.add(WRONG, "BB-TRL-051", PASSES, fixes=setting(PASSES, 1), core="BB113")
@says("train() ends after 0 optimizer steps", "trl 1.16.0 RepeatSampler.__iter__ with repeat_count 0, run")
def _no_pass(facts: TrlFacts) -> str | None:
    count = facts.sizes.iterations
    return f"{PASSES} = {count}: rollouts are trained on {count} times, so nothing is trained" if count < 1 else None


@RULES.add(WRONG, "BB-TRL-052", "num_train_epochs", "max_steps", fixes=setting("num_train_epochs", 1))
@says("train() ends after 0 optimizer steps", f"{ARGUMENTS} Trainer.set_initial_training_values")
def _no_horizon(facts: TrlFacts) -> str | None:
    epochs = facts.native["num_train_epochs"]
    return f"num_train_epochs = {epochs}: no optimizer step" if facts.native["max_steps"] <= 0 and epochs <= 0 else None


@RULES.add(WRONG, "BB-TRL-094", "max_steps", fixes=setting("max_steps", -1))
@says(
    "the schedule of 0 steps that linear and cosine make of it leaves that step no learning rate",
    "transformers 4.51.3 to 5.24.0 Trainer.set_initial_training_values; run with 5.24.0",
)
def _one_step(facts: TrlFacts) -> str | None:
    text = "max_steps = 0 is counted, and does not mean num_train_epochs: training ends after one optimizer step"
    return text if facts.native["max_steps"] == 0 else None


@RULES.add(WRONG, "BB-TRL-093", "loss_type", "epsilon_high", "epsilon", fixes=setting("epsilon_high", 5.0))
@says("every ratio is cut to the bound", f"trl 0.26.0 to 1.16.0 {LOSS}", ">=0.26")
def _ratio_cut_below_one(facts: TrlFacts) -> str | None:
    key = "epsilon" if facts.native["epsilon_high"] is None else "epsilon_high"
    bound = facts.native[key]
    if facts.native["loss_type"] != "cispo" or bound >= 1:
        return None
    return f"loss_type = cispo bounds the ratio itself, not how far it is above 1, and {key} = {bound} is below 1"


@RULES.add(WRONG, "BB-TRL-053", "accelerator_config", MICRO, WORLD, fixes=setting("accelerator_config", None))
@says(
    "micro-batches and rollouts are silently smaller by the number of devices",
    "trl 1.16.0 with accelerate 1.15.0 BatchSamplerShard, run with 2 processes",
)
def _split(facts: TrlFacts) -> str | None:
    if accelerator_config(facts.native).get("split_batches") is not True or facts.sizes.world < 2:
        return None
    return (
        f"accelerator_config.split_batches divides each device's {facts.sizes.micro} completions per micro-batch by "
        f"{facts.sizes.world} devices, and every rollout with them"
    )


@RULES.add(WRONG, "BB-TRL-054", BATCH, STEPS, WORLD)
@says("rollouts of the wrong size", f"{ALL} {POST_INIT}: generation_batch_size from the world size of that moment")
def _wrong_world(facts: TrlFacts) -> str | None:
    if not facts.from_object or facts.sizes.generation_batch is None:
        return None
    return (
        f"{BATCH} = {facts.sizes.generation_batch} was derived for another world size than {facts.sizes.world}: "
        "GRPOConfig reads the world size when it is constructed"
    )


@RULES.add(WRONG, "BB-TRL-055", BATCH, MICRO, WORLD, fixes=size_fixes)
@says(
    "accepted; advantages are taken over rows of several prompts, or a reshape fails at the first rollout",
    f"trl 0.18.0 to 0.19.0 {POST_INIT} (gbs % mb * processes) and GRPOTrainer.get_train_dataloader",
    ">=0.18,<0.19.1",
)
def _mixed_rollout(facts: TrlFacts) -> str | None:
    s, batch = facts.sizes, facts.sizes.batch_alone
    if batch is None or s.micro < 1 or s.world < 1 or batch % s.micro or batch % s.micro_step == 0:
        return None
    if not (steps := batch // s.micro_step):
        return f"{BATCH} = {batch} is less than one micro-batch of {s.micro_step} over all devices"
    return (
        f"{BATCH} = {batch} is sampled, and {steps * s.micro_step} of it are taken at a time ({MICRO} {s.micro} x "
        f"{WORLD} {s.world} x {steps}): groups are torn, and advantages mix prompts"
    )


@RULES.add(SILENT, "BB-TRL-056", "scale_rewards")
@says("accepted", f"trl 0.22.0 and 0.22.1 {SCORES}; mended in 0.22.2", ">=0.22,<0.22.2")
def _inverted_scale(facts: TrlFacts) -> str | None:
    value = facts.native["scale_rewards"]
    does = scales(facts.version).get(value)
    means = {True: "group", False: "none"}.get(value, value)
    return f"scale_rewards = {value} does what {does} should do" if does not in (None, means) else None


@RULES.add(SILENT, "BB-TRL-057", *SIZES)
@says(
    "accelerate repeats the first rows of the epoch",
    "trl 0.15.0 to 0.15.2 RepeatRandomSampler with accelerate 1.15.0 BatchSamplerShard (even_batches)",
    "<0.16",
)
def _last_micro_batch_wraps(facts: TrlFacts) -> str | None:
    if facts.prompts is None or facts.rollout is None or facts.native["dataloader_drop_last"]:
        return None
    rows, draw = facts.prompts * facts.sizes.generations, facts.sizes.micro_step
    if facts.sizes.world < 2 or rows % draw == 0:
        return None
    return (
        f"{rows} completions per epoch do not fill micro-batches of {draw} over all devices: accelerate fills the last "
        "one with the epoch's first prompts, which are trained twice"
    )


@RULES.add(SILENT, "BB-TRL-058", *SIZES)
@says(
    "len(sampler) = prompts x generations x repeats, with the dropped ones",
    "trl 0.16.0 to 0.19.1 RepeatRandomSampler.__len__ and RepeatSampler.__len__; mended in 0.20.0",
    ">=0.16,<0.20",
)
def _counts_dropped(facts: TrlFacts) -> str | None:
    """Planned steps of 0.16 to 0.19, too many: the length has prompts that are dropped, and transformers plans with
    it."""
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


@RULES.add(SILENT, "BB-TRL-060", *SIZES, core="BB124")
@says(
    "the sampler drops each epoch's incomplete rollout",
    "trl 0.16.0 to 1.16.0 RepeatSampler.__iter__ (RepeatRandomSampler in 0.16)",
    ">=0.16",
)
def _dropped(facts: TrlFacts) -> str | None:
    if facts.prompts is None or facts.rollout is None or facts.prompts < facts.rollout.prompts:
        return None
    rest, size = facts.prompts % facts.rollout.prompts, facts.rollout.prompts
    return f"{rest} of {facts.prompts} prompts are dropped every epoch ({size} prompts per rollout)" if rest else None
