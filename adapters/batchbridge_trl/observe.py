"""Observing: the native run as it is, with every completion identified and every applied weight measured.

Nothing is changed: no random number is drawn, no tensor of the loss is touched (a hook reads their gradients), so
parameters stay bit-equal to an unwrapped run. In mode "verify" each optimizer step is held against the plan before it
is applied.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from batchbridge.kit import Request, fingerprint
from batchbridge.kit.measuring import Rows
from batchbridge.kit.observing import Observation
from batchbridge.kit.patches import Patches
from batchbridge.kit.worker_layer import Seam
from batchbridge_trl import rows as rows_module
from batchbridge_trl.recording import StepRow, TrlLayer, facts_of
from batchbridge_trl.watching import rows_of

ROW = "batchbridge_row"
"""Key added to the rollout dict: a row number that rides through TRL's shuffle and split to the loss."""


class _RecordedBatches:
    """A batch sampler that remembers what it handed out, in order, and is otherwise the one it wraps."""

    def __init__(self, native: Any, observation: Observation) -> None:
        self._native, self._observation = native, observation
        self.handed_out: deque[list[int]] = deque()

    def __iter__(self) -> Iterator[list[int]]:
        self.handed_out.clear()
        for batch in self._native:
            self._observation.read(self._keep, batch)
            yield batch

    def _keep(self, batch: Any) -> None:
        self.handed_out.append([int(index) for index in batch])

    def __len__(self) -> int:
        return len(self._native)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._native, name)


class TrlObserver(TrlLayer):
    """The patches of a trainer that runs natively: recorded, and in mode "verify" held against the plan."""

    def __init__(self, trainer: Any, request: Request, patches: Patches, version: str) -> None:
        super().__init__(trainer, request, patches, version)
        self._batches: _RecordedBatches | None = None
        """The batches of the training run that goes on."""
        self._prompts: list[int] = []
        self._rollout = -1
        self._micro_step = 0
        self._facts: list[dict[str, Any]] = []
        self._row_prompts: list[tuple[int, int]] = []
        self._generated: dict[str, torch.Tensor] = {}
        """`PAIRED` columns of the rollout, as it was generated."""

    def seams(self) -> Iterator[Seam]:
        """The seams of a trainer that is recorded."""
        for attribute, ours in (
            ("get_train_dataloader", self._loader),
            ("training_step", self._training_step),
            ("_generate_and_score_completions", self._generate),
            ("compute_loss", self._loss),
        ):
            yield Seam(self._trainer, attribute, ours, "recorded", reads=True)

    def _loader(self) -> Any:
        loader = self.native["get_train_dataloader"]()
        inner = _inner(loader)
        # torch forbids reassigning the batch sampler, but its iterator reads this entry.
        vars(inner)["batch_sampler"] = _RecordedBatches(inner.batch_sampler, self._observation)
        return loader

    def _begin(self, batches: _RecordedBatches) -> None:
        """The beginning of a training run, whose loader makes these batches. What is left of an earlier one that was
        interrupted, and TRL still trains on, is nothing of this run's plan or ledger."""
        trainer = self._trainer
        self._batches, self._rollout, self._row_prompts = batches, -1, []
        if trainer.state.global_step:
            # A resumed epoch: the loader skips, the sampler underneath does not.
            window = trainer.args.gradient_accumulation_steps
            for _ in range(trainer.state.global_step * window % len(batches)):
                batches.handed_out.popleft()

    def _training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        self._take_batch()
        self._micro_step = self._trainer._step  # trl counts it before the loss up to 0.25, and after it since 0.26
        return self.native["training_step"](model, inputs, num_items_in_batch)

    @property
    def loops_loader(self) -> Any:
        """The loader of the training loop that goes on."""
        return self._trainer.callback_handler.train_dataloader

    def _take_batch(self) -> None:
        """The prompts of the micro-step that begins."""
        # Others may have asked for a loader, too: what trains is the loop's own.
        batches = _inner(self.loops_loader).batch_sampler
        if batches is not self._batches:
            self._begin(batches)
        self._prompts = batches.handed_out.popleft()  # one loader batch per micro-step

    def _generate(self, inputs: Any) -> Any:
        if not self._trainer.model.training:
            return self.native["_generate_and_score_completions"](inputs)
        self.hold_settings()
        output = self.native["_generate_and_score_completions"](inputs)
        trainer, rows = self._trainer, len(inputs)
        first = trainer.accelerator.process_index * rows
        group = trainer.num_generations
        self._rollout += 1
        if self._rollout == 0:
            # Micro-steps of one rollout: steps_per_generation * num_iterations.
            done = trainer.state.global_step * trainer.args.gradient_accumulation_steps
            self._rollout = done // (trainer.args.steps_per_generation * trainer.num_iterations)
        columns = self.columns_of(output)
        self.hold_advantages(columns["advantages"], first)
        rewards = self._tap.rewards[first : first + rows].tolist()
        self._facts = facts_of(columns, self._tap.completion_ids, rewards)
        self._row_prompts = [(prompt, (first + row) % group) for row, prompt in enumerate(self._prompts)]
        self._generated_at_step = trainer.state.global_step
        self._generated = {name: columns[name].clone() for name in PAIRED}
        return self.numbered(output, torch.arange(rows, device=columns["completion_ids"].device))

    def columns_of(self, output: Any) -> rows_module.TensorsByName:
        """The columns of a rollout, or of a part of it, as the trainer has them."""
        return rows_module.known_columns(self._watch.in_completions(output))

    def numbered(self, output: Any, numbers: torch.Tensor) -> Any:
        """The rollout with the number of each of its rows, which rides to the loss."""
        return {**output, ROW: numbers}

    def columns_in_loss(self, inputs: Any) -> Mapping[str, torch.Tensor]:
        """The columns that a loss takes."""
        columns: Mapping[str, torch.Tensor] = inputs
        return columns

    def expected(self, inputs: Any) -> Rows:
        """The rows of a loss, and what they are meant to train."""
        return rows_of(self._trainer, inputs)

    def _loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        trainer = self._trainer
        if not trainer.model.training or ROW not in inputs or not self._row_prompts:
            return self.native["compute_loss"](model, inputs, *args, **kwargs)
        expected, columns = self.expected(inputs), self.columns_in_loss(inputs)
        tokens = expected.mask.sum(1).tolist()
        numbers = inputs[ROW].tolist()
        facts = [self._facts[number] for number in numbers]
        for row in (exchanged := exchanged_rows(self._generated, columns, numbers)):
            facts[row] = {**facts[row], **facts_of_loss(columns, row)}
        if exchanged:
            named = [
                f"{sample} of prompt {prompt}"
                for prompt, sample in (self._row_prompts[numbers[row]] for row in exchanged)
            ]
            self.exchanged.append(
                "the loss takes another completion or advantage than was generated for sample "
                + ", sample ".join(named)
            )
        pass_index = self._micro_step // trainer.args.steps_per_generation % trainer.num_iterations
        self.parts.append(
            [
                StepRow(
                    rollout=self._rollout,
                    prompt=self._row_prompts[number][0],
                    position=number // trainer.num_generations,
                    sample=self._row_prompts[number][1],
                    tokens=int(count),
                    index=number,
                    pass_index=pass_index,
                    generated_at_step=self._generated_at_step,
                    facts=told,
                )
                for number, count, told in zip(numbers, tokens, facts, strict=True)
            ]
        )
        with self._watch.expecting(expected):
            return self.native["compute_loss"](model, inputs, *args, **kwargs)


PAIRED = ("completion_ids", "advantages")
"""Columns whose pairs decide what is trained. Samples of a group are alike: whichever of them comes first, the same is
trained, as long as each keeps its own advantage."""


def exchanged_rows(
    generated: Mapping[str, torch.Tensor], inputs: Mapping[str, torch.Tensor], numbers: Sequence[int]
) -> list[int]:
    """The rows of a micro-batch that are not those of the rollout which bear their `numbers`."""
    differ = torch.zeros(len(numbers), dtype=torch.bool, device=inputs["advantages"].device)
    for name in PAIRED:
        now, then = inputs[name], generated[name].to(differ.device)[numbers]
        if now.dim() > 1:  # padding may be cut or added
            width = min(now.shape[1], then.shape[1])
            now, then = now[:, :width], then[:, :width]
        apart = (now != then) & ~(now.isnan() & then.isnan())
        differ |= apart.reshape(len(numbers), -1).any(1)
    found: list[int] = differ.nonzero().flatten().tolist()
    return found


def facts_of_loss(inputs: Mapping[str, torch.Tensor], row: int) -> dict[str, Any]:
    """The ledger's facts of a row that is not what was generated: the completion and advantage that the loss took."""
    ids = inputs["completion_ids"][row][inputs["completion_mask"][row].bool()].tolist()
    return {"completion_fingerprint": fingerprint(ids), "advantage": inputs["advantages"][row].tolist()}


def _inner(loader: Any) -> Any:
    """torch's own loader, to which Accelerate's delegates. Source: accelerate 1.15.0 DataLoaderAdapter."""
    return getattr(loader, "base_dataloader", loader)
