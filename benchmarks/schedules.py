"""Schedules run by pdtlib's executor and by torch.distributed.pipelining, beside the simulator.

    python benchmarks/schedules.py [--stages 4] [--micro-batches 8,16] [--ms 40] [--steps 5] [--out FILE]

A stage's computation is a sleep, so that any number of ranks run as if each had a device of its own: ``--ms``
for a whole stage's forward pass, as long for each half of its backward pass. What a step takes longer than
the simulator says is what the executor costs: waiting that the table does not have, messages, Python. Bytes
of a message are set by ``--kib``. A step's time is that of the slowest rank; the median of the steps counts.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining import schedules as torch_schedules

from pdtlib.engine.dist import spawn
from pdtlib.engine.mesh import build_mesh
from pdtlib.engine.pipeline import Pipeline, cut_layers
from pdtlib.engine.split_backward import later
from pdtlib.plan.schedule import NAMES, Costs, build, simulate

THEIRS = {
    "gpipe": ("ScheduleGPipe", "gpipe", 1),
    "1f1b": ("Schedule1F1B", "1f1b", 1),
    "interleaved": ("ScheduleInterleaved1F1B", "interleaved", 2),
    "zero bubble, interleaved": ("ScheduleInterleavedZeroBubble", None, 2),
    "zb-v": ("ScheduleZBVZeroBubble", "zb-v", 2),
    "dualpipe-v": ("ScheduleDualPipeV", None, 2),
}
"""Their schedule classes, our table that is the same, and the chunks a rank."""


class _Input(torch.autograd.Function):
    """Sleeps forwards, and backwards for the gradient of the input."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, seconds: float) -> Tensor:
        ctx.seconds = seconds
        time.sleep(seconds)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        time.sleep(ctx.seconds)
        return grads[0], None


class _Weight(torch.autograd.Function):
    """Sleeps backwards, for the gradient of the weight."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, seconds: float) -> Tensor:
        ctx.weight, ctx.seconds = weight, seconds
        return weight.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        def compute() -> Tensor:
            time.sleep(ctx.seconds)
            return grads[0]

        return later(ctx.weight, compute), None


class Sleeper(nn.Module):
    """A part of the model that takes ``seconds`` for each of forward, input gradient and weight gradient."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.seconds = seconds

    def forward(self, x: Tensor) -> Tensor:
        if not x.requires_grad:  # the first position's input: its backward pass takes as long as the others'
            x = x.detach().requires_grad_()
        return _Input.apply(x, self.seconds) + _Weight.apply(self.weight, self.seconds)


def time_steps(step: Any, count: int) -> list[float]:
    """Seconds of each of ``count`` steps on this rank, after one that is not counted."""
    found = []
    for _ in range(count + 1):
        dist.barrier()
        start = time.perf_counter()
        step()
        found.append(time.perf_counter() - start)
    return found[1:]


def run_ours(options: dict[str, Any], name: str) -> list[float]:
    group = build_mesh({"pp": options["stages"]}).group("pp")
    table = build(name, stages=options["stages"], microbatches=options["micro_batches"])
    pieces = table.layout.length // table.stages
    layers = [Sleeper(options["ms"] / 1000 / pieces) for _ in range(table.layout.length)]
    pipe = Pipeline(cut_layers(layers, table.layout, group.rank), group, schedule=name)
    inputs = list(torch.ones(options["micro_batches"], options["kib"] * 256))
    return time_steps(lambda: pipe.step(inputs, loss=_loss), options["steps"])


def _loss(output: Tensor, index: int) -> Tensor:
    return output.square().sum()


def run_theirs(options: dict[str, Any], name: str) -> list[float]:
    kind, _, chunks = THEIRS[name]
    stages, rank = options["stages"], dist.get_rank()
    schedule_class = getattr(torch_schedules, kind)
    turned = {1: 2 * stages - 1 - rank} if name in ("zb-v", "dualpipe-v") else {}
    places = [turned.get(chunk, chunk * stages + rank) for chunk in range(chunks)]
    parts = [
        PipelineStage(Sleeper(options["ms"] / 1000 / chunks), place, stages * chunks, torch.device("cpu"))
        for place in places
    ]
    schedule = schedule_class(
        parts[0] if chunks == 1 else parts,
        options["micro_batches"],
        loss_fn=lambda output, target: output.square().sum(),
        scale_grads=False,
    )
    inputs = torch.ones(options["micro_batches"], options["kib"] * 256)
    last = stages * chunks - 1

    def step() -> None:
        given = (inputs,) if 0 in places else ()
        schedule.step(*given, **({"target": inputs} if last in places else {}))

    return time_steps(step, options["steps"])


def ideal_s(options: dict[str, Any], name: str) -> float:
    """The simulator's time of a step, with messages that take no time."""
    chunked = 2 if name in ("interleaved", "zb-v") else None
    table = build(name, stages=options["stages"], microbatches=options["micro_batches"], chunks=chunked)
    return simulate(table, Costs()).makespan * options["ms"] / 1000


def measure(options: dict[str, Any], who: str, name: str) -> float:
    """Seconds a step."""
    run = run_ours if who == "pdtlib" else run_theirs
    ranks = spawn(run, options["stages"], options, name, timeout_s=300)
    return statistics.median(max(times) for times in zip(*ranks, strict=True))


def row_of(options: dict[str, Any], who: str, name: str, same: str | None) -> dict[str, Any]:
    """One result; ``same`` is our table of the schedule, without which there is no ideal time."""
    step_s = measure(options, who, name)
    ideal = None if same is None else ideal_s(options, same)
    return {
        "schedule": name,
        "executor": who,
        "micro_batches": options["micro_batches"],
        "step_s": step_s,
        "ideal_s": ideal,
        "ratio": None if ideal is None else step_s / ideal,
    }


def table_of(rows: list[dict[str, Any]]) -> str:
    lines = ["| schedule | executor | micro-batches | step, ms | simulator, ms | ratio |", "|" + "---|" * 6]
    for row in rows:
        ideal = "" if row["ideal_s"] is None else f"{row['ideal_s'] * 1000:.0f}"
        ratio = "" if row["ratio"] is None else f"{row['ratio']:.3f}"
        lines.append(
            f"| {row['schedule']} | {row['executor']} | {row['micro_batches']} | {row['step_s'] * 1000:.0f} "
            f"| {ideal} | {ratio} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stages", type=int, default=4)
    parser.add_argument("--micro-batches", default="8,16", help="numbers of them, separated by commas")
    parser.add_argument("--ms", type=float, default=40)
    parser.add_argument("--kib", type=int, default=64, help="KiB of a message")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--only", default="", help="schedules, separated by commas")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "schedules.json")
    options = vars(parser.parse_args())
    about = {key: options[key] for key in ("stages", "ms", "kib", "steps")}
    about |= {"date": datetime.date.today().isoformat(), "cores": os.cpu_count(), "torch": torch.__version__}
    wanted = options["only"].split(",") if options["only"] else [*NAMES, *THEIRS]
    contenders = [("pdtlib", name, name) for name in NAMES]
    contenders += [("torch", name, same) for name, (_, same, _) in THEIRS.items()]
    rows: list[dict[str, Any]] = []
    for count in map(int, options["micro_batches"].split(",")):
        options["micro_batches"] = count
        for who, name, same in contenders:
            if name in wanted:
                rows.append(row_of(options, who, name, same))
                print(table_of(rows[-1:]).splitlines()[-1], flush=True)
                options["out"].parent.mkdir(parents=True, exist_ok=True)
                options["out"].write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n")
    print("\n" + table_of(rows))


if __name__ == "__main__":
    main()
