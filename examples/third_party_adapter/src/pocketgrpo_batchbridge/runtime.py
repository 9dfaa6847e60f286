"""Attaching to a running `PocketTrainer`: five instance patches, undone by `unwrap`."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from batchbridge import Attachment, CannotAttach
from batchbridge.kit import Normaliser, Request, Row, group_advantages, token_weights, walk
from batchbridge.kit.patches import Patches
from batchbridge.kit.workers import Orders, Recorder, TrainedRow, facts

FREE = ("rollout.", "optimizer_step.", "micro_batch.", "topology.", "advantage.", "order.", "horizon.", "loss.policy.")
"""Groups of fields in which the plan and the weights decide; every other field must be what the trainer does."""


def attach(trainer: Any, request: Request) -> Attachment:
    """Follows `request` (mode enforce), or only records (observe). Raises `CannotAttach` with every reason."""
    reasons = _reasons(request)
    if reasons:
        raise CannotAttach(reasons)
    patches, run = Patches(), _Run(trainer, request)
    if request.mode == "enforce":
        for name, why in (
            ("batches", "as long as the plan"),
            ("choose", "prompts in the plan's order"),
            ("parts", "optimizer steps as planned"),
            ("share", "weights belong to the step"),
            ("advantages", "the spec's own rule"),
        ):
            patches.set(trainer, name, getattr(run, name), what="the plan's", why=why)
    else:
        patches.set(trainer, "choose", run.note_choice, what="noted", why="the ledger says what was chosen")
    patches.set(trainer, "update", run.update, what="recorded", why="the ledger")

    def detach() -> None:
        run.recorder.close()
        patches.undo()

    return Attachment(
        framework="pocketgrpo",
        framework_version=str(request.reading.framework_version),
        request=request,
        changes=patches.changes,
        detach=detach,
    )


def _reasons(request: Request) -> dict[str, str]:
    assert request.reading.spec is not None, "wrap refuses a trainer whose own configuration is not read"
    if request.mode == "observe":
        return {}
    if request.mode == "verify":
        return {"verify": "pocketgrpo's own order is never the plan's: observe it, or enforce the plan"}
    own = {path: value for path, value, _ in walk(request.reading.spec)}
    reasons = {
        path: f"{value!r}: pocketgrpo does {own.get(path)!r}"
        for path, value, _ in walk(request.spec)
        if not path.startswith(FREE) and value is not None and value != own.get(path)
    }
    if request.spec.optimizer_step.step_may_span not in ("none", "rollout"):
        reasons["optimizer_step.step_may_span"] = "a step of pocketgrpo lies inside one batch"
    return reasons


class _Run:
    """One wrapped training."""

    def __init__(self, trainer: Any, request: Request) -> None:
        self._trainer, self._plan, self._step, self._batch, self._turn = trainer, request.plan, 0, 0, 0
        self._request, self._native_update = request, trainer.update
        self._native_share, self._native_choose = trainer.share, trainer.choose
        self._prompts: Sequence[int] = ()
        orders = Orders(
            spec=request.spec,
            dataset_size=request.reading.dataset_size or 0,
            planned=request.plan is not None,
            mode=request.mode,
            ledger=request.ledger,
            framework_version=str(request.reading.framework_version),
            start_id=uuid.uuid4().hex,
        )
        self.recorder = Recorder("pocketgrpo", orders, rank=0, world_size=1, gather=list)

    # ---- in place of the trainer's own

    def batches(self) -> int:
        return self._plan.total_rollouts if self._plan else 0

    def choose(self, batch: int) -> list[int]:
        assert self._plan is not None, "wrap refuses to enforce without a plan"
        self._batch, self._prompts = batch, self._plan.rollout(batch).prompts
        return list(self._prompts)

    def parts(self, answers: list[Any], batch: int, turn: int) -> Iterator[list[Any]]:
        """The planned steps that begin in this pass over this batch."""
        assert self._plan is not None, "wrap refuses to enforce without a plan"
        while self._step < self._plan.total_optimizer_steps:
            step = self._plan.step(self._step)
            if (step.members[0].rollout, step.members[0].pass_index) != (batch, turn):
                return
            yield [answers[position] for position in step.positions]

    def share(self, piece: list[Any], part: list[Any], pieces: int) -> float:
        """The mean over a micro-batch times this is its share of the step's: micro-batch's count over the step's."""
        term = self._request.spec.loss.policy
        mine, whole = (Normaliser.of(term, _rows(some)) for some in (piece, part))
        return whole.step_factor() / mine.step_factor() if mine.step_factor() else 0.0

    def advantages(self, rewards: Sequence[float]) -> list[float]:
        return group_advantages([rewards], self._request.spec.advantage)[0]

    def note_choice(self, batch: int) -> list[int]:
        self._batch, self._prompts = batch, self._native_choose(batch)
        self._turn = -1
        return list(self._prompts)

    def update(self, part: list[Any]) -> None:
        """The native step, held against the plan before it and written down after it."""
        self._note_turn(part)
        group = self._request.spec.rollout.completions_per_prompt
        weights = self._weights(part)
        rows = []
        for index, (answer, weight) in enumerate(zip(part, weights, strict=True)):
            position = list(self._prompts).index(answer.prompt) * group + answer.sample
            tokens = sum(answer.mask)
            rows.append(TrainedRow(self._batch, answer.prompt, position, answer.sample, tokens, index, weight))
        self.recorder.compare(self._step, rows, pass_index=lambda: self._turn)
        self._native_update(part)
        term = self._request.spec.loss.policy
        self.recorder.write(
            self._step,
            rows,
            [
                facts(
                    prompt=answer.ids,
                    completion=answer.tokens,
                    trained=[answer.advantage] * sum(answer.mask),
                    old_logprobs=answer.old.tolist(),
                    reward=answer.reward,
                )
                for answer in part
            ],
            normaliser=Normaliser.of(term, _rows(part)) if self._request.mode == "enforce" else None,
            pass_index=lambda: self._turn,
            learning_rate=self._trainer.settings["lr"],
            gradient_norm=None,
            skipped=False,
        )
        self._step += 1

    # ---- facts

    def _note_turn(self, part: list[Any]) -> None:
        first = part[0].prompt == self._prompts[0] and part[0].sample == 0
        self._turn += first and self._request.mode == "observe"

    def _weights(self, part: list[Any]) -> list[float]:
        """Of one token of each completion: what the loss gives it, times what its micro-batch counts for."""
        micro, term = self._trainer.settings["micro"], self._request.spec.loss.policy
        pieces = [part[first : first + micro] for first in range(0, len(part), micro)]
        return [
            float(weight) * self._trainer.share(piece, part, len(pieces))
            for piece in pieces
            for weight in token_weights(term, _rows(piece))
        ]


def _rows(answers: Sequence[Any]) -> list[Row]:
    return [Row(tokens=sum(answer.mask), group=answer.prompt) for answer in answers]
