"""In a worker's process: every completion's weight is measured, and held against the plan before the update."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from batchbridge import CannotAttach, LostGradient
from batchbridge.kit import Normaliser, Row
from batchbridge.kit.lifecycle import values_of_all_ranks
from batchbridge.kit.measuring import Rows, Tap, Witness, all_reduce_over
from batchbridge.kit.patches import Patches, temporarily
from batchbridge.kit.probing import batches, normaliser, verdict
from batchbridge.kit.workers import Orders, Receipt, Recorder, TrainedRow, facts, read_off
from pocketray import Answer
from pocketray_batchbridge.driver import FILLER

REMEDY = 'wrap with mode="observe" to record what it does, or take one of PocketRay\'s own losses'


def install(worker: Any, orders: Orders | None) -> Receipt | None:
    """Patches a worker's replica, and answers; orders None: undoes it. An earlier patch is undone first."""
    replica = worker.replica
    layer = vars(replica).pop("batchbridge", None)
    if layer is not None:
        layer.remove()
    if orders is None:
        return None
    patches = Patches()
    try:
        replica.batchbridge = Layer(replica, orders, patches)
    except BaseException:
        patches.undo()
        raise
    return Receipt.here(orders, rank=replica.rank, world_size=replica.workers)


def probe(worker: Any) -> None:
    """Runs the replica's own `update` on made-up log-probabilities. Raises `CannotAttach` where a token's weight is not
    the plan's."""
    worker.replica.batchbridge.probe()


class Layer:
    """The patches of one replica."""

    def __init__(self, replica: Any, orders: Orders, patches: Patches) -> None:
        self._replica, self._orders, self._patches = replica, orders, patches
        self._recorder = Recorder("pocketray", orders, rank=replica.rank, world_size=replica.workers, gather=_everyones)
        self._tap = Tap(orders.trained.objective)
        chosen = Witness.choose(list(replica.policy.named_parameters()))
        assert chosen is not None, "a policy without parameters has no optimizer either"
        self._witness = Witness(chosen[1], all_reduce_over())
        self._share: Sequence[Answer] = ()
        self._forwards: Iterator[Answer] = iter(())
        self._rows: list[TrainedRow | None] = []
        self._step: Normaliser | None = None
        self._leaves: Iterator[tuple[Tap, torch.Tensor, Rows]] | None = None
        same = {"what": "measured", "why": "held against the plan before the update"}
        patches.made(chosen[0], self._witness.remove, **same)
        hook = replica.optimizer.register_step_pre_hook(lambda *arguments: self._before_the_update())
        patches.made("optimizer", hook.remove, **same)
        self._native_update = patches.set(replica, "update", self.update, **same)
        self._native_logprobs = patches.set(replica, "logprobs", self.logprobs, **same)
        if orders.mode == "enforce":
            patches.set(replica, "factor", self.factor, what="the whole step's denominators", why="the plan's")

    def remove(self) -> None:
        """Restores the replica and closes the ledger."""
        self._patches.undo()
        self._recorder.close()

    # ---- in place of the replica's own

    def update(self, share: Sequence[Answer]) -> None:
        """One optimizer step, measured, and written down after it. Collective."""
        if not all(hasattr(one, "place") for one in share):
            raise CannotAttach({"unplanned_step": "completions reached a worker that the wrapped driver did not send"})
        self._share, self._forwards = share, iter(share)
        self._rows = [None if one.prompt == FILLER else _row(one, index) for index, one in enumerate(share)]
        everyone = _everyones([(row.prompt, row.tokens) for row in self._rows if row is not None])
        term = self._orders.spec.loss.policy
        self._step = Normaliser.of(term, [Row(tokens=tokens, group=prompt) for prompt, tokens in everyone])
        try:
            self._native_update(share)
        finally:
            self._forwards = iter(())
            self._tap.drop()
            self._witness.drop()
        self._write()

    def factor(self, piece: Sequence[Answer], pieces: Sequence[Sequence[Answer]]) -> float:
        """What turns the native mean over a micro-batch into its share of the whole step: the step's denominator, not
        the micro-batch's; and gradients are averaged over workers later."""
        assert self._step is not None, "update and the probe say it"
        mine = Normaliser.of(self._orders.spec.loss.policy, [Row(tokens=sum(one.mask)) for one in piece])
        return self._replica.workers * self._step.step_factor() / mine.step_factor() if mine.tokens else 0.0

    def logprobs(self, ids: Sequence[int], tokens: Sequence[int]) -> torch.Tensor:
        """The policy's, hooked where they are a step's; the probe's in their place while it runs."""
        if self._leaves is not None:
            tap, values, rows = next(self._leaves)
            return tap.leaf(values, rows, view=_one_row)
        made = self._native_logprobs(ids, tokens)
        answer = next(self._forwards, None)
        return made if answer is None else self._tap.watch(made, _meant(answer), view=_one_row)

    # ---- what a step trains

    def _before_the_update(self) -> None:
        """Reads every completion's weight off the gradients. Raises `BatchDrift` in every worker where those of some
        worker are not the plan's. Collective."""
        workers = self._replica.workers
        try:
            seen = [row for part in self._tap.take(scale=workers) for row in part]
            objections = read_off([self._rows], [seen])
        except (LostGradient, ValueError) as error:  # a completion without a backward pass, or without a forward pass
            objections = [str(error)]
        why = self._witness.compare(self._witness.parameter.grad).objection(1 / workers)
        objections += [] if why is None else [why]
        place = self._share[0].place
        self._recorder.compare(place.step, self._trained, objections, pass_index=lambda: place.turn)

    @property
    def _trained(self) -> list[TrainedRow]:
        return [row for row in self._rows if row is not None]

    def _write(self) -> None:
        place, enforced = self._share[0].place, self._orders.mode == "enforce"
        self._recorder.write(
            place.step,
            self._trained,
            [
                facts(
                    prompt=one.ids,
                    completion=one.tokens,
                    trained=[one.advantage] * sum(one.mask),
                    old_logprobs=one.old.tolist(),
                    reward=one.reward,
                )
                for one in self._share
                if one.prompt != FILLER
            ],
            normaliser=self._step if enforced else None,
            pass_index=lambda: place.turn,
            learning_rate=self._replica.settings["lr"],
            gradient_norm=None,
            skipped=False,
        )

    # ---- before training

    def probe(self) -> None:
        """See the module's `probe`."""
        taps = [self._probed(off_policy) for off_policy in (False, True)]
        verdict(taps, self._orders.spec.loss.policy, scale=self._replica.workers, remedy=REMEDY)

    def _probed(self, off_policy: bool) -> Tap:
        replica, objective = self._replica, self._orders.trained.objective
        tap, made = Tap(objective), list(batches(objective, off_policy=off_policy))
        answers, leaves = [], []
        for part in made:
            for row in range(len(part.lengths)):
                values = part.logprobs[row]
                old = values if part.old is None else part.old[row]
                answers.append(Answer(row, 0, (), (), part.mask[row].tolist(), 0.0, float(part.advantages[row]), old))
                leaves.append((tap, values, _meant(answers[-1])))
        self._leaves, self._step = iter(leaves), normaliser(self._orders.spec.loss.policy)
        settings = {**replica.settings, "micro": len(made[0].lengths)}
        try:
            with (
                temporarily(replica, settings=settings, average_gradients=lambda: None),
                temporarily(replica.optimizer, zero_grad=lambda: None, step=lambda: None),
            ):
                self._native_update(answers)
        finally:
            self._leaves, self._step = None, None
        return tap


def _row(answer: Any, index: int) -> TrainedRow:
    place = answer.place
    return TrainedRow(place.rollout, answer.prompt, place.position, answer.sample, sum(answer.mask), index)


def _meant(answer: Answer) -> Rows:
    """What a completion should train, copied: the loss may change what it is given."""
    return Rows(
        mask=torch.tensor([list(answer.mask)]),
        advantages=torch.tensor([[answer.advantage]]),
        old=answer.old.clone()[None],
    )


def _one_row(values: torch.Tensor) -> torch.Tensor:
    return values[None]


def _everyones(mine: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Every worker's tuples. Collective."""
    return [row for part in values_of_all_ranks(list(mine)) for row in part]
