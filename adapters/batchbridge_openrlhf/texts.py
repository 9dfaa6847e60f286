"""Texts that OpenRLHF prints and no rule is about; see `Adapter.error_texts`."""

from __future__ import annotations

import functools

from batchbridge import Fix
from batchbridge.kit import ErrorText
from batchbridge.kit.error_texts import pattern, setting

_text = functools.partial(ErrorText, framework="openrlhf")


TEXTS: tuple[ErrorText, ...] = (
    _text(
        name="deepspeed-micro-batch-zero",
        versions="all (DeepSpeed's own assertion)",
        pattern=pattern(r"Micro batch size per gpu: # has to be greater than 0", "micro"),
        rule="train_batch_size (completions per optimizer step) is at least data-parallel size x accumulation",
        meaning="DeepSpeed divides the train batch by devices and accumulation, rounded down: nothing is left for a "
        "device",
        phase="worker_start",
        source="deepspeed runtime/config.py DeepSpeedConfig._batch_assertion; LIN-SHANG/InstructERC issue 16",
        neighbours=lambda n: (Fix("a larger train batch, fewer devices, or a smaller accumulation"),),
    ),
    _text(
        name="openrlhf-engines-of-ranks",
        versions="early 2025 (no release that is read has it)",
        pattern=r"assert actor_world_size % args\.vllm_num_engines == 0",
        rule="the devices of the actor (actor_num_nodes x actor_num_gpus_per_node) are a multiple of vllm_num_engines",
        meaning="early releases gave each engine the rollouts of equally many ranks",
        phase="construction",
        source="OpenRLHF/OpenRLHF issue 760",
        neighbours=lambda n: (Fix("a vllm_num_engines that divides the actor's devices"),),
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
