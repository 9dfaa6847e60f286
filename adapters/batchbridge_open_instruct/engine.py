"""In a learner: the step's token weights, every optimizer step held against the plan and written down.

`PolicyTrainerRayProcess.step` runs as it is written; what it reads and calls is patched on the instance: its data
loader, its arguments, its DeepSpeed engine's `backward` and `step`. Forward and backward passes, the loss of a token,
DeepSpeed, the optimizer and its schedule stay theirs. What each step trains is measured (`watching`), and held against
the plan before DeepSpeed's step, which is where it updates.

Source: open-instruct e6c3044 grpo_fast.PolicyTrainerRayProcess.step, grpo_utils.calculate_token_counts; deepspeed
0.19.6.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from batchbridge import BatchDrift, CannotAttach
from batchbridge.kit import CandidatePlan, Normaliser, Row, checkpoints, current_launch
from batchbridge.kit.patches import Patches
from batchbridge.kit.workers import Orders, Recorder, TrainedRow, facts
from batchbridge_open_instruct import feed
from batchbridge_open_instruct.candidates import Filled, objection
from batchbridge_open_instruct.writing import denominator

AGGREGATIONS = ("token_mean", "token_sum", "sequence_sum", "sequence_sum_over_constant")
"""Aggregations that give every token of a step one weight: upstream divides a step's sum by one number."""


def ask(learner: Any, function: Any, *values: Any) -> Any:
    """Runs `function(actor, *values)` in the data preparation actor of a loaded learner."""
    import ray

    handle = learner._streaming_dataloader.data_prep_actor
    return ray.get(handle.__ray_call__.remote(function, *values))


def install(learner: Any, orders: Orders) -> None:
    """Patches a learner that is loaded, and the actor that prepares its data; replaces what an earlier call installed.

    Raises `CannotAttach`.
    """
    remove(learner)
    learner.batchbridge_layer = LearnerLayer(learner, orders)


def remove(learner: Any) -> None:
    """Undoes `install`; a learner without it is left alone. Raises `CannotAttach` while data preparation runs."""
    layer = vars(learner).get("batchbridge_layer")
    if layer is not None:
        layer.remove()
        del learner.batchbridge_layer


class LearnerLayer:
    """The patches of one learner."""

    def __init__(self, learner: Any, orders: Orders) -> None:
        import torch.distributed as dist

        from batchbridge_open_instruct.watching import Watch

        self._learner, self._orders, self._engine = learner, orders, learner.model
        self._ranks = dist.get_world_size()
        self._recorder = Recorder(
            "open_instruct", orders, rank=dist.get_rank(), world_size=self._ranks, gather=self._gather
        )
        if isinstance(self._recorder.plan, CandidatePlan):
            self._recorder.plan = Filled(self._recorder.plan)
        self._plan = self._recorder.plan
        self._next_candidate: int | None = None
        self._patches = Patches()
        self._native_backward, self._native_step = self._engine.backward, self._engine.step
        self.native_args = learner.args
        self._micro_batches: list[list[tuple[TrainedRow, Mapping[str, Any]]]] = []
        self._normaliser: Normaliser | None = None
        self._first_step, self._backwards, self._steps = 0, 0, 0
        self._open: list[int] = []
        self._last: int | None = None
        try:
            self._patch()
            self._watch = Watch(learner, orders.trained.objective, ranks=self._ranks, patches=self._patches)
        except BaseException:
            self.remove()
            raise

    def _patch(self) -> None:
        learner, orders = self._learner, self._orders
        ask(learner, feed.install, orders)
        held, why = "held against the plan", "ledger"
        if self._enforces:
            args = copy.copy(learner.args)  # shared with others
            for name, value in orders.settings.items():
                setattr(args, name, value)
            what = "what the loss reads"
            self._patches.set(learner, "args", args, what=what, why="weights and objective of the spec")
        self._patches.set(learner, "dataloader", self._batches(learner.dataloader), what="rows are known", why=why)
        self._patches.set(self._engine, "backward", self._backward, what="counted", why=why)
        self._patches.set(self._engine, "step", self._step, what=held, why=why)

    @property
    def patches(self) -> Patches:
        """What was patched."""
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
        """Holds this learner's own loss against the plan's weights, where it shall be enforced. Collective.

        Raises `CannotAttach`.
        """
        from batchbridge_open_instruct.probe import hold_loss_against

        if self._enforces:
            hold_loss_against(self._orders.spec, self._learner, self._watch)

    # ---- a rollout

    def _batches(self, native: Iterator[Any]) -> Iterator[Any]:
        while True:
            if self._enforces:
                notes = ask(self._learner, feed.begin, self._learner._streaming_dataloader.training_step)
                if self._last is None:  # a launched run's driver says them itself
                    checkpoints.tell(self._learner, notes, aloud=self._learner.rank == 0 and current_launch() is None)
            try:
                data = next(native)
            except StopIteration:
                return
            self._start(data["batch"])
            yield data

    def _start(self, batch: Any) -> None:
        table = vars(batch).get(feed.ATTRIBUTE)
        if table is None:
            reason = "a batch that BatchBridge's feed did not make reached the learner"
            raise CannotAttach({"unplanned_batch": reason})
        if table.spec_digest != self._orders.spec.digest():
            raise CannotAttach({"arrival": "the data preparation actor follows another spec than this learner"})
        self._micro_batches = [
            [trained(batch, index, row, piece) for row, pieces in enumerate(rows) for piece in pieces]
            for index, rows in enumerate(table.micro_batches)
        ]
        self._watch.expect(batch, table.micro_batches[: self._kept])
        if not self._learner.args.use_vllm_logprobs:
            for _, told in [pair for part in self._micro_batches for pair in part]:
                told["old_logprobs"] = None  # type: ignore[index]  # the native step computes them inside of itself
        mine: list[tuple[Any, ...]] = [
            (row.rollout, row.prompt, row.tokens) for part in self._micro_batches for row, _ in part
        ]
        against = None
        if self._plan is not None and self._enforces:
            pieces = (piece for rows in table.micro_batches for row in rows for piece in row)
            against = objection(self._plan, table.taken, pieces, self._next_candidate)
        said = self._gather([*((row, None) for row in mine), *(() if against is None else ((None, against),))])
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
        if isinstance(self._plan, Filled):
            self._plan.places[rollout] = sum(one.position is not None for one in table.taken)
        term = self._orders.spec.loss.policy
        self._normaliser = Normaliser.of(term, [Row(tokens=tokens, group=prompt) for _, prompt, tokens in everyone])
        if not self._normaliser.tokens:
            reason = "no completion of the rollout has a trained token: the native loss has no gradient then, and fails"
            raise BatchDrift(self._first_step, "weights", reason)
        self._learner.args.loss_denominator = denominator(self._normaliser)

    # ---- one optimizer step

    def _backward(self, *arguments: Any, **options: Any) -> Any:
        self._open.append(self._backwards % self._kept)
        self._backwards += 1
        return self._native_backward(*arguments, **options)

    def _step(self, *arguments: Any, **options: Any) -> Any:
        rows = [row for index in self._open for row, _ in self._micro_batches[index]]
        told = [fact for index in self._open for _, fact in self._micro_batches[index]]
        index = self._first_step + self._steps
        # Nothing updates before the engine's step: all that it will use is there.
        self._recorder.compare(index, rows, self._watch.look(self._parts()), pass_index=self._pass)
        rate = float(self._engine.optimizer.param_groups[0]["lr"])
        said = self._native_step(*arguments, **options)
        norm = self._engine.get_global_grad_norm()
        norm = None if norm is None else float(norm)
        self._recorder.write(
            index,
            rows,
            told,
            normaliser=self._normaliser,
            pass_index=self._pass,
            learning_rate=rate,
            gradient_norm=norm,
            skipped=norm is not None and not math.isfinite(norm),
            generated_at_step=None if self._enforces else [self._native_start(row) for row in rows],
        )
        self._steps, self._open, self._last = self._steps + 1, [], index
        return said

    def _native_start(self, row: TrainedRow) -> int:
        """The optimizer step before whose update a completion of a run that follows no plan was generated."""
        return (row.rollout if row.weights_of is None else row.weights_of) * self._orders.steps_per_rollout

    def _parts(self) -> list[list[TrainedRow]]:
        """The completions of each micro-batch of the step."""
        return [[row for row, _ in self._micro_batches[index]] for index in self._open]

    @property
    def _group(self) -> int:
        """Micro-batches of one native optimizer step."""
        parts = int(self._learner.num_mini_batches)
        return max(math.ceil(len(self._micro_batches) / parts - 0.5), 1)

    @property
    def _kept(self) -> int:
        """Micro-batches of a pass: those that fill no step are dropped."""
        count = len(self._micro_batches)
        return count - count % self._group

    def _pass(self) -> int:
        return int(self._steps // (self._kept // self._group))

    @staticmethod
    def _gather(mine: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """Every rank's tuples. Collective."""
        import torch.distributed as dist

        parts: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(parts, list(mine))
        return [row for part in parts for row in part]


def trained(batch: Any, micro_batch: int, row: int, piece: feed.Piece) -> tuple[TrainedRow, dict[str, Any]]:
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
