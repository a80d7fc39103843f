"""Pieces that several figures share: parts of a bar with colour and pattern, and the capacity line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pdtlib.plan.units import GB


@dataclass(frozen=True)
class Part:
    """A part of a stacked bar: the key of its words, its colour token and its pattern."""

    name: str
    color: str
    pattern: str = ""


STATE_PARTS = (Part("params", "c1"), Part("grads", "c2", "/"), Part("optimizer", "c3", "."))


def bars(
    part: Part, values: Sequence[float], labels: Sequence[str], *, hover: Sequence[str], **more: Any
) -> dict[str, Any]:
    """One part of horizontal stacked bars, in GB: a value in bytes for each label."""
    trace = {
        "type": "bar",
        "orientation": "h",
        "x": [value / GB for value in values],
        "y": list(labels),
        "marker": marker(part),
        "hoverinfo": "text",
        "hovertext": list(hover),
        "textposition": "none",
    }
    return {**trace, **more}


def marker(part: Part) -> dict[str, Any]:
    """Colour and pattern of a bar; the pattern is drawn in the page's own colour."""
    style: dict[str, Any] = {"color": f"@{part.color}", "line": {"color": "@paper", "width": 1}}
    if part.pattern:
        style["pattern"] = {
            "shape": part.pattern,
            "fgcolor": "@paper",
            "bgcolor": f"@{part.color}",
            "size": 6,
            "solidity": 0.25,
        }
    return style


def totals(
    values: Sequence[float], labels: Sequence[str], texts: Sequence[str], **more: Any
) -> dict[str, Any]:
    """Texts at the end of horizontal bars whose whole lengths are ``values`` bytes."""
    trace = {
        "type": "scatter",
        "mode": "text",
        "x": [value / GB for value in values],
        "y": list(labels),
        "text": [f" {text}" for text in texts],
        "textposition": "middle right",
        "textfont": {"color": "@ink"},
        "cliponaxis": False,
        "hoverinfo": "skip",
    }
    return {**trace, **more}


def capacity_line(capacity_bytes: float, *, yref: str = "y domain", xref: str = "x") -> dict[str, Any]:
    """A dashed vertical line at the memory of one GPU."""
    at = capacity_bytes / GB
    line = {"color": "@bad", "width": 2, "dash": "dash"}
    return {"type": "line", "xref": xref, "yref": yref, "x0": at, "x1": at, "y0": 0, "y1": 1, "line": line}


def heading(text: str, *, y: float) -> dict[str, Any]:
    """A short heading inside a figure of several rows, at the left edge, above paper height ``y``."""
    place = {"xref": "paper", "yref": "paper", "x": 0, "y": y, "xanchor": "left", "yanchor": "bottom"}
    return {**place, "text": f"<b>{text}</b>", "showarrow": False, "font": {"size": 12, "color": "@ink"}}
