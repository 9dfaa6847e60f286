"""The contract that every adapter keeps; needs neither torch nor Ray."""

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
from pocketray_batchbridge.config import KEYS, RULES, PocketRayAdapter

MEANING = Spec(
    topology=Topology(world_size=4),
    rollout=Rollout(prompts_per_rollout=6, completions_per_prompt=4),
    optimizer_step=OptimizerStep(completions_per_step=12),
    loss=Loss(policy=LossTerm(aggregation="token_mean")),
    horizon=Horizon(epochs=1.0),
    micro_batch=MicroBatch(completions_per_device=2),
    advantage=Advantage(epsilon=1e-6, ddof=1),
    order=Order(prompt_shuffle="none", last_optimizer_step="error"),
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
"""What the first case means, written down from pocketray's own documentation: no adapter was asked."""
CONTEXT = Context(framework_version="1.0", dataset_size=24)


class TestPocketRayAdapter(AdapterContract):
    adapter_class = PocketRayAdapter
    framework_modules = ("torch", "ray", "pocketray")
    unknown_version = "99.0"
    written_version = "1.0"
    rules = RULES
    meanings = (
        ({"average": "sequence"}, {"loss.policy.aggregation": "sequence_mean"}),
        (
            {"samples": None, "step": None, "workers": None, "lr": None},
            {
                "topology.world_size": 2,
                "optimizer_step.completions_per_step": 8,
                "carried.learning_rate": 0.01,
            },
        ),
    )
    refused_otherwise = ("other_settings", "step_crosses_rollouts")
    valid = (
        ValidCase(
            name="some settings",
            source=Source(values={"prompts": 6, "samples": 4, "step": 12, "workers": 4, "lr": 0.05}),
            context=CONTEXT,
            spec=MEANING,
            source_has_world_size=True,
        ),
        ValidCase(
            name="all settings",
            source=Source(values={**{row.key: row.default for row in KEYS}, "average": "sequence", "passes": 2}),
            context=CONTEXT,
            source_has_world_size=True,
        ),
    )
    invalid = (
        InvalidCase(
            name="uneven steps", source=Source(values={"prompts": 3, "step": 8}), context=CONTEXT, codes=("BB-RAY-010",)
        ),
        InvalidCase(
            name="uneven shares",
            source=Source(values={"step": 8, "workers": 3}),
            context=CONTEXT,
            codes=("BB-RAY-011",),
        ),
        InvalidCase(name="a stranger", source=Source(values={"workrs": 3}), context=CONTEXT, codes=("BB-RAY-004",)),
        InvalidCase(name="no number", source=Source(values={"micro": "x"}), context=CONTEXT, codes=("BB-RAY-005",)),
    )
    foreign = (Source(values={"per_device_train_batch_size": 4, "num_generations": 8}),)
    unwritable = (
        PocketRayAdapter().read(valid[0].source, CONTEXT).spec.replace(**{"order.last_rollout": "pad"}),  # type: ignore[union-attr]
    )
