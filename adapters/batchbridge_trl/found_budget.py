"""`wrap(trainer, tokens_per_device="auto")`: an optimizer step in micro-batches of a budget that is found meanwhile.

A pass that runs out of memory must leave no other rank waiting. So no rank exchanges anything within its own
micro-batches: they run on the bare model, metrics are put together once per step, and gradients are exchanged in one
more micro-batch, of a filler row, which every rank runs last.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from accelerate.utils import gather_object

from batchbridge.kit import Length, Request, device_memory, partition_by_tokens, partition_packed
from batchbridge.kit.allowing import OWN_TERM
from batchbridge.kit.found_budgets import FoundBudget, HalvedBudget, run_all
from batchbridge.kit.gradient_sketches import foreign_hooks
from batchbridge_trl import releases
from batchbridge_trl.forks import is_unsloths
from batchbridge_trl.images import reads_images
from batchbridge_trl.metrics import StepMetrics, uncounted
from batchbridge_trl.ms_swift import is_swift
from batchbridge_trl.sharding import loaded_in_shards
from batchbridge_trl.watching import TrlStepProbe, alone, window

PROVEN = ">=1.16"
"""The releases of TRL that budgets are found in."""


def objection(trainer: Any, request: Request) -> str | None:
    """The reason why no budget is found for this trainer; None where one is."""
    if not releases.has(PROVEN):
        return "it is proven with trl 1.16 and later"
    if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled or loaded_in_shards(trainer):
        return "ranks of ZeRO and FSDP put the model together in every pass: one that fails leaves others waiting"
    if is_unsloths(trainer) or is_swift(trainer):
        return "it is proven with TRL's own trainer alone"
    if device_memory.memory_of(trainer.accelerator.device) is None:
        return device_memory.NO_LIMIT
    if reads_images(trainer):
        return "it is not proven for models that read images"
    if releases.value(trainer, "_entropy_bonus_enabled") or releases.value(trainer, "aux_loss_enabled"):
        return "it is not proven with an entropy bonus or a router's loss, which are means over a micro-batch"
    if OWN_TERM in request.allow:
        return (
            f'a term of your own (allow="{OWN_TERM}") counts once for each micro-batch, of which there are any number'
        )
    hooked = [hook for one in trainer.model.parameters() for hook in foreign_hooks(one)]
    if hooked:
        return f"hooks on parameters would see the gradients of a failed pass: {', '.join(sorted(set(hooked))[:3])}"
    return None


RunMicroBatch = Callable[[Any, Sequence[int | None], bool], torch.Tensor]
"""Runs one micro-batch, of this model; whether gradients are exchanged in it."""


class BudgetFinder:
    """The budgets of one trainer's rank, of training and of scoring passes."""

    def __init__(self, trainer: Any, watch: TrlStepProbe) -> None:
        self._trainer, self._watch = trainer, watch
        memory = device_memory.memory_of(trainer.accelerator.device)
        assert memory is not None, "refused where there is none"
        self.training, self.scoring = FoundBudget(memory, "training"), FoundBudget(memory, "scoring")

    def taken(self) -> list[HalvedBudget]:
        """The halvings since the last call, of scoring first: it comes before a step's training."""
        return [*self.scoring.taken(), *self.training.taken()]

    def train(
        self, model: Any, passes: PassCut, own: Sequence[int], tokens: Sequence[int], run: RunMicroBatch
    ) -> torch.Tensor | float:
        """Trains this rank's completions of a step; the loss. Collective.

        model: as the native step is given it. passes: of the step. own: places of this rank's completions. tokens: that
        each of the step's completions trains. run: of one micro-batch.
        """
        trainer, sizes = self._trainer, list[tuple[int, int, int]]()
        metrics, ranks = StepMetrics(trainer, sizes), trainer.accelerator.num_processes
        bare = model if ranks == 1 else trainer.model
        loss: torch.Tensor | float = 0.0

        def once(batch: Sequence[int]) -> None:
            nonlocal loss
            with self._attempt():
                value = run(bare, batch, False)
            loss = loss + value
            sizes.append((sum(tokens[item] for item in batch), len(batch), len(batch)))

        with window(trainer, 1):
            passes.run(own, self.training, once)
            # Filler rows, until all ranks have as many micro-batches; and one more, in which gradients are exchanged.
            for left in range(max(self._gather(len(sizes))) - len(sizes), -1, -1) if ranks > 1 else ():
                with uncounted(trainer, always=True), alone(trainer):
                    loss = loss + run(bare if left else model, [None], not left)
        metrics.of_the_step(self._gather)
        return loss

    def _gather(self, mine: Any) -> list[Any]:
        """Every rank's, of this rank's. Collective."""
        return list(gather_object([mine])) if self._trainer.accelerator.num_processes > 1 else [mine]

    @contextlib.contextmanager
    def _attempt(self) -> Iterator[None]:
        """The span of one micro-batch of this rank alone, forward and backward; where it fails, it has not been."""
        trainer = self._trainer
        with (
            uncounted(trainer),
            self._watch.attempt(),
            device_memory.gradients_apart(trainer.model.parameters()),
            device_memory.same_random(trainer.accelerator.device),
            alone(trainer),
        ):
            yield


class PassCut:
    """Completions as passes read them. lengths: theirs. prompts: what tells their prompts apart, where completions lie
    end to end; None: they are padded."""

    def __init__(self, lengths: Sequence[Length], prompts: Sequence[Any] | None = None) -> None:
        self._lengths, self._prompts = lengths, prompts

    def cut(self, items: Sequence[int], budget: int) -> list[list[int]]:
        """Micro-batches of these completions, the longest first."""
        lengths = [self._lengths[item] for item in items]
        if self._prompts is None:
            (cuts,) = partition_by_tokens(lengths, ranks=1, tokens_per_device=budget, soft=True)
        else:
            prompts = [self._prompts[item] for item in items]
            (cuts,) = partition_packed(lengths, prompts, ranks=1, tokens_per_device=budget, soft=True)
        return [[items[place] for place in cut if place is not None] for cut in cuts]

    def tokens(self, items: Sequence[int]) -> int:
        """Tokens that a pass over these completions reads, padding included; of completions end to end each prompt
        counts once."""
        lengths = [self._lengths[item] for item in items]
        if self._prompts is None:
            return len(items) * (max(one.prompt for one in lengths) + max(one.response for one in lengths))
        prompts = {self._prompts[item]: one.prompt for item, one in zip(items, lengths, strict=True)}
        return sum(prompts.values()) + sum(one.response for one in lengths)

    def run(self, items: Sequence[int], budget: FoundBudget, once: Callable[[Sequence[int]], None]) -> None:
        """Runs every completion once, in micro-batches of the budget as it is by then."""
        run_all(items, budget, cut=self.cut, tokens=self.tokens, once=once)
