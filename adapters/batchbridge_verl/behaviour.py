"""The real behaviour of unwrapped verl: in words, and optimizer step by optimizer step where the settings decide it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction

from batchbridge import Behaviour, Reading
from batchbridge.kit import DenominatorScope, NativeStep
from batchbridge.kit.native_steps import PromptAndSample, dealt_steps, rollouts_of, shuffled_orders, shuffled_rollouts
from batchbridge_verl.rules import defects
from batchbridge_verl.run import DYNAMIC, EPOCHS, FULLY_ASYNC, GROUP, PROMPTS, VerlRun
from batchbridge_verl.settings import ACTOR, PREFIX_GROUPER
from batchbridge_verl.terms import AGGREGATIONS, LOSS_MODES, TORCH_SEED

ENGINE_FORMULAS = {
    "token_mean": "1 / T",
    "token_sum": "1",
    "sequence_mean": "1 / (B L_i)",
    "sequence_sum": "1 / B",
    "sequence_sum_over_constant": "1 / (B c)",
}
"""Weight of one token in the engine workers: T tokens and B rows of the optimizer step, padding rows counted in B.
Source: verl 0.9.1 core_algos.agg_loss, workers/utils/losses.py:61; measured in exp_engine."""
LEGACY_FORMULAS = {
    "token_mean": "1 / (D k T_m)",
    "sequence_mean": "1 / (D k m L_i)",
    "sequence_sum": "1 / (D k m)",
    "sequence_sum_over_constant": "1 / (D k m c); before 0.7.1 1 / (D k c)",
}
"""Weight of one token in legacy workers: D replicas, k micro-batches of the step, m rows and T_m tokens of a
micro-batch. Source: verl 0.6.1 dp_actor.py:434, 0.7.0 core_algos.agg_loss, 0.7.1 dp_actor.py:583."""


def aggregation_of(run: VerlRun) -> str:
    """The canonical aggregation that acts."""
    mode = LOSS_MODES[run.surrogate]
    return mode.insists_on(run.version) or AGGREGATIONS[run[f"{ACTOR}loss_agg_mode"]]


def behaviour(run: VerlRun) -> Behaviour:
    """The behaviour of verl in this run."""
    aggregation = aggregation_of(run)
    scope: DenominatorScope = "optimizer_step"
    formula = ENGINE_FORMULAS[aggregation]
    if run.legacy:
        scope, formula = "micro_batch", LEGACY_FORMULAS.get(aggregation, "")
        if aggregation in ("sequence_mean", "sequence_sum"):
            scope = "optimizer_step"  # equal micro-batches: the split cancels
    unscaled = aggregation == "sequence_sum_over_constant" and run[f"{ACTOR}loss_scale_factor"] is None
    if (unscaled and not run.legacy) or run.surrogate in ("geo_mean", "clip_cov", "kl_cov"):
        scope = "micro_batch"
    flight = "finished completions too, and what is in flight is" if run.ahead else "a rollout in flight is"
    workers = "0.8.0 to 0.9.1 engine_workers.py, core_algos.agg_loss"
    return Behaviour(
        order=_order(run),
        membership=_membership(run),
        denominator_scope=scope,
        denominator_formula=formula,
        lr_tick="after every rollout (one call of update_actor), not after every optimizer step",
        resume=f"the data loader's state and the global step are saved; {flight} generated anew",
        defects=defects(run),
        undecided=tuple(_undecided(run)),
        source=f"verl {'0.4.0 to 0.7.1 dp_actor.update_policy' if run.legacy else workers}",
    )


def _order(run: VerlRun) -> str:
    if not run["data.shuffle"]:
        return "as in the dataset; an epoch's incomplete batch is dropped"
    draw, workers = ("every second", "above 0") if run["data.dataloader_num_workers"] else ("every", "0")
    return (
        f"torch.randperm of a generator seeded with {_seed(run)}, {draw} draw being an epoch "
        f"(data.dataloader_num_workers {workers}); an epoch's incomplete batch is dropped"
    )


def _seed(run: VerlRun) -> int:
    return TORCH_SEED if run["data.seed"] is None else int(run["data.seed"])


def _membership(run: VerlRun) -> str:
    replicas = "" if run.replicas is None else f" ({run.replicas} in all)"
    share = "equal share of" if run.share is None else str(run.share)
    cut = (
        f"each replica{replicas} takes a contiguous block of the rollout, and step j takes its j-th {share} rows from "
        "every block"
    )
    if run.v1:
        return f"completions stand in the order of their arrival, are balanced by length over the replicas; {cut}"
    if run["trainer.balance_batch"] and run[PREFIX_GROUPER]:
        return f"whole groups are balanced by length over the replicas (Karmarkar-Karp), an equal number to each; {cut}"
    if run["trainer.balance_batch"]:
        return (
            "completions are balanced by length over the replicas (Karmarkar-Karp), and inside each ordered by length, "
            f"up and down again; {cut}"
        )
    return f"completions stand prompt by prompt; {cut}"


def _undecided(run: VerlRun) -> Iterator[str]:
    if run.entry == FULLY_ASYNC:
        yield "which rollout has a prompt, and which weights generated it: what is generated first is trained first"
    if run.v1 and run.completions_per_rollout > run.completions_per_step:
        yield "which optimizer step trains a completion: rollouts finish in an order that no seed fixes"
    elif not run.v1 and run["trainer.balance_batch"]:
        yield "which optimizer step trains a completion: the lengths of prompts and completions decide"
    if run[DYNAMIC]:
        yield "which completions share a micro-batch: token counts decide"


def native_steps(
    reading: Reading, dataset_size: int, response_tokens: Mapping[tuple[int, int], int]
) -> Iterator[NativeStep]:
    """The optimizer steps of RayPPOTrainer without balancing, weights as exact fractions.

    Raises `ValueError` naming what the settings leave open.
    """
    run = getattr(reading, "run", None)
    if not isinstance(run, VerlRun) or reading.spec is None or not run.replicas or not run.share:
        raise ValueError("the settings give no run: see the findings")
    for open_, why in (
        (run.v1, "the V1 trainer takes completions in the order of their arrival"),
        (run["trainer.balance_batch"], "trainer.balance_batch orders completions by prompt and response length"),
        (run[f"{ACTOR}shuffle"], "actor.shuffle permutes each rank's rows"),
        (run[DYNAMIC], "use_dynamic_bsz cuts micro-batches by prompt and response length"),
        (run.micro is None, "there is no micro-batch"),
        (run["algorithm.filter_groups.enable"], "groups are filtered by their rewards"),
        (run.entry == "one_step_off", "one_step_off_policy generates one rollout ahead"),
        (run.entry == FULLY_ASYNC, "fully_async trains what is generated first"),
        (run["data.gen_batch_size"] not in (None, run.fetched), "data.gen_batch_size differs from train_batch_size"),
        (run.completions_per_rollout % run.completions_per_step != 0, "the last optimizer step is not whole"),
        (run.share % (run.micro or 1) != 0, "micro-batches are not whole"),
        (run.surrogate in ("geo_mean", "clip_cov", "kl_cov"), f"{run.surrogate} weighs by micro-batch"),
    ):
        if open_:
            raise ValueError(f"left open: {why}")
    return _steps(run, dataset_size, response_tokens)


def _prompt_orders(run: VerlRun, dataset_size: int) -> Iterator[Sequence[int]]:
    """Each epoch's order. Measured: exp_order2 of verl 0.9.1 with torchdata."""
    return shuffled_orders(dataset_size, _shuffle_seed(run), draws_before=_draws_before(run))


def _shuffle_seed(run: VerlRun) -> int | None:
    return _seed(run) if run["data.shuffle"] else None


def _draws_before(run: VerlRun) -> int:
    return int(bool(run["data.dataloader_num_workers"]))


def own_rollouts(reading: Reading) -> Callable[[], Iterator[Sequence[int]]] | None:
    """The function that gives the prompts of every rollout of an unwrapped run, which travels by pickle; None where the
    settings leave them open."""
    run, size = getattr(reading, "run", None), reading.dataset_size
    if not isinstance(run, VerlRun) or size is None or run.entry == FULLY_ASYNC:
        return None
    if run["data.gen_batch_size"] not in (None, run[PROMPTS]) or run.native.get("data.sampler.class_path"):
        return None
    return functools.partial(shuffled_rollouts, size, run[PROMPTS], _shuffle_seed(run), draws_before=_draws_before(run))


def _steps(run: VerlRun, dataset_size: int, tokens: Mapping[tuple[int, int], int]) -> Iterator[NativeStep]:
    replicas, share, micro = run.replicas or 1, run.share or 1, run.micro or 1
    block, per_rank = run.completions_per_rollout // replicas, run.world // replicas

    def deal(rows: Sequence[PromptAndSample]) -> Iterator[list[tuple[int, Sequence[PromptAndSample]]]]:
        for cut in range(0, block, share):
            starts = [(rank, rank * block + cut + at) for rank in range(replicas) for at in range(0, share, micro)]
            yield [(rank * per_rank, rows[start : start + micro]) for rank, start in starts]

    rollouts, limit = run["trainer.total_epochs"] * (dataset_size // run.fetched), run["trainer.total_training_steps"]
    number = rollouts if limit is None else min(rollouts, limit)
    planned = rollouts_of(_prompt_orders(run, dataset_size), run.fetched, dataset_size, number)
    weight = functools.partial(_weight, run)
    return dealt_steps(planned, tokens, group=run[GROUP], passes=run[EPOCHS], deal=deal, weight=weight)


def _weight(run: VerlRun, length: int, total: int, local: list[int]) -> Fraction | None:
    """Weight of one token: the formulas above, in numbers."""
    if not length:
        return Fraction(0)
    aggregation, constant = aggregation_of(run), run[f"{ACTOR}loss_scale_factor"]
    if aggregation == "token_sum":
        return Fraction(1)
    if not run.legacy:
        if aggregation == "sequence_sum_over_constant" and constant is None:
            return None  # the padded width of a micro-batch
        rows = run.completions_per_step
        divisors = {"token_mean": total, "sequence_mean": rows * length, "sequence_sum": rows}
        return Fraction(1, divisors.get(aggregation, rows * (constant or 1)))
    replicas, micro_batches = run.replicas or 1, (run.share or 1) // (run.micro or 1)
    outer = replicas * micro_batches
    if aggregation == "token_mean":
        return Fraction(1, outer * sum(local))
    if aggregation == "sequence_sum_over_constant":
        return None  # differs by version: see LEGACY_FORMULAS
    if 0 in local:
        return None  # fully masked sequences: 0 / 0 before 0.6.1, left out of the mean since
    rows = outer * len(local)
    return Fraction(1, rows * length if aggregation == "sequence_mean" else rows)
