"""What one optimizer step needs before the update: this rank's micro-batches, and the whole mean gradient."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Any

import torch
from torch import Tensor

from pdtlib.engine.data import Batches
from pdtlib.engine.data_parallel.replica import Replica
from pdtlib.engine.loss import IGNORED, TokenMean
from pdtlib.engine.optimizer import ShardedAdamW
from pdtlib.engine.parallelize import Parallelized
from pdtlib.observe.trace import Timeline

MicroBatch = tuple[Tensor, Tensor]
"""Tokens and targets, each [b, S/cp] int64."""
Loss = Callable[[Tensor, int], Tensor]
Span = Callable[[str, str], AbstractContextManager[None]]


@dataclass(frozen=True)
class StepResult:
    """Mean loss of the step's tokens, norm of the gradient before clipping, and how many tokens there were.

    The same on every rank.
    """

    loss: float
    grad_norm: float
    tokens: int


def micro_batches(parts: Parallelized, batches: Batches, step: int) -> list[MicroBatch]:
    """This rank's share of the step's global batch: the rows of its dp rank, its positions of them."""
    train, dp = parts.job.train, parts.mesh.group("dp")
    per_rank = train.global_batch // dp.size
    starts = range(dp.rank * per_rank, (dp.rank + 1) * per_rank, train.micro_batch)
    taken = [batches.take(step, first=first, count=train.micro_batch) for first in starts]
    return [
        (parts.take(tokens).to(parts.mesh.device), parts.take(targets).to(parts.mesh.device))
        for tokens, targets in taken
    ]


def compute_gradients(
    parts: Parallelized,
    optimizer: ShardedAdamW,
    micro_batches: list[MicroBatch],
    *,
    step: int = 0,
    max_norm: float = inf,
    timeline: Timeline | None = None,
) -> StepResult:
    """Run all passes of a step, reduce the gradients and clip them; ``optimizer.step()`` comes next.

    ``step`` chooses the dropout masks; ``timeline`` notes what was done when.
    """
    span = (lambda lane, name: nullcontext()) if timeline is None else timeline.span
    mesh = parts.mesh
    num_valid = sum(int((targets != IGNORED).sum()) for _, targets in micro_batches)
    mean = TokenMean(mesh.data, num_valid=num_valid, device=mesh.device)
    loss_sum = torch.zeros((), dtype=torch.float64, device=mesh.device)

    def loss_of(logits: Tensor, index: int) -> Tensor:
        part = parts.loss_sum(logits, micro_batches[index][1])
        loss_sum.add_(part.detach())
        return optimizer.scale(mean.loss(part))

    for balance in parts.balances:
        balance.scale = float(optimizer.scale(torch.ones(()))) / len(micro_batches)
    inputs = [tokens for tokens, _ in micro_batches]
    run: Callable[..., Any] = partial(_one_after_the_other, parts.replica, span=span)
    if parts.pipeline is not None:
        run = parts.pipeline.step
    run(inputs, loss=loss_of, begin=partial(parts.dropout.begin, step))
    with span("optimizer", "finish gradients"):
        parts.finish_gradients()
    with span("optimizer", "clip"):
        norm = optimizer.clip_grad_norm(max_norm)
    loss = mean.report(loss_sum, stages=mesh.group("pp"))
    return StepResult(loss, norm, mean.num_valid)


def _one_after_the_other(
    replica: Replica, inputs: list[Tensor], *, loss: Loss, begin: Callable[[int], None], span: Span
) -> None:
    """What a pipeline's step is where one rank has all layers: forward and backward of each micro-batch."""
    for index, tokens in enumerate(inputs):
        begin(index)
        last = index == len(inputs) - 1
        with nullcontext() if last else replica.no_sync():
            with span("compute", "forward"):
                found = loss(replica(tokens), index)
            with span("compute", "backward"):
                found.backward()
