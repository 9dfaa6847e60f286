"""Figures over optimizer steps as static SVG, drawn by Vega-Lite (vl-convert, of the extra `html`).

A chart is a line for the mean, and a band from the least to the largest value where they differ. Its colours are CSS
variables of the page, so that it follows light and dark; a table of the same numbers stands beside it. A dashed line
marks a step at which the run was resumed, or the first one in which two runs differ. Of two runs the second is dashed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from itertools import count
from typing import Any

import vl_convert

from batchbridge.ledger.summary import Figure, FigureRange

WIDTH, HEIGHT = 344, 180
"""Pixels of a chart; as many fit on a telephone."""
VEGA_LITE = "5.20"
"""The version of Vega-Lite that draws; vl-convert has several."""
_AXIS = {"labelColor": "var(--soft)", "titleColor": "var(--soft)", "gridColor": "var(--rule)", "domain": False}
_AXIS |= {"ticks": False, "labelFontSize": 11, "titleFontSize": 11, "titleFontWeight": 400, "labelPadding": 6}
_ROOT = re.compile(r"<svg [^>]*viewBox=\"([^\"]+)\"[^>]*>")
_ROLES = re.compile(r" (?:role|aria-roledescription|aria-label|aria-hidden)=\"[^\"]*\"")


Points = Sequence[tuple[int, int, FigureRange]]
"""A figure as (first step, last step, range)."""


def over_steps(
    of: Figure, points: Points, resumed: Sequence[int] = (), *, other: Points = (), differs: int | None = None
) -> str:
    """A chart of a figure, with its title for the accessible name, its unit at the axis, and a line at each step at
    which the run was `resumed`. other: the figure of a second run. differs: the first step in which the two differ."""
    values = [{"step": (first + last) / 2, **one._asdict()} for first, last, one in points]
    ranges = [one for _, _, one in (*points, *other)]
    begin = min(first for first, _, _ in (*points, *other))
    end = max(last for _, last, _ in (*points, *other))
    least, most = min(one.least for one in ranges), max(one.most for one in ranges)
    x = {
        "field": "step",
        "type": "quantitative",
        "title": "optimizer step",
        "axis": {"grid": False, **_whole(begin, end)},
    }
    # An axis from 0 leaves the values room to differ where their spread is at least a tenth of the largest.
    near_zero = most <= 0 or most - least >= most / 10 or most == least
    scale: dict[str, Any] = {"zero": near_zero, "nice": True, **({"domain": [0, 1]} if least == most == 0 else {})}
    whole = all(one.least == int(one.least) and one.most == int(one.most) for one in ranges)
    tiny = 0 < max(abs(least), abs(most)) < 1e-3  # else the axis is nothing but zeros
    axis = _whole(0, max(most, 1)) if whole and least >= 0 and most < 10 else {"tickCount": 4}
    axis |= {"format": ".1e"} if tiny else {}
    y: dict[str, Any] = {"type": "quantitative", "title": of.axis, "scale": scale, "axis": axis}
    mark = {"type": "line", "color": "var(--accent)", "strokeWidth": 1.6}
    if len(values) == 1:
        mark = {"type": "point", "color": "var(--accent)", "filled": True, "size": 60}
    band = {"type": "area", "color": "var(--accent)", "opacity": 0.18}
    layers: list[dict[str, Any]] = [{"mark": mark, "encoding": {"x": x, "y": {**y, "field": "mean"}}}]
    if other:
        second = [{"step": (first + last) / 2, "mean": one.mean} for first, last, one in other]
        dashed = {**mark, "color": "var(--bad)", "strokeDash": [5, 3]}
        layers.append({"data": {"values": second}, "mark": dashed, "encoding": {"x": x, "y": {**y, "field": "mean"}}})
    elif any(one.least != one.most for one in ranges):
        both = {"x": x, "y": {**y, "field": "least"}, "y2": {"field": "most"}}
        layers.insert(0, {"mark": band, "encoding": both})
    at_steps = resumed if differs is None else (differs,)
    if marked := [step for step in at_steps if begin <= step <= end]:
        line = {"type": "rule", "color": "var(--soft)", "strokeDash": [4, 3]}
        at = {"field": "step", "type": "quantitative"}
        layers.append({"data": {"values": [{"step": step} for step in marked]}, "mark": line, "encoding": {"x": at}})
    spec = {
        "$schema": f"https://vega.github.io/schema/vega-lite/v{VEGA_LITE.partition('.')[0]}.json",
        "width": WIDTH,
        "height": HEIGHT,
        "background": None,
        "autosize": {"type": "fit", "contains": "padding"},
        "padding": 4,
        "data": {"values": values},
        "layer": layers,
        "config": {"axis": _AXIS, "view": {"stroke": None}, "font": "system-ui, sans-serif"},
    }
    svg = vl_convert.vegalite_to_svg(spec, vl_version=VEGA_LITE, allowed_base_urls=[])
    # One picture with one name: what is inside it stands in the table.
    what = "resumed at" if differs is None else "they differ from"
    ends = f"; {what} {', '.join(map(str, marked))}" if marked else ""
    runs = " of two runs" if other else ""
    name = escape(f"{of.title}, {of.unit}, over optimizer steps {begin} to {end}{runs}{ends}")
    head = f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="{_box(svg)}"><title>{name}</title>'
    return _ROOT.sub(lambda _: head, _ROLES.sub("", svg), count=1)


def _whole(least: float, most: float) -> dict[str, Any]:
    """The properties of an axis of whole numbers: at most six ticks, each at another one, 1, 2 or 5 x 10^n apart."""
    sizes = (size * 10**power for power in count() for size in (1, 2, 5))
    apart = next(size for size in sizes if (most - least) / size <= 5)
    first = -(-int(least) // apart) * apart
    return {"values": list(range(first, int(most) + 1, apart)), "format": ",d"}


def _box(svg: str) -> str:
    found = _ROOT.search(svg)
    assert found is not None, "vl-convert draws an SVG with a viewBox"
    return found[1]
