def exposed(communication, compute):
    """Time covered by anything, less time covered by computation."""
    return covered([*communication, *compute]) - covered(compute)


def covered(intervals):
    """The length of the union."""
    total, reached = 0, None
    for start, end in sorted(intervals):
        if reached is None or start > reached:
            total += end - start
            reached = end
        elif end > reached:
            total += end - reached
            reached = end
    return total
