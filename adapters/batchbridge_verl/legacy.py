"""A training process's side on verl's legacy workers: `DataParallelPPOActor.update_policy`, one optimizer step at a
time, with the step's token weights.

The native function runs as it is written, on this actor alone, with three of its names bound to ours: the aggregation
of a micro-batch, the table of policy losses (that aggregation in them, too) and the cut by token budget (written down).
Micro-batches, forward and backward passes, gradient clipping and the optimizer stay verl's. What each step trains is
measured, and held against the plan right before the update, after whatever else has touched the gradients.

Source: verl 0.6.1 to 0.7.1 workers/actor/dp_actor.py, workers/fsdp_workers.py, trainer/ppo/core_algos.py.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from batchbridge import CannotAttach
from batchbridge.kit import Surrogate, proven, versions, worker_layer
from batchbridge.kit.measuring import Rows
from batchbridge.kit.patches import Patches, rebound
from batchbridge.kit.probing import ProbeBatch
from batchbridge.kit.replicas import Replicas
from batchbridge.kit.ticked_schedule import TickedSchedule
from batchbridge.kit.update_layer import UpdateLayer, made_up_columns, made_up_references
from batchbridge.kit.update_probe import UpdateProbe
from batchbridge.kit.worker_layer import Seam
from batchbridge.kit.workers import Orders, Receipt
from batchbridge_verl.columns import CARRIED
from batchbridge_verl.probe import REMEDY
from batchbridge_verl.proven import CODE
from batchbridge_verl.terms import AGGREGATIONS
from batchbridge_verl.watching import FORMULAS, VerlStepInputs, hook_clipping, objective_of, surrogates

probe, remove = worker_layer.probe, worker_layer.remove
ACTOR = "verl.workers.actor.dp_actor", "DataParallelPPOActor"
MODEL_INPUTS = ("input_ids", "attention_mask", "position_ids", "responses")
"""Columns that a model is run on, or that its log-probabilities are of."""
PAIRS = "<0.7.1"
"""Versions whose actor gives entropies and log-probabilities as a pair; later ones give a table. Source: verl 0.5.0 to
0.7.1 dp_actor._forward_micro_batch."""
MASK = "response_mask"
"""The column that says which tokens are trained."""


def install(worker: Any, orders: Orders, references: Sequence[Any] = ()) -> Receipt:
    """Patches an `ActorRolloutRefWorker` of `fsdp_workers` whose model stands; replaces what an earlier call installed.

    references: the actors in this process that score alone. Raises `CannotAttach` naming what this worker has that the
    patches were not proven on; the worker is then unpatched.
    """
    import torch.distributed as dist

    remove(worker)
    actor = worker.actor
    kind = type(actor)
    if (kind.__module__, kind.__qualname__) != ACTOR:
        raise CannotAttach({"actor": f"the worker's actor is a {kind.__module__}.{kind.__qualname__}"})
    orders = orders.here(proven.require(CODE, orders.allow, worker, actor))
    if replaced := sorted({"update_policy", "_optimizer_step", "_forward_micro_batch"} & vars(actor).keys()):
        raise CannotAttach({"actor": f"something else has replaced {', '.join(replaced)} of this actor"})
    layer = worker_layer.install(worker, orders, lambda patches: VerlLegacyLayer(worker, orders, patches, references))
    return Receipt.here(orders, rank=dist.get_rank(), world_size=layer.ranks.replicas)


class VerlLegacyLayer(UpdateLayer):
    """The patches of one training worker."""

    framework = "verl"
    carried, remedy = CARRIED, REMEDY
    mini_batch, micro_batch, by_tokens = "ppo_mini_batch_size", "ppo_micro_batch_size_per_gpu", "use_dynamic_bsz"
    _watch: VerlUpdateProbe

    def __init__(self, worker: Any, orders: Orders, patches: Patches, references: Sequence[Any]) -> None:
        if worker.ulysses_device_mesh is not None:
            reason = "ranks that share rows (Ulysses) are not proven on verl's legacy workers"
            raise CannotAttach({"earlier_release": reason})
        super().__init__(worker, orders, patches, Replicas())
        self._scoring = (worker.actor, *references)

    def seams(self) -> Iterable[Seam]:
        """The seams of an actor."""
        native = undecorated(type(self._actor).update_policy, "update_policy")
        names: dict[str, Any] = {"prepare_dynamic_batch": self._cut_by_tokens}
        if self._enforces:
            self._native_loss_of = native.__globals__["get_policy_loss_fn"]
            names |= {"agg_loss": self._aggregated, "get_policy_loss_fn": self._loss_of}
        native_update = types.MethodType(rebound(native, **names), self._actor)
        ours, self._native_update = self._observation.guarded(native_update, self.update, exchanges=True)
        yield Seam(self._actor, "update_policy", ours)
        for actor in self._scoring if self._enforces else ():
            yield Seam(
                actor, "compute_log_prob", _scoring(actor), "as many micro-batches on every rank", "its ranks meet"
            )
        yield Seam(self._actor, "_optimizer_step", self._optimizer_step, reads=True)

    def watching(self) -> VerlUpdateProbe:
        """The measuring of the actor's steps."""
        ranks = torch.distributed.get_world_size()
        # Every rank's loss is of its own rows, and FSDP averages gradients: an enforced one is multiplied with them.
        watch = VerlUpdateProbe(
            self._actor,
            objective_of(self._orders.trained.objective),
            ranks=ranks,
            scale=self.ranks.replicas,
            patches=self._patches,
        )
        if self._orders.mode == "verify" and (watch.objective.surrogate or "ppo") not in FORMULAS:
            reason = f"nothing shows what the rows of the surrogate {watch.objective.surrogate} weigh"
            raise CannotAttach({"surrogate": f'{reason}; wrap with mode="observe"'})
        return watch

    @property
    def optimizer(self) -> Any:
        """The optimizer that is there when the layer is installed; see `WorkerLayer`."""
        return self._actor.actor_optimizer

    @property
    def schedule(self) -> Any:
        """The worker's scheduler; see `WorkerLayer`."""
        return self._worker.actor_lr_scheduler

    # ---- what the native loss and clock read

    def with_settings(self, **values: Any) -> contextlib.AbstractContextManager[None]:
        """The span in which the actor has other settings; verl freezes them."""
        return _told(self._config, values)

    def one_step(self, rows: int, **more: Any) -> contextlib.AbstractContextManager[None]:
        """The span of one optimizer step, as in `UpdateLayer`. A rollout that is one native step would take the current
        policy's log-probabilities for the old ones."""
        return super().one_step(rows, use_rollout_log_probs=not self._orders.detached, **more)

    def apply_settings(self) -> None:
        """Attributes of the actor's configuration."""
        for path, value in self._orders.settings.items():
            *owners, name = path.split(".")
            target = functools.reduce(getattr, owners, self._config)
            undo = functools.partial(object.__setattr__, target, name, getattr(target, name, None))
            object.__setattr__(target, name, value)
            self._patches.made(name, undo, what=f"{value}", why="the requested spec")

    def set_clock(self) -> None:
        """Ticks as the plan says, over the plan's horizon: verl ticks once per call, and counts rollouts."""
        worker, ticks = self._worker, self._orders.ticks
        schedule, optim = worker.actor_lr_scheduler, worker.config.actor.optim
        why = "horizon of the spec"
        if ticks is not None and optim.total_training_steps != ticks:
            if schedule.last_epoch > 0:
                reason = "the learning rate has moved already; wrap before fit() and resume"
                raise CannotAttach({"in_training": reason})
            schedule = schedule_of(optim, worker.actor_optimizer, ticks)
            manager = worker.checkpoint_manager
            self._patches.set(manager, "lr_scheduler", schedule, what=f"{ticks} ticks", why=why)
        due = TickedSchedule(schedule, lambda: self._tick)
        what = "moves when the plan says so"
        self._patches.set(worker, "actor_lr_scheduler", due, what=what, why="clock of the spec")

    # ---- a batch, and a micro-batch

    @property
    def device(self) -> torch.device:
        """The device of this process."""
        from verl.utils.device import get_device_name

        return torch.device(get_device_name())

    @property
    def probe_scale(self) -> float:
        """The ranks: every one has the probe's step for its own."""
        return float(self.ranks.replicas)

    def inputs_of(self, data: Any) -> VerlStepInputs:
        """The values that a batch's rows are meant to train."""
        objective = self._orders.trained.objective
        return VerlStepInputs.of(
            data.batch,
            detached=self._orders.detached if self._enforces else self._takes_current(len(data)),
            penalised=objective.kl_placement == "loss" and bool(objective.kl_coefficient),
            mask=MASK,
            temperature=self._orders.temperature,
            model_inputs=MODEL_INPUTS,
        )

    def _takes_current(self, rows: int) -> bool:
        """Whether verl natively takes the current policy's log-probabilities for the old ones."""
        config = self._config
        return rows <= self._mini and config.ppo_epochs == 1 and not getattr(config, "use_rollout_log_probs", False)

    def made_up(self, made: Sequence[ProbeBatch]) -> Any:
        """The `DataProto` of a probe's micro-batches."""
        from verl import DataProto

        tensors = made_up_columns(made)
        if made[0].reference is not None:
            tensors["ref_log_prob"] = made_up_references(made)
        return DataProto.from_dict(tensors=tensors, meta_info={"temperature": 1.0})

    def _aggregated(self, loss_mat: Any, loss_mask: Any, loss_agg_mode: str, **_: Any) -> Any:
        """This micro-batch's share of the step's weighted sum, for `agg_loss`; `update_policy` multiplies it with the
        micro-batch's share of the mini-batch, and FSDP averages over the ranks."""
        assert self._normaliser is not None, "the loss is computed while a step runs"
        counted = dataclasses.replace(self._normaliser, aggregation=AGGREGATIONS[loss_agg_mode])
        sums = (loss_mat * loss_mask).sum(-1)
        if counted.aggregation == "sequence_mean":
            sums = sums / loss_mask.sum(-1).clamp(min=1)
        config, rows = self._config, len(loss_mask)
        mini, micro = self._mini, int(config.ppo_micro_batch_size_per_gpu or 1)
        natively = rows / mini if config.use_dynamic_bsz else 1 / (mini // micro)
        result = sums.sum() * (counted.step_factor() * self.ranks.replicas / natively)
        self._watch.aggregated(loss_mat, result, natively)
        return result

    def _loss_of(self, name: str) -> Any:
        """verl's policy loss of this name, with our aggregation in it."""
        return rebound(self._native_loss_of(name), agg_loss=self._aggregated)

    def _cut_by_tokens(self, data: Any, *arguments: Any, **options: Any) -> Any:
        from verl.utils.seqlen_balancing import prepare_dynamic_batch

        native = _cut_alike if self._enforces else prepare_dynamic_batch
        return self.cut(native, data, *arguments, **options)


class VerlUpdateProbe(UpdateProbe):
    """The measuring of one actor's optimizer steps."""

    _pairs = versions.includes(PAIRS, versions.installed("verl") or "")
    """Whether a forward pass gives a pair."""

    _given: VerlStepInputs | None
    _entropies: torch.Tensor | None = None
    """The entropies of the last micro-batch."""
    _bonus: torch.Tensor | float | None = 0.0
    """The part of the last micro-batch's loss that they have; None: nobody knows it."""

    def hook_clipping(self) -> None:
        """The hook on the actor's clipping: FSDP1's is a method of the module, FSDP2's a function of verl's."""
        actor = self._actor
        hook_clipping(self, actor.actor_module, ACTOR[0], lambda: actor.config.grad_clip, self._patches)

    def rows_at(self, places: Sequence[int], logprobs: torch.Tensor) -> Rows:
        """The rows at `places`, of the batch in hand."""
        assert self._given is not None, "asked for while a step runs"
        bounded = self.objective.surrogate in ("ppo", None) and self.objective.ratio_level != "sequence"
        return self._given.rows(places, logprobs, bounded=bounded)

    def surrogates(self) -> Mapping[str, Surrogate]:
        """verl's own, of the actor's settings."""
        return surrogates(self._actor.config)

    def logprobs_of(self, result: Any) -> torch.Tensor:
        """The log-probabilities of a micro-batch; its entropies are kept for `aggregated`."""
        self._bonus = None if self._actor.config.entropy_coeff else 0.0
        made: torch.Tensor
        self._entropies, made = result if self._pairs else (result.get("entropys"), result["log_probs"])
        return made

    def standing_in(self, leaf: torch.Tensor) -> Any:
        """The outputs of a forward pass that made `leaf`, without entropies' gradients."""
        self._entropies = torch.zeros_like(leaf)
        return (self._entropies, leaf) if self._pairs else {"log_probs": leaf, "entropys": self._entropies}

    def aggregated(self, values: torch.Tensor, result: torch.Tensor, share: float) -> None:
        """Takes down what the entropies add to the loss. share: what the loss is multiplied with."""
        if values is self._entropies:
            self._bonus = -self._actor.config.entropy_coeff * result.detach() * share

    def differentiating(self) -> contextlib.AbstractContextManager[None]:
        """The span in which verl differentiates its losses; see `Tap.differentiating`."""
        if self._observation.observes:
            return contextlib.nullcontext()
        return self._tap.differentiating(beside=lambda: self._bonus)


def _cut_alike(data: Any, *arguments: Any, **options: Any) -> Any:
    """verl's cut by token counts into as many micro-batches on every rank. Natively ranks count their own, and those of
    FSDP wait for each other for ever where they differ; a plan's steps are balanced by other means than verl's."""
    from verl.utils.seqlen_balancing import prepare_dynamic_batch

    return prepare_dynamic_batch(data, *arguments, **{"dp_group": torch.distributed.group.WORLD, **options})


def _scoring(actor: Any) -> Any:
    """An actor's `compute_log_prob` whose ranks cut alike."""
    native = undecorated(type(actor).compute_log_prob, "compute_log_prob")
    return types.MethodType(rebound(native, prepare_dynamic_batch=_cut_alike), actor)


def schedule_of(optim: Any, optimizer: Any, ticks: int) -> Any:
    """verl's own schedule over `ticks` ticks. Source: verl 0.7.1 fsdp_workers._build_model_optimizer."""
    from verl.utils import torch_functional

    warmup = int(optim.get("lr_warmup_steps", -1))
    warmup = int(optim.get("lr_warmup_steps_ratio", 0.0) * ticks) if warmup < 0 else warmup
    if optim.get("lr_scheduler_type", "constant") == "constant":
        return torch_functional.get_constant_schedule_with_warmup(optimizer=optimizer, num_warmup_steps=warmup)
    return torch_functional.get_cosine_schedule_with_warmup(
        optimizer=optimizer,
        num_warmup_steps=warmup,
        num_training_steps=ticks,
        min_lr_ratio=optim.get("min_lr_ratio", 0.0) or 0.0,
        num_cycles=optim.get("num_cycles", 0.5),
    )


def undecorated(function: Any, name: str) -> Any:
    """The function under a decorator of verl's, which has it among its variables."""
    held = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
    inner = next((one for one in held if getattr(one, "__name__", None) == name), None)
    return function if inner is None else undecorated(inner, name)


@contextlib.contextmanager
def _told(config: Any, values: Mapping[str, Any]) -> Iterator[None]:
    """The span in which a frozen configuration has other values."""
    before = {name: getattr(config, name) for name in values}
    try:
        for name, value in values.items():
            object.__setattr__(config, name, value)
        yield
    finally:
        for name, value in before.items():
            object.__setattr__(config, name, value)
