"""What a rank holds after each action. Programs run in order, so this needs no clock.

The unit is the activations of a whole stage for one micro-batch; a chunk holds its share of them.
"""

from __future__ import annotations

from itertools import accumulate

from pdtlib.plan.schedule.actions import Act, Schedule


def held_after(schedule: Schedule, rank: int, *, kept_for_weight: float = 1.0) -> list[float]:
    """Activations held once each action of ``rank`` has begun to need them: [index].

    A forward stores its activations; a whole backward frees them; an input-gradient backward frees all but
    the share ``kept_for_weight`` (M_W / M_B in the zero-bubble paper), which the weight gradient frees.
    """
    deferred = schedule.deferred[rank]
    pieces = schedule.layout.length // schedule.stages

    def change(act: Act) -> float:
        if act.op == "F":
            return 1
        if act.op == "W":
            return -kept_for_weight
        return kept_for_weight - 1 if (act.micro_batch, act.chunk) in deferred else -1

    return [chunks / pieces for chunks in accumulate(map(change, schedule.programs[rank]))]


def peak_in_flight(schedule: Schedule) -> list[float]:
    """The most micro-batches each rank holds activations of, from forward to the end of the (whole) backward.

    >>> from pdtlib.plan.schedule import build
    >>> peak_in_flight(build("1f1b", stages=4, microbatches=8))
    [4.0, 3.0, 2.0, 1.0]
    """
    return [max(held_after(schedule, rank)) for rank in range(schedule.stages)]
