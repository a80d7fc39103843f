"""Steps with a known fault, prepared: what each rank did in one step, for practice in reading traces.

Spans are what ``pdt run`` records. Compute and messages of the pipeline come from the schedules' simulator,
buckets from the bucket timeline, so each step is one that could have happened. Sizes are drawn.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from pdtlib.plan.overlap import Span, bucket_timeline
from pdtlib.plan.schedule import Costs, Timeline, build, simulate

OPTIMIZER_S = 0.02


@dataclass(frozen=True, kw_only=True)
class FaultyStep:
    """One step: spans by rank, degrees of parallelism, GPUs a node, and bytes of each gradient message."""

    cause: str
    ranks: dict[int, list[Span]]
    parallel: dict[str, int]
    gpus_per_node: int = 8
    micro_batches: int = 4
    gradient_bytes: list[int] = field(default_factory=list)


def _finished(spans: list[Span], end_s: float) -> list[Span]:
    """With the optimizer at the end, and the step around everything."""
    step_end_s = end_s + OPTIMIZER_S
    return [
        Span("step", "step", 0.0, step_end_s),
        *spans,
        Span("optimizer", "step", end_s, step_end_s),
    ]


def _reduced(
    *, start_s: float, compute_s: float, reductions: list[tuple[float, float]], end_s: float
) -> list[Span]:
    """A rank that computes from ``start_s`` on, a third of it forwards, and then waits until ``end_s``."""
    done_s = start_s + compute_s
    return [
        Span("compute", "forward", start_s, start_s + compute_s / 3),
        Span("compute", "backward", start_s + compute_s / 3, done_s),
        *(Span("communication dp", "grads all_reduce", a, b) for a, b in reductions),
        *([Span("wait dp", "grads all_reduce", done_s, end_s)] if end_s > done_s else []),
    ]


def _after(start_s: float, sizes: list[int], *, backward_s: float, bytes_per_s: float, latency_s: float,
           overlap: bool = True) -> list[tuple[float, float]]:  # fmt: skip
    """When each bucket travels, if the backward pass begins at ``start_s`` and each size is a bucket."""
    line = bucket_timeline(
        sizes,
        limit_bytes=1,
        backward_s=backward_s,
        dp=2,
        bytes_per_s=bytes_per_s,
        latency_s=latency_s,
        overlap=overlap,
    )
    return [
        (start_s + span.start_s, start_s + span.end_s) for span in line.spans if span.lane == "communication"
    ]


def healthy(draw: random.Random) -> FaultyStep:
    """Gradients travel while the backward pass goes on; the last bucket alone shows."""
    compute_s, sizes = draw.uniform(0.8, 1.2), [25 * 2**20] * 4
    sent = _after(
        compute_s / 3,
        sizes,
        backward_s=2 / 3 * compute_s,
        bytes_per_s=25 * 2**20 / (0.03 * compute_s),
        latency_s=1e-5,
    )
    end_s = max(compute_s, sent[-1][1])
    spans = _reduced(start_s=0.0, compute_s=compute_s, reductions=sent, end_s=end_s)
    return FaultyStep(
        cause="none",
        ranks={rank: _finished(spans, end_s) for rank in (0, 1)},
        parallel={"dp": 2},
        gradient_bytes=sizes,
    )


def straggler(draw: random.Random) -> FaultyStep:
    """One rank of four computes far longer; the others wait for its gradients."""
    usual_s, slow = draw.uniform(0.5, 0.7), draw.randrange(4)
    late_s = usual_s * draw.uniform(1.45, 1.8)
    end_s = late_s + 0.01
    ranks = {}
    for rank in range(4):
        compute_s = late_s if rank == slow else usual_s
        flying = [(compute_s / 2, end_s)]
        ranks[rank] = _finished(
            _reduced(start_s=0.0, compute_s=compute_s, reductions=flying, end_s=end_s), end_s
        )
    return FaultyStep(cause="straggler", ranks=ranks, parallel={"dp": 4}, gradient_bytes=[25 * 2**20] * 4)


def bubble(draw: random.Random) -> FaultyStep:
    """A pipeline with about as many micro-batches as stages, simulated."""
    stages, unit_s = 4, draw.uniform(0.03, 0.06)
    micro_batches = draw.choice((2, 3, 4))
    costs = Costs(forward=unit_s, backward_input=unit_s, backward_weight=unit_s)
    timeline = simulate(build("1f1b", stages=stages, microbatches=micro_batches), costs)
    ranks = {stage: _finished(_stage(timeline, stage), timeline.makespan) for stage in range(stages)}
    return FaultyStep(cause="bubble", ranks=ranks, parallel={"pp": stages}, micro_batches=micro_batches)


def _stage(timeline: Timeline, stage: int) -> list[Span]:
    """A stage's actions, and its waits between them and at the end."""
    spans, at_s = [], 0.0
    rows = zip(timeline.start[stage], timeline.end[stage], timeline.schedule.programs[stage], strict=True)
    for start_s, end_s, act in rows:
        if start_s > at_s + 1e-9:
            spans.append(Span("wait pp", "recv", at_s, start_s))
        spans.append(Span("compute", str(act), start_s, end_s))
        at_s = end_s
    if timeline.makespan > at_s + 1e-9:
        spans.append(Span("wait pp", "grad_norm all_reduce", at_s, timeline.makespan))
    return spans


def no_overlap(draw: random.Random) -> FaultyStep:
    """Gradients start to travel when the backward pass is over."""
    compute_s, sizes = draw.uniform(0.5, 0.7), [25 * 2**20] * 3
    sent = _after(
        compute_s / 3,
        sizes,
        backward_s=2 / 3 * compute_s,
        bytes_per_s=25 * 2**20 / draw.uniform(0.1, 0.16),
        latency_s=1e-5,
        overlap=False,
    )
    end_s = sent[-1][1]
    spans = _reduced(start_s=0.0, compute_s=compute_s, reductions=sent, end_s=end_s)
    return FaultyStep(
        cause="no overlap",
        ranks={rank: _finished(spans, end_s) for rank in (0, 1)},
        parallel={"dp": 2},
        gradient_bytes=sizes,
    )


def data_stall(draw: random.Random) -> FaultyStep:
    """One rank's batch comes late, and the other waits for that rank's gradients."""
    compute_s, late_s, late = draw.uniform(0.45, 0.6), draw.uniform(0.3, 0.5), draw.randrange(2)
    end_s = late_s + compute_s + 0.01
    ranks = {}
    for rank in (0, 1):
        data_s = late_s if rank == late else 0.02
        flying = [(data_s + compute_s / 2, end_s)]
        work = _reduced(start_s=data_s, compute_s=compute_s, reductions=flying, end_s=end_s)
        ranks[rank] = _finished([Span("data", "batch", 0.0, data_s), *work], end_s)
    return FaultyStep(cause="data stall", ranks=ranks, parallel={"dp": 2}, gradient_bytes=[25 * 2**20] * 4)


def tensor_parallel_across_nodes(draw: random.Random) -> FaultyStep:
    """A tensor-parallel group larger than a node: every layer waits for the network, inside the passes."""
    layers, wait_s, work_s = 8, draw.uniform(0.05, 0.08), draw.uniform(0.03, 0.05)
    spans, at_s = [], 0.0
    for number in range(3 * layers):
        spans.append(Span("wait tp", "all_reduce", at_s + work_s, at_s + work_s + wait_s))
        spans.append(Span("communication tp", "all_reduce", at_s + work_s, at_s + work_s + wait_s))
        at_s += work_s + wait_s
        if number == layers - 1:
            spans.append(Span("compute", "forward", 0.0, at_s))
            forward_s = at_s
    spans.append(Span("compute", "backward", forward_s, at_s))
    return FaultyStep(
        cause="TP across nodes",
        ranks={rank: _finished(spans, at_s) for rank in range(4)},
        parallel={"tp": 4},
        gpus_per_node=2,
    )


def tiny_buckets(draw: random.Random) -> FaultyStep:
    """Many small gradient messages, whose latency is longer than the backward pass that should hide them."""
    compute_s, count = draw.uniform(0.5, 0.6), draw.randrange(40, 60)
    sizes = [draw.randrange(20_000, 60_000)] * count
    sent = _after(
        compute_s / 3,
        sizes,
        backward_s=2 / 3 * compute_s,
        bytes_per_s=10e9,
        latency_s=0.7 / count / 2,
    )
    end_s = sent[-1][1]
    spans = _reduced(start_s=0.0, compute_s=compute_s, reductions=sent, end_s=end_s)
    return FaultyStep(
        cause="tiny buckets",
        ranks={rank: _finished(spans, end_s) for rank in (0, 1)},
        parallel={"dp": 2},
        gradient_bytes=sizes,
    )


FAULTS: dict[str, Callable[[random.Random], FaultyStep]] = {
    "straggler": straggler,
    "bubble": bubble,
    "no overlap": no_overlap,
    "data stall": data_stall,
    "TP across nodes": tensor_parallel_across_nodes,
    "tiny buckets": tiny_buckets,
}
"""By the names that the diagnosis of a run uses."""
