"""Which layers of the model each pipeline stage holds: a strip for each stage, one shade a chunk."""

from __future__ import annotations

from typing import Any

from pdtlib.figures.theme import NARROW, axis, layout
from pdtlib.figures.words import say
from pdtlib.plan.chunks import split_layers
from pdtlib.plan.schedule import Layout

SHADES = (1.0, 0.6, 0.35, 0.2)
HALF = 0.36  # half of a strip's height


def runs(layout: Layout, layers: int) -> list[list[range]]:
    """The layers of each rank's chunks, ``[rank][chunk]``, counted from 0, by the plan's own rule.

    >>> [[run.start + 1, run.stop] for run in runs(Layout(stages=4, chunks=2), 48)[0]]
    [[1, 6], [25, 30]]
    """
    pieces = split_layers(layers, layout.length)
    return [
        [pieces[layout.position(rank, chunk)] for chunk in range(layout.chunks)]
        for rank in range(layout.stages)
    ]


def words(layout: Layout, layers: int, rank: int) -> str:
    """A rank's layers in words, counted from 1.

    >>> words(Layout(stages=4, chunks=2), 48, 1)
    '7–12, 31–36'
    """
    texts = []
    for run in runs(layout, layers)[rank]:
        texts.append(f"{run.start + 1}–{run.stop}" if len(run) > 1 else str(run.stop))
    return ", ".join(texts)


def figure(places: Layout, layers: int) -> dict[str, Any]:
    """The strips as a figure of their own."""
    stages = places.stages
    return {
        "data": traces(places, layers, xaxis="x", yaxis="y"),
        "layout": layout(
            height=32 * stages + 56,
            hovermode="closest",
            xaxis=axis(say("schedule.axis_layer"), range=[0.5, layers + 0.5], showgrid=False),
            yaxis=axis(
                say("schedule.axis_stage"),
                range=[stages - 0.5, -0.5],
                tickvals=list(range(stages)),
                showgrid=False,
            ),
            meta={NARROW: {"yaxis.title.text": ""}},
        ),
    }


def traces(places: Layout, layers: int, *, xaxis: str, yaxis: str) -> list[dict[str, Any]]:
    """The strips, one filled path a chunk, with the words of each on hovering."""
    found: list[dict[str, Any]] = []
    by_rank = runs(places, layers)
    for chunk in range(places.chunks):
        x: list[float | None] = []
        y: list[float | None] = []
        for rank in range(places.stages):
            run = by_rank[rank][chunk]
            left, right = run.start + 0.5, run.stop + 0.5
            x += [left, right, right, left, left, None]
            y += [rank - HALF, rank - HALF, rank + HALF, rank + HALF, rank - HALF, None]
        found.append(
            {
                "type": "scatter",
                "mode": "lines",
                "x": x[:-1],
                "y": y[:-1],
                "fill": "toself",
                "fillcolor": "@c4",
                "line": {"color": "@paper", "width": 1},
                "opacity": SHADES[min(chunk, len(SHADES) - 1)],
                "hoverinfo": "skip",
                "xaxis": xaxis,
                "yaxis": yaxis,
                "name": f"layers@{chunk}",
            }
        )
    cells = [(rank, chunk) for rank in range(places.stages) for chunk in range(places.chunks)]
    centre = [(by_rank[rank][chunk].start + by_rank[rank][chunk].stop + 1) / 2 for rank, chunk in cells]
    found.append(
        {
            "type": "scatter",
            "mode": "markers",
            "x": centre,
            "y": [rank for rank, _ in cells],
            "marker": {"opacity": 0, "size": 18},
            "hoverinfo": "text",
            "hovertext": [
                say(
                    "schedule.hover_layers",
                    stage=rank,
                    chunk=chunk,
                    first=by_rank[rank][chunk].start + 1,
                    last=by_rank[rank][chunk].stop,
                )
                for rank, chunk in cells
            ],
            "xaxis": xaxis,
            "yaxis": yaxis,
        }
    )
    return found
