"""What failures, slow workers and late gradients cost, and what can be done about it.

>>> mtbf = FLEETS["llama3"].mtbf_h(2048)
>>> plan = goodput(mtbf_s=mtbf * 3600, save_s=30)
>>> round(mtbf, 1), round(plan.interval_s / 60, 1), round(100 * plan.overhead_fraction, 1)
(24.7, 38.5, 2.6)
"""

from pdtlib.plan.reliability.failures import FLEETS, Fleet
from pdtlib.plan.reliability.goodput import (
    Goodput,
    best_interval,
    checkpoint_bytes,
    daly_interval,
    expected_wall_time,
    goodput,
    overhead,
    young_interval,
)
from pdtlib.plan.reliability.local_updates import LocalUpdates, local_updates
from pdtlib.plan.reliability.simulation import Run, RunEvent, simulate_run
from pdtlib.plan.reliability.spares import probability_enough, spares_needed
from pdtlib.plan.reliability.staleness import grows, implicit_momentum, largest_stable_step, stable_step
from pdtlib.plan.reliability.stragglers import expected_slowest, step_efficiency
from pdtlib.plan.reliability.workers import Update, Updates, simulate_workers

__all__ = [
    "FLEETS",
    "Fleet",
    "Goodput",
    "LocalUpdates",
    "Run",
    "RunEvent",
    "Update",
    "Updates",
    "best_interval",
    "checkpoint_bytes",
    "daly_interval",
    "expected_slowest",
    "expected_wall_time",
    "goodput",
    "grows",
    "implicit_momentum",
    "largest_stable_step",
    "local_updates",
    "overhead",
    "probability_enough",
    "simulate_run",
    "simulate_workers",
    "spares_needed",
    "stable_step",
    "step_efficiency",
    "young_interval",
]
