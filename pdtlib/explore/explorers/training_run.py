"""A training run as the time explorer sees it: its work, its GPUs, and what a deadline asks of them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from pdtlib.plan import flops as work
from pdtlib.plan.presets import Gpu
from pdtlib.plan.units import DAY_S, HOUR_S


@dataclass(frozen=True)
class Run:
    """``params`` are those that a token meets, ``flops`` what the model needs."""

    params: int
    tokens: float
    flops: float
    gpu: Gpu
    gpus: int
    mfu: float
    target_days: int

    def days(self, *, gpus: int | None = None, mfu: float | None = None) -> float:
        seconds = work.training_seconds(
            self.flops,
            num_gpus=gpus or self.gpus,
            peak_flops=self.gpu.peak_flops,
            mfu=mfu or self.mfu,
        )
        return seconds / DAY_S

    @property
    def needed_mfu(self) -> float:
        return work.mfu_needed(
            self.flops,
            seconds=self.target_days * DAY_S,
            num_gpus=self.gpus,
            peak_flops=self.gpu.peak_flops,
        )

    def needed_gpus(self, mfu: float) -> int:
        needed = work.gpus_needed(
            self.flops, seconds=self.target_days * DAY_S, peak_flops=self.gpu.peak_flops, mfu=mfu
        )
        return math.ceil(needed)

    @property
    def gpu_hours(self) -> float:
        return self.gpus * self.days() * DAY_S / HOUR_S

    @property
    def best_share(self) -> float | None:
        """The share of peak that the best measured matrix product reached, where one is known."""
        return self.gpu.matmul_flops / self.gpu.peak_flops if self.gpu.matmul_flops else None
