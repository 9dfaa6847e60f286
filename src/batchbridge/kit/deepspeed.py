"""DeepSpeed's functions that a wrapped run depends on, for adapters of frameworks that train with its engine."""

from __future__ import annotations

from batchbridge.contract.evidence import Package

ENGINE = Package(
    "deepspeed",
    "deepspeed",
    control={
        "runtime/engine.py": (
            "DeepSpeedEngine._backward_epilogue",
            "DeepSpeedEngine._backward_post_hook",
            "DeepSpeedEngine._backward_prologue",
            "DeepSpeedEngine._scale_loss_by_gas",
            "DeepSpeedEngine._take_model_step",
            "DeepSpeedEngine.allreduce_gradients",
            "DeepSpeedEngine.backward",
            "DeepSpeedEngine.forward",
            "DeepSpeedEngine.get_global_grad_norm",
            "DeepSpeedEngine.is_gradient_accumulation_boundary",
            "DeepSpeedEngine.set_gradient_accumulation_boundary",
            "DeepSpeedEngine.step",
            "DeepSpeedEngine.was_step_applied",
            "DeepSpeedEngine.zero_grad",
        ),
        "runtime/zero/stage_1_and_2.py": (
            "DeepSpeedZeroOptimizer.average_tensor",
            "DeepSpeedZeroOptimizer.copy_grads_in_partition",
            "DeepSpeedZeroOptimizer.get_flat_partition",
            "DeepSpeedZeroOptimizer.independent_gradient_partition_epilogue",
            "DeepSpeedZeroOptimizer.reduce_independent_p_g_buckets_and_remove_grads",
            "DeepSpeedZeroOptimizer.reduce_ipg_grads",
            "DeepSpeedZeroOptimizer.step",
            "DeepSpeedZeroOptimizer.unscale_and_clip_grads",
        ),
    },
)
"""DeepSpeed's engine, whose accumulation the patches end. Open-Instruct's adapter has the same functions."""
