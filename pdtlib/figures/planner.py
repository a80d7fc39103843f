"""Plans side by side: a step's time by what it is spent on, and the memory of the fullest GPU."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from pdtlib.figures.amounts import gb_words, time_words
from pdtlib.figures.parts import Part, bars, capacity_line, heading, marker
from pdtlib.figures.theme import axis, layout
from pdtlib.figures.words import say
from pdtlib.plan.planner import Plan
from pdtlib.plan.units import GB

COMPUTE = Part("compute", "c1")
BUBBLE = Part("bubble", "c5", "x")
EXPOSED = Part("exposed", "c2", "/")
PARTS = (COMPUTE, BUBBLE, EXPOSED)
MEMORY = Part("memory", "c3", ".")
NANO = 9  # decimals of a second


def spent_s(plan: Plan, part: Part) -> float:
    """Seconds of a step that go into a part; the parts add up to the step."""
    if part is COMPUTE:
        return plan.time.compute_s
    seconds = plan.time.bubble_s if part is BUBBLE else math.fsum(plan.time.exposed_s.values())
    return round(seconds, NANO)  # what rounding leaves of nothing is nothing


def plan_words(plan: Plan) -> str:
    """A plan in one line: degrees, ZeRO stage, micro-batch, recomputation."""
    parallel, train = plan.job.parallel, plan.job.train
    degrees = [f"{axis} {getattr(parallel, axis)}" for axis in ("dp", "tp", "pp", "cp", "ep")]
    words = [text for text in degrees if not text.endswith(" 1")] or ["dp 1"]
    if parallel.vpp > 1:
        words.append(f"v {parallel.vpp}")
    words += [f"ZeRO-{train.zero_stage}", f"b {train.micro_batch}"]
    if train.recompute != "none":
        layers = f" {train.recompute_layers}" if train.recompute_layers else ""
        words.append(f"{train.recompute}{layers}")
    return ", ".join(words)


def figure(plans: Sequence[Plan], *, chosen: int, capacity_bytes: float, control: str) -> dict[str, Any]:
    """One bar a plan, the best on top; a click on it sets ``control``. ``chosen`` counts from 0."""
    labels = [f"<b>{number} ▸</b>" if number == chosen + 1 else str(number) for number in _numbers(plans)]
    words = [plan_words(plan) for plan in plans]
    below = {"xaxis": "x2", "yaxis": "y2"}
    longest = max(plan.time.step_s for plan in plans)
    most = max(capacity_bytes, *(plan.memory_bytes for plan in plans)) / GB
    times = [
        {
            "type": "bar",
            "orientation": "h",
            "x": [spent_s(plan, part) for plan in plans],
            "y": labels,
            "marker": marker(part),
            "hoverinfo": "text",
            "hovertext": [
                say(
                    "planner.hover_part",
                    plan=text,
                    part=say(f"planner.part_{part.name}"),
                    amount=time_words(spent_s(plan, part)),
                )
                for plan, text in zip(plans, words, strict=True)
            ],
            "textposition": "none",
            "customdata": [str(number) for number in _numbers(plans)],
        }
        for part in PARTS
    ]
    memory = bars(
        MEMORY,
        [plan.memory_bytes for plan in plans],
        labels,
        hover=[
            say("planner.hover_memory", plan=text, amount=gb_words(plan.memory_bytes))
            for plan, text in zip(plans, words, strict=True)
        ],
        customdata=[str(number) for number in _numbers(plans)],
        **below,
    )
    return {
        "data": [*times, memory],
        "layout": layout(
            height=150 + 46 * len(plans),
            barmode="stack",
            bargap=0.3,
            margin={"l": 8, "r": 12, "t": 28, "b": 8},
            meta={"pick": control},
            xaxis=axis(range=[0, 1.05 * longest], anchor="y"),
            yaxis=axis(domain=[0.56, 1.0], autorange="reversed", showgrid=False, type="category"),
            xaxis2=axis(range=[0, 1.05 * most], anchor="y2"),
            yaxis2=axis(domain=[0.0, 0.4], autorange="reversed", showgrid=False, type="category"),
            shapes=[capacity_line(capacity_bytes, xref="x2", yref="y2 domain")],
            annotations=[
                heading(say("planner.heading_time"), y=1.0),
                heading(say("planner.heading_memory"), y=0.41),
            ],
        ),
    }


def _numbers(plans: Sequence[Plan]) -> range:
    return range(1, len(plans) + 1)
