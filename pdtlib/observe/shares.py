"""Where a step's time went: computation, exposed communication, bubble, data, and what is left.

Every moment of a step belongs to exactly one share, so they add up to the step by construction. Waiting
counts before working, since a forward pass that waits inside for a message does not compute meanwhile:

    bubble      waiting for another pipeline stage (lane ``wait pp``)
    exposed     waiting for any other message: communication that nothing hides
    data        making the batch
    compute     passes and the optimizer
    other       the rest: Python between the spans
"""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pdtlib.observe.trace import Span

Intervals = list[tuple[float, float]]


@dataclass(frozen=True, kw_only=True)
class Shares:
    """Seconds of one rank's step; ``exposed_s`` and ``in_flight_s`` by axis of the mesh.

    ``in_flight_s`` is the time in which a message of the axis was under way, hidden or not.
    """

    step_s: float
    compute_s: float
    bubble_s: float
    data_s: float
    other_s: float
    exposed_s: Mapping[str, float]
    in_flight_s: Mapping[str, float]

    @property
    def communication_s(self) -> float:
        """Exposed communication over all axes."""
        return sum(self.exposed_s.values())


def union(intervals: Iterable[tuple[float, float]]) -> Intervals:
    """Overlapping intervals merged, in order.

    >>> union([(3, 5), (0, 2), (1, 2.5)])
    [(0, 2.5), (3, 5)]
    """
    found: Intervals = []
    for start, end in sorted(interval for interval in intervals if interval[1] > interval[0]):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def without(intervals: Intervals, taken: Intervals) -> Intervals:
    """What of merged ``intervals`` lies outside merged ``taken``.

    >>> without([(0, 10)], [(2, 3), (9, 12)])
    [(0, 2), (3, 9)]
    """
    found: Intervals = []
    for start, end in intervals:
        for other_start, other_end in taken:
            if other_end <= start or other_start >= end:
                continue
            if other_start > start:
                found.append((start, other_start))
            start = max(start, other_end)
        if start < end:
            found.append((start, end))
    return found


def length(intervals: Intervals) -> float:
    """Seconds that merged intervals cover."""
    return sum(end - start for start, end in intervals)


def shares(spans: Sequence[Span], step: Span) -> Shares:
    """The shares of the step that ``step`` spans."""

    def lane(*kinds: str) -> Intervals:
        inside = (span for span in spans if span.lane in kinds or span.lane.partition(" ")[0] in kinds)
        clipped = ((max(span.start_s, step.start_s), min(span.end_s, step.end_s)) for span in inside)
        return union(clipped)

    bubble = lane("wait pp")
    taken, exposed, in_flight = bubble, {}, {}
    lanes = {span.lane for span in spans}
    for name in sorted(lanes):
        kind, _, axis = name.partition(" ")
        if kind == "wait" and axis != "pp":
            mine = without(lane(name), taken)
            exposed[axis] = length(mine)
            taken = union([*taken, *mine])
        elif kind == "communication":
            in_flight[axis] = length(lane(name))
    data = without(lane("data"), taken)
    taken = union([*taken, *data])
    compute = without(lane("compute", "optimizer"), taken)
    taken = union([*taken, *compute])
    return Shares(
        step_s=step.end_s - step.start_s,
        compute_s=length(compute),
        bubble_s=length(bubble),
        data_s=length(data),
        other_s=length(without([(step.start_s, step.end_s)], taken)),
        exposed_s=exposed,
        in_flight_s=in_flight,
    )


def steps_of(spans: Sequence[Span]) -> list[Shares]:
    """The shares of every step of one rank's spans, in order."""
    found = []
    for step in sorted((span for span in spans if span.lane == "step"), key=lambda span: span.start_s):
        inside = [span for span in spans if span.end_s > step.start_s and span.start_s < step.end_s]
        found.append(shares(inside, step))
    return found


def typical(steps: Sequence[Shares]) -> Shares:
    """Medians over steps. The first, which measures memory and fills caches, is left out if there are more.

    Shares of medians need not add up to the median step; what is missing or too much goes to ``other_s``.
    """
    counted = steps[1:] or steps

    def middle(values: Iterable[float]) -> float:
        return statistics.median(values)

    step_s = middle(one.step_s for one in counted)
    parts = {
        name: middle(getattr(one, name) for one in counted) for name in ("compute_s", "bubble_s", "data_s")
    }
    axes = sorted({axis for one in counted for axis in one.exposed_s})
    exposed = {axis: middle(one.exposed_s.get(axis, 0.0) for one in counted) for axis in axes}
    flying = sorted({axis for one in counted for axis in one.in_flight_s})
    in_flight = {axis: middle(one.in_flight_s.get(axis, 0.0) for one in counted) for axis in flying}
    rest = step_s - sum(parts.values()) - sum(exposed.values())
    return Shares(step_s=step_s, other_s=rest, exposed_s=exposed, in_flight_s=in_flight, **parts)


def read_perfetto(path: Path) -> dict[int, list[Span]]:
    """Rank -> spans of a ``trace.json``. Raises ``ValueError`` for a file that is none."""
    try:
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
        found: dict[int, list[Span]] = defaultdict(list)
        begun: dict[tuple[int, Any], dict[str, Any]] = {}
        for event in events:
            rank, at_s = event["pid"], event.get("ts", 0.0) / 1e6
            if event["ph"] == "X":
                end_s = at_s + event["dur"] / 1e6
                found[rank].append(Span(event["cat"], event["name"], at_s, end_s))
            elif event["ph"] == "b":
                begun[rank, event["id"]] = event
            elif event["ph"] == "e":
                start = begun.pop((rank, event["id"]))
                found[rank].append(Span(start["cat"], start["name"], start["ts"] / 1e6, at_s))
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ValueError(f"{path} is no trace that pdt run writes: {error}") from error
    return dict(found)
