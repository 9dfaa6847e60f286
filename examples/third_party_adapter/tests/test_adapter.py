"""The contract that every adapter keeps; needs no torch."""

from __future__ import annotations

from batchbridge import Source, Spec
from batchbridge.kit import (
    Advantage,
    Carried,
    Context,
    Horizon,
    Loss,
    LossTerm,
    MicroBatch,
    Objective,
    OptimizerStep,
    Order,
    Rollout,
    Topology,
)
from batchbridge.testing import AdapterContract, InvalidCase, ValidCase
from pocketgrpo_batchbridge.config import KEYS, RULES, PocketAdapter

MEANING = Spec(
    topology=Topology(world_size=1),
    rollout=Rollout(prompts_per_rollout=6, completions_per_prompt=4),
    optimizer_step=OptimizerStep(completions_per_step=12),
    loss=Loss(policy=LossTerm(aggregation="token_mean")),
    horizon=Horizon(epochs=1.0),
    micro_batch=MicroBatch(completions_per_device=4),
    advantage=Advantage(epsilon=1e-6, ddof=1),
    order=Order(seed=0, last_optimizer_step="error"),
    objective=Objective(
        surrogate="ppo",
        ratio_level="token",
        clip_low=0.2,
        clip_high=0.2,
        old_logprobs="rollout_start",
        kl_placement="none",
        kl_coefficient=0.0,
        entropy_coefficient=0.0,
        nonfinite_step="apply",
    ),
    carried=Carried(
        learning_rate=0.05,
        lr_schedule="constant",
        optimizer="sgd",
        weight_decay=0.0,
        max_gradient_norm=0.0,
        precision="fp32",
    ),
)
"""What the first case means, written down from pocketgrpo's own documentation: no adapter was asked."""
CONTEXT = Context(framework_version="1.0", world_size=1, dataset_size=24)


class TestPocketAdapter(AdapterContract):
    adapter_class = PocketAdapter
    framework_modules = ("torch", "pocketgrpo")
    unknown_version = "99.0"
    written_version = "1.0"
    rules = RULES
    meanings = (
        ({"average": "sequence"}, {"loss.policy.aggregation": "sequence_mean"}),
        (
            {"groups": None, "samples": None, "updates": None, "lr": None},
            {
                "rollout.prompts_per_rollout": 4,
                "optimizer_step.completions_per_step": 16,
                "carried.learning_rate": 0.01,
            },
        ),
    )
    refused_otherwise = ("verify", "other_settings", "step_may_span")
    valid = (
        ValidCase(
            name="some settings",
            source=Source(values={"groups": 6, "samples": 4, "updates": 2, "lr": 0.05}),
            context=CONTEXT,
            spec=MEANING,
            source_has_world_size=True,  # it trains on one device
        ),
        ValidCase(
            name="all settings",
            source=Source(
                values={**{row.key: row.default for row in KEYS}, "average": "sequence", "reuse": 2, "seed": 7}
            ),
            context=CONTEXT,
            source_has_world_size=True,
        ),
    )
    invalid = (
        InvalidCase(
            name="uneven", source=Source(values={"groups": 3, "updates": 5}), context=CONTEXT, codes=("BB-POCKET-010",)
        ),
        InvalidCase(name="a stranger", source=Source(values={"grops": 3}), context=CONTEXT, codes=("BB-POCKET-004",)),
        InvalidCase(name="no number", source=Source(values={"micro": "x"}), context=CONTEXT, codes=("BB-POCKET-005",)),
        InvalidCase(
            name="two devices",
            source=Source(values={"groups": 4}),
            context=Context(framework_version="1.0", world_size=2),
            codes=("BB-POCKET-003",),
        ),
    )
    foreign = (Source(values={"per_device_train_batch_size": 4, "num_generations": 8}),)
    unwritable = (
        PocketAdapter().read(valid[0].source, CONTEXT).spec.replace(**{"order.last_rollout": "pad"}),  # type: ignore[union-attr]
    )
