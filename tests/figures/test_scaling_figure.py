"""The scaling figure draws what the planner found."""

import json

import plotly.graph_objects as go
import pytest

from pdtlib.figures import scaling
from pdtlib.figures.theme import DARK, LIGHT, resolve
from pdtlib.plan.job import from_dict
from pdtlib.plan.planner import Point
from pdtlib.plan.planner import scaling as best_by_size


@pytest.fixture(scope="module")
def curves():
    job = from_dict(
        {
            "model": {"preset": "llama3-8b"},
            "train": {"global_batch": 64},
            "parallel": {"dp": 8},
            "hardware": {"cluster": "dgx-h100"},
        }
    )
    sizes = (8, 16, 32)
    return tuple(best_by_size(job, sizes, weak=weak) for weak in (False, True))


@pytest.mark.parametrize("colors", [LIGHT, DARK])
def test_two_curves_and_their_ideals(curves, colors):
    figure = scaling.figure(*curves)
    go.Figure(resolve(json.loads(json.dumps(figure)), colors))
    ideal, strong, _, weak = figure["data"]
    for trace, points in ((strong, curves[0]), (weak, curves[1])):
        assert trace["x"] == [8, 16, 32]
        assert trace["y"] == [point.plan.tokens_per_s for point in points]
        assert all(
            f"{point.gpus:,} GPUs" in text for point, text in zip(points, trace["hovertext"], strict=True)
        )
    assert ideal["y"][1] == pytest.approx(4 * ideal["y"][0])
    assert strong["line"] != weak["line"]
    assert strong["marker"]["symbol"] != weak["marker"]["symbol"]


def test_numbers_without_a_plan_have_a_row_and_no_point(curves):
    points = (*curves[0], Point(64, None, None))
    assert scaling.figure(points, ())["data"][1]["x"] == [8, 16, 32]
    rows = scaling.rows(points)
    assert rows[-1] == ("64", "no plan", "", "", "")
    assert rows[0][0] == "8"
    assert rows[0][-1] == "100 %"
