"""The words of `doctor` about a text that OpenRLHF prints and a rule is about, beyond the row; see `Rule.text`."""

from __future__ import annotations

from collections.abc import Iterator

from batchbridge import Fix
from batchbridge.kit import Ask, ErrorText, Numbers
from batchbridge.kit.error_texts import devices, divisors, multiples, pattern, setting

DEVICES = Ask(name="devices", question="devices that hold copies of the policy (data-parallel size)")


def _chunks(n: Numbers) -> Iterator[Fix]:
    most = n["rollout"] * n["n"] // n["devices"]
    yield from setting("rollout.micro_batch_size", *([most] if most else []))


def _deepspeed_batch(n: Numbers) -> Iterator[Fix]:
    unit = n["micro"] * n["devices"]
    for size in multiples(unit, n["train"]):
        yield Fix(f"train_batch_size = {size} (accumulation {size // unit})", {"train_batch_size": size})
    if n["train"] and n["devices"] and n["train"] % n["devices"] == 0:
        yield from setting("micro_train_batch_size", *divisors(n["train"] // n["devices"], n["micro"]))
    if n["train"] and n["micro"] and n["train"] % n["micro"] == 0:
        yield from devices(*divisors(n["train"] // n["micro"], n["devices"]))


def _accumulation_above_zero(n: Numbers) -> Iterator[Fix]:
    yield from setting("train_batch_size", n["devices"] * n["micro"])


DEEPSPEED_BATCH = ErrorText(
    name="deepspeed-batch",
    versions="all (DeepSpeed's own assertion)",
    pattern=pattern(
        r"train_batch_size is not equal to micro_batch_per_gpu \* gradient_acc_step \* world_size # != # \* # \* #",
        "train",
        "micro",
        "accumulation",
        "devices",
    ),
    rule="train_batch_size (completions per optimizer step) is micro_train_batch_size x accumulation x "
    "data-parallel size: a multiple of micro_train_batch_size x data-parallel size",
    meaning="accumulation is a quotient rounded down, and the product is no longer the train batch; often after "
    "one device was lost or kept for something else",
    source="OpenRLHF/OpenRLHF issue 346",
    neighbours=_deepspeed_batch,
    counts={"train": "completions_per_step", "devices": "devices"},
)

SAMPLE_BATCHES = ErrorText(
    name="openrlhf-sample-batches",
    rule="rollout.batch_size (prompts) x n_samples_per_prompt / rollout.micro_batch_size (micro_rollout_batch_size "
    "up to 0.10.1), rounded down, is at least the data-parallel size",
    meaning="some replicas would get no micro-batch to score",
    neighbours=_chunks,
    asks=(
        Ask(name="rollout", question="rollout.batch_size (prompts)"),
        Ask(name="n", question="n_samples_per_prompt"),
        DEVICES,
    ),
)

FILTER_NEEDS_GROUPS = ErrorText(
    name="openrlhf-filter-needs-groups",
    rule="dynamic filtering judges the completions of a prompt together: n_samples_per_prompt is at least 2",
    meaning="a group of one has no mean score to be judged by",
    neighbours=lambda n: setting("rollout.n_samples_per_prompt", 2),
)

FILTER_NEEDS_SCORES = ErrorText(
    name="openrlhf-filter-needs-scores",
    rule="dynamic filtering needs scores while it generates: a remote reward or an agent function",
    meaning="a reward model in this job scores only after the rollout is complete",
    neighbours=lambda n: (Fix("give --reward.remote_url (a URL or a Python file) or --train.agent_func_path"),),
)

ACCUMULATION_ZERO = ErrorText(
    name="deepspeed-accumulation-zero",
    versions="all (DeepSpeed's own assertion)",
    pattern=pattern(r"Gradient accumulation steps: # has to be greater than 0", "accumulation"),
    rule="train_batch_size (completions per optimizer step) is at least micro_train_batch_size x data-parallel size",
    meaning="one micro-batch on every device is more than the whole optimizer step",
    source="OpenRLHF/OpenRLHF issues 434 and 584",
    neighbours=_accumulation_above_zero,
    asks=(DEVICES, Ask(name="micro", question="micro_train_batch_size (completions per device)")),
)
