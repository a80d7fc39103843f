"""What one optimizer step needs before the update: this rank's micro-batches, and the whole mean gradient."""

from contextlib import nullcontext
from dataclasses import dataclass
from math import inf

import torch
from torch import Tensor

from pdtlib.engine.data import Batches
from pdtlib.engine.loss import IGNORED, TokenMean
from pdtlib.engine.optimizer import ShardedAdamW
from pdtlib.engine.parallelize import Parallelized
from pdtlib.observe.trace import Timeline

MicroBatch = tuple[Tensor, Tensor]
"""Tokens and targets, each [b, S/cp] int64."""


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
    mesh, replica = parts.mesh, parts.replica
    num_valid = sum(int((targets != IGNORED).sum()) for _, targets in micro_batches)
    mean = TokenMean(mesh.data, num_valid=num_valid, device=mesh.device)
    loss_sum = torch.zeros((), dtype=torch.float64, device=mesh.device)
    for index, (tokens, targets) in enumerate(micro_batches):
        parts.dropout.begin(step, index)
        last = index == len(micro_batches) - 1
        with nullcontext() if last else replica.no_sync():
            with span("compute", "forward"):
                part = parts.loss_sum(replica(tokens), targets)
            with span("compute", "backward"):
                optimizer.scale(mean.loss(part)).backward()
        loss_sum += part.detach()
    with span("optimizer", "finish gradients"):
        replica.finish_gradients()
    with span("optimizer", "clip"):
        norm = optimizer.clip_grad_norm(max_norm)
    return StepResult(mean.report(loss_sum), norm, mean.num_valid)
