"""The training stream of a run: its units, steps and rollouts, by arithmetic alone.

Completions are ordered by rollout, then pass, then position, and cut into steps inside of units; see
`batchbridge.meaning.plan`. Nothing here knows an order of prompts, and every lookup costs the same for 10 prompts and
for 10^10.
"""

from __future__ import annotations

import math
from fractions import Fraction

from batchbridge.errors import PlanError
from batchbridge.frozen import dataclass
from batchbridge.meaning.spec import Spec


@dataclass(frozen=True)
class _Unit:
    """A stretch of the stream that is cut into steps on its own."""

    index: int
    first_step: int
    completions: int


class Stream:
    """The sizes of a plan's stream, and which step and rollout lie where in it. `Plan` sets what it is made of."""

    spec: Spec
    dataset_size: int
    prompts_per_rollout: int
    completions_per_prompt: int
    completions_per_step: int
    passes_per_rollout: int
    _span: str
    _wraps: bool
    _short_prompts: int
    _stream_end: int | None
    _steps_left_out: int

    # ---- sizes

    @property
    def rollouts_per_epoch(self) -> int | None:
        """Rollouts that one epoch feeds; None when rollouts wrap around epochs."""
        if self._wraps:
            return None
        return self.dataset_size // self.prompts_per_rollout + bool(self._short_prompts)

    @property
    def prompts_dropped_per_epoch(self) -> int:
        """Prompts that no rollout of an epoch takes."""
        if self._wraps or self._short_prompts:
            return 0
        return self.dataset_size % self.prompts_per_rollout

    @property
    def optimizer_steps_per_epoch(self) -> int | None:
        """Optimizer steps of one epoch, behind a critic's warm-up; None when steps or rollouts reach across epochs."""
        if self._wraps or self._span == "run":
            return None
        if self._span == "epoch":
            return self._steps_in(self._completions_per_epoch)
        per_rollout = self._steps_in_rollout(self.prompts_per_rollout)
        full_rollouts = self.dataset_size // self.prompts_per_rollout
        return full_rollouts * per_rollout + self._steps_in_rollout(self._short_prompts)

    @property
    def total_optimizer_steps(self) -> int:
        """Optimizer steps of the run. Raises `PlanError` when the horizon is not exactly one of its three units."""
        return max(self._steps_of_stream - self._steps_left_out, 0)

    @property
    def _steps_of_stream(self) -> int:
        """Optimizer steps of the run with those that a critic's warm-up leaves out."""
        horizon = self.spec.horizon
        given = [name for name in ("rollouts", "epochs", "optimizer_steps") if getattr(horizon, name) is not None]
        if len(given) != 1:
            raise PlanError(f"horizon: exactly one of rollouts, epochs, optimizer_steps; given: {given or 'none'}")
        if horizon.optimizer_steps is not None:
            return self._steps_left_out + horizon.optimizer_steps if self._has_steps else 0
        if horizon.rollouts is not None:
            return self._steps_before_rollout(horizon.rollouts)
        assert horizon.epochs is not None
        per_epoch = self.optimizer_steps_per_epoch
        if per_epoch is not None:
            try:
                return math.ceil(horizon.epochs * per_epoch)
            except OverflowError:  # beyond the floats; below them the product is the frameworks' own
                return math.ceil(Fraction(horizon.epochs) * per_epoch)
        if self._wraps:
            return self._steps_before_rollout(self._whole_rollouts(horizon.epochs))
        return self._steps_in(self._stream_end or 0)

    @property
    def total_rollouts(self) -> int:
        """Rollouts that the run generates: those that a planned step trains on, and a critic's before them; with
        `rollouts` exactly those."""
        if self.spec.horizon.rollouts is not None:
            return self.spec.horizon.rollouts
        steps = self._steps_of_stream
        if not steps or not self._has_steps:
            return 0
        # The last step's last completion, without making the step: it may have billions.
        unit = self._unit_of_step(steps - 1)
        end = min((steps - unit.first_step) * self.completions_per_step, unit.completions)
        return 1 + self._locate(unit, end - 1)[0]

    # ---- arithmetic

    @property
    def _has_steps(self) -> bool:
        if not self.passes_per_rollout:
            return False
        if self._wraps:
            return self._span == "run" or self._steps_in_rollout(self.prompts_per_rollout) > 0
        if self._span == "run":
            return self._completions_per_epoch > 0
        return bool(self.optimizer_steps_per_epoch)

    def _end_of_stream(self) -> int | None:
        """Completions before the run's end, where the horizon may end the run inside a unit; else None."""
        horizon = self.spec.horizon
        if self._span not in ("epoch", "run"):
            return None
        if horizon.rollouts is not None:
            return self._stream_before(horizon.rollouts)
        if horizon.epochs is None or self._span == "epoch":
            return None
        if self._wraps:
            return self._stream_before(self._whole_rollouts(horizon.epochs))
        return math.ceil(horizon.epochs * self._completions_per_epoch)

    def _whole_rollouts(self, epochs: float) -> int:
        """Rollouts that `epochs` epochs fill when rollouts wrap around epochs."""
        return math.ceil(epochs * self.dataset_size) // self.prompts_per_rollout

    @property
    def _completions_per_epoch(self) -> int:
        prompts = self.dataset_size - self.prompts_dropped_per_epoch
        return prompts * self.completions_per_prompt * self.passes_per_rollout

    def _steps_in(self, completions: int) -> int:
        whole, rest = divmod(completions, self.completions_per_step)
        return whole + bool(rest and self.spec.order.last_optimizer_step != "drop")

    def _steps_in_rollout(self, prompts: int) -> int:
        """Steps of one rollout when no step leaves it (span none or rollout)."""
        completions = prompts * self.completions_per_prompt
        if self._span == "none":
            return self.passes_per_rollout * self._steps_in(completions)
        return self._steps_in(self.passes_per_rollout * completions)

    def _rollout_span(self, index: int) -> tuple[int, int, int]:
        """(epoch, first position in its epoch, prompts); with wrap the position counts from the run's start."""
        if self._wraps:
            start = index * self.prompts_per_rollout
            return start // self.dataset_size, start, self.prompts_per_rollout
        per_epoch = self.rollouts_per_epoch
        if not per_epoch:
            raise PlanError(
                f"rollout.prompts_per_rollout = {self.prompts_per_rollout} exceeds the {self.dataset_size} prompts, "
                "and order.last_rollout drops the remainder: there is no rollout"
            )
        epoch, in_epoch = divmod(index, per_epoch)
        start = in_epoch * self.prompts_per_rollout
        return epoch, start, min(self.prompts_per_rollout, self.dataset_size - start)

    def _steps_before_rollout(self, rollouts: int) -> int:
        """Optimizer steps that need no rollout from number `rollouts` on."""
        if self._span in ("none", "rollout"):
            if self._wraps:
                return rollouts * self._steps_in_rollout(self.prompts_per_rollout)
            per_epoch = self.rollouts_per_epoch
            if not per_epoch:
                return 0
            epochs, rest = divmod(rollouts, per_epoch)
            return epochs * (self.optimizer_steps_per_epoch or 0) + rest * self._steps_in_rollout(
                self.prompts_per_rollout
            )
        if self._span == "epoch":
            per_epoch = self.rollouts_per_epoch
            if not per_epoch:
                return 0
            epochs, rest = divmod(rollouts, per_epoch)
            tail = rest * self.prompts_per_rollout * self.completions_per_prompt * self.passes_per_rollout
            return epochs * self._steps_in(self._completions_per_epoch) + self._steps_in(tail)
        return self._steps_in(self._stream_before(rollouts))

    def _steps_of_warmup(self, rollouts: int) -> int:
        """Steps that a critic's warm-up leaves out. Raises `PlanError` where one would reach over its end."""
        if not rollouts or not self._has_steps:
            return 0
        unit, offset = self._stream_place(rollouts, 0, 0)
        if offset % self.completions_per_step:
            raise PlanError(
                f"critic.warmup_rollouts = {rollouts}: an optimizer step would reach over the warm-up's end"
            )
        return unit.first_step + offset // self.completions_per_step

    def _stream_before(self, rollout: int) -> int:
        """Completions of the run's stream before `rollout` (span run)."""
        per_prompt = self.completions_per_prompt * self.passes_per_rollout
        if self._wraps:
            return rollout * self.prompts_per_rollout * per_prompt
        per_epoch = self.rollouts_per_epoch
        if not per_epoch:
            return 0
        epochs, rest = divmod(rollout, per_epoch)
        return epochs * self._completions_per_epoch + rest * self.prompts_per_rollout * per_prompt

    def _unit_of_step(self, step: int) -> _Unit:
        if self._span == "run":
            return self._run_unit(step * self.completions_per_step)
        if self._span == "epoch":
            epoch, in_epoch = divmod(step, self._steps_in(self._completions_per_epoch))
            return self._epoch_unit(epoch, in_epoch * self.completions_per_step)
        rollout = self._rollout_of_step(step)
        first = self._steps_before_rollout(rollout)
        completions = self._rollout_span(rollout)[2] * self.completions_per_prompt
        if self._span == "rollout":
            return _Unit(rollout, first, completions * self.passes_per_rollout)
        per_pass = self._steps_in(completions)
        pass_index = (step - first) // per_pass
        return _Unit(rollout * self.passes_per_rollout + pass_index, first + pass_index * per_pass, completions)

    def _epoch_unit(self, epoch: int, offset: int) -> _Unit:
        """The epoch as a unit, cut where the run ends, unless `offset` in it lies after that."""
        completions = self._completions_per_epoch
        if self._stream_end is not None:
            left = self._stream_end - epoch * completions
            completions = min(completions, left) if offset < left else completions
        return _Unit(epoch, epoch * self._steps_in(self._completions_per_epoch), completions)

    def _run_unit(self, offset: int) -> _Unit:
        """The run as a unit; as long as its horizon says, or open when that counts steps or `offset` lies after it."""
        if self._stream_end is not None and offset < self._stream_end:
            return _Unit(0, 0, self._stream_end)
        return _Unit(0, 0, offset + self.completions_per_step)

    def _rollout_of_step(self, step: int) -> int:
        """The rollout that a step lies in (span none or rollout)."""
        full = self._steps_in_rollout(self.prompts_per_rollout)
        if self._wraps:
            if not full:
                raise PlanError("a rollout has no optimizer step")
            return step // full
        per_epoch_steps = self.optimizer_steps_per_epoch
        if not per_epoch_steps or self.rollouts_per_epoch is None:
            raise PlanError("an epoch has no optimizer step")
        epoch, rest = divmod(step, per_epoch_steps)
        full_rollouts = self.dataset_size // self.prompts_per_rollout
        in_epoch = min(rest // full, full_rollouts) if full else full_rollouts
        return epoch * self.rollouts_per_epoch + in_epoch

    def _locate(self, unit: _Unit, offset: int) -> tuple[int, int, int]:
        """(rollout, pass, position in the pass) of the unit's completion number `offset`."""
        if self._span == "none":
            rollout, pass_index = divmod(unit.index, self.passes_per_rollout)
            return rollout, pass_index, offset
        if self._span == "rollout":
            completions = self._rollout_span(unit.index)[2] * self.completions_per_prompt
            pass_index, position = divmod(offset, completions)
            return unit.index, pass_index, position
        first_rollout = 0
        if self._span == "epoch":
            first_rollout = unit.index * (self.rollouts_per_epoch or 0)
        elif not self._wraps:  # run
            epoch, offset = divmod(offset, self._completions_per_epoch)
            first_rollout = epoch * (self.rollouts_per_epoch or 0)
        per_rollout = self.prompts_per_rollout * self.completions_per_prompt * self.passes_per_rollout
        in_unit, rest = divmod(offset, per_rollout)
        rollout = first_rollout + in_unit
        pass_index, position = divmod(rest, self._rollout_span(rollout)[2] * self.completions_per_prompt)
        return rollout, pass_index, position

    def _stream_place(self, rollout: int, pass_index: int, position: int) -> tuple[_Unit, int]:
        """The inverse of `_locate`: (unit, offset in it)."""
        completions = self._rollout_span(rollout)[2] * self.completions_per_prompt
        if self._span == "none":
            first = self._steps_before_rollout(rollout) + pass_index * self._steps_in(completions)
            return _Unit(rollout * self.passes_per_rollout + pass_index, first, completions), position
        offset = pass_index * completions + position
        if self._span == "rollout":
            return _Unit(rollout, self._steps_before_rollout(rollout), completions * self.passes_per_rollout), offset
        if self._span == "epoch":
            epoch, in_epoch = divmod(rollout, self.rollouts_per_epoch or 1)
            before = in_epoch * self.prompts_per_rollout * self.completions_per_prompt * self.passes_per_rollout
            return self._epoch_unit(epoch, before + offset), before + offset
        start = self._stream_before(rollout) + offset
        return self._run_unit(start), start

    def _first_step_of(self, rollout: int) -> int:
        unit, offset = self._stream_place(rollout, 0, 0)
        return max(unit.first_step + offset // self.completions_per_step - self._steps_left_out, 0)
