"""When each rank did what: named spans in lanes, and the Perfetto file made of them.

A training step marks its parts as spans (``forward``, ``backward``, ``clip``, ``step``), the collectives
mark their own. Two lanes belong to communication: ``communication`` holds a message from its issue to its
completion and may overlap with computation; ``wait`` holds the time in which a rank could do nothing else.
Their difference is what overlap has won, and ``wait`` alone is the exposed communication that a step pays
for. Both exist once for every axis of the mesh: ``wait tp``, ``communication dp``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from pdtlib.plan.overlap import Span

LANES = ("step", "data", "compute", "optimizer", "wait", "communication")
"""Kinds of lanes, from top to bottom; a lane's name is its kind, or its kind and an axis."""


class Timeline:
    """Collects the spans of one rank, one step at a time, in seconds since the epoch: so ranks line up.

    On a CPU a span is measured with the process's clock. On a GPU the host runs ahead of the device, so a
    span is a pair of CUDA events on the current stream; their times are read in :meth:`finish_step`, after
    the device has caught up. A ``wait`` span around ``work.wait()`` then measures how long the stream stood
    still.
    """

    def __init__(self, *, device: torch.device | None = None) -> None:
        self._cuda = device is not None and device.type == "cuda"
        self._marks: list[tuple[str, str, Any, Any]] = []
        self._epoch_s = time.time() - time.perf_counter()
        if self._cuda:
            torch.cuda.synchronize(device)
            self._origin = torch.cuda.Event(enable_timing=True)
            self._origin.record()
            self._epoch_s = time.time()

    def _now(self) -> Any:
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _seconds(self, mark: Any) -> float:
        if not self._cuda:
            return self._epoch_s + mark
        return self._epoch_s + self._origin.elapsed_time(mark) / 1e3

    @contextmanager
    def span(self, lane: str, name: str) -> Iterator[None]:
        """Measure the body of a ``with`` block."""
        start = self._now()
        try:
            yield
        finally:
            self._marks.append((lane, name, start, self._now()))

    def begin(self, lane: str, name: str) -> tuple[str, str, Any]:
        """Start a span that ends elsewhere; pass what is returned to :meth:`end`."""
        return lane, name, self._now()

    def end(self, token: tuple[str, str, Any]) -> None:
        """End a span that :meth:`begin` started."""
        self._marks.append((*token, self._now()))

    def finish_step(self) -> list[Span]:
        """Return the spans since the last call and forget them. On a GPU, waits for the device."""
        if self._cuda:
            torch.cuda.synchronize()
        marks, self._marks = self._marks, []
        return [Span(lane, name, self._seconds(a), self._seconds(b)) for lane, name, a, b in marks]


def covered_s(spans: Iterable[Span], *lanes: str) -> float:
    """Seconds in which at least one span of ``lanes`` was open (overlaps count once).

    A kind of lane stands for those of all axes.

    >>> covered_s([Span("wait", "a", 0, 2), Span("wait", "b", 1, 3), Span("compute", "c", 5, 9)], "wait")
    3.0
    """
    total = 0.0
    end = float("-inf")
    counted = (span for span in spans if span.lane in lanes or span.lane.partition(" ")[0] in lanes)
    for span in sorted(counted, key=lambda span: span.start_s):
        total += max(0.0, span.end_s - max(span.start_s, end))
        end = max(end, span.end_s)
    return total


def perfetto(ranks: dict[int, list[Span]]) -> dict[str, Any]:
    """Spans of every rank as a Chrome trace: a process per rank, a thread per lane, times in microseconds.

    Messages in flight overlap one another, which slices of one thread must not, so ``communication`` is
    written as asynchronous events, for which the viewer opens as many rows as it needs.
    """
    origin_s = min((span.start_s for spans in ranks.values() for span in spans), default=0.0)
    found = dict.fromkeys(span.lane for spans in ranks.values() for span in spans)
    lanes = sorted(found, key=lambda lane: (LANES.index(lane.partition(" ")[0]), lane))
    events: list[dict[str, Any]] = []
    for rank, spans in sorted(ranks.items()):
        events.append({"ph": "M", "name": "process_name", "pid": rank, "args": {"name": f"rank {rank}"}})
        events.append({"ph": "M", "name": "process_sort_index", "pid": rank, "args": {"sort_index": rank}})
        for tid, lane in enumerate(lanes):
            events.append({"ph": "M", "name": "thread_name", "pid": rank, "tid": tid, "args": {"name": lane}})
        for number, span in enumerate(spans):
            start_us = (span.start_s - origin_s) * 1e6
            common = {"name": span.name, "cat": span.lane, "pid": rank, "tid": lanes.index(span.lane)}
            if span.lane.partition(" ")[0] == "communication":
                name = f"{rank}.{number}"
                events.append({**common, "ph": "b", "id": name, "ts": start_us})
                events.append({**common, "ph": "e", "id": name, "ts": (span.end_s - origin_s) * 1e6})
            else:
                duration_us = (span.end_s - span.start_s) * 1e6
                events.append({**common, "ph": "X", "ts": start_us, "dur": duration_us})
    return {"displayTimeUnit": "ms", "traceEvents": events}


def write_perfetto(path: Path, *, ranks: dict[int, list[Span]]) -> None:
    """Write ``trace.json``; it opens in Perfetto and in ``chrome://tracing``."""
    path.write_text(json.dumps(perfetto(ranks)), encoding="utf-8")
