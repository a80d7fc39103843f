"""The ring all-reduce as a grid: a row a rank, a column a chunk, the arrows of the step just made."""

from __future__ import annotations

from typing import Any

from pdtlib.figures.theme import axis, layout
from pdtlib.figures.words import say
from pdtlib.plan.ring import holdings, transfers


def start_value(rank: int) -> int:
    """What a rank has in every chunk before the exchange."""
    return rank + 1


def figure(ranks: int, steps: int) -> dict[str, Any]:
    """The grid after ``steps`` steps; a cell's depth is the share of ranks in it, its number their sum."""
    held = holdings(ranks, steps)
    shares = [[len(chunk) / ranks for chunk in row] for row in held]
    values = [[sum(map(start_value, chunk)) for chunk in row] for row in held]
    cells = [(rank, chunk) for rank in range(ranks) for chunk in range(ranks)]
    texts = [_text(values[rank][chunk], len(held[rank][chunk]) == ranks) for rank, chunk in cells]
    hover = [
        [
            say(
                "ring.cell",
                rank=rank,
                chunk=chunk,
                value=values[rank][chunk],
                ranks=", ".join(map(str, sorted(held[rank][chunk]))),
            )
            for chunk in range(ranks)
        ]
        for rank in range(ranks)
    ]
    grid = {
        "type": "heatmap",
        "z": shares,
        "zmin": 0,
        "zmax": 1,
        "colorscale": [[0, "@grid"], [0.999, "@c1"], [1, "@c3"]],
        "showscale": False,
        "opacity": 0.45,
        "xgap": 3,
        "ygap": 3,
        "hoverinfo": "text",
        "text": hover,
    }
    numbers = {
        "type": "scatter",
        "mode": "text",
        "x": [chunk for _, chunk in cells],
        "y": [rank for rank, _ in cells],
        "text": texts,
        "textfont": {"color": "@ink", "size": 14 if ranks <= 6 else 11},
        "hoverinfo": "skip",
    }
    names: dict[str, Any] = {"tickmode": "array", "tickvals": list(range(ranks)), "showgrid": False}
    return {
        "data": [grid, numbers],
        "layout": layout(
            height=96 + 44 * ranks,
            xaxis=axis(
                ticktext=[say("ring.tick_chunk", chunk=chunk) for chunk in range(ranks)],
                side="top",
                range=[-0.5, ranks - 0.5],
                **names,
            ),
            yaxis=axis(
                ticktext=[say("ring.tick_rank", rank=rank) for rank in range(ranks)],
                range=[ranks - 0.5, -0.72],
                **names,
            ),
            annotations=[arrow for move in _moves(ranks, steps) for arrow in _arrow(ranks, *move)],
        ),
    }


def _text(value: int, complete: bool) -> str:
    return f"<b>{value}</b> ✓" if complete else str(value)


def _moves(ranks: int, steps: int) -> list[tuple[int, int]]:
    return [(move.sender, move.chunk) for move in transfers(ranks, steps - 1)] if steps else []


def _arrow(ranks: int, sender: int, chunk: int) -> list[dict[str, Any]]:
    """An arrow down from the sender's cell to the next; the last rank's enters the first row from above."""
    right = chunk + 0.32
    line = {
        "arrowhead": 2,
        "arrowsize": 1.1,
        "arrowwidth": 2,
        "arrowcolor": "@c2",
        "showarrow": True,
        "text": "",
    }
    frame = {"xref": "x", "yref": "y", "axref": "x", "ayref": "y"}
    if sender < ranks - 1:
        return [{**line, **frame, "x": right, "ax": right, "y": sender + 0.72, "ay": sender + 0.12}]
    out = {**line, **frame, "x": right, "ax": right, "y": ranks - 0.52, "ay": ranks - 0.95}
    return [out, {**line, **frame, "x": right, "ax": right, "y": -0.28, "ay": -0.7}]
