"""Forward-only passes (old and reference log-probabilities) cut by tokens, as the training passes are.

TRL scores a rollout in chunks of `per_device_train_batch_size` rows, each as wide as the longest completion of the
whole rollout. Here rows of similar length are scored together, trimmed to their own width.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from batchbridge.kit import Length, device_memory, partition_by_tokens, partition_packed
from batchbridge.kit.found_budgets import FoundBudget
from batchbridge.kit.patches import temporarily
from batchbridge_trl.found_budget import PassCut
from batchbridge_trl.images import COUNTS, TENSORS, TYPES, RolloutImages, taken, together
from batchbridge_trl.releases import LogprobMethod


class Scorer:
    """A stand-in for the method that makes log-probabilities; with gradients or unknown extra inputs it is native.

    tokens_per_device: None: TRL's own chunks, of which one without images should not be given empty image tensors,
    which models refuse. most: the largest of all ranks' values, of one; collective. A sharded model is put together in
    each forward pass, so that a rank with fewer of them would leave the others waiting: it scores one row again.
    packed: whether completions lie end to end, each prompt once. found: the budget, where it is found meanwhile; within
    a pass that is measured itself (trl 0.18 scores the reference inside of its loss) it cuts nothing.
    """

    def __init__(
        self,
        native: Any,
        producer: LogprobMethod,
        tokens_per_device: int | None,
        most: Callable[[int], int],
        *,
        packed: bool = False,
        found: FoundBudget | None = None,
    ) -> None:
        self._native, self._producer, self._most = native, producer, most
        self._tokens_per_device, self._packs, self._found = tokens_per_device, packed, found

    def __call__(
        self,
        model: Any,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        **others: Any,
    ) -> Any:
        """Shapes as in TRL: input_ids and attention_mask (rows, prompt + completion width), prompts padded on the
        left, completions on the right; the results (rows, `logits_to_keep`), 0 where nothing is attended.
        """
        wanted = {name: value for name, value in others.items() if value is not None and value is not False}
        if torch.is_grad_enabled() or wanted.keys() - {*TENSORS, *COUNTS, *TYPES}:
            return self._native(model, input_ids, attention_mask, logits_to_keep, batch_size=batch_size, **others)
        prompt_width = input_ids.shape[1] - logits_to_keep
        attended = attention_mask.bool()
        prompts = attended[:, :prompt_width].sum(1).tolist()
        places = torch.arange(1, logits_to_keep + 1, device=input_ids.device)
        responses = (attended[:, prompt_width:] * places).amax(1).clamp(min=1).tolist()
        cuts: list[list[int | None]]
        lengths = [Length(prompt, response) for prompt, response in zip(prompts, responses, strict=True)]
        starts: list[tuple[int, ...]] | None = None
        if self._packs:
            starts = [
                tuple(row[prompt_width - count : prompt_width])
                for row, count in zip(input_ids.tolist(), prompts, strict=True)
            ]
        if self._found is not None:
            if self._found.memory.measuring:
                return self._native(model, input_ids, attention_mask, logits_to_keep, batch_size=batch_size, **others)
            cuts = []
        elif starts is not None:
            (cuts,) = partition_packed(
                lengths,
                starts,
                ranks=1,
                tokens_per_device=self._tokens_per_device,
                completions_per_device=None if self._tokens_per_device else batch_size or len(lengths),
                soft=True,
            )
        elif self._tokens_per_device is None:
            items = list(range(len(lengths)))
            size = batch_size or len(items)
            cuts = [list(items[start : start + size]) for start in range(0, len(items), size)]
        else:
            (cuts,) = partition_by_tokens(lengths, ranks=1, tokens_per_device=self._tokens_per_device, soft=True)
        images = {name: value for name, value in wanted.items() if name not in TYPES}
        pictures = RolloutImages.of_rows(taken(images, len(lengths))) if images else None
        result: torch.Tensor | None = None

        def score(cut: Sequence[int | None]) -> None:
            nonlocal result
            picks = [item for item in cut if item is not None]
            rows = torch.tensor(picks, device=input_ids.device)
            width = max(lengths[item].response for item in picks)
            columns = slice(prompt_width - max(lengths[item].prompt for item in picks), prompt_width + width)
            types = {name: wanted[name][rows, columns] for name in TYPES if name in wanted}
            shown = together((pictures, item) for item in picks)
            scored = self._native(
                model, input_ids[rows, columns], attention_mask[rows, columns], width, **types, **shown
            )
            scored = self._producer.logprobs(scored)
            if result is None:
                result = scored.new_zeros((len(input_ids), logits_to_keep))
            result[rows, :width] = scored

        if self._found is not None:

            def attempted(cut: Sequence[int]) -> None:
                with device_memory.same_random(input_ids.device):
                    score(cut)

            PassCut(lengths, starts).run(range(len(lengths)), self._found, attempted)
        else:
            shortest = min(range(len(lengths)), key=lambda item: lengths[item].tokens)
            cuts += [[shortest]] * (self._most(len(cuts)) - len(cuts))
            for cut in cuts:
                score(cut)
        assert result is not None, "a rollout has a row"
        return self._producer.returned(result)


@contextlib.contextmanager
def old_logprobs(trainer: Any, *, needed: bool) -> Iterator[None]:
    """The span in which TRL scores a rollout with the weights that generated it exactly where that is `needed`.

    TRL decides by these three numbers, which speak about its own membership, not the plan's. Source: trl 0.18.0 and
    0.19.1 (num_iterations > 1 or steps_per_generation > gradient_accumulation_steps), 0.20.0 to 1.16.0
    (gradient_accumulation_steps % (steps_per_generation * num_iterations) != 0), _generate_and_score_completions.
    """
    args = trainer.args
    steps = 2 if needed else args.steps_per_generation
    accumulated = 1 if needed else steps * trainer.num_iterations
    with temporarily(args, steps_per_generation=steps, gradient_accumulation_steps=accumulated):
        yield
