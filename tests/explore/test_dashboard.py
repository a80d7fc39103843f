"""The dashboard of the reader's own run: the same shares as everywhere; files that are none are refused."""

import json
import random
from datetime import UTC, datetime

import pytest

from pdtlib.explore import dashboard
from pdtlib.explore.bridge import call
from pdtlib.observe.trace import perfetto
from pdtlib.plan.faulty_steps import FAULTS, straggler
from pdtlib.plan.overlap import Span
from pdtlib.plan.step_shares import shares

METRICS = "".join(
    json.dumps({"step": step, "mfu": mfu}) + "\n" for step, mfu in enumerate((0.1, 0.3, 0.4, 0.5))
)


def opened(step, metrics=""):
    arguments = json.dumps({"trace": json.dumps(perfetto(step.ranks)), "metrics": metrics})
    return json.loads(call("pdtlib.explore.dashboard", "of_files", arguments))


@pytest.mark.parametrize("cause", FAULTS)
def test_shares_are_those_of_each_rank_and_add_up(cause):
    step = FAULTS[cause](random.Random(3))
    view = opened(step, METRICS)["ok"]
    for at, spans in enumerate(step.ranks.values()):
        (whole,) = [span for span in spans if span.lane == "step"]
        found = shares(spans, whole)
        drawn = [trace["x"][at] for trace in view["figure"]["data"]]
        wanted = (found.compute_s, found.communication_s, found.bubble_s, found.data_s, found.other_s)
        assert drawn == pytest.approx([100 * seconds / found.step_s for seconds in wanted], abs=1e-4)
        assert sum(drawn) == pytest.approx(100)
    shown = {readout["name"]: readout for readout in view["readouts"]}
    assert shown["mfu"]["value"] == 0.4
    computing = sum(trace["x"][rank] for trace in view["figure"]["data"][:1] for rank in step.ranks) / len(
        step.ranks
    )
    assert shown["kernels"]["value"] == pytest.approx(40 / computing)


def test_a_straggler_is_named():
    step = straggler(random.Random(3))
    spread = next(r for r in opened(step)["ok"]["readouts"] if r["name"] == "spread")
    slow = min(
        step.ranks, key=lambda rank: sum(s.end_s - s.start_s for s in step.ranks[rank] if s.lane == "wait dp")
    )
    assert spread["value"] > 1.3
    assert f"rank {slow}" in spread["note"]


def test_many_ranks_are_all_counted():
    ranks = {rank: [Span("step", "step", 0, 1), Span("compute", "f", 0, 0.5)] for rank in range(40)}
    view = dashboard.view(ranks)
    assert len(view.figure["data"][0]["y"]) == dashboard.MOST_RANKS
    assert "of 40 ranks" in view.notes[0]
    assert len(view.table.rows) == 40


@pytest.mark.parametrize(
    ("trace", "metrics", "says"),
    [
        ("", "", "no trace.json"),
        ("[]", "", "no trace.json"),
        ('{"traceEvents": [{"name": "x"}]}', "", "no trace.json"),
        ('{"traceEvents": []}', "", "no spans in the lane"),
        (None, "nothing\n", "line 1"),
        (None, '{"mfu": 0.2}\n{"loss": 1}\n', "line 2"),
    ],
)
def test_other_files_are_refused_with_a_reason(trace, metrics, says):
    text = json.dumps(perfetto(straggler(random.Random(1)).ranks)) if trace is None else trace
    with pytest.raises(ValueError, match=says):
        dashboard.of_files(text, metrics)


def test_a_line_cut_short_is_left_out():
    assert dashboard.read_mfu('{"mfu": 0.2}\n{"mfu": 0.') == [0.2]


def test_the_page_holds_an_example_and_two_labelled_inputs():
    markup = dashboard.html()
    assert dashboard.example().summary in markup
    for name in ("trace", "metrics"):
        assert f'<label for="dashboard-{name}">' in markup
        assert f'id="dashboard-{name}"' in markup


def test_under_a_kernel_files_are_uploaded():
    live = pytest.importorskip("pdtlib.explore.live_dashboard").LiveDashboard()
    step = straggler(random.Random(1))
    content = json.dumps(perfetto(step.ranks)).encode()
    file = {
        "name": "trace.json",
        "type": "",
        "size": len(content),
        "content": content,
        "last_modified": datetime.now(UTC),
    }
    before = live.words.value
    with live.trace.hold_trait_notifications():
        live.trace.set_trait("value", ({**file, "content": memoryview(content)},))
    assert live.words.value != before
    assert "4 ranks" in live.words.value
