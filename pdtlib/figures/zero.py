"""The ZeRO stages side by side: what one GPU holds, and below, what it sends in a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pdtlib.figures.amounts import gb_words
from pdtlib.figures.parts import STATE_PARTS, Part, bars, capacity_line, heading, totals
from pdtlib.figures.theme import NARROW, axis, layout
from pdtlib.figures.words import say
from pdtlib.plan.states import StateBytes
from pdtlib.plan.units import GB

SENT = Part("sent", "c4", "-")


def figure(
    held: Sequence[StateBytes], sent_bytes: Sequence[float], *, capacity_bytes: float
) -> dict[str, Any]:
    """One bar a stage, from 0 on; ``held`` and ``sent_bytes`` are per GPU, ``sent_bytes`` per step."""
    stages = [say(f"stage.{stage}") for stage in range(len(held))]
    traces = [_state_bars(part, held, stages) for part in STATE_PARTS]
    wholes = [states.total for states in held]
    traces.append(totals(wholes, stages, [gb_words(whole) for whole in wholes]))
    below = {"xaxis": "x2", "yaxis": "y2"}
    hover = [
        say("zero.hover_sent", stage=stage, amount=gb_words(sent))
        for stage, sent in zip(stages, sent_bytes, strict=True)
    ]
    traces.append(bars(SENT, sent_bytes, stages, hover=hover, **below))
    traces.append(totals(sent_bytes, stages, [gb_words(sent) for sent in sent_bytes], **below))
    longest = max(capacity_bytes, *wholes) / GB
    most = max(1e-3, *sent_bytes) / GB
    return {
        "data": traces,
        "layout": layout(
            height=430,
            barmode="stack",
            bargap=0.35,
            margin={"l": 8, "r": 12, "t": 28, "b": 8},
            meta={NARROW: {"xaxis.range": [0, 1.55 * longest], "xaxis2.range": [0, 1.55 * most]}},
            xaxis=axis(range=[0, 1.2 * longest], anchor="y"),
            yaxis=axis(domain=[0.56, 1.0], autorange="reversed", showgrid=False),
            xaxis2=axis(range=[0, 1.2 * most], anchor="y2"),
            yaxis2=axis(domain=[0.0, 0.36], autorange="reversed", showgrid=False),
            shapes=[capacity_line(capacity_bytes)],
            annotations=[heading(say("zero.held"), y=1.0), heading(say("zero.sent"), y=0.37)],
        ),
    }


def _state_bars(part: Part, held: Sequence[StateBytes], stages: Sequence[str]) -> dict[str, Any]:
    values = [float(getattr(states, part.name)) for states in held]
    name = say(f"state.{part.name}")
    hover = [
        say("zero.hover", stage=stage, part=name, amount=gb_words(value))
        for stage, value in zip(stages, values, strict=True)
    ]
    return bars(part, values, stages, hover=hover)
