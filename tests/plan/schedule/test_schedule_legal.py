"""Every schedule is legal, ends, and keeps to bounds that no schedule can beat."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedule_oracle import durations, longest_path
from schedule_tables import costs, schedules, sizes

from pdtlib.plan.schedule import (
    NAMES,
    Costs,
    build,
    check,
    check_messages,
    lower,
    simulate,
    zb_auto,
)


@pytest.mark.parametrize("name", NAMES)
def test_small_tables_are_legal_and_run_without_buffers(name):
    for stages, microbatches, chunks in sizes(name, 5, 11):
        schedule = build(name, stages=stages, microbatches=microbatches, chunks=chunks)
        check(schedule)
        check_messages(lower(schedule))
        timeline = simulate(schedule, Costs(forward=1, backward_input=1, backward_weight=1))
        assert timeline.busy == pytest.approx((3 * microbatches,) * stages)
        there_and_back = 3 * stages if not schedule.splits_backward else 2 * stages + 1 / 2
        assert timeline.makespan >= max(3 * microbatches, there_and_back) - 1e-9
        first_work = min(stages, schedule.layout.length) - 1  # the last rank can't start before
        if schedule.layout.kind != "two-way":
            assert timeline.start[-1][0] >= first_work * stages / schedule.layout.length - 1e-9


@pytest.mark.parametrize("name", NAMES)
def test_nobody_holds_more_than_it_should(name):
    for stages, microbatches, chunks in sizes(name, 5, 11):
        schedule = build(name, stages=stages, microbatches=microbatches, chunks=chunks)
        v = schedule.chunks
        most = {
            "naive": 1,
            "gpipe": microbatches,
            "1f1b": min(stages, microbatches),
            "interleaved": stages + (stages - 1) / v,
            "zb-h1": min(stages, microbatches),
            "zb-h2": min(2 * stages - 1, microbatches),
            "zb-auto": min(2 * stages, microbatches),
            "zb-v": min(stages, microbatches),
            "dualpipe": min(stages + 1, microbatches),
            "article": min(stages + 1, microbatches),
        }[name]
        check(schedule, memory_cap=most)


@settings(max_examples=100, deadline=None)
@given(data=st.data(), schedule=schedules())
def test_the_simulator_equals_the_longest_path(data, schedule):
    times = data.draw(costs(schedule))
    timeline = simulate(schedule, times)
    expected = longest_path(schedule, times)
    ours = {
        (rank, act): timeline.end[rank][index]
        for rank, program in enumerate(schedule.programs)
        for index, act in enumerate(program)
    }
    assert ours == pytest.approx(expected)
    assert timeline.busy == pytest.approx(
        [
            sum(time for (rank, _), time in durations(schedule, times).items() if rank == mine)
            for mine in range(schedule.stages)
        ]
    )
    assert 0 <= timeline.bubble_fraction < 1
    assert timeline.makespan >= max(timeline.busy) - 1e-9
    assert -1e-9 <= timeline.bubble_rate <= 1 - max(timeline.busy) / timeline.makespan + 1e-9


@settings(max_examples=60, deadline=None)
@given(data=st.data(), schedule=schedules())
def test_slower_is_never_faster(data, schedule):
    """A table is a fixed order: a longer action or transfer can't make it end earlier."""
    times = data.draw(costs(schedule))
    at = data.draw(st.integers(0, schedule.layout.length - 1))
    slower = [time + (1 if position == at else 0) for position, time in enumerate(times.forward)]
    before = simulate(schedule, times).makespan
    changed = Costs(
        forward=slower,
        backward_input=times.backward_input,
        backward_weight=times.backward_weight,
        transfer=times.transfer + 0.5,
    )
    assert simulate(schedule, changed).makespan >= before - 1e-9


@settings(max_examples=40, deadline=None)
@given(
    stages=st.integers(1, 6),
    microbatches=st.integers(1, 16),
    times=st.tuples(*[st.integers(1, 9)] * 3),
    transfer=st.sampled_from([0.0, 0.5, 3.0]),
    cap=st.integers(1, 14),
    kept=st.sampled_from([0.0, 0.4, 1.0]),
)
def test_made_to_measure_keeps_its_cap(stages, microbatches, times, transfer, cap, kept):
    forward, backward_input, backward_weight = times
    times = Costs(
        forward=forward, backward_input=backward_input, backward_weight=backward_weight, transfer=transfer
    )
    schedule = zb_auto(stages, microbatches, costs=times, memory_cap=cap, kept_for_weight=kept)
    check(schedule, memory_cap=cap, kept_for_weight=kept)
    check_messages(lower(schedule, times))


def test_memory_over_time_of_one_stage():
    timeline = simulate(build("1f1b", stages=2, microbatches=2), Costs(backward_input=2, backward_weight=0))
    assert timeline.memory(0) == [(0, 1), (1, 2), (6, 1), (9, 0)]
    split = simulate(build("zb-h1", stages=1, microbatches=1))
    assert split.memory(0, kept_for_weight=0.25) == [(0, 1), (2, 0.25), (3, 0)]


def test_one_stage_needs_no_messages():
    for name in NAMES:
        if name != "dualpipe":
            lowered = lower(build(name, stages=1, microbatches=3))
            assert lowered.programs == lowered.schedule.programs


def test_a_large_pipeline_is_simulated_in_time():
    """64 stages x 1,024 micro-batches in under 3 s on one core, processor time, table and check included."""
    from time import process_time

    before = process_time()
    timeline = simulate(build("1f1b", stages=64, microbatches=1024))
    assert process_time() - before < 3
    assert timeline.bubble_fraction == pytest.approx(63 / (1024 + 63))
