"""Utilisations of one run by several ways to count, and what shares of a step leave for MFU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pdtlib.figures.parts import Part, marker
from pdtlib.figures.theme import NARROW, axis, layout
from pdtlib.figures.words import say
from pdtlib.plan.units import percent_text

WAYS = {
    "mfu": Part("mfu", "c1"),
    "chosen": Part("chosen", "c3", "/"),
    "hardware": Part("hardware", "c2", "."),
}
PARTS = {
    "communication": Part("communication", "c2", "/"),
    "bubble": Part("bubble", "c4", "x"),
    "slow": Part("slow", "c5", "."),
    "mfu": Part("mfu", "c1"),
}


@dataclass(frozen=True)
class Way:
    """One way to count: its name, the utilisation, and which of :data:`WAYS` it is drawn as."""

    name: str
    share: float
    kind: str = "mfu"


@dataclass(frozen=True)
class Step:
    """A step whose parts (keys of :data:`PARTS`, shares of the step) add up to 1."""

    name: str
    parts: dict[str, float]


def utilisations(ways: Sequence[Way], *, best_share: float | None) -> dict[str, Any]:
    """A bar for each way to count; a line where the best measured matrix product lies."""
    top = max(1e-9, *(way.share for way in ways), best_share or 0.0)
    return {
        "data": [
            {
                "type": "bar",
                "orientation": "h",
                "x": [100 * way.share],
                "y": [way.name],
                "marker": marker(WAYS[way.kind]),
                "text": [percent_text(way.share)],
                "textposition": "outside",
                "textfont": {"color": "@ink"},
                "cliponaxis": False,
                "hoverinfo": "text",
                "hovertext": [say("mfu.hover", way=way.name, share=percent_text(way.share))],
            }
            for way in ways
        ],
        "layout": layout(
            height=60 + 38 * len(ways),
            barmode="overlay",
            bargap=0.3,
            meta={NARROW: {"xaxis.range": [0, 140 * top]}},
            xaxis=axis(say("mfu.axis"), range=[0, 118 * top], ticksuffix=" %", nticks=6),
            yaxis=axis(autorange="reversed", showgrid=False),
            shapes=[_line(100 * best_share)] if best_share else [],
        ),
    }


def steps(rows: Sequence[Step], *, wanted_mfu: float) -> dict[str, Any]:
    """A stacked bar for each step: useful time first, then what is lost; a line at the MFU asked for."""
    return {
        "data": [
            {
                "type": "bar",
                "orientation": "h",
                "x": [100 * row.parts[name] for row in rows],
                "y": [row.name for row in rows],
                "marker": marker(PARTS[name]),
                "hoverinfo": "text",
                "hovertext": [
                    say(
                        "bands.hover",
                        row=row.name,
                        part=say(f"bands.part_{name}"),
                        share=percent_text(row.parts[name]),
                    )
                    for row in rows
                ],
                "textposition": "none",
            }
            for name in ("mfu", "slow", "bubble", "communication")
        ],
        "layout": layout(
            height=80 + 46 * len(rows),
            barmode="stack",
            bargap=0.35,
            meta={NARROW: {"xaxis.nticks": 4}},
            xaxis=axis(say("bands.axis"), range=[0, 100], ticksuffix=" %", nticks=6),
            yaxis=axis(autorange="reversed", showgrid=False),
            shapes=[_line(100 * wanted_mfu)],
        ),
    }


def _line(at: float) -> dict[str, Any]:
    line = {"color": "@bad", "width": 2, "dash": "dash"}
    return {"type": "line", "xref": "x", "yref": "paper", "x0": at, "x1": at, "y0": 0, "y1": 1, "line": line}
