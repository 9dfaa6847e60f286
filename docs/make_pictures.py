"""Draws the pictures of the pages, from the same code that plans and weighs: `python docs/make_pictures.py`."""

from __future__ import annotations

from pathlib import Path

from batchbridge import Plan, Spec
from batchbridge.meaning.spec import Horizon, LossTerm, MicroBatch, OptimizerStep, Order, Rollout, Topology
from batchbridge.meaning.spec import Loss as LossOf
from batchbridge.render.pictures import clock_picture, plan_picture, weights_picture

FOLDER = Path(__file__).parent / "pictures"
SPEC = Spec(
    topology=Topology(world_size=2),
    rollout=Rollout(prompts_per_rollout=4, completions_per_prompt=4),
    optimizer_step=OptimizerStep(completions_per_step=8, passes_per_rollout=2, rollout_shuffle="groups"),
    micro_batch=MicroBatch(completions_per_device=2),
    loss=LossOf(policy=LossTerm(aggregation="token_mean")),
    horizon=Horizon(epochs=2),
    order=Order(seed=42),
)
LENGTHS = (12, 3, 6, 1)
"""Tokens of the four completions of a step."""


def pictures() -> dict[str, str]:
    """File name -> SVG."""
    by_rollout = SPEC.replace(**{"horizon.lr_tick": "rollout"})
    scopes = {
        "token_mean, counted over the optimizer step: the same for every cut": LossTerm(aggregation="token_mean"),
        "the same, counted over each micro-batch: the cut decides": LossTerm(
            aggregation="token_mean", denominator_scope="micro_batch"
        ),
    }
    kinds = ("token_mean", "sequence_mean", "sequence_sum")
    return {
        "plan.svg": plan_picture(Plan(SPEC, 9)),
        "plan_spanning.svg": plan_picture(
            Plan(
                SPEC.replace(
                    **{
                        "optimizer_step.completions_per_step": 12,
                        "optimizer_step.passes_per_rollout": 1,
                        "optimizer_step.step_may_span": "epoch",
                    }
                ),
                9,
            )
        ),
        "weights.svg": weights_picture(LENGTHS, {kind: LossTerm(aggregation=kind) for kind in kinds}, 2),
        "scopes.svg": weights_picture(LENGTHS, scopes, 2),
        "clock.svg": clock_picture(
            {
                "lr_tick = optimizer_step: eight ticks in two rollouts": Plan(SPEC, 9),
                "lr_tick = rollout: two": Plan(by_rollout, 9),
            },
            warmup=4,
            rollouts=2,
        ),
    }


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in pictures().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
