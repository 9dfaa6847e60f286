"""Draws the pictures of the pages, from the same code that plans and weighs: `python docs/make_pictures.py`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from batchbridge import Plan, Spec
from batchbridge.meaning.spec import Horizon, LossTerm, MicroBatch, OptimizerStep, Order, Rollout, Topology
from batchbridge.meaning.spec import Loss as LossOf
from batchbridge.meaning.weights import Row, token_weights
from batchbridge.playground.fragments import same_picture
from batchbridge.playground.same_number import same_number
from batchbridge.render.pictures import CELL, GAP, LEFT, LINE, PALE, PALETTE, Picture, plan_picture

FOLDER = Path(__file__).parent / "pictures"
REAL_RUN = Path(__file__).parents[1] / "tests" / "equivalence" / "real_run.json"
"""Figures of the run that learns; `tests/equivalence/native/real_run.py` measured them."""
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
"""What is called the batch size; completions per prompt; devices."""


def batch_picture() -> str:
    """The same number in five frameworks: a bar for the completions that one optimizer step trains on."""
    rows = same_number(BATCH, GROUP, DEVICES)
    if wrong := [row for row in rows if row.reason or row.completions is None]:
        raise ValueError(wrong)
    return same_picture(rows, BATCH, GROUP, DEVICES)


def weights_picture(lengths: Sequence[int], terms: Mapping[str, LossTerm], micro_batch: int) -> str:
    """One optimizer step's completions, `lengths` tokens each, under several `terms` (by caption): the darker a token,
    the more it weighs. A line parts micro-batches of `micro_batch` completions."""
    picture = Picture("What each token of an optimizer step weighs")
    rows = [Row(tokens=count, group=index, micro_batch=index // micro_batch) for index, count in enumerate(lengths)]
    weights = {caption: token_weights(term, rows) for caption, term in terms.items()}
    for caption, found in weights.items():
        most = max(found)
        picture.heading(caption)
        for index, (count, weight) in enumerate(zip(lengths, found, strict=True)):
            if index and index % micro_batch == 0:
                picture.line([(8, picture.y - 2), (LEFT + max(lengths) * (CELL + 1) + 90, picture.y - 2)], PALE)
                picture.y += 3
            picture.text(8, picture.y + CELL - 3, f"completion {index}: {count} tokens", size=11)
            share = float(weight / most) if most else 0.0
            for token in range(count):
                picture.box(LEFT + token * (CELL + 1), picture.y, CELL, CELL, _grey(share), f"weight {weight}")
            end = LEFT + max(lengths) * (CELL + 1) + GAP
            picture.text(end, picture.y + CELL - 3, f"{weight} each" if count else "nothing", size=11)
            picture.y += CELL + 3
        picture.y += LINE - 4
    return picture.svg()


def clock_picture(plans: Mapping[str, Plan], warmup: int, rollouts: int = 4) -> str:
    """When the learning rate moves, under several `plans` (by caption) with a warm-up of `warmup` ticks: a mark for
    each optimizer step, a line for the learning rate that it applies."""
    picture = Picture("When the learning rate moves")
    space, height = 46, 60
    for caption, plan in plans.items():
        picture.heading(caption)
        inside = dict.fromkeys(range(min(rollouts, plan.total_rollouts)), 0)
        points, ticks, base = [], 0, picture.y + height
        for step in plan.steps():
            if step.rollouts[-1] not in inside:
                break
            inside[step.rollouts[-1]] += 1
            rate, left = min(ticks / warmup, 1.0), float(LEFT + step.index * space)
            points += [(left, base - rate * (height - 16)), (left + space, base - rate * (height - 16))]
            picture.box(left + space / 2 - 4, base - 4, 8, 8, PALETTE[step.rollouts[-1] % len(PALETTE)])
            picture.text(left + space / 2, base + 18, f"step {step.index}", size=10, anchor="middle")
            ticks += step.lr_tick
        picture.line(points)
        picture.text(8, base - height / 2, "learning rate", size=12)
        left = float(LEFT)
        for rollout, steps in inside.items():
            picture.box(left + 2, base + 26, steps * space - 4, CELL, PALETTE[rollout % len(PALETTE)])
            picture.text(left + steps * space / 2, base + 26 + CELL - 3, f"rollout {rollout}", size=10, anchor="middle")
            left += steps * space
        picture.y = base + 26 + CELL + LINE + 6
    return picture.svg()


def rewards_picture(curves: Mapping[str, Mapping[str, Sequence[Sequence[float]]]], captions: Mapping[str, str]) -> str:
    """The mean reward of every rollout over the optimizer steps before it: a line for each run, one part of the picture
    for each mode (by caption). Later lines are drawn thinner, so that those on top of each other are all seen."""
    picture = Picture("The mean reward of each rollout, over optimizer steps")
    width, height = 620, 150
    for mode, caption in captions.items():
        runs = curves[mode]
        picture.heading(caption)
        left, base = float(LEFT), picture.y + height
        last = max(curve[-1][0] for curve in runs.values())
        for value in (0.0, 0.5, 1.0):
            at = base - value * height
            picture.line([(left, at), (left + width, at)], PALE)
            picture.text(left - 10, at + 4, f"{value:g}", size=11, anchor="end")
        for place, (name, curve) in enumerate(runs.items()):
            points = [(left + step / last * width, base - mean * height) for step, mean in curve]
            picture.line(points, PALETTE[place], width=4.5 - 1.7 * place)
            picture.box(left + 110 * place, base + 30, 18, CELL, PALETTE[place])
            picture.text(left + 110 * place + 24, base + 30 + CELL - 3, name, size=12)
        picture.text(left, base + 16, "0", size=11)
        picture.text(left + width, base + 16, f"optimizer step {last}", size=11, anchor="end")
        picture.text(8, base - height / 2, "mean reward", size=12)
        picture.y = base + 30 + CELL + LINE + 6
    return picture.svg()


def _grey(share: float) -> str:
    """White for nothing, dark blue for the most."""
    start, end = (255, 255, 255), (44, 82, 130)
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in zip(start, end, strict=True))


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
        "real_run.svg": rewards_picture(
            json.loads(REAL_RUN.read_text(encoding="utf-8"))["curves"],
            {"enforce": "Wrapped: three frameworks", "observe": "As they are: the same numbers"},
        ),
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
