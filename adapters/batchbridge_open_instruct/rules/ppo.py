"""The PPO script: what it refuses, and what it does silently."""

from __future__ import annotations

from operator import attrgetter, itemgetter

from batchbridge import Fix
from batchbridge.kit import nearest_numbers
from batchbridge.kit.rule_table import BUILDING, SILENT, RuleKind
from batchbridge_open_instruct.meaning import learners
from batchbridge_open_instruct.rules.row import (
    OLD,
    UNREAD,
    UNTRAINED,
    OpenInstructFacts,
    RuleSubject,
    no_steps,
    remove,
    ways,
)

LOCAL, SAMPLES, DEVICES = "local_rollout_batch_size", "number_samples_per_prompt", "actor_num_gpus_per_node"
MINI, MICRO = "local_mini_batch_size", "per_device_train_batch_size"


def _micro(facts: OpenInstructFacts) -> str | None:
    mini, micro = facts[MINI], facts[MICRO]
    if mini % micro == 0:
        return None
    return f"local_mini_batch_size {mini} is not a multiple of per_device_train_batch_size {micro}"


def _whole_micro(facts: OpenInstructFacts) -> tuple[int, ...]:
    return tuple(nearest_numbers(facts[MINI], multiple_of=facts[MICRO]))


def _share(facts: OpenInstructFacts) -> int:
    """Completions of a rollout on each learner."""
    return int(facts[LOCAL] * facts[SAMPLES])


def _mini(facts: OpenInstructFacts) -> str | None:
    if _share(facts) % facts[MINI] == 0:
        return None
    return (
        f"local_rollout_batch_size {facts[LOCAL]} (prompts) x number_samples_per_prompt {facts[SAMPLES]} = "
        f"{_share(facts)} completions per learner are not a multiple of local_mini_batch_size {facts[MINI]}"
    )


def _whole_mini(facts: OpenInstructFacts) -> tuple[int, ...]:
    return tuple(nearest_numbers(facts[MINI], divides=_share(facts)))


def _loss(facts: OpenInstructFacts) -> str | None:
    if learners(facts.native) == 1 and facts[MICRO] == facts[MINI]:
        return None
    return (
        f"the loss is the mean over the tokens of each micro-batch of {facts[MICRO]}, averaged over "
        "micro-batches and learners: the gradient depends on the split and on the world size"
    )


def _whole_steps(facts: OpenInstructFacts) -> tuple[Fix, ...]:
    """One micro-batch a step; the learners' means stay apart."""
    return ways(per_device_train_batch_size=itemgetter(MINI))(facts) if learners(facts.native) == 1 else ()


def _whitening(facts: OpenInstructFacts) -> str | None:
    if learners(facts.native) == 1:
        return None
    return "advantages are whitened over each learner's own completions: they depend on the world size"


def _mini_batches(facts: OpenInstructFacts) -> str | None:
    if "num_mini_batches" not in facts.given_places:
        return None
    return "num_mini_batches is overwritten: local_rollout_batch_size and local_mini_batch_size give it"


_RUNTIME = "calculate_runtime_args"
_LAST = ">=2025.11.3"

PPO_REFUSED = (
    RuleSubject("BB-OI-030", BUILDING, OLD, f"{_RUNTIME}, exact_div")(
        _micro, (MINI, MICRO), "ValueError", ways(local_mini_batch_size=_whole_micro)
    ),
    RuleSubject("BB-OI-031", BUILDING, OLD, f"{_RUNTIME}, exact_div", _LAST, core="BB108")(
        _mini, (LOCAL, SAMPLES, MINI), "ValueError", ways(local_mini_batch_size=_whole_mini)
    ),
    RuleSubject("BB-OI-032", BUILDING, OLD, _RUNTIME).when(
        {"whiten_rewards": [True], MINI: range(1, 8)},
        "whiten_rewards needs a local_mini_batch_size of at least 8, not {local_mini_batch_size}",
        "AssertionError: Per-rank minibatch size",
        ways(local_mini_batch_size=8, whiten_rewards=False),
    ),
    RuleSubject("BB-OI-033", RuleKind("warning", "optimizer_step"), OLD, "not validated in 9c2d44bec", "<2025.11.3")(
        _mini, (LOCAL, SAMPLES, MINI), fixes=ways(local_mini_batch_size=_whole_mini)
    ),
    RuleSubject("BB-OI-034", UNTRAINED, OLD, _RUNTIME)(
        no_steps, ("total_episodes", LOCAL), "0 training steps", ways(total_episodes=attrgetter("completions"))
    ),
)


PPO_SILENT = (
    RuleSubject("BB-OI-062", SILENT, OLD, "ppo_vllm_thread_ray_gtrl.py, masked_mean")(
        _loss, (MICRO, DEVICES), fixes=_whole_steps
    ),
    RuleSubject("BB-OI-063", SILENT, OLD, "ppo_vllm_thread_ray_gtrl.py, masked_whiten")(_whitening, (DEVICES, LOCAL)),
    RuleSubject("BB-OI-064", UNREAD, OLD, _RUNTIME, _LAST)(
        _mini_batches, ("num_mini_batches",), fixes=ways(remove("num_mini_batches"))
    ),
)
