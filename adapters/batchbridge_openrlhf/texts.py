"""Error texts of OpenRLHF; see `Adapter.error_texts`."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from batchbridge import Fix
from batchbridge.kit import Ask, ErrorText, Numbers
from batchbridge.kit.error_texts import devices, divisors, multiples, pattern, setting

_text = functools.partial(ErrorText, framework="openrlhf")
_DEVICES = Ask(name="devices", question="devices that hold copies of the policy (data-parallel size)")
_PARSER = "openrlhf.cli.train_ppo_ray, releases {}"


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


TEXTS: tuple[ErrorText, ...] = (
    _text(
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
        phase="worker_start",
        source="OpenRLHF/OpenRLHF issue 346",
        neighbours=_deepspeed_batch,
    ),
    _text(
        name="deepspeed-accumulation-zero",
        versions="all (DeepSpeed's own assertion)",
        pattern=pattern(r"Gradient accumulation steps: # has to be greater than 0", "accumulation"),
        rule="train_batch_size (completions per optimizer step) is at least micro_train_batch_size x data-parallel "
        "size",
        meaning="one micro-batch on every device is more than the whole optimizer step",
        phase="worker_start",
        source="OpenRLHF/OpenRLHF issues 434 and 584",
        neighbours=_accumulation_above_zero,
        asks=(_DEVICES, Ask(name="micro", question="micro_train_batch_size (completions per device)")),
    ),
    _text(
        name="openrlhf-sample-batches",
        versions=">=0.8",
        pattern=r"number of sample batches must be greater than or equal to the effective number of",
        rule="rollout.batch_size (prompts) x n_samples_per_prompt / rollout.micro_batch_size (micro_rollout_batch_size "
        "up to 0.10.1), rounded down, is at least the data-parallel size",
        meaning="some replicas would get no micro-batch to score",
        phase="config",
        source=_PARSER.format("0.8.0 to 0.11.2"),
        neighbours=_chunks,
        asks=(
            Ask(name="rollout", question="rollout.batch_size (prompts)"),
            Ask(name="n", question="n_samples_per_prompt"),
            _DEVICES,
        ),
    ),
    _text(
        name="openrlhf-filter-needs-groups",
        versions=">=0.8.1",
        pattern=r"n_samples_per_prompt must be greater than 1 when using dynamic filtering",
        rule="dynamic filtering judges the completions of a prompt together: n_samples_per_prompt is at least 2",
        meaning="a group of one has no mean score to be judged by",
        phase="config",
        source=_PARSER.format("0.8.1 to 0.11.2"),
        neighbours=lambda n: setting("rollout.n_samples_per_prompt", 2),
    ),
    _text(
        name="openrlhf-filter-needs-scores",
        versions=">=0.8.1",
        pattern=r"remote_rm_url or agent_func_path must be specified when using dynamic filtering",
        rule="dynamic filtering needs scores while it generates: a remote reward or an agent function",
        meaning="a reward model in this job scores only after the rollout is complete",
        phase="config",
        source=_PARSER.format("0.8.1 to 0.11.2"),
        neighbours=lambda n: (Fix("give --reward.remote_url (a URL or a Python file) or --train.agent_func_path"),),
    ),
    _text(
        name="openrlhf-no-token",
        versions=">=0.9.8",
        pattern=r"merged_status\[k\] = value / denom",
        rule="every micro-batch (train.micro_batch_size completions on each rank) has a token to train on some rank",
        meaning="the metrics of a micro-batch are divided by its tokens, and it had none: an agent returned no action "
        "token, or nothing of the responses was left at data.max_len",
        phase="optimizer_step",
        source="openrlhf 0.9.8 to 0.11.2 ActorPPOTrainer.ppo_train",
        neighbours=lambda n: (
            Fix("return at least one action token for every completion"),
            Fix("leave room for responses: no prompt as long as data.max_len"),
        ),
    ),
    _text(
        name="openrlhf-two-boundaries",
        versions=">=0.8.11,<0.9.1",
        pattern=r"in zip\(self\.all_grad_tensors\[i\], avg_new\)",
        rule="with DeepSpeed 0.17.6 to 0.18.2, dynamic batches (train.dynamic_batch_enable, use_dynamic_batch up to "
        "0.10.1) need ZeRO-3 once an optimizer step has more than one micro-batch",
        meaning="DeepSpeed's ZeRO-1 and 2 take every backward pass for the last one of a step, and have let go of the "
        "gradients that the second one is added to. A newer DeepSpeed (0.18.3 or later) does not stop there, and "
        "trains on the last micro-batch's gradient alone",
        phase="optimizer_step",
        source="OpenRLHF/OpenRLHF issue 1131; deepspeed 0.17.6 to 0.18.2 runtime/zero/stage_1_and_2.py",
        neighbours=lambda n: (
            *setting("ds.zero_stage", 3),
            Fix("fixed micro-batches: leave out train.dynamic_batch_enable"),
            Fix("use DeepSpeed 0.17.5, with which gradients add up (without ds.adam_offload)"),
        ),
    ),
)
