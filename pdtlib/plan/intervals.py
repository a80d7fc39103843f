"""Stretches of time as sorted, disjoint intervals: joined, cut out of each other, and measured."""

from collections.abc import Iterable

Intervals = list[tuple[float, float]]


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
    """The time that merged intervals cover."""
    return sum(end - start for start, end in intervals)
