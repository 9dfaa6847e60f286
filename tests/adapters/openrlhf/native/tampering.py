"""Ways to make an `ActorPPOTrainer` train something else than its plan, and losses that weigh otherwise.

`gradients.py` runs them in its processes: enforced under DeepSpeed's ZeRO-2; verified under ZeRO-3, where OpenRLHF's
own dynamic batches lose no gradient and nothing shuffles the plan's rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from batchbridge.kit.deepspeed import whole_size
from batchbridge.kit.patches import Patches

STEP = 3
"""The optimizer step that is tampered with; the ones before it are sound."""


@dataclass
class Run:
    """A wrapped trainer, its steps counted from where it was when it was wrapped."""

    trainer: Any
    patches: Patches
    mine: bool
    """Whether this rank is the one that is tampered with, where one alone can be."""
    start: int
    done: bool = False

    @classmethod
    def of(cls, trainer: Any, patches: Patches, *, mine: bool) -> Run:
        return cls(trainer, patches, mine, int(trainer.actor.model.global_steps))

    @property
    def now(self) -> bool:
        """Whether the step is there."""
        return bool(self.trainer.actor.model.global_steps - self.start >= STEP)

    @property
    def first(self) -> bool:
        """Whether this is the step's first call."""
        first, self.done = self.now and not self.done, self.done or self.now
        return first

    def replace(self, target: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        self.patches.set(target, name, make(getattr(target, name)), what="tampered with", why="control")


def loss(run: Run) -> None:
    """The policy loss is multiplied by 7."""

    def make(native: Callable[..., Any]) -> Callable[..., Any]:
        def sevenfold(*given: Any, **options: Any) -> Any:
            first, *others = native(*given, **options)
            return (first * (7 if run.mine and run.now else 1), *others)

        return sevenfold

    run.replace(run.trainer.actor_loss_fn, "forward", make)


def backward(run: Run) -> None:
    """The loss is multiplied by 9 on its way into DeepSpeed's backward."""

    def make(native: Callable[..., Any]) -> Callable[..., Any]:
        return lambda value, *given, **options: native(value * (9 if run.mine and run.now else 1), *given, **options)

    run.replace(run.trainer.strategy, "backward", make)


def value(run: Run) -> None:
    """The loss goes into backward with 1.001 times its value, and its own gradient."""

    def make(native: Callable[..., Any]) -> Callable[..., Any]:
        def another(loss: Any, *given: Any, **options: Any) -> Any:
            return native(loss + (0.001 * loss.detach() if run.mine and run.now else 0.0), *given, **options)

        return another

    run.replace(run.trainer.strategy, "backward", make)


def constant(run: Run) -> None:
    """A constant is added to the policy loss."""

    def make(native: Callable[..., Any]) -> Callable[..., Any]:
        def more(*given: Any, **options: Any) -> Any:
            first, *others = native(*given, **options)
            return (first + (0.1 if run.mine and run.now else 0.0), *others)

        return more

    run.replace(run.trainer.actor_loss_fn, "forward", make)


def not_a_number(run: Run) -> None:
    """The policy loss of a micro-batch with a token is not a number."""

    def make(native: Callable[..., Any]) -> Callable[..., Any]:
        def lost(*given: Any, action_mask: Any, **options: Any) -> Any:
            first, *others = native(*given, action_mask=action_mask, **options)
            return (first * (float("nan") if run.mine and run.now and action_mask.any() else 1), *others)

        return lost

    run.replace(run.trainer.actor_loss_fn, "forward", make)


def _of_experience(change: Callable[[Any], None]) -> Callable[[Run], None]:
    def tamper(run: Run) -> None:
        def make(native: Callable[..., Any]) -> Callable[..., Any]:
            def step(experience: Any, *given: Any, **options: Any) -> Any:
                if run.mine and run.now:
                    change(experience)
                return native(experience, *given, **options)

            return step

        run.replace(run.trainer, "training_step", make)

    return tamper


@_of_experience
def mask(experience: Any) -> None:
    """Half of the positions are taken out of a micro-batch's loss mask, in place."""
    experience.action_mask[:, ::2] = 0


@_of_experience
def tokens(experience: Any) -> None:
    """The last position's token is another one, in place."""
    experience.sequences[:, -1] += 1


def mask_of_the_loss(run: Run) -> None:
    """The loss gets a mask without the last position that every row has."""

    def make(native: Callable[..., Any]) -> Callable[..., Any]:
        def shortened(*given: Any, action_mask: Any, **options: Any) -> Any:
            if run.mine and run.now:
                action_mask = action_mask * (action_mask.cumsum(1) < action_mask.sum(1, keepdim=True))
            return native(*given, action_mask=action_mask, **options)

        return shortened

    run.replace(run.trainer.actor_loss_fn, "forward", make)


@_of_experience
def advantages(experience: Any) -> None:
    """Advantages are scaled by 1 %, in place."""
    experience.advantages *= 1.01


def _of_buffer(change: Callable[[Any], None]) -> Callable[[Run], None]:
    """Changes what the replay buffer holds, once the rollout is laid out. change: of a micro-batch's completions."""

    def tamper(run: Run) -> None:
        def make(native: Callable[..., Any]) -> Callable[..., Any]:
            def collate(batch: Any) -> Any:
                if run.mine and run.now:
                    change(batch[0])
                return native(batch)

            return collate

        run.replace(run.trainer.replay_buffer, "collate_fn", make)

    return tamper


@_of_buffer
def buffered_mask(items: Any) -> None:
    """A token of every completion is taken out of its mask."""
    for item in items:
        item.action_mask[item.action_mask.nonzero()[:1]] = 0


@_of_buffer
def buffered_advantages(items: Any) -> None:
    """Advantages are scaled by 5 %."""
    for item in items:
        item.advantages = item.advantages * 1.05


@_of_buffer
def exchanged_advantages(items: Any) -> None:
    """Each completion gets the advantage of the one before it, at its own length."""
    values = [float(item.advantages.sum() / item.action_mask.sum().clamp(min=1)) for item in items]
    for item, value in zip(items, [*values[1:], values[0] + 0.25], strict=True):
        item.advantages = value * item.action_mask.float()


@_of_buffer
def buffered_old(items: Any) -> None:
    """The log-probabilities of the policy that generated are moved by 0.05."""
    for item in items:
        item.action_log_probs = item.action_log_probs + 0.05


@_of_buffer
def buffered_reference(items: Any) -> None:
    """The reference's log-probabilities are moved by 0.05."""
    for item in items:
        item.base_action_log_probs = item.base_action_log_probs + 0.05


def temperature(run: Run) -> None:
    """The policy's log-probabilities are those of another temperature."""

    def make(native: Callable[..., Any]) -> Callable[..., Any]:
        def step(*given: Any, **options: Any) -> Any:
            if run.mine and run.first:
                run.patches.set(run.trainer.actor, "temperature", 1.05, what="tampered with", why="control")
            return native(*given, **options)

        return step

    run.replace(run.trainer, "training_step", make)


def lost_backward(run: Run) -> None:
    """The step's first micro-batch is never differentiated, on no rank: ranks wait for each other in backward."""

    def make(native: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *given, **options: None if run.first else native(*given, **options)

    run.replace(run.trainer.strategy, "backward", make)


def lost_gradient(run: Run) -> None:
    """DeepSpeed forgets what it added up of the step's first micro-batch."""

    def make(native: Callable[..., Any]) -> Callable[..., Any]:
        def forgetful(*given: Any, **options: Any) -> None:
            native(*given, **options)
            if run.first:
                optimizer = run.trainer.actor.model.optimizer
                if run.trainer.actor.model.zero_optimization_stage() == 3:
                    optimizer.grad_partitions_flat_buffer.zero_()
                else:
                    optimizer.all_grad_tensors.clear()

        return forgetful

    run.replace(run.trainer.strategy, "backward", make)


def _scaled(run: Run) -> None:
    if run.now:
        for gradients in run.trainer.actor.model.optimizer.averaged_gradients.values():
            for gradient in gradients:
                gradient.mul_(3)


def scaled_gradient(run: Run) -> None:
    """Gradients are multiplied by 3 after backward."""

    def make(native: Callable[..., Any]) -> Callable[..., Any]:
        def step(*given: Any, **options: Any) -> Any:
            if run.trainer.actor.model.is_gradient_accumulation_boundary():
                _scaled(run)
            return native(*given, **options)

        return step

    run.replace(run.trainer.strategy, "optimizer_step", make)


def scaled_inside(run: Run) -> None:
    """Gradients are multiplied by 3 inside of the engine's step."""

    def make(native: Callable[..., Any]) -> Callable[..., Any]:
        def take(*given: Any, **options: Any) -> Any:
            _scaled(run)
            return native(*given, **options)

        return take

    run.replace(run.trainer.actor.model, "_take_model_step", make)


def part_scaled(run: Run) -> None:
    """The gradient of one weight's part on this rank is multiplied by 1.05, inside of the engine's step."""

    def make(native: Callable[..., Any]) -> Callable[..., Any]:
        def take(*given: Any, **options: Any) -> Any:
            if run.now:
                gradients = [
                    one for each in run.trainer.actor.model.optimizer.averaged_gradients.values() for one in each
                ]
                max(gradients, key=lambda one: float(one.norm())).mul_(1.05)
            return native(*given, **options)

        return take

    run.replace(run.trainer.actor.model, "_take_model_step", make)


def hooked(run: Run) -> None:
    """Every weight's gradient is made smaller where it arrives."""
    for parameter in run.trainer.actor.model.module.parameters():
        if parameter.requires_grad:
            handle = parameter.register_hook(lambda gradient: gradient * (0.1 if run.now else 1.0))
            run.patches.made("hook", handle.remove, what="a gradient is made smaller", why="tampering")


def one_hooked(run: Run) -> None:
    """One weight's gradient is made larger where it arrives."""
    weight = max(run.trainer.actor.model.module.parameters(), key=whole_size)
    handle = weight.register_hook(lambda gradient: gradient * (1.05 if run.now else 1.0))
    run.patches.made("hook", handle.remove, what="a gradient is made larger", why="tampering")


WAYS: Mapping[str, tuple[Callable[[Run], None], str]] = {
    # name: (what tampers, the aspect of the `BatchDrift` that stops it)
    "loss": (loss, "weights"),
    "backward": (backward, "weights"),
    "value of the loss": (value, "loss"),
    "constant in the loss": (constant, "loss"),
    "a loss that is not a number": (not_a_number, "weights"),
    "mask": (mask, "gradient"),
    "mask of the loss": (mask_of_the_loss, "weights"),
    "tokens": (tokens, "gradient"),
    "mask in the buffer": (buffered_mask, "inputs"),
    "advantages in the buffer": (buffered_advantages, "inputs"),
    "advantages that are exchanged": (exchanged_advantages, "inputs"),
    "old log-probabilities in the buffer": (buffered_old, "inputs"),
    "log-probabilities of the reference in the buffer": (buffered_reference, "inputs"),
    "temperature": (temperature, "inputs"),
    "advantages": (advantages, "weights"),
    "backward of a micro-batch": (lost_backward, "gradient"),
    "gradient of a micro-batch": (lost_gradient, "gradient"),
    "gradient after backward": (scaled_gradient, "gradient"),
    "gradient inside of the engine's step": (scaled_inside, "gradient"),
    "gradient of one part by 5 %": (part_scaled, "gradient"),
    "a hook on every weight": (hooked, "gradient"),
    "a hook on one weight": (one_hooked, "gradient"),
}


# ---- losses that are refused before a run


def _of_loss(factor: Callable[..., Any]) -> Callable[[Any, Patches], None]:
    def alter(trainer: Any, patches: Patches) -> None:
        native = trainer.actor_loss_fn.forward

        def altered(new: Any, old: Any, advantages: Any, action_mask: Any, **options: Any) -> Any:
            first, *others = native(new, old, advantages, action_mask=action_mask, **options)
            return (first * factor(action_mask, options), *others)

        patches.set(trainer.actor_loss_fn, "forward", altered, what="another loss", why="control")

    return alter


def _own_term(trainer: Any, patches: Patches) -> None:
    native = trainer.actor_loss_fn.forward
    trained = [one for one in trainer.actor.parameters() if one.requires_grad]  # a probe has a stand-in for the actor

    def altered(*given: Any, **options: Any) -> Any:
        first, *others = native(*given, **options)
        return (first + sum(one.square().sum() for one in trained), *others)

    patches.set(trainer.actor_loss_fn, "forward", altered, what="another loss", why="control")


def _needs_more(trainer: Any, patches: Patches) -> None:
    native = trainer.training_step

    def training_step(experience: Any, *given: Any, **options: Any) -> Any:
        experience.info["a column of its own"].sum()
        return native(experience, *given, **options)

    patches.set(trainer, "training_step", training_step, what="another step", why="control")


LOSSES: Mapping[str, Callable[[Any, Patches], None]] = {
    "with a term of its own": _own_term,
    "sevenfold": _of_loss(lambda mask, options: 7),
    "by its own tokens": _of_loss(lambda mask, options: options["batch_num_tokens"] / mask.sum()),
    "mean over rows": _of_loss(lambda mask, options: 1 / len(mask)),
    "needs another column": _needs_more,
}
