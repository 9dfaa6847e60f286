"""Refusals of OpenRLHF's parser, one row per check, in the order in which it checks.

The checks stand in the program's main block, mostly as assertions: `python -O`, or a call of `train(args)` from
elsewhere, skips them. Their order is the same in every release that was read.
"""

from __future__ import annotations

from batchbridge import Fix
from batchbridge.kit import LARGEST
from batchbridge.kit.rule_table import IN_CONFIG, Rules, retired, says
from batchbridge_openrlhf import settings as names
from batchbridge_openrlhf.facts import PARSER, OpenRlhfFacts, below_one_fixes, fix_of, fixed, fixes_of
from batchbridge_openrlhf.rules import printed
from batchbridge_openrlhf.settings import holds

_EVERY = PARSER.format("0.8.0 to 0.11.2")
_REWARD, _REMOTE, _AGENT = "reward.model_name_or_path", "reward.remote_url", "train.agent_func_path"
_PARTIAL = "train.partial_rollout_enable"

RULES = Rules[OpenRlhfFacts]()


def _threshold_fixes(facts: OpenRlhfFacts) -> tuple[Fix, ...]:
    return fixes_of(facts, names.THRESHOLD, facts[names.THRESHOLD][:2])


@RULES.add(IN_CONFIG, "BB-ORL-023", names.THRESHOLD, fixes=_threshold_fixes)
@says(
    "AssertionError: --algo.advantage.is_correction_threshold takes HIGH or LOW HIGH",
    PARSER.format("0.11.2"),
    ">=0.11.2",
)
def _threshold(facts: OpenRlhfFacts) -> str | None:
    bounds = facts[names.THRESHOLD]
    if len(bounds) <= 2:
        return None
    return f"{facts.name(names.THRESHOLD)} has {len(bounds)} numbers: HIGH, or LOW HIGH"


@RULES.add(
    IN_CONFIG, "BB-ORL-025", names.ESTIMATOR, _REWARD, _REMOTE, fixes=fixed(algo__advantage__estimator="reinforce")
)
@says("AttributeError: 'NoneType' object has no attribute 'split'", _EVERY)
def _no_reward(facts: OpenRlhfFacts) -> str | None:
    # A mapping may be a part of the options: models and data are added to it.
    models = (facts["critic.model_name_or_path"], facts[_REWARD])
    if not facts.whole or not facts.has_critic or facts.remote_reward or models != (None, None):
        return None
    return (
        f"{facts.name_and_value(names.ESTIMATOR)} trains a critic, and no {facts.name(_REWARD)}, "
        f"{facts.name('critic.model_name_or_path')} or {facts.name(_REMOTE)} says from which model"
    )


@RULES.add(
    IN_CONFIG, "BB-ORL-012", names.ESTIMATOR, names.GROUP, fixes=fixed(rollout__n_samples_per_prompt=2), core="BB127"
)
@says("AssertionError: requires n_samples_per_prompt > 1", PARSER.format("0.11.0 to 0.11.2"), ">=0.11")
@RULES.add(
    IN_CONFIG, "BB-ORL-011", names.ESTIMATOR, names.GROUP, fixes=fixed(rollout__n_samples_per_prompt=2), core="BB127"
)
@says("AssertionError: requires n_samples_per_prompt > 1", PARSER.format("0.8.0 to 0.10.4"), "<0.11")
def _needs_group(facts: OpenRlhfFacts) -> str | None:
    # 0.11 looks at dr_grpo too.
    more = ("dr_grpo",) if holds(">=0.11", facts.version) else ()
    if facts[names.ESTIMATOR] not in ("rloo", "reinforce_baseline", "group_norm", *more) or facts.sizes.group > 1:
        return None
    group = f"{facts.name_and_value(names.GROUP)} must be above 1"
    return f"{facts.name_and_value(names.ESTIMATOR)} compares the completions of a prompt: {group}"


def _image_fixes(facts: OpenRlhfFacts) -> tuple[Fix, ...]:
    group = max(facts.sizes.group, 2)
    return (fix_of(facts, {names.ESTIMATOR: "reinforce_baseline", names.PACKING: False, names.GROUP: group}),)


@RULES.add(IN_CONFIG, "BB-ORL-022", "data.max_images_per_prompt", names.ESTIMATOR, names.PACKING, fixes=_image_fixes)
@says(
    "AssertionError: VLM training does not support critic model, or --packing_samples",
    PARSER.format("0.10.0 to 0.11.2"),
    ">=0.10.0",
)
def _images(facts: OpenRlhfFacts) -> str | None:
    if facts["data.max_images_per_prompt"] <= 0:
        return None
    # With a remote reward the critic is the actor's model; where a command names none, there is no critic yet.
    nameless = facts.whole and facts.remote_reward and facts["actor.model_name_or_path"] is None
    critic = facts.has_critic and not (nameless and facts["critic.model_name_or_path"] is None)
    broken = [facts.name_and_value(names.ESTIMATOR) + " trains a critic"] if critic else []
    broken += [f"{facts.name(names.PACKING)} loses which image belongs to which text"] if facts[names.PACKING] else []
    return f"with images: {' and '.join(broken)}" if broken else None


RULES.append(
    retired(
        "BB-ORL-019",
        *(names.PACKING, names.ENGINES),
        native="AssertionError: Only support `--packing_samples` with vLLM.; TypeError where the option is not given",
        source=_EVERY,
    )
)


@RULES.add(IN_CONFIG, "BB-ORL-020", names.ASYNC, "vllm.enable_sleep", fixes=fixed(vllm__enable_sleep=False))
@says("AssertionError: Async RLHF is not supported with vllm_enable_sleep", _EVERY)
def _asleep(facts: OpenRlhfFacts) -> str | None:
    # Without colocation the parser turns sleeping off by itself.
    if not (facts[names.ASYNC] and facts["vllm.enable_sleep"] and facts["train.colocate_all"]):
        return None
    return f"{facts.name(names.ASYNC)} cannot run with {facts.name('vllm.enable_sleep')}"


def _partial_fixes(facts: OpenRlhfFacts) -> tuple[Fix, ...]:
    return fixes_of(facts, names.ASYNC, True) + fixes_of(facts, _PARTIAL, False)


@RULES.add(IN_CONFIG, "BB-ORL-018", _PARTIAL, names.ASYNC, fixes=_partial_fixes)
@says("AssertionError: partial rollouts require async training", PARSER.format("0.9.7 to 0.11.2"), ">=0.9.7")
def _partial(facts: OpenRlhfFacts) -> str | None:
    if not facts[_PARTIAL] or facts[names.ASYNC]:
        return None
    return f"{facts.name(_PARTIAL)} needs {facts.name(names.ASYNC)}"


@RULES.add(IN_CONFIG, "BB-ORL-021", "eval.dataset", _REMOTE, _AGENT, fixes=fixed(eval__dataset=None))
@says("AssertionError: `--eval_dataset` is only supported with `--remote_rm_url`", _EVERY)
def _evaluation_reward(facts: OpenRlhfFacts) -> str | None:
    if not facts["eval.dataset"] or facts.remote_reward:
        return None
    return f"{facts.name('eval.dataset')} needs a remote reward or an agent function"


def _oversampling_fixes(facts: OpenRlhfFacts) -> tuple[Fix, ...]:
    return fixes_of(facts, names.GENERATION, facts.sizes.rollout_prompts) + fixes_of(facts, names.ASYNC, True)


@RULES.add(IN_CONFIG, "BB-ORL-013", names.GENERATION, names.ROLLOUT, names.ASYNC, fixes=_oversampling_fixes)
@says(
    "AssertionError: vllm_generate_batch_size > rollout_batch_size requires async training",
    PARSER.format("0.10.0 to 0.11.2"),
    ">=0.10.0",
)
def _oversampling(facts: OpenRlhfFacts) -> str | None:
    generation = facts.sizes.generation
    if generation is None or generation <= facts.sizes.rollout_prompts or facts[names.ASYNC]:
        return None
    above = (
        f"{facts.name_and_value(names.GENERATION)} (prompts) is above {facts.name_and_value(names.ROLLOUT)} (prompts)"
    )
    return f"{above}, which needs {facts.name(names.ASYNC)}"


def _filter_range_fixes(facts: OpenRlhfFacts) -> tuple[Fix, ...]:
    if holds("<0.8.1.post1", facts.version):
        return fixes_of(facts, names.CLIP_RANGE, (-10.0, 10.0))
    return fixes_of(facts, names.RANGE, (0.0, 1.0))


@RULES.add(IN_CONFIG, "BB-ORL-014", names.RANGE, names.CLIP_RANGE, fixes=_filter_range_fixes)
@says(
    "AssertionError: reward_clip_range[0] must be less than reward_clip_range[1]",
    PARSER.format("0.8.1 (of reward_clip_range itself), 0.8.1.post1 to 0.11.2"),
    ">=0.8.1",
)
def _filter_range(facts: OpenRlhfFacts) -> str | None:
    # 0.8.1 looks at the bounds of the reward instead.
    identity = names.CLIP_RANGE if holds("<0.8.1.post1", facts.version) else names.RANGE
    low, high = facts[identity]
    if not facts.sizes.filtered or low < high:
        return None
    return f"{facts.name(identity)} = {low:g} {high:g}: the first must be below the second"


@RULES.add(
    IN_CONFIG,
    "BB-ORL-015",
    names.FILTER,
    _REMOTE,
    _AGENT,
    fixes=fixed(algo__dynamic_filtering_enable=False),
    text=printed.FILTER_NEEDS_SCORES,
)
@says(
    "AssertionError: remote_rm_url or agent_func_path must be specified when using dynamic filtering",
    PARSER.format("0.8.1 to 0.11.2"),
    ">=0.8.1",
)
def _filter_reward(facts: OpenRlhfFacts) -> str | None:
    # A mapping may be a part of the options: rewards are added to it.
    open_yet = not facts.whole and facts[_REWARD] is None
    if not facts.sizes.filtered or facts.remote_reward or open_yet:
        return None
    return f"{facts.name(names.FILTER)} needs scores while it generates: a remote reward or an agent function"


@RULES.add(
    IN_CONFIG,
    "BB-ORL-016",
    names.FILTER,
    names.GROUP,
    fixes=fixed(rollout__n_samples_per_prompt=2),
    text=printed.FILTER_NEEDS_GROUPS,
)
@says(
    "AssertionError: n_samples_per_prompt must be greater than 1 when using dynamic filtering",
    PARSER.format("0.8.1 to 0.11.2"),
    ">=0.8.1",
)
def _filter_group(facts: OpenRlhfFacts) -> str | None:
    if not facts.sizes.filtered or facts.sizes.group > 1:
        return None
    return f"{facts.name(names.FILTER)} filters groups: {facts.name_and_value(names.GROUP)} must be above 1"


def _divisors(facts: OpenRlhfFacts) -> tuple[str, ...]:
    """Names of the options that the last check divides by; 0.8.0 leaves out tensor parallelism."""
    return (names.FORWARD, names.RING) if holds("<0.8.1", facts.version) else (names.FORWARD, names.RING, names.TENSOR)


def _zero_fixes(facts: OpenRlhfFacts) -> tuple[Fix, ...]:
    return (fix_of(facts, {identity: 1 for identity in _divisors(facts) if facts[identity] == 0}),)


@RULES.add(IN_CONFIG, "BB-ORL-026", names.FORWARD, names.RING, names.TENSOR, fixes=_zero_fixes)
@says(
    "ZeroDivisionError: integer division or modulo by zero",
    PARSER.format("0.8.0 to 0.11.2 (0.8.0 leaves out tensor parallelism)"),
)
def _zero(facts: OpenRlhfFacts) -> str | None:
    zero = [facts.name(identity) for identity in _divisors(facts) if facts[identity] == 0]
    return f"{' and '.join(zero)} = 0: the parser divides by it" if zero else None


def _scorers(facts: OpenRlhfFacts) -> int:
    """Replicas that score a rollout, as the parser counts them."""
    s = facts.sizes
    return s.world // s.ring if holds("<0.8.1", facts.version) else s.replicas


def _chunk_fixes(facts: OpenRlhfFacts) -> tuple[Fix, ...]:
    s = facts.sizes
    if not s.positive:
        return below_one_fixes(facts)
    replicas = max(_scorers(facts), 1)
    completions = s.group * s.rollout_prompts
    fixes = fixes_of(facts, names.FORWARD, completions // replicas) if completions >= replicas else ()
    prompts = -(-replicas * s.forward_micro // s.group)
    return fixes + (fixes_of(facts, names.ROLLOUT, prompts) if prompts <= LARGEST else ())


@RULES.add(
    IN_CONFIG,
    "BB-ORL-017",
    names.ROLLOUT,
    names.GROUP,
    names.FORWARD,
    names.NODES,
    names.DEVICES,
    fixes=_chunk_fixes,
    text=printed.SAMPLE_BATCHES,
)
@says(
    "AssertionError: The number of sample batches must be greater than or equal to the effective number of "
    "actor processes.",
    PARSER.format("0.8.0 to 0.11.2 (0.8.0 leaves out tensor parallelism)"),
)
def _enough_chunks(facts: OpenRlhfFacts) -> str | None:
    s = facts.sizes
    completions = s.group * s.rollout_prompts
    if _zero(facts) or completions // s.forward_micro >= _scorers(facts):
        return None
    product = f"{facts.name(names.ROLLOUT)} {s.rollout_prompts} x {facts.name(names.GROUP)} {s.group}"
    return (
        f"{product} = {completions} completions make {completions // s.forward_micro} batches of "
        f"{facts.name_and_value(names.FORWARD)}, fewer than the {_scorers(facts)} replicas that score them"
    )
