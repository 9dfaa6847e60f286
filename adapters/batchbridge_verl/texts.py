"""Error texts of verl beside those that `batchbridge doctor` itself knows; see `Adapter.error_texts`."""

from __future__ import annotations

from collections.abc import Iterator

from batchbridge.between.doctor import Ask, ErrorText, Numbers, divisors, multiples, pattern, setting, smallest_factor
from batchbridge.findings import Fix

_MINI = "actor_rollout_ref.actor.ppo_mini_batch_size"
_MICRO = "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"
_SAMPLES = Ask(name="n", question="rollout.n (completions per prompt)")


def _step(n: Numbers) -> Iterator[Fix]:
    """`mini` is in completions here: prompts x rollout.n."""
    unit = smallest_factor(n["replicas"], n["n"])
    yield from setting(_MINI, *multiples(unit, n["mini"] // n["n"]))


def _micro(n: Numbers) -> Iterator[Fix]:
    share, rest = divmod(n["mini"] * n["n"], n["devices"])
    if share and not rest:
        yield from setting(_MICRO, *divisors(share, n["micro"]))
    yield from setting(_MINI, *multiples(smallest_factor(n["micro"] * n["devices"], n["n"]), n["mini"]))


def _parallel(n: Numbers) -> Iterator[Fix]:
    unit = n["tensor"] * n["context"]
    yield from (Fix(f"{count} devices") for count in multiples(unit, n["devices"]))


TEXTS: tuple[ErrorText, ...] = (
    ErrorText(
        name="verl-step-of-replicas",
        framework="verl",
        versions=">=0.8",
        pattern=pattern(r"mini_batch_size=#,? (?:and )?self\.engine\.get_data_parallel_size\(\)=#", "mini", "replicas"),
        rule="ppo_mini_batch_size (prompts) x rollout.n (completions of an optimizer step) is a multiple of the "
        "data-parallel size",
        meaning="a step cannot be shared out to the replicas; nothing checks it before the first update",
        phase="optimizer_step",
        source="verl 0.9.1 engine_workers.py:267",
        neighbours=_step,
        asks=(_SAMPLES,),
    ),
    ErrorText(
        name="verl-micro-of-share",
        framework="verl",
        versions=">=0.8",
        pattern=r"data size must be divisible by micro_batch_size_per_gpu",
        rule="ppo_mini_batch_size x rollout.n / data-parallel size (completions per device) is a multiple of "
        "ppo_micro_batch_size_per_gpu (completions)",
        meaning="the last micro-batch of a device would be smaller; nothing checks it before the first update",
        phase="optimizer_step",
        source="verl 0.9.1 workers/engine/utils.py:124",
        neighbours=_micro,
        asks=(
            Ask(name="mini", question="ppo_mini_batch_size (prompts)"),
            Ask(name="micro", question="ppo_micro_batch_size_per_gpu (completions)"),
            _SAMPLES,
            Ask(name="devices", question="devices that hold copies of the policy (data-parallel size)"),
        ),
    ),
    ErrorText(
        name="verl-no-micro-batch",
        framework="verl",
        versions=">=0.4",
        pattern=r"\[(?:actor|critic|reward_model|actor_rollout_ref\.\w{1,20})\] Please set at least one of",
        rule="each of actor, rollout, reference and critic has a micro-batch in completions per device, or dynamic "
        "batches in tokens",
        meaning="verl has no default for it",
        phase="config",
        source="verl 0.4.0 to 0.9.1 validate_config and the configuration's dataclasses",
        neighbours=lambda n: (
            Fix("set its ..._micro_batch_size_per_gpu (completions per device)"),
            Fix("set use_dynamic_bsz (log_prob_use_dynamic_bsz for the rollout and the reference) to True"),
        ),
    ),
    ErrorText(
        name="verl-devices-of-parallel-sizes",
        framework="verl",
        versions=">=0.4",
        pattern=pattern(
            r"n_gpus \(#\) must be divisible by model_parallel_size \(#\) times context_parallel_size \(#\)",
            "devices",
            "tensor",
            "context",
        ),
        rule="the devices are a multiple of tensor x pipeline x context parallelism",
        meaning="a replica of the policy would have no whole set of devices",
        phase="config",
        source="verl validate_config, Megatron",
        neighbours=_parallel,
    ),
)
