"""Add the sends and receives: from a table of computations to what each rank really does.

``SF``/``RF`` send and receive an activation, ``SB``/``RB`` its gradient. A message's action stands in the
sender's program right behind the computation that made it, and the sender also places its peer's receive.
Both are placed at one point of a single order of events, taken from a simulation, so that

* each pair of ranks lists its messages in the same order, and
* no order of waiting can close a circle: a rank that follows the common order always finds its peer there,
  even if every send waits for its receive (no buffers anywhere).

A receive stands where its rank would have been idle or busy with earlier work anyway when the message came,
so an executor that waits in it loses nothing against the simulation.
"""

from __future__ import annotations

from dataclasses import dataclass

from pdtlib.plan.arguments import BadArgument
from pdtlib.plan.schedule.actions import Act, Layout, Place, Program, Schedule
from pdtlib.plan.schedule.check import check
from pdtlib.plan.schedule.replay import Costs, feeds, replay


@dataclass(frozen=True, kw_only=True)
class Lowered:
    """Programs with messages. ``schedule`` is the table of computations that they carry out."""

    schedule: Schedule
    programs: tuple[Program, ...]

    def peer(self, rank: int, act: Act) -> int:
        """The rank at the other end of a message of ``rank``."""
        return peer(self.schedule.layout, rank, act)


def peer(layout: Layout, rank: int, act: Act) -> int:
    """The rank at the other end of ``rank``'s message: activations go onwards, gradients back."""
    onwards = act.op in ("SF", "RB")
    place: Place | None = layout.after(rank, act.chunk) if onwards else layout.before(rank, act.chunk)
    if place is None or place[0] == rank:
        raise BadArgument("action", str(act), "no other rank has its other end")
    return place[0]


def lower(schedule: Schedule, costs: Costs | None = None) -> Lowered:
    """``schedule`` with its messages.

    ``costs`` (by default 1 for every forward and each half of a backward) say when messages are expected;
    other times than the real ones may cost time, never correctness. Raises ScheduleError if the table is
    illegal, and ValueError if an action takes no time (then the order of events is not defined).
    """
    check(schedule)
    timed = replay(schedule, costs or Costs())
    events: list[tuple[float, int, int, int]] = []  # (time, 0 message | 1 computation, rank, index)
    for rank, program in enumerate(schedule.programs):
        for index, act in enumerate(program):
            start, end = timed.start[rank][index], timed.end[rank][index]
            if end <= start:
                raise BadArgument("costs", end - start, f"the time of stage {rank}'s {act}", ("above 0",))
            events.append((start, 1, rank, index))
            if feeds(schedule, rank, act) is not None:
                events.append((end, 0, rank, index))
    programs: list[list[Act]] = [[] for _ in range(schedule.stages)]
    for _, kind, rank, index in sorted(events):
        act = schedule.programs[rank][index]
        if kind == 1:
            programs[rank].append(act)
            continue
        target = feeds(schedule, rank, act)
        assert target is not None
        to, wanted_by = target
        programs[rank].append(Act(f"S{act.op}", act.micro_batch, act.chunk))
        programs[to].append(Act(f"R{act.op}", act.micro_batch, wanted_by.chunk))
    return Lowered(schedule=schedule, programs=tuple(map(tuple, programs)))
