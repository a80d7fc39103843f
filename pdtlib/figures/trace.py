"""What each rank did in a stretch of time: a lane for what it did, and one for messages under way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pdtlib.figures.amounts import time_words
from pdtlib.figures.parts import Part, marker
from pdtlib.figures.theme import axis, layout
from pdtlib.figures.words import say
from pdtlib.plan.intervals import union
from pdtlib.plan.overlap import Span

PARTS = (
    Part("compute", "c1"),
    Part("optimizer", "c3", "."),
    Part("data", "c4", "x"),
    Part("wait", "c2", "/"),
    Part("communication", "muted", "-"),
)
"""In the order in which they are drawn: a wait inside a pass covers the pass."""

MS = 1e3


def figure(ranks: Mapping[int, Sequence[Span]]) -> dict[str, Any]:
    """Spans by rank, with times in seconds; the earliest one is at 0."""
    origin_s = min(span.start_s for spans in ranks.values() for span in spans)
    end_s = max(span.end_s for spans in ranks.values() for span in spans)
    return {
        "data": [_bars(part, ranks, origin_s) for part in PARTS],
        "layout": layout(
            height=70 + 56 * len(ranks),
            barmode="overlay",
            bargap=0.25,
            xaxis=axis(say("trace.axis"), range=[0, 1.01 * MS * (end_s - origin_s)]),
            yaxis=axis(
                autorange="reversed",
                showgrid=False,
                categoryorder="array",
                categoryarray=[_lane(rank, sends) for rank in sorted(ranks) for sends in (False, True)],
            ),
        ),
    }


def _lane(rank: int, sends: bool) -> str:
    return say("trace.lane_sends" if sends else "trace.lane", rank=rank)


def _bars(part: Part, ranks: Mapping[int, Sequence[Span]], origin_s: float) -> dict[str, Any]:
    lanes, starts, lengths, hovers = [], [], [], []
    for rank, spans in sorted(ranks.items()):
        mine = [(s.start_s, s.end_s) for s in spans if s.lane.partition(" ")[0] == part.name]
        for start_s, end_s in union(mine):
            lanes.append(_lane(rank, part.name == "communication"))
            starts.append(MS * (start_s - origin_s))
            lengths.append(MS * (end_s - start_s))
            took = time_words(end_s - start_s)
            hovers.append(say("trace.hover", rank=rank, part=say(f"trace.part_{part.name}"), took=took))
    return {
        "type": "bar",
        "orientation": "h",
        "y": lanes,
        "base": starts,
        "x": lengths,
        "marker": marker(part),
        "hoverinfo": "text",
        "hovertext": hovers,
        "textposition": "none",
    }
