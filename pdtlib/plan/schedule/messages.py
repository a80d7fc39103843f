"""Proof that lowered programs run: they end without any buffer, and use nothing before it has come."""

from __future__ import annotations

from dataclasses import replace
from itertools import zip_longest
from typing import NoReturn

from pdtlib.plan.schedule.actions import COMPUTE, Act
from pdtlib.plan.schedule.check import Fault, ScheduleError
from pdtlib.plan.schedule.lower import Lowered, peer
from pdtlib.plan.schedule.replay import feeds, needs


def check_messages(lowered: Lowered) -> None:
    """Run the programs with sends that wait for their receives, as a channel without buffers would.

    Raises :class:`~pdtlib.plan.schedule.check.ScheduleError`, naming and drawing the first cell at fault: a
    computation that isn't the table's, a message twice or to nobody, something used or sent before it is
    there, a deadlock.
    """
    schedule, programs = lowered.schedule, lowered.programs
    _check_computations(lowered)
    at = [0] * schedule.stages
    there: list[set[Act]] = [set() for _ in programs]  # what each rank has computed and received

    def run(rank: int) -> bool:
        """Go on with ``rank`` up to a receive, or a send whose peer isn't there yet; whether it moved."""
        before = at[rank]
        while at[rank] < len(programs[rank]):
            act = programs[rank][at[rank]]
            if act.op[0] == "R":
                break  # the sender moves both
            if act in there[rank]:
                _fail(lowered, rank, at[rank], f"{act} has run already")
            if act.op[0] == "S":
                if Act(act.op[1], act.micro_batch, act.chunk) not in there[rank]:
                    _fail(lowered, rank, at[rank], f"{act} is sent before it is computed")
                receive = _other_end(lowered, rank, act)
                if receive is None:
                    _fail(lowered, rank, at[rank], f"{act} is sent to nobody")
                to = peer(schedule.layout, rank, act)
                if programs[to][at[to] : at[to] + 1] != (receive,):
                    break
                there[to].add(receive)
                at[to] += 1
            else:
                wanted = _received_for(lowered, rank, act)
                if wanted is not None and wanted not in there[rank]:
                    _fail(lowered, rank, at[rank], f"{act} runs before {wanted} came")
            there[rank].add(act)
            at[rank] += 1
        return at[rank] > before

    moved = True
    while moved:
        moved = max([run(rank) for rank in range(schedule.stages)])
    stuck = [rank for rank, program in enumerate(programs) if at[rank] < len(program)]
    if stuck:
        first = min(stuck, key=lambda rank: (at[rank], rank))
        waits = ", ".join(f"stage {rank} at {programs[rank][at[rank]]} (cell {at[rank]})" for rank in stuck)
        _fail(lowered, first, at[first], f"deadlock, waiting for each other: {waits}")


def _check_computations(lowered: Lowered) -> None:
    for rank, program in enumerate(lowered.programs):
        cells = [index for index, act in enumerate(program) if act.op in COMPUTE]
        for index, wanted in zip_longest(cells, lowered.schedule.programs[rank]):
            found = None if index is None else program[index]
            if found != wanted:
                where = len(program) if index is None else index
                _fail(
                    lowered,
                    rank,
                    where,
                    f"the table has {wanted or 'nothing'} here, not {found or 'nothing'}",
                )


def _other_end(lowered: Lowered, rank: int, send: Act) -> Act | None:
    target = feeds(lowered.schedule, rank, Act(send.op[1], send.micro_batch, send.chunk))
    return None if target is None else Act(f"R{send.op[1]}", send.micro_batch, target[1].chunk)


def _received_for(lowered: Lowered, rank: int, act: Act) -> Act | None:
    """The receive that ``act`` needs, if what it needs comes from another rank."""
    source = needs(lowered.schedule, rank, act)
    if source is None or source[0] == rank:
        return None
    return Act(f"R{act.op}", act.micro_batch, act.chunk)


def _fail(lowered: Lowered, rank: int, index: int, message: str) -> NoReturn:
    drawn = replace(lowered.schedule, programs=lowered.programs, overlapped=frozenset())
    raise ScheduleError(drawn, Fault(rule="message", rank=rank, index=index, message=message))
