"""What an unwrapped GRPOTrainer really does: in words, and optimizer step by optimizer step.

The prediction holds for scripted rollouts, where nothing but TRL and PyTorch's data loader draws from the global random
numbers. Sampling (and dropout) moves them, and then the shuffle inside a rollout is not decided by the configuration.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import count
from typing import NamedTuple

from batchbridge.adapter import Behaviour, NativeRow, NativeStep, Reading
from batchbridge.spec import DenominatorScope
from batchbridge_trl.randomness import TorchGenerator
from batchbridge_trl.rules import Facts, defects, facts_of
from batchbridge_trl.settings import holds
from batchbridge_trl.sizes import accelerator_config


@dataclass(frozen=True)
class Denominator:
    """How loss types divide: `scope`, the `formula` of one token's weight in an optimizer step, the versions, the
    source.

    Symbols: W devices, k micro-batches of the step, m completions of a micro-batch, L_i the completion's tokens, T_m
    the micro-batch's tokens, T_r the rollout's tokens over all devices, s steps_per_generation, c
    max_completion_length.
    """

    losses: tuple[str, ...]
    scope: DenominatorScope
    formula: str
    source: str
    versions: str = ""


_ROLLOUT = ("dapo", "cispo", "vespo")
DENOMINATORS = (
    Denominator(("grpo", "sapo"), "optimizer_step", "1 / (W k m L_i)", "trl 1.9.1 to 1.16.0 GRPOTrainer._compute_loss"),
    Denominator(("luspo",), "optimizer_step", "1 / (W k m)", "trl 1.10.0 to 1.16.0 GRPOTrainer._compute_loss"),
    Denominator(("dr_grpo",), "optimizer_step", "1 / (W k m c)", "trl 1.9.1 to 1.16.0 GRPOTrainer._compute_loss"),
    Denominator(("bnpo",), "micro_batch", "1 / (W k T_m)", "trl 1.9.1 to 1.16.0 GRPOTrainer._compute_loss"),
    Denominator(
        _ROLLOUT,
        "rollout",
        "s / (k T_r)",
        "trl 1.9.1 to 1.16.0 GRPOTrainer._compute_loss (num_items_in_batch)",
        ">=1.9.1",
    ),
)
"""The dapo family's factor s / k came with 1.9.1; before, the weight was 1 / T_r."""


def behaviour(reading: Reading) -> Behaviour | None:
    """What TRL does with these settings; None while the sizes are unknown."""
    facts = facts_of(reading)
    if facts is None or facts.rollout is None or facts.loss is None:
        return None
    row = _denominator(facts)
    window, micro_steps = facts.sizes.window, facts.micro_steps_per_rollout
    steps = facts.rollout.steps_per_generation
    scope: DenominatorScope = row.scope
    if scope == "rollout" and steps == window:
        scope = "optimizer_step"  # the rollout is the step's, or each of its passes
    undecided = []
    if steps > 1:
        which = "micro-batch" if window % steps == 0 else "optimizer step and micro-batch"
        undecided.append(
            f"which {which} trains a completion of a rollout: sampling moves the random numbers that shuffle it; "
            "decided "
            "only for scripted rollouts"
        )
    if _liger_decides(facts):
        undecided.append("the weights: use_liger_kernel computes the loss in Liger's own kernel before trl 1.14")
    if _luspo_widened(facts):
        undecided.append("the weights: they depend on the padding")
    if accelerator_config(facts.native).get("split_batches") is True and facts.sizes.world > 1:
        undecided.append("the rollouts: accelerator_config.split_batches cuts them")
    order = (
        f"torch.randperm of a generator seeded with {facts.native['seed']} whose state continues over epochs"
        if facts.native["shuffle_dataset"]
        else "as in the dataset"
    )
    return Behaviour(
        order=f"{order}; each epoch in rollouts of {facts.rollout.prompts} prompts, the rest dropped",
        membership=(
            f"each device takes a contiguous block of {facts.sizes.micro * steps} completions of the rollout, "
            "permutes it "
            f"once by its own global random numbers, and cuts it into {steps} micro-batches, the same ones in each of "
            f"{facts.sizes.iterations} passes; an optimizer step takes {window} micro-batches, fewer at an epoch's end"
            + ("" if micro_steps and micro_steps % window == 0 else "; it draws from several rollouts")
        ),
        denominator_scope=scope,
        denominator_formula=row.formula,
        lr_tick="after every optimizer step",
        resume=(
            "a checkpoint at a rollout's end in the first epoch continues exactly; inside a rollout the rollout "
            "is lost; in "
            "later epochs the first epoch's order comes again"
        ),
        defects=defects(facts),
        undecided=tuple(undecided),
        source=row.source,
    )


def native_steps(
    reading: Reading, dataset_size: int, response_tokens: Mapping[tuple[int, int], int]
) -> Iterator[NativeStep]:
    """The optimizer steps of the unwrapped run with scripted rollouts, weights as exact fractions.

    `response_tokens[prompt, sample]`: tokens whose loss mask is 1. Raises `ValueError` where the settings leave the run
    open.
    """
    facts = facts_of(reading)
    if facts is None or facts.rollout is None or facts.loss is None:
        raise ValueError("the settings give no run: see the findings")
    if facts.sizes.iterations < 1:
        return iter(())
    options = accelerator_config(facts.native)
    for option in ("split_batches", "dispatch_batches"):
        if options.get(option) is True and facts.sizes.world > 1:
            raise ValueError(f"accelerator_config.{option} is on: what each device gets is left open")
    if facts.native.get("dataset_streaming") or facts.native.get("streaming"):
        raise ValueError("dataset_streaming: a streamed dataset has no prompt indices")
    return _steps(facts, dataset_size, response_tokens)


class _Member(NamedTuple):
    prompt: int
    sample: int


@dataclass(frozen=True)
class _MicroStep:
    """One micro-batch per device, and the rollout's tokens over all devices."""

    rollout: int
    pass_index: int
    members: tuple[tuple[_Member, ...], ...]
    rollout_tokens: int


def _steps(facts: Facts, dataset_size: int, tokens: Mapping[tuple[int, int], int]) -> Iterator[NativeStep]:
    assert facts.rollout is not None
    window = facts.sizes.window
    per_epoch = dataset_size // facts.rollout.prompts * facts.micro_steps_per_rollout
    steps_per_epoch = -(-per_epoch // window)
    if not steps_per_epoch:
        return
    max_steps = facts.native["max_steps"]
    # transformers rounds up per epoch, then over the epochs: Trainer.set_initial_training_values.
    total = max_steps if max_steps > 0 else math.ceil(facts.native["num_train_epochs"] * steps_per_epoch)
    index, stream = 0, _micro_steps(facts, dataset_size, tokens)
    while index < total:
        left = per_epoch
        while left > 0 and index < total:
            micro_steps = [next(stream) for _ in range(min(window, left))]
            yield _step(index, micro_steps, facts, tokens)
            left -= window
            index += 1


def _micro_steps(facts: Facts, dataset_size: int, tokens: Mapping[tuple[int, int], int]) -> Iterator[_MicroStep]:
    """Every micro-step of the run, epoch after epoch without end."""
    assert facts.rollout is not None
    sizes, prompts, cuts = facts.sizes, facts.rollout.prompts, facts.rollout.steps_per_generation
    seed = facts.native["seed"]
    sampler = TorchGenerator(seed)
    ranks = [TorchGenerator(seed + rank) for rank in range(sizes.world)]
    rollout = count()
    while True:
        order = sampler.permutation(dataset_size) if facts.native["shuffle_dataset"] else list(range(dataset_size))
        for rank in ranks:
            rank.draw_int64()  # the data loader's base seed, once per epoch
        for start in range(0, dataset_size - prompts + 1, prompts):
            rows = [_Member(p, s) for p in order[start : start + prompts] for s in range(sizes.generations)]
            share = sizes.micro * cuts
            local = [rows[rank * share : (rank + 1) * share] for rank in range(sizes.world)]
            shuffled = [[part[i] for i in rank.permutation(share)] for rank, part in zip(ranks, local, strict=True)]
            total = sum(tokens[row] for row in rows)
            number = next(rollout)
            for pass_index in range(sizes.iterations):
                for cut in range(0, share, sizes.micro):
                    members = tuple(tuple(part[cut : cut + sizes.micro]) for part in shuffled)
                    yield _MicroStep(number, pass_index, members, total)


def _step(index: int, micro_steps: list[_MicroStep], facts: Facts, tokens: Mapping[tuple[int, int], int]) -> NativeStep:
    rows = []
    for place, micro_step in enumerate(micro_steps):
        for rank, members in enumerate(micro_step.members):
            local = sum(tokens[member] for member in members)
            for member in members:
                weight = _weight(facts, len(micro_steps), tokens[member], local, micro_step.rollout_tokens)
                rows.append(
                    NativeRow(
                        rollout=micro_step.rollout,
                        pass_index=micro_step.pass_index,
                        prompt=member.prompt,
                        sample=member.sample,
                        rank=rank,
                        micro_batch=place,
                        weight=weight,
                    )
                )
    return NativeStep(index=index, rows=tuple(rows))


def _weight(facts: Facts, window: int, length: int, local: int, total: int) -> Fraction | None:
    """The weight of one token of a completion of `length` tokens: `Denominator.formula`, in numbers."""
    if _liger_decides(facts) or _luspo_widened(facts):
        return None
    if not length:
        return Fraction(0)
    assert facts.rollout is not None
    devices, name = facts.sizes.world * window, facts.native["loss_type"]
    if name in ("grpo", "sapo"):
        return Fraction(1, devices * facts.sizes.micro * length)
    if name == "luspo":
        return Fraction(1, devices * facts.sizes.micro)
    if name == "dr_grpo":
        return Fraction(1, devices * facts.sizes.micro * facts.native["max_completion_length"])
    if name == "bnpo":
        return Fraction(1, devices * local)
    return Fraction(facts.rollout.steps_per_generation, window * total)


def _denominator(facts: Facts) -> Denominator:
    return next(row for row in DENOMINATORS if facts.loss.name in row.losses and holds(row.versions, facts.version))


def _liger_decides(facts: Facts) -> bool:
    """Source: trl 1.9.1 to 1.13.0 GRPOTrainer.compute_liger_loss; from 1.14.0 on the loss is TRL's own."""
    return bool(facts.native["use_liger_kernel"]) and holds("<1.14", facts.version)


def _luspo_widened(facts: Facts) -> bool:
    return any(defect.code == "BB-TRL-070" for defect in defects(facts)) if facts.loss.name == "luspo" else False
