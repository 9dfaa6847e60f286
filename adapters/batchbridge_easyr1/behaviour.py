"""The real behaviour of unwrapped EasyR1: in words, and optimizer step by optimizer step on one device."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction

from batchbridge import Behaviour, Reading
from batchbridge.kit import NativeStep
from batchbridge.kit.native_steps import PromptAndSample, dealt_steps, rollouts_of, shuffled_orders, shuffled_rollouts
from batchbridge_easyr1.rules import defects
from batchbridge_easyr1.run import EasyR1Run
from batchbridge_easyr1.settings import DATA, DYNAMIC, GROUP, MICRO, MINI_ROLLOUT, MODE, PASSES, PROMPTS

FORMULAS = {
    # (token-weighted, mode) -> weight of one token
    (True, "token"): "1 / T",
    (True, "seq"): "T_m / (T m L_i)",
    (False, "token"): "1 / (D k T_m)",
    (False, "seq"): "1 / (D k m L_i)",
}
"""T tokens of the step, T_m tokens and m rows of the micro-batch, k micro-batches, D replicas. Source: EasyR1
dp_actor.py:287 (0.3.2 on); 0.3.1 dp_actor.py."""


def behaviour(run: EasyR1Run) -> Behaviour:
    """The behaviour of EasyR1 in this run."""
    undecided = []
    if run.world > 1:
        undecided.append("which optimizer step and device train a completion: prompt and response lengths decide")
    if run[DYNAMIC]:
        undecided.append("which completions share a micro-batch: token counts decide")
    parts = run.world // max(run.replicas, 1)
    own = "its part" if parts == 1 else f"its {parts} parts, one after another,"
    shuffled = f"torch.randperm of a generator seeded with {run[f'{DATA}seed']}, every second draw being an epoch"
    rest = "an epoch's incomplete batch is dropped"
    if run.prompts_at_once != run[PROMPTS]:  # Source: EasyR1 0.3.1 to b44b311 ray_trainer.py _make_batch_data
        rest += f", of {run.prompts_at_once} prompts, and a rollout that an epoch leaves unfilled goes on in the next"
    return Behaviour(
        order=f"{shuffled if run[f'{DATA}shuffle'] else 'as in the dataset'}; {rest}",
        membership=(
            f"a rollout is balanced by length into parts for the devices ({run.world}), which keep their order; each "
            f"replica ({run.replicas} in all) cuts {own} into steps of {run.share}; all passes alike"
        ),
        denominator_scope="micro_batch" if run.depends_on_split else "optimizer_step",
        denominator_formula=FORMULAS[run.token_weighted, run[MODE]],
        lr_tick="after every rollout (one call of update_actor), not after every optimizer step",
        resume="the data loader's state and the global step are saved",
        defects=defects(run),
        undecided=tuple(undecided),
        source="EasyR1 dp_actor.py update_policy, ray_trainer.py _balance_batch",
    )


def native_steps(
    reading: Reading, dataset_size: int, response_tokens: Mapping[tuple[int, int], int]
) -> Iterator[NativeStep]:
    """The optimizer steps on one device with fixed micro-batches, weights as exact fractions.

    Raises `ValueError` naming what the settings leave open.
    """
    run = getattr(reading, "run", None)
    if not isinstance(run, EasyR1Run) or reading.spec is None:
        raise ValueError("the settings give no run: see the findings")
    for open_, why in (
        (run.world > 1, "completions are balanced over the devices by prompt and response length"),
        (run[DYNAMIC], "dynamic_batching cuts micro-batches by prompt and response length"),
        (run["algorithm.online_filtering"], "groups are filtered by their rewards"),
        (run[MINI_ROLLOUT] not in (None, run[PROMPTS]), "mini_rollout_batch_size differs from rollout_batch_size"),
        (run.completions_per_rollout % run.completions_per_step != 0, "the last optimizer step is not whole"),
        (run.share % run[MICRO] != 0, "micro-batches are not whole"),
    ):
        if open_:
            raise ValueError(f"left open: {why}")
    return _steps(run, dataset_size, response_tokens)


def _prompt_orders(run: EasyR1Run, dataset_size: int) -> Iterator[Sequence[int]]:
    """Each epoch's order: of the generator's draws the first, the third, ... (measured)."""
    return shuffled_orders(dataset_size, _shuffle_seed(run), draws_after=1)


def _shuffle_seed(run: EasyR1Run) -> int | None:
    return run[f"{DATA}seed"] if run[f"{DATA}shuffle"] else None


def own_rollouts(reading: Reading) -> Callable[[], Iterator[Sequence[int]]] | None:
    """The function that gives the prompts of every rollout of an unwrapped run, which travels by pickle; None where the
    settings leave them open."""
    run, size = getattr(reading, "run", None), reading.dataset_size
    if not isinstance(run, EasyR1Run) or size is None or run.prompts_at_once != run[PROMPTS]:
        return None
    return functools.partial(shuffled_rollouts, size, run[PROMPTS], _shuffle_seed(run), draws_after=1)


def _steps(run: EasyR1Run, dataset_size: int, tokens: Mapping[tuple[int, int], int]) -> Iterator[NativeStep]:
    """The optimizer steps: each rollout's completions, cut in order into steps, and each step into micro-batches.
    tokens: (prompt, sample) to the response's length."""
    micro, size, limit = run[MICRO], run.completions_per_step, run["trainer.max_steps"]

    def deal(rows: Sequence[PromptAndSample]) -> Iterator[list[tuple[int, Sequence[PromptAndSample]]]]:
        for cut in range(0, len(rows), size):
            yield [(0, rows[cut + at : cut + at + micro]) for at in range(0, size, micro)]

    rollouts = run[run.epochs_key] * (dataset_size // run[PROMPTS]) if limit is None else limit
    planned = rollouts_of(_prompt_orders(run, dataset_size), run[PROMPTS], dataset_size, rollouts)
    weight = functools.partial(_weight, run)
    return dealt_steps(planned, tokens, group=run[GROUP], passes=run[PASSES], deal=deal, weight=weight)


def _weight(run: EasyR1Run, length: int, total: int, local: list[int]) -> Fraction:
    """`FORMULAS` in numbers."""
    if not length:
        return Fraction(0)
    if run.token_weighted:
        return Fraction(1, total) if run[MODE] == "token" else Fraction(sum(local), total * len(local) * length)
    micro_batches = run.share // len(local)
    if run[MODE] == "token":
        return Fraction(1, micro_batches * sum(local))
    return Fraction(1, micro_batches * len(local) * length)
