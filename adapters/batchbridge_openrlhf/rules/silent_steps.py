"""Departures of its steps that OpenRLHF never reports: their order, members, remainders and schedule."""

from __future__ import annotations

import math

from batchbridge import Fix
from batchbridge.kit import LARGEST, nearest_numbers
from batchbridge.kit.rule_table import SILENT, WRONG, Rules, says
from batchbridge_openrlhf import settings as names
from batchbridge_openrlhf.facts import ALL, OpenRlhfFacts, fixed, fixes_of, gradients_of, newer
from batchbridge_openrlhf.meaning import sequence_mean
from batchbridge_openrlhf.settings import holds
from batchbridge_openrlhf.sizes import DROPPED_TAIL, UNREAD_GENERATION

_OFFLOAD, _MAX_NEW = "ds.adam_offload", "rollout.max_new_tokens"

RULES = Rules[OpenRlhfFacts]()


@RULES.add(SILENT, "BB-ORL-042", names.DYNAMIC, names.ZERO, names.BUDGET, _OFFLOAD, fixes=fixed(ds__zero_stage=3))
@says(
    "it trains on, and logs the norm of the gradient that is left",
    "measured on CPU: openrlhf 0.11.2 with deepspeed 0.19.6; deepspeed 0.15.4 to 0.19.6 stage_1_and_2.py, "
    "tests/adapters/openrlhf/record_deepspeed.py; the same calls in openrlhf 0.8.6 to 0.11.1, which require "
    "deepspeed 0.17.2 to 0.19.5",
    ">=0.8.6",
)
def _lost_gradients(facts: OpenRlhfFacts) -> str | None:
    deepspeed, outcome = gradients_of(facts)
    if outcome not in ("last", "mixed"):
        return None
    start = f"{facts.name(names.DYNAMIC)} with {facts.name_and_value(names.ZERO)}"
    if facts[_OFFLOAD]:
        start += f" and {facts.name(_OFFLOAD)}"
    lost = {
        "last": "only the last micro-batch of an optimizer step is applied, the gradients of the others are lost",
        "mixed": "the gradient of an optimizer step's first micro-batch is lost, and those of earlier steps are added "
        "again and again",
    }
    return f"{start}: {lost[outcome]} (DeepSpeed {deepspeed}, which openrlhf {facts.version} requires)"


def _order_fixes(facts: OpenRlhfFacts) -> tuple[Fix, ...]:
    return (Fix("compare runs by the prompts that they logged: no option orders them"),)


@RULES.add(SILENT, "BB-ORL-043", "train.seed", fixes=_order_fixes)
@says(
    "the prompt loader draws its seed from an unseeded process",
    "openrlhf 0.8.1 to 0.11.2 DeepspeedStrategy.setup_dataloader in PPOTrainer",
    ">=0.8.1",
)
def _unseeded_order(facts: OpenRlhfFacts) -> str | None:
    return f"{facts.name_and_value('train.seed')} does not order the prompts: every launch sees another order"


def _rollout_fixes(facts: OpenRlhfFacts) -> tuple[Fix, ...]:
    """The nearest prompts per rollout and train batches that leave no completion over."""
    s = facts.sizes
    share = math.lcm(s.train, s.group) // s.group
    key = names.ROLLOUT if s.prompts_per_rollout == s.rollout_prompts else names.GENERATION
    fixes = fixes_of(facts, key, *nearest_numbers(s.prompts_per_rollout, multiple_of=share))
    granule = s.replicas * (1 if s.dynamic else s.micro)
    if granule and s.completions_per_rollout % granule == 0:
        steps = nearest_numbers(max(s.train // granule, 1), divides=s.completions_per_rollout // granule)
        fixes += fixes_of(facts, names.TRAIN, *(step * granule for step in steps))
    return fixes


@RULES.add(
    SILENT, "BB-ORL-044", names.ROLLOUT, names.GROUP, names.TRAIN, names.GENERATION, fixes=_rollout_fixes, core="BB123"
)
@says(
    "DeepSpeed counts micro-batches over the whole run; the replay buffer drops its tail",
    "openrlhf 0.11.2 ActorPPOTrainer.ppo_train, iter_grad_accum_global_norm, setup_dynamic_batch",
)
def _left_over(facts: OpenRlhfFacts) -> str | None:
    s = facts.sizes
    completions = s.completions_per_rollout
    if not (rest := completions % s.train):
        return None
    start = f"a rollout has {completions} completions: {facts.name_and_value(names.TRAIN)} leaves {rest} over"
    if completions < s.train:
        start += "; it makes no step by itself"
    if s.dynamic:
        return f"{start}, which are generated and never trained on"
    return (
        f"{start}; whole micro-batches of them go into the next pass's or rollout's first step, weighed as if they "
        "were a step of their own, the rest is dropped"
    )


def _dataset_fixes(facts: OpenRlhfFacts) -> tuple[Fix, ...]:
    prompts = facts.trained_prompts or 0
    if prompts < 1:
        return ()
    s = facts.sizes
    whole_steps = nearest_numbers(s.rollout_prompts, divides=prompts, legal=lambda size: size * s.group % s.train == 0)
    return fixes_of(facts, names.ROLLOUT, *(whole_steps or nearest_numbers(s.rollout_prompts, divides=prompts)))


@RULES.add(SILENT, "BB-ORL-045", names.ROLLOUT, names.GROUP, names.TRAIN, fixes=_dataset_fixes)
@says(
    "the short rollout is trained on as far as its micro-batches fill optimizer steps",
    "openrlhf 0.11.0 to 0.11.2 PPOTrainer.fit, 0.9.9 to 0.10.4 GenerateSamplesActor.fit",
    ">=0.9.9",
)
def _tail(facts: OpenRlhfFacts) -> str | None:
    prompts, s = facts.trained_prompts, facts.sizes
    if prompts is None or s.drops_tail or not (rest := prompts % s.prompts_per_rollout):
        return None
    completions = rest * s.group
    message = (
        f"every episode ends with a rollout of {rest} instead of {s.prompts_per_rollout} prompts ({completions} "
        "completions)"
    )
    if completions % s.train == 0 and not s.dynamic:
        return message
    if completions < s.train:
        return f"{message}, which make no optimizer step of {facts.name_and_value(names.TRAIN)} by themselves"
    return f"{message}: {completions % s.train} of them are left over from its optimizer steps"


@RULES.add(SILENT, "BB-ORL-046", names.ROLLOUT, fixes=_dataset_fixes, core="BB124")
@says(
    "the prompts are skipped without a word, from 0.9.9 on after their completions were generated",
    "openrlhf 0.8.0 to 0.9.0 setup_dataloader(drop_last=True), 0.9.1 to 0.9.8 _generate_vllm, 0.9.9 to 0.10.4 "
    "PPOTrainer.fit",
    DROPPED_TAIL,
)
def _tail_dropped(facts: OpenRlhfFacts) -> str | None:
    prompts, s = facts.trained_prompts, facts.sizes
    if prompts is None or not s.drops_tail or not (rest := prompts % s.prompts_per_rollout):
        return None
    # Where they fill no rollout nothing is trained, and the core says it (BB113).
    return None if prompts < s.prompts_per_rollout else f"{rest} of {prompts} prompts are dropped in every episode"


@RULES.add(SILENT, "BB-ORL-047", names.MICRO, names.TRAIN, names.NODES, names.DEVICES, fixes=newer("0.10.4"))
@says(
    "masked_mean or aggregate_loss of each micro-batch",
    "openrlhf 0.8.0 to 0.10.2 PolicyLoss.forward, 0.10.3 get_loss_batch_info; 0.10.4 counts over the step",
    "<0.10.4",
)
def _split_dependent(facts: OpenRlhfFacts) -> str | None:
    s = facts.sizes
    old = holds("<0.10.3", facts.version)
    by_token = (facts["algo.kl.use_loss"] and facts["algo.kl.init_coef"]) or facts["actor.entropy_coef"]
    if (s.dynamic and not old) or (sequence_mean(facts.settings, facts.version) and not by_token):
        return None
    if not s.dynamic and s.accumulation * (s.replicas if old else 1) <= 1:
        return None
    over = "each replica's micro-batch" if old else "each micro-batch over all replicas"
    return (
        f"the loss is averaged over {over} and then over micro-batches: with unequal lengths the gradient depends on "
        f"the split"
    )


def _other_rollout_fixes(facts: OpenRlhfFacts) -> tuple[Fix, ...]:
    return fixes_of(facts, names.GENERATION, facts.sizes.rollout_prompts)


@RULES.add(SILENT, "BB-ORL-048", names.GENERATION, names.ROLLOUT, fixes=_other_rollout_fixes)
@says(
    "no message",
    "openrlhf 0.8.1 to 0.9.0 PPOTrainer.fit, 0.9.1 to 0.9.10 (not read), 0.10.0 to 0.11.2 "
    "SamplesGenerator.generate_samples",
    ">=0.8.1",
)
def _other_rollout(facts: OpenRlhfFacts) -> str | None:
    s, generation = facts.sizes, facts.sizes.generation
    if generation is None or generation == s.rollout_prompts:
        return None
    name = f"{facts.name(names.GENERATION)} = {generation}"
    if holds(UNREAD_GENERATION, facts.version):
        return f"{name} is not read: rollouts have {facts.name_and_value(names.ROLLOUT)} prompts"
    if s.prompts_per_rollout == s.rollout_prompts:
        return None
    return f"{name}: a rollout trains on {s.prompts_per_rollout} prompts, not on {facts.name_and_value(names.ROLLOUT)}"


@RULES.add(SILENT, "BB-ORL-049", names.FILTER, names.ROLLOUT, fixes=newer("0.11.1"))
@says(
    "the run ends, perhaps without an optimizer step",
    "OpenRLHF issue 1310; openrlhf 0.8.1 to 0.9.0 PPOTrainer.fit, 0.9.1 to 0.11.0 _generate_vllm",
    ">=0.8.1,<0.11.1",
)
def _filter_discards(facts: OpenRlhfFacts) -> str | None:
    if not facts.sizes.filtered:
        return None
    return (
        f"{facts.name(names.FILTER)}: when an episode's prompts run out before a rollout is full, the groups that "
        "passed are thrown away; a small dataset may train nothing"
    )


def _dynamic_step_fixes(facts: OpenRlhfFacts) -> tuple[Fix, ...]:
    s = facts.sizes
    return fixes_of(facts, names.TRAIN, *nearest_numbers(s.train, multiple_of=s.replicas))


@RULES.add(SILENT, "BB-ORL-050", names.TRAIN, names.NODES, names.DEVICES, fixes=_dynamic_step_fixes, core="BB121")
@says(
    "DeepSpeed's own check of the train batch is off with dynamic batches; ZeroDivisionError where a replica's is 0",
    "openrlhf 0.8.6 to 0.11.2 NaiveReplayBuffer.setup_dynamic_batch",
    ">=0.8.6",
)
def _uneven_dynamic(facts: OpenRlhfFacts) -> str | None:
    s = facts.sizes
    if not s.dynamic or s.replicas < 1 or s.train % s.replicas == 0:
        return None
    if s.train < s.replicas:
        return (
            f"{facts.name_and_value(names.TRAIN)} is less than one completion for each of {s.replicas} replicas: "
            "the run ends"
        )
    return (
        f"{facts.name_and_value(names.TRAIN)} over {s.replicas} replicas is rounded down to {s.train // s.replicas} "
        "each: a step "
        f"trains {s.train // s.replicas * s.replicas} completions"
    )


def _room_fixes(facts: OpenRlhfFacts) -> tuple[Fix, ...]:
    total, completion = facts["data.max_len"], facts[_MAX_NEW]
    if completion is None:
        return fixes_of(facts, "data.max_len", 2048)
    fixes = fixes_of(facts, "data.max_len", 2 * completion) if 2 * completion <= LARGEST else ()
    return fixes + (fixes_of(facts, _MAX_NEW, total // 2) if total > 1 else ())


@RULES.add(WRONG, "BB-ORL-051", _MAX_NEW, "data.max_len", fixes=_room_fixes)
@says(
    "prompts are cut at a bound below 1, and sequences at data.max_len",
    "openrlhf 0.9.8 to 0.11.2 utils/agent.py execute, SamplesGenerator",
    ">=0.9.8",
)
def _no_room(facts: OpenRlhfFacts) -> str | None:
    total, completion = facts["data.max_len"], facts[_MAX_NEW]
    if total <= 1:
        return f"{facts.name_and_value('data.max_len')} leaves no room for a completion: nothing is trained"
    if completion is None or completion < total:
        return None
    message = f"{facts.name_and_value(_MAX_NEW)} leaves no room for a prompt in {facts.name_and_value('data.max_len')}"
    # Python's ids[-0:] is all of them, and ids[--3:] all but the first three.
    if completion > total:
        return f"{message}: every prompt loses its first {completion - total} tokens"
    return f"{message}: prompts stay whole, and completions end earlier for it"


def _schedule_fixes(facts: OpenRlhfFacts) -> tuple[Fix, ...]:
    return _dataset_fixes(facts) if facts.sizes.positive and not facts.sizes.filtered else ()


def _steps_made(prompts: int, facts: OpenRlhfFacts) -> int | None:
    """Optimizer steps of the whole run; None where lengths decide, or devices do not share out evenly."""
    s = facts.sizes
    if s.dynamic or not s.whole_replicas or not s.whole_accumulation:
        return None
    full, rest = divmod(prompts, s.prompts_per_rollout)
    kept = 0 if s.drops_tail else rest
    rollouts = [s.prompts_per_rollout] * min(full, 1) + [kept]
    if any(size * s.group % s.replicas for size in rollouts):
        return None
    whole, short = (size * s.group // s.replicas // s.micro * s.passes for size in (s.prompts_per_rollout, kept))
    # Micro-batches that fill no step wait for the next rollout's: DeepSpeed counts them over the whole run.
    return (full * whole + short) * s.episodes // s.accumulation


@RULES.add(SILENT, "BB-ORL-053", names.ROLLOUT, names.GROUP, names.TRAIN, "train.max_epochs", fixes=_schedule_fixes)
@says(
    "the learning rate ends elsewhere on its schedule",
    f"{ALL} prepare_datasets (get_max_steps): prompts * samples // train batch * episodes * epochs",
)
def _schedule_length(facts: OpenRlhfFacts) -> str | None:
    """The schedule is made for the steps that all prompts would fill, rounded down in this order."""
    prompts, s = facts.trained_prompts, facts.sizes
    if prompts is None or s.passes < 1 or s.episodes < 1:
        return None
    scheduled = prompts * s.group // s.train * s.episodes * s.passes
    if s.filtered:
        return (
            f"the learning rate's schedule is made for {scheduled} optimizer steps, as if {facts.name(names.FILTER)} "
            "dropped nothing: dropped prompts leave it unfinished"
        )
    made = _steps_made(prompts, facts)
    if made is None or made == scheduled:
        return None
    return f"the learning rate's schedule is made for {scheduled} optimizer steps, the run makes {made}"


def _critic_fixes(facts: OpenRlhfFacts) -> tuple[Fix, ...]:
    s = facts.sizes
    return newer("0.11.2")(facts) + fixes_of(facts, names.MICRO, s.train // s.replicas)


@RULES.add(SILENT, "BB-ORL-069", names.ESTIMATOR, names.TRAIN, names.MICRO, fixes=_critic_fixes)
@says(
    "AdamW hides a common factor; clipping by the norm, and the value head beside it, do not",
    "measured on CPU: openrlhf 0.10.4, 0.11.0 and 0.11.1 CriticPPOTrainer with deepspeed 0.19.1 and 0.19.5, whose "
    "engine divides at each of a model's outputs, and the critic's hidden states are one",
    ">=0.10.4,<0.11.2",
)
def _critic_divided(facts: OpenRlhfFacts) -> str | None:
    s = facts.sizes
    if not facts.has_critic or s.dynamic or not s.positive or not s.whole_accumulation or s.accumulation < 2:
        return None
    return (
        f"the gradients of the critic's layers are divided by the {s.accumulation} micro-batches of an optimizer step "
        "twice, those of its value head once"
    )
