"""Gathers and computation of a forward pass on one time axis; below, the whole time at other depths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pdtlib.figures.amounts import time_words
from pdtlib.figures.overlap import LANES, MS
from pdtlib.figures.parts import heading, marker
from pdtlib.figures.theme import NARROW, axis, layout
from pdtlib.figures.words import say
from pdtlib.plan.overlap import Overlap


def figure(line: Overlap, *, ends_s: Sequence[float], depth: int) -> dict[str, Any]:
    """``ends_s`` are the lengths of the pass at depth 0, 1, ...; ``depth`` is the one of ``line``."""
    names = [depth_words(number) for number in range(len(ends_s))]
    bars = {
        "type": "bar",
        "x": names,
        "y": [seconds * MS for seconds in ends_s],
        "xaxis": "x2",
        "yaxis": "y2",
        "marker": {"color": ["@c1" if number == depth else "@muted" for number in range(len(ends_s))]},
        "text": [time_words(seconds) for seconds in ends_s],
        "textposition": "outside",
        "cliponaxis": False,
        "hoverinfo": "skip",
    }
    lanes = [say(f"overlap.lane_{lane}") for lane in LANES]
    return {
        "data": [*(_lane(line, lane) for lane in LANES), bars],
        "layout": layout(
            height=420,
            barmode="overlay",
            bargap=0.3,
            margin={"l": 8, "r": 12, "t": 28, "b": 8},
            meta={NARROW: {"xaxis2.tickfont.size": 11}},
            xaxis=axis(say("prefetch.axis_time"), range=[0, 1.02 * max(ends_s) * MS], anchor="y"),
            yaxis=axis(
                domain=[0.62, 1.0],
                autorange="reversed",
                showgrid=False,
                categoryorder="array",
                categoryarray=lanes,
            ),
            xaxis2=axis(anchor="y2", type="category", showgrid=False),
            yaxis2=axis(domain=[0.0, 0.3], range=[0, 1.25 * max(ends_s) * MS], nticks=4, ticksuffix=" ms"),
            annotations=[
                heading(say("prefetch.timeline"), y=1.0),
                heading(say("prefetch.other_depths"), y=0.31),
            ],
        ),
    }


def depth_words(depth: int) -> str:
    """How far ahead layers are gathered, in words."""
    return say("prefetch.depth_none" if depth == 0 else "prefetch.depth_text", depth=depth)


def _lane(line: Overlap, lane: str) -> dict[str, Any]:
    spans = [span for span in line.spans if span.lane == lane]
    numbers = [span.name.removeprefix("layer ") for span in spans]
    return {
        "type": "bar",
        "orientation": "h",
        "y": [say(f"overlap.lane_{lane}")] * len(spans),
        "base": [span.start_s * MS for span in spans],
        "x": [(span.end_s - span.start_s) * MS for span in spans],
        "marker": marker(LANES[lane]),
        "text": numbers if len(spans) <= 16 else [""] * len(spans),
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textangle": 0,
        "textfont": {"color": "@paper"},
        "hoverinfo": "text",
        "hovertext": [
            say(
                f"prefetch.hover_{lane}",
                layer=number,
                start=time_words(span.start_s),
                end=time_words(span.end_s),
            )
            for number, span in zip(numbers, spans, strict=True)
        ],
    }
