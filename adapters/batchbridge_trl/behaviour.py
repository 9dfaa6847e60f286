"""The real behaviour of an unwrapped GRPOTrainer: in words, and optimizer step by optimizer step.

The prediction holds for scripted rollouts, where nothing but TRL and PyTorch's data loader draws from the global random
numbers. Sampling (and dropout) moves them, and then the shuffle inside a rollout is not decided by the configuration.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import count, cycle, islice
from typing import TYPE_CHECKING, NamedTuple

from batchbridge import Behaviour, Reading
from batchbridge.kit import DenominatorScope, NativeRow, NativeStep
from batchbridge.kit.native_steps import PromptAndSample, rollouts_of, shuffled_orders
from batchbridge_trl.epochs import EpochLength, sampler_of
from batchbridge_trl.rules import TrlFacts, defects, facts_of
from batchbridge_trl.settings import holds
from batchbridge_trl.sizes import accelerator_config

if TYPE_CHECKING:
    from batchbridge.kit.torch_random import TorchGenerator


class TrlDenominator(NamedTuple):
    """The denominator of loss types: `scope`, one token's weight in an optimizer step as a formula, the source, the
    versions.

    Symbols of a formula: W devices, k micro-batches of the step, m completions of a micro-batch, L_i the completion's
    tokens, T_m the micro-batch's tokens, T_r the rollout's tokens over all devices, s steps_per_generation, c
    max_completion_length.
    """

    losses: tuple[str, ...]
    scope: DenominatorScope
    formula: str
    source: str
    versions: str = ""

    def weight(self, symbols: Mapping[str, int]) -> Fraction:
        """The formula in numbers: its first symbol over the product of the others."""
        above, *below = re.findall(r"\w+", self.formula)
        return Fraction(symbols.get(above, 1), math.prod(symbols[symbol] for symbol in below))


_ROLLOUT = ("dapo", "cispo", "vespo")
_LOSS = "GRPOTrainer._compute_loss"
_BY_K = "transformers divides by k up to 0.21, TRL since 0.22"
DENOMINATORS = (
    TrlDenominator(
        ("grpo",),
        "optimizer_step",
        "1 / (W k m L_i)",
        "trl 0.15.0 to 0.15.2 GRPOTrainer.compute_loss; k = gradient_accumulation_steps, in transformers",
        "<0.16",
    ),
    TrlDenominator(
        ("grpo", "sapo"), "optimizer_step", "1 / (W k m L_i)", f"trl 0.17.0 to 1.16.0 {_LOSS}; {_BY_K}", ">=0.17"
    ),
    TrlDenominator(("luspo",), "optimizer_step", "1 / (W k m)", f"trl 0.28.0 to 1.16.0 {_LOSS}"),
    TrlDenominator(("dr_grpo",), "optimizer_step", "1 / (W k m c)", f"trl 0.17.0 to 1.16.0 {_LOSS}; {_BY_K}"),
    TrlDenominator(("bnpo",), "micro_batch", "1 / (W k T_m)", f"trl 0.16.0 to 1.16.0 {_LOSS}; {_BY_K}"),
    TrlDenominator(
        _ROLLOUT, "rollout", "1 / T_r", f"trl 0.22.0 to 1.9.0 {_LOSS} (num_items_in_batch)", ">=0.22,<1.9.1"
    ),
    TrlDenominator(_ROLLOUT, "rollout", "s / (k T_r)", f"trl 1.9.1 to 1.16.0 {_LOSS} (num_items_in_batch)", ">=1.9.1"),
)
"""Denominators of the loss types. The division by the window's micro-batches is up to 0.21 transformers'
(model_accepts_loss_kwargs = False; see `epochs.LOOPS` for what k is), since 0.22 TRL's, by those of the actual window,
but not for the dapo family."""


class RolloutLayout(NamedTuple):
    """The way of a rollout's completions to devices and micro-batches.

    by_micro_batch: each device draws micro-batch by micro-batch, in turn with the others; else a block of the rollout
    at once. shuffled: it permutes its block before it cuts it.
    """

    versions: str
    by_micro_batch: bool
    shuffled: bool
    text: str
    source: str


LAYOUTS = (
    RolloutLayout(
        "<0.17",
        True,
        False,
        "micro-batch by micro-batch, each device takes the next {micro} completions of the rollout, which are "
        "generated then, in the first of its passes ({passes})",
        "trl 0.15.0 GRPOTrainer._prepare_inputs; trl 0.16.0 the same, with _buffered_inputs for further passes",
    ),
    RolloutLayout(
        ">=0.17,<0.18",
        False,
        False,
        "each device takes a contiguous block of the rollout, {share}, and cuts it, in its order, into {steps}, the "
        "same in every pass ({passes})",
        "trl 0.17.0 GRPOTrainer.get_train_dataloader and _prepare_inputs",
    ),
    RolloutLayout(
        ">=0.18",
        False,
        True,
        "each device takes a contiguous block of the rollout, {share}, permutes it once by its own global random "
        "numbers, and cuts it into {steps}, the same in every pass ({passes})",
        "trl 0.18.0 to 1.16.0 GRPOTrainer.get_train_dataloader and _prepare_inputs",
    ),
)
OF_SWIFT = LAYOUTS[1]._replace(
    versions="",
    source="ms-swift 3.4.0, 3.8.0, 3.12.0, 4.0.0, 4.3.0 and 4.6.0 GRPOTrainer._prepare_inputs and what it calls, read; "
    "4.6.0 run",
)
"""The layout of ms-swift's trainer, over any release of TRL."""

_LATER_EPOCHS = "in later epochs the first epoch's order comes again"
RESUME = (
    ("<0.16", f"a checkpoint in the first epoch continues exactly; {_LATER_EPOCHS}"),
    (
        ">=0.16,<0.17",
        "a checkpoint between the passes over a rollout cannot continue (TypeError: the buffered rollout is gone); at "
        f"a rollout's end in the first epoch it continues exactly; {_LATER_EPOCHS}",
    ),
    (
        ">=0.17",
        "a checkpoint at a rollout's end in the first epoch continues exactly; inside a rollout the rollout is lost; "
        f"{_LATER_EPOCHS}",
    ),
)
"""Versions -> what a resumed run does. Source: trl RepeatSampler (no state), GRPOTrainer._prepare_inputs; run on
1.16.0, read in the others."""


def behaviour(facts: TrlFacts) -> Behaviour | None:
    """The behaviour of TRL with these settings; None where they give no rollout."""
    if facts.rollout is None or facts.loss is None:
        return None
    row = _denominator(facts)
    window, micro_steps = facts.sizes.window, facts.micro_steps_per_rollout
    steps = facts.rollout.steps_per_generation
    scope: DenominatorScope = row.scope
    if scope == "rollout" and steps == window:
        scope = "optimizer_step"  # the rollout is the step's, or each of its passes
    layout = _layout(facts)
    undecided = []
    if steps > 1 and layout.shuffled:
        which = "micro-batch" if window % steps == 0 else "optimizer step and micro-batch"
        why = "sampling moves the random numbers that shuffle it; decided only for scripted rollouts"
        undecided.append(f"which {which} trains a completion of a rollout: {why}")
    undecided += _open_weights(facts)
    if _on(facts, "split_batches"):
        undecided.append("the rollouts: accelerator_config.split_batches cuts them")
    order = "as in the dataset"
    if facts.native["shuffle_dataset"]:
        order = f"torch.randperm of a generator seeded with {facts.native['seed']} whose state continues over epochs"
    rest = "dropped" if sampler_of(facts.version).drops else "a shorter one"
    micro = facts.sizes.micro
    share = f"{micro * steps} completion{'s' if micro * steps != 1 else ''}"
    members = layout.text.format(micro=micro, share=share, steps=_batches(steps), passes=facts.sizes.iterations)
    fewer = ", fewer at an epoch's end" if window > 1 else ""
    members += f"; an optimizer step takes {_batches(window)}{fewer}"
    if not micro_steps or micro_steps % window:
        members += "; it draws from several rollouts"
    return Behaviour(
        order=f"{order}; each epoch in rollouts of prompts, {facts.rollout.prompts} in each, the rest {rest}",
        membership=members,
        denominator_scope=scope,
        denominator_formula=row.formula,
        lr_tick="after every optimizer step",
        resume=next(text for versions, text in RESUME if holds(versions, facts.version)),
        defects=defects(facts),
        undecided=tuple(undecided),
        source=f"{row.source}; {layout.source}",
    )


def _batches(number: int) -> str:
    return f"{number} micro-batch{'' if number == 1 else 'es'}"


def native_steps(
    reading: Reading, dataset_size: int, response_tokens: Mapping[PromptAndSample, int]
) -> Iterator[NativeStep]:
    """The optimizer steps of the unwrapped run with scripted rollouts, weights as exact fractions.

    `response_tokens[prompt, sample]`: tokens whose loss mask is 1. Raises `ValueError` where the settings leave the run
    open.
    """
    facts = facts_of(reading)
    if facts is None or facts.rollout is None or facts.loss is None:
        raise ValueError("the settings give no run: see the findings")
    found = facts._replace(prompts=dataset_size).epoch
    if found is None:
        return iter(())
    if (why := _no_steps(facts)) is not None:
        raise ValueError(why)
    return _steps(facts, found, response_tokens)


def native_rollouts(reading: Reading, dataset_size: int) -> Iterator[Sequence[int]]:
    """The prompts of each rollout of the unwrapped run, in TRL's own order, without end: sampling moves none of them.

    Raises `ValueError` where the settings leave the run open.
    """
    facts = facts_of(reading)
    if facts is None or facts.rollout is None:
        raise ValueError("the settings give no run: see the findings")
    if (why := _no_steps(facts)) is not None or not sampler_of(facts.version).drops:
        raise ValueError(why or "a rollout of this release may lack prompts")
    size = facts.rollout.prompts
    orders = _prompt_orders(facts, dataset_size) if size <= dataset_size else iter(())
    return rollouts_of(orders, size, dataset_size, None)


def _prompt_orders(facts: TrlFacts, prompts: int) -> Iterator[Sequence[int]]:
    """Each epoch's order of the prompts."""
    return shuffled_orders(prompts, facts.native["seed"] if facts.native["shuffle_dataset"] else None)


class _MicroStep(NamedTuple):
    """One micro-batch per device, and the rollout's tokens over all devices."""

    rollout: int
    pass_index: int
    members: Sequence[Sequence[PromptAndSample]]
    rollout_tokens: int


def _steps(facts: TrlFacts, found: EpochLength, tokens: Mapping[PromptAndSample, int]) -> Iterator[NativeStep]:
    """transformers' loop: windows of micro-batches as the loader's length promises them, and a step at each window's
    nominal end, or at the promised end of the epoch. Micro-batches after the last such end wait for the next epoch."""
    if not found.real:
        return
    window = found.window
    total, epochs = found.stops(facts.native["num_train_epochs"], facts.native["max_steps"])
    index = 0
    waiting: list[tuple[_MicroStep, int]] = []
    for micro_steps in islice(_epochs(facts, found, tokens), epochs):
        done = 0
        for place in range(found.windows):
            drawn = list(islice(micro_steps, window if place < found.windows - 1 else found.last_window))
            for micro_step in drawn:
                done += 1
                waiting.append((micro_step, len(drawn) if found.loop.divides_by_window else window))
                if done % window == 0 or done == found.promised:
                    yield _step(index, waiting, facts, tokens)
                    index, waiting = index + 1, []
            if index >= total:
                return


def _epochs(
    facts: TrlFacts, found: EpochLength, tokens: Mapping[PromptAndSample, int]
) -> Iterator[Iterator[_MicroStep]]:
    """The micro-steps of each epoch, epoch after epoch without end."""
    from batchbridge.kit.torch_random import TorchGenerator  # a check of settings asks for no order

    assert facts.rollout is not None
    sizes, size = facts.sizes, facts.rollout.completions
    ranks = [TorchGenerator(facts.native["seed"] + rank) for rank in range(sizes.world)]
    rollouts = count()
    for order in _prompt_orders(facts, found.prompts):
        for rank in ranks:
            rank.draw_int64()  # the data loader's base seed, once per epoch
        rows = [(prompt, sample) for prompt in order for sample in range(sizes.generations)]
        if sampler_of(facts.version).drops:
            rows = rows[: len(rows) // size * size]
        elif sizes.world > 1:
            # accelerate fills the last micro-batches with the epoch's first rows; a single process leaves them short.
            rows += islice(cycle(rows[: sizes.micro_step]), -len(rows) % sizes.micro_step)
        chunks = (rows[start : start + size] for start in range(0, len(rows), size))
        steps = (step for chunk in chunks for step in _rollout(next(rollouts), chunk, facts, ranks, tokens))
        yield islice(steps, found.real)


def _rollout(
    number: int,
    rows: Sequence[PromptAndSample],
    facts: TrlFacts,
    ranks: Sequence[TorchGenerator],
    tokens: Mapping[PromptAndSample, int],
) -> Iterator[_MicroStep]:
    """The micro-steps that one rollout feeds, pass after pass."""
    micro, world, layout = facts.sizes.micro, facts.sizes.world, _layout(facts)
    total = sum(tokens[row] for row in rows)
    share = len(rows) // world
    blocks = [rows[rank * share : (rank + 1) * share] for rank in range(world)]
    if layout.by_micro_batch:
        draws = range(0, len(rows), micro * world)
        parts = [[rows[start + rank * micro : start + (rank + 1) * micro] for rank in range(world)] for start in draws]
    else:
        if layout.shuffled:
            permuted = [generator.permutation(share) for generator in ranks]
            blocks = [[block[i] for i in order] for order, block in zip(permuted, blocks, strict=True)]
        parts = [[block[cut : cut + micro] for block in blocks] for cut in range(0, share, micro)]
    for pass_index in range(facts.sizes.iterations):
        for part in parts:
            yield _MicroStep(number, pass_index, part, total)


def _step(
    index: int, micro_steps: Sequence[tuple[_MicroStep, int]], facts: TrlFacts, tokens: Mapping[PromptAndSample, int]
) -> NativeStep:
    """One native step: `micro_steps`, each with the micro-batches of its window, by which its loss is divided."""
    assert facts.rollout is not None
    row, left_open = _denominator(facts), any(_open_weights(facts))
    symbols = {"W": facts.sizes.world, "s": facts.rollout.steps_per_generation}
    symbols["c"] = facts.native["max_completion_length"]
    rows = []
    for place, (micro_step, window) in enumerate(micro_steps):
        for rank, members in enumerate(micro_step.members):
            local = sum(tokens[member] for member in members)
            symbols |= {"k": window, "m": len(members), "T_m": local, "T_r": micro_step.rollout_tokens}
            for prompt, sample in members:
                symbols["L_i"] = tokens[prompt, sample]
                weight = row.weight(symbols) if symbols["L_i"] else Fraction(0)
                rows.append(
                    NativeRow(
                        rollout=micro_step.rollout,
                        pass_index=micro_step.pass_index,
                        prompt=prompt,
                        sample=sample,
                        rank=rank,
                        micro_batch=place,
                        weight=None if left_open else weight,
                    )
                )
    return NativeStep(index=index, rows=tuple(rows))


def _denominator(facts: TrlFacts) -> TrlDenominator:
    return next(row for row in DENOMINATORS if facts.loss.name in row.losses and holds(row.versions, facts.version))


def _layout(facts: TrlFacts) -> RolloutLayout:
    if facts.of_swift:
        return OF_SWIFT
    return next(row for row in LAYOUTS if holds(row.versions, facts.version))


def _open_weights(facts: TrlFacts) -> Iterator[str]:
    """Reasons why the configuration does not decide the weights.

    Source: trl 0.17.0 to 1.13.0 GRPOTrainer.compute_liger_loss; from 1.14.0 on the loss is TRL's own.
    """
    if facts.liger and holds(">=0.17,<1.14", facts.version):
        yield "the weights: Liger's own kernel computes the loss before trl 1.14"
    if facts.loss.rollout_denominator and facts.native["mask_truncated_completions"] and holds("<1.9", facts.version):
        yield "the weights: the denominator counts the tokens of masked completions, which is what was sampled"
    if facts.loss.name == "luspo" and any(defect.code == "BB-TRL-070" for defect in defects(facts)):
        yield "the weights: they depend on the padding"


def _on(facts: TrlFacts, option: str) -> bool:
    """Whether Accelerate's data loader has this option on, on several devices."""
    return accelerator_config(facts.native).get(option) is True and facts.sizes.world > 1


def _no_steps(facts: TrlFacts) -> str | None:
    """The reason why there are no optimizer steps to say; None where there are."""
    if facts.groups_per_micro_step and facts.sizes.micro_step % facts.sizes.generations:
        return "num_generations: a micro-batch over all devices holds no whole groups, and trl refuses the run"
    for option in ("split_batches", "dispatch_batches"):
        if _on(facts, option):
            return f"accelerator_config.{option} is on: what each device gets is left open"
    uneven = accelerator_config(facts.native).get("even_batches") is False and facts.sizes.world > 1
    if uneven and not sampler_of(facts.version).drops:
        return "accelerator_config.even_batches is off: devices get different numbers of micro-batches"
    return "dataset_streaming: a streamed dataset has no prompt indices" if facts.streams else None
