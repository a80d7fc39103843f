"""The drawing of a schedule shows its timeline, action by action."""

import json

import plotly.graph_objects as go
import pytest

from pdtlib.figures import schedule as drawing
from pdtlib.figures.theme import DARK, LIGHT, resolve
from pdtlib.plan.schedule import NAMES, Costs, build, simulate


def area(figure):
    """Summed length of all boxes, by operation."""
    out = {}
    for trace in figure["data"]:
        if trace.get("fill"):
            x = [at for at in trace["x"] if at is not None]
            op = trace["name"][0]
            out[op] = out.get(op, 0) + sum(x[i + 1] - x[i] for i in range(0, len(x), 5))
    return out


@pytest.mark.parametrize("name", NAMES)
def test_boxes_are_the_timelines(name):
    timeline = simulate(build(name, stages=4, microbatches=8))
    figure = drawing.figure(timeline)
    expected = {}
    for rank, program in enumerate(timeline.schedule.programs):
        for act, start, end in zip(program, timeline.start[rank], timeline.end[rank], strict=True):
            expected[act.op] = expected.get(act.op, 0) + end - start
    assert area(figure) == pytest.approx(expected)
    for colors in (LIGHT, DARK):
        go.Figure(resolve(figure, colors)).to_json()
    json.dumps(figure, allow_nan=False)


def test_memory_curves_end_at_nothing_and_reach_the_peak():
    timeline = simulate(build("1f1b", stages=4, microbatches=8))
    curves = [trace for trace in drawing.figure(timeline)["data"] if trace.get("yaxis") == "y2"]
    assert [max(curve["y"]) for curve in curves] == timeline.peak_in_flight
    assert {curve["y"][-1] for curve in curves} == {0}


def test_a_players_moment_draws_what_has_begun():
    timeline = simulate(build("gpipe", stages=2, microbatches=2), Costs(backward_weight=0))
    assert area(drawing.figure(timeline, until=1.5)) == {"F": 1 + 0.5 + 0.5}
    assert area(drawing.figure(timeline, until=0)) == {}
    assert len(drawing.figure(timeline, until=2)["layout"]["shapes"]) == 1


def test_a_large_table_stays_a_few_traces():
    figure = drawing.figure(simulate(build("interleaved", stages=16, microbatches=128, chunks=4)))
    assert len(figure["data"]) <= 8 + drawing.MOST_CURVES
    assert drawing.curve_stages(16) == [0, 2, 4, 6, 9, 11, 13, 15]


def test_words():
    timeline = simulate(build("1f1b", stages=4, microbatches=8), Costs(backward_input=2, backward_weight=0))
    assert drawing.sentences(timeline) == [
        "1F1B with 4 stages and 8 micro-batches takes 33 units of time; 27.3 % of the stages' time is idle.",
        "The stages hold the activations of at most 4, 3, 2, 1 micro-batches.",
    ]
    assert [words for _, words in drawing.legend(timeline)] == ["forward", "backward"]
    two_way = drawing.sentences(simulate(build("dualpipe", stages=4, microbatches=8)))
    assert two_way[1:] == [
        "Every stage holds the activations of at most 5 micro-batches.",
        "Each rank holds 2 stages, so parameters are held 2 times.",
    ]
    zero = drawing.sentences(simulate(build("zb-v", stages=4, microbatches=8)))
    assert zero[-1].endswith("only 0.0 % of a stage's time is lost.")
