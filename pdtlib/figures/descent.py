"""Descent on a parabola whose gradients come late: the distance from the minimum, update by update."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pdtlib.figures.theme import axis, layout
from pdtlib.figures.words import say

DASHES = ("solid", "dash", "dot")
COLORS = ("@c1", "@c2", "@c3")


def figure(curves: Mapping[int, Sequence[float]]) -> dict[str, Any]:
    """``curves`` gives, by delay, x after 0, 1, ... updates; up to three of them."""
    traces = [
        {
            "type": "scatter",
            "mode": "lines",
            "x": list(range(len(curve))),
            "y": list(curve),
            "line": {"color": color, "width": 3, "dash": dash},
            "hoverinfo": "text",
            "hovertext": [
                say("descent.hover", delay=delay, update=n, x=f"{x:.3g}") for n, x in enumerate(curve)
            ],
        }
        for (delay, curve), color, dash in zip(curves.items(), COLORS, DASHES, strict=False)
    ]
    names = [
        {
            "xref": "paper",
            "yref": "paper",
            "x": 0.02 + 0.34 * index,
            "y": 1.0,
            "xanchor": "left",
            "yanchor": "bottom",
            "showarrow": False,
            "font": {"size": 12, "color": color},
            "text": say("descent.name", line=say(f"descent.{dash}"), delay=delay),
        }
        for index, (delay, color, dash) in enumerate(zip(curves, COLORS, DASHES, strict=False))
    ]
    largest = max(abs(x) for curve in curves.values() for x in curve)
    return {
        "data": traces,
        "layout": layout(
            height=300,
            margin={"l": 8, "r": 12, "t": 28, "b": 8},
            xaxis=axis(say("descent.axis_updates")),
            yaxis=axis(say("descent.axis_x"), range=[-1.05 * largest, 1.05 * largest], zeroline=True),
            annotations=names,
        ),
    }
