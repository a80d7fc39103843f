"""Where a step's time went: computation, exposed communication, bubble, data, and what is left.

Every moment of a step belongs to exactly one share, so they add up to the step by construction. Waiting
counts before working, since a forward pass that waits inside for a message does not compute meanwhile:

    bubble      waiting for another pipeline stage (lane ``wait pp``)
    exposed     waiting for any other message: communication that nothing hides
    data        making the batch
    compute     passes and the optimizer
    other       the rest: Python between the spans
"""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pdtlib.plan.intervals import Intervals, length, union, without
from pdtlib.plan.overlap import Span


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


def spans_of(events: Iterable[Mapping[str, Any]]) -> dict[int, list[Span]]:
    """Rank -> spans of a Chrome trace's events, as ``pdt run`` writes them.

    Raises LookupError or TypeError where an event is none of those.
    """
    found: dict[int, list[Span]] = defaultdict(list)
    begun: dict[tuple[int, Any], Mapping[str, Any]] = {}
    for event in events:
        rank, at_s = event["pid"], event.get("ts", 0.0) / 1e6
        if event["ph"] == "X":
            found[rank].append(Span(event["cat"], event["name"], at_s, at_s + event["dur"] / 1e6))
        elif event["ph"] == "b":
            begun[rank, event["id"]] = event
        elif event["ph"] == "e":
            start = begun.pop((rank, event["id"]))
            found[rank].append(Span(start["cat"], start["name"], start["ts"] / 1e6, at_s))
    return dict(found)
