"""The figure of a trace shows each rank's time once, and messages apart from it."""

import random

import pytest

from pdtlib.figures.trace import PARTS, figure
from pdtlib.plan.faulty_steps import FAULTS, straggler
from pdtlib.plan.overlap import Span


@pytest.mark.parametrize("make", FAULTS.values())
def test_bars_lie_inside_the_step_and_cover_what_was_measured(make):
    step = make(random.Random(1))
    drawn = figure(step.ranks)
    limit = drawn["layout"]["xaxis"]["range"][1]
    for trace in drawn["data"]:
        assert all(
            base >= 0 and base + width <= limit for base, width in zip(trace["base"], trace["x"], strict=True)
        )
    waits = next(trace for part, trace in zip(PARTS, drawn["data"], strict=True) if part.name == "wait")
    measured = sum(
        span.end_s - span.start_s
        for spans in step.ranks.values()
        for span in spans
        if span.lane.startswith("wait")
    )
    assert sum(waits["x"]) == pytest.approx(1000 * measured)


def test_overlapping_spans_are_one_bar_and_messages_have_their_own_lane():
    spans = [Span("compute", "a", 5, 7), Span("compute", "b", 6, 9), Span("communication dp", "m", 6, 8)]
    compute, *_, messages = figure({0: spans})["data"]
    assert (compute["base"], compute["x"]) == ([0], [4000])
    assert (messages["base"], messages["x"]) == ([1000], [2000])
    assert set(messages["y"]).isdisjoint(compute["y"])


def test_a_straggler_has_the_longest_bar():
    step = straggler(random.Random(2))
    compute = figure(step.ranks)["data"][0]
    by_lane = dict(zip(compute["y"], compute["x"], strict=True))
    waits = dict(zip(*(figure(step.ranks)["data"][3][key] for key in ("y", "x")), strict=True))
    assert max(by_lane, key=by_lane.get) == min(waits, key=waits.get)
