"""A training worker's side: EasyR1's own `update_policy`, one optimizer step at a time, with the step's token weights.

The native function runs as it is written, on this actor alone, with three of its names bound to ours: the average of a
micro-batch, the policy loss (that average in it, too) and the cut by token budget (written down). Micro-batches,
forward and backward passes, gradient clipping and the optimizer stay EasyR1's. What each step trains is measured
(`watching`), and held against the plan right before the update, after whatever else has touched the gradients.

Imports torch; EasyR1 only inside functions that a worker runs.
"""

from __future__ import annotations

import contextlib
import functools
import math
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from batchbridge import CannotAttach
from batchbridge.kit import Normaliser, Row, proven
from batchbridge.kit.identified_rows import POSITION, PROMPT, ROLLOUT, SAMPLE, STEP
from batchbridge.kit.measuring import Measured
from batchbridge.kit.observing import Observation
from batchbridge.kit.patches import Patches, rebound
from batchbridge.kit.probing import ProbeBatch, batches, normaliser, verdict
from batchbridge.kit.workers import Orders, Receipt, Recorder, TrainedRow, facts
from batchbridge_easyr1.clock import TickedSchedule, schedule_of
from batchbridge_easyr1.exchange import Exchange
from batchbridge_easyr1.images import processed
from batchbridge_easyr1.proven import CODE
from batchbridge_easyr1.sampling import seeded
from batchbridge_easyr1.watching import EasyR1StepInputs, EasyR1StepProbe

_REMEDY = (
    "a loss of your own cannot be enforced unless it weighs tokens as the plan does: wrap with "
    """mode="observe" to record what it does, or use EasyR1's own"""
)


def install(worker: Any, orders: Orders) -> Receipt:
    """Patches an `FSDPWorker` whose model stands; replaces what an earlier call installed.

    Raises `CannotAttach` naming what this worker has that the patches were not proven on.
    """
    import torch.distributed as dist

    remove(worker)
    worker.batchbridge = layer = ActorLayer(worker, orders)
    return Receipt.here(orders, rank=dist.get_rank(), world_size=layer.exchange.replicas)


def probe(worker: Any) -> None:
    """Holds the loss of a worker that `install` has patched against the plan's weights, where it should be enforced.

    Raises `CannotAttach`. Collective.
    """
    worker.batchbridge.probe()


def remove(worker: Any) -> None:
    """Undoes `install`; a worker without it is left alone."""
    layer = vars(worker).pop("batchbridge", None)
    if layer is not None:
        layer.remove()


class ActorLayer:
    """The patches of one training worker."""

    def __init__(self, worker: Any, orders: Orders) -> None:
        import torch.distributed as dist

        self._worker, self._actor, self._orders = worker, worker.actor, orders
        self._config = self._actor.config
        self._require_proven_code()
        self.exchange = Exchange(worker)
        replica, replicas = self.exchange.replica, self.exchange.replicas
        self._recorder = Recorder(
            "easyr1", self._orders, rank=replica, world_size=replicas, gather=self.exchange.gather
        )
        self._plan = self._recorder.plan
        self._observation = Observation(orders.mode)
        self._observation.when_over = self._recorder.end_observing
        self._patches = Patches(self._observation)
        self._undo_settings: list[tuple[str, Any]] = []
        self._probing = False
        self._data: Any = None
        self._rows: list[TrainedRow | None] = []
        self._first_step, self._done = 0, 0
        self._last: int | None = None
        self._cuts: list[list[int]] | None = None
        self._normaliser: Normaliser | None = None
        self._looked = False
        self._tick = True
        names: dict[str, Any] = {"prepare_dynamic_batch": self._cut_by_tokens}
        if orders.mode == "enforce":
            self._apply_settings()
            self._set_clock()
            native = type(self._actor).update_policy.__globals__["compute_policy_loss"]
            self._native_policy_loss = rebound(native, average_loss=self._average)
            names |= {"average_loss": self._average, "compute_policy_loss": self._policy_loss}
            if (rollout := getattr(worker, "rollout", None)) is not None:
                what, why = "each completion by its own seed", "rollout identity"
                self._patches.set(rollout, "generate_sequences", seeded(rollout), what=what, why=why)
            if getattr(worker, "processor", None) is not None:
                what, why = "images of each call's own rows", "membership of the plan"
                self._patches.set(worker, "_process_multi_modal_inputs", processed(worker), what=what, why=why)
        native_update = types.MethodType(rebound(type(self._actor).update_policy, **names), self._actor)
        update, self._native_update = self._observation.guarded(native_update, self._update, exchanges=True)
        held: dict[str, Any] = {"what": "held against the plan", "why": "ledger"}
        self._patches.set(self._actor, "update_policy", update, **held)
        ours = self._optimizer_step
        self._native_optimizer_step = self._patches.read(self._actor, "_optimizer_step", ours, **held)
        ranks = dist.get_world_size()
        self._watch = EasyR1StepProbe(
            self._actor, orders.trained.objective, ranks=ranks, replicas=replicas, patches=self._patches
        )

    def remove(self) -> None:
        """Restores the worker and closes the ledger."""
        try:
            self._patches.undo()
        finally:
            while self._undo_settings:
                name, value = self._undo_settings.pop()
                setattr(self._config, name, value)
            self._recorder.close()

    # ---- the probe

    def probe(self) -> None:
        """The actor's own probe, see `probe`: `update_policy` on made-up values, without a model or an update."""
        if self._orders.mode != "enforce":
            return
        term, taps = self._orders.spec.loss.policy, []
        device = torch.device(torch.cuda.current_device())
        # With the current policy as the ratio's denominator every ratio is one.
        for off_policy in (False,) if self._orders.detached else (False, True):
            tap, made = self._watch.tap(), list(batches(self._watch.objective, off_policy=off_policy, device=device))
            self._watch.leaves(tap, made)
            self._run_probe(made, normaliser(term))
            taps.append(tap)
        # Every rank brings the probe's tokens, and has the denominators of its own: the native factor for the ranks
        # cancels against the native sum of their tokens.
        verdict(taps, term, remedy=_REMEDY)

    def _run_probe(self, made: Sequence[ProbeBatch], step: Normaliser) -> None:
        training, self._probing, self._normaliser = self._actor.actor_module.training, True, step
        rows = len(made[0].lengths)
        try:
            with self._one_step(rows * len(made), dynamic_batching=False, micro_batch_size_per_device_for_update=rows):
                self._native_update(made_up(made))
        except CannotAttach:
            raise
        except Exception as error:
            reason = (
                f"EasyR1's update did not run on made-up micro-batches ({type(error).__name__}: {error}); {_REMEDY}"
            )
            raise CannotAttach({"weight_probe": reason}) from error
        finally:
            self._watch.leaves(self._watch.tap(), ())
            self._probing, self._normaliser, self._cuts = False, None, None
            self._actor.actor_module.train(training)

    def _require_proven_code(self) -> None:
        actor = type(self._actor)
        if (actor.__module__, actor.__qualname__) != ("verl.workers.actor.dp_actor", "DataParallelPPOActor"):
            raise CannotAttach({"actor": f"the worker's actor is a {actor.__module__}.{actor.__qualname__}"})
        if not hasattr(self._actor.actor_module, "clip_grad_norm_"):
            raise CannotAttach({"actor": "the worker's actor is not an FSDP1 module"})
        self._orders = self._orders.here(proven.require(CODE, self._orders.allow, self._worker, self._actor))
        if replaced := sorted({"update_policy", "_optimizer_step", "_forward_micro_batch"} & vars(self._actor).keys()):
            raise CannotAttach({"actor": f"something else has replaced {', '.join(replaced)} of this actor"})

    # ---- what the native loss and clock read

    def _apply_settings(self) -> None:
        for name, value in self._orders.settings.items():
            self._undo_settings.append((name, getattr(self._config, name)))
            setattr(self._config, name, value)

    def _set_clock(self) -> None:
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
        if not self._observation.agree(self.exchange.gather):  # before the first exchange: others would wait for it
            return dict(self._native_update(data))
        self._data, self._done = data, 0
        self._rows, inputs = expected
        self._watch.expect(inputs, self._places)
        try:
            if self._orders.mode != "enforce":
                rollouts = self.exchange.gather([(row.rollout,) for row in self._rows if row is not None])
                self._first_step = min(rollouts)[0] * self._orders.steps_per_rollout
                return dict(self._native_update(data))
            return self._enforced(data)
        finally:
            self._data, self._normaliser = None, None
            self._watch.expect(None, self._places)

    def _expected(self, data: Any) -> tuple[list[TrainedRow | None], EasyR1StepInputs]:
        """A batch's rows, and what they are meant to train."""
        if POSITION not in data.non_tensor_batch:
            reason = "a batch without BatchBridge's columns reached the actor's optimizer"
            raise CannotAttach({"unplanned_batch": reason})
        detached = self._orders.detached and self._orders.mode == "enforce"
        penalised = bool(self._config.use_kl_loss) and "ref_log_probs" in data.batch.keys()  # noqa: SIM118 - a TensorDict iterates over its rows
        return identified(data), EasyR1StepInputs.of(data.batch, detached=detached, penalised=penalised)

    def _enforced(self, data: Any) -> dict[str, Any]:
        assert self._plan is not None, "wrap refuses to enforce without a plan"
        step = int(data.meta_info[STEP])
        if self._last is not None and step != self._last + 1:
            reason = f"optimizer step {step} follows step {self._last}; before a second fit(), wrap once more"
            raise CannotAttach({"clock": reason})
        self._first_step, self._tick = step, self._plan.step(step).lr_tick
        mine = [(row.rollout, row.prompt, row.tokens) for row in self._rows if row is not None]
        everyone = [Row(tokens=row[2], group=row[:2]) for row in self.exchange.gather(mine)]
        self._normaliser = Normaliser.of(self._orders.spec.loss.policy, everyone)
        if self._normaliser.tokens:
            with self._one_step(len(data)):
                metrics = dict(self._native_update(data))
        else:
            metrics = {}  # EasyR1 would divide by zero tokens, and let AdamW decay the weights
            self._compare(())
            self._write(gradient_norm=None, skipped=True)
        self._last = step
        return metrics

    @contextlib.contextmanager
    def _one_step(self, rows: int, **more: Any) -> Iterator[None]:
        """The native loop sees one mini-batch of `rows` rows, once; and `more` of its settings."""
        settings = {"global_batch_size_per_device": rows, "ppo_epochs": 1, **more}
        own = {name: getattr(self._config, name) for name in settings}
        for name, value in settings.items():
            setattr(self._config, name, value)
        try:
            yield
        finally:
            for name, value in own.items():
                setattr(self._config, name, value)

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
        if self._data is None:
            return self._native_optimizer_step()
        optimizer, self._looked = self._actor.actor_optimizer, False
        rate = float(optimizer.param_groups[0]["lr"])
        look = functools.partial(self._observation.read, self._look)
        last = optimizer.register_step_pre_hook(lambda *_: look())
        try:
            norm = self._native_optimizer_step()
        finally:
            last.remove()
        if not self._looked:  # a norm that is not finite: nothing was applied, and no weight can be read off
            self._watch.drop()
            for row in self._of_this_step():
                row.measured(Measured(None, 0.0))
            self._compare(())
        self._write(gradient_norm=float(norm), skipped=not math.isfinite(float(norm)), learning_rate=rate)
        self._done, self._cuts = self._done + 1, None
        return norm

    def _look(self) -> None:
        """The look at a step before its update, when all that it uses is there: measured, and held against the plan."""
        self._looked = True
        self._compare(self._watch.look(self._step_rows(), self._start))

    def _compare(self, objections: Sequence[str]) -> None:
        if self._observation.observes:
            return
        step, rows = self._first_step + self._done, self._of_this_step()
        self.exchange.agree(lambda: self._recorder.compare(step, rows, objections, pass_index=self._native_pass))

    # ---- facts

    def _of_this_step(self) -> list[TrainedRow]:
        return [row for row in self._step_rows() if row is not None]

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

    def _native_pass(self) -> int:
        return int(self._done // max(len(self._rows) // self._config.global_batch_size_per_device, 1))

    def _natively_last(self) -> bool:
        steps = self._config.ppo_epochs * (len(self._rows) // self._config.global_batch_size_per_device)
        return bool(self._done + 1 == steps)

    def _write(self, *, gradient_norm: float | None, skipped: bool, learning_rate: float | None = None) -> None:
        if not self.exchange.writes:
            return
        rows = self._of_this_step()
        rate = self._actor.actor_optimizer.param_groups[0]["lr"] if learning_rate is None else learning_rate
        self._recorder.write(
            self._first_step + self._done,
            rows,
            [facts_of(self._data.batch, row.index) for row in rows],
            normaliser=self._normaliser,
            pass_index=self._native_pass,
            lr_tick=self._natively_last,
            learning_rate=float(rate),
            gradient_norm=gradient_norm,
            skipped=skipped,
        )


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
