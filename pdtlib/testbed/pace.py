"""Pipeline stages that take as long as they are told: real timelines where stages outnumber the cores.

Each action computes what it always does and then sleeps until its time is over. Only messages, waiting and
the order of the actions are left to fill the rest of a step, as if every stage had a device of its own.
"""

from __future__ import annotations

from pdtlib.engine.optimizer import ShardedAdamW
from pdtlib.engine.parallelize import Parallelized
from pdtlib.engine.training.companion import Companion
from pdtlib.engine.training.pieces import Place


class Pace(Companion):
    """Lets a stage's forward of a micro-batch take ``forward_s`` seconds, each half of its backward as many.

    A stage of several chunks shares the time out among them.
    """

    def __init__(self, forward_s: float) -> None:
        self.forward_s = forward_s

    def begin(self, parts: Parallelized, optimizer: ShardedAdamW, *, place: Place, first: int) -> None:
        assert parts.pipeline is not None
        executor = parts.pipeline.executor
        executor.pace_s = self.forward_s * executor.layout.stages / executor.layout.length
