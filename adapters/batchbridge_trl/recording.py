"""The layer of a `GRPOTrainer` in every mode: its callback tells where a step begins and ends, and what TRL computed of
a rollout is kept for the ledger."""

from __future__ import annotations

import dataclasses
import functools
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import broadcast_object_list
from transformers import TrainerCallback

from batchbridge import BatchDrift, CannotAttach, LostGradient
from batchbridge.kit import Request, digest_floats, fingerprint
from batchbridge.kit.before_update import BeforeStep
from batchbridge.kit.checkpoints import tell
from batchbridge.kit.deepspeed import BeforeUpdate
from batchbridge.kit.measuring import Measured
from batchbridge.kit.optimizer_groups import applied_rate
from batchbridge.kit.patches import Patches
from batchbridge.kit.refusals import own_spec
from batchbridge.kit.replicas import Replicas
from batchbridge.kit.reporting import PaddingTokens
from batchbridge.kit.worker_layer import StepInHand, WorkerLayer
from batchbridge.kit.workers import TrainedRow, orders_of, read_off
from batchbridge_trl.advantages import TrlAdvantages
from batchbridge_trl.behaviour import native_rollouts
from batchbridge_trl.finished import newest_whole
from batchbridge_trl.forks import is_unsloths
from batchbridge_trl.ms_swift import is_swift
from batchbridge_trl.reward_tap import RewardTap
from batchbridge_trl.sharding import LONE_HEAD, has_lone_head
from batchbridge_trl.watching import TrlStepProbe


@dataclass
class StepRow(TrainedRow):
    """A completion of the current step, with what the ledger says of it; facts: see `ledger.StepRecord`."""

    generated_at_step: int = 0
    facts: Mapping[str, Any] = field(default_factory=dict)


def facts_of(
    columns: Mapping[str, torch.Tensor], completion_ids: list[list[int]], rewards: list[float]
) -> list[dict[str, Any]]:
    """Facts per row of a rollout dict: fingerprints of prompt and completion, reward, advantage, and digest of old
    log-probabilities."""
    prompts, masks = columns["prompt_ids"].tolist(), columns["prompt_mask"].tolist()
    old = columns["old_per_token_logps"].float().cpu() if "old_per_token_logps" in columns else None
    advantages, facts = columns["advantages"].tolist(), []
    for row, ids in enumerate(completion_ids):
        prompt = [token for token, on in zip(prompts[row], masks[row], strict=True) if on]
        facts.append(
            {
                "prompt_fingerprint": fingerprint(prompt),
                "completion_fingerprint": fingerprint(ids),
                "reward": rewards[row],
                "advantage": None if isinstance(advantages[row], list) else advantages[row],
                "old_logprobs": None if old is None else digest_floats(old[row, : len(ids)].tolist()),
            }
        )
    return facts


class TrlLayer(WorkerLayer, TrainerCallback):  # type: ignore[misc]  # transformers is untyped here
    """The patches of one trainer, and the optimizer step that it is at; of the native training loop, a callback.

    parts: this rank's completions of the step by micro-batch, None for a filler row. silent: those of a step without
    any token, for which no loss was computed. exchanged: objections to rows that reached the loss with another
    completion or advantage than their own.
    """

    framework = "trl"
    _watch: TrlStepProbe

    def __init__(self, trainer: Any, request: Request, patches: Patches, version: str) -> None:
        orders = orders_of(request, version, native_rollouts=self.order_of(request))
        super().__init__(orders, patches, Replicas())
        self._trainer, self._holds = trainer, request.mode != "observe"
        self._own = own_spec(request)
        self.parts: list[list[StepRow | None]] = []
        self.silent: list[StepRow] = []
        self.exchanged: list[str] = []
        self.padding: Callable[[], PaddingTokens | None] = lambda: None
        """The padding of the step, as in `Recorder.padding`."""
        self.failed: Callable[[int], None] = lambda step: None
        """The function called with a step that departs from the plan, before `BatchDrift` ends the run."""
        self._compute_seconds: float | None = None
        """The seconds that this rank computed in the step, where a clock can tell; see `ledger.StepRecord`."""
        self.halved: Callable[[], Sequence[Sequence[str | int]]] = tuple
        """Token budgets that were halved in the step; see `ledger.StepRecord`."""
        self._due: dict[int, int] = {}
        """The optimizer step before which the plan generates each rollout of the current step."""
        self._index = 0
        self._overflowed = False
        self._state: Any = None
        """The state of the training loop; None outside of `train()`."""
        self._optimizer: Any = None
        self._before: BeforeStep | BeforeUpdate | None = None
        """The last moment before an update; None where an engine of its own offers none: the step is then looked at
        before the other callbacks are through."""

    def order_of(self, request: Request) -> Callable[[], Iterator[Sequence[int]]] | None:
        """The trainer's own order of prompts, for a run that is verified; None where the settings leave it open."""
        return _own_order(request)

    def prepare(self) -> None:
        """The measuring, which other patches build on."""
        tap: type[RewardTap] = RewardTap
        if is_swift(self._trainer):
            from batchbridge_trl import swift_rows

            if self._orders.mode == "enforce":
                swift_rows.prepare(self._trainer, self._patches)
            tap = swift_rows.SwiftTap
        self._watch = probe_of(self._trainer)(self._trainer, self._orders.trained.objective, self._patches)
        self._tap = tap(self._trainer, self._patches)
        own = self._own
        # The plan's group, which the trainer has been given by now: it may be another than its configuration's.
        self.advantages = TrlAdvantages(
            self._trainer, own.advantage, int(self._trainer.num_generations), self._orders.allow
        )

    def watching(self) -> TrlStepProbe:
        """The measuring of the trainer's steps; see `prepare`."""
        return self._watch

    def attach(self) -> None:
        """Patches the trainer, and hears of its steps; see `WorkerLayer.attach`."""
        super().attach()
        self._trainer.add_callback(self)
        why = "ledger, and the plan is verified at every step" if self._holds else "ledger"
        undo = functools.partial(self._trainer.remove_callback, self)
        self._patches.made("callback_handler", undo, what="a callback added", why=why)

    def close(self) -> None:
        """Undoes what is not an attribute, and closes the ledger."""
        self._leave()
        super().close()

    def end_observing(self, why: str) -> None:
        """Says in the ledger of a run that has begun that nothing is observed any more; see `WorkerLayer`."""
        self._forget()
        if self._state is not None:
            super().end_observing(why)

    # ---- the training loop

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A run begins, or goes on. Collective."""
        steps = None if self._plan is None else self._plan.total_optimizer_steps
        if self._holds and steps is not None and state.max_steps != steps:
            raise BatchDrift(
                min(state.max_steps, steps),
                "clock",
                f"the run is set to take {state.max_steps} optimizer steps, the plan has {steps}",
            )
        if self._observation.ended:
            return
        if self._observation.read(
            has_lone_head, kwargs["model"], default=False
        ):  # Accelerate makes the units when training begins
            if self._holds:
                raise CannotAttach({"lone_head": LONE_HEAD})
            warnings.warn(f"batchbridge: {LONE_HEAD}", stacklevel=2)
        self._leave()
        self._forget()
        self._recorder.close()
        start = broadcast_object_list([uuid.uuid4().hex])[0]
        self._recorder = self.recording(dataclasses.replace(self._orders, start_id=start))
        self._recorder.padding = self.padding
        folder = Path(args.output_dir)
        said = self._recorder.begin(state.global_step, lambda: newest_whole(folder, self._trainer))
        tell(self._trainer, said, aloud=state.is_world_process_zero)
        self._state, self._optimizer = state, kwargs["optimizer"]
        self._observation.read(self._hook_run)

    def _hook_run(self) -> None:
        inner, engine = getattr(self._optimizer, "optimizer", self._optimizer), self._watch.engine
        self._watch.drop()
        if engine is not None:
            self._before = BeforeUpdate(engine, self._look)
        elif isinstance(inner, torch.optim.Optimizer):
            self._before = BeforeStep(inner, self._look)
        if self._before is not None:
            self._watch.begin()

    def _look(self) -> None:
        self._observation.read(self.look, self._optimizer)

    def look(self, optimizer: Any) -> None:
        """The look at the step in hand before its update; see `WorkerLayer.look`."""
        self._index = self._state.global_step
        super().look(optimizer)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """An update is next, other callbacks before it. DeepSpeed's engine is not asked for one where there was nothing
        to train."""
        if self._before is None or (self._watch.idle and self._watch.engine is not None):
            self._look()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A step has ended."""
        if not self._observation.agree(self.ranks.gather):
            self._leave()
            return
        self._index = state.global_step - 1
        self._overflowed = not self._looked and bool(kwargs["optimizer"].step_was_skipped)
        skipped = bool(kwargs["optimizer"].step_was_skipped) or self._watch.idle
        if self._overflowed:
            self._observation.read(self._leave_out, kwargs["optimizer"])
        elif not self._looked and not skipped:
            self.hold([_OTHER_OPTIMIZER])
        norm, self._looked = self._watch.gradient_norm, False
        self._observation.read(functools.partial(self.write, gradient_norm=norm, skipped=skipped))

    def _leave_out(self, optimizer: Any) -> None:
        """A step whose gradients overflowed in fp16: the gradient scaler left the update out, and the next one has
        another scale. What was seen of it is of no update."""
        self._watch.drop()
        self._learning_rate = applied_rate(optimizer)
        for row in self.rows:
            row.measured(Measured(None, 0.0))

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The run has ended."""
        self._leave()
        self._recorder.close()

    def _leave(self) -> None:
        """Takes the hooks of a run off."""
        if self._before is not None:
            self._before.remove()
        self._before = self._state = None
        self._watch.end()

    # ---- a rollout

    def hold_settings(self) -> None:
        """The check (`BatchDrift`, on every rank), before a rollout, that what generation and scoring read is what it
        was. Collective."""
        self._tap.forget()
        if self._holds:
            self._require("settings", self.advantages.settings.objection())

    def hold_advantages(self, found: torch.Tensor, first: int) -> None:
        """The check (`BatchDrift`, on every rank) that a rollout's advantages, of completions from `first` on, are what
        its rewards give. Collective."""
        if self._holds:
            tap = self._tap
            self._require("advantages", self.advantages.objection(found, first, tap.per_function, tap.rewards.float()))

    def _require(self, aspect: str, objection: str | None) -> None:
        said = [why for (why,) in self.ranks.gather([(objection,)]) if why is not None]
        if said:
            raise BatchDrift(self._trainer.state.global_step, aspect, said[0])

    # ---- one optimizer step

    @property
    def rows(self) -> list[StepRow]:
        """This rank's completions of the current step."""
        return [row for part in self.parts for row in part if row is not None] + self.silent

    def in_hand(self) -> StepInHand:
        """The step that is looked at, or was just taken."""
        rows = self.rows
        return StepInHand(self._index, rows, lambda: [row.facts for row in rows])

    @property
    def trained_module(self) -> Any:
        """The model that the optimizer should update; None where nothing tells of an update."""
        return None if self._before is None else self._trainer.model

    @property
    def schedule(self) -> Any:
        """The trainer's scheduler, which exists while it trains; see `WorkerLayer`."""
        return self._trainer.lr_scheduler

    def named_parameters(self) -> Iterator[tuple[str, Any]]:
        """The parameters of the trainer's model; see `WorkerLayer`."""
        parameters: Iterator[tuple[str, Any]] = self._trainer.model.named_parameters()
        return parameters

    def measure(self) -> list[str]:
        """Reads off what every row of the step weighed; see `WorkerLayer.measure`."""
        objections = list(self.exchanged)
        try:
            objections += read_off(self.parts, self._watch.take())
        except LostGradient as error:
            objections.append(f"{error}: an engine or a callback took it away")
        except ValueError:
            objections.append("the loss did not take the rows of log-probabilities that the step has")
        return [*objections, *self._watch.objections()] if self._holds else objections

    def hold(self, objections: Sequence[str] = ()) -> None:
        """The check (`BatchDrift`, on every rank) that the ranks' rows together are the plan's step. Collective."""
        if not self._holds:
            return
        try:
            super().hold([*self._generated_otherwise(), *objections])
        except BatchDrift:
            self.failed(self._index)
            raise

    def _generated_otherwise(self) -> Iterator[str]:
        """Objections to rollouts of this rank that other weights generated than the plan's: completions of the same
        prompts, but not those that steps before have trained on."""
        if self._plan is None:
            return
        plan, due = self._plan, self._due  # looking a rollout up takes as long as it is large
        rollouts = plan.step(self._index).rollouts
        self._due = {index: due[index] if index in due else plan.rollout(index).generated_at_step for index in rollouts}
        for rollout, at in sorted({(row.rollout, row.generated_at_step) for row in self.rows}):
            if at != (wanted := self._due.get(rollout, at)):
                yield (
                    f"the completions of rollout {rollout} were generated before optimizer step {at}, and by the plan "
                    f"they are those that were generated before step {wanted}"
                )

    def written_beside(self) -> Mapping[str, Any]:
        """The step at which each completion was generated, as seen, the native epoch and the time; see `Recorder`."""
        return {
            "generated_at_step": [row.generated_at_step for row in self.rows],
            "epoch": int(self._trainer.state.epoch or 0),
            "compute_seconds": self._compute_seconds,
            "halved_budgets": self.halved(),
            "skips_tick": self._overflowed,  # transformers advances no schedule then
        }

    def write(self, *, gradient_norm: float | None, skipped: bool) -> None:
        """Writes the step down, and forgets it."""
        super().write(gradient_norm=gradient_norm, skipped=skipped)
        self._forget()

    def _forget(self) -> None:
        """Forgets the current step, and an update in it that raised and that someone went on from."""
        self.parts, self.silent, self.exchanged = [], [], []
        self._watch.idle = False
        if isinstance(self._before, BeforeStep):
            self._before.restart()


def probe_of(trainer: Any) -> type[TrlStepProbe]:
    """The class that measures the steps of a trainer."""
    if not is_unsloths(trainer):
        return TrlStepProbe
    from batchbridge_trl.unsloth_steps import UnslothStepProbe  # of trainers of Unsloth's alone

    return UnslothStepProbe


def _own_order(request: Request) -> Callable[[], Iterator[Sequence[int]]] | None:
    """TRL's own order of prompts, for a run that is verified; None where the settings leave it open."""
    make = functools.partial(native_rollouts, request.reading, request.reading.dataset_size or 0)
    try:
        make()
    except ValueError:
        return None
    return make


_OTHER_OPTIMIZER = (
    "another optimizer than the one that training began with has updated the weights, and nothing was measured before "
    "it: give the trainer its optimizer before train()"
)
