"""How long a pipeline takes: its schedule's table, run by the simulator with every chunk's own times.

A table of p stages and m micro-batches has 2 to 3 p m actions a chunk. Where they are too many for an answer
at once, a smaller pipeline of the same kind is run instead:

* Fewer micro-batches. After the first 2 p of them the table repeats itself, so what p more take is what all
  further ones take.
* Fewer stages, among them the first and the last. What is idle while a pipeline fills and drains grows with
  the number of stages before or behind: with p - 1.

Both are held against whole tables in tests/plan/test_pipeline_time.py: within 3.5 %, and within 7 % for
interleaved chunks of unequal size, whose stalls in the steady state grow with the number of stages.
"""

from collections.abc import Sequence
from functools import lru_cache

from pdtlib.plan.schedule.actions import Schedule
from pdtlib.plan.schedule.catalog import FAMILIES, build
from pdtlib.plan.schedule.replay import Costs, replay

Times = tuple[
    float, float, float
]  # seconds of a forward, of a backward's input part and of its weights' part

MOST_ACTIONS = 3072
"""Actions that a prediction may simulate: less than 10 ms."""
SERIAL = ("naive", "article")
"""Stages work in turn, so the period grows with their number, and none may be left out."""


def pipeline_s(
    schedule: str,
    places: Sequence[Sequence[Times]],
    *,
    micro_batches: int,
    transfer_s: float = 0.0,
    most_actions: int = MOST_ACTIONS,
) -> float:
    """Seconds that the busiest stage of a step is occupied, from its own first action to its own last.

    ``places[rank][chunk]`` are the times of one micro-batch. A stage that starts later may end later where
    the optimizer needs no barrier, as the zero-bubble schedules suppose (Qi et al. 2023, section 4); in the
    others the first stage starts first and ends last. ``transfer_s`` passes between a result and its use on
    another rank. Exact up to ``most_actions`` actions, else a smaller pipeline stands for this one.
    """
    stages, chunks = len(places), len(places[0])
    if stages == 1:
        return micro_batches * sum(map(sum, places[0]))
    family = FAMILIES[schedule]
    copies = 2 if family.layout == "two-way" else 1
    per_micro_batch = (3 if family.splits_backward else 2) * chunks / copies
    fewer, first, more = _size(stages, micro_batches, schedule, most_actions / per_micro_batch)
    kept = [places[round(rank * (stages - 1) / (fewer - 1))] for rank in range(fewer)]
    period = _busiest(kept) / copies
    length = _occupied_s(schedule, kept, first, transfer_s)
    if more:
        further = _occupied_s(schedule, kept, first + more, transfer_s)
        # Never less than the busiest stage's own work: what a few more take may fall short of it at first.
        period, length, first = max(period, (further - length) / more), further, first + more
    idle = (length - first * period) * (stages - 1) / (fewer - 1)
    slower = (_busiest(places) - _busiest(kept)) / copies
    return micro_batches * (period + slower) + idle


def _busiest(places: Sequence[Sequence[Times]]) -> float:
    return max(sum(map(sum, chunks)) for chunks in places)


def _size(stages: int, micro_batches: int, schedule: str, most: float) -> tuple[int, int, int]:
    """Stages and micro-batches to run, and how many more show the period, 0 if none: at most ``most`` passes.

    Micro-batches that fill the pipeline less than three times stay in proportion to the stages.
    """
    if stages * micro_batches <= most:
        return stages, micro_batches, 0
    fewer = stages
    while True:
        if micro_batches <= 3 * stages:
            first, more = max(1, round(micro_batches * fewer / stages)), 0
        else:
            first, more = 2 * fewer + micro_batches % stages * fewer // stages, fewer
        passes = fewer * (2 * first + more if more else first)
        if passes <= most or fewer <= 4 or schedule in SERIAL:
            return fewer, first, more
        fewer = max(4, fewer - 2 - fewer // 8 * 2)


@lru_cache(maxsize=512)
def _table(schedule: str, stages: int, micro_batches: int, chunks: int) -> Schedule:
    return build(schedule, stages=stages, microbatches=micro_batches, chunks=chunks)


def _occupied_s(
    schedule: str, places: Sequence[Sequence[Times]], micro_batches: int, transfer_s: float
) -> float:
    table = _table(schedule, len(places), micro_batches, len(places[0]))
    costs = Costs.of_places(table, places, transfer=transfer_s)
    run = replay(table, costs)
    return max(ends[-1] - starts[0] for starts, ends in zip(run.start, run.end, strict=True))
