"""A run's sizes as lanes, one above the other: rollout, optimizer steps, devices, micro-batches.

Each lane is one box of the lane above, as wide as the picture: the completions of a rollout are cut into steps, those
of a step into devices, those of a device into micro-batches. Sizes alone are drawn, so that a run of any size fits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from batchbridge.meaning.spec import Spec
from batchbridge.render.findings import count, number
from batchbridge.render.pictures import DEVICES, GAP, LINE, PALE, PALETTE, UNTRAINED, Picture
from batchbridge.render.words import say

WIDE, NARROW = 1080, 336
"""Pixels: for a page on a screen, and for one on a telephone."""
HEIGHT, MARGIN = 34, 2
"""Pixels of a box, and beside the lanes."""
_NARROWEST = 26
"""Pixels of a box that has words."""


@dataclass(frozen=True)
class PlanLane:
    """One lane.

    name: `optimizer steps`. text: what it holds, with its number. boxes: how many there are. each: completions in one
    box; None: not said. palette: the boxes' colours.
    """

    name: str
    text: str
    boxes: int
    each: float | None
    palette: tuple[str, ...]
    zooms: bool = True
    """Whether it shows one box of the lane above it; else all of them."""


def lanes_of(spec: Spec, derived: Mapping[str, Any]) -> Iterator[PlanLane]:
    """The lanes of a specification, as far as it says their sizes."""
    rollout, step = spec.rollout, spec.optimizer_step
    prompts, group, size = rollout.prompts_per_rollout, rollout.completions_per_prompt, step.completions_per_step
    if prompts is None:
        streamed = say("prompts are streamed, {completions} each", completions=_each(group))
        yield PlanLane(say("rollout"), streamed, 1, None, (UNTRAINED,))
    else:
        sizes = {"prompts": count(prompts, "prompt"), "group": number(group), "total": _each(prompts * group)}
        made = say("{prompts} x {group} = {total}", **sizes)
        spanned = Fraction(size, prompts * group) if size and group else Fraction(0)
        if spanned > 1 and step.step_may_span in ("none", "rollout"):
            yield PlanLane(say("rollout"), made, prompts, group, (UNTRAINED,))
            room = say(
                "1 step, which has room for {number} completions and trains on this rollout's", number=number(size)
            )
            yield PlanLane(say("optimizer steps"), room, 1, prompts * group, PALETTE, zooms=False)
            return
        if spanned > step.passes_per_rollout > 0:
            rollouts = -(-spanned.numerator // (spanned.denominator * step.passes_per_rollout))
            for_one = say("{number} for one step, {rollout}", number=rollouts, rollout=made)
            yield PlanLane(say("rollouts"), for_one, rollouts, prompts * group, (UNTRAINED,))
        else:
            yield PlanLane(say("rollout"), made, prompts, group, (UNTRAINED,))
    if size is None:
        return
    per_rollout = derived.get("optimizer_steps_per_rollout")
    passes = ""
    if step.passes_per_rollout != 1:
        passes = say(" in {passes}", passes=count(step.passes_per_rollout, "pass", "passes"))
    steps = 1 if per_rollout is None or per_rollout < 1 else -int(-per_rollout // 1)
    said = count(steps if per_rollout is None or per_rollout < 1 else per_rollout, "step")
    each_step = say("{steps}{passes}, {completions} each", steps=said, passes=passes, completions=_each(size))
    yield PlanLane(say("optimizer steps"), each_step, steps, size, PALETTE, zooms=False)
    replicas, each = spec.topology.data_parallel_size, derived.get("completions_per_device_per_step")
    if replicas.denominator != 1 or each is None:
        return
    shared = spec.topology.world_size // replicas.numerator
    on = number(replicas.numerator)
    if shared > 1:
        on = say("{replicas} of {number} devices", replicas=count(replicas.numerator, "replica"), number=shared)
    of_step = say("{devices}, {completions} each in a step", devices=on, completions=_each(each))
    yield PlanLane(say("devices"), of_step, replicas.numerator, each, DEVICES)
    micro, turns = spec.micro_batch, derived.get("gradient_accumulation_steps")
    if micro.completions_per_device and turns is not None:
        boxes, size = max(-int(-turns // 1), 1), micro.completions_per_device
        on = say("{number} on a device, {completions} each", number=number(boxes), completions=_each(size))
        yield PlanLane(say("micro-batches"), on, boxes, size, (DEVICES[0], UNTRAINED))
    elif micro.tokens_per_device:
        budget = say("as many as {number} tokens hold", number=number(micro.tokens_per_device))
        yield PlanLane(say("micro-batches"), budget, 1, None, DEVICES[:1])


def breadth(spec: Spec | None) -> int:
    """The completions of a rollout, which the width of the lanes stands for; 1 where they are not known."""
    return (None if spec is None else spec.completions_per_rollout) or 1


def lanes_picture(lanes: tuple[PlanLane, ...], width: int = WIDE, share: float = 1.0) -> str:
    """The lanes, `width` pixels wide. share: of this, what the boxes take: pictures of two runs have one scale so."""
    picture = Picture("; ".join(f"{lane.name}: {lane.text}" for lane in lanes))
    room, picture.y = width - 2 * MARGIN, 0
    inside = max(round(room * share), _NARROWEST)
    above: tuple[float, float] | None = None
    for lane in lanes:
        top, beside = picture.y, MARGIN + 8 * len(lane.name) + 10
        fits = beside + 6.4 * len(lane.text) <= room
        picture.y += LINE if fits else 2 * LINE - 6
        if above is not None and lane.zooms:
            left, right = above
            ends = [(left, top - LINE + 8), (right, top - LINE + 8), (MARGIN + inside, picture.y), (MARGIN, picture.y)]
            picture.area(ends, PALE)
        picture.text(MARGIN, top + LINE - 8, lane.name, size=13, weight="bold")
        picture.text(beside if fits else MARGIN, picture.y - 8, lane.text, size=12)
        above = _draw(picture, lane, inside)
        picture.y += HEIGHT + LINE - 2
    picture.y -= LINE - 6
    return picture.svg()


def _draw(picture: Picture, lane: PlanLane, inside: int) -> tuple[float, float]:
    """The boxes of a lane; where they are too many, the first ones and a box for the rest. The first one's ends."""
    most = max((inside + GAP) // (_NARROWEST + GAP), 2)
    shown = lane.boxes if lane.boxes <= most else most - 2
    rest = lane.boxes - shown
    parts = shown + (2 if rest else 0)
    wide = (inside - GAP * (parts - 1)) / parts
    label = "" if lane.each is None else number(lane.each)
    for place in range(shown):
        left = MARGIN + place * (wide + GAP)
        picture.box(left, picture.y, wide, HEIGHT, lane.palette[place % len(lane.palette)])
        if 7 * len(label) < wide:
            picture.text(left + wide / 2, picture.y + HEIGHT / 2 + 4, label, size=12, anchor="middle")
    if rest:
        left = MARGIN + shown * (wide + GAP)
        picture.box(left, picture.y, 2 * wide + GAP, HEIGHT, UNTRAINED)
        picture.text(left + wide + GAP / 2, picture.y + HEIGHT / 2 + 4, f"+{number(rest)}", size=11, anchor="middle")
    return MARGIN, MARGIN + wide


def _each(completions: float) -> str:
    return count(completions, "completion")
