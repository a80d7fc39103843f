"""Stragglers, late gradients, local updates."""

import math
import random
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdtlib.plan.reliability import (
    expected_slowest,
    implicit_momentum,
    largest_stable_step,
    local_updates,
    simulate_workers,
    stable_step,
    step_efficiency,
)

STRAGGLER = [1.0] * 7 + [4.0]


@pytest.mark.parametrize(("delay", "step"), [(0, 2.0), (1, 1.0), (3, 0.445), (7, 0.209), (15, 0.101)])
def test_stable_step_under_delay(delay, step):
    """C9.1-d: the closed form, and the descent itself run on either side of it."""
    assert round(stable_step(delay), 3) == step
    assert largest_stable_step(delay) == pytest.approx(stable_step(delay), rel=0.002)
    assert largest_stable_step(delay, curvature=3.0) == pytest.approx(stable_step(delay) / 3, rel=0.002)


@pytest.mark.parametrize("workers", [4, 8, 16])
def test_mean_staleness_of_equal_workers_is_one_less_than_their_number(workers):
    """C9.1-d: 3, 7 and 15. Only the first gradients are younger."""
    run = simulate_workers([1.0] * workers, until_s=2000)
    assert run.mean_staleness == pytest.approx(workers - 1, rel=0.001)
    assert run.updates[-1].staleness == workers - 1
    assert implicit_momentum(workers) == 1 - 1 / workers


def test_a_straggler_holds_up_only_those_who_wait():
    """C9.1-c and -e: eight workers, one four times slower."""
    assert simulate_workers(STRAGGLER, until_s=400, mode="synchronous").per_second == 2.0
    assert simulate_workers(STRAGGLER, until_s=400).per_second == 7.25
    assert step_efficiency(STRAGGLER) == 11 / 32


@pytest.mark.parametrize("bound", [0, 1, 3])
def test_a_bound_does_not_cure_a_lasting_straggler(bound):
    run = simulate_workers(STRAGGLER, until_s=4000, mode="stale-synchronous", bound=bound)
    assert run.per_second == pytest.approx(2.0, rel=0.01)


@given(
    times=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    bound=st.integers(0, 4),
)
def test_a_bound_is_kept_and_never_helps(times, bound):
    run = simulate_workers(times, until_s=60, mode="stale-synchronous", bound=bound)
    begun = [0] * len(times)
    done = [0] * len(times)
    events = sorted(
        [(u.applied_s, 0, u.worker) for u in run.updates] + [(u.start_s, 1, u.worker) for u in run.updates]
    )
    for _, starts, worker in events:
        (begun if starts else done)[worker] += 1
        if starts:
            assert begun[worker] - 1 - min(done) <= bound
    assert max(done) - min(done) <= bound + 1
    assert all(u.staleness <= (len(times) - 1) * (2 * bound + 1) for u in run.updates)
    free = simulate_workers(times, until_s=60)
    assert len(run.updates) <= len(free.updates)
    assert len(free.updates) == sum(60 // time for time in times)


def test_rounds_are_synchronous():
    run = simulate_workers([1.0, 2.0, 3.0], until_s=9.5, mode="synchronous")
    assert len(run.updates) == 9
    assert {update.staleness for update in run.updates} == {0}
    assert [update.applied_s for update in run.updates] == [3.0] * 3 + [6.0] * 3 + [9.0] * 3


@pytest.mark.parametrize("workers", [1, 2, 8, 256])
def test_expected_slowest_against_draws(workers):
    draw = random.Random(workers)
    slowest = [max(draw.gauss(10, 2) for _ in range(workers)) for _ in range(2000)]
    assert expected_slowest(workers, mean_s=10, deviation_s=2) == pytest.approx(fmean(slowest), abs=0.2)


def test_expected_slowest_of_two_is_known():
    """E[max] of two normals is mean + deviation / sqrt(pi)."""
    assert expected_slowest(2, mean_s=0, deviation_s=1) == pytest.approx(1 / math.sqrt(math.pi), abs=0.002)


def test_diloco_sends_500_times_less():
    """DiLoCo, 8 workers, 500 inner steps; a fourth of it in 8 bits, and the peak divided among fragments."""
    plain = local_updates(400e6, workers=8, every=500)
    assert plain.times_less == pytest.approx(500)
    assert plain.saved_fraction == pytest.approx(0.998)
    assert plain.synchronous_bytes == 2 * 7 / 8 * 400e6 * 4
    streaming = local_updates(400e6, workers=8, every=100, bytes_per_value=0.5, fragments=10)
    assert streaming.times_less == pytest.approx(800)
    assert streaming.peak_bytes == pytest.approx(plain.peak_bytes / 80)
    assert local_updates(1e9, workers=2, every=1).times_less == 1


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: stable_step(-1), "delay=-1; valid: 0 or more"),
        (lambda: stable_step(1, curvature=0), "curvature=0"),
        (lambda: simulate_workers([], until_s=1), "step_times_s="),
        (lambda: simulate_workers([1, 0], until_s=1), "step_times_s="),
        (lambda: simulate_workers([1], until_s=0), "until_s=0"),
        (lambda: simulate_workers([1], until_s=1, mode="elastic"), "mode='elastic'; valid: synchronous"),
        (lambda: local_updates(1e9, workers=1, every=1), "workers=1; valid: 2 or more"),
        (lambda: local_updates(1e9, workers=2, every=5, fragments=6), "fragments=6.*valid: 1 to 5"),
    ],
)
def test_refused_arguments(call, words):
    with pytest.raises(ValueError, match=words):
        call()
