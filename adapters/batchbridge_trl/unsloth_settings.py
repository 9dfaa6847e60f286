"""The settings of Unsloth's trainer that are not proven against the oracle: they are refused by name, in every mode.

Its own file: the table of refusals is read without Unsloth, TRL and torch, too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from batchbridge.kit import Request
from batchbridge.kit.refusals import on, setting

HARMLESS = frozenset({"UNSLOTH_GRPO_PREFIX_GROUPER", "UNSLOTH_GRPO_SEQ_PACKING", "UNSLOTH_GRPO_SEQ_PACKING_VERIFY"})
"""Variables of the environment that decide how its forward pass runs, and nothing of its loss."""
_PREFIX = "UNSLOTH_GRPO_"
LOSSES = ("dapo", "bnpo", "grpo", "dr_grpo")
"""Its loss types whose weights were measured."""
_OFF = ("0", "false", "no", "off")


def objections(trainer: Any, request: Request) -> Iterator[str]:
    """The settings of a trainer of Unsloth's that are not proven, each with what to do about it."""
    args = trainer.args
    if trainer.accelerator.num_processes > 1:
        yield "it runs on several processes: use one"
    if getattr(trainer, "is_deepspeed_enabled", False) or getattr(trainer, "is_fsdp_enabled", False):
        yield "DeepSpeed or FSDP shards it: leave them out"
    if trainer.use_vllm:
        yield "vLLM generates (use_vllm, fast_inference): set use_vllm=False"
    if getattr(trainer, "_is_vlm", False):
        yield "its model reads images: use one that reads text only"
    if getattr(trainer, "tools", None):
        yield "it calls tools: leave them out"
    if trainer.beta and request.mode != "observe":
        yield "its KL term is cut off at 10 for each token, which no specification says: set beta=0"
    if args.loss_type not in LOSSES:
        yield f"loss_type={args.loss_type}: use {', '.join(LOSSES)}"
    for name, without in (
        ("entropy_coef", 0.0),
        ("use_adaptive_entropy", False),
        ("top_entropy_quantile", 1.0),
        ("off_policy_mask_threshold", None),
        ("router_aux_loss_coef", 0.0),
    ):
        if getattr(args, name, without) not in (without, None):
            yield f"{name}={getattr(args, name)}: set it to {without}"
    if request.padding == "free":
        yield 'padding="free": it packs rows by itself, wrap it without'
    padding, ends = trainer.processing_class.pad_token_id, trainer.processing_class.eos_token_id
    if padding == ends:
        yield (
            "padding and the end of a text are one token, which its loss leaves out of every completion: give the "
            "tokenizer a pad_token of its own"
        )
    for name in sorted(name for name in os.environ if name.startswith(_PREFIX)):
        if name not in HARMLESS and os.environ[name].lower() not in ("", *_OFF):
            yield f"{name}={os.environ[name]} is set: unset it"


def foreseen_objections(request: Request) -> bool | None:
    """Whether what settings say of a run is among what `objections` would; None: they leave it open."""
    reading = request.reading
    several = reading.spec is not None and (reading.spec.topology.world_size or 1) > 1
    if several or setting(reading, "beta") or setting(reading, "loss_type") not in LOSSES:
        return True
    return on(request, "use_vllm")
