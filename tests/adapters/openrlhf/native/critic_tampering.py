"""Ways to make a `CriticPPOTrainer` train something else than its plan, beside those of `tampering` that a critic's
trainer has as well, and value losses that weigh otherwise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tampering
from tampering import Run, _of_experience

from batchbridge.kit.patches import Patches


def loss(run: Run) -> None:
    """The value loss is multiplied by 7."""

    def make(native: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *given, **options: native(*given, **options) * (7 if run.mine and run.now else 1)

    run.replace(run.trainer.critic_loss_fn, "forward", make)


def clip(run: Run) -> None:
    """Values are held at the rollout's."""

    def make(native: Callable[..., Any]) -> Callable[..., Any]:
        def narrower(*given: Any, **options: Any) -> Any:
            own = run.trainer.critic_loss_fn.clip_eps
            run.trainer.critic_loss_fn.clip_eps = own * (1e-3 if run.mine and run.now else 1)
            try:
                return native(*given, **options)
            finally:
                run.trainer.critic_loss_fn.clip_eps = own

        return narrower

    run.replace(run.trainer.critic_loss_fn, "forward", make)


@_of_experience
def returns(experience: Any) -> None:
    """Returns are scaled by 1 %, in place."""
    experience.returns *= 1.01


@_of_experience
def old_values(experience: Any) -> None:
    """The values of the rollout are moved by five times the bound, in place."""
    experience.values += 1


_SHARED = (
    "backward",
    "mask",
    "mask of the loss",
    "tokens",
    "mask in the buffer",
    "backward of a micro-batch",
    "gradient of a micro-batch",
    "gradient after backward",
    "gradient inside of the engine's step",
)
WAYS: Mapping[str, tuple[Callable[[Run], None], str]] = {
    # name: (what tampers, the aspect of the `BatchDrift` that stops it)
    "loss": (loss, "weights"),
    "clip": (clip, "weights"),
    "returns": (returns, "weights"),
    "old values": (old_values, "weights"),
    **{name: tampering.WAYS[name] for name in _SHARED},
}


# ---- losses that are refused before a run


def _of_loss(factor: Callable[..., Any]) -> Callable[[Any, Patches], None]:
    def alter(trainer: Any, patches: Patches) -> None:
        native = trainer.critic_loss_fn.forward

        def altered(*given: Any, action_mask: Any, **options: Any) -> Any:
            return native(*given, action_mask=action_mask, **options) * factor(action_mask, options)

        patches.set(trainer.critic_loss_fn, "forward", altered, what="another loss", why="control")

    return alter


LOSSES: Mapping[str, Callable[[Any, Patches], None]] = {
    "twice": _of_loss(lambda mask, options: 2),
    "by its own tokens": _of_loss(lambda mask, options: options["batch_num_tokens"] / mask.sum()),
    "mean over rows": _of_loss(lambda mask, options: 1 / len(mask)),
}
