"""Shares of a typical step, rank by rank, as bars that add up to the step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pdtlib.figures.parts import Part, marker
from pdtlib.figures.theme import NARROW, axis, layout
from pdtlib.figures.words import say
from pdtlib.plan.units import percent_text

PARTS = (
    Part("compute", "c1"),
    Part("exposed", "c2", "/"),
    Part("bubble", "c4", "x"),
    Part("data", "c3", "."),
    Part("other", "muted", "-"),
)


def figure(ranks: Mapping[int, Mapping[str, float]]) -> dict[str, Any]:
    """``ranks`` gives the share of each of :data:`PARTS`, by rank."""
    names = [say("dashboard.lane", rank=rank) for rank in ranks]
    return {
        "data": [
            {
                "type": "bar",
                "orientation": "h",
                "x": [100 * shares[part.name] for shares in ranks.values()],
                "y": names,
                "marker": marker(part),
                "hoverinfo": "text",
                "hovertext": [
                    say(
                        "dashboard.hover",
                        rank=rank,
                        part=say(f"dashboard.part_{part.name}"),
                        share=percent_text(shares[part.name]),
                    )
                    for rank, shares in ranks.items()
                ],
                "textposition": "none",
            }
            for part in PARTS
        ],
        "layout": layout(
            height=90 + 28 * len(ranks),
            barmode="stack",
            bargap=0.3,
            meta={NARROW: {"xaxis.nticks": 4}},
            xaxis=axis(say("dashboard.axis"), range=[0, 100], ticksuffix=" %", nticks=6),
            yaxis=axis(autorange="reversed", showgrid=False),
        ),
    }
