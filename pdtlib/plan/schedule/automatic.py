"""A schedule made to measure: for these times and this much memory (Qi et al. 2023, section 3.1, "ZB-1p",
"ZB-2p").

The hand-made zero-bubble schedules suppose T_F = T_B = T_W. This one plays a stage-by-stage game with the
real times: a free stage takes what is ready by fixed priorities, and a few settings of its patience are
tried, the best kept. That is a heuristic: it proves nothing about the optimum.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product

from pdtlib.plan.arguments import BadArgument, at_least
from pdtlib.plan.schedule.actions import Act, Layout, Schedule
from pdtlib.plan.schedule.replay import Costs
from pdtlib.plan.schedule.simulate import simulate

_SOON = 1e-9


def zb_auto(
    stages: int,
    microbatches: int,
    *,
    costs: Costs | None = None,
    memory_cap: float | None = None,
    kept_for_weight: float = 1.0,
) -> Schedule:
    """The lowest bubble rate found with at most ``memory_cap`` activations on a stage (2 x stages by
    default).

    ``kept_for_weight`` is the share of a micro-batch's activations that its weight gradient still needs, M_W
    / M_B: by the paper 32 h / (34 h + 5 a s), which is 0.37 and 0.43 for its 1.5 B and 14.6 B models, and by
    default all.

    Raises ValueError if the cap holds less than one micro-batch, or the share isn't between 0 and 1.
    """
    costs = costs or Costs()
    cap = 2.0 * stages if memory_cap is None else memory_cap
    at_least("memory_cap", cap, 1)
    if not 0 <= kept_for_weight <= 1:
        raise BadArgument("kept_for_weight", kept_for_weight, valid=("0 to 1",))
    layout = Layout(stages=stages)
    empty = Schedule(name="zb-auto", layout=layout, microbatches=microbatches, programs=((),) * stages)
    times = [chunks[0] for chunks in costs.by_place(empty)]
    tables = (
        _Game(times, costs.transfer, microbatches, cap, kept_for_weight, patience).play()
        for patience in _patiences()
    )
    schedules = (
        Schedule(name="zb-auto", layout=layout, microbatches=microbatches, programs=tuple(programs))
        for programs in tables
    )
    return min(schedules, key=lambda schedule: simulate(schedule, costs).bubble_rate)


@dataclass(frozen=True, kw_only=True)
class _Patience:
    """How long a stage waits for a message rather than start something else, as a share of what it would
    start.

    ``first`` holds until its first backward: every wait for that one delays all the stages before.
    """

    first: float
    later: float
    weight: float


def _patiences() -> Iterator[_Patience]:
    for first, later, weight in product((0.2, 0.6), (0.0, 0.2), (0.0, 0.5, 1.0)):
        yield _Patience(first=first, later=later, weight=weight)


@dataclass
class _Stage:
    forwards: deque[tuple[float, int]] = field(default_factory=deque)  # (arrival, micro-batch)
    backwards: deque[tuple[float, int]] = field(default_factory=deque)
    weights: deque[int] = field(default_factory=deque)
    program: list[Act] = field(default_factory=list)
    free_at: float = 0.0
    held: float = 0.0
    runs_backwards: bool = False


class _Game:
    def __init__(
        self,
        times: list[tuple[float, float, float]],
        transfer: float,
        microbatches: int,
        cap: float,
        kept: float,
        patience: _Patience,
    ) -> None:
        self.times, self.transfer, self.cap, self.kept, self.patience = times, transfer, cap, kept, patience
        self.stages = [_Stage() for _ in times]
        self.stages[0].forwards.extend((0.0, i) for i in range(microbatches))
        self.wakes = [(0.0, s) for s in range(len(times))]

    def play(self) -> list[tuple[Act, ...]]:
        while self.wakes:
            now, s = heapq.heappop(self.wakes)
            stage = self.stages[s]
            if stage.free_at <= now + _SOON:
                op = self._choose(s, now)
                if op is not None:
                    self._start(s, op, now)
        return [tuple(stage.program) for stage in self.stages]

    def _choose(self, s: int, now: float) -> str | None:
        """A backward if there is one, else a forward that fits, else W: to make room, or in a wait."""
        stage = self.stages[s]
        forward_time, _, weight_time = self.times[s]
        next_backward = stage.backwards[0][0] if stage.backwards else math.inf
        next_forward = stage.forwards[0][0] if stage.forwards else math.inf
        if next_backward <= now + _SOON:
            return "B"
        fits = stage.held + 1 <= self.cap + _SOON
        if next_forward <= now + _SOON:
            patience = self.patience.later if stage.runs_backwards else self.patience.first
            if fits and next_backward - now >= patience * forward_time:
                return "F"
            if not fits and stage.weights:
                return "W"
        wait = min(next_backward, next_forward if fits and next_forward > now + _SOON else math.inf) - now
        return "W" if stage.weights and wait >= self.patience.weight * weight_time - _SOON else None

    def _start(self, s: int, op: str, now: float) -> None:
        stage = self.stages[s]
        if op == "F":
            micro_batch = stage.forwards.popleft()[1]
            stage.held += 1
        elif op == "B":
            micro_batch = stage.backwards.popleft()[1]
            stage.held -= 1 - self.kept
            stage.weights.append(micro_batch)
            stage.runs_backwards = True
        else:
            micro_batch = stage.weights.popleft()
            stage.held -= self.kept
        stage.program.append(Act(op, micro_batch))
        stage.free_at = now + self.times[s]["FBW".index(op)]
        heapq.heappush(self.wakes, (stage.free_at, s))
        if op == "F" and s == len(self.stages) - 1:
            stage.backwards.append((stage.free_at, micro_batch))
        elif op == "F":
            self._send(s + 1, self.stages[s + 1].forwards, stage.free_at, micro_batch)
        elif op == "B" and s > 0:
            self._send(s - 1, self.stages[s - 1].backwards, stage.free_at, micro_batch)

    def _send(self, to: int, queue: deque[tuple[float, int]], sent: float, micro_batch: int) -> None:
        arrival = sent + self.transfer
        queue.append((arrival, micro_batch))
        heapq.heappush(self.wakes, (arrival, to))
