"""Backward pass and gradient all-reduce on one time axis; below, the exposed time at other bucket sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pdtlib.figures.amounts import time_words
from pdtlib.figures.parts import Part, heading, marker
from pdtlib.figures.theme import axis, layout
from pdtlib.figures.words import say
from pdtlib.plan.overlap import Overlap, Span

COMPUTE = Part("compute", "c1")
COMMUNICATION = Part("communication", "c2", "/")
LANES = {"compute": COMPUTE, "communication": COMMUNICATION}
MOST_BARS = 48
MS = 1e3


def group_size(num_buckets: int) -> int:
    """Buckets that share a bar, so that a lane has at most 48 bars."""
    return -(-num_buckets // MOST_BARS)


def figure(
    line: Overlap, *, num_buckets: int, curve: Sequence[tuple[str, float]], chosen: int
) -> dict[str, Any]:
    """``curve`` gives bucket sizes in words with their exposed seconds; ``chosen`` is the one of ``line``."""
    names = [name for name, _ in curve]
    exposed = [seconds * MS for _, seconds in curve]
    colors = ["@c2" if index == chosen else "@muted" for index in range(len(curve))]
    bars = {
        "type": "bar",
        "x": names,
        "y": exposed,
        "xaxis": "x2",
        "yaxis": "y2",
        "marker": {"color": colors},
        "hoverinfo": "text",
        "hovertext": [
            say("overlap.hover_curve", bucket=name, exposed=time_words(seconds)) for name, seconds in curve
        ],
    }
    end = line.end_s * MS
    backward = line.backward_s * MS
    wait = {"type": "rect", "xref": "x", "yref": "y domain", "x0": backward, "x1": end, "y0": 0, "y1": 1}
    edge = {**wait, "type": "line", "x1": backward, "line": {"color": "@bad", "width": 2, "dash": "dash"}}
    return {
        "data": [*(_lane(line, lane, num_buckets) for lane in LANES), bars],
        "layout": layout(
            height=420,
            barmode="overlay",
            bargap=0.3,
            margin={"l": 8, "r": 12, "t": 28, "b": 8},
            xaxis=axis(say("overlap.axis_time"), range=[0, 1.02 * end], anchor="y"),
            yaxis=axis(
                domain=[0.62, 1.0],
                autorange="reversed",
                showgrid=False,
                categoryorder="array",
                categoryarray=[say(f"overlap.lane_{lane}") for lane in LANES],
            ),
            xaxis2=axis(anchor="y2", type="category", showgrid=False, tickangle=-45),
            yaxis2=axis(domain=[0.0, 0.3], rangemode="tozero", nticks=4, ticksuffix=" ms"),
            shapes=[{**wait, "fillcolor": "@bad", "opacity": 0.16, "line": {"width": 0}}, edge],
            annotations=[heading(say("overlap.timeline"), y=1.0), heading(say("overlap.curve"), y=0.31)],
        ),
    }


def _lane(line: Overlap, lane: str, num_buckets: int) -> dict[str, Any]:
    spans = [span for span in line.spans if span.lane == lane]
    size = group_size(num_buckets)
    groups = [spans[start : start + size] for start in range(0, len(spans), size)]
    return {
        "type": "bar",
        "orientation": "h",
        "y": [say(f"overlap.lane_{lane}")] * len(groups),
        "base": [group[0].start_s * MS for group in groups],
        "x": [sum(span.end_s - span.start_s for span in group) * MS for group in groups],
        "marker": marker(LANES[lane]),
        "hoverinfo": "text",
        "hovertext": [_hover(group, index * size) for index, group in enumerate(groups)],
        "textposition": "none",
    }


def _hover(group: Sequence[Span], first: int) -> str:
    key = "overlap.bucket_name" if len(group) == 1 else "overlap.bucket_names"
    name = say(key, first=first, last=first + len(group) - 1)
    return say(
        "overlap.hover", name=name, start=time_words(group[0].start_s), end=time_words(group[-1].end_s)
    )
