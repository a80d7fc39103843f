"""Every rank learns who was at work longest, a step later, without waiting for it."""

import torch
import torch.distributed as dist

from pdtlib.engine.dist import spawn
from pdtlib.engine.training.spread import WorkSpread
from pdtlib.observe.diagnosis import Slowest

WORK_S = ([1.0, 3.0, 2.0, 2.0], [8.0, 1.0, 1.0, 2.0], [1.0, 1.0, 1.0, 1.0])
ANSWERS = [None, Slowest(1, 3.0, 2.0), Slowest(0, 8.0, 1.0), Slowest(0, 1.0, 1.0)]
TIMES = [1.5, 8.0, 1.0]


def exchanged() -> list[Slowest | None]:
    spread = WorkSpread(device=torch.device("cpu"))
    found = [spread.exchange(step[dist.get_rank()]) for step in WORK_S]
    found.append(spread.finish())
    assert spread.finish() is None
    return found


def test_all_ranks_hear_of_the_slowest() -> None:
    assert spawn(exchanged, 4) == [ANSWERS] * 4
    assert [answer.times for answer in ANSWERS if answer] == TIMES


def test_nobody_is_slowest_alone() -> None:
    alone = WorkSpread(device=torch.device("cpu"))
    assert [alone.exchange(1.0), alone.exchange(9.0), alone.finish()] == [None] * 3
