"""A plan as a picture, and what pictures are drawn with: SVG, one file each, readable without a script.

Colours say which optimizer step, and below it which device; every colour has its number beside it, so that nothing
hangs on seeing them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar
from xml.etree import ElementTree

from batchbridge.meaning.micro_batches import partition
from batchbridge.meaning.plan import Plan, RolloutPlan

PALETTE = ("#9ecae9", "#ffbf79", "#88d27a", "#d6a5c9", "#ff9d98", "#83bcb6", "#d8b5a5", "#d5d5d5")
DEVICES = ("#f7f3e8", "#cfd8dc", "#e8dff5", "#d8e8d0")
"""Colours of optimizer steps, and of devices; light enough for dark words on them."""
INK, PALE, UNTRAINED, TORN = "#222222", "#dddddd", "#ffffff", "#e5706b"
CELL, GAP, LEFT, LINE = 14, 3, 150, 22
"""Pixels: a completion or a token, the space between two, where the drawing begins, and a line of text."""
WIDEST = 1200
"""Pixels of a plan's picture; what is longer goes on in a row below."""

MOST_COMPLETIONS = 512
"""The most completions of a rollout that is drawn: a longer picture shows nobody anything."""


class Picture:
    """An SVG that grows downwards.

    Every shape has a class beside its colour (`c3`: the fourth of PALETTE, `d0`: the first of DEVICES): a page may
    colour it anew.
    """

    def __init__(self, title: str) -> None:
        self._root = ElementTree.Element("svg", xmlns="http://www.w3.org/2000/svg", role="img")
        ElementTree.SubElement(self._root, "title").text = title
        self._width, self.y = LEFT, LINE

    def text(
        self,
        x: float,
        y: float,
        words: str,
        *,
        size: int = 13,
        colour: str = INK,
        anchor: str = "start",
        weight: str = "normal",
    ) -> None:
        """Words that begin (or end, or stand centred) at x, on the base line y."""
        said = {"x": f"{x:g}", "y": f"{y:g}", "font-size": str(size), "fill": colour, "text-anchor": anchor}
        said |= {"class": "ink"} | ({"font-weight": weight} if weight != "normal" else {})
        ElementTree.SubElement(self._root, "text", said).text = words
        self._reach(x + (0.62 * size * len(words) if anchor == "start" else 0))

    def box(
        self, x: float, y: float, width: float, height: float, fill: str, note: str = "", *, kind: str = ""
    ) -> None:
        """A rectangle; `note` shows where a pointer rests. kind: its class, by default its colour's."""
        said = {"x": f"{x:g}", "y": f"{y:g}", "width": f"{width:g}", "height": f"{height:g}", "rx": "2"}
        said |= {"fill": fill, "stroke": INK, "stroke-width": "0.6", "class": kind or _class(fill)}
        made = ElementTree.SubElement(self._root, "rect", said)
        if note:
            ElementTree.SubElement(made, "title").text = note
        self._reach(x + width)

    def line(self, points: Iterable[tuple[float, float]], colour: str = INK, width: float = 1.6) -> None:
        """A polygonal line."""
        path = list(points)
        said = {"points": " ".join(f"{x:g},{y:g}" for x, y in path), "fill": "none", "stroke": colour}
        ElementTree.SubElement(self._root, "polyline", {**said, "stroke-width": f"{width:g}"})
        self._reach(max(x for x, _ in path))

    def area(self, points: Iterable[tuple[float, float]], fill: str) -> None:
        """A polygon without an outline."""
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        ElementTree.SubElement(self._root, "polygon", {"points": path, "fill": fill, "class": _class(fill)})

    def heading(self, words: str) -> None:
        """A line of its own at the left."""
        self.text(8, self.y, words, size=14)
        self.y += LINE

    def svg(self) -> str:
        """The whole file."""
        width, height = self._width + 10, self.y + 4
        self._root.attrib |= {"viewBox": f"0 0 {width:g} {height:g}", "width": f"{width:g}", "height": f"{height:g}"}
        self._root.set("font-family", "Helvetica, Arial, sans-serif")
        ground = ElementTree.Element("rect", {"width": "100%", "height": "100%", "fill": "#ffffff", "class": "ground"})
        self._root.insert(1, ground)
        ElementTree.indent(self._root)
        return ElementTree.tostring(self._root, encoding="unicode") + "\n"

    def _reach(self, x: float) -> None:
        self._width = max(self._width, round(x))


def plan_picture(plan: Plan, rollouts: int = 2, widest: int = WIDEST) -> str:
    """The first `rollouts` rollouts: every completion of every pass in its optimizer step's colour, and below it, in
    the device's colour, where it runs. At most `widest` pixels wide.

    A white completion is generated and never trained.
    """
    picture = Picture("Which optimizer step trains which completion, on which device and in which micro-batch")
    shown = [plan.rollout(index) for index in range(min(rollouts, plan.total_rollouts))]
    steps = _steps_of(plan, {rollout.index for rollout in shown})
    where = _devices(plan, steps)
    room = widest - LEFT - 20
    cells = min(plan.completions_per_prompt, max(room // (CELL + 1), 1))
    width = cells * (CELL + 1) + 2 * GAP
    for rollout in shown:
        picture.heading(f"rollout {rollout.index}, with the weights before step {rollout.generated_at_step}")
        # A prompt's completions, or as many of them as a row has room for.
        placed = list(enumerate(rollout.completions))
        groups = _rows(placed, plan.completions_per_prompt)
        blocks = [block for group in groups for block in _rows(group, cells)]
        for row in _rows(blocks, max(room // width, 1)):
            for number, block in enumerate(row):
                middle = LEFT + number * width + width / 2 - GAP
                picture.text(middle, picture.y - 6, f"{block[0][1][0]}", size=11, anchor="middle")
            picture.text(8, picture.y - 6, "prompt", size=12)
            for turn in range(max(plan.spec.optimizer_step.passes_per_rollout, 1)):
                picture.text(8, picture.y + CELL - 2, f"pass {turn}: step", size=12)
                if where:
                    picture.text(8, picture.y + 2 * CELL - 3, "device.micro-batch", size=11)
                for number, block in enumerate(row):
                    for cell, (place, named) in enumerate(block):
                        left = LEFT + number * width + cell * (CELL + 1)
                        _completion(picture, left, (rollout.index, turn, place), named, steps, where)
                picture.y += (2 * CELL if where else CELL) + 8
            picture.y += LINE - 8
        picture.y += 4
    _legend(picture, shown, steps, where, widest)
    picture.text(8, picture.y, WHERE if where else NOWHERE, size=11)
    picture.y += 8
    return picture.svg()


_IN_LEGEND = 8
"""Steps, and devices, that a legend names one by one."""


def _legend(
    picture: Picture,
    rollouts: Sequence[RolloutPlan],
    steps: Mapping[_Place, int],
    where: Mapping[_Place, tuple[int, int]],
    widest: int,
) -> None:
    """The meaning of a box and its colours: the first steps and devices of what is drawn, as many as fit in rows."""
    drawn = {rollout.index for rollout in rollouts}
    of_steps = sorted({step for at, step in steps.items() if at[0] in drawn})
    of_devices = sorted({device for device, _ in where.values()})
    trained = {(at[0], at[2]) for at in steps}
    untrained = any((one.index, place) not in trained for one in rollouts for place in range(len(one.completions)))
    entries = [(f"step {step}", PALETTE[step % len(PALETTE)]) for step in of_steps[:_IN_LEGEND]]
    entries += [("never trained", UNTRAINED)] * untrained
    entries += [(f"device {device}", DEVICES[device % len(DEVICES)]) for device in of_devices[:_IN_LEGEND]]
    picture.text(8, picture.y, f"A box is a completion{', and below it where it runs' if where else ''}:", size=11)
    picture.y += 6
    left = 8.0
    for words, colour in entries:
        wide = CELL + 6 + 6.6 * len(words) + 2 * GAP
        if left > 8 and left + wide > widest:
            left, picture.y = 8.0, picture.y + CELL + 4
        picture.box(left, picture.y, CELL, CELL, colour)
        picture.text(left + CELL + 6, picture.y + CELL - 4, words, size=11)
        left += wide
    picture.y += CELL + LINE


WHERE = "Devices and micro-batches are those of equally long completions; a run deals them by their lengths."
NOWHERE = "Which device trains a completion depends on how long the completions are."

_Place = tuple[int, int, int]
"""A completion: its rollout, pass, and position in the rollout."""


def _completion(
    picture: Picture,
    left: float,
    at: _Place,
    named: tuple[int, int],
    steps: Mapping[_Place, int],
    where: Mapping[_Place, tuple[int, int]],
) -> None:
    """One completion in one pass: its step, and below it its device and micro-batch."""
    step, place = steps.get(at), where.get(at)
    said = "never trained" if step is None else f"optimizer step {step}"
    said += "" if place is None else f", device {place[0]}, micro-batch {place[1]}"
    colour = UNTRAINED if step is None else PALETTE[step % len(PALETTE)]
    picture.box(left, picture.y, CELL, CELL, colour, f"prompt {named[0]}, sample {named[1]}: {said}")
    if step is not None:
        picture.text(left + CELL / 2, picture.y + CELL - 4, str(step), size=9, anchor="middle")
    if place is not None:
        picture.box(left, picture.y + CELL, CELL, CELL - 4, DEVICES[place[0] % len(DEVICES)])
        words = f"{place[0]}.{place[1]}"
        picture.text(left + CELL / 2, picture.y + 2 * CELL - 7, words, size=7, anchor="middle")


_T = TypeVar("_T")


def _rows(items: Sequence[_T], size: int) -> Iterator[Sequence[_T]]:
    return (items[first : first + size] for first in range(0, len(items), size))


def _devices(plan: Plan, steps: Mapping[_Place, int]) -> dict[_Place, tuple[int, int]]:
    """Device (replica of the model) and micro-batch of each place, for completions of equal length; nothing where a
    token budget or a fractional number of replicas leaves it open."""
    size, replicas = plan.spec.micro_batch.completions_per_device, plan.spec.topology.data_parallel_size
    if not size or replicas.denominator != 1:
        return {}
    found: dict[_Place, tuple[int, int]] = {}
    for index in sorted(set(steps.values())):
        step = plan.step(index)
        places = [(m.rollout, m.pass_index, at) for m, at in zip(step.members, step.positions, strict=True)]
        dealt = partition([1] * len(places), ranks=replicas.numerator, completions_per_device=size)
        for device, micro_batches in enumerate(dealt):
            for number, rows in enumerate(micro_batches):
                found |= {places[row]: (device, number) for row in rows if row is not None}
    return found


def _steps_of(plan: Plan, rollouts: set[int]) -> dict[tuple[int, int, int], int]:
    """(rollout, pass, position) -> optimizer step, of these rollouts."""
    found: dict[tuple[int, int, int], int] = {}
    for step in plan.steps():
        if step.members and min(step.rollouts) > max(rollouts, default=-1):
            break
        for member, position in zip(step.members, step.positions, strict=True):
            if member.rollout in rollouts:
                found[member.rollout, member.pass_index, position] = step.index
    return found


def _class(fill: str) -> str:
    """The name that a page's style knows a colour by."""
    names = {INK: "dark", PALE: "pale", UNTRAINED: "untrained", TORN: "torn"}
    names |= {colour: f"c{place}" for place, colour in enumerate(PALETTE)}
    return (names | {colour: f"d{place}" for place, colour in enumerate(DEVICES)}).get(fill, "shade")
