"""Data parallelism's overlap: gradients are reduced bucket by bucket while the backward pass goes on.

The backward pass reaches tensors in reverse order; a bucket can be reduced once its last gradient is there
and the bucket before it has left the link. What ends after the backward pass is exposed (Li 2020,
arXiv:2006.15704, section 3.2).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pdtlib.plan.comm import ring_steps, sent_bytes
from pdtlib.plan.sharding import buckets


@dataclass(frozen=True, slots=True)
class Span:
    """Something that occupies a lane from ``start_s`` to ``end_s``."""

    lane: str
    name: str
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Overlap:
    """The timeline of one backward pass with its gradient reduction."""

    spans: tuple[Span, ...]
    backward_s: float
    communication_s: float
    end_s: float

    @property
    def exposed_s(self) -> float:
        """Time that the step waits for communication after the backward pass."""
        return self.end_s - self.backward_s


def collective_s(
    collective: str, message_bytes: float, group_size: int, *, bytes_per_s: float, latency_s: float
) -> float:
    """Time of a ring collective in the alpha-beta model: its steps' latencies, and its bytes over the link.

    >>> round(collective_s("all_reduce", 1e9, 8, bytes_per_s=25e9, latency_s=1e-5), 5)
    0.07014
    """
    steps = ring_steps(collective, group_size)
    return steps * latency_s + sent_bytes(collective, message_bytes, group_size) / bytes_per_s


def bucket_timeline(
    sizes_bytes: Sequence[int],
    *,
    limit_bytes: int,
    backward_s: float,
    dp: int,
    bytes_per_s: float,
    latency_s: float,
    overlap: bool = True,
) -> Overlap:
    """Lanes ``compute`` and ``communication`` of a backward pass over tensors given in forward order.

    The backward pass spends its time on tensors in proportion to their size. ``bytes_per_s`` is one
    direction of the link, ``latency_s`` one ring step. Without ``overlap``, reduction starts at the end.

    >>> line = bucket_timeline([4, 4], limit_bytes=4, backward_s=2.0, dp=2, bytes_per_s=4.0, latency_s=0.0)
    >>> [(span.name, span.start_s, span.end_s) for span in line.spans if span.lane == "communication"]
    [('bucket 0', 1.0, 2.0), ('bucket 1', 2.0, 3.0)]
    >>> line.exposed_s
    1.0
    """
    if not sizes_bytes or min(sizes_bytes) <= 0:
        raise ValueError(f"sizes_bytes={list(sizes_bytes)[:4]}: valid: one or more sizes above 0")
    if limit_bytes <= 0 or bytes_per_s <= 0:
        raise ValueError(f"limit_bytes={limit_bytes}, bytes_per_s={bytes_per_s}; valid: above 0")
    per_byte = backward_s / sum(sizes_bytes)
    spans: list[Span] = []
    ready = link_free = busy = 0.0
    for number, members in enumerate(buckets(sizes_bytes, limit_bytes)):
        size = sum(sizes_bytes[index] for index in members)
        spans.append(Span("compute", f"bucket {number}", ready, ready + size * per_byte))
        ready += size * per_byte
        if dp > 1:
            start = max(ready if overlap else backward_s, link_free)
            cost = collective_s("all_reduce", size, dp, bytes_per_s=bytes_per_s, latency_s=latency_s)
            link_free = start + cost
            busy += cost
            spans.append(Span("communication", f"bucket {number}", start, link_free))
    return Overlap(tuple(spans), backward_s, busy, max(backward_s, link_free))


def prefetch_timeline(gathers_s: Sequence[float], computes_s: Sequence[float], *, depth: int) -> Overlap:
    """A forward pass over layers that are gathered first, up to ``depth`` layers ahead of the one at work.

    With depth 0 a layer is gathered when the one before it is done: nothing overlaps. With depth 1 the next
    layer's gather runs beside the computation, and more helps only where the times are uneven. ``backward_s``
    is the computation alone.

    >>> round(prefetch_timeline([0.05] * 8, [0.05] * 8, depth=0).end_s, 3)
    0.8
    >>> round(prefetch_timeline([0.05] * 8, [0.05] * 8, depth=1).end_s, 3)
    0.45
    """
    if len(gathers_s) != len(computes_s) or not gathers_s:
        counts = f"gathers_s: {len(gathers_s)} times, computes_s: {len(computes_s)}"
        raise ValueError(f"{counts}; valid: as many of both, at least one")
    if depth < 0:
        raise ValueError(f"depth={depth}; valid: 0 or more")
    spans: list[Span] = []
    done: list[float] = []
    link_free = 0.0
    for number, (gather, compute) in enumerate(zip(gathers_s, computes_s, strict=True)):
        # A gather starts when the layer ``depth + 1`` before it has left its buffer.
        behind = number - depth - 1
        start = max(link_free, done[behind] if behind >= 0 else 0.0)
        link_free = start + gather
        spans.append(Span("communication", f"layer {number}", start, link_free))
        begin = max(link_free, done[-1] if done else 0.0)
        spans.append(Span("compute", f"layer {number}", begin, begin + compute))
        done.append(begin + compute)
    return Overlap(tuple(spans), math.fsum(computes_s), math.fsum(gathers_s), done[-1])
