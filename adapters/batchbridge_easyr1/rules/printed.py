"""The words of `doctor` about a text that EasyR1 prints and a rule is about, beyond the rule's row; see `Rule.text`."""

from __future__ import annotations

from collections.abc import Iterator

from batchbridge import Fix
from batchbridge.kit import Ask, ErrorText, Numbers
from batchbridge.kit.error_texts import divisors, multiples, setting

_GLOBAL = Ask(name="global", question="worker.actor.global_batch_size (prompts)")

DEVICES = Ask(name="devices", question="devices that hold copies of the policy (data-parallel size)")

SAMPLES = Ask(name="n", question="worker.rollout.n (completions per prompt)")


def _micro(n: Numbers) -> Iterator[Fix]:
    share = n["global"] * n["n"] // n["devices"]
    legal = divisors(share, n["micro"]) if share else []
    yield from setting("worker.actor.micro_batch_size_per_device_for_update", *legal)


def _easyr1_rollout(n: Numbers) -> Iterator[Fix]:
    yield from setting("worker.actor.global_batch_size", *divisors(n["rollout"], n["global"]))
    yield from setting("data.rollout_batch_size", *multiples(n["global"], n["rollout"]))


ROLLOUT_OF_GLOBAL = ErrorText(
    name="easyr1-rollout-of-global",
    rule="data.rollout_batch_size (prompts per rollout) is a multiple of worker.actor.global_batch_size (prompts "
    "per optimizer step)",
    meaning="the last optimizer step of a rollout would be smaller",
    neighbours=_easyr1_rollout,
    asks=(Ask(name="rollout", question="data.rollout_batch_size (prompts)"), _GLOBAL),
)

OFFLOAD_WITH_ACCUMULATION = ErrorText(
    name="easyr1-offload-with-accumulation",
    rule="with CPU offload each device takes its share of an optimizer step in one micro-batch",
    meaning="FSDP cannot add up gradients that it moves to the CPU; set the micro-batch to the device's share, "
    "global_batch_size x rollout.n / devices, or turn enable_cpu_offload off",
    neighbours=lambda n: setting(
        "worker.actor.micro_batch_size_per_device_for_update",
        *([n["global"] * n["n"] // n["devices"]] if n["devices"] else []),
    ),
    asks=(_GLOBAL, SAMPLES, DEVICES),
)

GROUP_OF_ONE = ErrorText(
    name="easyr1-group-of-one",
    rule="worker.rollout.n (completions per prompt) is at least 2 with grpo and rloo",
    meaning="one completion has nothing to be compared with",
    neighbours=lambda n: setting("worker.rollout.n", 2),
)

MICRO_OF_SHARE = ErrorText(
    name="easyr1-micro-of-share",
    rule="worker.actor.global_batch_size (prompts) x worker.rollout.n / devices, rounded down (completions per "
    "device), is a multiple of micro_batch_size_per_device_for_update (completions)",
    meaning="the last micro-batch would be smaller; it is asked for with dynamic_batching, too",
    neighbours=_micro,
    asks=(_GLOBAL, SAMPLES, DEVICES, Ask(name="micro", question="micro_batch_size_per_device_for_update")),
)

NOTHING_PER_DEVICE = ErrorText(
    name="easyr1-nothing-per-device",
    rule="worker.actor.global_batch_size (prompts) x worker.rollout.n x ulysses size is at least the devices",
    meaning="the share of a device is rounded down to nothing",
    neighbours=lambda n: setting("worker.actor.global_batch_size", -(-n["devices"] // n["n"])),
    asks=(DEVICES, SAMPLES),
)
