"""Tensors drawn as boxes, with the part that one rank holds filled: shared by the figures of splits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pdtlib.figures.theme import axis


@dataclass(frozen=True)
class Box:
    """A rectangle in figure units: left, bottom, width, height."""

    x: float
    y: float
    width: float
    height: float

    @property
    def middle(self) -> float:
        return self.x + self.width / 2

    @property
    def top(self) -> float:
        return self.y + self.height

    def columns(self, first: int, last: int, of: int) -> Box:
        """The part from column ``first`` to before ``last`` of ``of``."""
        return Box(self.x + self.width * first / of, self.y, self.width * (last - first) / of, self.height)

    def rows(self, first: int, last: int, of: int) -> Box:
        """The part from row ``first`` (from the top) to before ``last`` of ``of``."""
        return Box(self.x, self.top - self.height * last / of, self.width, self.height * (last - first) / of)


def filled(box: Box, *, color: str, hover: str, pattern: str = "") -> dict[str, Any]:
    """A filled rectangle that says what it is; ``color`` is a token without its ``@``."""
    right, top = box.x + box.width, box.top
    style: dict[str, Any] = {"fillcolor": f"@{color}"}
    if pattern:
        style = {
            "fillcolor": f"@{color}",
            "fillpattern": {"shape": pattern, "fgcolor": "@paper", "bgcolor": f"@{color}", "size": 6},
        }
    return {
        "type": "scatter",
        "mode": "lines",
        "x": [box.x, right, right, box.x, box.x],
        "y": [box.y, box.y, top, top, box.y],
        "fill": "toself",
        **style,
        "line": {"color": f"@{color}", "width": 1},
        "hoveron": "fills",
        "hoverinfo": "text",
        "text": hover,
    }


def outline(boxes: Sequence[Box]) -> dict[str, Any]:
    """The outlines of boxes, and of the strips inside them, as one quiet trace."""
    x: list[float | None] = []
    y: list[float | None] = []
    for box in boxes:
        right, top = box.x + box.width, box.top
        x += [box.x, right, right, box.x, box.x, None]
        y += [box.y, box.y, top, top, box.y, None]
    return {
        "type": "scatter",
        "mode": "lines",
        "x": x,
        "y": y,
        "line": {"color": "@muted", "width": 1},
        "hoverinfo": "skip",
    }


def label(
    text: str, *, x: float, y: float, color: str = "ink", size: int = 12, **more: Any
) -> dict[str, Any]:
    """A text of the figure, centred at a place in figure units."""
    place = {"xref": "x", "yref": "y", "x": x, "y": y, "xanchor": "center", "yanchor": "middle"}
    return {**place, "text": text, "showarrow": False, "font": {"size": size, "color": f"@{color}"}, **more}


def hidden_axis(low: float, high: float, **more: Any) -> dict[str, Any]:
    """An axis that only gives units to boxes."""
    return axis(range=[low, high], showgrid=False, showticklabels=False, showline=False, ticks="", **more)
