"""Texts that OpenRLHF prints and no rule is about; see `Adapter.error_texts`."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from batchbridge import Fix
from batchbridge.kit import Ask, ErrorText, Numbers
from batchbridge.kit.error_texts import pattern, setting
from batchbridge_openrlhf.rules.printed import DEVICES

_text = functools.partial(ErrorText, framework="openrlhf")


def _accumulation_above_zero(n: Numbers) -> Iterator[Fix]:
    yield from setting("train_batch_size", n["devices"] * n["micro"])


TEXTS: tuple[ErrorText, ...] = (
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
        codes=("BB-ORL-034",),
        asks=(DEVICES, Ask(name="micro", question="micro_train_batch_size (completions per device)")),
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
