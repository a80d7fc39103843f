"""Tokens a second against the number of GPUs: the batch kept (strong), grown (weak), ideal lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pdtlib.figures.theme import NARROW, axis, layout
from pdtlib.figures.words import say
from pdtlib.plan.planner import Point
from pdtlib.plan.units import count_text, percent_text

STYLES = {
    "strong": {"color": "@c1", "width": 3},
    "weak": {"color": "@c2", "width": 3, "dash": "dash"},
}


def figure(strong: Sequence[Point], weak: Sequence[Point]) -> dict[str, Any]:
    """Two curves with a point for each plan, on logarithmic axes, and what perfect scaling would be.

    Numbers of GPUs without a plan have no point.
    """
    data = []
    for kind, points in (("strong", strong), ("weak", weak)):
        found = [point for point in points if point.plan is not None]
        if found:
            data += [_ideal(found), _curve(kind, found)]
    return {
        "data": data,
        "layout": layout(
            height=340,
            meta={NARROW: {"xaxis.dtick": 2}},
            xaxis=axis(say("scaling.axis_gpus"), type="log", tickformat=",", dtick=1, tickangle=0),
            yaxis=axis(say("scaling.axis_rate"), type="log", tickformat="~s", dtick=1),
        ),
    }


def rows(points: Sequence[Point]) -> list[tuple[str, ...]]:
    """The same as a table: GPUs, layout, tokens a second, MFU, efficiency."""
    return [
        (
            f"{point.gpus:,}",
            layout_text(point),
            count_text(point.plan.tokens_per_s) if point.plan else "",
            percent_text(point.plan.mfu) if point.plan else "",
            percent_text(point.efficiency, digits=0) if point.efficiency is not None else "",
        )
        for point in points
    ]


def layout_text(point: Point) -> str:
    """The plan's degrees in words."""
    if point.plan is None:
        return say("scaling.none")
    parallel = point.plan.job.parallel
    degrees = {axis: getattr(parallel, axis) for axis in ("dp", "tp", "pp", "cp", "ep")}
    return " ".join(f"{axis} {degree}" for axis, degree in degrees.items() if degree > 1) or "dp 1"


def _curve(kind: str, points: Sequence[Point]) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": say(f"scaling.{kind}"),
        "x": [point.gpus for point in points],
        "y": [point.plan.tokens_per_s for point in points if point.plan is not None],
        "line": STYLES[kind],
        "marker": {
            "color": STYLES[kind]["color"],
            "size": 8,
            "symbol": "circle" if kind == "strong" else "square",
        },
        "hoverinfo": "text",
        "hovertext": [_hover(kind, point) for point in points],
    }


def _hover(kind: str, point: Point) -> str:
    assert point.plan is not None
    assert point.efficiency is not None
    return say(
        "scaling.hover",
        kind=say(f"scaling.{kind}"),
        gpus=point.gpus,
        layout=layout_text(point),
        mfu=percent_text(point.plan.mfu),
        efficiency=percent_text(point.efficiency, digits=0),
    )


def _ideal(points: Sequence[Point]) -> dict[str, Any]:
    first = points[0].plan
    assert first is not None
    each = first.tokens_per_s / points[0].gpus
    return {
        "type": "scatter",
        "mode": "lines",
        "x": [points[0].gpus, points[-1].gpus],
        "y": [each * points[0].gpus, each * points[-1].gpus],
        "line": {"color": "@muted", "width": 2, "dash": "dot"},
        "hoverinfo": "skip",
    }
