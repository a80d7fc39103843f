"""How often to save, and what saving and failing cost.

Notation: a save takes ``save_s`` (delta), the run works ``interval_s`` (tau) between two saves, fails every
``mtbf_s`` (M) on average, and needs ``restart_s`` (R) until it works again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pdtlib.plan.arguments import BadArgument, at_least

BYTES_PER_PARAMETER = 14  # bf16 weights, fp32 master copy, both Adam moments


def checkpoint_bytes(parameters: float) -> float:
    """Bytes of a checkpoint from which training goes on exactly: 2 + 4 + 8 per parameter.

    >>> checkpoint_bytes(70e9) / 1e9
    980.0
    """
    return BYTES_PER_PARAMETER * parameters


def young_interval(*, mtbf_s: float, save_s: float) -> float:
    """sqrt(2 delta M), Young 1974: the best interval to first order, for delta << M.

    >>> round(young_interval(mtbf_s=24.7 * 3600, save_s=30) / 60, 1)
    38.5
    """
    _check(mtbf_s=mtbf_s, save_s=save_s)
    return math.sqrt(2 * save_s * mtbf_s)


def daly_interval(*, mtbf_s: float, save_s: float) -> float:
    """Daly 2006, equation 37: the higher-order estimate, M once a save takes 2 M or longer."""
    _check(mtbf_s=mtbf_s, save_s=save_s)
    if save_s >= 2 * mtbf_s:
        return mtbf_s
    root = math.sqrt(save_s / (2 * mtbf_s))
    return math.sqrt(2 * save_s * mtbf_s) * (1 + root / 3 + root**2 / 9) - save_s


def best_interval(*, mtbf_s: float, save_s: float) -> float:
    """The interval that makes :func:`expected_wall_time` shortest.

    Its derivative is zero where e^((tau + delta)/M) (1 - tau/M) = 1; solved by bisection, since the left side
    falls from e^(delta/M) at 0 to 0 at M.
    """
    _check(mtbf_s=mtbf_s, save_s=save_s)
    low, high = 0.0, mtbf_s
    for _ in range(200):
        middle = (low + high) / 2
        if math.exp(min((middle + save_s) / mtbf_s, 700)) * (1 - middle / mtbf_s) > 1:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def overhead(*, mtbf_s: float, save_s: float, interval_s: float, restart_s: float = 0.0) -> float:
    """Extra time per time of work, to first order: delta/tau to save, (tau/2 + R)/M for failures."""
    _check(mtbf_s=mtbf_s, save_s=save_s, interval_s=interval_s, restart_s=restart_s)
    return save_s / interval_s + (interval_s / 2 + restart_s) / mtbf_s


def expected_wall_time(
    work_s: float, *, mtbf_s: float, save_s: float, interval_s: float, restart_s: float = 0.0
) -> float:
    """Expected time of a run with ``work_s`` of work: M e^(R/M) (e^((tau + delta)/M) - 1) work / tau.

    Daly 2006, equation 13, for failures that come at any moment with the same chance, also while saving and
    restarting.
    """
    _check(mtbf_s=mtbf_s, save_s=save_s, interval_s=interval_s, restart_s=restart_s)
    at_least("work_s", work_s, 0)
    try:
        retries = math.exp(restart_s / mtbf_s) * math.expm1((interval_s + save_s) / mtbf_s)
    except OverflowError:
        return math.inf
    return mtbf_s * retries * work_s / interval_s


@dataclass(frozen=True, kw_only=True)
class Goodput:
    """A run's losses: ``overhead_fraction`` to first order; ``goodput``, work per time, by Daly in full."""

    mtbf_s: float
    save_s: float
    restart_s: float
    interval_s: float
    overhead_fraction: float
    goodput: float


def goodput(
    *, mtbf_s: float, save_s: float, restart_s: float = 0.0, interval_s: float | None = None
) -> Goodput:
    """What failures cost with a save every ``interval_s``, by default Young's."""
    tau = young_interval(mtbf_s=mtbf_s, save_s=save_s) if interval_s is None else interval_s
    times = {"mtbf_s": mtbf_s, "save_s": save_s, "interval_s": tau, "restart_s": restart_s}
    return Goodput(
        **times,
        overhead_fraction=overhead(**times),
        goodput=1 / expected_wall_time(1.0, **times),
    )


def _check(**times: float) -> None:
    for name, value in times.items():
        if name == "restart_s":
            if not 0 <= value < math.inf:
                raise BadArgument(name, value, valid=("0 or more, in seconds",))
        elif not 0 < value < math.inf:
            raise BadArgument(name, value, valid=("above 0, in seconds",))
