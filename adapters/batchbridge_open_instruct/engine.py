"""A learner's side: the step's token weights, every optimizer step held against the plan and written down.

The learner's own step runs as it is written; what it reads and calls is patched on the instance: its data loader, its
arguments, and what updates the parameters (`learners`). Forward and backward passes, the loss of a token, DeepSpeed or
FSDP2, the optimizer and its schedule stay theirs. What each step trains is measured (`watching`), and held against the
plan before the update.

Source: open-instruct e6c3044 grpo_fast.PolicyTrainerRayProcess.step, grpo_utils.calculate_token_counts,
olmo_core_train_modules.GRPOTrainModule.train_batch; deepspeed 0.19.6; ai2-olmo-core 3.0.0.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from batchbridge import BatchDrift, CannotAttach
from batchbridge.kit import CandidatePlan, Normaliser, Row, checkpoints, current_launch, worker_layer
from batchbridge.kit.patches import Patches
from batchbridge.kit.producers import HeldAdvantages
from batchbridge.kit.row_digests import InputObjection
from batchbridge.kit.worker_layer import Seam, StepInHand, WorkerLayer
from batchbridge.kit.workers import Orders, TrainedRow, facts
from batchbridge_open_instruct import feed
from batchbridge_open_instruct.candidates import FilledPlan, PassRate, objection, solved_of
from batchbridge_open_instruct.completions import PackedBatch, PackedCompletion
from batchbridge_open_instruct.inputs import changed
from batchbridge_open_instruct.learners import PLACE, Learner
from batchbridge_open_instruct.writing import denominator

if TYPE_CHECKING:
    from batchbridge_open_instruct.watching import OpenInstructStepProbe


def ask(learner: Learner, function: Any, *values: Any) -> Any:
    """Runs `function(actor, *values)` in the data preparation actor of a loaded learner."""
    import ray

    handle = learner.loader.data_prep_actor
    return ray.get(handle.__ray_call__.remote(function, *values))


def install(learner: Learner, orders: Orders, advantages: HeldAdvantages | None) -> LearnerLayer:
    """Patches a learner that is loaded, and the actor that prepares its data; replaces what an earlier call installed.

    advantages: of a run whose inputs are held. Raises `CannotAttach`.
    """

    def make(patches: Patches) -> LearnerLayer:
        return LearnerLayer(learner, orders, patches, advantages)

    return worker_layer.install(learner.trainer, orders, make, place=PLACE)


remove = functools.partial(worker_layer.remove, place=PLACE)
"""Undoes `install`; a learner without it is left alone. Raises `CannotAttach` while data preparation runs."""


class LearnerLayer(WorkerLayer):
    """The patches of one learner."""

    framework, again = "open_instruct", ""
    _watch: OpenInstructStepProbe

    def __init__(
        self, learner: Learner, orders: Orders, patches: Patches, advantages: HeldAdvantages | None = None
    ) -> None:
        from batchbridge_open_instruct.sequences import SequenceGroup

        self._sequences = SequenceGroup(learner)
        super().__init__(orders, patches, self._sequences)
        self._learner, self._advantages = learner, advantages
        if isinstance(self._recorder.plan, CandidatePlan):
            self._plan = self._recorder.plan = FilledPlan(self._recorder.plan)
        self._next_candidate: int | None = None
        self._solved: set[int] | None = None
        self.native_args = learner.args
        self._micro_batches: list[list[tuple[TrainedRow, Mapping[str, Any]]]] = []
        self._changed: list[list[InputObjection]] = []
        """Objections to what completions carry, by micro-batch."""
        self._first_step, self._backwards, self._steps = 0, 0, 0
        self._open: list[int] = []
        # A rollout's start exchanges something: others would wait for a rank that leaves it out.
        self._started, _ = self._observation.guarded(_left_alone, self._start, exchanges=True)

    def prepare(self) -> None:
        """The actor that prepares data follows the plan, too, whose rows it makes."""
        ask(self._learner, feed.install, self._orders, self._learner.other_ranks, self._advantages)

    def seams(self) -> Iterable[Seam]:
        """The seams of a learner: its arguments, how rows are cut between ranks, and those of its script."""
        learner = self._learner
        if self._enforces:
            args = copy.copy(self.native_args)  # shared with others
            for name, value in self._orders.settings.items():
                setattr(args, name, value)
            # The loss is multiplied with what DeepSpeed divides by: see `SequenceGroup`.
            args.sequence_parallel_size = 1
            yield Seam(*learner.holder, args, "what the loss reads", "weights and objective of the spec")
        if self._sequences.size > 1:
            what, because = "one token more, as a target", "no target is lost where a row is cut"
            yield Seam(learner.trainer.splitter, "split_collated_batch", self._cut, what, because)
        yield from learner.seams(
            self.native,
            batches=self._batches,
            backward=self._backward,
            update=self._step,
            look=self._look,
            losses=lambda: self._watch.differentiating(),
        )

    def watching(self) -> OpenInstructStepProbe:
        """The measuring of the learner's steps."""
        from batchbridge_open_instruct.watching import OpenInstructStepProbe

        objective = self._orders.trained.objective
        probe = OpenInstructStepProbe(self._learner, objective, shared=self._sequences, patches=self._patches)
        probe.temperature = self._orders.temperature
        return probe

    def hold_loss(self) -> None:
        """The probe of this learner's own loss."""
        from batchbridge_open_instruct.probe import hold_loss_against

        hold_loss_against(self._orders.spec, self._learner, self._watch)

    @property
    def trained_module(self) -> Any:
        """The module whose parameters the optimizer should update."""
        return self._learner.trained_module

    @property
    def optimizer(self) -> Any:
        """The optimizer that is there when the layer is installed; see `WorkerLayer`."""
        return self._learner.optimizer

    @property
    def schedule(self) -> Any:
        """The scheduler of DeepSpeed's engine; OLMo-core has no object for one."""
        return getattr(self._learner.trainer, "scheduler", None)

    def remove(self) -> None:
        """Restores the learner and its actor, and closes the ledger."""
        ask(self._learner, feed.remove)
        super().remove()

    # ---- a rollout

    def _batches(self, native: Iterator[Any]) -> Iterator[Any]:
        while True:
            if self._enforces:
                trainer, waits = self._learner.trainer, self._learner.waits
                if self._last is None:
                    self._learner.send()
                if waits:  # one rank alone sends the weights, and the others go on
                    self._sequences.gather([])
                notes = ask(self._learner, feed.begin, self._learner.loader.training_step)
                if self._last is None:  # grpo_fast.py's main process says them itself in a launched run
                    checkpoints.tell(trainer, notes, aloud=trainer.rank == 0 and (waits or current_launch() is None))
            try:
                data = next(native)
            except StopIteration:
                return
            self._started(data)
            yield data

    def _start(self, data: Any) -> None:
        """The start of a rollout on this rank, whose batch has come."""
        mine = self._observation.read(self._known, data)
        if self._observation.agree(self.ranks.gather):
            self._start_together(*mine)

    def _known(self, data: Any) -> tuple[PackedBatch, list[tuple[Any, ...]]]:
        """The table of a batch's completions, and the facts of them that every rank is told."""
        batch = data["batch"]
        table: PackedBatch | None = vars(batch).get(feed.ATTRIBUTE)
        if table is None:
            reason = "a batch that BatchBridge's feed did not make reached the learner"
            raise CannotAttach({"unplanned_batch": reason})
        if table.spec_digest != self._orders.spec.digest():
            raise CannotAttach({"arrival": "the data preparation actor follows another spec than this learner"})
        self._micro_batches = [
            [trained(batch, index, row, piece) for row, pieces in enumerate(rows) for piece in pieces]
            for index, rows in enumerate(table.micro_batches)
        ]
        self._changed = changed(batch, table) if table.digests else [[] for _ in table.micro_batches]
        if self._sequences.size == 1:
            self._watch.expect(batch, table.micro_batches[: self._kept], None)
        if not self._learner.args.use_vllm_logprobs:
            for _, told in [pair for part in self._micro_batches for pair in part]:
                told["old_logprobs"] = None  # type: ignore[index]  # the native step computes them inside of itself
        return table, [(row.rollout, row.prompt, row.tokens) for part in self._micro_batches for row, _ in part]

    def _start_together(self, table: PackedBatch, mine: Sequence[tuple[Any, ...]]) -> None:
        """The start of a rollout on all ranks: which it is, and the denominators of its steps."""
        against = None
        if self._plan is not None and self._enforces:
            pieces = (piece for rows in table.micro_batches for row in rows for piece in row)
            rate = PassRate.of(self._learner.trainer.streaming_config)
            if self._solved is None:
                self._solved = set(ask(self._learner, feed.solved_at_start))
            against = objection(self._plan, table.taken, pieces, self._next_candidate, rate, self._solved)
            self._solved |= solved_of(table.taken, rate)
        objections = () if against is None else ((None, against),)
        said = self.ranks.gather([*((row, None) for row in mine), *objections])
        everyone = [row for row, _ in said if row is not None]
        rollouts = {rollout for rollout, _, _ in everyone}
        if len(rollouts) != 1:
            raise CannotAttach({"rollout": f"the ranks hold rollouts {sorted(rollouts)}; one at a time"})
        self._backwards, self._steps, self._open = 0, 0, []
        if not self._enforces:
            self._first_step = rollouts.pop() * self._orders.steps_per_rollout
            return
        assert self._plan is not None, "wrap refuses to enforce without a plan"
        rollout = rollouts.pop()
        self._first_step = self._plan.rollout(rollout).generated_at_step
        self.follow(self._first_step)
        for aspect, detail in (why for _, why in said if why is not None):
            raise BatchDrift(self._first_step, aspect, detail)
        self._next_candidate = table.taken[-1].number + 1
        if isinstance(self._plan, FilledPlan):
            self._plan.places[rollout] = sum(one.position is not None for one in table.taken)
        term = self._orders.spec.loss.policy
        self._normaliser = Normaliser.of(term, [Row(tokens=tokens, group=prompt) for _, prompt, tokens in everyone])
        if not self._normaliser.tokens:
            reason = "no completion of the rollout has a trained token: the native loss has no gradient then, and fails"
            raise BatchDrift(self._first_step, "weights", reason)
        self._learner.args.loss_denominator = denominator(self._normaliser)

    def _cut(self, batch: Any) -> Any:
        made = self._sequences.cut(self.native["split_collated_batch"], batch)
        table = vars(batch)[feed.ATTRIBUTE]
        width = made.query_responses[0].shape[1] - 1
        self._watch.expect(batch, table.micro_batches[: self._kept], width, sent=made)
        return made

    # ---- one optimizer step

    def _backward(self) -> None:
        if self._kept:
            self._open.append(self._backwards % self._kept)
            self._backwards += 1

    def _look(self) -> None:
        """The look at the step in hand: nothing was updated, and all that the optimizer will use is there."""
        self.look(self._learner.optimizer)

    def _step(self, native: Callable[[], Any]) -> Any:
        self._looked = False
        said = native()
        if self._observation.over:
            return said
        if not self._looked:  # the engine did not call its optimizer
            self._look()
        norm = self._learner.norm()
        self.write(gradient_norm=norm, skipped=self._learner.skips(norm))
        self._steps, self._open = self._steps + 1, []
        return said

    def measure(self) -> list[str]:
        """Reads off what every completion of the step weighed; see `WorkerLayer.measure`."""
        others = [why for index in self._open for why in self._changed[index]]
        parts = [[row for row, _ in self._micro_batches[index]] for index in self._open]
        return [*others, *self._watch.look(parts)]

    def in_hand(self) -> StepInHand:
        """The step whose micro-batches are open."""
        pairs = [pair for index in self._open for pair in self._micro_batches[index]]
        return StepInHand(
            self._first_step + self._steps, [row for row, _ in pairs], lambda: [told for _, told in pairs]
        )

    def written_beside(self) -> Mapping[str, Any]:
        """The ledger's column of the optimizer step at which each completion was generated. None where the plan is
        enforced: the ledger then takes it from the plan."""
        starts = None if self._enforces else [self._native_start(row) for row in self.in_hand().rows]
        return {"generated_at_step": starts}

    def _native_start(self, row: TrainedRow) -> int:
        """The optimizer step before whose update a completion of a run that follows no plan was generated."""
        return (row.rollout if row.weights_of is None else row.weights_of) * self._orders.steps_per_rollout

    @property
    def _kept(self) -> int:
        """Micro-batches of a pass: those that fill no step may be dropped."""
        return self._learner.kept(len(self._micro_batches))

    def native_pass(self) -> int:
        """The pass over the rollout that is being trained; see `WorkerLayer.native_pass`."""
        return (self._backwards - len(self._open)) // self._kept


def _left_alone(data: Any) -> None:
    """Nothing: a rollout of a run that is not observed any more."""


def trained(batch: Any, micro_batch: int, row: int, piece: PackedCompletion) -> tuple[TrainedRow, dict[str, Any]]:
    """A completion of a collated batch, and what the ledger says of it."""
    middle = piece.start + piece.prompt_tokens
    end = middle + piece.completion_tokens
    ids = batch.query_responses[micro_batch][row]
    # The first token of a row is predicted by nothing.
    mask = batch.response_masks[micro_batch][row][max(middle, 1) : end].bool()
    told = facts(
        prompt=ids[piece.start : middle].tolist(),
        completion=ids[middle:end].tolist(),
        trained=batch.advantages[micro_batch][row][max(middle, 1) : end][mask].tolist(),
        old_logprobs=batch.vllm_logprobs[micro_batch][row][middle:end].float().tolist(),
        reward=piece.reward,
    )
    tokens = int(mask.sum())
    found = TrainedRow(piece.rollout, piece.prompt, piece.position, piece.sample, tokens, micro_batch)
    return dataclasses.replace(found, weights_of=piece.weights_of), told
