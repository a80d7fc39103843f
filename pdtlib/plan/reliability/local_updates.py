"""Local updates: workers train apart and only exchange what has changed every ``every`` steps.

Local SGD (Stich 2018) averages the weights; DiLoCo (Douillard et al. 2023, arXiv 2311.08105) gives the
average change to an outer Nesterov optimizer, with ``every`` = 500 in its main runs. Streaming DiLoCo
(arXiv 2501.18512) sends the model in ``fragments``, one after the other, which divides the peak, and in
4-bit numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

from pdtlib.plan.arguments import BadArgument, at_least
from pdtlib.plan.comm import sent_bytes


@dataclass(frozen=True, kw_only=True)
class LocalUpdates:
    """What a worker sends, per step and at most in one step, beside all-reducing gradients each step."""

    per_step_bytes: float
    peak_bytes: float
    synchronous_bytes: float
    outer_bytes_per_worker: float  # the outer optimizer's state: the last common weights and a momentum, fp32

    @property
    def times_less(self) -> float:
        return self.synchronous_bytes / self.per_step_bytes

    @property
    def saved_fraction(self) -> float:
        return 1 - self.per_step_bytes / self.synchronous_bytes


def local_updates(
    parameters: float,
    *,
    workers: int,
    every: int,
    bytes_per_value: float = 4.0,
    gradient_bytes: float = 4.0,
    fragments: int = 1,
    outer_momentum: bool = True,
) -> LocalUpdates:
    """Traffic of an exchange every ``every`` steps, ring all-reduced among ``workers``.

    >>> round(local_updates(1e9, workers=8, every=500).times_less)
    500
    """
    at_least("parameters", parameters, 1)
    at_least("workers", workers, 2)
    at_least("every", every, 1)
    if not 1 <= fragments <= every:
        raise BadArgument("fragments", fragments, "each has a step of its own", (f"1 to {every}",))
    exchange = sent_bytes("all_reduce", parameters * bytes_per_value, workers)
    return LocalUpdates(
        per_step_bytes=exchange / every,
        peak_bytes=exchange / fragments,
        synchronous_bytes=sent_bytes("all_reduce", parameters * gradient_bytes, workers),
        outer_bytes_per_worker=(8.0 if outer_momentum else 4.0) * parameters,
    )
