"""One step of training as one bar: what its time is spent on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pdtlib.figures.amounts import time_words
from pdtlib.figures.parts import Part, marker
from pdtlib.figures.theme import NARROW, axis, layout
from pdtlib.figures.words import say

PARTS = (
    Part("compute", "c1"),
    Part("bubble", "c5", "x"),
    Part("dp", "c2", "/"),
    Part("tp", "c3", "."),
    Part("pp", "c4", "-"),
    Part("cp", "c6", "|"),
    Part("ep", "muted", "\\"),
)


def figure(seconds: Mapping[str, float]) -> dict[str, Any]:
    """A stacked bar of the seconds of each of :data:`PARTS`, as far as they are there."""
    whole = sum(seconds.values())
    return {
        "data": [
            {
                "type": "bar",
                "orientation": "h",
                "x": [seconds[part.name]],
                "y": [""],
                "marker": marker(part),
                "hoverinfo": "text",
                "hovertext": [
                    say(
                        "step.hover",
                        part=say(f"step.{part.name}"),
                        amount=time_words(seconds[part.name]),
                        share=f"{seconds[part.name] / whole:.1%}",
                    )
                ],
                "textposition": "none",
            }
            for part in PARTS
            if seconds[part.name] > 0
        ],
        "layout": layout(
            height=118,
            barmode="stack",
            bargap=0.2,
            meta={NARROW: {"xaxis.nticks": 4}},
            xaxis=axis(say("step.axis"), range=[0, whole]),
            yaxis=axis(showgrid=False, showticklabels=False),
        ),
    }
