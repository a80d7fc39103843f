"""Days of training against the number of GPUs: a curve for this utilisation, the bound, the target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pdtlib.figures.theme import NARROW, axis, layout
from pdtlib.figures.words import say
from pdtlib.plan.flops import training_seconds
from pdtlib.plan.units import DAY_S, percent_text


def figure(
    flops: float, *, gpus: int, counts: Sequence[int], peak_flops: float, mfu: float, target_days: float
) -> dict[str, Any]:
    """Two lines over ``counts`` GPUs on logarithmic axes, a point at ``gpus``, a dash at the target."""
    here = _days(flops, gpus, peak_flops, mfu)
    lowest = min(_days(flops, counts[-1], peak_flops, 1.0), target_days)
    highest = max(_days(flops, counts[0], peak_flops, mfu), target_days)
    point = {
        "type": "scatter",
        "mode": "markers",
        "x": [gpus],
        "y": [here],
        "marker": {"color": "@c1", "size": 13, "line": {"color": "@paper", "width": 2}},
        "hoverinfo": "text",
        "hovertext": [say("time.hover", gpus=gpus, mfu=percent_text(mfu, digits=0), days=here)],
    }
    goal = {"color": "@bad", "width": 2, "dash": "dash"}
    return {
        "data": [
            _curve(flops, counts, peak_flops, 1.0, {"color": "@muted", "width": 2, "dash": "dot"}),
            _curve(flops, counts, peak_flops, mfu, {"color": "@c1", "width": 3}),
            point,
        ],
        "layout": layout(
            height=320,
            meta={NARROW: {"xaxis.dtick": 2}},
            xaxis=axis(say("time.axis_gpus"), type="log", tickformat=",", dtick=1, tickangle=0),
            yaxis=axis(
                say("time.axis_days"),
                type="log",
                tickformat=",~r",
                dtick=1,
                # Powers of ten around everything: no logarithm, whose last digit differs between machines.
                range=[_floor_power(lowest), _ceiling_power(highest)],
            ),
            shapes=[
                {
                    "type": "line",
                    "xref": "paper",
                    "x0": 0,
                    "x1": 1,
                    "y0": target_days,
                    "y1": target_days,
                    "line": goal,
                }
            ],
        ),
    }


def _days(flops: float, gpus: int, peak_flops: float, mfu: float) -> float:
    return training_seconds(flops, num_gpus=gpus, peak_flops=peak_flops, mfu=mfu) / DAY_S


def _curve(
    flops: float, counts: Sequence[int], peak_flops: float, mfu: float, line: dict[str, Any]
) -> dict[str, Any]:
    days = [_days(flops, count, peak_flops, mfu) for count in counts]
    share = percent_text(mfu, digits=0)
    return {
        "type": "scatter",
        "mode": "lines",
        "x": list(counts),
        "y": days,
        "line": line,
        "hoverinfo": "text",
        "hovertext": [
            say("time.hover", gpus=count, mfu=share, days=value)
            for count, value in zip(counts, days, strict=True)
        ],
    }


def _floor_power(value: float) -> int:
    power = 0
    while value < 10.0**power:
        power -= 1
    while value >= 10.0 ** (power + 1):
        power += 1
    return power


def _ceiling_power(value: float) -> int:
    power = _floor_power(value)
    return power if value == 10.0**power else power + 1
