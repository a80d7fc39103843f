"""A pipeline schedule over time: what each stage does, where it waits, and what it holds meanwhile."""

from __future__ import annotations

from typing import Any, NamedTuple

from pdtlib.figures import layers as strips
from pdtlib.figures.parts import Part, heading
from pdtlib.figures.theme import NARROW, axis, layout
from pdtlib.figures.words import say
from pdtlib.plan.schedule import FAMILIES, Act, Schedule, Timeline
from pdtlib.plan.schedule.actions import COMPUTE
from pdtlib.plan.units import percent_text

PARTS = {"F": Part("forward", "c1"), "B": Part("backward", "c2", "/"), "W": Part("weight", "c3", ".")}
MOST_LABELS = 700
MOST_CURVES = 8
DASHES = ("solid", "dash", "dot", "dashdot")
HALF = 0.42  # half of a lane's height


def figure(
    timeline: Timeline,
    *,
    until: float | None = None,
    kept_for_weight: float = 1.0,
    layers: int | None = None,
) -> dict[str, Any]:
    """Lanes of the stages and, below, the activations that each holds.

    One filled path for each operation and chunk, however many actions there are; a forward and a backward
    that overlap share a lane, one above the other. ``until`` draws only what has begun by then, and a line
    there: a player's moment. With ``layers`` a third row shows which of so many layers each stage holds.
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
    curves, gap = 150, 64
    map_height = 0 if layers is None else max(70, min(200, 22 * schedule.stages))
    below = 0 if layers is None else map_height + gap + 12
    plot = lanes + gap + curves + below
    bottom, top = below / plot, (below + curves) / plot  # of the curves
    moment = {"type": "line", "xref": "x", "yref": "paper", "x0": now, "x1": now, "y0": bottom, "y1": 1}
    axes: dict[str, Any] = {
        "xaxis": axis(say("schedule.axis_time"), range=[0, end], anchor="y2", showgrid=False),
        "yaxis": _stage_axis(schedule, [1 - lanes / plot, 1]),
        "yaxis2": axis(
            domain=[bottom, top],
            range=[0, 1.08 * max(timeline.peak_in_flight)],
            title={"text": say("schedule.axis_held"), "standoff": 8, "font": {"size": 12}},
        ),
    }
    headings = [heading(say("schedule.held"), y=top)]
    if layers is not None:
        traces += strips.traces(schedule.layout, layers, xaxis="x2", yaxis="y3")
        axes["xaxis2"] = axis(
            say("schedule.axis_layer"), range=[0.5, layers + 0.5], anchor="y3", showgrid=False
        )
        axes["yaxis3"] = {**_stage_axis(schedule, [0, map_height / plot]), "anchor": "x2"}
        headings.append(heading(say("schedule.layers"), y=map_height / plot))
    return {
        "data": traces,
        "layout": layout(
            height=plot + 48,
            hovermode="closest",
            margin={"l": 8, "r": 12, "t": 24, "b": 8},
            **axes,
            annotations=headings,
            shapes=[] if until is None else [{**moment, "line": {"color": "@ink", "width": 1.5}}],
            meta={NARROW: {f"{name}.title.text": "" for name in axes if name.startswith("yaxis")}},
        ),
    }


def _stage_axis(schedule: Schedule, domain: list[float]) -> dict[str, Any]:
    return axis(
        say("schedule.axis_stage"),
        domain=domain,
        range=[schedule.stages - 0.5, -0.5],
        tickvals=list(range(schedule.stages)) if schedule.stages <= 16 else None,
        showgrid=False,
    )


def order(schedule: Schedule, *, mark: tuple[int, int] | None = None) -> dict[str, Any]:
    """The programs as they stand, one cell an action, without a clock: for a table that can't be run.

    ``mark`` frames one cell, (stage, index); an index behind the last one frames an empty cell.
    """
    boxes = [
        Box(index, index + 1, stage - HALF, stage + HALF, stage, act)
        for stage, program in enumerate(schedule.programs)
        for index, act in enumerate(program)
    ]
    end = float(max(map(len, schedule.programs)) + (mark is not None))
    traces = []
    for op, chunk in sorted({(box.act.op, box.act.chunk) for box in boxes}):
        same = [box for box in boxes if (box.act.op, box.act.chunk) == (op, chunk)]
        traces.append(_path(same, op, chunk, schedule.chunks))
    if len(boxes) <= MOST_LABELS:
        traces.append({**_labels(boxes, end), "hovertext": [str(box.act) for box in boxes]})
    frame = []
    if mark is not None:
        stage, index = mark
        place = {"x0": index, "x1": index + 1, "y0": stage - 0.5, "y1": stage + 0.5}
        frame.append({"type": "rect", **place, "line": {"color": "@bad", "width": 3}})
    return {
        "data": traces,
        "layout": layout(
            height=max(150, min(420, 30 * schedule.stages)) + 48,
            hovermode="closest",
            xaxis=axis(say("schedule.axis_cell"), range=[0, end], showgrid=False),
            yaxis=_stage_axis(schedule, [0, 1]),
            shapes=frame,
            meta={NARROW: {"yaxis.title.text": ""}},
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


def curve_color(stage: int) -> str:
    """The colour of a stage's memory."""
    return f"c{stage % 6 + 1}"


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
            "size": 5 if part.pattern == "." else 8,
            "solidity": 0.12,  # the micro-batch's number stands on it
        }
    return trace


def _labels(boxes: list[Box], end: float) -> dict[str, Any]:
    """The micro-batch of each action, where its box is wide enough, and its words on hovering."""

    def texts(room: int) -> list[str]:
        """The numbers that fit where the whole axis has room for so many digits."""
        numbers = [str(box.act.micro_batch) for box in boxes]
        return [
            number if (box.end - box.start) * room >= end * len(number) else ""
            for box, number in zip(boxes, numbers, strict=True)
        ]

    return {
        "type": "scatter",
        "mode": "text",
        "x": [(box.start + box.end) / 2 for box in boxes],
        "y": [(box.top + box.bottom) / 2 for box in boxes],
        "text": texts(90),
        "meta": {NARROW: {"text": texts(32)}},
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
            "color": f"@{curve_color(stage)}",
            "width": 2,
            "dash": DASHES[stage // 6 % len(DASHES)],
        },
        "name": say("schedule.stage", stage=stage),
        "hovertemplate": say("schedule.hover_held", stage=stage),
    }
