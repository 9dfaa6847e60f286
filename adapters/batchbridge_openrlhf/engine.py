"""A training process's side: every optimizer step of an `ActorPPOTrainer` is cut by the plan, measured, held against it
and written down.

OpenRLHF's own code for dynamic batches runs any list of micro-batches with given denominators and given steps, and
skips its shuffle; here that list is the plan's. The forward and backward passes, the loss, DeepSpeed's engine, the
optimizer and the learning rate's schedule stay theirs. DeepSpeed is told where a step ends before each forward pass:
counting micro-batches, it would let remainders leak into the next step, and with dynamic batches under ZeRO-1 and 2
it would keep the last micro-batch's gradient alone.

Source: openrlhf 0.11.2 ppo_actor.ActorPPOTrainer, replay_buffer.NaiveReplayBuffer, loss_utils.get_loss_batch_info,
loss.aggregate_loss; deepspeed 0.19.6 engine.set_gradient_accumulation_boundary, zero/stage_1_and_2.py.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from batchbridge import BatchDrift, CannotAttach
from batchbridge.kit import CandidatePlan, Normaliser, Row, proven, worker_layer
from batchbridge.kit.optimizer_groups import applied_rate
from batchbridge.kit.patches import Patches
from batchbridge.kit.ranks import cut_shares, steps_of_rollout
from batchbridge.kit.row_digests import InputObjection
from batchbridge.kit.worker_layer import Seam, StepInHand, WorkerLayer
from batchbridge.kit.workers import Orders, Receipt, TrainedRow, read_off
from batchbridge_openrlhf.answers import ANSWERED
from batchbridge_openrlhf.images import hold_all_or_none
from batchbridge_openrlhf.inputs import SENT, sent_objection
from batchbridge_openrlhf.membership import by_row, one_rollout, replayed
from batchbridge_openrlhf.proven import CODE
from batchbridge_openrlhf.rings import RankRings, hold_cutting, hold_gathering
from batchbridge_openrlhf.turns import (
    IDENTITY,
    NO_FACTS,
    NO_TOKEN,
    NOBODY,
    ExperienceCompanions,
    PlannedStep,
    ReplayedCompletion,
    facts_of,
    filler_of,
    name_passes,
)

if TYPE_CHECKING:
    from batchbridge_openrlhf.probe import OpenRlhfLossProbe
    from batchbridge_openrlhf.watching import OpenRlhfStepProbe

PLACE = "batchbridge_engine"
"""The attribute of a trainer that holds its layer; `batchbridge` is what `wrap` gives."""
KL_COEFFICIENT = "algo.kl.init_coef"
"""A setting that the native step is called with; the others it reads."""
VALUE_CLIP = "loss.clip_eps"
"""A setting of a critic's loss."""


def install(trainer: Any, orders: Orders, kind: type[OpenRlhfEngineLayer] | None = None) -> Receipt:
    """Patches an `ActorPPOTrainer` and probes its loss; replaces what an earlier call installed. Raises `CannotAttach`;
    the trainer is then unpatched.

    kind: of another trainer of OpenRLHF's, its layer.
    """
    import torch

    remove(trainer)
    made = kind or OpenRlhfEngineLayer
    engine, buffer, loss, _ = made.parts(trainer)
    orders = orders.here(proven.require(CODE, orders.allow, trainer, engine, buffer, loss))
    layer = worker_layer.install(trainer, orders, lambda patches: made(trainer, orders, patches), place=PLACE)
    try:
        layer.probe()
    except BaseException:
        remove(trainer)
        raise
    return Receipt.here(orders, rank=torch.distributed.get_rank(), world_size=torch.distributed.get_world_size())


remove = functools.partial(worker_layer.remove, place=PLACE)
"""Undoes `install`; a trainer without it is left alone."""


class OpenRlhfEngineLayer(WorkerLayer):
    """The patches of one `ActorPPOTrainer`.

    `Orders.settings` are attributes of its loss (`loss.clip_eps_low`) and of its arguments (`actor.entropy_coef`).
    """

    framework = "openrlhf"
    _watch: OpenRlhfStepProbe | None

    def __init__(self, trainer: Any, orders: Orders, patches: Patches) -> None:
        self._rings = RankRings.of(trainer)
        if not self._rings.speaks:
            orders = dataclasses.replace(orders, ledger=None, report=False)
        super().__init__(orders, patches, self._rings)
        self._trainer = trainer
        self._engine, self._buffer, self._loss, self._schedule = self.parts(trainer)
        self._turns: deque[PlannedStep] = deque()
        self._turn: PlannedStep | None = None
        """The planned step in hand; None in a native run."""
        self._index = 0
        self._parts: list[list[TrainedRow | None]] = []
        self._facts: list[Mapping[str, Any]] = []
        self._others: list[InputObjection] = []
        """Objections to rows of the step that do not carry what the trainer's process sent."""
        self._seen: Counter[tuple[int, ...]] = Counter()
        self._first_step_on: dict[int, int] = {}
        self._sees: set[bool] = set()
        self._ticks = True

    @staticmethod
    def parts(trainer: Any) -> tuple[Any, Any, Any, Any]:
        """The trainer's DeepSpeed engine, replay buffer, loss and schedule of the learning rate."""
        return trainer.actor.model, trainer.replay_buffer, trainer.actor_loss_fn, trainer.actor_scheduler

    def watching(self) -> OpenRlhfStepProbe:
        """The measuring of the trainer's steps."""
        from batchbridge_openrlhf.watching import OpenRlhfStepProbe

        return OpenRlhfStepProbe(self._trainer, self._orders.trained, self._patches)

    def close(self) -> None:
        """Undoes what is not an attribute, and closes the ledger."""
        if self._watch is not None:
            self._watch.close()
        self._engine._is_gradient_accumulation_boundary = None
        super().close()

    @property
    def optimizer(self) -> Any:
        """The optimizer that is there when the layer is installed; see `WorkerLayer`."""
        return self._engine.optimizer

    @property
    def trained_module(self) -> Any:
        """The model that DeepSpeed's engine trains; see `WorkerLayer`."""
        return self._engine.module

    @property
    def schedule(self) -> Any:
        """The scheduler that DeepSpeed's engine moves; see `WorkerLayer`."""
        return self._schedule

    def named_parameters(self) -> Iterable[tuple[str, Any]]:
        """The parameters of the model that DeepSpeed's engine trains; see `WorkerLayer`."""
        parameters: Iterable[tuple[str, Any]] = self._engine.module.named_parameters()
        return parameters

    def hold_loss(self) -> None:
        """The probe of the trainer's own loss, and of how DeepSpeed cuts and gathers what several ranks share."""
        hold_gathering(self._trainer)
        hold_cutting(self._trainer)
        self._probing().hold_against(self._orders.spec, self.native["training_step"], self._layout_of)

    def _probing(self) -> OpenRlhfLossProbe:
        from batchbridge_openrlhf.probe import OpenRlhfLossProbe

        return OpenRlhfLossProbe(self._trainer, self._watched, self._orders.settings.get(KL_COEFFICIENT, 0.0))

    @property
    def _watched(self) -> OpenRlhfStepProbe:
        assert self._watch is not None, "a layer is attached before it is used"
        return self._watch

    def seams(self) -> Iterable[Seam]:
        """The seams of a trainer, its replay buffer, its engine and that one's optimizer."""
        trainer, buffer = self._trainer, self._buffer
        if self._enforces:
            cut, why = "the plan's steps, whole", "membership and weights of the plan"
            yield Seam(trainer, "max_epochs", 1, "every pass is laid out at once", why)
            yield Seam(buffer, "dynamic_batch", True, "micro-batches are given", why)
            yield Seam(buffer, "sample_batch_size", 1, "micro-batches are given", why)
            yield Seam(buffer, "setup_dynamic_batch", self._lay_out, cut, why)
            if self._orders.spec.horizon.lr_tick == "rollout":
                yield Seam(self._schedule, "step", self._tick, "once per rollout", "clock of the spec", name="tick")
        self._upstream_collate = buffer.collate_fn
        guarded, self._native_collate = self._observation.guarded(self._stripped, self._collate)
        yield Seam(buffer, "collate_fn", guarded, "rows are told apart")
        yield Seam(trainer, "ppo_train", self._train, reads=True)
        yield Seam(trainer, "training_step", self._training_step, reads=True)
        both: dict[str, Any] = {"reads": True, "exchanges": True}
        yield Seam(self._engine, "step", self._engine_step, "written down", name="engine_step", **both)
        last = "the last moment before an update"
        yield Seam(self._engine.optimizer, "step", self._update, why=last, name="update", **both)

    # ---- what the native loss and clock read

    def apply_settings(self) -> None:
        """Attributes of the loss, and of a copy of the arguments."""
        args = copy.copy(self._trainer.args)  # shared with the strategy and others
        args.train, args.actor, args.algo = (copy.copy(part) for part in (args.train, args.actor, args.algo))
        args.algo.kl = copy.copy(args.algo.kl)
        args.train.dynamic_batch_enable = True
        for path, value in self._orders.settings.items():
            *owners, name = path.split(".")
            if owners == ["loss"]:
                self._patches.set(self._loss, name, value, what=str(value), why="the requested spec")
            else:
                setattr(functools.reduce(getattr, owners, args), name, value)
        self._patches.set(
            self._trainer, "args", args, what="the code for given micro-batches runs", why="membership of the plan"
        )

    def set_clock(self) -> None:
        """Refusal (`CannotAttach`) of a schedule that was built for another number of ticks than the plan has."""
        ticks = self._orders.ticks
        for function in getattr(self._schedule, "lr_lambdas", ()):
            built = getattr(function, "keywords", {}).get("num_training_steps")
            if ticks is not None and built not in (None, ticks):
                reason = f"the learning rate's schedule was built for {built} steps, the plan ticks {ticks} times"
                raise CannotAttach({"clock": f"{reason}: prepare the model with scheduler_steps = {ticks}"})

    def _tick(self, *arguments: Any, **options: Any) -> Any:
        return self.native["tick"](*arguments, **options) if self._ticks else None

    # ---- a rollout is laid out

    def _lay_out(self, strategy: Any) -> None:
        """A stand-in for `NaiveReplayBuffer.setup_dynamic_batch`: the plan's steps over what ranks hold. Collective."""
        buffer, plan = self._buffer, self._plan
        assert plan is not None, "wrap refuses to enforce without a plan"
        held = self._rings.shares([replayed(item, index) for index, item in enumerate(buffer.items)])
        rollout = one_rollout(held, int(self._engine.global_steps))
        where = by_row(plan, rollout, held)
        self._sees |= {row.sees for share in held for row in share}
        hold_all_or_none(self._sees, ranks=self._rings.world, zero=int(self._engine.zero_optimization_stage()))
        filler = self._filler(held)
        group, rank, gas = plan.completions_per_prompt, self._rings.replica, self._accumulation
        for name in ("indices", "sample_loss_scale", "batch_num_tokens", "global_batch_size", "optimizer_step"):
            setattr(buffer, f"dynamic_{name}", [])
        micro, term = self._orders.spec.micro_batch, self._orders.spec.loss.policy
        for step in steps_of_rollout(plan, rollout):
            shares: list[list[ReplayedCompletion]] = [[] for _ in held]
            for position in step.positions:
                owner, row = where[divmod(position, group)]
                shares[owner].append(row)
            rows = [row for share in shares for row in share]
            normaliser = Normaliser.of(term, [Row(tokens=row.tokens, group=row.position) for row in rows])
            cuts = cut_shares(
                [[row.length for row in share] for share in shares],
                completions_per_device=None if micro.tokens_per_device else micro.completions_per_device,
                tokens_per_device=micro.tokens_per_device and micro.tokens_per_device * self._rings.size,
                padded=not self._trainer.args.ds.packing_samples,
            )
            mine = cuts[rank] if normaliser.tokens else []
            silent = () if mine else tuple(row.index for row in shares[rank])
            self._turns.append(PlannedStep(step, normaliser, len(mine), silent))
            for name, values in self._layout_of(normaliser, len(mine)).items():
                getattr(buffer, name).extend(values)
            for members in mine:
                indices = [filler if row is None else shares[rank][row].index for row in members]
                buffer.dynamic_indices.append(indices)
                buffer.dynamic_sample_loss_scale.append(gas * len(indices) / max(len(shares[rank]), 1))

    def _layout_of(self, normaliser: Normaliser, micro_batches: int) -> dict[str, list[Any]]:
        """The replay buffer's words for an optimizer step, by attribute: one value per micro-batch."""
        gas = self._accumulation
        # DeepSpeed divides every loss by its accumulation steps, whatever a step really has.
        return {
            "dynamic_batch_num_tokens": [normaliser.tokens / gas] * micro_batches,
            "dynamic_global_batch_size": [max(normaliser.completions, 1) / gas] * micro_batches,
            "dynamic_optimizer_step": [int(turn == micro_batches - 1) for turn in range(micro_batches)],
        }

    def _filler(self, held: Sequence[Sequence[ReplayedCompletion]]) -> int:
        """The place of a row that weighs nothing: the shortest completion with an empty mask, at the buffer's end.
        Collective where a rank holds nothing."""
        buffer = self._buffer
        mine = min(held[self._rings.replica], key=lambda row: row.all_tokens, default=None)
        model: Any = None if mine is None else buffer.items[mine.index]
        if not all(held):
            model = next(part for (part,) in self._rings.lists([model]) if part is not None)
        buffer.items.append(filler_of(model))
        return len(buffer.items) - 1

    # ---- one micro-batch, one optimizer step

    def _train(self, *given: float) -> Any:
        """A stand-in for `ppo_train`; given: the KL coefficient, where the loss has such a term."""
        self._seen.clear()
        self._turns.clear()
        if self._enforces:  # natively micro-batches that fill no step go on into the next one
            self._forget()
            self._watched.drop()
        status = self.native["ppo_train"](*(self._orders.settings.get(KL_COEFFICIENT, one) for one in given))
        self._skip_empty()
        if self._turns:
            left = [turn.step.index for turn in self._turns]
            raise BatchDrift(left[0], "membership", f"upstream ended before the optimizer steps {left}")
        return status

    def _collate(self, batch: Any) -> Any:
        """The native batch without our columns in its info (upstream would log them), and beside it what its rows are
        meant to train, as the buffer has them now."""
        items = batch[0] if self._buffer.dynamic_batch else batch
        given = self._watched.inputs_of(items)
        experience = self._native_collate(batch)
        experience.batchbridge = ExperienceCompanions(items, given)
        return experience

    def _stripped(self, batch: Any) -> Any:
        """The native batch without our columns, whether or not they are read: upstream takes all of `info` for
        numbers."""
        experience = self._upstream_collate(batch)
        for name in (IDENTITY, ANSWERED, SENT):
            experience.info.pop(name, None)
        return experience

    def _training_step(self, experience: Any, *given: Any) -> Any:
        """A stand-in for `training_step`; given: what `_train` was, the micro-batch's number and its denominators."""
        if self._enforces:
            self._skip_empty()
            self._engine.set_gradient_accumulation_boundary(bool(self._buffer.dynamic_optimizer_step[given[-2]]))
        beside: ExperienceCompanions = experience.batchbridge
        identities = [tuple(int(value) for value in item.info.get(IDENTITY, NOBODY)) for item in beside.items]
        if self._observation.observes and NOBODY in identities:  # natively nothing is filled up
            raise CannotAttach(
                {"unplanned_batch": "a micro-batch has rows without the identity that generation gave them"}
            )
        self._parts.append(
            [
                None if identity == NOBODY else self._row(item, identity)
                for item, identity in zip(beside.items, identities, strict=True)
            ]
        )
        with self._watched.expecting(beside.inputs):
            shares = self._buffer.dynamic_sample_loss_scale if self._buffer.dynamic_batch else None
            self._watched.routers_share = 1.0 if shares is None else float(shares[given[-2]])
            status = self.native["training_step"](experience, *given)
        real = sum(identity != NOBODY for identity in identities)
        return self._finite(status, real) if self._enforces else status

    @staticmethod
    def _finite(status: dict[str, Any], real: int) -> dict[str, Any]:
        """The status of a micro-batch without tokens, or of fillers: upstream takes means over nothing for its
        metrics."""
        import torch

        if real and status["num_action_tokens"]:
            return status
        for name, value in status["metrics"].items():
            if isinstance(value, torch.Tensor):
                status["metrics"][name] = torch.nan_to_num(value.float())
        status["num_samples"] = float(real)
        status["num_action_tokens"] = max(status["num_action_tokens"], NO_TOKEN)
        return status

    @staticmethod
    def _told(item: Any, prompt_tokens: int) -> dict[str, Any]:
        return facts_of(item, prompt_tokens)

    def _row(self, item: Any, identity: Sequence[int]) -> TrainedRow:
        rollout, prompt, position, sample, prompt_tokens = identity
        if isinstance(self._plan, CandidatePlan):
            (prompt,) = self._plan.candidates(prompt, prompt + 1)
        seen = (rollout, position, sample)
        self._seen[seen] += 1
        who = f"prompt {prompt} sample {sample}"
        if not self._observation.observes and (why := sent_objection(item, who)) is not None:
            self._others.append(why)
        self._facts.append(self._told(item, prompt_tokens) if self._orders.ledger is not None else NO_FACTS)
        return TrainedRow(
            rollout,
            prompt,
            position,
            sample,
            int(item.action_mask.sum()),
            len(self._facts) - 1,
            weight=None,
            pass_index=self._seen[seen] - 1,
        )

    def _engine_step(self, *arguments: Any, **options: Any) -> Any:
        result = self.native["engine_step"](*arguments, **options)
        if self._looked and self._goes_on():
            norm = self._engine.get_global_grad_norm()
            skipped = not self._engine.was_step_applied()
            self.write(gradient_norm=None if norm is None else float(norm), skipped=skipped)
        return result

    def _update(self, *arguments: Any, **options: Any) -> Any:
        """The optimizer's own step: all is there that the update will use, and nothing is applied yet."""
        native = self.native["update"]
        if not self._goes_on():
            return native(*arguments, **options)
        if self._enforces and not self._turns:
            step = int(self._engine.global_steps)
            raise BatchDrift(step, "clock", "the optimizer is to update once more than the rollout's plan has steps")
        self._take(self._turns.popleft() if self._enforces else None)
        self.look(self._engine.optimizer)
        self._ticks = self._turn is None or self._turn.step.lr_tick
        return native(*arguments, **options)

    def _take(self, turn: PlannedStep | None) -> None:
        """Takes the next optimizer step in hand."""
        self._turn = turn
        self._index = int(self._engine.global_steps) if turn is None else turn.step.index
        self._normaliser = None if turn is None else turn.normaliser
        if turn is not None:
            name_passes(self._rows, turn.step, self._orders.spec.rollout.completions_per_prompt)

    def _goes_on(self) -> bool:
        """Whether every process still reads what is trained. Collective where the run is observed alone."""
        return self._observation.agree(lambda mine: [one for part in self._rings.lists(mine) for one in part])

    def measure(self) -> list[str]:
        """Reads off what every row of the step weighed; see `WorkerLayer.measure`."""
        normaliser = self._denominators()
        objections: list[str] = self._observation.read(self._taken, normaliser, default=[])
        expected = 1 / self._rings.averaged
        objections += self._watched.gradient_objections(expected)
        for part, share in zip(self._parts, self._watched.reached(expected, len(self._parts)), strict=True):
            for row in part:
                if row is not None and row.weight is not None:
                    row.weight *= share
        objections += [InputObjection(why) for why in self._watched.temperatures()]
        return [*self._others, *objections, *self._rings.differences(self._rows)]

    def _taken(self, normaliser: Normaliser) -> list[str]:
        from batchbridge import LostGradient
        from batchbridge_openrlhf.watching import OtherInputs

        objections: list[str] = []
        try:
            objections += read_off(self._parts, self._watched.take(normaliser))
        except (LostGradient, OtherInputs) as error:
            objections.append(str(error))
        except ValueError:
            objections.append("the loss did not take the micro-batches of log-probabilities that the step has")
        return objections

    def _denominators(self) -> Normaliser:
        """The step's denominators: the plan's, or of what all ranks trained, where the loss needs them. Collective."""
        if self._normaliser is not None:
            return self._normaliser
        needed = self._watched.needs_denominators
        rows = [(row.tokens, row.position) for row in self._rows] if needed else []
        everyone = self._rings.gather(rows) if needed else []
        counted = [Row(tokens=tokens, group=position) for tokens, position in everyone]
        return Normaliser.of(self._orders.trained.loss.policy, counted)

    @property
    def _rows(self) -> list[TrainedRow]:
        return [row for part in self._parts for row in part if row is not None]

    def _forget(self) -> None:
        self._parts, self._facts, self._others, self._looked = [], [], [], False

    def _skip_empty(self) -> None:
        """Steps without a token are not an update; each gets its record when its turn comes."""
        while self._turns and not self._turns[0].micro_batches:
            turn = self._turns.popleft()
            items = [self._buffer.items[index] for index in turn.silent]
            self._parts = [[self._row(item, [int(value) for value in item.info[IDENTITY]]) for item in items]]
            self._take(turn)
            self._learning_rate = applied_rate(self._engine.optimizer)
            self.hold()
            self.write(gradient_norm=None, skipped=True)

    # ---- facts

    @property
    def _accumulation(self) -> int:
        return int(self._engine.gradient_accumulation_steps())

    def in_hand(self) -> StepInHand:
        """The step that the optimizer is at, or that has no token."""
        rows = self._rows
        return StepInHand(self._index, rows, lambda: [self._facts[row.index] for row in rows])

    def written_beside(self) -> Mapping[str, Any]:
        """The optimizer step at which each completion was generated: the plan's, or that of its rollout's first use."""
        starts = None if self._turn is not None else self._generated_at()
        return {"generated_at_step": starts, "skips_tick": True}

    def _generated_at(self) -> list[int]:
        return [self._first_step_on[row.rollout] for row in self._rows]

    def write(self, *, gradient_norm: float | None, skipped: bool) -> None:
        """Writes the step down; its rows are then forgotten."""
        for rollout in {row.rollout for row in self._rows}:
            self._first_step_on.setdefault(rollout, self._index)
        super().write(gradient_norm=gradient_norm, skipped=skipped)
        self._forget()
