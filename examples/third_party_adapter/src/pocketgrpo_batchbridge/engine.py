"""A running `PocketTrainer`: instance patches, a probe of its loss, and a measured step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from batchbridge import LostGradient
from batchbridge.kit import Normaliser, Request, Row, group_advantages
from batchbridge.kit.lifecycle import Patched
from batchbridge.kit.measuring import Rows, Tap, Witness
from batchbridge.kit.patches import Patches
from batchbridge.kit.probing import batches, verdict
from batchbridge.kit.workers import Recorder, TrainedRow, facts, orders_of
from pocketgrpo import Answer

REMEDY = 'wrap with mode="observe" to record what it does, or take one of PocketGRPO\'s own losses'


def patch(trainer: Any, request: Request, patches: Patches, version: str) -> Patched:
    """Follows the plan of `request` (mode enforce), or only measures and records (observe)."""
    run = _Run(trainer, request, version)
    if request.mode == "enforce":
        for name, what in (
            ("batches", "as many as planned"),
            ("choose", "the planned prompts"),
            ("parts", "the planned optimizer steps"),
            ("share", "denominators of the whole step"),
            ("advantages", "the specification's own rule"),
        ):
            patches.set(trainer, name, getattr(run, name), what=what, why="the plan decides it")
    else:
        patches.set(trainer, "choose", run.note_choice, what="noted", why="the ledger says what was chosen")
    patches.set(trainer, "update", run.update, what="recorded", why="the ledger says what each step trained")
    patches.set(trainer, "logprobs", run.logprobs, what="hooked", why="each completion's weight is measured")
    for name, undo in (
        ("optimizer", trainer.optimizer.register_step_pre_hook(run.before_the_update).remove),
        ("policy", run.witness.remove),
    ):
        patches.made(name, undo, what="hooked", why="a step is held against the plan before it is applied")
    return Patched(detach=run.recorder.close, probe=run.probe if request.mode == "enforce" else lambda: None)


class _Run:
    """One wrapped training."""

    def __init__(self, trainer: Any, request: Request, version: str) -> None:
        self._trainer, self._request, self._plan = trainer, request, request.plan
        self._step, self._batch, self._turn = 0, 0, 0
        self._native_update, self._native_logprobs = trainer.update, trainer.logprobs
        self._native_choose = trainer.choose
        self._prompts: Sequence[int] = ()
        orders = orders_of(request, version)
        self.recorder = Recorder("pocketgrpo", orders, rank=0, world_size=1, gather=list)
        self._objective = orders.trained.objective
        self._tap = Tap(self._objective)
        chosen = Witness.choose(list(trainer.policy.named_parameters()))
        assert chosen is not None, "a policy without parameters has no optimizer either"
        self.witness = Witness(chosen[1])
        self._part: list[Any] = []
        self._rows: list[TrainedRow] = []
        self._forwards = iter(())
        self._leaves: Iterator[tuple[Tap, torch.Tensor, Rows]] | None = None

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
        mine, whole = (Normaliser.of(term, some) for some in (_rows(piece), _rows(part, no_row=_FILLER)))
        return whole.step_factor() / mine.step_factor() if mine.step_factor() else 0.0

    def advantages(self, rewards: Sequence[float]) -> list[float]:
        return group_advantages([rewards], self._request.spec.advantage)[0]

    def note_choice(self, batch: int) -> list[int]:
        self._batch, self._prompts = batch, self._native_choose(batch)
        self._turn = -1
        return list(self._prompts)

    # ---- what a step trains, measured

    def update(self, part: list[Any]) -> None:
        """The native step; it is held against the plan before it is applied, and written down after it."""
        self._turn += part[0].prompt == self._prompts[0] and part[0].sample == 0 and self._request.mode == "observe"
        group = self._request.spec.rollout.completions_per_prompt
        self._part, self._forwards = part, iter(part)
        self._rows = [
            TrainedRow(
                self._batch,
                one.prompt,
                list(self._prompts).index(one.prompt) * group + one.sample,
                one.sample,
                sum(one.mask),
                index,
            )
            for index, one in enumerate(part)
        ]
        try:
            self._native_update(part)
        finally:
            self._forwards = iter(())
            self._tap.drop()
            self.witness.drop()
        self._write()
        self._step += 1

    def logprobs(self, ids: Sequence[int], tokens: Sequence[int]) -> torch.Tensor:
        """The policy's, hooked where they are a step's; the probe's in their place while it runs."""
        if self._leaves is not None:
            tap, values, rows = next(self._leaves)
            return tap.leaf(values, rows, view=_one_row)
        made = self._native_logprobs(ids, tokens)
        answer = next(self._forwards, None)
        return made if answer is None else self._tap.watch(made, _meant(answer), view=_one_row)

    def before_the_update(self, optimizer: Any, arguments: Any, options: Any) -> None:
        """Reads every completion's weight off the gradients. Raises `BatchDrift` where they are not the plan's."""
        objections = []
        try:
            seen = [row for part in self._tap.take() for row in part]
            for row, measured in zip(self._rows, seen, strict=True):
                row.measured(measured)
        except (LostGradient, ValueError) as error:  # a completion without a backward pass, or without a forward pass
            objections.append(str(error))
        why = self.witness.compare(self.witness.parameter.grad).objection(1.0)
        objections += [] if why is None else [why]
        self.recorder.compare(self._step, self._rows, objections, pass_index=lambda: self._turn)

    def _write(self) -> None:
        term = self._request.spec.loss.policy
        self.recorder.write(
            self._step,
            self._rows,
            [
                facts(
                    prompt=answer.ids,
                    completion=answer.tokens,
                    trained=[answer.advantage] * sum(answer.mask),
                    old_logprobs=answer.old.tolist(),
                    reward=answer.reward,
                )
                for answer in self._part
            ],
            normaliser=Normaliser.of(term, _rows(self._part)) if self._request.mode == "enforce" else None,
            pass_index=lambda: self._turn,
            learning_rate=self._trainer.settings["lr"],
            gradient_norm=None,
            skipped=False,
        )

    # ---- before training

    def probe(self) -> None:
        """Runs the trainer's own `update` on made-up log-probabilities. Raises `CannotAttach` where a token's weight is
        not the plan's."""
        taps = [self._probed(off_policy) for off_policy in (False, True)]
        verdict(taps, self._request.spec.loss.policy, remedy=REMEDY)

    def _probed(self, off_policy: bool) -> Tap:
        tap, made = Tap(self._objective), list(batches(self._objective, off_policy=off_policy))
        answers, leaves = [], []
        for part in made:
            for row, length in enumerate(part.lengths):
                mask, values = part.mask[row], part.logprobs[row]
                old = values if part.old is None else part.old[row]
                advantage = float(part.advantages[row])
                prompt = len(answers) if length else _FILLER
                answers.append(Answer(prompt, 0, (), (), mask.tolist(), 0.0, advantage, old))
                leaves.append((tap, values, _meant(answers[-1])))
        patches, same = Patches(), {"what": "a stand-in", "why": "probe"}
        settings = {**self._trainer.settings, "micro": len(made[0].lengths)}
        try:
            patches.set(self._trainer, "settings", settings, **same)
            patches.set(self._trainer.optimizer, "zero_grad", lambda *arguments: None, **same)
            patches.set(self._trainer.optimizer, "step", lambda *arguments: None, **same)
            self._leaves = iter(leaves)
            self._native_update(answers)
        finally:
            self._leaves = None
            patches.undo()
        return tap


_FILLER = -1
"""The prompt of the probe's row that is not a completion."""


def _meant(answer: Any) -> Rows:
    """What a completion should train, copied: the loss may change what it is given."""
    return Rows(
        mask=torch.tensor([list(answer.mask)]),
        advantages=torch.tensor([[answer.advantage]]),
        old=answer.old.clone()[None],
    )


def _one_row(values: torch.Tensor) -> torch.Tensor:
    return values[None]


def _rows(answers: Sequence[Any], no_row: int | None = None) -> list[Row]:
    return [Row(tokens=sum(one.mask), group=one.prompt, padding=one.prompt == no_row) for one in answers]
