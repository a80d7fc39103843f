"""A parameter server: workers fetch weights, send gradients, and need not wait for one another.

A gradient is *stale* by the updates that others have made since its weights were fetched. Without a bound
(Downpour, Dean et al. 2012) it grows with the spread of the workers' speeds. Stale-synchronous parallel (Ho
et al. 2013) lets no worker run more than ``bound`` gradients ahead of the slowest; with ``bound`` 0 all
finish a round before the next one begins. While a worker computes one gradient, another one can then finish
at most 2 x bound + 1, so no gradient is staler than (workers - 1)(2 x bound + 1).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from pdtlib.plan.job import Job
from pdtlib.resilience.asynchronous.task import FlatAdamW, Task

SERVER = 0
STOP = -1


@dataclass(frozen=True, kw_only=True)
class Served:
    """Of every gradient in the order of application: the worker it is from (``senders``), its ``staleness``,
    and the ``spread`` of clocks after it. Together with the job they make the training repeatable."""

    held_out_loss: float
    senders: tuple[int, ...]
    staleness: tuple[int, ...]
    spread: tuple[int, ...]
    per_worker: tuple[int, ...]
    seconds: float


def stale_limit(*, workers: int, bound: int) -> int:
    """The most updates by which a gradient can be late under a bound.

    >>> stale_limit(workers=4, bound=0), stale_limit(workers=4, bound=2)
    (3, 15)
    """
    return (workers - 1) * (2 * bound + 1)


def train(job: Job, *, updates: int, bound: int | None = None, slow_s: Sequence[float] = ()) -> Served | None:
    """Train with rank 0 as the server and all others as workers, until ``updates`` gradients were used.

    Called by all ranks; the server's result is returned on rank 0, None elsewhere. Worker w sleeps
    ``slow_s[w]`` before each gradient, which makes it a slow one. Raises ``ValueError`` for a negative bound
    and without workers.
    """
    if bound is not None and bound < 0:
        raise ValueError(f"bound={bound}: valid are 0 or more, or None for no bound")
    workers = dist.get_world_size() - 1
    if workers < 1:
        raise ValueError("ranks=1: a parameter server needs at least one worker, so two ranks")
    task = Task(job)
    if dist.get_rank() == SERVER:
        return _serve(task, workers=workers, updates=updates, bound=bound)
    worker = dist.get_rank() - 1
    _work(task, worker=worker, workers=workers, slow_s=slow_s[worker] if slow_s else 0.0)
    return None


def _serve(task: Task, *, workers: int, updates: int, bound: int | None) -> Served:
    optimizer = FlatAdamW(task.weights(), task.job)
    began = time.monotonic()
    clocks, fetched = [0] * workers, [0] * workers
    waiting: set[int] = set()
    senders: list[int] = []
    staleness: list[int] = []
    spread: list[int] = []
    gradient = torch.empty_like(optimizer.weights)
    for worker in range(workers):
        _give(optimizer.weights, worker)
    running = workers
    while running:
        sender = dist.recv(gradient) - 1
        if len(staleness) < updates:
            senders.append(sender)
            staleness.append(len(staleness) - fetched[sender])
            optimizer.step(gradient.clone())
            clocks[sender] += 1
            spread.append(max(clocks) - min(clocks))
        waiting.add(sender)
        if len(staleness) == updates:
            for worker in sorted(waiting):
                _tell(worker, STOP)
            running -= len(waiting)
            waiting.clear()
            continue
        for worker in sorted(waiting):
            if bound is None or clocks[worker] - min(clocks) <= bound:
                waiting.remove(worker)
                fetched[worker] = len(staleness)
                _give(optimizer.weights, worker)
    task.set_weights(optimizer.weights.detach())
    return Served(
        held_out_loss=task.held_out_loss(),
        senders=tuple(senders),
        staleness=tuple(staleness),
        spread=tuple(spread),
        per_worker=tuple(clocks),
        seconds=time.monotonic() - began,
    )


def _work(task: Task, *, worker: int, workers: int, slow_s: float) -> None:
    """Fetch, compute, send. Workers take turns in the global batches: no row is used twice."""
    rows = task.job.train.global_batch
    word = torch.zeros(1, dtype=torch.int64)
    weights = torch.empty_like(task.weights())
    number = worker
    while True:
        dist.recv(word, SERVER)
        if int(word) == STOP:
            return
        dist.recv(weights, SERVER)
        task.set_weights(weights)
        time.sleep(slow_s)
        gradient, _ = task.gradient(number, first=0, count=rows)
        dist.send(gradient, SERVER)
        number += workers


def _give(weights: Tensor, worker: int) -> None:
    _tell(worker, 1)
    dist.send(weights.detach(), worker + 1)


def _tell(worker: int, word: int) -> None:
    dist.send(torch.tensor([word]), worker + 1)
