"""A run that fails and restarts: what it has done over time; below, its cost at other intervals of saving."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pdtlib.figures.parts import heading
from pdtlib.figures.theme import axis, layout
from pdtlib.figures.words import say
from pdtlib.plan.reliability import Run
from pdtlib.plan.units import HOUR_S, percent_text

MINUTE_S = 60.0


def figure(
    run: Run, *, curve: Sequence[tuple[float, float]], chosen_s: float, best_s: float
) -> dict[str, Any]:
    """``curve`` gives intervals in seconds with the expected extra time, a share of the work."""
    hours, done, failed = progress(run)
    minutes = [interval / MINUTE_S for interval, _ in curve]
    lost = [100 * share for _, share in curve]
    lines = [
        _line(chosen_s / MINUTE_S, "@c2", "solid"),
        _line(best_s / MINUTE_S, "@c3", "dash"),
    ]
    end = run.wall_s / HOUR_S
    return {
        "data": [
            {
                "type": "scatter",
                "mode": "lines",
                "x": [0, end],
                "y": [0, end],
                "line": {"color": "@muted", "width": 2, "dash": "dot"},
                "hoverinfo": "skip",
            },
            {
                "type": "scatter",
                "mode": "lines",
                "x": hours,
                "y": done,
                "line": {"color": "@c1", "width": 2},
                "hoverinfo": "skip",
            },
            {
                "type": "scatter",
                "mode": "markers",
                "x": [hour for hour, _, _ in failed],
                "y": [had for _, had, _ in failed],
                "marker": {"color": "@bad", "symbol": "x", "size": 8},
                "hoverinfo": "text",
                "hovertext": [
                    say("failures.hover", hour=f"{hour:.1f}", lost=f"{lost_h * 60:.0f}")
                    for hour, _, lost_h in failed
                ],
            },
            {
                "type": "scatter",
                "mode": "lines",
                "x": minutes,
                "y": lost,
                "xaxis": "x2",
                "yaxis": "y2",
                "line": {"color": "@c2", "width": 3},
                "hoverinfo": "text",
                "hovertext": [
                    say("failures.hover_curve", minutes=f"{minute:.3g}", extra=percent_text(share / 100))
                    for minute, share in zip(minutes, lost, strict=True)
                ],
            },
        ],
        "layout": layout(
            height=470,
            margin={"l": 8, "r": 12, "t": 28, "b": 8},
            xaxis=axis(say("failures.axis_hours"), anchor="y", range=[0, end]),
            yaxis=axis(domain=[0.6, 1.0], rangemode="tozero", ticksuffix=" h", nticks=5),
            xaxis2=axis(say("failures.axis_interval"), anchor="y2", type="log", nticks=6, tickformat=".3~g"),
            yaxis2=axis(domain=[0.0, 0.3], ticksuffix=" %", nticks=4, range=[0, 4 * min(lost)], anchor="x2"),
            shapes=lines,
            annotations=[heading(say("failures.run"), y=1.0), heading(say("failures.curve"), y=0.31)],
        ),
    }


def progress(run: Run) -> tuple[list[float], list[float], list[tuple[float, float, float]]]:
    """Hours and work done at the turns of the curve; of each failure the hour, the work then, what is lost.

    Saves are left out of the curve: it goes straight from one failure to the next.
    """
    hours, done, failed = [0.0], [0.0], []
    kept = 0.0
    for before, event in zip((None, *run.events), run.events, strict=False):
        if event.kind == "work":
            kept += event.end_s - event.start_s
        elif event.kind == "lost":
            span = event.end_s - event.start_s
            start, at = event.start_s / HOUR_S, event.end_s / HOUR_S
            hours += [start, at, at]
            done += [kept / HOUR_S, (kept + span) / HOUR_S, kept / HOUR_S]
            failed.append((at, (kept + span) / HOUR_S, span / HOUR_S))
        elif event.kind == "restart" and before is not None:
            hours.append(event.end_s / HOUR_S)
            done.append(kept / HOUR_S)
    hours.append(run.wall_s / HOUR_S)
    done.append(kept / HOUR_S)
    return hours, done, failed


def _line(at: float, color: str, dash: str) -> dict[str, Any]:
    line = {"color": color, "width": 2, "dash": dash}
    return {
        "type": "line",
        "xref": "x2",
        "yref": "y2 domain",
        "x0": at,
        "x1": at,
        "y0": 0,
        "y1": 1,
        "line": line,
    }
