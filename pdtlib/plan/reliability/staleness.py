"""Late gradients: how large a step stays stable when each gradient is ``delay`` updates old.

On a quadratic with curvature lambda, x <- x - step lambda x_old, where x_old is ``delay`` updates back. The
step must stay below 2 sin(pi / (2 (2 delay + 1))) / lambda: 2 without delay, then ever less (there the
characteristic equation z^(d+1) - z^d + step lambda = 0 leaves the unit circle; a classical result for delayed
recursions, see Levin and May 1976).
"""

from __future__ import annotations

import math
from collections import deque

from pdtlib.plan.arguments import BadArgument, at_least


def stable_step(delay: int, *, curvature: float = 1.0) -> float:
    """The step below which gradient descent with gradients ``delay`` updates old converges.

    >>> [round(stable_step(delay), 3) for delay in (0, 1, 3, 7, 15)]
    [2.0, 1.0, 0.445, 0.209, 0.101]
    """
    at_least("delay", delay, 0)
    if not curvature > 0:
        raise BadArgument("curvature", curvature, valid=("above 0",))
    return 2 * math.sin(math.pi / (2 * (2 * delay + 1))) / curvature


def grows(step: float, *, delay: int, curvature: float = 1.0) -> bool:
    """Whether such a descent runs away: it is run, and its third quarter compared with its last."""
    at_least("delay", delay, 0)
    steps = 800 * (delay + 1)
    window = deque([1.0] * (delay + 1), maxlen=delay + 1)
    peaks = [0.0] * 4
    for i in range(steps):
        window.append(window[-1] - step * curvature * window[0])
        size = abs(window[-1])
        if size > 1e12:
            return True
        peaks[4 * i // steps] = max(peaks[4 * i // steps], size)
    return peaks[3] > peaks[2]


def largest_stable_step(delay: int, *, curvature: float = 1.0) -> float:
    """The stability limit by bisection over :func:`grows`: the check on :func:`stable_step`."""
    low, high = 0.0, 2.5 / curvature
    for _ in range(25):
        middle = (low + high) / 2
        if grows(middle, delay=delay, curvature=curvature):
            high = middle
        else:
            low = middle
    return (low + high) / 2


def implicit_momentum(workers: int) -> float:
    """The momentum that ``workers`` asynchronous workers act like: 1 - 1/N (Mitliagkas et al. 2016)."""
    at_least("workers", workers, 1)
    return 1 - 1 / workers
