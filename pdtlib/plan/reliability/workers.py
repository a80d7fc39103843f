"""Workers that update a shared model: all together, each on its own, or on its own within a bound.

An update is one worker's gradient. In the synchronous mode a round's gradients arrive together when its
slowest worker is done. With a bound (stale-synchronous, Ho et al. 2013) a worker may start a gradient while
it is at most ``bound`` gradients ahead of the slowest; 0 means in step with it.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

from pdtlib.plan.arguments import BadArgument, at_least

MODES = ("synchronous", "asynchronous", "stale-synchronous")


@dataclass(frozen=True, kw_only=True)
class Update:
    """``worker`` computed from ``start_s`` to ``done_s``, and its gradient counted at ``applied_s``.

    ``staleness`` is how many other gradients had changed the model since this worker read it; in the
    synchronous mode the gradients of a round are one change, and it is 0.
    """

    worker: int
    start_s: float
    done_s: float
    applied_s: float
    staleness: int


@dataclass(frozen=True, kw_only=True)
class Updates:
    """All updates applied up to ``until_s``, in order."""

    until_s: float
    updates: tuple[Update, ...]

    @property
    def per_second(self) -> float:
        return len(self.updates) / self.until_s

    @property
    def mean_staleness(self) -> float:
        return sum(update.staleness for update in self.updates) / max(1, len(self.updates))


def simulate_workers(
    step_times_s: Sequence[float], *, until_s: float, mode: str = "asynchronous", bound: int = 0
) -> Updates:
    """Workers that each need ``step_times_s[i]`` for a gradient.

    >>> times = [1.0] * 7 + [4.0]
    >>> simulate_workers(times, until_s=400, mode="synchronous").per_second
    2.0
    >>> simulate_workers(times, until_s=400).per_second
    7.25
    """
    if mode not in MODES:
        raise BadArgument("mode", mode, valid=MODES)
    if not step_times_s or min(step_times_s) <= 0 or not math.isfinite(max(step_times_s)):
        raise BadArgument("step_times_s", list(step_times_s), valid=("one time above 0 for each worker",))
    if not 0 < until_s < math.inf:
        raise BadArgument("until_s", until_s, valid=("above 0, in seconds",))
    at_least("bound", bound, 0)
    if mode == "synchronous":
        return _rounds(step_times_s, until_s)
    return _own_pace(step_times_s, until_s, math.inf if mode == "asynchronous" else bound)


def _rounds(step_times_s: Sequence[float], until_s: float) -> Updates:
    slowest = max(step_times_s)
    updates = []
    number = 0
    while (number + 1) * slowest <= until_s * (1 + 1e-12):
        start = number * slowest
        for worker, time in enumerate(step_times_s):
            updates.append(
                Update(
                    worker=worker,
                    start_s=start,
                    done_s=start + time,
                    applied_s=start + slowest,
                    staleness=0,
                )
            )
        number += 1
    return Updates(until_s=until_s, updates=tuple(updates))


def _own_pace(step_times_s: Sequence[float], until_s: float, bound: float) -> Updates:
    count = len(step_times_s)
    done = [0] * count  # gradients that each worker has given
    started = [0.0] * count
    read = [0] * count  # the model's version that each worker computes on
    blocked: set[int] = set()
    queue = [(time, worker) for worker, time in enumerate(step_times_s)]
    heapq.heapify(queue)
    updates: list[Update] = []

    def start(worker: int, now: float) -> None:
        started[worker], read[worker] = now, len(updates)
        heapq.heappush(queue, (now + step_times_s[worker], worker))

    while queue and queue[0][0] <= until_s * (1 + 1e-12):
        now, worker = heapq.heappop(queue)
        updates.append(
            Update(
                worker=worker,
                start_s=started[worker],
                done_s=now,
                applied_s=now,
                staleness=len(updates) - read[worker],
            )
        )
        done[worker] += 1
        blocked.add(worker)
        slowest = min(done)
        for ready in sorted(w for w in blocked if done[w] - slowest <= bound):
            blocked.discard(ready)
            start(ready, now)
    return Updates(until_s=until_s, updates=tuple(updates))
