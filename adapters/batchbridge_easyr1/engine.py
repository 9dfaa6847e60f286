"""A training worker's side: EasyR1's own `update_policy`, one optimizer step at a time, with the step's token weights.

The native function runs as it is written, on this actor alone, with three of its names bound to ours: the average of a
micro-batch, the policy loss (that average in it, too) and the cut by token budget (written down). Micro-batches,
forward and backward passes, gradient clipping and the optimizer stay EasyR1's. What each step trains is measured
(`watching`), and held against the plan right before the update, after whatever else has touched the gradients.

Imports torch; EasyR1 only inside functions that a worker runs.
"""

from __future__ import annotations

import contextlib
import math
import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from batchbridge import CannotAttach
from batchbridge.kit import proven, worker_layer
from batchbridge.kit.carried_rows import row_objections
from batchbridge.kit.identified_rows import POSITION, PROMPT, ROLLOUT, SAMPLE, STEP
from batchbridge.kit.measuring import Measured
from batchbridge.kit.optimizer_groups import applied_rate
from batchbridge.kit.patches import Patches, rebound, temporarily
from batchbridge.kit.probing import ProbeBatch, batches, made_up_run, normaliser, remedy_with, verdict
from batchbridge.kit.replicas import Replicas
from batchbridge.kit.row_digests import ROW_DIGESTS, InputObjection
from batchbridge.kit.worker_layer import Seam, StepInHand, WorkerLayer
from batchbridge.kit.workers import Orders, Receipt, TrainedRow, facts
from batchbridge_easyr1.clock import TickedSchedule, schedule_of
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


class ActorLayer(WorkerLayer):
    """The patches of one training worker."""

    framework = "easyr1"
    _watch: EasyR1StepProbe

    def __init__(self, worker: Any, orders: Orders, patches: Patches) -> None:
        mesh = worker.ulysses_device_mesh
        groups = (None, None) if mesh is None else (mesh["dp"].get_group(), mesh["sp"].get_group())
        # With Ulysses (S = `worker.actor.ulysses_size`) every S ranks are one replica. Source: EasyR1 0.3.2 to
        # 0.3.3.dev0 FSDPWorker._init_dist_mesh, sharding_manager/fsdp_ulysses.py.
        super().__init__(orders, patches, Replicas(*groups))
        self._worker, self._actor, self._config = worker, worker.actor, worker.actor.config
        self._probing = False
        self._data: Any = None
        self._rows: list[TrainedRow | None] = []
        self._changed: dict[int, InputObjection] = {}
        """Objections to rows that do not carry what the trainer's process sent, by their place in the batch."""
        self._first_step, self._done = 0, 0
        self._cuts: list[list[int]] | None = None
        self._tick = True

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
        ours, self._native_update = self._observation.guarded(native_update, self._update, exchanges=True)
        yield Seam(self._actor, "update_policy", ours)
        yield Seam(self._actor, "_optimizer_step", self._optimizer_step, reads=True)

    def watching(self) -> EasyR1StepProbe:
        """The measuring of the actor's steps."""
        ranks, replicas = torch.distributed.get_world_size(), self.ranks.replicas
        objective = self._orders.trained.objective
        return EasyR1StepProbe(self._actor, objective, ranks=ranks, replicas=replicas, patches=self._patches)

    @property
    def trained_module(self) -> Any:
        """The actor's module, whose flat parameters FSDP1 gives the optimizer."""
        return self._actor.actor_module

    @property
    def optimizer(self) -> Any:
        """The optimizer that is there when the layer is installed; see `WorkerLayer`."""
        return self._actor.actor_optimizer

    @property
    def schedule(self) -> Any:
        """The worker's scheduler; see `WorkerLayer`."""
        return self._worker.lr_scheduler

    # ---- the probe

    def hold_loss(self) -> None:
        """The actor's own probe: `update_policy` on made-up values, without a model or an update."""
        term, taps = self._orders.spec.loss.policy, []
        device = torch.device(torch.cuda.current_device())
        # With the current policy as the ratio's denominator every ratio is one.
        for off_policy in (False,) if self._orders.detached else (False, True):
            tap, made = self._watch.tap(), list(batches(self._watch.objective, off_policy=off_policy, device=device))
            self._watch.leaves(tap, made)
            self._run_probe(made)
            taps.append(tap)
        # Every rank brings the probe's tokens, and has the denominators of its own: the native factor for the ranks
        # cancels against the native sum of their tokens.
        verdict(taps, term, remedy=_REMEDY)

    def _run_probe(self, made: Sequence[ProbeBatch]) -> None:
        training, self._probing = self._actor.actor_module.training, True
        self._normaliser, rows = normaliser(self._orders.spec.loss.policy), len(made[0].lengths)
        one_cut = {"dynamic_batching": False, "micro_batch_size_per_device_for_update": rows}
        try:
            with (
                made_up_run("EasyR1's update did not run on made-up micro-batches", _REMEDY),
                self._one_step(rows * len(made), **one_cut),
            ):
                self._native_update(made_up(made))
        finally:
            self._watch.leaves(self._watch.tap(), ())
            self._probing, self._normaliser, self._cuts = False, None, None
            self._actor.actor_module.train(training)

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

    # ---- one call of update_policy: one optimizer step where the plan is enforced, else a rollout's

    def _update(self, data: Any) -> dict[str, Any]:
        expected = self._observation.read(self._expected, data)
        if not self._observation.agree(self.ranks.gather):  # before the first exchange: others would wait for this rank
            return dict(self._native_update(data))
        self._data, self._done = data, 0
        self._rows, inputs, self._changed = expected
        self._watch.expect(inputs, self._places)
        try:
            if self._enforces:
                return self._enforced(data)
            rollouts = self.ranks.gather([(row.rollout,) for row in self._rows if row is not None])
            self._first_step = min(rollouts)[0] * self._orders.steps_per_rollout
            with self._watch.differentiating():
                return dict(self._native_update(data))
        finally:
            self._data, self._normaliser = None, None
            self._watch.expect(None, self._places)

    def _expected(self, data: Any) -> tuple[list[TrainedRow | None], EasyR1StepInputs, dict[int, InputObjection]]:
        """A batch's rows, what they are meant to train, and objections to what they carry."""
        if POSITION not in data.non_tensor_batch:
            reason = "a batch without BatchBridge's columns reached the actor's optimizer"
            raise CannotAttach({"unplanned_batch": reason})
        detached = self._orders.detached and self._enforces
        penalised = bool(self._config.use_kl_loss) and "ref_log_probs" in data.batch.keys()  # noqa: SIM118 - a TensorDict iterates over its rows
        given = EasyR1StepInputs.of(
            data.batch, detached=detached, penalised=penalised, temperature=self._orders.temperature
        )
        rows = identified(data)
        told = None if self._observation.observes else data.meta_info.get(ROW_DIGESTS)
        return rows, given, row_objections(told, data.batch, [row for row in rows if row is not None], CARRIED)

    def _enforced(self, data: Any) -> dict[str, Any]:
        assert self._plan is not None, "wrap refuses to enforce without a plan"
        step = int(data.meta_info[STEP])
        self.follow(step)
        self._first_step, self._tick = step, self._plan.step(step).lr_tick
        self._normaliser = self.denominators(row for row in self._rows if row is not None)
        if self._normaliser.tokens:
            with self._one_step(len(data)), self._watch.differentiating():
                metrics = dict(self._native_update(data))
        else:
            metrics = {}  # EasyR1 would divide by zero tokens, and let AdamW decay the weights
            self._learning_rate = applied_rate(self._actor.actor_optimizer)
            self.hold([*self._changed.values()])
            self.write(gradient_norm=None, skipped=True)
        return metrics

    def _one_step(self, rows: int, **more: Any) -> contextlib.AbstractContextManager[None]:
        """The native loop sees one mini-batch of `rows` rows, once; and `more` of its settings."""
        return temporarily(self._config, global_batch_size_per_device=rows, ppo_epochs=1, **more)

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

        made = prepare_dynamic_batch(data, *arguments, **options)
        self._cuts = self._observation.read(lambda: made[1])
        return made

    def _optimizer_step(self) -> Any:
        if self._probing:
            return torch.zeros(())
        native = self.native["_optimizer_step"]
        if self._data is None:
            return native()
        with self.updating(self._actor.actor_optimizer):
            norm = native()
        if not self._looked:  # a norm that is not finite: nothing was applied, and no weight can be read off
            self._watch.drop()
            for row in self.in_hand().rows:
                row.measured(Measured(None, 0.0))
            self.hold()
        self.write(gradient_norm=float(norm), skipped=not math.isfinite(float(norm)))
        self._done, self._cuts = self._done + 1, None
        return norm

    def measure(self) -> list[str]:
        """Reads off what every row of the step weighed; see `WorkerLayer.measure`."""
        rows = self._step_rows()
        changed = [self._changed[row.index] for row in rows if row is not None and row.index in self._changed]
        return [*changed, *self._watch.look(rows, self._start)]

    # ---- facts

    def in_hand(self) -> StepInHand:
        """The step of this update, or of a rollout's updates."""
        rows, batch = [row for row in self._step_rows() if row is not None], self._data.batch
        return StepInHand(self._first_step + self._done, rows, lambda: [facts_of(batch, row.index) for row in rows])

    def _step_rows(self) -> Sequence[TrainedRow | None]:
        size = len(self._rows) if self._normaliser is not None else self._config.global_batch_size_per_device
        return self._rows[self._start : self._start + size]

    @property
    def _start(self) -> int:
        """The place of the step's first row in the batch."""
        size = self._config.global_batch_size_per_device
        return 0 if self._normaliser is not None else int(self._done % max(len(self._rows) // size, 1) * size)

    def _places(self, number: int, rows: int) -> Sequence[int]:
        """Places in the batch of the rows of a micro-batch of the step. Source: EasyR1 DataProto.split."""
        if self._cuts is not None:
            return [self._start + place for place in self._cuts[number]] if number < len(self._cuts) else []
        first = self._start + number * self._config.micro_batch_size_per_device_for_update
        return range(first, min(first + rows, len(self._rows)))

    def native_pass(self) -> int:
        """The pass over the rollout that is being trained; see `WorkerLayer.native_pass`."""
        return int(self._done // max(len(self._rows) // self._config.global_batch_size_per_device, 1))

    def native_tick(self) -> bool:
        """Whether this is the rollout's last step: EasyR1 ticks once for each."""
        steps = self._config.ppo_epochs * (len(self._rows) // self._config.global_batch_size_per_device)
        return bool(self._done + 1 == steps)


def identified(data: Any) -> list[TrainedRow | None]:
    """Identities of this rank's rows of a `DataProto`; None for fillers."""
    columns = [data.non_tensor_batch[name].tolist() for name in (ROLLOUT, PROMPT, POSITION, SAMPLE)]
    tokens = data.batch["response_mask"].sum(-1).tolist()
    return [
        TrainedRow(int(rollout), int(prompt), int(position), int(sample), int(count), index) if position >= 0 else None
        for index, (rollout, prompt, position, sample, count) in enumerate(zip(*columns, tokens, strict=True))
    ]


def made_up(parts: Sequence[ProbeBatch]) -> Any:
    """The `DataProto` of a probe's micro-batches: its tokens are one token, which nothing reads."""
    from verl.protocol import DataProto

    masks = torch.cat([part.mask for part in parts])
    old = torch.cat([part.logprobs if part.old is None else part.old for part in parts])
    references = [part.logprobs if part.reference is None else part.reference for part in parts]
    ids = torch.ones_like(masks)
    tensors = {name: ids.clone() for name in ("input_ids", "attention_mask", "position_ids", "responses")}
    tensors |= {
        "response_mask": masks,
        "old_log_probs": old,
        "ref_log_probs": torch.cat(references),
        "advantages": torch.cat([part.advantages[:, None] * part.mask for part in parts]),
    }
    return DataProto.from_dict(tensors=tensors, meta_info={"temperature": 1.0})


def facts_of(batch: Mapping[str, Any], index: int) -> dict[str, Any]:
    """Fingerprints, reward, advantage and digest of the old log-probabilities of one row; see `workers.facts`."""
    width = batch["responses"].shape[1]
    attended = batch["attention_mask"][index].bool()
    length = int(attended[-width:].sum())
    mask = batch["response_mask"][index].bool()
    return facts(
        prompt=batch["input_ids"][index][:-width][attended[:-width]].tolist(),
        completion=batch["responses"][index][:length].tolist(),
        trained=batch["advantages"][index][mask].tolist(),
        old_logprobs=batch["old_log_probs"][index][:length].float().tolist(),
        reward=float(batch["token_level_scores"][index].sum()) if "token_level_scores" in batch.keys() else None,  # noqa: SIM118 - a TensorDict iterates over its rows
    )
