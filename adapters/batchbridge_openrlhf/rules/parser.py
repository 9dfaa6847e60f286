"""What OpenRLHF's parser refuses, one row per check, in the order in which it checks.

The checks stand in the program's main block, mostly as assertions: `python -O`, or a call of `train(args)` from
elsewhere, skips them. Their order is the same in every release that was read.
"""

from __future__ import annotations

from collections.abc import Callable

from batchbridge import Fix
from batchbridge.kit import LARGEST
from batchbridge.kit.rule_table import IN_CONFIG
from batchbridge_openrlhf import settings as names
from batchbridge_openrlhf.facts import PARSER, Facts, Rule, below_one_fixes, fix_of, fixed, fixes_of
from batchbridge_openrlhf.settings import holds


def _needs_group(*estimators: str) -> Callable[[Facts], str | None]:
    def test(facts: Facts) -> str | None:
        if facts[names.ESTIMATOR] not in estimators or facts.sizes.group > 1:
            return None
        group = f"{facts.said(names.GROUP)} must be above 1"
        return f"{facts.said(names.ESTIMATOR)} compares the completions of a prompt: {group}"

    return test


def _oversampling(facts: Facts) -> str | None:
    generation = facts.sizes.generation
    if generation is None or generation <= facts.sizes.rollout_prompts or facts[names.ASYNC]:
        return None
    above = f"{facts.said(names.GENERATION)} (prompts) is above {facts.said(names.ROLLOUT)} (prompts)"
    return f"{above}, which needs {facts.name(names.ASYNC)}"


def _oversampling_fixes(facts: Facts) -> tuple[Fix, ...]:
    return fixes_of(facts, names.GENERATION, facts.sizes.rollout_prompts) + fixes_of(facts, names.ASYNC, True)


def _filter_range(facts: Facts) -> str | None:
    # 0.8.1 looks at the bounds of the reward instead.
    identity = names.CLIP_RANGE if holds("<0.8.1.post1", facts.version) else names.RANGE
    low, high = facts[identity]
    broken = facts.sizes.filtered and not low < high
    return f"{facts.name(identity)} = {low:g} {high:g}: the first must be below the second" if broken else None


def _filter_range_fixes(facts: Facts) -> tuple[Fix, ...]:
    if holds("<0.8.1.post1", facts.version):
        return fixes_of(facts, names.CLIP_RANGE, (-10.0, 10.0))
    return fixes_of(facts, names.RANGE, (0.0, 1.0))


def _filter_reward(facts: Facts) -> str | None:
    # A mapping may be a part of the options: rewards are added to it.
    open_yet = not facts.whole and facts["reward.model_name_or_path"] is None
    if not facts.sizes.filtered or facts.remote_reward or open_yet:
        return None
    return f"{facts.name(names.FILTER)} needs scores while it generates: a remote reward or an agent function"


def _filter_group(facts: Facts) -> str | None:
    broken = facts.sizes.filtered and facts.sizes.group <= 1
    return f"{facts.name(names.FILTER)} filters groups: {facts.said(names.GROUP)} must be above 1" if broken else None


def _divisors(facts: Facts) -> tuple[str, ...]:
    """What the last check divides by; 0.8.0 leaves out tensor parallelism."""
    return (names.FORWARD, names.RING) if holds("<0.8.1", facts.version) else (names.FORWARD, names.RING, names.TENSOR)


def _zero(facts: Facts) -> str | None:
    zero = [facts.name(identity) for identity in _divisors(facts) if facts[identity] == 0]
    return f"{' and '.join(zero)} = 0: the parser divides by it" if zero else None


def _zero_fixes(facts: Facts) -> tuple[Fix, ...]:
    return (fix_of(facts, {identity: 1 for identity in _divisors(facts) if facts[identity] == 0}),)


def _scorers(facts: Facts) -> int:
    """Replicas that score a rollout, as the parser counts them."""
    s = facts.sizes
    return s.world // s.ring if holds("<0.8.1", facts.version) else s.replicas


def _enough_chunks(facts: Facts) -> str | None:
    s = facts.sizes
    completions = s.group * s.rollout_prompts
    if _zero(facts) or completions // s.forward_micro >= _scorers(facts):
        return None
    product = f"{facts.name(names.ROLLOUT)} {s.rollout_prompts} x {facts.name(names.GROUP)} {s.group}"
    return (
        f"{product} = {completions} completions make {completions // s.forward_micro} batches of "
        f"{facts.said(names.FORWARD)}, fewer than the {_scorers(facts)} replicas that score them"
    )


def _chunk_minimum_fixes(facts: Facts) -> tuple[Fix, ...]:
    s = facts.sizes
    if not s.positive:
        return below_one_fixes(facts)
    replicas = max(_scorers(facts), 1)
    completions = s.group * s.rollout_prompts
    fixes = fixes_of(facts, names.FORWARD, completions // replicas) if completions >= replicas else ()
    prompts = -(-replicas * s.forward_micro // s.group)
    return fixes + (fixes_of(facts, names.ROLLOUT, prompts) if prompts <= LARGEST else ())


def _partial(facts: Facts) -> str | None:
    broken = facts["train.partial_rollout_enable"] and not facts[names.ASYNC]
    return f"{facts.name('train.partial_rollout_enable')} needs {facts.name(names.ASYNC)}" if broken else None


def _packing_engines(facts: Facts) -> str | None:
    if not facts.packs or (facts[names.ENGINES] or 0) > 0:
        return None
    by = [facts.name(names.PACKING)] if facts[names.PACKING] else []
    by += [facts.said(names.RING)] if not by and facts.sizes.ring > 1 else []
    by += [facts.name(names.DYNAMIC)] if not by else []
    return f"{by[0]} packs samples, which needs vLLM engines: {facts.name(names.ENGINES)} = {facts[names.ENGINES]}"


def _asleep(facts: Facts) -> str | None:
    # Without colocation the parser turns sleeping off by itself.
    broken = facts[names.ASYNC] and facts["vllm.enable_sleep"] and facts["train.colocate_all"]
    return f"{facts.name(names.ASYNC)} cannot run with {facts.name('vllm.enable_sleep')}" if broken else None


def _evaluation_reward(facts: Facts) -> str | None:
    broken = facts["eval.dataset"] and not facts.remote_reward
    return f"{facts.name('eval.dataset')} needs a remote reward or an agent function" if broken else None


def _no_reward(facts: Facts) -> str | None:
    # A mapping may be a part of the options: models and data are added to it.
    models = (facts["critic.model_name_or_path"], facts["reward.model_name_or_path"])
    if not facts.whole or not facts.has_critic or facts.remote_reward or models != (None, None):
        return None
    return (
        f"{facts.said(names.ESTIMATOR)} trains a critic, and no {facts.name('reward.model_name_or_path')}, "
        f"{facts.name('critic.model_name_or_path')} or {facts.name('reward.remote_url')} says from which model"
    )


def _images(facts: Facts) -> str | None:
    if facts["data.max_images_per_prompt"] <= 0:
        return None
    # With a remote reward the critic is the actor's model; where a command names none, there is no critic yet.
    nameless = facts.whole and facts.remote_reward and facts["actor.model_name_or_path"] is None
    critic = facts.has_critic and not (nameless and facts["critic.model_name_or_path"] is None)
    broken = [facts.said(names.ESTIMATOR) + " trains a critic"] if critic else []
    broken += [f"{facts.name(names.PACKING)} loses which image belongs to which text"] if facts[names.PACKING] else []
    return f"with images: {' and '.join(broken)}" if broken else None


def _threshold(facts: Facts) -> str | None:
    bounds = facts[names.THRESHOLD]
    return f"{facts.name(names.THRESHOLD)} has {len(bounds)} numbers: HIGH, or LOW HIGH" if len(bounds) > 2 else None


def _image_fixes(facts: Facts) -> tuple[Fix, ...]:
    group = max(facts.sizes.group, 2)
    return (fix_of(facts, {names.ESTIMATOR: "reinforce_baseline", names.PACKING: False, names.GROUP: group}),)


PARSER_RULES: tuple[Rule, ...] = (
    IN_CONFIG(
        "BB-ORL-023",
        _threshold,
        (names.THRESHOLD,),
        "AssertionError: --algo.advantage.is_correction_threshold takes HIGH or LOW HIGH",
        PARSER.format("0.11.2"),
        lambda facts: fixes_of(facts, names.THRESHOLD, facts[names.THRESHOLD][:2]),
        ">=0.11.2",
    ),
    IN_CONFIG(
        "BB-ORL-025",
        _no_reward,
        (names.ESTIMATOR, "reward.model_name_or_path", "reward.remote_url"),
        "AttributeError: 'NoneType' object has no attribute 'split'",
        PARSER.format("0.8.0 to 0.11.2"),
        fixed(algo__advantage__estimator="reinforce"),
    ),
    IN_CONFIG(
        "BB-ORL-011",
        _needs_group("rloo", "reinforce_baseline", "group_norm"),
        (names.ESTIMATOR, names.GROUP),
        "AssertionError: requires n_samples_per_prompt > 1",
        PARSER.format("0.8.0 to 0.10.4"),
        fixed(rollout__n_samples_per_prompt=2),
        "<0.11",
    ),
    IN_CONFIG(
        "BB-ORL-012",
        _needs_group("rloo", "reinforce_baseline", "group_norm", "dr_grpo"),
        (names.ESTIMATOR, names.GROUP),
        "AssertionError: requires n_samples_per_prompt > 1",
        PARSER.format("0.11.0 to 0.11.2"),
        fixed(rollout__n_samples_per_prompt=2),
        ">=0.11",
    ),
    IN_CONFIG(
        "BB-ORL-022",
        _images,
        ("data.max_images_per_prompt", names.ESTIMATOR, names.PACKING),
        "AssertionError: VLM training does not support critic model, or --packing_samples",
        PARSER.format("0.10.0 to 0.11.2"),
        _image_fixes,
        ">=0.10.0",
    ),
    IN_CONFIG(
        "BB-ORL-019",
        _packing_engines,
        (names.PACKING, names.ENGINES),
        "AssertionError: Only support `--packing_samples` with vLLM.; TypeError where the option is not given",
        PARSER.format("0.8.0 to 0.11.2"),
        fixed(vllm__num_engines=1),
    ),
    IN_CONFIG(
        "BB-ORL-020",
        _asleep,
        (names.ASYNC, "vllm.enable_sleep"),
        "AssertionError: Async RLHF is not supported with vllm_enable_sleep",
        PARSER.format("0.8.0 to 0.11.2"),
        fixed(vllm__enable_sleep=False),
    ),
    IN_CONFIG(
        "BB-ORL-018",
        _partial,
        ("train.partial_rollout_enable", names.ASYNC),
        "AssertionError: partial rollouts require async training",
        PARSER.format("0.9.7 to 0.11.2"),
        lambda facts: (fix_of(facts, {names.ASYNC: True}), fix_of(facts, {"train.partial_rollout_enable": False})),
        ">=0.9.7",
    ),
    IN_CONFIG(
        "BB-ORL-021",
        _evaluation_reward,
        ("eval.dataset", "reward.remote_url", "train.agent_func_path"),
        "AssertionError: `--eval_dataset` is only supported with `--remote_rm_url`",
        PARSER.format("0.8.0 to 0.11.2"),
        fixed(eval__dataset=None),
    ),
    IN_CONFIG(
        "BB-ORL-013",
        _oversampling,
        (names.GENERATION, names.ROLLOUT, names.ASYNC),
        "AssertionError: vllm_generate_batch_size > rollout_batch_size requires async training",
        PARSER.format("0.10.0 to 0.11.2"),
        _oversampling_fixes,
        ">=0.10.0",
    ),
    IN_CONFIG(
        "BB-ORL-014",
        _filter_range,
        (names.RANGE, names.CLIP_RANGE),
        "AssertionError: reward_clip_range[0] must be less than reward_clip_range[1]",
        PARSER.format("0.8.1 (of reward_clip_range itself), 0.8.1.post1 to 0.11.2"),
        _filter_range_fixes,
        ">=0.8.1",
    ),
    IN_CONFIG(
        "BB-ORL-015",
        _filter_reward,
        (names.FILTER, "reward.remote_url", "train.agent_func_path"),
        "AssertionError: remote_rm_url or agent_func_path must be specified when using dynamic filtering",
        PARSER.format("0.8.1 to 0.11.2"),
        fixed(algo__dynamic_filtering_enable=False),
        ">=0.8.1",
    ),
    IN_CONFIG(
        "BB-ORL-016",
        _filter_group,
        (names.FILTER, names.GROUP),
        "AssertionError: n_samples_per_prompt must be greater than 1 when using dynamic filtering",
        PARSER.format("0.8.1 to 0.11.2"),
        fixed(rollout__n_samples_per_prompt=2),
        ">=0.8.1",
    ),
    IN_CONFIG(
        "BB-ORL-026",
        _zero,
        (names.FORWARD, names.RING, names.TENSOR),
        "ZeroDivisionError: integer division or modulo by zero",
        PARSER.format("0.8.0 to 0.11.2 (0.8.0 leaves out tensor parallelism)"),
        _zero_fixes,
    ),
    IN_CONFIG(
        "BB-ORL-017",
        _enough_chunks,
        (names.ROLLOUT, names.GROUP, names.FORWARD, names.NODES, names.DEVICES),
        "AssertionError: The number of sample batches must be greater than or equal to the effective number of "
        "actor processes.",
        PARSER.format("0.8.0 to 0.11.2 (0.8.0 leaves out tensor parallelism)"),
        _chunk_minimum_fixes,
    ),
)
