"""Time of single kernels: matrix products by tiles and waves, element-wise work by the bytes it moves."""

import math
from functools import lru_cache

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
    product that is bound by memory takes the time of its traffic instead.
    """
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


def moved_s(num_bytes: float, *, chip: Chip, passes: float = 1.0) -> float:
    """Seconds of element-wise kernels that read and write ``num_bytes`` in all, without the launch."""
    return passes * num_bytes / chip.memory_bytes_per_s
