"""The GPUs of a cluster as a map: a cell a GPU, nodes side by side, and the groups of one rank picked out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pdtlib.figures.parts import Part, heading, marker
from pdtlib.figures.theme import NARROW, PICK, axis, layout
from pdtlib.figures.words import say
from pdtlib.plan.units import GB

COLORS = {"other": "grid", "replica": "muted", "tp": "c1", "pp": "c2", "dp": "c3", "self": "ink"}
"""What a GPU is to the chosen rank, later entries over earlier ones, and its colour."""
ROW = 64  # GPUs of a row, or a node's if it has more
WORLD = 2048


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """What the rank sends along one axis in a step."""

    axis: str
    sent_bytes: float
    inside: bool  # whether the group lies inside one node


def codes(roles: Mapping[str, Sequence[int]], world_size: int) -> list[int]:
    """For each GPU the place of its role in :data:`COLORS`."""
    found = [0] * world_size
    for code, role in enumerate(COLORS):
        for rank in roles.get(role, ()):
            found[rank] = code
    return found


def figure(
    roles: Mapping[str, Sequence[int]],
    *,
    world_size: int,
    gpus_per_node: int,
    traffic: Sequence[Traffic],
    control: str,
) -> dict[str, Any]:
    """The map, and below it the bytes that the rank sends along each axis.

    ``roles`` names ranks by :data:`COLORS`; a click on a GPU sets ``control`` to its rank.
    """
    width = min(world_size, max(ROW, gpus_per_node))
    rows = -(-world_size // width)
    found = codes(roles, world_size)
    cells: list[list[int | None]] = [
        [found[rank] if rank < world_size else None for rank in range(row * width, (row + 1) * width)]
        for row in range(rows)
    ]
    ranks = [[row * width + column for column in range(width)] for row in range(rows)]
    steps = len(COLORS)
    scale: list[list[float | str]] = []
    for code, color in enumerate(COLORS.values()):
        scale += [[code / steps, f"@{color}"], [(code + 1) / steps, f"@{color}"]]
    cluster = {
        "type": "heatmap",
        "z": cells,
        "customdata": ranks,
        "zmin": -0.5,
        "zmax": steps - 0.5,
        "colorscale": scale,
        "showscale": False,
        "xgap": 1,
        "ygap": 2,
        "meta": {NARROW: {"xgap": 0.3, "ygap": 1}},
        "hoverongaps": False,
        "hovertemplate": say("cube.hover"),
    }
    height, bars, gap = max(90, min(440, 20 * rows)), 34 * len(traffic) + 10, 78
    plot = height + gap + bars
    style = {"type": "line", "xref": "x", "yref": "y", "y0": -0.5, "y1": rows - 0.5}
    line = {"color": "@ink", "width": 1}
    edges = [
        {**style, "x0": x - 0.5, "x1": x - 0.5, "line": line}
        for x in range(gpus_per_node, width, gpus_per_node)
    ]
    every = max(1, rows // 8)
    ticks = list(range(0, rows, every))
    return {
        "data": [cluster, *_bars(traffic)],
        "layout": layout(
            height=plot + 56,
            hovermode="closest",
            margin={"l": 8, "r": 12, "t": 24, "b": 8},
            xaxis=axis(
                say("cube.axis_gpu", nodes=width // gpus_per_node),
                range=[-0.5, width - 0.5],
                showgrid=False,
                showticklabels=False,
                ticks="",
                anchor="y",
            ),
            yaxis=axis(
                domain=[1 - height / plot, 1],
                range=[rows - 0.5, -0.5],
                tickvals=ticks,
                ticktext=[str(row * width) for row in ticks],
                title={"text": say("cube.axis_rank"), "standoff": 8, "font": {"size": 12}},
                showgrid=False,
            ),
            xaxis2=axis(say("cube.axis_sent"), rangemode="tozero", anchor="y2"),
            barmode="overlay",
            yaxis2=axis(domain=[0, bars / plot], range=[len(traffic) - 0.5, -0.5], anchor="x2"),
            annotations=[heading(say("cube.sent"), y=bars / plot)],
            shapes=edges,
            meta={NARROW: {"yaxis.title.text": ""}, PICK: control},
        ),
    }


def _bars(traffic: Sequence[Traffic]) -> list[dict[str, Any]]:
    """A bar for each axis, striped where its bytes leave the node."""
    return [
        {
            "type": "bar",
            "orientation": "h",
            "x": [each.sent_bytes / GB],
            "y": [say(f"cube.short_{each.axis}")],
            "xaxis": "x2",
            "yaxis": "y2",
            "marker": marker(Part(each.axis, COLORS[each.axis], "" if each.inside else "/")),
            "hovertemplate": say("cube.hover_sent"),
        }
        for each in traffic
    ]
