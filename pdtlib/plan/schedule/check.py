"""Is a table legal? Each action once, after what it needs, no waiting in a circle, memory under a cap."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pdtlib.plan.arguments import BadArgument, at_least
from pdtlib.plan.schedule.actions import COMPUTE, Act, Schedule
from pdtlib.plan.schedule.memory import held_after
from pdtlib.plan.schedule.replay import Replay, replay
from pdtlib.plan.schedule.text import grid

_BEFORE = {"F": "", "B": "F", "W": "B"}  # what its own rank must have run before


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What is wrong at ``programs[rank][index]``; an index behind the last one: something is missing."""

    rule: str
    rank: int
    index: int
    message: str


class ScheduleError(ValueError):
    """An illegal table; its text names the first offending cell and marks it in a grid."""

    def __init__(self, schedule: Schedule, fault: Fault) -> None:
        self.fault = fault
        picture = grid(schedule, mark=(fault.rank, fault.index))
        super().__init__(f"stage {fault.rank}, cell {fault.index}: {fault.message}\n{picture}")


def check(schedule: Schedule, *, memory_cap: float | None = None, kept_for_weight: float = 1.0) -> None:
    """Prove ``schedule`` legal, or raise :class:`ScheduleError`.

    ``memory_cap`` is the most that a stage may hold, in activations of a whole stage for one micro-batch, of
    which a weight gradient that is still owed keeps the share ``kept_for_weight``. Raises ValueError for a
    cap below 0 or a share outside 0 to 1.
    """
    if memory_cap is not None:
        at_least("memory_cap", memory_cap, 0)
    if not 0 <= kept_for_weight <= 1:
        raise BadArgument("kept_for_weight", kept_for_weight, valid=("0 to 1",))
    fault = first_fault(schedule, memory_cap=memory_cap, kept_for_weight=kept_for_weight)
    if fault is not None:
        raise ScheduleError(schedule, fault)


def first_fault(
    schedule: Schedule, *, memory_cap: float | None = None, kept_for_weight: float = 1.0
) -> Fault | None:
    """The first fault, or None if the table is legal.

    Cells are judged on their own first (the leftmost faulty cell wins, then the upper one), then whether the
    ranks ever wait for each other, then memory.
    """
    fault = cell_fault(schedule)
    if fault is None:
        fault = circle(schedule, replay(schedule))
    if fault is not None or memory_cap is None:
        return fault
    over = [
        fault
        for rank in range(schedule.stages)
        for fault in _over(schedule, rank, memory_cap, kept_for_weight)
    ]
    return min(over, key=lambda fault: (fault.index, fault.rank), default=None)


def cell_fault(schedule: Schedule) -> Fault | None:
    """The first fault that can be seen in one rank's program alone."""
    own = [fault for rank in range(schedule.stages) for fault in _own_faults(schedule, rank)]
    return min(own, key=lambda fault: (fault.index, fault.rank), default=None)


def _own_faults(schedule: Schedule, rank: int) -> Iterator[Fault]:
    """The first fault that can be seen in this rank's program alone, and the first action that it lacks."""
    layout, program = schedule.layout, schedule.programs[rank]
    expected = {
        (micro_batch, chunk)
        for chunk in range(layout.chunks)
        for micro_batch in layout.micro_batches(chunk, schedule.microbatches)
    }
    seen: dict[tuple[str, int, int], int] = {}

    def fault(rule: str, index: int, message: str) -> Fault:
        return Fault(rule=rule, rank=rank, index=index, message=message)

    for index, act in enumerate(program):
        op, micro_batch, chunk = act
        if op not in COMPUTE:
            yield fault("action", index, f"{act} is no computation; valid: {', '.join(COMPUTE)}")
            return
        if (micro_batch, chunk) not in expected:
            yield fault("action", index, f"{act} isn't this stage's: {_domain(schedule, chunk)}")
            return
        if act in seen:
            yield fault("once", index, f"{act} has run already, in cell {seen[act]}")
            return
        before = _BEFORE[op]
        if before and (before, micro_batch, chunk) not in seen:
            yield fault("order", index, f"{act} needs {Act(before, micro_batch, chunk)}, which has not run")
            return
        seen[act] = index
    missing = {(op, *place) for op in "FB" for place in expected} - seen.keys()
    if missing:
        first = min(missing, key=lambda act: ("FB".index(act[0]), act[2], act[1]))
        yield fault("once", len(program), f"{Act(*first)} is missing")
    for index in range(len(program)) if schedule.overlapped else ():
        pair = [act.op for act in program[index : index + 2]]
        if (rank, index) in schedule.overlapped and pair != ["F", "B"]:
            yield fault("overlap", index, "only a forward can overlap the backward behind it")
            return


def _domain(schedule: Schedule, chunk: int) -> str:
    layout = schedule.layout
    if chunk >= layout.chunks:
        return f"it has chunk {', '.join(map(str, range(layout.chunks)))}"
    numbers = layout.micro_batches(chunk, schedule.microbatches)
    if not numbers:
        return f"its chunk {chunk} takes no micro-batch"
    return f"its chunk {chunk} takes micro-batches {numbers.start} to {numbers.stop - 1}"


def circle(schedule: Schedule, result: Replay) -> Fault | None:
    """The ranks that wait for each other, if any: the leftmost cell of the circle, and who waits for whom."""
    stuck = [rank for rank, wanted in enumerate(result.waiting) if wanted is not None]
    if not stuck:
        return None
    cells = {rank: len(result.start[rank]) for rank in stuck}
    trail = [stuck[0]]
    while True:  # every rank finishes or waits for an unfinished one, so the trail must bite its own tail
        wanted = result.waiting[trail[-1]]
        assert wanted is not None
        if wanted[0] in trail:
            waiting = trail[trail.index(wanted[0]) :]
            break
        trail.append(wanted[0])
    first = min(waiting, key=lambda rank: (cells[rank], rank))
    start = waiting.index(first)
    links = []
    for rank in waiting[start:] + waiting[:start]:
        wanted = result.waiting[rank]
        assert wanted is not None
        here = schedule.programs[rank][cells[rank]]
        links.append(f"stage {rank} waits at {here} for stage {wanted[0]}'s {wanted[1]}")
    return Fault(rule="deadlock", rank=first, index=cells[first], message="deadlock: " + ", ".join(links))


def _over(schedule: Schedule, rank: int, cap: float, kept_for_weight: float) -> Iterator[Fault]:
    for index, held in enumerate(held_after(schedule, rank, kept_for_weight=kept_for_weight)):
        if held > cap + 1e-9:
            act = schedule.programs[rank][index]
            message = f"{act} makes this stage hold {held:g} activations; the cap is {cap:g}"
            yield Fault(rule="memory", rank=rank, index=index, message=message)
            return
