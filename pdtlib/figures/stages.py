"""The memory of a pipeline's stages, each a bar of its terms, beside what a GPU has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pdtlib.figures.amounts import gb_words
from pdtlib.figures.parts import STATE_PARTS, Part, bars, capacity_line, totals
from pdtlib.figures.theme import NARROW, axis, layout
from pdtlib.figures.words import say
from pdtlib.plan.units import GB

PARTS = (
    *STATE_PARTS,
    Part("activations", "c4", "x"),
    Part("logits", "c6", "|"),
    Part("buffers", "c5", "-"),
    Part("framework", "muted", "\\"),
)


def figure(stages: Sequence[Mapping[str, float]], *, capacity_bytes: float) -> dict[str, Any]:
    """A row for each stage; ``stages[i]`` has the bytes of each of :data:`PARTS` on one of its ranks."""
    labels = [say("schedule.stage", stage=stage) for stage in range(len(stages))]
    wholes = [sum(stage[part.name] for part in PARTS) for stage in stages]
    traces = [
        bars(
            part,
            [stage[part.name] for stage in stages],
            labels,
            hover=[
                say(
                    "stages.hover",
                    stage=label,
                    part=say(f"stages.{part.name}"),
                    amount=gb_words(stage[part.name]),
                )
                for label, stage in zip(labels, stages, strict=True)
            ],
        )
        for part in PARTS
        if any(stage[part.name] for stage in stages)
    ]
    traces.append(totals(wholes, labels, [gb_words(whole) for whole in wholes]))
    longest = max(capacity_bytes, *wholes) / GB
    return {
        "data": traces,
        "layout": layout(
            height=70 + (34 if len(stages) <= 8 else 24) * len(stages),
            barmode="stack",
            bargap=0.28,
            meta={NARROW: {"xaxis.range": [0, 1.5 * longest], "xaxis.nticks": 4}},
            xaxis=axis(say("memory.axis"), range=[0, 1.2 * longest]),
            yaxis=axis(autorange="reversed", showgrid=False, type="category"),
            shapes=[capacity_line(capacity_bytes)],
        ),
    }
