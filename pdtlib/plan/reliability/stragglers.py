"""Stragglers: a synchronous step takes as long as the slowest of its workers."""

from __future__ import annotations

from statistics import NormalDist

from pdtlib.plan.arguments import at_least


def expected_slowest(workers: int, *, mean_s: float, deviation_s: float) -> float:
    """The mean of the slowest of ``workers`` normal step times.

    E[max] = integral of z dPhi(z)^n, summed over 4,000 equal slices of probability of the maximum itself.

    >>> round(expected_slowest(1024, mean_s=1.0, deviation_s=0.02), 3)
    1.065
    """
    at_least("workers", workers, 1)
    at_least("deviation_s", deviation_s, 0)
    slices = 4000
    normal = NormalDist()
    slowest = sum(normal.inv_cdf(((i + 0.5) / slices) ** (1 / workers)) for i in range(slices)) / slices
    return mean_s + deviation_s * slowest


def step_efficiency(step_times_s: list[float]) -> float:
    """Share of the workers' time that a synchronous step uses: mean over slowest.

    >>> step_efficiency([1.0] * 7 + [4.0])
    0.34375
    """
    at_least("step_times_s", min(step_times_s, default=0.0), 0)
    slowest = max(step_times_s, default=0.0)
    return sum(step_times_s) / (len(step_times_s) * slowest) if slowest else 1.0
