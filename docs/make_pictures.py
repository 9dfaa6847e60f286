"""Draws the pictures of the pages, from the same code that plans and weighs: `python docs/make_pictures.py`."""

from __future__ import annotations

from pathlib import Path

import batchbridge
from batchbridge import Plan, Spec
from batchbridge.meaning.spec import Horizon, LossTerm, MicroBatch, OptimizerStep, Order, Rollout, Topology
from batchbridge.meaning.spec import Loss as LossOf
from batchbridge.render.pictures import LINE, PALETTE, Picture, clock_picture, plan_picture, weights_picture

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

BATCH, GROUP, DEVICES = 128, 16, 8
"""What is called the batch size in `SAME_BATCH`; completions per prompt; devices."""
MICRO = {f"actor_rollout_ref.{place}_micro_batch_size_per_gpu": 8 for place in ("rollout.log_prob", "ref.log_prob")}
SAME_BATCH = {
    "TRL 1.16": ("trl", "1.16.0", {"per_device_train_batch_size": BATCH, "num_generations": GROUP}),
    "verl 0.9.1": (
        "verl",
        "0.9.1",
        {
            "data.train_batch_size": BATCH,
            "actor_rollout_ref.actor.ppo_mini_batch_size": BATCH,
            "actor_rollout_ref.rollout.n": GROUP,
            "trainer.n_gpus_per_node": DEVICES,
            "algorithm.adv_estimator": "grpo",
            "actor_rollout_ref.rollout.name": "vllm",
            "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 8,
            **MICRO,
        },
    ),
    "EasyR1 0.3.2": (
        "easyr1",
        "0.3.2",
        {
            "worker.actor.global_batch_size": BATCH,
            "data.rollout_batch_size": BATCH,
            "worker.rollout.n": GROUP,
            "trainer.n_gpus_per_node": DEVICES,
        },
    ),
    "OpenRLHF 0.11.2": (
        "openrlhf",
        "0.11.2",
        {"train.batch_size": BATCH, "rollout.n_samples_per_prompt": GROUP, "actor.num_gpus_per_node": DEVICES},
    ),
    "Open-Instruct": (
        "open_instruct",
        "2026.8.20",
        {
            "num_unique_prompts_rollout": BATCH,
            "num_samples_per_prompt_rollout": GROUP,
            "num_learners_per_node": [DEVICES],
        },
    ),
}
"""Name -> framework, version, and a configuration whose first setting is what its users call the batch size."""
COUNTS = {
    "TRL 1.16": "completions on each GPU",
    "verl 0.9.1": "prompts",
    "EasyR1 0.3.2": "prompts",
    "OpenRLHF 0.11.2": "completions",
    "Open-Instruct": "prompts",
}
"""What the 128 of each counts."""


def completions_per_step() -> dict[str, int]:
    """Completions of one optimizer step under each configuration of `SAME_BATCH`, as its adapter reads it."""
    found = {}
    for name, (framework, version, settings) in SAME_BATCH.items():
        reading = batchbridge.read(settings, framework=framework, version=version, world_size=DEVICES)
        if reading.verdict != "valid" or reading.spec is None:
            raise ValueError(f"{name}: {reading.verdict}: {reading.findings}")
        found[name] = int(reading.spec.optimizer_step.completions_per_step or 0)
    return found


def batch_picture() -> str:
    """The same number in five frameworks: a bar for the completions that one optimizer step trains on."""
    picture = Picture(f"The same batch size of {BATCH} in five frameworks: completions per optimizer step")
    picture.heading(
        f"batch size = {BATCH}, {GROUP} completions per prompt, {DEVICES} GPUs: one optimizer step trains on"
    )
    picture.y += 4
    sizes = completions_per_step()
    for number, (name, size) in enumerate(sizes.items()):
        setting = next(iter(SAME_BATCH[name][2])).rpartition(".")[2]
        picture.text(8, picture.y + 12, name, size=13)
        picture.text(8, picture.y + 27, f"{setting}: {COUNTS[name]}", size=11, colour="#555555")
        width = 380 * size / max(sizes.values())
        picture.box(290, picture.y, width, 28, PALETTE[number], f"{name}: {size:,} completions")
        picture.text(298 + width, picture.y + 19, f"{size:,} completions", size=13)
        picture.y += 2 * LINE
    picture.y -= 8
    return picture.svg()


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
        "batch_size.svg": batch_picture(),
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
