"""The input of the optimizer in one learner: measured in every optimizer step, in every mode.

Two places, neither of which knows a denominator of Open-Instruct's: the log-probabilities that the loss is made of (a
hook on the tensor; a packed row is cut into its completions, and the rest of it should have no gradient), and one small
parameter (its own gradients of every micro-batch against what the optimizer finds).

Source: open-instruct e6c3044 grpo_fast.PolicyTrainerRayProcess.step, grpo_utils.forward_for_logprobs, mask_logprobs,
resolve_old_logprob, compute_rho_correction, olmo_core_train_modules.GRPOTrainModule.train_batch.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from batchbridge import LostGradient
from batchbridge.kit import Objective
from batchbridge.kit.measuring import Measured, Rows, Tap, unpacked
from batchbridge.kit.model_inputs import HeldModelInputs, SeenModelInputs
from batchbridge.kit.patches import Patches
from batchbridge.kit.probing import ProbeBatch
from batchbridge.kit.step_probe import MEASURED, StepProbe
from batchbridge.kit.workers import TrainedRow
from batchbridge_open_instruct.completions import PackedCompletion
from batchbridge_open_instruct.learners import Learner
from batchbridge_open_instruct.sequences import SequenceGroup

MODEL_INPUTS = ("query_responses", "position_ids")
"""Columns that a model is run on, of each micro-batch."""


@dataclasses.dataclass(frozen=True)
class OpenInstructStepInputs:
    """A micro-batch as it arrived: copies, since the loss may change what it is given.

    mask, advantages, sampled: (rows, tokens) of the log-probabilities, packed. places: (completions + 1, tokens), each
    token's place in them, flattened; -1: none. The last are the tokens of no completion.
    """

    mask: torch.Tensor
    advantages: torch.Tensor
    sampled: torch.Tensor
    places: torch.Tensor

    @classmethod
    def of(
        cls, batch: Any, index: int, rows: Sequence[Sequence[PackedCompletion]], place: int, width: int | None
    ) -> OpenInstructStepInputs:
        """The log-probability at a place is that of the next token: everything is shifted by one. width: of what a rank
        has of its rows, the piece at this `place`; None: whole rows."""
        start = place * (width or 0)

        def piece_of(values: torch.Tensor) -> torch.Tensor:
            shifted = values[:, 1:]
            if width is None:
                return shifted.clone()
            missing = max(start + width - shifted.shape[1], 0)
            return torch.nn.functional.pad(shifted, (0, missing))[:, start : start + width].clone()

        mask = piece_of(batch.response_masks[index]).bool()
        tokens = mask.shape[1]
        taken: list[list[int]] = []
        rest = set(range(mask.numel()))
        for row, pieces in enumerate(rows):
            for piece in pieces:
                middle = piece.start + piece.prompt_tokens
                end = middle + piece.completion_tokens
                inside = range(max(middle - 1 - start, 0), max(min(end - 1 - start, tokens), 0))
                taken.append([row * tokens + token for token in inside])
                rest.difference_update(taken[-1])
        taken.append(sorted(rest))
        most = max(map(len, taken))
        places = torch.tensor([[*one, *[-1] * (most - len(one))] for one in taken], dtype=torch.long)
        return cls(
            mask,
            piece_of(batch.advantages[index]),
            piece_of(batch.vllm_logprobs[index]),
            places.reshape(len(taken), most),
        )


class OpenInstructStepProbe(StepProbe):
    """The measuring of one learner's optimizer steps. objective: what its loss computes. shared: gradients are averaged
    over all of its ranks."""

    def __init__(self, learner: Learner, objective: Objective, *, shared: SequenceGroup, patches: Patches) -> None:
        from open_instruct import grpo_utils, utils

        self._learner, self.shared, self._invalid = learner, shared, utils.INVALID_LOGPROB
        # Upstream clamps the log-ratio, not the penalty, and far out.
        super().__init__(dataclasses.replace(objective, kl_clamp=None), patches)
        self._penalised = objective.kl_placement == "loss" and bool(objective.kl_coefficient)
        self._given: list[OpenInstructStepInputs] = []
        self._old: list[torch.Tensor | None] = []
        self._reference: list[torch.Tensor] = []
        self._forwards = 0
        self._moved = False
        self.temperature: float | None = None
        """The temperature of log-probabilities; None: not held."""
        self._inputs = HeldModelInputs({})
        self._run_on = SeenModelInputs()
        self._leaves: list[tuple[Tap, ProbeBatch, Rows]] = []
        self.references_of_probe: list[torch.Tensor] | None = None

        def around(name: str, ours: Callable[..., Any], what: str) -> Any:
            native = getattr(grpo_utils, name)
            guarded, heard = self._observation.guarded(native, ours)
            patches.set(grpo_utils, name, _around(native, guarded), what=what, why=MEASURED)
            return heard

        self._compute_arguments = inspect.signature(grpo_utils.compute_logprobs)
        self._forward_arguments = inspect.signature(grpo_utils.forward_for_logprobs)
        self._native_forward = around("forward_for_logprobs", self._forward, "log-probabilities hooked")
        self._native_compute = around("compute_logprobs", self._compute, "recorded")
        self.watch_gradients(learner.sketches)

    # ---- log-probabilities

    def expect(
        self,
        batch: Any,
        micro_batches: Sequence[Sequence[Sequence[PackedCompletion]]],
        width: int | None,
        sent: Any = None,
    ) -> None:
        """The announcement of the micro-batches from now on, pass by pass; those that fill no step are left out, as
        upstream does. batch: of whole rows. width: see `OpenInstructStepInputs.of`. sent: what the model is run on,
        where rows are cut."""
        place = self.shared.place
        self._given = [
            OpenInstructStepInputs.of(batch, index, rows, place, width) for index, rows in enumerate(micro_batches)
        ]
        self._old = [None] * len(self._given)
        self._reference, self._forwards = [], 0
        self.drop()
        run_on = batch if sent is None else sent
        columns = {name: [one.clone() for one in getattr(run_on, name)] for name in MODEL_INPUTS}
        self._inputs = HeldModelInputs(columns, self.temperature)

    def _compute(self, model: Any, *arguments: Any, **options: Any) -> Any:
        if model is not self._learner.model and model is not self._learner.reference:
            return self._native_compute(model, *arguments, **options)  # of another learner in this process
        if self.references_of_probe is not None:
            return [one.clone() for one in self.references_of_probe]
        if self._given:
            given = self._compute_arguments.bind(model, *arguments, **options).arguments
            self._observation.read(self._hold_scored, given["data_BT"], given["temperature"])
        made = self._native_compute(model, *arguments, **options)
        copies = [one.detach().clone() for one in made]
        if model is self._learner.model:
            self._old = [*copies]
        else:
            self._reference = copies
        return made

    def _forward(self, model: Any, *arguments: Any, **options: Any) -> Any:
        if model is self._learner.reference:
            return self._native_forward(self.shared.of_pieces(model), *arguments, **options)
        if model is not self._learner.model:
            return self._native_forward(model, *arguments, **options)
        if self._leaves and torch.is_grad_enabled():
            tap, made, rows = self._leaves.pop(0)
            leaf = tap.leaf(made.logprobs if rows.old is not None or made.old is None else made.old, rows)
            return leaf, torch.zeros_like(leaf) if options.get("return_entropy") else None
        if self._given and torch.is_grad_enabled():
            given = self._forward_arguments.bind(model, *arguments, **options).arguments
            self._observation.read(self._hold_inputs, self._forwards % len(self._given), given, given["temperature"])
        result = self._native_forward(self.shared.of_pieces(model), *arguments, **options)
        logprobs = result[0]
        if self._given and logprobs.requires_grad:
            self._learner.after_forward()
            self._expect_next(logprobs)
        return result

    def _hold_inputs(self, index: int, given: Mapping[str, Any], temperature: float) -> None:
        """Compares what the model is about to be run on with the micro-batch of this number."""
        rows = {name: given[name][None] for name in MODEL_INPUTS}
        self._run_on.compare(self._inputs, [index], rows, temperature)

    def _hold_scored(self, data: Any, temperature: float) -> None:
        """Compares what old or reference log-probabilities are about to be made of."""
        for index in range(min(len(data.query_responses), len(self._given))):
            given = {name: getattr(data, name)[index] for name in MODEL_INPUTS}
            self._hold_inputs(index, given, temperature)

    def _expect_next(self, logprobs: torch.Tensor) -> None:
        index = self._forwards % len(self._given)
        self._forwards += 1
        given = self._given[index]
        if logprobs.shape != given.mask.shape:
            self._moved = True
            return
        cut = unpacked(given.places.to(logprobs.device))
        self._tap.watch(logprobs, self._rows(given, index, logprobs.detach(), cut), view=cut)

    def _rows(
        self,
        given: OpenInstructStepInputs,
        index: int,
        current: torch.Tensor,
        cut: Callable[[torch.Tensor], torch.Tensor],
    ) -> Rows:
        sampled = given.sampled.to(current.device).nan_to_num(nan=self._invalid)
        old = self._old[index]
        if self._learner.args.use_vllm_logprobs:
            old = sampled
        elif old is None:  # the first pass: the current ones, which later passes keep
            self._old[index] = current.clone()
        mask = given.mask.to(current.device)
        mask_of_completions = cut(mask)
        mask_of_completions[-1] = False
        factor = self._correction(current if old is None else old, sampled, mask, given.advantages.to(current.device))
        return Rows(
            mask=mask_of_completions,
            advantages=cut(given.advantages.to(current.device)),
            old=None if old is None else cut(old),
            reference=cut(self._reference[index].to(current.device)) if self._penalised else None,
            multiplier=None if factor is None else cut(factor),
        )

    def _correction(
        self, old: torch.Tensor, sampled: torch.Tensor, mask: torch.Tensor, advantages: torch.Tensor
    ) -> torch.Tensor | None:
        """The factor of each token's policy loss that corrects towards the sampler; None: 1."""
        args = self._learner.args
        if not args.use_rho_correction:
            return None
        if args.rho_mask_sequence_level or args.rho_mask_tv_divergence:  # over packed rows; only observed
            from open_instruct import grpo_utils

            found: torch.Tensor = grpo_utils.compute_rho_correction(old, sampled, mask, advantages, args).weights
            return found
        ratio = (old - sampled).clamp(-10.0, 10.0).exp()
        kept = torch.ones_like(mask)
        if args.rho_mask_lower_bound > 0.0:
            kept &= ratio >= args.rho_mask_lower_bound
        if args.rho_mask_upper_bound > 0.0:
            kept &= ratio <= args.rho_mask_upper_bound
        low = args.rho_clamp_lower_bound if args.rho_clamp_lower_bound > 0.0 else None
        high = args.rho_clamp_upper_bound if args.rho_clamp_upper_bound > 0.0 else None
        clamped = ratio if low is None and high is None else ratio.clamp(min=low, max=high)
        return torch.where(kept, clamped, torch.zeros_like(clamped))

    def leaves(self, parts: Sequence[tuple[Tap, ProbeBatch, Rows]]) -> None:
        """The next forward passes are none: their log-probabilities are the probe's; with rows that have no old ones,
        those that the probe calls old."""
        self._leaves = list(parts)

    # ---- between backward and the optimizer

    def look(self, parts: Sequence[Sequence[TrainedRow]]) -> list[str]:
        """Reads off what every completion of the optimizer step weighed. Returns what this rank has against it.

        parts: the step's completions by micro-batch. Collective.
        """
        names = {index: f"micro-batch {index} of the rollout" for index in range(len(self._given))}
        objections = self._run_on.objections(names)
        moved, self._moved = self._moved, False
        for row in (row for part in parts for row in part):
            row.measured(Measured(None, 0.0))
        try:
            seen = self._tap.take(scale=self.shared.ranks)
            if moved or [len(part) + 1 for part in parts] != [len(part) for part in seen]:
                objections.append("the loss did not take the rows of log-probabilities that the step has")
            else:
                objections += self._read_off(parts, seen)
        except LostGradient as error:
            objections.append(str(error))
        objections += self.gradient_objections(self._learner.shrunk / self.shared.ranks)
        return self.shared.put_together((row for part in parts for row in part), objections)

    @staticmethod
    def _read_off(parts: Sequence[Sequence[TrainedRow]], seen: Sequence[Sequence[Measured]]) -> list[str]:
        objections = []
        for number, (part, found) in enumerate(zip(parts, seen, strict=True)):
            for row, measured in zip(part, found, strict=False):  # the last is not a completion
                row.measured(measured, number)
            if found[-1].departure > found[-1].tolerance:
                objections.append("tokens outside of every completion, which train nothing, got a gradient")
        return objections

    @property
    def loss_values(self) -> Sequence[float | None]:
        """The values of the step's losses; none where ranks have pieces of rows. See `StepProbe.loss_values`."""
        return super().loss_values if self.shared.size == 1 else ()

    def drop(self) -> None:
        """Forgets what was seen since the last `look`."""
        super().drop()
        self._run_on.drop()
        self._moved = False


def _around(native: Any, ours: Callable[..., Any]) -> Any:
    """A function of ours that names the native one: whoever looks at the module's code looks through it."""

    @functools.wraps(native)
    def call(*arguments: Any, **options: Any) -> Any:
        return ours(*arguments, **options)

    return call
