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
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from batchbridge import BatchDrift, CannotAttach
from batchbridge.kit import CandidatePlan, Normaliser, Row, checkpoints, current_launch
from batchbridge.kit.observing import Observation
from batchbridge.kit.patches import Patches
from batchbridge.kit.workers import Orders, Recorder, TrainedRow, facts
from batchbridge_open_instruct import feed
from batchbridge_open_instruct.candidates import FilledPlan, PassRate, objection, solved_of
from batchbridge_open_instruct.learners import Learner
from batchbridge_open_instruct.writing import denominator

AGGREGATIONS = ("token_mean", "token_sum", "sequence_sum", "sequence_sum_over_constant")
"""Aggregations that give every token of a step one weight: upstream divides a step's sum by one number."""


def ask(learner: Learner, function: Any, *values: Any) -> Any:
    """Runs `function(actor, *values)` in the data preparation actor of a loaded learner."""
    import ray

    handle = learner.loader.data_prep_actor
    return ray.get(handle.__ray_call__.remote(function, *values))


def install(learner: Learner, orders: Orders) -> None:
    """Patches a learner that is loaded, and the actor that prepares its data; replaces what an earlier call installed.

    Raises `CannotAttach`.
    """
    remove(learner.trainer)
    learner.trainer.batchbridge_layer = LearnerLayer(learner, orders)


def remove(trainer: Any) -> None:
    """Undoes `install`; a learner without it is left alone. Raises `CannotAttach` while data preparation runs."""
    layer = vars(trainer).get("batchbridge_layer")
    if layer is not None:
        layer.remove()
        del trainer.batchbridge_layer


class LearnerLayer:
    """The patches of one learner."""

    def __init__(self, learner: Learner, orders: Orders) -> None:
        from batchbridge_open_instruct.sequences import SequenceGroup
        from batchbridge_open_instruct.watching import OpenInstructStepProbe

        self._learner, self._orders = learner, orders
        self._sequences = shared = SequenceGroup(learner)
        self._recorder = Recorder(
            "open_instruct", orders, rank=shared.replica, world_size=shared.replicas, gather=shared.gather
        )
        if isinstance(self._recorder.plan, CandidatePlan):
            self._recorder.plan = FilledPlan(self._recorder.plan)
        self._plan = self._recorder.plan
        self._next_candidate: int | None = None
        self._solved: set[int] | None = None
        self._observation = observation = Observation(orders.mode)
        observation.when_over = self._recorder.end_observing
        # A rollout's start exchanges something: others would wait for a rank that leaves it out.
        self._started, _ = observation.guarded(_left_alone, self._start, exchanges=True)
        self._patches = Patches(observation)
        self.native_args = learner.args
        self._micro_batches: list[list[tuple[TrainedRow, Mapping[str, Any]]]] = []
        self._normaliser: Normaliser | None = None
        self._first_step, self._backwards, self._steps = 0, 0, 0
        self._open: list[int] = []
        self._last: int | None = None
        try:
            self._patch()
            self._watch = OpenInstructStepProbe(learner, orders.trained.objective, shared=shared, patches=self._patches)
        except BaseException:
            self.remove()
            raise

    def _patch(self) -> None:
        learner, orders = self._learner, self._orders
        ask(learner, feed.install, orders, learner.other_ranks)
        if self._enforces:
            args = copy.copy(self.native_args)  # shared with others
            for name, value in orders.settings.items():
                setattr(args, name, value)
            args.sequence_parallel_size = (
                1  # the loss is multiplied with what DeepSpeed divides by: see `SequenceGroup`
            )
            what = "what the loss reads"
            self._patches.set(*learner.holder, args, what=what, why="weights and objective of the spec")
        if self._sequences.size > 1:
            splitter = learner.trainer.splitter
            cut = functools.partial(self._cut, splitter.split_collated_batch)
            what, because = "one token more, as a target", "no target is lost where a row is cut"
            self._patches.set(splitter, "split_collated_batch", cut, what=what, why=because)
        learner.patch(self._patches, batches=self._batches, backward=self._backward, update=self._step)

    @property
    def patches(self) -> Patches:
        """The patches of this learner."""
        return self._patches

    @property
    def _enforces(self) -> bool:
        return self._orders.mode == "enforce"

    def remove(self) -> None:
        """Restores the learner and its actor, and closes the ledger."""
        ask(self._learner, feed.remove)
        try:
            self._patches.undo()
        finally:
            self._recorder.close()

    def probe(self) -> None:
        """Holds this learner's own loss against the plan's weights, where it should be enforced. Collective.

        Raises `CannotAttach`.
        """
        from batchbridge_open_instruct.probe import hold_loss_against

        if self._enforces:
            hold_loss_against(self._orders.spec, self._learner, self._watch)

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
        if self._observation.agree(self._sequences.gather):
            self._start_together(*mine)

    def _known(self, data: Any) -> tuple[feed.PackedBatch, list[tuple[Any, ...]]]:
        """The table of a batch's completions, and the facts of them that every rank is told."""
        batch = data["batch"]
        table: feed.PackedBatch | None = vars(batch).get(feed.ATTRIBUTE)
        if table is None:
            reason = "a batch that BatchBridge's feed did not make reached the learner"
            raise CannotAttach({"unplanned_batch": reason})
        if table.spec_digest != self._orders.spec.digest():
            raise CannotAttach({"arrival": "the data preparation actor follows another spec than this learner"})
        self._micro_batches = [
            [trained(batch, index, row, piece) for row, pieces in enumerate(rows) for piece in pieces]
            for index, rows in enumerate(table.micro_batches)
        ]
        if self._sequences.size == 1:
            self._watch.expect(batch, table.micro_batches[: self._kept], None)
        if not self._learner.args.use_vllm_logprobs:
            for _, told in [pair for part in self._micro_batches for pair in part]:
                told["old_logprobs"] = None  # type: ignore[index]  # the native step computes them inside of itself
        return table, [(row.rollout, row.prompt, row.tokens) for part in self._micro_batches for row, _ in part]

    def _start_together(self, table: feed.PackedBatch, mine: Sequence[tuple[Any, ...]]) -> None:
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
        said = self._sequences.gather([*((row, None) for row in mine), *objections])
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
        if self._last is not None and self._first_step != self._last + 1:
            raise CannotAttach({"clock": f"optimizer step {self._first_step} follows step {self._last}"})
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

    def _cut(self, native: Any, batch: Any) -> Any:
        made, table = self._sequences.cut(native, batch), vars(batch)[feed.ATTRIBUTE]
        self._watch.expect(batch, table.micro_batches[: self._kept], made.query_responses[0].shape[1] - 1)
        return made

    # ---- one optimizer step

    def _backward(self) -> None:
        if self._kept:
            self._open.append(self._backwards % self._kept)
            self._backwards += 1

    def _step(self, native: Callable[[], Any]) -> Any:
        rows = [row for index in self._open for row, _ in self._micro_batches[index]]
        told = [fact for index in self._open for _, fact in self._micro_batches[index]]
        index, number = self._first_step + self._steps, self._pass()
        # Nothing was updated: all that the optimizer will use is there.
        self._recorder.compare(index, rows, self._watch.look(self._parts()), pass_index=lambda: number)
        rate = float(self._learner.optimizer.param_groups[0]["lr"])
        said, norm = native(), self._learner.norm()
        self._steps, self._open, self._last = self._steps + 1, [], index
        if not self._sequences.writes:
            return said
        self._recorder.write(
            index,
            rows,
            told,
            normaliser=self._normaliser,
            pass_index=lambda: number,
            learning_rate=rate,
            gradient_norm=norm,
            skipped=self._learner.skips(norm),
            generated_at_step=None if self._enforces else [self._native_start(row) for row in rows],
        )
        return said

    def _native_start(self, row: TrainedRow) -> int:
        """The optimizer step before whose update a completion of a run that follows no plan was generated."""
        return (row.rollout if row.weights_of is None else row.weights_of) * self._orders.steps_per_rollout

    def _parts(self) -> list[list[TrainedRow]]:
        """The completions of each micro-batch of the step."""
        return [[row for row, _ in self._micro_batches[index]] for index in self._open]

    @property
    def _kept(self) -> int:
        """Micro-batches of a pass: those that fill no step may be dropped."""
        return self._learner.kept(len(self._micro_batches))

    def _pass(self) -> int:
        return (self._backwards - len(self._open)) // self._kept


def _left_alone(data: Any) -> None:
    """Nothing: a rollout of a run that is not observed any more."""


def trained(batch: Any, micro_batch: int, row: int, piece: feed.PackedCompletion) -> tuple[TrainedRow, dict[str, Any]]:
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
