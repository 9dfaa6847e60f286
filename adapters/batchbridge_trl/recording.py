"""The work of every mode on the rows of an optimizer step: compare them with the plan, and write them down."""

from __future__ import annotations

import dataclasses
import math
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from accelerate.utils import broadcast_object_list, gather_object
from transformers import TrainerCallback

from batchbridge import BatchDrift, CannotAttach, LostGradient
from batchbridge.kit import Normaliser, Request, digest_floats, fingerprint
from batchbridge.kit.observing import Observation
from batchbridge.kit.patches import Patches
from batchbridge.kit.reporting import PaddingTokens, StepNumbers
from batchbridge.kit.workers import Recorder, TrainedRow, orders_of, read_off
from batchbridge_trl import releases
from batchbridge_trl.sharding import LONE_HEAD, has_lone_head
from batchbridge_trl.watching import TrlStepProbe


@dataclass
class StepRow(TrainedRow):
    """A completion of the current step, with what the ledger says of it; facts: see `ledger.StepRecord`."""

    generated_at_step: int = 0
    facts: Mapping[str, Any] = field(default_factory=dict)


class RewardTap:
    """Instance patch that keeps what TRL computed of a rollout: this rank's token ids, and all ranks' rewards.

    trl 0.18 computes rewards inside of `_generate_and_score_completions`; they are read where it logs them.
    """

    def __init__(self, trainer: Any, patches: Patches) -> None:
        self._trainer = trainer
        self.completion_ids: list[list[int]] = []
        self.rewards = torch.zeros(0)
        inside = not releases.has(releases.HAS_CALCULATE_REWARDS)
        attribute = "_generate_and_score_completions" if inside else "_calculate_rewards"
        own = self._generated if inside else self._calculated
        self._native = patches.read(trainer, attribute, own, what="recorded", why="ledger and advantages")

    def _calculated(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> torch.Tensor:
        per_function: torch.Tensor = self._native(inputs, prompts, completions, completion_ids_list)
        self._keep(completion_ids_list, per_function)
        return per_function

    def _generated(self, inputs: Any) -> Any:
        logs = self._trainer._textual_logs
        heard = logs["rewards"] = _Heard(logs["rewards"])
        try:
            output = self._native(inputs)
        finally:
            logs["rewards"] = heard.native
        eos = self._trainer.processing_class.eos_token_id
        ids = output["completion_ids"].tolist()  # up to the first end-of-sequence, as trl masks them
        ids = [row[: row.index(eos) + 1] if eos in row else row for row in ids]
        self._keep(ids, torch.tensor(heard.columns, device=output["completion_ids"].device).T)
        return output

    def _keep(self, completion_ids: Any, per_function: torch.Tensor) -> None:
        self.completion_ids = [list(map(int, ids)) for ids in completion_ids]
        weights = self._trainer.reward_weights.to(per_function.device)
        self.rewards = (per_function * weights.unsqueeze(0)).nansum(dim=1)
        self.rewards[torch.isnan(per_function).all(dim=1)] = torch.nan


class _Heard:
    """A stand-in for trl's log of rewards by function, while a rollout is generated, which keeps what comes."""

    def __init__(self, native: Any) -> None:
        self.native = native
        self.columns: list[list[float]] = []
        self._name = ""

    def __getitem__(self, name: str) -> _Heard:
        self._name = name
        return self

    def extend(self, rewards: list[float]) -> None:
        """One function's rewards of all ranks."""
        self.columns.append(list(rewards))
        self.native[self._name].extend(rewards)


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
                "advantage": advantages[row],
                "old_logprobs": None if old is None else digest_floats(old[row, : len(ids)].tolist()),
            }
        )
    return facts


class StepLog:
    """Collects this rank's rows of the current optimizer step; the core's `Recorder` compares and records them.

    watch: what reaches the optimizer. rows: of the current step; parts: the same by micro-batch, None for a filler row.
    """

    def __init__(self, trainer: Any, request: Request, framework_version: str, watch: TrlStepProbe) -> None:
        self._trainer, self._watch = trainer, watch
        self._orders = orders_of(request, framework_version)
        self._recorder: Recorder | None = None
        self.parts: list[list[StepRow | None]] = []
        self.silent: list[StepRow] = []
        """Rows of a step without any token: no loss was computed for them."""
        self.exchanged: list[str] = []
        """Objections to rows of the step that reached the loss with another completion or advantage than their own."""
        self.learning_rate = math.nan
        self.normaliser: Normaliser | None = None
        """The step's denominators where the run applies them; None for a native run, whose rows' weights speak."""
        self.compute_seconds: float | None = None
        """The seconds that this rank computed in the step, where a clock can tell; see `ledger.StepRecord`."""
        self.padding: Callable[[], PaddingTokens | None] = lambda: None
        """The padding of the step, as in `Recorder.padding`."""
        self._due: dict[int, int] = {}
        """The optimizer step before which the plan generates each rollout of the current step."""
        self.failed: Callable[[int], None] = lambda step: None
        """The function called with a step that departs from the plan, before `BatchDrift` ends the run."""

    @property
    def rows(self) -> list[StepRow]:
        """This rank's completions of the current step."""
        return [row for part in self.parts for row in part if row is not None] + self.silent

    def clear(self) -> None:
        """Forgets the current step."""
        self.parts, self.silent, self.exchanged = [], [], []
        self._watch.forget_step()

    def open(self, step: int) -> None:
        """Starts (or continues) the ledger at a step. Collective. Raises `LedgerError` where it cannot."""
        self.close()
        accelerator = self._trainer.accelerator
        self._recorder = Recorder(
            "trl",
            dataclasses.replace(self._orders, start_id=broadcast_object_list([uuid.uuid4().hex])[0]),
            rank=accelerator.process_index,
            world_size=accelerator.num_processes,
            gather=self.exchange,
        )
        self._recorder.padding = self.padding
        self._recorder.begin(step)

    def end_observing(self, why: str) -> None:
        """Says in the ledger that nothing is observed from the current step on, and closes it."""
        self.clear()
        if self._recorder is not None:
            self._recorder.end_observing(why)

    def close(self) -> None:
        """Ends the ledger file."""
        if self._recorder is not None:
            self._recorder.close()
            self._recorder = None

    @property
    def is_alone(self) -> bool:
        """Whether no other process trains with this one."""
        return bool(self._trainer.accelerator.num_processes == 1)

    def exchange(self, mine: Any) -> list[Any]:
        """Every rank's items, of this rank's. Collective."""
        return list(mine) if self.is_alone else list(gather_object(list(mine)))

    def measure(self) -> list[str]:
        """Reads off what every row of the step weighed. Returns what this rank has against the step. Collective."""
        objections = list(self.exchanged)
        try:
            objections += read_off(self.parts, self._watch.take())
        except LostGradient as error:
            objections.append(f"{error}: an engine or a callback took it away")
        except ValueError:
            objections.append("the loss did not take the rows of log-probabilities that the step has")
        if self._orders.mode != "observe" and (why := self._watch.objection()) is not None:
            objections.append(why)
        return objections

    def check(self, step: int, objections: list[str]) -> None:
        """The check (`BatchDrift`, on every rank) that the ranks' rows together are the plan's step. Collective."""
        assert self._recorder is not None, "a step is looked at inside train(), which opened the log"
        try:
            self._recorder.compare(step, self.rows, [*self._generated_otherwise(step), *objections])
        except BatchDrift:
            self.failed(step)
            raise

    def _generated_otherwise(self, step: int) -> Iterator[str]:
        """Objections to rollouts of this rank that other weights generated than the plan's: completions of the same
        prompts, but not those that steps before have trained on."""
        plan = None if self._recorder is None else self._recorder.plan
        if plan is None:
            return
        due = self._due  # looking a rollout up takes as long as it is large
        rollouts = plan.step(step).rollouts
        self._due = {index: due[index] if index in due else plan.rollout(index).generated_at_step for index in rollouts}
        for rollout, at in sorted({(row.rollout, row.generated_at_step) for row in self.rows}):
            if at != (wanted := self._due.get(rollout, at)):
                yield (
                    f"the completions of rollout {rollout} were generated before optimizer step {at}, and by the plan "
                    f"they are those that were generated before step {wanted}"
                )

    def taken(self) -> list[StepNumbers]:
        """The numbers of the steps since the last call, where they are kept; see `Recorder.numbers`."""
        return [] if self._recorder is None else self._recorder.taken()

    def write(self, step: int, *, skipped: bool) -> None:
        """Writes the record of `step`, tells the hook, and starts the next one."""
        assert self._recorder is not None, "a step ends inside train(), which opened the log"
        rows = self.rows
        self.clear()
        self._recorder.write(
            step,
            rows,
            [row.facts for row in rows],
            normaliser=self.normaliser,
            learning_rate=self.learning_rate,
            gradient_norm=self._watch.gradient_norm,
            skipped=skipped,
            generated_at_step=[row.generated_at_step for row in rows],
            epoch=int(self._trainer.state.epoch or 0),
            compute_seconds=self.compute_seconds,
        )


class StepCallback(TrainerCallback):  # type: ignore[misc]  # transformers is untyped here
    """The optimizer step's clock, seen from the native training loop.

    check: whether a step is held against the plan. observation: of a run that is observed alone, which no error of
    ours may end.
    """

    def __init__(
        self,
        log: StepLog,
        watch: TrlStepProbe,
        *,
        check: bool,
        planned_steps: int | None,
        observation: Observation | None = None,
    ) -> None:
        self._observation = observation or Observation()
        self._observation.when_over = log.end_observing
        self.log = self._log = log
        self._watch, self._check, self._planned_steps = watch, check, planned_steps
        self._state: Any = None
        self._optimizer: Any = None
        self._early = False
        """Whether the step is looked at before the other callbacks are through: an engine of its own updates."""
        self._looked = False
        """Whether the current step was looked at."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._check and self._planned_steps is not None and state.max_steps != self._planned_steps:
            raise BatchDrift(
                min(state.max_steps, self._planned_steps),
                "clock",
                f"the run is set to take {state.max_steps} optimizer steps, the plan has {self._planned_steps}",
            )
        if self._observation.ended:
            return
        if self._observation.read(
            has_lone_head, kwargs["model"], default=False
        ):  # Accelerate makes the units when training begins
            if self._check:
                raise CannotAttach({"lone_head": LONE_HEAD})
            warnings.warn(f"batchbridge: {LONE_HEAD}", stacklevel=2)
        self._log.clear()
        self._log.open(state.global_step)
        self._state, self._optimizer = state, kwargs["optimizer"]
        begun = self._observation.read(self._watch.begin, self._optimizer, self._look, default=True)
        self._early = not begun

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # DeepSpeed's engine was not asked for an update where there was nothing to train.
        if self._early or (self._watch.idle and self._watch.engine is not None):
            self._look()

    def _look(self) -> None:
        """The look at a step before its update, when all that it uses is there: measured, and held against the plan."""
        self._observation.read(self._look_at_step)

    def _look_at_step(self) -> None:
        self._looked = True
        self._log.learning_rate = float(self._optimizer.param_groups[0]["lr"])
        objections = self._log.measure()
        if self._check:
            self._log.check(self._state.global_step, objections)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not self._observation.agree(self._log.exchange):
            self._watch.end()
            return
        skipped = bool(kwargs["optimizer"].step_was_skipped) or self._watch.idle
        if self._check and not self._looked and not skipped:
            self._log.check(state.global_step - 1, [_OTHER_OPTIMIZER])
        self._looked = False
        self._observation.read(self._write, state, skipped)

    def _write(self, state: Any, skipped: bool) -> None:
        self._log.write(state.global_step - 1, skipped=skipped)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._watch.end()
        self._log.close()


_OTHER_OPTIMIZER = (
    "another optimizer than the one that training began with has updated the weights, and nothing was measured before "
    "it: give the trainer its optimizer before train()"
)
