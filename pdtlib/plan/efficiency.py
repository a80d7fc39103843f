"""What shares of a step leave of a GPU's peak, and what thresholds on them ask for.

A GPU computes only while it neither waits for messages nor for other pipeline stages. Meanwhile it can be no
faster than the best matrix product measured on it. So shares of one total, and a rate, bound the utilisation
together: thresholds on them are not independent.
"""

import math
from dataclasses import dataclass
from fractions import Fraction

from pdtlib.plan.presets import GPUS


@dataclass(frozen=True, kw_only=True)
class Band:
    """The worst step that a set of thresholds still lets pass: MFU from below, both shares from above."""

    mfu: float
    communication: float
    bubble: float


ARTICLE_BANDS = {
    "excellent": Band(mfu=0.5, communication=0.2, bubble=0.1),
    "acceptable": Band(mfu=0.4, communication=0.35, bubble=0.2),
}
"""The article's thresholds (section 8)."""


def best_share(gpu: str) -> float | None:
    """The share of 16-bit peak that the best measured matrix product reached on a GPU, where one is known.

    >>> round(best_share("A100-SXM4-80"), 3)
    0.869
    """
    chip = GPUS[gpu]
    return None if chip.matmul_flops is None else chip.matmul_flops / chip.peak_flops


def left_to_compute(*, communication: float, bubble: float) -> float:
    """The share of a step in which GPUs can compute, when exposed communication and bubble take theirs.

    Raises ``ValueError`` for shares that no step can have.
    """
    for name, share in (("communication", communication), ("bubble", bubble)):
        if not 0 <= share <= 1:
            raise ValueError(f"{name}={share}; valid: 0 to 1")
    if communication + bubble > 1:
        raise ValueError(f"communication + bubble={communication + bubble}; valid: at most 1")
    return 1.0 - communication - bubble


def mfu_bound(*, communication: float, bubble: float, kernels: float = 1.0) -> float:
    """The largest MFU of a step with these shares when its kernels reach the share ``kernels`` of peak.

    >>> best = best_share("A100-SXM4-80")
    >>> round(mfu_bound(communication=0.35, bubble=0.20, kernels=best), 3)
    0.391
    """
    return left_to_compute(communication=communication, bubble=bubble) * kernels


def kernels_needed(mfu: float, *, communication: float, bubble: float) -> float:
    """The share of peak that kernels must reach for an MFU beside these shares; above 1 it can't be met.

    >>> round(kernels_needed(0.5, communication=0.20, bubble=0.10), 3)
    0.714
    """
    left = left_to_compute(communication=communication, bubble=bubble)
    return mfu / left if left > 1e-12 else math.inf


def micro_batches_needed(bubble: float, *, stages: int, chunks: int = 1) -> int:
    """The fewest micro-batches with which a pipeline idles no more than ``bubble`` of the time.

    From (p - 1) / (v m + p - 1), which also supposes equal stages and free messages.

    >>> [micro_batches_needed(0.1, stages=p) for p in (4, 8, 16)]
    [27, 63, 135]
    """
    if not 0 < bubble < 1:
        raise ValueError(f"bubble={bubble}; valid: above 0, below 1")
    share = Fraction(str(bubble))
    return max(1, math.ceil((1 / share - 1) * (stages - 1) / chunks))
