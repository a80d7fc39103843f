"""Explorers async-timeline and failures: the outline's numbers, and what the figures draw."""

from itertools import pairwise

import pytest

from pdtlib.explore import catalog
from pdtlib.figures.failures import progress
from pdtlib.plan.reliability import FLEETS, simulate_run

WORKERS, FAILURES = catalog.get("async-timeline"), catalog.get("failures")


def readouts(explorer, **state):
    return {readout.name: readout for readout in explorer.view_of(state).readouts}


@pytest.mark.parametrize(("workers", "step"), [(2, 1.0), (4, 0.445), (8, 0.209), (16, 0.101)])
def test_asynchronous_workers_are_one_less_than_their_number_late(workers, step):
    got = readouts(WORKERS, mode="asynchronous", workers=workers, slower=1.0)
    assert got["staleness"].value == workers - 1
    assert got["stable"].text == f"{step:.3f}"


def test_without_delay_the_step_may_be_two():
    got = readouts(WORKERS)
    assert got["staleness"].value == 0
    assert got["stable"].value == 2.0


@pytest.mark.parametrize(
    ("state", "rate"),
    [
        ({"mode": "synchronous"}, 2.0),
        ({"mode": "asynchronous"}, 7.25),
        ({"mode": "stale-synchronous", "bound": 0}, 2.0),
        ({"mode": "stale-synchronous", "bound": 3}, 2.0),
        ({"mode": "stale-synchronous", "bound": 10}, 2.0),
        ({"mode": "stale-synchronous", "bound": 3, "slower": 1.0}, 8.0),
    ],
    ids=str,
)
def test_a_worker_four_times_slower(state, rate):
    assert readouts(WORKERS, **state)["rate"].value == rate


@pytest.mark.parametrize("mode", ["synchronous", "asynchronous", "stale-synchronous"])
def test_lanes_are_filled_with_work_and_waits_that_do_not_overlap(mode):
    figure = WORKERS.view_of({"mode": mode, "bound": 1}).figure
    for worker in range(8):
        spans = sorted(
            (start, start + length)
            for trace in figure["data"]
            for lane, start, length in zip(trace["y"], trace["base"], trace["x"], strict=True)
            if lane.endswith(f" {worker}")
        )
        assert spans[0][0] == 0
        assert all(end <= start + 1e-9 for (_, end), (start, _) in pairwise(spans))
        gaps = sum(start - end for (_, end), (start, _) in pairwise(spans))
        assert gaps == pytest.approx(0)


@pytest.mark.parametrize(
    ("gpus", "mtbf", "interval", "overhead"),
    [(2048, "24.7 h", "38.5 min", "2.6 %"), (16384, "3.09 h", "13.6 min", "7.3 %")],
)
def test_llama_3_and_a_save_of_30_s(gpus, mtbf, interval, overhead):
    got = readouts(FAILURES, gpus=gpus)
    assert [got[name].text for name in ("mtbf", "interval", "overhead")] == [mtbf, interval, overhead]


@pytest.mark.parametrize("factor", [0.25, 0.5, 2.0, 4.0])
def test_young_s_rule_is_no_worse_than_its_multiples(factor):
    assert readouts(FAILURES)["expected"].value > readouts(FAILURES, interval=factor)["expected"].value


def test_runs_scatter_around_the_expectation():
    useful = [
        readouts(FAILURES, gpus=16384, restart=300.0, seed=seed)["measured"].value for seed in range(1, 13)
    ]
    expected = readouts(FAILURES, gpus=16384, restart=300.0)["expected"].value
    assert len(set(useful)) == 12
    assert sum(useful) / 12 == pytest.approx(expected, rel=0.03)


def test_the_curve_of_a_run_ends_at_its_work_and_has_a_drop_for_each_failure_that_lost_work():
    mtbf = FLEETS["llama3"].mtbf_s(16384)
    run = simulate_run(10 * mtbf, mtbf_s=mtbf, save_s=30, interval_s=800, restart_s=300, seed=3)
    hours, done, failed = progress(run)
    assert hours == sorted(hours)
    assert done[-1] == pytest.approx(10 * mtbf / 3600)
    assert sum(lost for _, _, lost in failed) == pytest.approx(run.lost_s / 3600)
    assert len(failed) == sum(event.kind == "lost" for event in run.events)
