"""What OpenRLHF's parser refuses, one row per check, in the order in which it checks.

The checks stand in the program's main block, mostly as assertions: `python -O`, or a call of `train(args)` from
elsewhere, skips them. Their order is the same in every release that was read.
"""

from __future__ import annotations

from collections.abc import Callable

from batchbridge import Fix
from batchbridge.kit import LARGEST
from batchbridge.kit.rule_table import IN_CONFIG
from batchbridge_openrlhf.facts import (
    ASYNC,
    DEVICES,
    ENGINES,
    ESTIMATOR,
    FILTER,
    FORWARD,
    GENERATION,
    GROUP,
    NODES,
    PACKING,
    PARSER,
    RING,
    ROLLOUT,
    TENSOR,
    Facts,
    Rule,
    below_one_fixes,
    fix_of,
    fixed,
)
from batchbridge_openrlhf.settings import holds


def _needs_group(*estimators: str) -> Callable[[Facts], str | None]:
    def test(facts: Facts) -> str | None:
        if facts[ESTIMATOR] not in estimators or facts.sizes.group > 1:
            return None
        return (
            f"{facts.said(ESTIMATOR)} compares the completions of a prompt: {facts.name(GROUP)} = {facts.sizes.group} "
            "must be above 1"
        )

    return test


def _oversampling(facts: Facts) -> str | None:
    generation = facts.sizes.generation
    if generation is None or generation <= facts.sizes.rollout_prompts or facts[ASYNC]:
        return None
    return (
        f"{facts.said(GENERATION)} (prompts) is above {facts.said(ROLLOUT)} (prompts), which needs {facts.name(ASYNC)}"
    )


def _filter_range(facts: Facts) -> str | None:
    # 0.8.1 looks at the bounds of the reward instead.
    identity = "reward.clip_range" if holds("<0.8.1.post1", facts.version) else "algo.dynamic_filtering_range"
    low, high = facts[identity]
    if not facts.sizes.filtered or low < high:
        return None
    return f"{facts.name(identity)} = {low:g} {high:g}: the first must be below the second"


def _filter_range_fixes(facts: Facts) -> tuple[Fix, ...]:
    if holds("<0.8.1.post1", facts.version):
        return (fix_of(facts, {"reward.clip_range": (-10.0, 10.0)}),)
    return (fix_of(facts, {"algo.dynamic_filtering_range": (0.0, 1.0)}),)


def _filter_reward(facts: Facts) -> str | None:
    # A mapping may be a part of the options: rewards are added to it.
    open_yet = not facts.whole and facts["reward.model_name_or_path"] is None
    if not facts.sizes.filtered or facts.remote_reward or open_yet:
        return None
    return f"{facts.name(FILTER)} needs scores while it generates: a remote reward or an agent function"


def _filter_group(facts: Facts) -> str | None:
    if not facts.sizes.filtered or facts.sizes.group > 1:
        return None
    return f"{facts.name(FILTER)} filters groups: {facts.name(GROUP)} = {facts.sizes.group} must be above 1"


def _divisors(facts: Facts) -> tuple[str, ...]:
    """What the last check divides by; 0.8.0 leaves out tensor parallelism."""
    return (FORWARD, RING) if holds("<0.8.1", facts.version) else (FORWARD, RING, TENSOR)


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
    return (
        f"{facts.name(ROLLOUT)} {s.rollout_prompts} x {facts.name(GROUP)} {s.group} = {completions} completions make "
        f"{completions // s.forward_micro} batches of {facts.name(FORWARD)} = {s.forward_micro}, fewer than the "
        f"{_scorers(facts)} replicas that score them"
    )


def _chunk_minimum_fixes(facts: Facts) -> tuple[Fix, ...]:
    s = facts.sizes
    if not s.positive:
        return below_one_fixes(facts)
    replicas = max(_scorers(facts), 1)
    completions = s.group * s.rollout_prompts
    fixes = [fix_of(facts, {FORWARD: completions // replicas})] if completions >= replicas else []
    prompts = -(-replicas * s.forward_micro // s.group)
    return (*fixes, *([fix_of(facts, {ROLLOUT: prompts})] if prompts <= LARGEST else []))


def _partial(facts: Facts) -> str | None:
    if not facts["train.partial_rollout_enable"] or facts[ASYNC]:
        return None
    return f"{facts.name('train.partial_rollout_enable')} needs {facts.name(ASYNC)}"


def _packing_engines(facts: Facts) -> str | None:
    if not facts.packs or (facts[ENGINES] or 0) > 0:
        return None
    by = [facts.name(PACKING)] if facts[PACKING] else []
    by += [facts.said(RING)] if not by and facts.sizes.ring > 1 else []
    by += [facts.name("train.dynamic_batch_enable")] if not by else []
    return f"{by[0]} packs samples, which needs vLLM engines: {facts.name(ENGINES)} = {facts[ENGINES]}"


def _asleep(facts: Facts) -> str | None:
    # Without colocation the parser turns sleeping off by itself.
    if not (facts[ASYNC] and facts["vllm.enable_sleep"] and facts["train.colocate_all"]):
        return None
    return f"{facts.name(ASYNC)} cannot run with {facts.name('vllm.enable_sleep')}"


def _evaluation_reward(facts: Facts) -> str | None:
    if not facts["eval.dataset"] or facts.remote_reward:
        return None
    return f"{facts.name('eval.dataset')} needs a remote reward or an agent function"


def _no_reward(facts: Facts) -> str | None:
    # A mapping may be a part of the options: models and data are added to it.
    models = (facts["critic.model_name_or_path"], facts["reward.model_name_or_path"])
    if not facts.whole or not facts.has_critic or facts.remote_reward or models != (None, None):
        return None
    return (
        f"{facts.said(ESTIMATOR)} trains a critic, and no {facts.name('reward.model_name_or_path')}, "
        f"{facts.name('critic.model_name_or_path')} or {facts.name('reward.remote_url')} says from which model"
    )


def _images(facts: Facts) -> str | None:
    if facts["data.max_images_per_prompt"] <= 0:
        return None
    # With a remote reward the critic is the actor's model; where a command names none, there is no critic yet.
    nameless = facts.whole and facts.remote_reward and facts["actor.model_name_or_path"] is None
    critic = facts.has_critic and not (nameless and facts["critic.model_name_or_path"] is None)
    broken = [facts.said(ESTIMATOR) + " trains a critic"] if critic else []
    broken += [f"{facts.name(PACKING)} loses which image belongs to which text"] if facts[PACKING] else []
    return f"with images: {' and '.join(broken)}" if broken else None


def _threshold(facts: Facts) -> str | None:
    bounds = facts["algo.advantage.is_correction_threshold"]
    if len(bounds) <= 2:
        return None
    return f"{facts.name('algo.advantage.is_correction_threshold')} has {len(bounds)} numbers: HIGH, or LOW HIGH"


def _threshold_fixes(facts: Facts) -> tuple[Fix, ...]:
    name = "algo.advantage.is_correction_threshold"
    return (fix_of(facts, {name: facts[name][:2]}),)


def _image_fixes(facts: Facts) -> tuple[Fix, ...]:
    return (fix_of(facts, {ESTIMATOR: "reinforce_baseline", PACKING: False, GROUP: max(facts.sizes.group, 2)}),)


PARSER_RULES: tuple[Rule, ...] = (
    IN_CONFIG(
        "BB-ORL-023",
        _threshold,
        ("algo.advantage.is_correction_threshold",),
        "AssertionError: --algo.advantage.is_correction_threshold takes HIGH or LOW HIGH",
        PARSER.format("0.11.2"),
        _threshold_fixes,
        ">=0.11.2",
    ),
    IN_CONFIG(
        "BB-ORL-025",
        _no_reward,
        (ESTIMATOR, "reward.model_name_or_path", "reward.remote_url"),
        "AttributeError: 'NoneType' object has no attribute 'split'",
        PARSER.format("0.8.0 to 0.11.2"),
        fixed(algo__advantage__estimator="reinforce"),
    ),
    IN_CONFIG(
        "BB-ORL-011",
        _needs_group("rloo", "reinforce_baseline", "group_norm"),
        (ESTIMATOR, GROUP),
        "AssertionError: requires n_samples_per_prompt > 1",
        PARSER.format("0.8.0 to 0.10.4"),
        fixed(rollout__n_samples_per_prompt=2),
        "<0.11",
    ),
    IN_CONFIG(
        "BB-ORL-012",
        _needs_group("rloo", "reinforce_baseline", "group_norm", "dr_grpo"),
        (ESTIMATOR, GROUP),
        "AssertionError: requires n_samples_per_prompt > 1",
        PARSER.format("0.11.0 to 0.11.2"),
        fixed(rollout__n_samples_per_prompt=2),
        ">=0.11",
    ),
    IN_CONFIG(
        "BB-ORL-022",
        _images,
        ("data.max_images_per_prompt", ESTIMATOR, PACKING),
        "AssertionError: VLM training does not support critic model, or --packing_samples",
        PARSER.format("0.10.0 to 0.11.2"),
        _image_fixes,
        ">=0.10.0",
    ),
    IN_CONFIG(
        "BB-ORL-019",
        _packing_engines,
        (PACKING, ENGINES),
        "AssertionError: Only support `--packing_samples` with vLLM.; TypeError where the option is not given",
        PARSER.format("0.8.0 to 0.11.2"),
        fixed(vllm__num_engines=1),
    ),
    IN_CONFIG(
        "BB-ORL-020",
        _asleep,
        (ASYNC, "vllm.enable_sleep"),
        "AssertionError: Async RLHF is not supported with vllm_enable_sleep",
        PARSER.format("0.8.0 to 0.11.2"),
        fixed(vllm__enable_sleep=False),
    ),
    IN_CONFIG(
        "BB-ORL-018",
        _partial,
        ("train.partial_rollout_enable", ASYNC),
        "AssertionError: partial rollouts require async training",
        PARSER.format("0.9.7 to 0.11.2"),
        lambda facts: (fix_of(facts, {ASYNC: True}), fix_of(facts, {"train.partial_rollout_enable": False})),
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
        (GENERATION, ROLLOUT, ASYNC),
        "AssertionError: vllm_generate_batch_size > rollout_batch_size requires async training",
        PARSER.format("0.10.0 to 0.11.2"),
        lambda facts: (fix_of(facts, {GENERATION: facts.sizes.rollout_prompts}), fix_of(facts, {ASYNC: True})),
        ">=0.10.0",
    ),
    IN_CONFIG(
        "BB-ORL-014",
        _filter_range,
        ("algo.dynamic_filtering_range", "reward.clip_range"),
        "AssertionError: reward_clip_range[0] must be less than reward_clip_range[1]",
        PARSER.format("0.8.1 (of reward_clip_range itself), 0.8.1.post1 to 0.11.2"),
        _filter_range_fixes,
        ">=0.8.1",
    ),
    IN_CONFIG(
        "BB-ORL-015",
        _filter_reward,
        (FILTER, "reward.remote_url", "train.agent_func_path"),
        "AssertionError: remote_rm_url or agent_func_path must be specified when using dynamic filtering",
        PARSER.format("0.8.1 to 0.11.2"),
        fixed(algo__dynamic_filtering_enable=False),
        ">=0.8.1",
    ),
    IN_CONFIG(
        "BB-ORL-016",
        _filter_group,
        (FILTER, GROUP),
        "AssertionError: n_samples_per_prompt must be greater than 1 when using dynamic filtering",
        PARSER.format("0.8.1 to 0.11.2"),
        fixed(rollout__n_samples_per_prompt=2),
        ">=0.8.1",
    ),
    IN_CONFIG(
        "BB-ORL-026",
        _zero,
        (FORWARD, RING, TENSOR),
        "ZeroDivisionError: integer division or modulo by zero",
        PARSER.format("0.8.0 to 0.11.2 (0.8.0 leaves out tensor parallelism)"),
        _zero_fixes,
    ),
    IN_CONFIG(
        "BB-ORL-017",
        _enough_chunks,
        (ROLLOUT, GROUP, FORWARD, NODES, DEVICES),
        "AssertionError: The number of sample batches must be greater than or equal to the effective number of "
        "actor processes.",
        PARSER.format("0.8.0 to 0.11.2 (0.8.0 leaves out tensor parallelism)"),
        _chunk_minimum_fixes,
    ),
)
