"""A run that fails, restarts and saves, event by event: what the formulas of ``goodput`` average over."""

from __future__ import annotations

import random
from dataclasses import dataclass

from pdtlib.plan.arguments import BadArgument, at_least


@dataclass(frozen=True, kw_only=True)
class RunEvent:
    """A span of the run: ``kind`` is work, save, lost (work or a save that a failure undid) or restart."""

    kind: str
    start_s: float
    end_s: float


@dataclass(frozen=True, kw_only=True)
class Run:
    """A finished run. ``goodput`` is its work over its time."""

    work_s: float
    wall_s: float
    failures: int
    lost_s: float
    saving_s: float
    restarting_s: float
    events: tuple[RunEvent, ...]

    @property
    def goodput(self) -> float:
        return self.work_s / self.wall_s


def simulate_run(
    work_s: float,
    *,
    mtbf_s: float,
    save_s: float,
    interval_s: float,
    restart_s: float = 0.0,
    seed: int = 0,
    give_up_s: float | None = None,
) -> Run:
    """A run with ``work_s`` of work, a save after each ``interval_s``, and failures drawn from ``seed``.

    Failures come at any moment with the same chance (exponential times between them), also during a save or
    a restart, which then starts again. A failure takes everything since the last finished save.

    Raises ValueError if the run isn't over after ``give_up_s`` (by default 1,000 times its work).
    """
    for name, value in (("work_s", work_s), ("mtbf_s", mtbf_s), ("interval_s", interval_s)):
        if not value > 0:
            raise BadArgument(name, value, valid=("above 0, in seconds",))
    at_least("save_s", save_s, 0)
    at_least("restart_s", restart_s, 0)
    limit = 1000 * work_s if give_up_s is None else give_up_s
    draw = random.Random(seed)
    now, done, next_failure, failures = 0.0, 0.0, draw.expovariate(1 / mtbf_s), 0
    events: list[RunEvent] = []

    def spend(kind: str, seconds: float) -> bool:
        """Let ``seconds`` pass; False if a failure comes first."""
        nonlocal now, next_failure, failures
        start, now = now, min(now + seconds, next_failure)
        events.append(RunEvent(kind=kind, start_s=start, end_s=now))
        if start + seconds <= next_failure:
            return True
        next_failure = now + draw.expovariate(1 / mtbf_s)
        failures += 1
        return False

    while done < work_s * (1 - 1e-12):  # what rounding leaves over is no work
        if now > limit:
            message = f"{done:g} s of {work_s:g} s are done after {limit:g} s"
            raise BadArgument("interval_s", interval_s, message, ("a shorter one",))
        piece = min(interval_s, work_s - done)
        first = len(events)
        if spend("work", piece) and spend("save", save_s):
            done += piece
            continue
        events[first:] = [RunEvent(kind="lost", start_s=events[first].start_s, end_s=now)]
        while not spend("restart", restart_s):
            pass

    def total(kind: str) -> float:
        return sum(event.end_s - event.start_s for event in events if event.kind == kind)

    return Run(
        work_s=work_s,
        wall_s=now,
        failures=failures,
        lost_s=total("lost"),
        saving_s=total("save"),
        restarting_s=total("restart"),
        events=tuple(events),
    )
