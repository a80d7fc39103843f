"""A pipeline schedule over time: what each stage does, where it waits, and what it holds meanwhile."""

from __future__ import annotations

from typing import Any, NamedTuple

from pdtlib.figures.parts import Part, heading
from pdtlib.figures.theme import NARROW, axis, layout
from pdtlib.figures.words import say
from pdtlib.plan.schedule import FAMILIES, Act, Timeline
from pdtlib.plan.schedule.actions import COMPUTE
from pdtlib.plan.units import percent_text

PARTS = {"F": Part("forward", "c1"), "B": Part("backward", "c2", "/"), "W": Part("weight", "c3", ".")}
MOST_LABELS = 700
MOST_CURVES = 8
DASHES = ("solid", "dash", "dot", "dashdot")
HALF = 0.42  # half of a lane's height


def figure(timeline: Timeline, *, until: float | None = None, kept_for_weight: float = 1.0) -> dict[str, Any]:
    """Lanes of the stages and, below, the activations that each holds.

    One filled path for each operation and chunk, however many actions there are; a forward and a backward
    that overlap share a lane, one above the other. ``until`` draws only what has begun by then, and a line
    there: a player's moment.
    """
    schedule = timeline.schedule
    end = timeline.makespan
    now = end if until is None else max(0.0, min(until, end))
    boxes = _boxes(timeline, now)
    traces = [
        _path(
            [box for box in boxes if (box.act.op, box.act.chunk) == (op, chunk)], op, chunk, schedule.chunks
        )
        for op in COMPUTE
        for chunk in range(schedule.chunks)
    ]
    traces = [trace for trace in traces if trace["x"]]
    if len(boxes) <= MOST_LABELS:
        traces.append(_labels(boxes, end))
    traces += [_curve(timeline, stage, now, kept_for_weight) for stage in curve_stages(schedule.stages)]
    lanes = max(150, min(420, 30 * schedule.stages))
    curves = 150
    gap = 64
    height = lanes + gap + curves + 48
    plot = lanes + gap + curves
    moment = {"type": "line", "xref": "x", "yref": "paper", "x0": now, "x1": now, "y0": 0, "y1": 1}
    return {
        "data": traces,
        "layout": layout(
            height=height,
            hovermode="closest",
            margin={"l": 8, "r": 12, "t": 24, "b": 8},
            xaxis=axis(say("schedule.axis_time"), range=[0, end], anchor="y2", showgrid=False),
            yaxis=axis(
                domain=[1 - lanes / plot, 1],
                range=[schedule.stages - 0.5, -0.5],
                tickvals=list(range(schedule.stages)) if schedule.stages <= 16 else None,
                title={"text": say("schedule.axis_stage"), "standoff": 8, "font": {"size": 12}},
                showgrid=False,
            ),
            yaxis2=axis(
                domain=[0, curves / plot],
                rangemode="tozero",
                title={"text": say("schedule.axis_held"), "standoff": 8, "font": {"size": 12}},
            ),
            annotations=[heading(say("schedule.held"), y=curves / plot)],
            shapes=[] if until is None else [{**moment, "line": {"color": "@ink", "width": 1.5}}],
            meta={NARROW: {"yaxis.title.text": "", "yaxis2.title.text": ""}},
        ),
    }


def legend(timeline: Timeline) -> list[tuple[Part, str]]:
    """The operations that the table has, each with its words."""
    ops = {act.op for program in timeline.schedule.programs for act in program}
    split = timeline.schedule.splits_backward
    names = {"F": "schedule.forward", "B": "schedule.backward_input" if split else "schedule.backward"}
    names["W"] = "schedule.weight"
    return [(PARTS[op], say(names[op])) for op in COMPUTE if op in ops]


def sentences(timeline: Timeline) -> list[str]:
    """What the figure shows, in words: the bubble, the memory, and how they come about."""
    schedule, peaks = timeline.schedule, timeline.peak_in_flight
    lines = [
        say(
            "schedule.bubble",
            name=FAMILIES[schedule.name].title if schedule.name in FAMILIES else schedule.name,
            stages=schedule.stages,
            microbatches=schedule.microbatches,
            makespan=f"{timeline.makespan:g}",
            share=percent_text(timeline.bubble_fraction),
        ),
        say("schedule.peak_one" if len(set(peaks)) == 1 else "schedule.peak", peaks=_numbers(peaks)),
    ]
    if schedule.layout.copies > 1:
        lines.append(say("schedule.copies", copies=schedule.layout.copies))
    if timeline.bubble_rate < timeline.bubble_fraction - 5e-4:
        lines.append(say("schedule.rate", rate=percent_text(timeline.bubble_rate)))
    return lines


def curve_stages(stages: int) -> list[int]:
    """The stages whose memory is drawn: all, or eight spread evenly from the first to the last."""
    if stages <= MOST_CURVES:
        return list(range(stages))
    return sorted({round(i * (stages - 1) / (MOST_CURVES - 1)) for i in range(MOST_CURVES)})


def _numbers(values: list[float]) -> str:
    texts = [f"{value:g}" for value in values]
    if len(set(texts)) == 1:
        return texts[0]
    return ", ".join(texts if len(texts) <= 16 else [*texts[:7], "…", *texts[-7:]])


class Box(NamedTuple):
    """An action as drawn: between two times and two heights."""

    start: float
    end: float
    top: float
    bottom: float
    stage: int
    act: Act


def _boxes(timeline: Timeline, now: float) -> list[Box]:
    overlapped = timeline.schedule.overlapped
    boxes = []
    for stage, program in enumerate(timeline.schedule.programs):
        for index, act in enumerate(program):
            start, end = timeline.start[stage][index], timeline.end[stage][index]
            top = stage if (stage, index - 1) in overlapped else stage - HALF
            bottom = stage if (stage, index) in overlapped else stage + HALF
            if start < now and end > start:
                boxes.append(Box(start, min(end, now), top, bottom, stage, act))
    return boxes


def _path(boxes: list[Box], op: str, chunk: int, chunks: int) -> dict[str, Any]:
    """All boxes as one closed path, parted by gaps."""
    part = PARTS[op]
    x: list[float | None] = []
    y: list[float | None] = []
    for start, end, top, bottom, _, _ in boxes:
        x += [start, end, end, start, start, None]
        y += [top, top, bottom, bottom, top, None]
    trace: dict[str, Any] = {
        "type": "scatter",
        "mode": "lines",
        "x": x[:-1],
        "y": y[:-1],
        "fill": "toself",
        "fillcolor": f"@{part.color}",
        "line": {"color": "@paper", "width": 1},
        "opacity": 1 - 0.45 * chunk / max(1, chunks - 1),
        "hoverinfo": "skip",
        "name": f"{op}@{chunk}",
    }
    if part.pattern:
        trace["fillpattern"] = {
            "shape": part.pattern,
            "fgcolor": "@paper",
            "bgcolor": f"@{part.color}",
            "size": 6,
            "solidity": 0.25,
        }
    return trace


def _labels(boxes: list[Box], end: float) -> dict[str, Any]:
    """The micro-batch of each action, where its box is wide enough, and its words on hovering."""

    def wide_enough(box: Box) -> bool:
        return (box.end - box.start) * 56 >= end * len(str(box.act.micro_batch))

    return {
        "type": "scatter",
        "mode": "text",
        "x": [(box.start + box.end) / 2 for box in boxes],
        "y": [(box.top + box.bottom) / 2 for box in boxes],
        "text": [str(box.act.micro_batch) if wide_enough(box) else "" for box in boxes],
        "textfont": {"color": ["@ink" if box.act.chunk else "@paper" for box in boxes], "size": 11},
        "hoverinfo": "text",
        "hovertext": [
            say(
                "schedule.hover",
                act=str(box.act),
                what=say(f"schedule.op_{box.act.op}"),
                micro_batch=box.act.micro_batch,
                stage=box.stage,
                start=f"{box.start:g}",
                end=f"{box.end:g}",
            )
            for box in boxes
        ],
    }


def _curve(timeline: Timeline, stage: int, now: float, kept_for_weight: float) -> dict[str, Any]:
    steps = [(at, held) for at, held in timeline.memory(stage, kept_for_weight=kept_for_weight) if at <= now]
    x = [0.0, *(at for at, _ in steps), now]
    y = [0.0, *(held for _, held in steps)]
    return {
        "type": "scatter",
        "mode": "lines",
        "x": x,
        "y": [*y, y[-1]],
        "yaxis": "y2",
        "line": {
            "shape": "hv",
            "color": f"@c{stage % 6 + 1}",
            "width": 2,
            "dash": DASHES[stage // 6 % len(DASHES)],
        },
        "name": say("schedule.stage", stage=stage),
        "hovertemplate": say("schedule.hover_held", stage=stage),
    }
