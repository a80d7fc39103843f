"""Every schedule, lowered and carried out by several ranks, computes what one process computes, exactly."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schedule_interpreter import PRIME, train_alone, train_together
from schedule_tables import costs, schedules, sizes

from pdtlib.plan.schedule import NAMES, Act, build, lower, peak_in_flight
from pdtlib.plan.schedule.lower import Lowered


def numbers(draw_seed, count):
    draw = random.Random(draw_seed)
    return [draw.randrange(1, PRIME) for _ in range(count)]


def compare(schedule, lowered, seed=0):
    weights = numbers(seed, schedule.layout.length)
    inputs = numbers(seed + 1, schedule.microbatches)
    targets = numbers(seed + 2, schedule.microbatches)
    gradients, input_gradients, outputs, most_saved, messages = train_together(
        lowered, weights, inputs, targets
    )
    assert (gradients, input_gradients, outputs) == train_alone(weights, inputs, targets)
    pieces = schedule.layout.length // schedule.stages
    assert [count / pieces for count in most_saved] == peak_in_flight(schedule)
    return messages


@pytest.mark.parametrize("name", NAMES)
def test_small_pipelines(name):
    for stages, microbatches, chunks in sizes(name, 4, 9):
        schedule = build(name, stages=stages, microbatches=microbatches, chunks=chunks)
        compare(schedule, lower(schedule))


@settings(max_examples=80, deadline=None)
@given(data=st.data(), schedule=schedules(), seed=st.integers(0, 2**32))
def test_any_schedule_with_any_expected_times(data, schedule, seed):
    lowered = lower(schedule, data.draw(costs(schedule)))
    messages = compare(schedule, lowered, seed)
    hops = sum(
        place is not None and place[0] != rank
        for rank in range(schedule.stages)
        for chunk in range(schedule.chunks)
        for place in [schedule.layout.after(rank, chunk)]
        for _ in schedule.layout.micro_batches(chunk, schedule.microbatches)
    )
    assert messages["SF"] == messages["SB"] == hops


def test_interleaving_crosses_seven_boundaries_instead_of_three():
    """C4.4-f: p = 4, v = 2."""
    for name, crossings in [("1f1b", 3), ("interleaved", 7)]:
        schedule = build(name, stages=4, microbatches=4)
        assert compare(schedule, lower(schedule))["SF"] == 4 * crossings


@pytest.mark.parametrize("op", ["F", "B", "W", "SF", "RF", "SB", "RB"])
def test_one_action_less_is_noticed(op):
    schedule = build("zb-h1", stages=3, microbatches=4)
    lowered = lower(schedule)
    program = list(lowered.programs[1])
    program.remove(next(act for act in program if act.op == op))
    broken = replace(lowered, programs=(lowered.programs[0], tuple(program), lowered.programs[2]))
    with pytest.raises((AssertionError, KeyError)):
        compare(schedule, broken)


def test_two_micro_batches_exchanged_are_noticed():
    schedule = build("gpipe", stages=2, microbatches=2)
    lowered = lower(schedule)
    swapped = tuple(
        Act(act.op, 1 - act.micro_batch, act.chunk) if act.op == "B" else act for act in lowered.programs[1]
    )
    with pytest.raises((AssertionError, KeyError)):
        compare(schedule, Lowered(schedule=schedule, programs=(lowered.programs[0], swapped)))
