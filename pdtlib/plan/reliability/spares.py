"""Spare nodes: how many fill every place while failed nodes are away.

Failed nodes come back after ``repair_h``. With ``nodes`` in use, each failing every ``node_mtbf_h``, the
number in repair is Poisson with mean nodes x repair / MTBF (repairs don't wait for each other, and spares
that idle don't fail).
"""

from __future__ import annotations

import math

from pdtlib.plan.arguments import BadArgument, at_least

MOST_IN_REPAIR = 100_000
"""Nodes in repair on average, above which the sum over the Poisson distribution is refused."""


def probability_enough(spares: int, *, nodes: int, node_mtbf_h: float, repair_h: float) -> float:
    """The chance that at most ``spares`` nodes are in repair at a moment, so that every place is filled.

    That one of them stands ready is rarer: at most ``spares - 1`` are in repair then.
    """
    at_least("spares", spares, 0)
    mean = _mean(nodes=nodes, node_mtbf_h=node_mtbf_h, repair_h=repair_h)
    return math.fsum(_chance(k, mean) for k in range(spares + 1))


def spares_needed(*, nodes: int, node_mtbf_h: float, repair_h: float, confidence: float = 0.99) -> int:
    """The fewest spares with which every place is filled with chance ``confidence``.

    >>> spares_needed(nodes=2048, node_mtbf_h=50_000 / 8, repair_h=24)
    15
    """
    if not 0 < confidence <= 1 - 1e-9:
        raise BadArgument("confidence", confidence, valid=("above 0, at most 1 - 1e-9",))
    mean = _mean(nodes=nodes, node_mtbf_h=node_mtbf_h, repair_h=repair_h)
    spares, total = 0, _chance(0, mean)
    while total < confidence:
        spares += 1
        total += _chance(spares, mean)
    return spares


def _chance(count: int, mean: float) -> float:
    """The chance of exactly ``count`` nodes in repair."""
    if mean == 0:
        return float(count == 0)
    return math.exp(count * math.log(mean) - mean - math.lgamma(count + 1))


def _mean(*, nodes: int, node_mtbf_h: float, repair_h: float) -> float:
    at_least("nodes", nodes, 1)
    at_least("repair_h", repair_h, 0)
    if not node_mtbf_h > 0:
        raise BadArgument("node_mtbf_h", node_mtbf_h, valid=("above 0, in hours",))
    mean = nodes * repair_h / node_mtbf_h
    if not mean <= MOST_IN_REPAIR:
        message = f"{mean:,.0f} nodes would be in repair at once"
        raise BadArgument("repair_h", repair_h, message, (f"fewer than {MOST_IN_REPAIR:,} in repair",))
    return mean
