"""Workers over time: a lane each, with what it computes, what it waits, and how old its gradients were."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from typing import Any

from pdtlib.figures.parts import Part, marker
from pdtlib.figures.theme import axis, layout
from pdtlib.figures.words import say
from pdtlib.plan.reliability import Update, Updates

COMPUTE = Part("compute", "c1")
STALE = Part("stale", "c2", "/")
WAIT = Part("wait", "grid")
PARTS = (COMPUTE, STALE, WAIT)
EPSILON = 1e-9


def figure(run: Updates, *, workers: int, until_s: float, step_s: float = 1.0) -> dict[str, Any]:
    """Lanes up to ``until_s``; ``step_s`` is the unit of the axis.

    A gradient is striped where others had changed the model since its worker read it. Work that is not over
    at the right edge is not drawn.
    """
    lanes: dict[int, list[Update]] = defaultdict(list)
    for update in run.updates:
        if update.done_s <= until_s + EPSILON:
            lanes[update.worker].append(update)
    computed = [update for worker in range(workers) for update in lanes[worker]]
    waits = [wait for worker in range(workers) for wait in _waits(worker, lanes[worker], until_s)]
    fresh = [update for update in computed if not update.staleness]
    stale = [update for update in computed if update.staleness]
    names = [say("workers.lane", worker=worker) for worker in range(workers)]
    return {
        "data": [
            _bars(WAIT, waits, [say("workers.hover_wait", worker=w) for w, _, _ in waits], step_s),
            *(
                _bars(
                    part,
                    [(u.worker, u.start_s, u.done_s) for u in updates],
                    [_hover(u, step_s) for u in updates],
                    step_s,
                )
                for part, updates in ((COMPUTE, fresh), (STALE, stale))
            ),
        ],
        "layout": layout(
            height=90 + 26 * workers,
            barmode="overlay",
            bargap=0.25,
            xaxis=axis(say("workers.axis"), range=[0, until_s / step_s], nticks=9),
            yaxis=axis(
                autorange="reversed",
                showgrid=False,
                type="category",
                categoryorder="array",
                categoryarray=names,
            ),
        ),
    }


def _waits(worker: int, updates: list[Update], until_s: float) -> list[tuple[int, float, float]]:
    """The spans between a worker's gradients in which it computes nothing."""
    spans = []
    for update, later in pairwise(updates):
        if later.start_s > update.done_s + EPSILON:
            spans.append((worker, update.done_s, later.start_s))
    if updates and updates[-1].applied_s > updates[-1].done_s + EPSILON:
        spans.append((worker, updates[-1].done_s, min(until_s, updates[-1].applied_s)))
    return spans


def _bars(
    part: Part, spans: list[tuple[int, float, float]], hover: list[str], step_s: float
) -> dict[str, Any]:
    return {
        "type": "bar",
        "orientation": "h",
        "y": [say("workers.lane", worker=worker) for worker, _, _ in spans],
        "base": [start / step_s for _, start, _ in spans],
        "x": [(end - start) / step_s for _, start, end in spans],
        "marker": marker(part),
        "hoverinfo": "text",
        "hovertext": hover,
        "textposition": "none",
    }


def _hover(update: Update, step_s: float) -> str:
    return say(
        "workers.hover",
        worker=update.worker,
        start=f"{update.start_s / step_s:g}",
        end=f"{update.done_s / step_s:g}",
        applied=f"{update.applied_s / step_s:g}",
        staleness=update.staleness,
    )
