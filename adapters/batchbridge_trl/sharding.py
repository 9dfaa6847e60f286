"""Sharding of a running trainer: which settings of FSDP are refused, and when ranks exchange a step's gradients.

FSDP1, FSDP2 and DDP average gradients over all data ranks, replicas included, so that the step's factor is the same.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any

from batchbridge_trl import releases

FUSED_HEAD = ">=1.14"
"""Releases of TRL whose loss reads the language model head's weight and never calls the head."""
LONE_HEAD = (
    "the language model head is a unit of FSDP2 of its own, and from 1.14 on TRL reads its weight without running it: "
    "each rank trains its part of the head on its own completions alone, natively too; leave the head in one unit with "
    "the model or its last norm (no size_based_wrap, no Linear among transformer_layer_cls_to_wrap)"
)
"""The reason why a language model head of its own is refused; the gradient was 99 % off on two ranks."""


def deepspeed_configuration(trainer: Any) -> Mapping[str, Any]:
    """DeepSpeed's configuration as Accelerate has it; empty without DeepSpeed."""
    plugin = getattr(trainer.accelerator.state, "deepspeed_plugin", None)
    return {} if plugin is None else plugin.deepspeed_config


def without_sync(trainer: Any, model: Any) -> AbstractContextManager[None]:
    """The span in which a micro-batch before a step's last one is differentiated: ranks reduce as they do natively
    there.

    Whole gradients then wait on every rank for the last micro-batch; with Accelerate's `sync_each_batch` they are
    reduced in each, and what waits is sharded. Both are exact: sums commute. Source: accelerate 1.4.0 to 1.15.0
    Accelerator.no_sync; transformers 4.52.3 to 5.23.0 Trainer._run_epoch (_inner_training_loop).
    """
    accelerator = trainer.accelerator
    if accelerator.gradient_state.plugin_kwargs.get("sync_each_batch", False):
        return contextlib.nullcontext()
    # Accelerate knows nothing of a model that transformers sharded when it loaded it.
    if loaded_in_shards(trainer) and hasattr(model, "set_requires_gradient_sync"):
        deferred: AbstractContextManager[None] = trainer._defer_fsdp_gradient_reduction()
        return deferred
    without: AbstractContextManager[None] = accelerator.no_sync(model)
    return without


@contextlib.contextmanager
def exchanging(trainer: Any, model: Any, engine: Any, *, last: bool) -> Iterator[None]:
    """The span in which one micro-batch runs: gradients are exchanged, and by DeepSpeed's engine, where there is one,
    applied, only in the step's last one.

    Source: accelerate since 1.8.1 DeepSpeedEngineWrapper.backward hands its flag to the engine, and updates in the last
    micro-batch; before, it asks for an update in each, which the engine takes at its own boundary.
    """
    state = trainer.accelerator.gradient_state
    state._set_sync_gradients(last)
    try:
        if engine is not None:
            engine.set_gradient_accumulation_boundary(last)
        with contextlib.nullcontext() if last or engine is not None else without_sync(trainer, model):
            yield
    finally:
        state._set_sync_gradients(True)


def loaded_in_shards(trainer: Any) -> bool:
    """Whether transformers sharded the model when it loaded it (`distributed_config` of `from_pretrained`)."""
    return bool(getattr(trainer, "is_distributed_loading_by_transformers", False))


def is_asked_for_in_vain(trainer: Any, request: object = None) -> bool:
    """Whether the configuration asks for FSDP or DeepSpeed, and Accelerate has set up neither."""
    if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled or trainer.is_fsdp_xla_enabled:
        return False
    mesh = getattr(trainer.accelerator, "parallelism_config", None)
    return any(
        getattr(trainer.args, name, None) or os.environ.get(f"ACCELERATE_USE_{name.upper()}", "").lower() == "true"
        for name in ("fsdp", "deepspeed")
    ) or (not loaded_in_shards(trainer) and (getattr(mesh, "dp_shard_size", None) or 1) > 1)


def has_experts_or_stages(model: Any) -> bool:
    """Whether transformers, which sharded the model, put its experts or its layers on different ranks."""
    config = getattr(model.config, "distributed_config", None)
    return any((getattr(config, name, None) or 1) > 1 for name in ("ep_size", "pp_size"))


def has_lone_head(model: Any) -> bool:
    """Whether the head of the language model is a unit of FSDP2 of its own, under a loss that never calls it.

    Its weight is then read as a DTensor, and the gradient that comes back through `full_tensor()` is reduced by nobody.
    Source: trl 1.14.0 to 1.16.0 trainer/utils.py, add_fused_lm_head; seen on two ranks (torch 2.13.0).
    """
    head = (
        model.get_output_embeddings() if releases.has(FUSED_HEAD) and hasattr(model, "get_output_embeddings") else None
    )
    unit = getattr(head, "_get_fsdp_state", None)
    return head is not None and unit is not None and head.weight.requires_grad and len(unit()._modules) == 1
