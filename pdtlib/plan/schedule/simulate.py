"""The simulator: a table and the times of its actions -> a timeline, its bubble, its memory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from pdtlib.plan.schedule.actions import Schedule
from pdtlib.plan.schedule.check import ScheduleError, cell_fault, circle
from pdtlib.plan.schedule.memory import held_after, peak_in_flight
from pdtlib.plan.schedule.replay import Costs, replay


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """When each action starts and ends ([rank][index]), in the unit of ``costs``, the first one at 0."""

    schedule: Schedule
    costs: Costs
    start: tuple[tuple[float, ...], ...]
    end: tuple[tuple[float, ...], ...]

    @property
    def makespan(self) -> float:
        """From the first start to the last end."""
        return max(ends[-1] for ends in self.end)

    @cached_property
    def busy(self) -> tuple[float, ...]:
        """Time that each rank computes; an overlapped pair counts once."""
        return tuple(
            sum(
                end - max(start, before)
                for start, end, before in zip(starts, ends, (0.0, *ends), strict=False)
            )
            for starts, ends in zip(self.start, self.end, strict=True)
        )

    @property
    def bubble_fraction(self) -> float:
        """Idle share of stages x makespan: (p-1)/(m+p-1) for GPipe and 1F1B with equal stages."""
        return max(0.0, 1 - sum(self.busy) / (self.schedule.stages * self.makespan))

    @property
    def bubble_rate(self) -> float:
        """(cost - m (T_F + T_B + T_W)) / cost, the zero-bubble paper's rate (Qi et al. 2023, section 5.3).

        ``cost`` is the longest time that a rank is occupied from its own first start to its own last end:
        their optimizer step needs no barrier, so that a stage which starts later may also end later. With
        unequal stages the work in the numerator is the busiest rank's.
        """
        cost = max(ends[-1] - starts[0] for starts, ends in zip(self.start, self.end, strict=True))
        return max(0.0, (cost - max(self.busy)) / cost)

    @property
    def peak_in_flight(self) -> list[float]:
        """The most activations each rank holds, in micro-batches of a whole stage."""
        return peak_in_flight(self.schedule)

    def memory(self, rank: int, *, kept_for_weight: float = 1.0) -> list[tuple[float, float]]:
        """(time, activations held) at each change of what ``rank`` holds, as steps.

        A forward's activations count from its start, and are freed at the end of the backward that frees
        them.
        """
        held = held_after(self.schedule, rank, kept_for_weight=kept_for_weight)
        program = self.schedule.programs[rank]
        return [
            (self.start[rank][i] if act.op == "F" else self.end[rank][i], held[i])
            for i, act in enumerate(program)
        ]


def simulate(schedule: Schedule, costs: Costs | None = None) -> Timeline:
    """Run ``schedule``. Raises :class:`~pdtlib.plan.schedule.check.ScheduleError` if it can't be run."""
    costs = costs or Costs()
    fault = cell_fault(schedule)
    if fault is None:
        result = replay(schedule, costs)
        fault = circle(schedule, result)
    if fault is not None:
        raise ScheduleError(schedule, fault)
    return Timeline(
        schedule=schedule,
        costs=costs,
        start=tuple(map(tuple, result.start)),
        end=tuple(map(tuple, result.end)),
    )
