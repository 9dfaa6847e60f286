"""The learners of both scripts, by what they have in common: grpo_fast.py's (DeepSpeed) and grpo.py's (OLMo-core).

They take the same batches from the same data preparation actor and compute the loss of a token with the same functions.
What differs stands here: where the loss looks for its arguments, where batches come from, what calls the optimizer, and
how micro-batches fill steps. Nothing is imported of either before a learner is there.

Source: open-instruct e6c3044 grpo_fast.PolicyTrainerRayProcess, grpo_olmo_core_actor.PolicyTrainerOLMoCoreProcess,
olmo_core_train_modules.GRPOTrainModule; deepspeed 0.19.6; ai2-olmo-core 3.0.0 train/trainer.py.
"""

from __future__ import annotations

import contextlib
import copy
import math
import types
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from batchbridge.kit.patches import Patches
from batchbridge_open_instruct import settings

if TYPE_CHECKING:
    from batchbridge.kit.gradient_sketches import Sketches
    from batchbridge.kit.worker_layer import Seam

PLACE = "batchbridge_layer"
"""The attribute of a learner that holds what `engine.install` made; `batchbridge` is what `wrap` gives."""
MIXES_ITSELF = ("mamba", "ssm", "conv", "linear_", "recurrent", "rwkv", "layers_block_type")
"""Words in the names of a model's settings that say that its layers carry a state along a row."""


class Learner(ABC):
    """One learner. trainer: the framework's."""

    script: ClassVar[str]
    package: ClassVar[str]
    """The package that trains the model, beside Open-Instruct."""
    loading: ClassVar[str]
    """The method of the trainer that loads the model."""
    training: ClassVar[tuple[str, ...]]
    """Methods of the trainer that train."""
    waits: ClassVar[bool]
    """Whether a training step begins when the engines have the weights of the one before, in every launched run."""

    other_ranks: ClassVar[str]
    """The reason why a checkpoint does not go on with another number of learners."""

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    @property
    @abstractmethod
    def is_loaded(self) -> bool:
        """Whether it has its model."""

    @property
    @abstractmethod
    def holder(self) -> tuple[Any, str]:
        """The object, and its attribute, that the loss takes its arguments from."""

    @property
    def args(self) -> Any:
        """The arguments that the loss reads, patched or not."""
        holder, name = self.holder
        return getattr(holder, name)

    @property
    @abstractmethod
    def loader(self) -> Any:
        """Asks the data preparation actor for batches."""

    @property
    @abstractmethod
    def model(self) -> Any:
        """The policy, as log-probabilities are asked of it."""

    @property
    @abstractmethod
    def reference(self) -> Any:
        """The reference policy; None without one."""

    @property
    @abstractmethod
    def optimizer(self) -> Any:
        """The object that has the learning rate."""

    @property
    @abstractmethod
    def trained_module(self) -> Any:
        """The module whose parameters the optimizer should update."""

    @property
    def references(self) -> bool:
        """Whether the loss has a reference policy."""
        return bool(self.args.load_ref_policy) and self.reference is not None

    @property
    def ranks_per_row(self) -> int:
        """Ranks that share the tokens of a row."""
        return 1

    @property
    def device(self) -> Any:
        """The device on which the loss is computed."""
        return self.trainer.device

    @property
    @abstractmethod
    def strange_layers(self) -> bool:
        """Whether the model has layers whose completions, packed into rows, are not proven to be apart."""

    @abstractmethod
    def micro_batches_of_step(self, count: int) -> int:
        """The number of micro-batches that fill a native optimizer step, of the `count` of a pass."""

    def kept(self, count: int) -> int:
        """Micro-batches of a pass that are trained at all."""
        return count

    @abstractmethod
    def sketches(self) -> Sketches | None:
        """The sketches of every parameter's gradients, which are hooked; None where nothing is trained."""

    @property
    def shrunk(self) -> float:
        """The factor of the gradient after the ranks' were averaged: it may be looked at after clipping."""
        return 1.0

    def send(self) -> None:
        """Sends the weights, before the first training step of a run that goes on. Collective."""
        return

    @abstractmethod
    def norm(self) -> float | None:
        """The norm of the gradient of the last optimizer step, before it was clipped."""

    def skips(self, norm: float | None) -> bool:
        """Whether a step of this norm is left out."""
        return False

    def after_forward(self) -> None:
        """The moment between a micro-batch's log-probabilities and its `backward`. Nothing to do where that itself
        is patched."""
        return

    @abstractmethod
    def seams(
        self,
        native: Mapping[str, Any],
        *,
        batches: Callable[[Iterator[Any]], Iterator[Any]],
        backward: Callable[..., None],
        update: Callable[[Callable[[], Any]], Any],
        look: Callable[[], None],
        losses: Callable[[], contextlib.AbstractContextManager[None]],
    ) -> Iterable[Seam]:
        """The seams of the trainer. native: see `WorkerLayer.native`. batches: goes around its batches. backward: is
        called once for each micro-batch, before its gradient is there. update: is called with what updates the
        parameters, when gradients are whole. look: is called in there, as late as can be. losses: the span in which
        losses are differentiated."""

    @abstractmethod
    def rehearse(self, data: Any, patches: Patches) -> None:
        """Runs the learner's own step on `data` without an update, its stand-ins in `patches`."""


class FastLearner(Learner):
    """The learner of grpo_fast.py."""

    script = settings.GRPO_FAST
    package = "deepspeed"
    loading = "from_pretrained"
    training = ("step",)
    waits = False
    # Source: deepspeed 0.19.6 engine._load_zero_checkpoint.
    other_ranks = (
        "DeepSpeed's ZeRO checkpoint holds one part of the optimizer's state for each rank, and DeepSpeed refuses to "
        "load it on another number of them; the weights without the optimizer go on in a new run"
    )

    @property
    def is_loaded(self) -> bool:
        """The test for a loaded model of grpo_fast.py, as in `Learner`."""
        return hasattr(self.trainer, "_streaming_dataloader")

    @property
    def holder(self) -> tuple[Any, str]:
        """The holder of grpo_fast.py's arguments, as in `Learner`."""
        return self.trainer, "args"

    @property
    def loader(self) -> Any:
        """The loader of grpo_fast.py's learner, as in `Learner`."""
        return self.trainer._streaming_dataloader

    @property
    def model(self) -> Any:
        """DeepSpeed's engine."""
        return self.trainer.model

    @property
    def reference(self) -> Any:
        """The reference policy of grpo_fast.py's learner, as in `Learner`."""
        return getattr(self.trainer, "ref_policy", None)

    @property
    def optimizer(self) -> Any:
        """The optimizer of grpo_fast.py's learner, as in `Learner`."""
        return self.model.optimizer

    @property
    def trained_module(self) -> Any:
        """The model of DeepSpeed's engine."""
        return self.model.module

    @property
    def ranks_per_row(self) -> int:
        """The ranks that share a row in grpo_fast.py, as in `Learner`."""
        return int(self.args.sequence_parallel_size)

    @property
    def strange_layers(self) -> bool:
        """Attention alone is told where a completion ends, and exchanged between ranks. Source: transformers 5.15
        (linear attention takes cu_seq_lens_q, and Open-Instruct passes none)."""
        policy = self.trainer.policy.config.get_text_config()
        others = {*(getattr(policy, "layer_types", None) or ())} - {"full_attention", "sliding_attention"}
        return bool(others) or any(
            word in name and value for name, value in vars(policy).items() for word in MIXES_ITSELF
        )

    def micro_batches_of_step(self, count: int) -> int:
        """The micro-batches of an optimizer step in grpo_fast.py, as in `Learner`."""
        return max(math.ceil(count / int(self.trainer.num_mini_batches) - 0.5), 1)

    def kept(self, count: int) -> int:
        """The number of micro-batches kept of a pass: those that fill no step are dropped."""
        return count - count % self.micro_batches_of_step(count)

    def sketches(self) -> Sketches | None:
        """The sketches of DeepSpeed's module, as in `Learner`."""
        from batchbridge.kit.deepspeed import sketches_of_deepspeed

        return sketches_of_deepspeed(self.model.module)

    def norm(self) -> float | None:
        """The norm of DeepSpeed's gradient, as in `Learner`."""
        norm = self.model.get_global_grad_norm()
        return None if norm is None else float(norm)

    def skips(self, norm: float | None) -> bool:
        """The test for a step that DeepSpeed skips, as in `Learner`."""
        return norm is not None and not math.isfinite(norm)

    def seams(
        self, native: Mapping[str, Any], *, batches: Any, backward: Any, update: Any, look: Any, losses: Any
    ) -> Iterable[Seam]:
        """The seams of grpo_fast.py's learner, as in `Learner`. A step of an optimizer of torch (ZeRO-0 in float32) is
        looked at before the engine's, which clips without saying by how much."""
        from torch.optim import Optimizer

        from batchbridge.kit.worker_layer import Seam

        engine = self.model
        clips = isinstance(engine.optimizer, Optimizer)

        def counted(*arguments: Any, **options: Any) -> Any:
            backward()
            with losses():
                return native["backward"](*arguments, **options)

        def step(*arguments: Any, **options: Any) -> Any:
            def updated() -> Any:
                if clips:
                    look()
                return native["step"](*arguments, **options)

            return update(updated)

        def last(*arguments: Any, **options: Any) -> Any:
            look()
            return native["update"](*arguments, **options)

        yield Seam(self.trainer, "dataloader", batches(self.trainer.dataloader), "rows are known")
        yield Seam(engine, "backward", counted, "counted", reads=True)
        yield Seam(engine, "step", step, reads=True)
        if not clips:
            moment = "the last moment before an update"
            yield Seam(engine.optimizer, "step", last, why=moment, reads=True, name="update")

    def rehearse(self, data: Any, patches: Patches) -> None:
        """The rehearsal of a step of grpo_fast.py, as in `Learner`. Of the engine: the backward pass (a plain one), the
        update, its norm, its accumulation."""
        trainer, engine = self.trainer, self.model
        for target, name, value in (
            (trainer, "dataloader", iter([data])),
            (trainer, "splitter", None),  # rows are whole
            (trainer, "local_metrics", copy.deepcopy(trainer.local_metrics)),
            (engine, "backward", lambda loss, *arguments, **options: loss.backward()),
            (engine, "step", _nothing),
            (engine, "get_global_grad_norm", lambda: 0.0),
            (engine, "set_gradient_accumulation_boundary", _nothing),
        ):
            patches.set(target, name, value, what="a stand-in", why="probe")
        trainer.step()


class OlmoLearner(Learner):
    """The learner of grpo.py, whose train module has the loss, the optimizer and the model."""

    script = settings.GRPO
    package = "olmo_core"
    loading = "setup_model"
    training = ("fit",)
    waits = True
    other_ranks = (
        "whether OLMo-core's checkpoint comes back in other shards is not proven; the weights alone go on in a new run"
    )

    def __init__(self, trainer: Any) -> None:
        super().__init__(trainer)
        self._norm: float | None = None
        self._before_backward: Callable[[], None] = lambda: None

    @property
    def is_loaded(self) -> bool:
        """The test for a loaded model of grpo.py, as in `Learner`."""
        return hasattr(self.trainer, "train_module")

    @property
    def module(self) -> Any:
        """The train module."""
        return self.trainer.train_module

    @property
    def holder(self) -> tuple[Any, str]:
        """The holder of grpo.py's arguments, as in `Learner`."""
        return self.module, "grpo_config"

    @property
    def loader(self) -> Any:
        """The loader of grpo.py's learner, as in `Learner`."""
        return self.trainer.dataloader

    @property
    def model(self) -> Any:
        """The model of grpo.py's learner, as in `Learner`."""
        return self.module.model

    @property
    def reference(self) -> Any:
        """The reference policy of grpo.py's learner, as in `Learner`."""
        return self.module.ref_policy

    @property
    def optimizer(self) -> Any:
        """The optimizer of grpo.py's learner, as in `Learner`."""
        return self.module.optim

    @property
    def device(self) -> Any:
        """The device of grpo.py's learner, as in `Learner`."""
        return self.module.device

    @property
    def strange_layers(self) -> bool:
        """Layers beside attention and a dense block behind it: of experts the loss has a term of its own."""
        from olmo_core.nn.attention import Attention
        from olmo_core.nn.feed_forward import FeedForward

        return any(
            not isinstance(getattr(block, "attention", None), Attention)
            or not isinstance(getattr(block, "feed_forward", None), FeedForward)
            for block in self.model.blocks.values()
        )

    @property
    def trained_module(self) -> Any:
        """OLMo-core's model."""
        return self.model

    def micro_batches_of_step(self, count: int) -> int:
        """The micro-batches of an optimizer step in grpo.py, as in `Learner`."""
        return max(math.ceil(count / int(self.args.num_mini_batches)), 1)

    def sketches(self) -> Sketches | None:
        """The sketches of OLMo-core's model, as in `Learner`."""
        from batchbridge.kit.gradient_sketches import sketches_of

        return sketches_of(self.model)

    @property
    def shrunk(self) -> float:
        """The factor of clipping, as torch.nn.utils.clip_grads_with_norm_ computes it."""
        bound = self.module.max_grad_norm
        return 1.0 if bound is None or self._norm is None else min(1.0, bound / (self._norm + 1e-6))

    def send(self) -> None:
        """The script sends those of the start alone, before the checkpoint is there."""
        trainer = self.trainer.trainer
        if trainer.global_step:
            trainer.callbacks["vllm_sync"].post_step()

    def norm(self) -> float | None:
        """The norm of OLMo-core's gradient, as in `Learner`."""
        return self._norm

    def after_forward(self) -> None:
        """The last moment before `backward`, which grpo.py calls at once, inside a function that cannot be patched."""
        self._before_backward()

    def seams(
        self, native: Mapping[str, Any], *, batches: Any, backward: Any, update: Any, look: Any, losses: Any
    ) -> Iterable[Seam]:
        """The seams of grpo.py's learner, as in `Learner`. Checkpoints call the optimizer's step too, to have its
        state."""
        from batchbridge.kit.worker_layer import Seam

        module, optimizer, loader = self.module, self.optimizer, self.loader
        inside, self._before_backward = False, backward

        def clip(*arguments: Any, **options: Any) -> Any:
            norm = native["_clip_grad_norm"](*arguments, **options)
            self._norm = float(norm)
            return norm

        def whole() -> Any:
            nonlocal inside
            self._norm, inside = None, True
            try:
                return native["_do_optim_step"]()
            finally:
                inside = False

        def step(*arguments: Any, **options: Any) -> Any:
            def looked() -> Any:
                look()
                return native["step"](*arguments, **options)

            return update(looked) if inside else native["step"](*arguments, **options)

        def train(*arguments: Any, **options: Any) -> Any:
            with losses():
                return native["train_batch"](*arguments, **options)

        known = "rows are known"
        yield Seam(module, "train_batch", train, "the value of each loss is recorded", reads=True)
        yield Seam(loader, "_iter_batches", lambda: batches(iter(native["_iter_batches"]())), known)
        yield Seam(module, "_clip_grad_norm", clip, "the norm is known", reads=True)
        yield Seam(module, "_do_optim_step", whole, "a step begins", reads=True)
        yield Seam(optimizer, "step", step, reads=True)

    def rehearse(self, data: Any, patches: Patches) -> None:
        """The rehearsal of a step of grpo.py, as in `Learner`. There is no trainer yet; of the train module the update,
        and what is logged."""
        module = self.module
        trainer = types.SimpleNamespace(dp_process_group=module.dp_process_group, global_step=0, max_steps=None)
        for name, value in (
            ("_trainer", trainer),
            ("_do_optim_step", _nothing),
            ("record_metric", _nothing),
            ("_record_step_counter_metrics", _nothing),
            ("_grad_norms", []),
            ("_last_num_step_tokens", 0),
        ):
            patches.set(module, name, value, what="a stand-in", why="probe")
        module.train_batch(data)


def _nothing(*arguments: Any, **options: Any) -> None: ...


def learner_of(trainer: Any) -> Learner:
    """The learner that `trainer` is; see `kind_of`."""
    kind = kind_of(trainer)
    assert kind is not None, "asked for what the adapter owns"
    return kind(trainer)


def kind_of(trainer: object) -> type[Learner] | None:
    """The class of learner that `trainer` is, of a module or of the script itself; None: of neither script."""
    for base in type(trainer).__mro__:
        if base.__name__ == "PolicyTrainerRayProcess" and base.__module__ in ("open_instruct.grpo_fast", "__main__"):
            return FastLearner
        if (base.__module__, base.__name__) == ("open_instruct.grpo_olmo_core_actor", "PolicyTrainerOLMoCoreProcess"):
            return OlmoLearner
    return None
