"""The memory of one GPU, term by term: each term a row, one after the other, and all of them in the last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pdtlib.figures.amounts import gb_words
from pdtlib.figures.parts import STATE_PARTS, Part, bars, capacity_line, totals
from pdtlib.figures.theme import NARROW, axis, layout
from pdtlib.figures.words import say
from pdtlib.plan.units import GB

PARTS = (
    *STATE_PARTS,
    Part("attention", "c4"),
    Part("scores", "c4", "x"),
    Part("mlp", "c5", "-"),
    Part("inputs", "c5"),
    Part("recomputed", "c6", "/"),
    Part("loss", "c6", "|"),
    Part("buffers", "muted", "\\"),
)


def figure(terms: Sequence[tuple[Part, float]], *, capacity_bytes: float) -> dict[str, Any]:
    """Rows for ``terms`` (bytes on one GPU), each starting where the one before ends, and their sum."""
    whole = sum(value for _, value in terms)
    last = say("memory.total")
    traces, start = [], 0.0
    for part, value in terms:
        name = say(f"memory.axis_{part.name}")
        text = say(
            "memory.hover",
            part=say(f"memory.{part.name}"),
            amount=gb_words(value),
            share=f"{value / whole:.1%}",
        )
        trace = bars(part, [value, value], [name, last], hover=[text, text])
        traces.append({**trace, "base": [start / GB, start / GB]})
        start += value
    ends, start = [], 0.0
    for _, value in terms:
        start += value
        ends.append(start)
    labels = [say(f"memory.axis_{part.name}") for part, _ in terms]
    texts = [gb_words(value) for _, value in terms]
    traces.append(totals([*ends, whole], [*labels, last], [*texts, f"<b>{gb_words(whole)}</b>"]))
    longest = max(capacity_bytes, whole) / GB
    return {
        "data": traces,
        "layout": layout(
            height=70 + 34 * (len(terms) + 1),
            barmode="overlay",
            bargap=0.28,
            meta={NARROW: {"xaxis.range": [0, 1.6 * longest], "xaxis.nticks": 4}},
            xaxis=axis(say("memory.axis"), range=[0, 1.2 * longest]),
            yaxis=axis(
                autorange="reversed", showgrid=False, categoryorder="array", categoryarray=[*labels, last]
            ),
            shapes=[capacity_line(capacity_bytes)],
        ),
    }
