"""The bubble of every schedule, run on stages that sleep, beside the simulator's.

    python benchmarks/bubbles.py        about two minutes, into benchmarks/results/bubbles.json

Four ranks run each table through the engine's executor. ``--ms`` is the time of a stage's forward pass, and
of each half of its backward pass (:mod:`pdtlib.testbed.pace`). The bubble is the idle share of stages x
makespan by the spans that the ranks have measured; the median of the steps counts. A machine that is busy
with something else wakes sleepers late and makes bubbles larger.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from pdtlib.engine.dist import spawn
from pdtlib.engine.mesh import build_mesh
from pdtlib.engine.pipeline import Pipeline, cut_layers
from pdtlib.observe.trace import Timeline
from pdtlib.plan.schedule import NAMES, Costs, Schedule, build, simulate

STAGES, MICRO_BATCHES, WIDTH = 4, 8, 8


def table(name: str) -> Schedule:
    return build(name, stages=STAGES, microbatches=MICRO_BATCHES)


def predicted(name: str) -> float:
    """The simulator's bubble, with forward and both halves of the backward alike and free messages."""
    return simulate(table(name), Costs()).bubble_fraction


def run(name: str, seconds: float, steps: int) -> list[list[tuple[float, float]]]:
    """On one rank: start and end of every action, in each step but the first."""
    group = build_mesh({"pp": STAGES}).group("pp")
    layout = table(name).layout
    layers = [nn.Linear(WIDTH, WIDTH) for _ in range(layout.length)]
    pipe = Pipeline(cut_layers(layers, layout, group.rank), group, schedule=name)
    inputs = list(torch.ones(MICRO_BATCHES, 1, WIDTH))
    group.timeline = Timeline()
    found = []
    for number in range(steps + 1):
        pipe.executor.pace_s = seconds * STAGES / layout.length if number else 0.0
        dist.barrier()
        pipe.step(inputs, loss=lambda output, _: output.square().sum())
        spans = [span for span in group.timeline.finish_step() if span.lane == "compute"]
        found.append([(span.start_s, span.end_s) for span in spans])
    return found[1:]


def bubble(ranks: list[list[tuple[float, float]]]) -> float:
    """The idle share of a step, from the spans of all ranks.

    >>> bubble([[(0.0, 1.0), (1.0, 2.0)], [(1.0, 2.0)]])
    0.25
    """
    spans = [span for rank in ranks for span in rank]
    makespan = max(end for _, end in spans) - min(start for start, _ in spans)
    return 1 - sum(end - start for start, end in spans) / (len(ranks) * makespan)


def row(name: str, *, ms: float, steps: int) -> dict[str, Any]:
    """One schedule: predicted, measured, and how many points they are apart."""
    ranks = spawn(run, STAGES, name, ms / 1e3, steps, timeout_s=300)
    found = [bubble(list(step)) for step in zip(*ranks, strict=True)]
    measured, planned = statistics.median(found), predicted(name)
    return {
        "schedule": name,
        "predicted": planned,
        "measured": measured,
        "points": 100 * (measured - planned),
        "steps": found,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ms", type=float, default=50)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/bubbles.json"))
    options = parser.parse_args()
    rows = []
    for name in NAMES:
        rows.append(row(name, ms=options.ms, steps=options.steps))
        print("{schedule:12s} {predicted:7.4f} {measured:7.4f} {points:+6.2f} points".format(**rows[-1]))
    setting = {
        "stages": STAGES,
        "micro_batches": MICRO_BATCHES,
        "ms": options.ms,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    options.out.write_text(json.dumps({"setting": setting, "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
