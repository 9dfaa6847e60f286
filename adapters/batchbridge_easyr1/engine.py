"""A training worker's side: EasyR1's own `update_policy`, one optimizer step at a time, with the step's token weights.

The native function runs as it is written, on this actor alone, with three of its names bound to ours: the average of a
micro-batch, the policy loss (that average in it, too) and the cut by token budget (written down). Micro-batches,
forward and backward passes, gradient clipping and the optimizer stay EasyR1's. What each step trains is measured
(`watching`), and held against the plan right before the update, after whatever else has touched the gradients.

Imports torch; EasyR1 only inside functions that a worker runs.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from batchbridge import CannotAttach
from batchbridge.kit import proven, worker_layer
from batchbridge.kit.patches import Patches, rebound
from batchbridge.kit.probing import ProbeBatch, remedy_with
from batchbridge.kit.replicas import Replicas
from batchbridge.kit.ticked_schedule import TickedSchedule
from batchbridge.kit.update_layer import UpdateLayer, made_up_columns, made_up_references
from batchbridge.kit.worker_layer import Seam
from batchbridge.kit.workers import Orders, Receipt
from batchbridge_easyr1.clock import schedule_of
from batchbridge_easyr1.images import processed
from batchbridge_easyr1.inputs import CARRIED
from batchbridge_easyr1.proven import CODE
from batchbridge_easyr1.sampling import seeded
from batchbridge_easyr1.watching import EasyR1StepInputs, EasyR1StepProbe

_REMEDY = remedy_with("EasyR1's own")
probe, remove = worker_layer.probe, worker_layer.remove


def install(worker: Any, orders: Orders) -> Receipt:
    """Patches an `FSDPWorker` whose model stands; replaces what an earlier call installed.

    Raises `CannotAttach` naming what this worker has that the patches were not proven on.
    """
    import torch.distributed as dist

    remove(worker)
    orders = require_proven_code(worker, orders)
    layer = worker_layer.install(worker, orders, lambda patches: ActorLayer(worker, orders, patches))
    return Receipt.here(orders, rank=dist.get_rank(), world_size=layer.ranks.replicas)


def require_proven_code(worker: Any, orders: Orders) -> Orders:
    """The orders with what speaks for the worker's code. Raises `CannotAttach`."""
    actor = worker.actor
    kind = type(actor)
    if (kind.__module__, kind.__qualname__) != ("verl.workers.actor.dp_actor", "DataParallelPPOActor"):
        raise CannotAttach({"actor": f"the worker's actor is a {kind.__module__}.{kind.__qualname__}"})
    if not hasattr(actor.actor_module, "clip_grad_norm_"):
        raise CannotAttach({"actor": "the worker's actor is not an FSDP1 module"})
    orders = orders.here(proven.require(CODE, orders.allow, worker, actor))
    if replaced := sorted({"update_policy", "_optimizer_step", "_forward_micro_batch"} & vars(actor).keys()):
        raise CannotAttach({"actor": f"something else has replaced {', '.join(replaced)} of this actor"})
    return orders


class ActorLayer(UpdateLayer):
    """The patches of one training worker."""

    framework = "easyr1"
    carried, remedy = CARRIED, _REMEDY
    mini_batch, micro_batch = "global_batch_size_per_device", "micro_batch_size_per_device_for_update"
    by_tokens = "dynamic_batching"

    def __init__(self, worker: Any, orders: Orders, patches: Patches) -> None:
        mesh = worker.ulysses_device_mesh
        groups = (None, None) if mesh is None else (mesh["dp"].get_group(), mesh["sp"].get_group())
        # With Ulysses (S = `worker.actor.ulysses_size`) every S ranks are one replica. Source: EasyR1 0.3.2 to
        # 0.3.3.dev0 FSDPWorker._init_dist_mesh, sharding_manager/fsdp_ulysses.py.
        super().__init__(worker, orders, patches, Replicas(*groups))

    def seams(self) -> Iterable[Seam]:
        """The seams of an actor; where the plan is enforced, of its worker, too."""
        names: dict[str, Any] = {"prepare_dynamic_batch": self._cut_by_tokens}
        if self._enforces:
            native = type(self._actor).update_policy.__globals__["compute_policy_loss"]
            self._native_policy_loss = rebound(native, average_loss=self._average)
            names |= {"average_loss": self._average, "compute_policy_loss": self._policy_loss}
            worker = self._worker
            if (rollout := getattr(worker, "rollout", None)) is not None:
                what, why = "each completion by its own seed", "rollout identity"
                yield Seam(rollout, "generate_sequences", seeded(rollout), what, why)
            if getattr(worker, "processor", None) is not None:
                what, why = "images of each call's own rows", "membership of the plan"
                yield Seam(worker, "_process_multi_modal_inputs", processed(worker), what, why)
        native_update = types.MethodType(rebound(type(self._actor).update_policy, **names), self._actor)
        ours, self._native_update = self._observation.guarded(native_update, self.update, exchanges=True)
        yield Seam(self._actor, "update_policy", ours)
        yield Seam(self._actor, "_optimizer_step", self._optimizer_step, reads=True)

    def watching(self) -> EasyR1StepProbe:
        """The measuring of the actor's steps."""
        ranks, replicas = torch.distributed.get_world_size(), self.ranks.replicas
        objective = self._orders.trained.objective
        return EasyR1StepProbe(self._actor, objective, ranks=ranks, scale=replicas, patches=self._patches)

    @property
    def optimizer(self) -> Any:
        """The optimizer that is there when the layer is installed; see `WorkerLayer`."""
        return self._actor.actor_optimizer

    @property
    def schedule(self) -> Any:
        """The worker's scheduler; see `WorkerLayer`."""
        return self._worker.lr_scheduler

    # ---- what the native loss and clock read

    def apply_settings(self) -> None:
        """Attributes of the actor's configuration."""
        for name, value in self._orders.settings.items():
            self._patches.set(self._config, name, value, what=str(value), why="objective of the requested spec")

    def set_clock(self) -> None:
        """Ticks as the plan says, over the plan's horizon: EasyR1 ticks once per call, and counts rollouts."""
        worker, ticks = self._worker, self._orders.ticks
        schedule = worker.lr_scheduler
        if ticks is not None and self._config.optim.training_steps != ticks:
            if schedule.last_epoch > 0:
                reason = "the learning rate has moved already; wrap before fit() and resume"
                raise CannotAttach({"in_training": reason})
            schedule = schedule_of(self._config.optim, worker.optimizer, ticks)
            manager = worker.checkpoint_manager
            why = "horizon of the spec"
            self._patches.set(manager, "lr_scheduler", schedule, what=f"{ticks} ticks", why=why)
        due = TickedSchedule(schedule, lambda: self._tick)
        self._patches.set(worker, "lr_scheduler", due, what="moves when the plan says so", why="clock of the spec")

    # ---- a batch, and a micro-batch

    @property
    def device(self) -> torch.device:
        """The device of this process."""
        return torch.device(torch.cuda.current_device())

    def inputs_of(self, data: Any) -> EasyR1StepInputs:
        """The values that a batch's rows are meant to train."""
        detached = self._orders.detached and self._enforces
        penalised = bool(self._config.use_kl_loss) and "ref_log_probs" in data.batch.keys()  # noqa: SIM118 - a TensorDict iterates over its rows
        return EasyR1StepInputs.of(
            data.batch, detached=detached, penalised=penalised, temperature=self._orders.temperature
        )

    def made_up(self, made: Sequence[ProbeBatch]) -> Any:
        """The `DataProto` of a probe's micro-batches. Every rank brings the probe's tokens, and has the denominators of
        its own: the native factor for the ranks cancels against the native sum of their tokens."""
        from verl.protocol import DataProto

        tensors = {**made_up_columns(made), "ref_log_probs": made_up_references(made)}
        return DataProto.from_dict(tensors=tensors, meta_info={"temperature": 1.0})

    def _average(self, values: Any, mask: Any, mode: str, eps: float = 1e-8) -> Any:
        """This micro-batch's share of the step's weighted sum, times T over its own tokens: `update_policy` multiplies
        with its tokens over T. In place of `average_loss`, for the policy loss, the KL term and the entropy metric."""
        assert self._normaliser is not None
        sums, lengths = (values * mask).sum(-1), mask.sum(-1)
        if self._normaliser.aggregation == "sequence_mean":
            sums = sums / lengths.clamp(min=1)
        share, tokens = sums.sum() * self._normaliser.step_factor(), lengths.sum()
        return share * self._normaliser.tokens / tokens if tokens else share

    def _policy_loss(self, **inputs: Any) -> Any:
        if self._orders.detached:
            inputs["old_log_probs"] = inputs["log_probs"].detach()
        return self._native_policy_loss(**inputs)

    def _cut_by_tokens(self, data: Any, *arguments: Any, **options: Any) -> Any:
        from verl.utils.seqlen_balancing import prepare_dynamic_batch

        return self.cut(prepare_dynamic_batch, data, *arguments, **options)
