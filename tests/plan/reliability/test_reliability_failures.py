"""Failures, checkpoints and spares: published numbers, identities, and simulation against formulas."""

import math
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pdtlib.plan.reliability import (
    FLEETS,
    best_interval,
    checkpoint_bytes,
    daly_interval,
    expected_wall_time,
    goodput,
    overhead,
    probability_enough,
    simulate_run,
    spares_needed,
    young_interval,
)

LLAMA = FLEETS["llama3"]


def test_llama3_mtbf():
    """419 unexpected interruptions in 54 days on 16,384 GPUs."""
    assert LLAMA.mtbf_h(16384) == pytest.approx(3.09, abs=0.005)
    assert LLAMA.gpu_hours_per_failure == pytest.approx(50_700, rel=0.001)
    assert LLAMA.mtbf_h(2048) == pytest.approx(24.7, abs=0.05)
    assert 17.5 * 24 / LLAMA.mtbf_h(2048) == pytest.approx(17, abs=0.05)


def test_another_fleet_fails_more_often():
    assert FLEETS["rsc1"].mtbf_h(1024) == pytest.approx(7.9)
    assert FLEETS["rsc1"].mtbf_h(512) == pytest.approx(2 * 7.9)


@pytest.mark.parametrize(("gpus", "minutes", "percent"), [(2048, 38.5, 2.6), (16384, 13.6, 7.3)])
def test_young_interval_and_overhead(gpus, minutes, percent):
    """C9.2-d, a save of 30 s."""
    result = goodput(mtbf_s=LLAMA.mtbf_s(gpus), save_s=30)
    assert round(result.interval_s / 60, 1) == minutes
    assert round(100 * result.overhead_fraction, 1) == percent
    assert result.overhead_fraction == pytest.approx(math.sqrt(2 * 30 / LLAMA.mtbf_s(gpus)))


def test_checkpoint_of_70b():
    assert checkpoint_bytes(70e9) == 980e9


times = st.floats(1.0, 1e6)


@given(mtbf=times, save=times, restart=st.floats(0, 1e5))
def test_young_minimises_the_first_order_overhead(mtbf, save, restart):
    tau = young_interval(mtbf_s=mtbf, save_s=save)
    best = overhead(mtbf_s=mtbf, save_s=save, interval_s=tau, restart_s=restart)
    for factor in (0.5, 0.9, 1.1, 2.0):
        assert best <= overhead(mtbf_s=mtbf, save_s=save, interval_s=factor * tau, restart_s=restart) + 1e-12


@given(mtbf=times, ratio=st.floats(1e-5, 1.0))
def test_the_best_interval_minimises_dalys_time_and_daly_is_near_it(mtbf, ratio):
    save = ratio * mtbf

    def time(tau):
        return expected_wall_time(1.0, mtbf_s=mtbf, save_s=save, interval_s=tau)

    best = best_interval(mtbf_s=mtbf, save_s=save)
    assert all(time(best) <= time(factor * best) * (1 + 1e-12) for factor in (0.5, 0.95, 1.05, 2.0))
    assert time(daly_interval(mtbf_s=mtbf, save_s=save)) <= time(best) * 1.004


def test_daly_equals_young_for_short_saves_and_the_mtbf_for_long_ones():
    assert daly_interval(mtbf_s=1e8, save_s=1) == pytest.approx(
        young_interval(mtbf_s=1e8, save_s=1), rel=1e-3
    )
    assert daly_interval(mtbf_s=10, save_s=20) == 10


@settings(deadline=None, max_examples=10)
@given(
    save=st.floats(0.005, 0.2),
    interval=st.floats(0.05, 1.0),
    restart=st.floats(0, 0.3),
    seed=st.integers(0, 99),
)
def test_simulated_runs_take_dalys_time(save, interval, restart, seed):
    """Mean of runs with 400 intervals each, times in units of the MTBF, within five standard errors."""
    work = 400 * interval
    walls = [
        simulate_run(
            work,
            mtbf_s=1.0,
            save_s=save,
            interval_s=interval,
            restart_s=restart,
            seed=100 * seed + i,
        ).wall_s
        for i in range(30)
    ]
    expected = expected_wall_time(work, mtbf_s=1.0, save_s=save, interval_s=interval, restart_s=restart)
    mean = fmean(walls)
    error = math.sqrt(fmean((wall - mean) ** 2 for wall in walls) / 29)
    assert abs(mean - expected) < 5 * error


@given(seed=st.integers(0, 1000), restart=st.floats(0, 50))
def test_a_simulated_runs_parts_sum_to_its_time(seed, restart):
    run = simulate_run(1000, mtbf_s=300, save_s=7, interval_s=100, restart_s=restart, seed=seed)
    assert run.work_s + run.lost_s + run.saving_s + run.restarting_s == pytest.approx(run.wall_s)
    assert sum(event.end_s - event.start_s for event in run.events) == pytest.approx(run.wall_s)
    assert run.saving_s == pytest.approx(10 * 7)
    assert all(a.end_s == b.start_s for a, b in zip(run.events, run.events[1:], strict=False))
    assert 0 < run.goodput <= 1000 / 1070


def test_a_run_without_failures():
    run = simulate_run(100, mtbf_s=1e12, save_s=5, interval_s=40)
    assert (run.failures, run.lost_s, run.wall_s) == (0, 0, 115)
    assert [event.kind for event in run.events] == ["work", "save"] * 3


@pytest.mark.parametrize("interval", [0.1, 1.1, 6980.7])
def test_rounding_leaves_no_sliver_of_work_to_save(interval):
    run = simulate_run(10 * interval, mtbf_s=1e15, save_s=5, interval_s=interval)
    assert sum(event.kind == "save" for event in run.events) == 10


def test_a_run_that_cannot_end_says_so():
    with pytest.raises(ValueError, match=r"interval_s=500: 0 s of 1000 s are done after"):
        simulate_run(1000, mtbf_s=10, save_s=10, interval_s=500)
    assert expected_wall_time(1000, mtbf_s=10, save_s=10, interval_s=1e5) == math.inf


@settings(deadline=None)
@given(
    nodes=st.integers(1, 20000), repair=st.floats(0.0, 500.0), confidence=st.sampled_from([0.5, 0.9, 0.999])
)
def test_spares_are_the_fewest_that_are_enough(nodes, repair, confidence):
    fleet = {"nodes": nodes, "node_mtbf_h": 6000.0, "repair_h": repair}
    spares = spares_needed(**fleet, confidence=confidence)
    assert probability_enough(spares, **fleet) >= confidence - 1e-9
    if spares:
        assert probability_enough(spares - 1, **fleet) < confidence + 1e-9


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: LLAMA.mtbf_h(0), "gpus=0; valid: 1 or more"),
        (lambda: young_interval(mtbf_s=0, save_s=1), "mtbf_s=0; valid: above 0"),
        (lambda: goodput(mtbf_s=10, save_s=math.nan), "save_s=nan"),
        (lambda: goodput(mtbf_s=10, save_s=1, restart_s=-1), "restart_s=-1; valid: 0 or more"),
        (lambda: simulate_run(0, mtbf_s=1, save_s=1, interval_s=1), "work_s=0"),
        (lambda: spares_needed(nodes=0, node_mtbf_h=1, repair_h=1), "nodes=0"),
        (lambda: spares_needed(nodes=1, node_mtbf_h=1, repair_h=1, confidence=1), "confidence=1"),
    ],
)
def test_refused_arguments(call, words):
    with pytest.raises(ValueError, match=words):
        call()
