"""Local updates: workers train apart and meet every ``every`` steps.

Local SGD (Stich 2018) replaces the weights by their mean. DiLoCo (Douillard et al. 2023, arXiv 2311.08105)
takes the mean change since the last meeting as the gradient of an outer optimizer, Nesterov momentum with
learning rate 0.7 and momentum 0.9. With ``every`` 1 and no outer optimizer the weights are averaged in each
step. Synchronous training, for comparison, averages gradients instead.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from pdtlib.engine.mesh import Group, build_mesh
from pdtlib.engine.transfers import start_all_reduce
from pdtlib.plan.job import Job
from pdtlib.resilience.asynchronous.task import FlatAdamW, Task

METHODS = ("synchronous", "local-sgd", "diloco")
OUTER_LR, OUTER_MOMENTUM = 0.7, 0.9


@dataclass(frozen=True, kw_only=True)
class Met:
    """``sent_bytes_per_step`` are those of a ring all-reduce, counted in the ledger; ``drift`` is the largest
    distance of a worker from the mean just before a meeting, relative to the mean's norm."""

    held_out_loss: float
    sent_bytes_per_step: float
    drift: float
    seconds: float


def train(job: Job, *, method: str, steps: int, every: int = 1) -> Met:
    """Train ``steps`` steps on all ranks; a rank takes its share of each global batch. Called by all ranks.

    Raises ``ValueError`` for an unknown method, and for ``every`` that does not divide ``steps``.
    """
    if method not in METHODS:
        raise ValueError(f"method={method!r}: valid are {', '.join(METHODS)}")
    if every < 1 or steps % every:
        raise ValueError(f"every={every}: valid are divisors of steps={steps}")
    group = build_mesh().group("dp")
    task = Task(job)
    inner = FlatAdamW(task.weights(), job)
    common = inner.weights.detach().clone()
    outer = torch.optim.SGD(
        [torch.nn.Parameter(common.clone())], lr=OUTER_LR, momentum=OUTER_MOMENTUM, nesterov=True
    )
    rows = job.train.global_batch // group.size
    drift = 0.0
    group.ledger.clear()
    began = time.monotonic()
    for step in range(steps):
        task.set_weights(inner.weights.detach())
        gradient, _ = task.gradient(step, first=group.rank * rows, count=rows)
        if method == "synchronous":
            gradient = _mean(gradient, group, phase="grads")
        inner.step(gradient)
        if method == "synchronous" or (step + 1) % every:
            continue
        mine = inner.weights.detach()
        mean = _mean(mine, group, phase="weights")
        drift = max(drift, float((mine - mean).norm() / mean.norm()))
        if method == "diloco":
            (shared,) = outer.param_groups[0]["params"]
            shared.grad = common - mean
            outer.step()
            mean = shared.detach()
        common = mean.clone()
        mine.copy_(common)
    sent = group.ledger.sent_bytes_per_rank() / steps
    task.set_weights(inner.weights.detach())
    loss = _mean(torch.tensor([task.held_out_loss()], dtype=torch.float64), group, phase="loss").item()
    return Met(held_out_loss=loss, sent_bytes_per_step=sent, drift=drift, seconds=time.monotonic() - began)


def _mean(values: Tensor, group: Group, *, phase: str) -> Tensor:
    total = values.clone()
    start_all_reduce(total, group, phase=phase).wait()
    return total / group.size
