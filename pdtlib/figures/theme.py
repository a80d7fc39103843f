"""Colours and common layout of every figure.

A figure's dict names its colours by tokens, ``"@c1"`` to ``"@c6"`` for series and ``"@ink"``, ``"@muted"``,
``"@grid"``, ``"@paper"``, ``"@good"``, ``"@bad"`` for the rest. The site resolves them in the browser for the
reader's theme (``explore/front/figure.js``, from the same values in ``explorer.css``); elsewhere
:func:`resolve` does. No figure tells things apart by colour alone: series also differ in pattern and carry
their names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LIGHT: Mapping[str, str] = {
    "c1": "#2a6fbb",
    "c2": "#c8641b",
    "c3": "#2b8a6b",
    "c4": "#8557a8",
    "c5": "#9a7d0a",
    "c6": "#c0436e",
    "ink": "#323232",
    "muted": "#5f6670",
    "grid": "#e3e6ea",
    "paper": "#ffffff",
    "good": "#1f7a4d",
    "bad": "#b3261e",
}
DARK: Mapping[str, str] = {
    "c1": "#6aa9ee",
    "c2": "#f0995a",
    "c3": "#5cc3a0",
    "c4": "#b995dc",
    "c5": "#d9bc4a",
    "c6": "#ee86ab",
    "ink": "#ced6dd",
    "muted": "#9ca4af",
    "grid": "#363d46",
    "paper": "#14181e",
    "good": "#63c795",
    "bad": "#ff8a80",
}
FONT = '-apple-system, BlinkMacSystemFont, "Segoe UI", "Helvetica Neue", Arial, sans-serif'


def axis(title: str = "", /, **more: Any) -> dict[str, Any]:
    """An axis in the book's style: fixed range (a page can be scrolled over a figure), quiet grid."""
    style = {
        "fixedrange": True,
        "zeroline": False,
        "gridcolor": "@grid",
        "linecolor": "@muted",
        "tickfont": {"size": 12},
        "automargin": True,
    }
    if title:
        style["title"] = {"text": title, "standoff": 8, "font": {"size": 12}}
    return {**style, **more}


def layout(*, height: int, **more: Any) -> dict[str, Any]:
    """A layout in the book's style: transparent; title and legend stand in HTML beside the figure."""
    style = {
        "height": height,
        "margin": {"l": 8, "r": 12, "t": 12, "b": 8},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": FONT, "size": 12, "color": "@ink"},
        "hoverlabel": {
            "bgcolor": "@paper",
            "bordercolor": "@muted",
            "font": {"color": "@ink", "family": FONT},
        },
        "showlegend": False,
        "dragmode": False,
    }
    return {**style, **more}


NARROW = "narrow"
"""Key of a layout's or trace's ``meta``: what replaces parts of it, by dotted path, on a phone's screen."""
PICK = "pick"
"""Key of ``layout["meta"]``: the control that a click on the figure sets, to the point's ``customdata``."""


def resolve(figure: Any, colors: Mapping[str, str] = LIGHT) -> Any:
    """The figure with its colour tokens replaced; raises KeyError for an unknown token."""
    if isinstance(figure, str):
        return colors[figure[1:]] if figure.startswith("@") else figure
    if isinstance(figure, dict):
        return {name: resolve(value, colors) for name, value in figure.items()}
    if isinstance(figure, list | tuple):
        return [resolve(value, colors) for value in figure]
    return figure
