"""DeepSpeed's engine, for adapters of frameworks that train with it: the functions that a wrapped run depends on, and
what its optimizer finds. Imports DeepSpeed only where a run has it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from batchbridge.contract.evidence import Package
from batchbridge.errors import CannotAttach
from batchbridge.kit.patches import Patches
from batchbridge.kit.proven import methods

if TYPE_CHECKING:
    from batchbridge.kit.gradient_sketches import Sketches

ENGINE = Package(
    "deepspeed",
    "deepspeed",
    control={
        "runtime/engine.py": (
            *methods("DeepSpeedEngine", "_backward_epilogue", "_backward_post_hook", "_backward_prologue"),
            *methods("DeepSpeedEngine", "_scale_loss_by_gas", "_take_model_step", "allreduce_gradients", "backward"),
            *methods("DeepSpeedEngine", "forward", "get_global_grad_norm", "is_gradient_accumulation_boundary"),
            *methods("DeepSpeedEngine", "set_gradient_accumulation_boundary", "step", "was_step_applied", "zero_grad"),
        ),
        "runtime/zero/stage_1_and_2.py": (
            *methods("DeepSpeedZeroOptimizer", "average_tensor", "copy_grads_in_partition", "get_flat_partition"),
            *methods("DeepSpeedZeroOptimizer", "independent_gradient_partition_epilogue"),
            *methods("DeepSpeedZeroOptimizer", "reduce_independent_p_g_buckets_and_remove_grads", "reduce_ipg_grads"),
            *methods("DeepSpeedZeroOptimizer", "step", "unscale_and_clip_grads"),
        ),
    },
)
"""DeepSpeed's engine, whose accumulation the patches end. Open-Instruct's adapter has the same functions."""


def whole_size(parameter: Any) -> int:
    """Values of a whole parameter, of which a rank holds a part under ZeRO-3. Source: deepspeed 0.19.6
    partition_parameters."""
    return int(getattr(parameter, "ds_numel", parameter.numel()))


def whole_gradient(parameter: Any) -> Any:
    """The whole gradient that the engine's optimizer finds, at every stage of ZeRO; None where there is none.
    Collective."""
    from deepspeed.utils import safe_get_full_grad

    # ZeRO-1 with float32 sums of bf16 gradients leaves a micro-batch's own gradient at the parameter.
    summed = getattr(parameter, "_hp_grad", None)
    return safe_get_full_grad(parameter) if summed is None else summed


def smallest_of_deepspeed(module: Any) -> tuple[str, Any] | None:
    """The smallest trained weight of a module that DeepSpeed trains, with its name, for a `measuring.Witness`."""
    from batchbridge.kit.measuring import Witness

    return Witness.choose(list(module.named_parameters()), size=whole_size)


def sketches_of_deepspeed(module: Any, group: Any = None) -> Sketches | None:
    """The sketches of a module that DeepSpeed trains; None where nothing is trained. group: the ranks that gradients
    are averaged over; None: all."""
    from batchbridge.kit.gradient_origins import ZeroOrigin
    from batchbridge.kit.gradient_sketches import Sketches
    from batchbridge.kit.measuring import all_reduce_over

    made = Sketches(ZeroOrigin(module, group), all_reduce_over(group))
    return made if made.names else None


class BeforeUpdate:
    """A function that runs right before a DeepSpeed engine clips a step's gradients and updates: they are all there,
    summed up and exchanged, and nothing is applied yet.

    Raises `CannotAttach` where the engine has no such place. Source: deepspeed 0.15.4 to 0.19.8 engine.step, which
    takes the model's step at the end of an accumulation only.
    """

    def __init__(self, engine: Any, look: Callable[[], None]) -> None:
        self._patches, self._look = Patches(), look
        why = "what a step trains is measured"
        try:
            self._native = self._patches.set(engine, "_take_model_step", self._step, what="recorded", why=why)
        except AttributeError as error:
            reason = f"this DeepSpeed has no place right before its update ({error}): use one of 0.15.4 to 0.19.8"
            raise CannotAttach({"seam": reason}) from error

    def _step(self, *arguments: Any, **options: Any) -> Any:
        self._look()
        return self._native(*arguments, **options)

    def remove(self) -> None:
        """Takes the function off."""
        self._patches.undo()
