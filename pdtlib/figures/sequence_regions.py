"""The regions of a Transformer block: which tensor one rank has how, and what it sends and keeps.

Above, a strip of the block's activations: positions run down, features across, and the rank's part is filled.
Below, bytes sent for a layer, and bytes kept for the backward pass, of the ways to cut side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pdtlib.figures.boxes import Box, filled, hidden_axis, label, outline
from pdtlib.figures.parts import Part, heading, marker
from pdtlib.figures.theme import NARROW, axis, layout
from pdtlib.figures.words import say

WHOLE, OWN = Part("whole", "c4", "/"), Part("own", "c1")
REGIONS = ("norm1", "qkv", "core", "add1", "norm2", "mlp", "add2")
WIDTH, GAP, HEIGHT = 10.4, 4.2, 24.0


@dataclass(frozen=True)
class Held:
    """How a rank has a region's tensor: ``whole``, or as ``rows`` (positions) or ``columns`` (features).

    Then it has the ``parts`` of ``of`` equal ones.
    """

    cut: str
    parts: tuple[int, ...] = ()
    of: int = 1


@dataclass(frozen=True)
class Call:
    """A message: behind which region it stands (``inside`` it, for a ring), and its short name."""

    after: str
    short: str
    inside: bool = False


@dataclass(frozen=True)
class Bar:
    """One way to cut: its name, its bytes or None where it is not possible, and how they read."""

    name: str
    value: float | None
    text: str


def figure(
    held: Sequence[Held],
    calls: Sequence[Call],
    *,
    rank: int,
    sent: Sequence[Bar],
    kept: Sequence[Bar],
    chosen: int,
) -> dict[str, Any]:
    """``held`` is in the order of :data:`REGIONS`; ``sent`` and ``kept`` have a bar for each way to cut."""
    boxes = {name: Box(i * (WIDTH + GAP), 0, WIDTH, HEIGHT) for i, name in enumerate(REGIONS)}
    traces = [outline(list(boxes.values()))]
    for name, how in zip(REGIONS, held, strict=True):
        traces += _filled(boxes[name], name, how, rank)
    shapes, labels = _calls(boxes, calls)
    labels += [
        label(say(f"regions.short_{name}"), x=box.middle, y=-3.5, size=11) for name, box in boxes.items()
    ]
    traces += _bars(sent, chosen, axes="2") + _bars(kept, chosen, axes="3")
    most = [max(1.0, *(bar.value or 0.0 for bar in bars)) for bars in (sent, kept)]
    end = len(REGIONS) * (WIDTH + GAP) - GAP
    side = {"autorange": "reversed", "showgrid": False}
    return {
        "data": traces,
        "layout": layout(
            height=620,
            bargap=0.3,
            margin={"l": 8, "r": 12, "t": 28, "b": 8},
            meta={NARROW: {"xaxis2.range": [0, 1.6 * most[0]], "xaxis3.range": [0, 1.6 * most[1]]}},
            xaxis=hidden_axis(-1, end + 1, anchor="y"),
            yaxis=hidden_axis(-7, HEIGHT + 7, domain=[0.68, 1.0], anchor="x"),
            xaxis2=axis(range=[0, 1.25 * most[0]], anchor="y2", showticklabels=False, showgrid=False),
            yaxis2=axis(domain=[0.36, 0.6], **side),
            xaxis3=axis(range=[0, 1.25 * most[1]], anchor="y3", showticklabels=False, showgrid=False),
            yaxis3=axis(domain=[0.0, 0.25], **side),
            shapes=shapes,
            annotations=[
                heading(say("regions.strip"), y=1.0),
                heading(say("regions.sent_bars"), y=0.61),
                heading(say("regions.kept_bars"), y=0.26),
                *labels,
            ],
        ),
    }


def _filled(box: Box, name: str, how: Held, rank: int) -> list[dict[str, Any]]:
    words = {"region": say(f"regions.name_{name}"), "rank": rank}
    if how.cut == "whole":
        hover = say("regions.hover_whole", **words)
        return [filled(box, color=WHOLE.color, pattern=WHOLE.pattern, hover=hover)]
    cut = box.rows if how.cut == "rows" else box.columns
    hover = say(f"regions.hover_{how.cut}", **words, share=f"{len(how.parts)}/{how.of}")
    return [filled(cut(part, part + 1, how.of), color=OWN.color, hover=hover) for part in how.parts]


def _calls(boxes: dict[str, Box], calls: Sequence[Call]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """A bar between two regions for each message, or a frame around the region that a ring goes through."""
    shapes, labels = [], []
    for call in calls:
        box = boxes[call.after]
        x = box.middle if call.inside else box.x + box.width + GAP / 2
        half = WIDTH / 2 + 1.2 if call.inside else 0.5
        style: dict[str, Any] = {"fillcolor": "@c2", "line": {"width": 0}}
        if call.inside:
            style = {"line": {"color": "@c2", "width": 3, "dash": "dot"}}
        frame = {"xref": "x", "yref": "y", "x0": x - half, "x1": x + half, "y0": -1.2, "y1": HEIGHT + 1.2}
        shapes.append({"type": "rect", **frame, **style})
        labels.append(label(f"<b>{call.short}</b>", x=x, y=HEIGHT + 4, color="c2", size=11))
    return shapes, labels


def _bars(bars: Sequence[Bar], chosen: int, *, axes: str) -> list[dict[str, Any]]:
    names = [bar.name for bar in bars]
    values = [bar.value or 0.0 for bar in bars]
    place = {"xaxis": f"x{axes}", "yaxis": f"y{axes}"}
    style = marker(OWN)
    style["color"] = ["@c1" if index == chosen else "@muted" for index in range(len(bars))]
    drawn = {
        "type": "bar",
        "orientation": "h",
        "x": values,
        "y": names,
        "marker": style,
        "hoverinfo": "text",
        "hovertext": [f"{bar.name}: {bar.text}" for bar in bars],
        "textposition": "none",
        **place,
    }
    texts = {
        "type": "scatter",
        "mode": "text",
        "x": values,
        "y": names,
        "text": [f" {bar.text}" for bar in bars],
        "textposition": "middle right",
        "textfont": {"color": "@ink"},
        "cliponaxis": False,
        "hoverinfo": "skip",
        **place,
    }
    return [drawn, texts]
