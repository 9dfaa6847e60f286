"""The layer of a training process whose framework has one function for all steps of a batch: passes, mini-batches,
micro-batches, backward passes and updates (`update_policy` of EasyR1 and of verl's legacy workers).

The native function runs as it is written, with some of its names bound to ours, and sees one mini-batch at a time where
the plan is enforced. An adapter says what its settings are called, what its batches carry, and what stands in the place
of its averages. Imports torch; knows no framework.
"""

from __future__ import annotations

import contextlib
import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch

from batchbridge.errors import CannotAttach
from batchbridge.kit.carried_rows import row_objections
from batchbridge.kit.identified_rows import POSITION, PROMPT, ROLLOUT, SAMPLE, STEP
from batchbridge.kit.measuring import Measured
from batchbridge.kit.optimizer_groups import applied_rate
from batchbridge.kit.patches import Patches, temporarily
from batchbridge.kit.probing import ProbeBatch, batches, made_up_run, normaliser, verdict
from batchbridge.kit.row_digests import ROW_DIGESTS, InputObjection
from batchbridge.kit.update_probe import UpdateProbe
from batchbridge.kit.worker_layer import Ranks, StepInHand, WorkerLayer
from batchbridge.kit.workers import Orders, TrainedRow, facts


class UpdateLayer(WorkerLayer):
    """The patches of one training process. worker: holds the actor (`worker.actor`), which has the function and its
    settings (`actor.config`)."""

    carried: ClassVar[Sequence[str]]
    """Columns of which the trainer's process makes digests."""
    remedy: ClassVar[str]
    """The user's way out where the loss is not the plan's (`probing.remedy_with`)."""
    mini_batch: ClassVar[str]
    """The setting with the rows of a mini-batch on this rank."""
    micro_batch: ClassVar[str]
    """The setting with the rows of a micro-batch."""
    by_tokens: ClassVar[str]
    """The setting that asks for micro-batches by a budget of tokens."""
    passes: ClassVar[str] = "ppo_epochs"
    """The setting with the passes over a batch."""
    _watch: UpdateProbe

    def __init__(self, worker: Any, orders: Orders, patches: Patches, ranks: Ranks) -> None:
        super().__init__(orders, patches, ranks)
        self._worker, self._actor, self._config = worker, worker.actor, worker.actor.config
        self._probing = False
        self._data: Any = None
        self._rows: list[TrainedRow | None] = []
        self._changed: dict[int, InputObjection] = {}
        """Objections to rows that do not carry what the trainer's process sent, by their place in the batch."""
        self._first_step, self._done = 0, 0
        self._cuts: list[list[int]] | None = None
        self._tick = True
        self._native_update: Callable[[Any], Any] = lambda data: {}

    # ---- what an adapter says

    @property
    @abstractmethod
    def optimizer(self) -> Any:
        """The actor's optimizer; see `WorkerLayer`."""

    @abstractmethod
    def inputs_of(self, data: Any) -> Any:
        """The values that a batch's rows are meant to train (`update_probe.StepInputs`)."""

    @abstractmethod
    def made_up(self, made: Sequence[ProbeBatch]) -> Any:
        """The batch of a probe's micro-batches."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """The device that micro-batches are computed on."""

    def with_settings(self, **values: Any) -> contextlib.AbstractContextManager[None]:
        """The span in which the actor has other settings."""
        return temporarily(self._config, **values)

    @property
    def probe_scale(self) -> float:
        """The number that the framework's own code multiplies a probed loss with; see `Tap.take`."""
        return 1.0

    @property
    def trained_module(self) -> Any:
        """The actor's module, whose parameters FSDP gives the optimizer."""
        return self._actor.actor_module

    # ---- the probe

    def hold_loss(self) -> None:
        """The actor's own probe: the native function on made-up values, without a model or an update."""
        taps = []
        # With the current policy as the ratio's denominator every ratio is one.
        for off_policy in (False,) if self._orders.detached else (False, True):
            tap, made = (
                self._watch.tap(),
                list(batches(self._watch.objective, off_policy=off_policy, device=self.device)),
            )
            self._watch.leaves(tap, made)
            self._run_probe(made)
            taps.append(tap)
        verdict(taps, self._orders.spec.loss.policy, scale=self.probe_scale, remedy=self.remedy)

    def _run_probe(self, made: Sequence[ProbeBatch]) -> None:
        training, self._probing = self._actor.actor_module.training, True
        self._normaliser, rows = normaliser(self._orders.spec.loss.policy), len(made[0].lengths)
        one_cut = {self.by_tokens: False, self.micro_batch: rows}
        try:
            with (
                made_up_run("the actor's update did not run on made-up micro-batches", self.remedy),
                self.one_step(rows * len(made), **one_cut),
            ):
                self._native_update(self.made_up(made))
        finally:
            self._watch.leaves(self._watch.tap(), ())
            self._probing, self._normaliser, self._cuts = False, None, None
            self._actor.actor_module.train(training)

    # ---- one call of the native function: one optimizer step where the plan is enforced, else a rollout's

    def update(self, data: Any) -> dict[str, Any]:
        """The stand-in for the native function."""
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
            return self._watched(data)
        finally:
            self._data, self._normaliser = None, None
            self._watch.expect(None, self._places)

    def _expected(self, data: Any) -> tuple[list[TrainedRow | None], Any, dict[int, InputObjection]]:
        """A batch's rows, what they are meant to train, and objections to what they carry."""
        if POSITION not in data.non_tensor_batch:
            reason = "a batch without BatchBridge's columns reached the actor's optimizer"
            raise CannotAttach({"unplanned_batch": reason})
        rows, given = identified(data), self.inputs_of(data)
        told = None if self._observation.observes else data.meta_info.get(ROW_DIGESTS)
        return rows, given, row_objections(told, data.batch, [row for row in rows if row is not None], self.carried)

    def _enforced(self, data: Any) -> dict[str, Any]:
        assert self._plan is not None, "wrap refuses to enforce without a plan"
        step = int(data.meta_info[STEP])
        self.follow(step)
        self._first_step, self._tick = step, self._plan.step(step).lr_tick
        self._normaliser = self.denominators(row for row in self._rows if row is not None)
        if self._normaliser.tokens:
            with self.one_step(len(data)):
                metrics = self._watched(data)
        else:
            metrics = {}  # natively a division by zero tokens, or AdamW's decay of the weights without a gradient
            self._learning_rate = applied_rate(self.optimizer)
            self.hold([*self._changed.values()])
            self.write(gradient_norm=None, skipped=True)
        return metrics

    def _watched(self, data: Any) -> dict[str, Any]:
        """The native function, each of whose updates is looked at, whoever calls for it."""
        with self._watch.differentiating(), self.updating(self.optimizer):
            return dict(self._native_update(data))

    def one_step(self, rows: int, **more: Any) -> contextlib.AbstractContextManager[None]:
        """The span in which the native loop sees one mini-batch of `rows` rows, once; and `more` of its settings."""
        return self.with_settings(**{self.mini_batch: rows, self.passes: 1}, **more)

    def cut(self, native: Callable[..., Any], data: Any, *arguments: Any, **options: Any) -> Any:
        """The framework's own cut of a mini-batch by token counts, written down. native: returns the micro-batches,
        and the rows of each."""
        made = native(data, *arguments, **options)
        self._cuts = self._observation.read(lambda: made[1])
        return made

    def _optimizer_step(self) -> Any:
        """The stand-in for the actor's `_optimizer_step`."""
        if self._probing:
            return torch.zeros(())
        native = self.native["_optimizer_step"]
        if self._data is None:
            return native()
        self._looked, self._learning_rate = False, applied_rate(self.optimizer)
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
        size = len(self._rows) if self._normaliser is not None else self._mini
        return self._rows[self._start : self._start + size]

    @property
    def _mini(self) -> int:
        return int(getattr(self._config, self.mini_batch))

    @property
    def _steps_per_pass(self) -> int:
        return max(-(-len(self._rows) // self._mini), 1)

    @property
    def _start(self) -> int:
        """The place of the step's first row in the batch."""
        return 0 if self._normaliser is not None else self._done % self._steps_per_pass * self._mini

    def _places(self, number: int, rows: int) -> Sequence[int]:
        """Places in the batch of the rows of a micro-batch of the step; fixed ones follow each other."""
        if self._cuts is not None:
            return [self._start + place for place in self._cuts[number]] if number < len(self._cuts) else []
        first = self._start + number * int(getattr(self._config, self.micro_batch))
        return range(first, min(first + rows, len(self._rows)))

    def native_pass(self) -> int:
        """The pass over the rollout that is being trained; see `WorkerLayer.native_pass`."""
        return self._done // self._steps_per_pass

    def native_tick(self) -> bool:
        """Whether this is the rollout's last step: the native clock ticks once for each."""
        return self._done + 1 == int(getattr(self._config, self.passes)) * self._steps_per_pass


def identified(data: Any) -> list[TrainedRow | None]:
    """Identities of this rank's rows of a `DataProto`; None for fillers."""
    columns = [data.non_tensor_batch[name].tolist() for name in (ROLLOUT, PROMPT, POSITION, SAMPLE)]
    tokens = data.batch["response_mask"].sum(-1).tolist()
    return [
        TrainedRow(int(rollout), int(prompt), int(position), int(sample), int(count), index) if position >= 0 else None
        for index, (rollout, prompt, position, sample, count) in enumerate(zip(*columns, tokens, strict=True))
    ]


def made_up_columns(parts: Sequence[ProbeBatch]) -> dict[str, torch.Tensor]:
    """The columns of a probe's micro-batches, padded; tokens are one token, which nothing reads."""
    masks = torch.cat([part.mask for part in parts])
    ids = torch.ones_like(masks)
    return {
        **{name: ids.clone() for name in ("input_ids", "attention_mask", "position_ids", "responses")},
        "response_mask": masks,
        "old_log_probs": torch.cat([part.logprobs if part.old is None else part.old for part in parts]),
        "advantages": torch.cat([part.advantages[:, None] * part.mask for part in parts]),
    }


def made_up_references(parts: Sequence[ProbeBatch]) -> torch.Tensor:
    """The reference's log-probabilities of a probe's micro-batches."""
    return torch.cat([part.logprobs if part.reference is None else part.reference for part in parts])


def facts_of(batch: Mapping[str, Any], index: int) -> dict[str, Any]:
    """Fingerprints, reward, advantage and digest of the old log-probabilities of one row; see `workers.facts`."""
    width = batch["responses"].shape[1]
    attended = batch["attention_mask"][index].bool()
    length = int(attended[-width:].sum())
    mask = batch["response_mask"][index].bool()
    reward = next((name for name in ("rm_scores", "token_level_scores") if name in batch.keys()), None)  # noqa: SIM118 - a TensorDict iterates over its rows
    return facts(
        prompt=batch["input_ids"][index][:-width][attended[:-width]].tolist(),
        completion=batch["responses"][index][:length].tolist(),
        trained=batch["advantages"][index][mask].tolist(),
        old_logprobs=batch["old_log_probs"][index][:length].float().tolist(),
        reward=None if reward is None else float(batch[reward][index].sum()),
    )
