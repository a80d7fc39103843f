"""Time of single kernels: matrix products by tiles and waves, element-wise work by the bytes it moves."""

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

from pdtlib.plan.time.machine import Chip

# Output tiles that a library chooses from, and the share of the peak that each can reach: a smaller tile
# loads its operands more often.
TILES = ((256, 128, 1.0), (128, 128, 0.93), (128, 64, 0.8), (64, 64, 0.62))


@lru_cache(maxsize=65536)
def matmul_s(
    m: int, n: int, k: int, *, chip: Chip, flops: float, batch: int = 1, element_bytes: int = 2
) -> float:
    """Seconds of ``batch`` products [m, k] x [k, n] at a peak of ``flops``, without the launch.

    Tiles are dealt out to the multiprocessors in waves, of which the last may be partly empty (tile and
    wave quantisation); every tile also spends ``chip.ramp`` elements of k on filling its pipeline. A
    product that is bound by memory takes the time of its traffic instead. On a measured machine the rate is
    that of measured products with as many FLOPs.
    """
    if chip.rates:
        work = 2.0 * m * n * k
        return batch * work / (flops * rate_at(work, chip.rates) / chip.matmul_flops)
    per_processor = flops / chip.multiprocessors
    best = math.inf
    for rows, columns, share in TILES:
        tiles = batch * -(-m // rows) * -(-n // columns)
        waves = -(-tiles // chip.multiprocessors)
        # Tiles of consecutive waves overlap, so half of the last wave's emptiness is lost.
        filled = (waves + tiles / chip.multiprocessors) / 2
        seconds = filled * 2 * rows * columns * (k + chip.ramp) / (per_processor * share)
        best = min(best, seconds)
    moved = batch * (m * k + k * n + m * n) * element_bytes
    return max(best, moved / chip.memory_bytes_per_s)


def rate_at(work: float, rates: Sequence[tuple[float, float]]) -> float:
    """The rate at ``work`` between measured pairs (work, rate), on a straight line of both logarithms.

    Below the first pair the time stays the same, so the rate falls with the work; above the last the rate
    stays.

    >>> [round(rate_at(work, [(1e6, 1e9), (1e8, 4e9)]) / 1e9, 3) for work in (1e5, 1e6, 1e7, 1e9)]
    [0.1, 1.0, 2.0, 4.0]
    """
    if work <= rates[0][0]:
        return rates[0][1] * work / rates[0][0]
    for (low, slow), (high, fast) in pairwise(rates):
        if work <= high:
            part = math.log(work / low) / math.log(high / low)
            return float(slow * (fast / slow) ** part)
    return rates[-1][1]


def moved_s(num_bytes: float, *, chip: Chip, passes: float = 1.0) -> float:
    """Seconds of element-wise kernels that read and write ``num_bytes`` in all, without the launch."""
    return passes * num_bytes / chip.memory_bytes_per_s
