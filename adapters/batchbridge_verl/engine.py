"""A training worker's side: one native optimizer step at a time is measured, held against the plan and written down.

The layer that every verl trainer shares. The driver decides which rows a call of `update_actor` carries and says which
optimizer step they are; here, in each data-parallel rank, the rows of all ranks are gathered, the denominators are set
to the step's own, the learning rate's clock is set, and nothing is applied that is not the plan's. The loss, the
micro-batches, the backward passes and the optimizer stay verl's.

Imports torch and verl only inside functions that a worker runs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar

from batchbridge import CannotAttach
from batchbridge.kit import Normaliser, Objective, Row, StepPlan, proven, token_weights, worker_layer
from batchbridge.kit.carried_rows import response_length, row_objections
from batchbridge.kit.identified_rows import POSITION, PROMPT, ROLLOUT, SAMPLE, STEP
from batchbridge.kit.optimizer_groups import applied_rate
from batchbridge.kit.patches import Patches
from batchbridge.kit.replicas import Replicas
from batchbridge.kit.row_digests import ROW_DIGESTS
from batchbridge.kit.worker_layer import Seam, StepInHand, WorkerLayer
from batchbridge.kit.workers import Orders, Receipt, TrainedRow, facts
from batchbridge_verl.columns import CARRIED, column
from batchbridge_verl.proven import CODE
from batchbridge_verl.settings import holds
from batchbridge_verl.terms import REJECTS

if TYPE_CHECKING:
    from batchbridge_verl.watching import VerlStepProbe

probe, remove = worker_layer.probe, worker_layer.remove
WEIGHTS_OF = "batchbridge_weights_of"
PADDED_LOSS = "<0.8.0"
"""Releases whose losses take responses of one width alone. Source: verl 0.7.1 and 0.8.0 workers/utils/losses.py."""


def install(
    worker: Any, orders: Orders, beside: Sequence[Any] = (), *, layer: type[VerlEngineLayer] | None = None
) -> Receipt:
    """Patches a `TrainingWorker` whose engine and loss stand; replaces what an earlier call installed. beside: engines
    of its process that only score (the reference's). layer: of another model than the policy.

    Raises `CannotAttach` naming what this worker has that the patches were not proven on; the worker is then unpatched.
    """
    import torch

    from batchbridge_verl.other_engines import ALLOWED, PROVEN, is_proven, named_in

    remove(worker)
    known, engine = is_proven(worker.engine), type(worker.engine).__name__
    if not known and orders.mode == "enforce" and ALLOWED not in orders.allow:
        raise CannotAttach({ALLOWED: f"{engine} is not proven; proven: {', '.join(PROVEN)}"})
    found = proven.require(CODE, orders.allow, worker, *([worker.engine] if known else ()))
    orders = orders.here(found if known else named_in(found, worker.engine))
    kind = layer or VerlEngineLayer
    worker_layer.install(worker, orders, lambda patches: kind(worker, orders, patches, beside))
    size = worker.engine.get_data_parallel_size()
    return Receipt.here(orders, rank=torch.distributed.get_rank(), world_size=size)


class VerlEngineLayer(WorkerLayer):
    """The patches of one training worker."""

    framework = "verl"
    model: ClassVar[str] = "actor"
    _watch: VerlStepProbe

    def __init__(self, worker: Any, orders: Orders, patches: Patches, beside: Sequence[Any] = ()) -> None:
        from batchbridge_verl.other_engines import is_proven

        self._worker, self._engine, self._beside = worker, worker.engine, beside
        self._is_proven = is_proven(self._engine)
        super().__init__(orders, patches, ranks_of(self._engine, self._is_proven))
        self._rows: list[TrainedRow] = []
        self._step = StepInHand(0, ())
        self._size = 0
        """Rows of the step on this rank, fillers included."""
        self._call_steps = 0
        self._gradient_norm: float | None = None
        self._objections: list[str] = []
        self._data: Any = None
        self._config = self._loss_config()
        self._mask = mask_of(orders.trained.objective)

    def prepare(self) -> None:
        """Fillers in a loss that knows none, whole states of checkpoints, and the sharing of prompts."""
        from batchbridge_verl.distillation import allow_fillers
        from batchbridge_verl.whole import WholeLoads

        if self._enforces:
            allow_fillers(self._worker.loss_fn, self._patches)
            if self._is_proven:
                WholeLoads(self._engine.checkpoint_manager, self._patches)
        self._share_prompts()

    def seams(self) -> Iterable[Seam]:
        """The seams of a worker and its engine."""
        yield Seam(self._engine, "train_batch", self._train_batch, reads=True, exchanges=True)
        yield Seam(self._engine, "optimizer_step", self._optimizer_step, reads=True)
        yield Seam(self._worker, "train_mini_batch", self._call, reads=True)

    def watching(self) -> VerlStepProbe:
        """The part that measures this model's optimizer steps."""
        watch = self._watching(self._patches)
        if self._orders.mode == "verify" and not watch.shows:
            surrogate = self._orders.trained.objective.surrogate
            reason = f'nothing shows what the rows of the surrogate {surrogate} weigh; wrap with mode="observe"'
            raise CannotAttach({"surrogate": reason})
        return watch

    def _watching(self, patches: Patches) -> VerlStepProbe:
        from batchbridge_verl.other_engines import VerlLossStepProbe
        from batchbridge_verl.watching import VerlStepProbe

        kind = VerlStepProbe if self._is_proven else VerlLossStepProbe
        return kind(self._engine, self._orders.trained.objective, self._config, patches)

    @property
    def trained_module(self) -> Any:
        """The module that FSDP shards, whose parameters the optimizer has."""
        return self._engine.module if self._is_proven else None

    @property
    def optimizer(self) -> Any:
        """The optimizer that is there when the layer is installed; see `WorkerLayer`."""
        return self._engine.optimizer

    @property
    def schedule(self) -> Any:
        """The engine's scheduler, of an engine of FSDP's; see `WorkerLayer`."""
        return self._engine.lr_scheduler if self._is_proven else None

    @property
    def probe_runs_model(self) -> bool:
        """Whether the engine's loop is one that only its own model runs in (`other_engines.run_probe`)."""
        return not self._is_proven

    def looking(self, optimizer: Any, look: Callable[[], None]) -> AbstractContextManager[Any]:
        """An engine that no proof ran on may have an optimizer of its own: it is looked at before its update is called
        for."""
        from batchbridge_verl.other_engines import VerlLossStepProbe

        watch = self._watch
        return watch.looking(look) if isinstance(watch, VerlLossStepProbe) else super().looking(optimizer, look)

    def _facts(self, data: Any, row: int) -> dict[str, Any]:
        """The facts that the ledger keeps of one row of a batch."""
        from batchbridge_verl.distillation import settings_of

        found = facts_of(data, row, self._mask)
        # With a teacher, what arrived is not what is trained.
        return found if settings_of(self._worker.loss_fn) is None else {**found, "advantage": None}

    def hold_loss(self) -> None:
        """The probe of this worker's loss."""
        from batchbridge_verl.probe import hold_loss_against

        padded = holds(PADDED_LOSS, self._orders.framework_version)
        hold_loss_against(self._orders.spec, self._worker, self._watch, padded=padded)

    def _share_prompts(self) -> None:
        """The sharing of prompts where the orders ask for it, in all engines or in none. Before anything else takes the
        engine's functions."""
        if self._orders.padding == "padded":
            return
        from batchbridge_verl.shared_prompts import SharedPrompts, objection

        engines = (self._engine, *self._beside)
        if why := next(filter(None, map(objection, engines)), None):
            if self._orders.padding == "free":
                raise CannotAttach({"padding_free": why})
            return
        for engine in engines:
            SharedPrompts(engine, self._patches)

    # ---- what the native loss and clock read

    def _loss_config(self) -> Any:
        """The actor's configuration inside the worker's loss: verl's own, or another one of the same form."""
        loss = self._worker.loss_fn
        if not isinstance(loss, functools.partial) or "config" not in loss.keywords:
            reason = f"the worker's loss is {loss!r:.80}, and not functools.partial(loss, config=the {self.model}'s)"
            raise CannotAttach({"loss": reason})
        return loss.keywords["config"]

    def apply_settings(self) -> None:
        """Attributes of the loss's configuration, and the current policy as the ratio's denominator."""
        for path, value in self._orders.settings.items():
            *owners, name = path.split(".")
            target = functools.reduce(getattr, owners, self._config)
            self._set_frozen(target, name, value, why="the requested spec")
        if self._orders.detached:
            self._patches.set(
                self._worker,
                "loss_fn",
                functools.partial(_detached, self._worker.loss_fn, config=self._config),
                what="ratios over the current policy, detached",
                why="objective.old_logprobs of the spec",
            )

    def _set_frozen(self, target: Any, name: str, value: Any, *, why: str) -> None:
        """The change of a frozen attribute: verl freezes its configurations."""
        undo = functools.partial(object.__setattr__, target, name, getattr(target, name))
        object.__setattr__(target, name, value)
        self._patches.made(name, undo, what=f"{value}", why=why)

    def set_clock(self) -> None:
        """Rebuilds the schedule where its horizon is not the plan's: verl counts rollouts."""
        from batchbridge_verl.other_engines import ALLOWED

        engine, ticks = self._engine, self._orders.ticks
        if ticks is None or engine.lr_scheduler is None or engine.optimizer_config.total_training_steps == ticks:
            return
        if not self._is_proven:
            reason = (
                f"its schedule was built for {engine.optimizer_config.total_training_steps} ticks, and the plan has "
                f"{ticks}; set actor_rollout_ref.actor.optim.total_training_steps={ticks}"
            )
            raise CannotAttach({ALLOWED: reason})
        if engine.lr_scheduler.last_epoch > 0:
            raise CannotAttach({"in_training": "the learning rate has moved already; wrap before fit() and resume"})
        why = "horizon of the spec"
        self._set_frozen(engine.optimizer_config, "total_training_steps", ticks, why=why)
        schedule = engine._build_lr_scheduler(engine.optimizer)
        self._patches.set(engine, "lr_scheduler", schedule, what=f"{ticks} ticks", why=why)
        self._patches.set(engine.checkpoint_manager, "lr_scheduler", schedule, what=f"{ticks} ticks", why=why)

    # ---- one call of update_actor, one optimizer step

    def _call(self, data: Any) -> Any:
        self._call_steps = 0
        return self.native["train_mini_batch"](data)

    def _train_batch(self, data: Any, loss_function: Any) -> Any:
        import torch

        from batchbridge_verl.watching import ROW

        native = self.native["train_batch"]
        identified = self._observation.read(self._identify, data)
        if not self._observation.agree(self.ranks.gather):  # before the first exchange: others would wait for this rank
            return native(data, loss_function)
        self._rows = identified
        departing = self._input_objections(data)  # before anything is written into the batch
        if self._enforces and self._mask != "loss_mask":
            # verl counts by loss_mask, in which rejected tokens still are. V0 has made them one already.
            data["loss_mask"] = data[self._mask]
        step = self._step_index(data)
        self.follow(step)
        everyone = self.ranks.gather([(row.rollout, row.prompt, row.sample, row.tokens) for row in self._rows])
        members = [Row(tokens=row[3], group=(row[0], row[1])) for row in everyone]
        normaliser = Normaliser.of(self._orders.spec.loss.policy, members)
        self._normaliser = normaliser if self._enforces else None
        self._gradient_norm, self._looked, self._data = None, False, data
        self._learning_rate = applied_rate(self._engine.optimizer)
        if self._enforces:
            self._set_step(data, step, None if self._plan is None else self._plan.step(step), normaliser)
        known = [self._facts(data, row.index) for row in self._rows]
        self._step = StepInHand(step, self._rows, lambda: known)
        self._objections = [*departing, *self._old_objections(data)]
        if self._enforces and not normaliser.tokens:
            self.hold()
            # verl would divide by zero tokens, or let AdamW decay the weights with no gradient.
            output = {"model_output": {}, "loss": [0.0], "metrics": {"grad_norm": 0.0}}
        else:
            data[ROW] = torch.arange(len(data))
            self._size = len(data)
            with self._watch.expecting(self._given(data, everyone)), self.updating(self._engine.optimizer):
                output = native(data, self._watch.loss(loss_function))
            if not self._looked:
                # A gradient that is not finite: verl leaves the update out, and nothing shows a weight.
                for row in self._rows:
                    row.weight = None
                self.hold()
        self.write(gradient_norm=self._gradient_norm, skipped=not self._looked)
        self._data = None
        self._call_steps += 1
        return output

    def in_hand(self) -> StepInHand:
        """The step of this call of `train_batch`."""
        return self._step

    def measure(self) -> list[str]:
        """Reads off what every row of the step weighed; see `WorkerLayer.measure`."""
        return [*self._objections, *self._watch.look(self._rows, self._size)]

    def _given(self, data: Any, everyone: Sequence[tuple[Any, ...]]) -> Any:
        """The values that this rank's rows are meant to train, as the batch has it now."""
        from batchbridge_verl.distillation import TeacherRows
        from batchbridge_verl.watching import VerlStepInputs

        trained = self._orders.trained
        return VerlStepInputs.of(
            data,
            detached=self._orders.detached,
            penalised=trained.objective.kl_placement == "loss" and bool(trained.objective.kl_coefficient),
            kl_share=self._kl_shares(len(data), everyone),
            mask=self._mask,
            teacher=TeacherRows.of(self._worker.loss_fn, data),
            temperature=self._orders.temperature,
        )

    def _input_objections(self, data: Any) -> list[str]:
        """Objections to rows that do not carry what the trainer's process made digests of."""
        from verl.utils import tensordict_utils as tu

        told = None if self._observation.observes else tu.get(data, ROW_DIGESTS)
        return [*row_objections(told, data, self._rows, CARRIED).values()]

    def _old_objections(self, data: Any) -> list[str]:
        """Objections to log-probabilities that are to be the sampler's. Before the loss, which may change them."""
        if self._orders.trained.objective.old_logprobs != "sampler":
            return []
        for row in self._rows:
            mask = data[self._mask][row.index].bool()
            old, sampled = (data[name][row.index] for name in ("old_log_probs", "rollout_log_probs"))
            if not bool((old == sampled)[mask].all()):
                return [f"the old log-probabilities of prompt {row.prompt}, sample {row.sample} are not the sampler's"]
        return []

    def _kl_shares(self, size: int, everyone: Sequence[tuple[Any, ...]]) -> list[float] | None:
        """The weight of each row's KL term over that of its policy term, where verl aggregates the two differently."""
        loss = self._orders.trained.loss
        if loss.kl is None or loss.kl == loss.policy:
            return None
        members = [Row(tokens=row[3], group=(row[0], row[1])) for row in everyone]
        weights = (token_weights(term, members) for term in (loss.kl, loss.policy))
        shares = {
            tuple(row): float(kl / policy) if policy else 1.0
            for row, kl, policy in zip(everyone, *weights, strict=True)
        }
        found = [1.0] * size
        for row in self._rows:
            found[row.index] = shares[row.rollout, row.prompt, row.sample, row.tokens]
        return found

    def _optimizer_step(self) -> Any:
        self._watch.updates()
        norm = self.native["optimizer_step"]()
        self._gradient_norm = float(norm)
        return norm

    def _set_step(self, data: Any, step: int, planned: StepPlan | None, normaliser: Normaliser) -> None:
        from verl.utils import tensordict_utils as tu

        assert planned is not None, "wrap refuses to enforce without a plan"
        # B of the plan: filler rows natively count here.
        tu.assign_non_tensor(
            data, global_batch_size=max(normaliser.completions, 1), update_lr_scheduler=planned.lr_tick
        )

    # ---- facts

    def _identify(self, data: Any) -> list[TrainedRow]:
        """This rank's rows, fillers left out."""
        if POSITION not in data.keys():  # noqa: SIM118 - a TensorDict iterates over its rows
            raise CannotAttach(
                {"unplanned_batch": f"a batch without BatchBridge's columns reached the {self.model}'s optimizer"}
            )
        columns = [column(data, name) for name in (ROLLOUT, PROMPT, POSITION, SAMPLE)]
        if "uid" in data.keys():  # noqa: SIM118 - a TensorDict iterates over its rows
            # The V1 trainer's own filler rows are copies of a real one under another name.
            own = [str(name).startswith("pad") for name in column(data, "uid")]
            columns[2] = [-1 if filler else position for filler, position in zip(own, columns[2], strict=True)]
        tokens = [int(mask.sum()) for mask in data[self._mask].unbind()]
        rows = [
            TrainedRow(int(rollout), int(prompt), int(position), int(sample), count, index)
            for index, (rollout, prompt, position, sample, count) in enumerate(zip(*columns, tokens, strict=True))
            if int(position) >= 0
        ]
        if WEIGHTS_OF in data.keys():  # noqa: SIM118 - as above
            weights_of = column(data, WEIGHTS_OF)
            for row in rows:
                row.weights_of = int(weights_of[row.index])
        return rows

    def _step_index(self, data: Any) -> int:
        from verl.utils import tensordict_utils as tu

        given = tu.get(data, STEP)
        if given is not None:
            return int(given)
        rollouts = {row[0] for row in self.ranks.gather([(row.rollout,) for row in self._rows])}
        return int(min(rollouts)) * self._orders.steps_per_rollout + self._call_steps

    def native_pass(self) -> int:
        """The pass over the rollout that is being trained; see `WorkerLayer.native_pass`."""
        passes = max(self._orders.spec.optimizer_step.passes_per_rollout, 1)
        return self._call_steps // max(self._orders.steps_per_rollout // passes, 1)

    def native_tick(self) -> bool:
        """Whether verl advances its schedule after this step."""
        from verl.utils import tensordict_utils as tu

        return bool(tu.get(self._data, "update_lr_scheduler", default=False))


def ranks_of(engine: Any, is_proven: bool) -> Replicas:
    """The data-parallel ranks of an engine. The ranks that share their rows with others are compared with the other
    replicas' alone; of an engine that no proof ran on nobody knows which those are, and all agree."""
    import torch

    return Replicas(
        engine.get_data_parallel_group(),
        engine.ulysses_parallel_group if is_proven else torch.distributed.group.WORLD,
        replica=engine.get_data_parallel_rank(),
        writes=bool(engine.is_mp_src_rank_with_outputs()),
    )


def mask_of(objective: Objective) -> str:
    """The column of a batch that says which tokens are trained: rejection writes the mask of the loss, and not the one
    that is counted. Source: verl 0.9.1 rollout_corr_helper.compute_rollout_correction_and_add_to_batch."""
    return "response_mask" if REJECTS in (objective.sampler_correction or "") else "loss_mask"


def facts_of(data: Any, row: int, mask_name: str = "loss_mask") -> dict[str, Any]:
    """Fingerprints, reward, advantage and digest of the old log-probabilities of one row of a batch.

    The V1 trainer sends nested tensors, the V0 trainer padded ones.
    """
    ids, length = data["input_ids"][row], response_length(data, row)
    mask = data[mask_name][row][:length].bool()
    reward = next((name for name in ("rm_scores", "token_level_scores") if name in data.keys()), None)  # noqa: SIM118
    return facts(
        prompt=ids[: len(ids) - length].tolist(),
        completion=data["responses"][row][:length].tolist(),
        trained=data["advantages"][row][:length][mask].tolist(),
        old_logprobs=data["old_log_probs"][row][:length].float().tolist(),
        reward=None if reward is None else float(data[reward][row].sum()),
    )


def _detached(native: Any, model_output: Any, data: Any, dp_group: Any = None, *, config: Any) -> Any:
    """The loss of verl with the current policy, detached, in place of the old log-probabilities."""
    import torch
    from verl.workers.utils.padding import no_padding_2_padding

    current = no_padding_2_padding(model_output["log_probs"], data).detach()
    if data["response_mask"].is_nested:
        lengths = [len(mask) for mask in data["response_mask"].unbind()]
        rows = [current[row, :length] for row, length in enumerate(lengths)]
        current = torch.nested.as_nested_tensor(rows, layout=torch.jagged)
    data["old_log_probs"] = current
    return native(model_output=model_output, data=data, dp_group=dp_group)
