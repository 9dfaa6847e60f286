"""Keeps every optimizer step of processes that train with DeepSpeed where `BATCHBRIDGE_STEPS` asks for it; a critic's
in a folder of their own, see `batchbridge_on_cpu.valuing`.

For testing kits, which call `after_engine` with `deepspeed.runtime.engine` once it is imported.

Source: deepspeed 0.19.6 runtime/engine.py, DeepSpeedEngine._take_model_step: once per accumulation window.
"""

from __future__ import annotations

from typing import Any


def after_engine(module: Any) -> None:
    """Wraps the native optimizer step."""
    import torch

    from batchbridge.testing.snapshots import StepKeeper, flat
    from batchbridge_on_cpu.valuing import keeper_of

    native = module.DeepSpeedEngine._take_model_step
    kept: dict[str, StepKeeper | None] = {}

    def take_model_step(self: Any, *arguments: Any, **options: Any) -> Any:
        from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_grad

        keeper = keeper_of(self.module, kept, writes=torch.distributed.get_rank() == 0)
        if keeper is None:
            return native(self, *arguments, **options)
        parameters = list(self.module.parameters())

        def values() -> torch.Tensor:
            return flat(safe_get_full_fp32_param(p) if hasattr(p, "ds_id") else p for p in parameters)

        return keeper.around(
            lambda: flat(safe_get_full_grad(p) for p in parameters),
            values,
            lambda: native(self, *arguments, **options),
        )

    module.DeepSpeedEngine._take_model_step = take_model_step
