"""Keys of a configuration down the page, verdicts across it: a mark where they meet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pdtlib.figures.theme import NARROW, axis, layout
from pdtlib.figures.words import say
from pdtlib.plan.lint import Verdict

STYLES = {
    "ok": ("@good", "circle"),
    "deprecated": ("@c5", "diamond"),
    "ignored": ("@muted", "circle-open"),
    "unknown": ("@c2", "triangle-up"),
    "rejected": ("@bad", "x"),
}
"""Verdicts from the harmless to the fatal, each with colour and symbol."""


def key_words(key: str) -> str:
    """A key as the reader sees it; verdicts without one are on the file as a whole."""
    return key or say("lint.whole")


def figure(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """One row a verdict, in the order of the file."""
    names = list(STYLES)
    rows = list(range(len(verdicts)))
    return {
        "data": [
            {
                "type": "scatter",
                "mode": "markers",
                "x": [names.index(verdict.verdict) for verdict in verdicts],
                "y": rows,
                "marker": {
                    "size": 13,
                    "color": [STYLES[verdict.verdict][0] for verdict in verdicts],
                    "symbol": [STYLES[verdict.verdict][1] for verdict in verdicts],
                    "line": {"width": 2, "color": [STYLES[verdict.verdict][0] for verdict in verdicts]},
                },
                "hoverinfo": "text",
                "hovertext": [
                    say("lint.hover", name=key_words(verdict.key), verdict=say(f"lint.{verdict.verdict}"))
                    for verdict in verdicts
                ],
            }
        ],
        "layout": layout(
            height=70 + 24 * len(verdicts),
            meta={NARROW: {"xaxis.tickangle": -60, "yaxis.tickfont.size": 10}},
            xaxis=axis(
                range=[-0.5, len(names) - 0.5],
                tickvals=list(range(len(names))),
                ticktext=[say(f"lint.{name}") for name in names],
                side="top",
            ),
            yaxis=axis(
                range=[len(verdicts) - 0.5, -0.5],
                tickvals=rows,
                ticktext=[key_words(verdict.key.rpartition(".")[2]) for verdict in verdicts],
            ),
        ),
    }
