"""Run a table: when each action starts and ends, or where the ranks wait for each other for ever.

The one place that knows what an action waits for; the simulator, the check and the lowering all use it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pdtlib.plan.arguments import BadArgument
from pdtlib.plan.schedule.actions import COMPUTE, Act, Place, Schedule


@dataclass(frozen=True, kw_only=True)
class Costs:
    """How long actions take, in any one unit of time.

    ``forward``, ``backward_input`` and ``backward_weight`` are the times of a whole stage for one micro-batch
    (T_F, T_B and T_W of the zero-bubble paper); a backward whose weight gradient isn't an action of its own
    takes the sum of the last two. A number holds for every stage and is shared out evenly among its chunks. A
    sequence gives each stage's time (as many numbers as stages, likewise shared out) or each position's (as
    many as the model has pieces). ``transfer`` passes between the end of an action and the start of the next
    rank's that needs its result; the sender computes on meanwhile. ``pair`` is the time of an overlapped
    forward and backward of whole stages, by default the sum of both; they start together, when both have what
    they need, and end together.
    """

    forward: float | Sequence[float] = 1.0
    backward_input: float | Sequence[float] = 1.0
    backward_weight: float | Sequence[float] = 1.0
    transfer: float = 0.0
    pair: float | None = None

    @classmethod
    def of_places(
        cls,
        schedule: Schedule,
        places: Sequence[Sequence[tuple[float, float, float]]],
        *,
        transfer: float = 0.0,
    ) -> Costs:
        """From (forward, backward_input, backward_weight) of each rank's chunks, [rank][chunk]."""
        layout = schedule.layout
        columns: list[list[float]] = [[0.0] * layout.length for _ in range(3)]
        for rank, chunks in enumerate(places):
            for chunk, times in enumerate(chunks):
                for column, time in zip(columns, times, strict=True):
                    column[layout.position(rank, chunk)] = time
        forward, backward_input, backward_weight = columns
        return cls(
            forward=forward,
            backward_input=backward_input,
            backward_weight=backward_weight,
            transfer=transfer,
        )

    def by_place(self, schedule: Schedule) -> list[list[tuple[float, float, float]]]:
        """(forward, backward_input, backward_weight) of each rank's chunks: [rank][chunk].

        Raises ValueError for a negative time or a sequence of another length.
        """
        layout = schedule.layout
        columns = [
            _spread(getattr(self, name), schedule, name)
            for name in ("forward", "backward_input", "backward_weight")
        ]
        if not any(map(sum, columns)):
            raise BadArgument("forward", 0.0, "some action must take time", ("above 0",))
        for name in ("transfer", "pair"):
            _real(name, getattr(self, name) or 0.0)
        return [
            [(columns[0][at], columns[1][at], columns[2][at]) for at in positions]
            for positions in (
                [layout.position(rank, chunk) for chunk in range(layout.chunks)]
                for rank in range(layout.stages)
            )
        ]


def _spread(value: float | Sequence[float], schedule: Schedule, name: str) -> list[float]:
    """A time for each position."""
    layout = schedule.layout
    pieces = layout.length // layout.stages
    if isinstance(value, (int, float)):
        times = [value / pieces] * layout.length
    elif len(value) == layout.length:
        times = list(value)
    elif len(value) == layout.stages:
        times = [0.0] * layout.length
        for rank in range(layout.stages):
            for chunk in range(layout.chunks):
                times[layout.position(rank, chunk)] = value[rank] / pieces
    else:
        valid = {1, layout.stages, layout.length}
        raise BadArgument(name, list(value), f"{len(value)} times", (f"{sorted(valid)} times",))
    for time in times:
        _real(name, time)
    return times


def _real(name: str, time: float) -> None:
    if not 0 <= time < math.inf:
        raise BadArgument(name, time, valid=("0 or more, finite",))


@dataclass(frozen=True, kw_only=True)
class Replay:
    """Start and end of each action, [rank][index], as far as the ranks get.

    ``waiting`` is None for a rank that finishes, else the (rank, action) whose result its next action needs.
    """

    start: list[list[float]]
    end: list[list[float]]
    waiting: list[tuple[int, Act] | None]


def needs(schedule: Schedule, rank: int, act: Act) -> tuple[int, Act] | None:
    """The (rank, action) before ``act`` in its micro-batch's way there and back; None for the very first
    forward.

    A forward needs the forward of the position before; a backward that of the position behind, or at the last
    position the forward; a weight gradient its rank's backward. (A backward also needs its own rank's
    forward, which the position behind needed already.)
    """
    op, micro_batch, chunk = act
    if op == "W":
        return rank, Act("B", micro_batch, chunk)
    if op == "F":
        place = schedule.layout.before(rank, chunk)
        return None if place is None else (place[0], Act("F", micro_batch, place[1]))
    place = schedule.layout.after(rank, chunk)
    if place is None:
        return rank, Act("F", micro_batch, chunk)
    return place[0], Act("B", micro_batch, place[1])


def feeds(schedule: Schedule, rank: int, act: Act) -> tuple[int, Act] | None:
    """The (rank, action) of *another* rank that needs the result of ``act``: where a message must go."""
    op, micro_batch, chunk = act
    place: Place | None = None
    if op == "F":
        place = schedule.layout.after(rank, chunk)
    elif op == "B":
        place = schedule.layout.before(rank, chunk)
    if place is None or place[0] == rank:
        return None
    return place[0], Act(op, micro_batch, place[1])


def replay(schedule: Schedule, costs: Costs | None = None) -> Replay:
    """Run every rank's program in order: an action starts once its rank is free and what it needs has come.

    The cells must be legal one by one (see ``check``); whether the ranks wait in a circle is found out here.
    """
    costs = costs or Costs()
    stages = schedule.stages
    kinds = _kinds(schedule, costs)
    pair = None if costs.pair is None else costs.pair * stages / schedule.layout.length
    start: list[list[float]] = [[] for _ in range(stages)]
    end: list[list[float]] = [[] for _ in range(stages)]
    waiting: list[tuple[int, Act] | None] = [None] * stages
    runnable = list(range(stages - 1, -1, -1))
    while runnable:
        rank = runnable.pop()
        program, kind_of, deferred = schedule.programs[rank], kinds[rank], schedule.deferred[rank]
        overlapped = schedule.overlapped
        begun, ended = start[rank], end[rank]
        clock = ended[-1] if ended else 0.0
        waiting[rank] = None
        index = len(begun)
        while index < len(program):
            together = 2 if overlapped and (rank, index) in overlapped else 1
            ready, length = clock, 0.0
            for op, micro_batch, chunk in program[index : index + together]:
                kind = kind_of[op, chunk]
                if kind.source is not None:
                    arrival = kind.source[micro_batch]
                    if arrival is None:
                        waiting[rank] = (
                            kind.source_rank,
                            Act(kind.source_op, micro_batch, kind.source_chunk),
                        )
                        break
                    if arrival + kind.delay > ready:
                        ready = arrival + kind.delay
                length += (
                    kind.half if kind.half is not None and (micro_batch, chunk) in deferred else kind.time
                )
            if waiting[rank] is not None:
                break
            clock = ready + (length if together == 1 or pair is None else pair)
            for op, micro_batch, chunk in program[index : index + together]:
                kind = kind_of[op, chunk]
                begun.append(ready)
                ended.append(clock)
                kind.done[micro_batch] = clock
                wanted = waiting[kind.feeds_rank] if kind.feeds_rank is not None else None
                if kind.feeds_rank is not None and wanted == (rank, (op, micro_batch, chunk)):
                    runnable.append(kind.feeds_rank)
            index += together
    return Replay(start=start, end=end, waiting=waiting)


@dataclass(slots=True, kw_only=True)
class _Kind:
    """What all actions of one op and chunk of one rank have in common."""

    done: list[float | None]  # when each micro-batch's ended
    time: float
    half: float | None  # a backward without its weight gradient
    source: list[float | None] | None = None  # ``done`` of what it needs
    source_rank: int = 0
    source_op: str = ""
    source_chunk: int = 0
    delay: float = 0.0
    feeds_rank: int | None = None  # another rank that needs it


def _kinds(schedule: Schedule, costs: Costs) -> list[dict[tuple[str, int], _Kind]]:
    """[rank][op, chunk]"""
    times = costs.by_place(schedule)
    kinds: list[dict[tuple[str, int], _Kind]] = [{} for _ in times]
    for rank, by_chunk in enumerate(times):
        for chunk, (forward, backward_input, backward_weight) in enumerate(by_chunk):
            for op, time in zip(
                COMPUTE, (forward, backward_input + backward_weight, backward_weight), strict=True
            ):
                kinds[rank][op, chunk] = _Kind(
                    done=[None] * schedule.microbatches, time=time, half=backward_input if op == "B" else None
                )
    for rank, by_kind in enumerate(kinds):
        for (op, chunk), kind in by_kind.items():
            wanted = needs(schedule, rank, Act(op, 0, chunk))
            if wanted is not None:
                kind.source_rank, (kind.source_op, _, kind.source_chunk) = wanted
                kind.source = kinds[kind.source_rank][kind.source_op, kind.source_chunk].done
                kind.delay = 0.0 if kind.source_rank == rank else costs.transfer
            target = feeds(schedule, rank, Act(op, 0, chunk))
            if target is not None:
                kind.feeds_rank = target[0]
    return kinds
