"""Error texts of EasyR1 beside those that `batchbridge doctor` itself knows; see `Adapter.error_texts`."""

from __future__ import annotations

from collections.abc import Iterator

from batchbridge.between.doctor import Ask, ErrorText, Numbers, divisors, setting
from batchbridge.findings import Fix

_GLOBAL = Ask(name="global", question="worker.actor.global_batch_size (prompts)")
_SAMPLES = Ask(name="n", question="worker.rollout.n (completions per prompt)")
_DEVICES = Ask(name="devices", question="devices")
_CHECKS = "EasyR1 0.3.0 to 0.3.3.dev0 RayPPOTrainer.__init__ and FSDPWorker.__init__"


def _micro(n: Numbers) -> Iterator[Fix]:
    share = n["global"] * n["n"] // n["devices"]
    legal = divisors(share, n["micro"]) if share else []
    yield from setting("worker.actor.micro_batch_size_per_device_for_update", *legal)


TEXTS: tuple[ErrorText, ...] = (
    ErrorText(
        name="easyr1-group-of-one",
        framework="easyr1",
        versions=">=0.3",
        pattern=r"GRPO and RLOO algorithm need `?config\.worker\.rollout\.n > 1`?",
        rule="worker.rollout.n (completions per prompt) is at least 2 with grpo and rloo",
        meaning="one completion has nothing to be compared with",
        phase="construction",
        source=_CHECKS,
        neighbours=lambda n: setting("worker.rollout.n", 2),
    ),
    ErrorText(
        name="easyr1-micro-of-share",
        framework="easyr1",
        versions=">=0.3",
        pattern=r"actor global batch size per device must be divisible by the micro batch size",
        rule="worker.actor.global_batch_size (prompts) x worker.rollout.n / devices, rounded down (completions per "
        "device), is a multiple of micro_batch_size_per_device_for_update (completions)",
        meaning="the last micro-batch would be smaller; it is asked for with dynamic_batching, too",
        phase="worker_start",
        source=_CHECKS,
        neighbours=_micro,
        asks=(_GLOBAL, _SAMPLES, _DEVICES, Ask(name="micro", question="micro_batch_size_per_device_for_update")),
    ),
    ErrorText(
        name="easyr1-nothing-per-device",
        framework="easyr1",
        versions=">=0.3",
        pattern=r"actor global batch size \* ulysses size must be larger than num gpus",
        rule="worker.actor.global_batch_size (prompts) x worker.rollout.n x ulysses size is at least the devices",
        meaning="the share of a device is rounded down to nothing",
        phase="worker_start",
        source=_CHECKS,
        neighbours=lambda n: setting("worker.actor.global_batch_size", -(-n["devices"] // n["n"])),
        asks=(_DEVICES, _SAMPLES),
    ),
)
