"""Error texts of EasyR1; see `Adapter.error_texts`."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from batchbridge import Fix
from batchbridge.kit import Ask, ErrorText, Numbers
from batchbridge.kit.error_texts import divisors, multiples, setting

_text = functools.partial(ErrorText, framework="easyr1")
_GLOBAL = Ask(name="global", question="worker.actor.global_batch_size (prompts)")
_DEVICES = Ask(name="devices", question="devices that hold copies of the policy (data-parallel size)")
_SAMPLES = Ask(name="n", question="worker.rollout.n (completions per prompt)")
_CHECKS = "EasyR1 0.3.0 to 0.3.3.dev0 RayPPOTrainer.__init__ and FSDPWorker.__init__"


def _micro(n: Numbers) -> Iterator[Fix]:
    share = n["global"] * n["n"] // n["devices"]
    legal = divisors(share, n["micro"]) if share else []
    yield from setting("worker.actor.micro_batch_size_per_device_for_update", *legal)


def _easyr1_rollout(n: Numbers) -> Iterator[Fix]:
    yield from setting("worker.actor.global_batch_size", *divisors(n["rollout"], n["global"]))
    yield from setting("data.rollout_batch_size", *multiples(n["global"], n["rollout"]))


TEXTS: tuple[ErrorText, ...] = (
    _text(
        name="easyr1-rollout-of-global",
        versions=">=0.3",
        pattern=r"[Rr]ollout batch size must be divisible by actor global batch size",
        rule="data.rollout_batch_size (prompts per rollout) is a multiple of worker.actor.global_batch_size (prompts "
        "per optimizer step)",
        meaning="the last optimizer step of a rollout would be smaller",
        phase="construction",
        source="EasyR1 RayPPOTrainer.__init__",
        neighbours=_easyr1_rollout,
        asks=(Ask(name="rollout", question="data.rollout_batch_size (prompts)"), _GLOBAL),
    ),
    _text(
        name="easyr1-offload-with-accumulation",
        versions=">=0.3",
        pattern=r"[Cc]annot use FSDP's CPU offload when gradient accumulation is enabled",
        rule="with CPU offload each device takes its share of an optimizer step in one micro-batch",
        meaning="FSDP cannot add up gradients that it moves to the CPU; set the micro-batch to the device's share, "
        "global_batch_size x rollout.n / devices, or turn enable_cpu_offload off",
        phase="worker_start",
        source="EasyR1 FSDPWorker",
        neighbours=lambda n: setting(
            "worker.actor.micro_batch_size_per_device_for_update",
            *([n["global"] * n["n"] // n["devices"]] if n["devices"] else []),
        ),
        asks=(_GLOBAL, _SAMPLES, _DEVICES),
    ),
    _text(
        name="division-by-zero-share",
        versions="EasyR1, verl and their forks (Python's own text, which has many causes)",
        pattern=r"ZeroDivisionError: integer division or modulo by zero",
        rule="global_batch_size (prompts) x rollout.n is at least the devices",
        meaning="if it comes from a batch setting: a share per device was rounded down to 0, and something is divided "
        "by it. Any other division by zero reads the same",
        phase="worker_start",
        source="dvlab-research/Seg-Zero issue 65",
        neighbours=lambda n: setting("worker.actor.global_batch_size", -(-n["devices"] // n["n"]) if n["n"] else 1),
        asks=(_DEVICES, _SAMPLES),
    ),
    _text(
        name="easyr1-group-of-one",
        versions=">=0.3",
        pattern=r"GRPO and RLOO algorithm need `?config\.worker\.rollout\.n > 1`?",
        rule="worker.rollout.n (completions per prompt) is at least 2 with grpo and rloo",
        meaning="one completion has nothing to be compared with",
        phase="construction",
        source=_CHECKS,
        neighbours=lambda n: setting("worker.rollout.n", 2),
    ),
    _text(
        name="easyr1-micro-of-share",
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
    _text(
        name="easyr1-nothing-per-device",
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
