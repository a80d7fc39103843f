"""Pipeline schedules as data: built, checked, simulated, written down, and made ready to run.

>>> schedule = build("1f1b", stages=4, microbatches=8)
>>> timeline = simulate(schedule, Costs(forward=1, backward_input=2, backward_weight=0))
>>> timeline.makespan, round(timeline.bubble_fraction, 3), timeline.peak_in_flight
(33.0, 0.273, [4.0, 3.0, 2.0, 1.0])
"""

from pdtlib.plan.schedule.actions import Act, Layout, Program, Schedule, completing, deferred_in
from pdtlib.plan.schedule.automatic import zb_auto
from pdtlib.plan.schedule.catalog import FAMILIES, NAMES, build
from pdtlib.plan.schedule.check import Fault, ScheduleError, check, first_fault
from pdtlib.plan.schedule.lower import Lowered, lower, peer
from pdtlib.plan.schedule.memory import held_after, peak_in_flight
from pdtlib.plan.schedule.messages import check_messages
from pdtlib.plan.schedule.picture import picture
from pdtlib.plan.schedule.replay import Costs
from pdtlib.plan.schedule.rules import schedule_problems
from pdtlib.plan.schedule.simulate import Timeline, simulate
from pdtlib.plan.schedule.text import from_csv, from_text, grid, to_csv, to_text
from pdtlib.plan.schedule.torch_csv import to_torch_csv

__all__ = [
    "FAMILIES",
    "NAMES",
    "Act",
    "Costs",
    "Fault",
    "Layout",
    "Lowered",
    "Program",
    "Schedule",
    "ScheduleError",
    "Timeline",
    "build",
    "check",
    "check_messages",
    "completing",
    "deferred_in",
    "first_fault",
    "from_csv",
    "from_text",
    "grid",
    "held_after",
    "lower",
    "peak_in_flight",
    "peer",
    "picture",
    "schedule_problems",
    "simulate",
    "to_csv",
    "to_text",
    "to_torch_csv",
    "zb_auto",
]
