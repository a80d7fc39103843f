"""What the figures draw is what the plan says."""

import json

import plotly.graph_objects as go
import pytest

from pdtlib.explore import catalog
from pdtlib.figures import memory, overlap, ring, zero
from pdtlib.figures.theme import DARK, LIGHT, resolve
from pdtlib.plan.overlap import bucket_timeline
from pdtlib.plan.ring import num_steps
from pdtlib.plan.states import zero_state_bytes


def test_zero_bars_stack_to_the_states():
    held = [zero_state_bytes(70e9, dp=8, stage=stage) for stage in range(4)]
    figure = zero.figure(held, [1e9, 1e9, 1e9, 1.5e9], capacity_bytes=80e9)
    stacked = [sum(trace["x"][stage] for trace in figure["data"][:3]) for stage in range(4)]
    assert stacked == pytest.approx([states.total / 1e9 for states in held])
    assert figure["layout"]["shapes"][0]["x0"] == 80


def test_memory_rows_follow_one_another_and_meet_in_the_last():
    terms = [(memory.PARTS[0], 2e9), (memory.PARTS[1], 3e9), (memory.PARTS[4], 5e9)]
    figure = memory.figure(terms, capacity_bytes=8e9)
    bars = [trace for trace in figure["data"] if trace["type"] == "bar"]
    assert [trace["base"][0] for trace in bars] == [0, 2, 5]
    assert [trace["x"][0] for trace in bars] == [2, 3, 5]
    assert {trace["y"][1] for trace in bars} == {bars[0]["y"][1]}


@pytest.mark.parametrize("ranks", range(2, 9))
def test_ring_cells_end_with_the_sum(ranks):
    figure = ring.figure(ranks, num_steps(ranks))
    total = sum(map(ring.start_value, range(ranks)))
    assert set(figure["data"][1]["text"]) == {f"<b>{total}</b> ✓"}
    assert all(share == 1 for row in figure["data"][0]["z"] for share in row)


def test_ring_draws_an_arrow_for_every_transfer():
    assert ring.figure(4, 0)["layout"]["annotations"] == []
    assert len(ring.figure(4, 1)["layout"]["annotations"]) == 4 + 1  # the last rank's is in two pieces


@pytest.mark.parametrize("tensors", [3, 500])
def test_overlap_bars_add_up_to_busy_time(tensors):
    line = bucket_timeline(
        [10] * tensors, limit_bytes=10, backward_s=2.0, dp=4, bytes_per_s=1e3, latency_s=1e-3
    )
    figure = overlap.figure(line, num_buckets=tensors, curve=[("a", 0.1), ("b", 0.2)], chosen=1)
    compute, network = figure["data"][:2]
    assert len(network["x"]) <= overlap.MOST_BARS
    assert sum(network["x"]) == pytest.approx(1e3 * line.communication_s)
    assert sum(compute["x"]) == pytest.approx(1e3 * line.backward_s)


@pytest.mark.parametrize("id", catalog.IDS)
def test_figures_are_valid_plotly_in_both_themes(id):
    figure = catalog.get(id).view_of().to_dict()["figure"]
    for palette in (LIGHT, DARK):
        go.Figure(resolve(figure, palette))
    assert json.loads(json.dumps(figure, allow_nan=False)) == figure


@pytest.mark.parametrize("id", catalog.IDS)
def test_titles_and_legends_stand_in_html(id):
    layout = catalog.get(id).view_of().figure["layout"]
    assert layout["showlegend"] is False
    assert "title" not in layout
