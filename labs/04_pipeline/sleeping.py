"""Stages whose computation is a sleep: a real timeline on a machine with fewer cores than stages.

A stage passes its input on. Its forward, and each half of its backward, sleep for a time that the schedule's
costs name. Everything else is real: autograd, messages, the executor, the clock.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pdtlib.engine.mesh import Group
from pdtlib.engine.pipeline import Pipeline
from pdtlib.engine.split_backward import later
from pdtlib.observe.trace import Timeline as Clock
from pdtlib.plan.schedule import FAMILIES, Act, Costs, Timeline, build, held_after, simulate

SHAPE = (4, 8)  # of what travels between stages


@dataclass
class Times:
    """Seconds of a chunk's forward and of the halves of its backward; 0 while links are set up."""

    forward: float = 0.0
    backward_input: float = 0.0
    backward_weight: float = 0.0


class _Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, times: Times) -> Tensor:
        ctx.weight, ctx.times = weight, times
        time.sleep(times.forward)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        time.sleep(ctx.times.backward_input)
        return grads[0], later(ctx.weight, partial(_weight_gradient, ctx.weight, ctx.times)), None


def _weight_gradient(weight: Tensor, times: Times) -> Tensor:
    time.sleep(times.backward_weight)
    return torch.ones_like(weight)


class SleepingStage(nn.Module):
    """Input and output are alike; the only parameter counts the micro-batches that came back."""

    def __init__(self, times: Times) -> None:
        super().__init__()
        self.times = times
        self.weight = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return _Sleep.apply(x, self.weight, self.times)


@dataclass(frozen=True)
class Measured:
    """A schedule as it ran: the actions in the order in which each rank ran them, with their times."""

    timeline: Timeline
    orders: list[list[str]]
    most_alive: list[int]
    passed: list[list[float]]


def chunks_of(name: str) -> int:
    return FAMILIES[name].chunks or 2


def planned(name: str, *, stages: int, microbatches: int, unit_s: float) -> Timeline:
    """The simulator's answer, with the lab's sleeps as costs and free messages."""
    costs = Costs(forward=unit_s, backward_input=unit_s, backward_weight=unit_s)
    return simulate(build(name, stages=stages, microbatches=microbatches, costs=costs), costs)


def planned_alive(timeline: Timeline, rank: int) -> int:
    """The most chunks' activations that a rank holds at a time."""
    pieces = timeline.schedule.layout.length // timeline.schedule.stages
    return round(max(held_after(timeline.schedule, rank)) * pieces)


def run(name: str, group: Group, *, microbatches: int, unit_s: float) -> Measured | None:
    """Run a schedule once; what every rank measured is returned on rank 0 of the group, None elsewhere."""
    pieces = 1 if FAMILIES[name].layout == "two-way" else chunks_of(name)
    each = unit_s / pieces
    times = [Times() for _ in range(chunks_of(name))]
    stages = [SleepingStage(time) for time in times]
    costs = Costs(forward=unit_s, backward_input=unit_s, backward_weight=unit_s)
    pipeline = Pipeline(stages, group, schedule=name, costs=costs)
    inputs = [torch.zeros(SHAPE) for _ in range(microbatches)]

    def step() -> None:
        pipeline.step(inputs, loss=lambda output, _index: output.sum())
        for stage in stages:
            stage.weight.grad = None

    step()  # without sleeps: links are set up, nothing is measured
    for chunk in times:
        chunk.forward = chunk.backward_input = chunk.backward_weight = each
    group.timeline = clock = Clock()
    dist.barrier(group=group.process_group)
    pipeline.step(inputs, loss=lambda output, _index: output.sum())
    spans = [span for span in clock.finish_step() if span.lane == "compute"]
    group.timeline = None
    mine = (
        [(span.name, span.start_s, span.end_s) for span in spans],
        pipeline.executor.most_alive,
        [float(stage.weight.grad.sum()) for stage in stages if stage.weight.grad is not None],
    )
    found: list[Any] = [None] * group.size
    dist.all_gather_object(found, mine, group=group.process_group)
    if group.rank:
        return None
    return _joined(name, found, microbatches=microbatches, costs=costs)


def _joined(name: str, found: list[Any], *, microbatches: int, costs: Costs) -> Measured:
    """One timeline of what the ranks measured; the first action of all starts at 0."""
    table = build(name, stages=len(found), microbatches=microbatches, costs=costs)
    origin = min(start for spans, _, _ in found for _, start, _ in spans)
    timeline = Timeline(
        schedule=table,
        costs=costs,
        start=tuple(tuple(start - origin for _, start, _ in spans) for spans, _, _ in found),
        end=tuple(tuple(end - origin for _, _, end in spans) for spans, _, _ in found),
    )
    orders = [[str(Act.parse(text)) for text, _, _ in spans] for spans, _, _ in found]
    return Measured(timeline, orders, [alive for _, alive, _ in found], [passed for _, _, passed in found])
