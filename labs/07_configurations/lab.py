"""Lab 07: the planner's choice against its runner-up and a poor plan, and prefetching against none.

First eight layers that are gathered before they compute, in three orders. Then this machine is measured, a
planner ranks all layouts of a small model on it, and three of them are trained for a few steps: their order
by the clock, beside the predicted one. Bytes and losses must be exact; times are shown. Exits with 1 when
anything that must be exact is not.
"""

from __future__ import annotations

import datetime
import json
import os
import statistics
import sys
from collections.abc import Iterator
from typing import Any

import prefetching
import torch
import torch.distributed as dist

from pdtlib.book import small_run
from pdtlib.book.lab_parser import LabParser
from pdtlib.book.measured import Row, lines, ranks_off
from pdtlib.engine.calibration import Clock, collective_rates, compute_rate, describe, effort, memory_of_rank
from pdtlib.engine.data import Batches, Corpus
from pdtlib.engine.dist import init, shutdown
from pdtlib.engine.mesh import Group, build_mesh
from pdtlib.figures.planner import plan_words
from pdtlib.plan import flats
from pdtlib.plan.job import Job, from_dict, replace
from pdtlib.plan.ledger import messages
from pdtlib.plan.planner import Plan, plan
from pdtlib.plan.spec import Hardware, Measured

LAUNCH = "torchrun --standalone --nproc-per-node 4 labs/07_configurations/lab.py"
ASSIGNED = ("ranked", "train_rows")

LAPTOP = {
    "model": {
        "layers": 4,
        "hidden": 64,
        "heads": 4,
        "kv_heads": 4,
        "ffn": 176,
        "vocab": 256,
        "seq": 64,
        "activation": "swiglu",
    },
    "train": {"global_batch": 16, "precision": "fp32", "learning_rate": 1e-3},
}
GPU = {
    "model": {**LAPTOP["model"], "layers": 16, "hidden": 2048, "heads": 16, "ffn": 5632, "seq": 2048},
    "train": {**LAPTOP["train"], "learning_rate": 3e-4},
}
PRESETS = {"laptop": LAPTOP, "gpu": GPU}
STEPS, TOLERANCE = 3, 1e-4
MANY = 200  # plans asked for: in effect all that fit
CHOSEN = ("the planner's choice", "the runner-up", "the last of the ranking")


def measured_hardware(group: Group, device: torch.device) -> Hardware:
    """What this machine reaches with all ranks at work, told by rank 0."""
    work = effort(device.type, short=True)
    clock = Clock(device, group, work.seconds)
    rates = compute_rate("fp32", work, clock)
    links = collective_rates(work, clock) if group.size > 1 else []
    found: list[Any] = [
        Measured(
            date=datetime.datetime.now(datetime.UTC).date().isoformat(),
            host=describe(device.type),
            memory_bytes=memory_of_rank(device.type, group.size),
            compute=(rates,),
            collectives=tuple(links),
        )
    ]
    dist.broadcast_object_list(found, src=0, group=group.process_group)
    return Hardware(gpu="cpu", gpus_per_node=group.size, n_gpus=group.size, measured=found[0])


def ranked(base: dict[str, Any], hardware: Hardware) -> tuple[Job, tuple[Plan, ...], dict[str, int]]:
    """The job on this machine, its layouts from the best to the worst, and why others fell out."""
    job = Job(model=from_dict(base).model, train=from_dict(base).train, hardware=hardware)
    ranking = plan(job, num_gpus=hardware.n_gpus, top=MANY)
    return job, ranking.plans, ranking.rejected


def train_rows(
    title: str, job: Job, alone: small_run.Trained, batches: Batches, device: torch.device
) -> tuple[list[Row], float]:
    """Train a layout: its exact rows on this rank, and the median seconds of a step."""
    mesh = build_mesh(job.parallel, device_type=device.type)
    result = small_run.train(job, mesh, batches, steps=STEPS)
    stage = mesh.group("pp").rank
    planned = [row.row() for row in messages(job, stage, mesh.data.rank)]
    losses = small_run.largest_difference(result.losses, alone.losses)
    rows = [
        Row(title, "bytes of model states held", flats.held_bytes(job, stage).total, result.held),
        Row(
            title,
            "bytes sent in a step",
            small_run.sent_bytes(planned),
            small_run.sent_bytes(result.sent),
        ),
        Row(title, "messages that differ from the plan", 0, small_run.differing(planned, result.sent)),
        Row(title, "losses, against one process", 0, losses, TOLERANCE),
    ]
    return rows, statistics.median(result.step_s[1:])


def show_times(reports: list[dict[str, Any]]) -> Iterator[str]:
    """Seconds, predicted and measured; every line begins so, as no two machines print the same."""
    yield f"seconds {'':24s} {'predicted':>9s} {'measured':>9s}"
    for report in reports:
        seconds = report["seconds"]
        words = f"  {report['plan']}" if "plan" in report else ""
        yield (f"seconds {report['name']:24s} {seconds['predicted']:9.4f} {seconds['measured']:9.4f}{words}")


def main() -> int:
    parser = LabParser(__doc__, PRESETS)
    parser.add_argument("--unit-ms", type=float, default=50.0, help="a gather, and a computation")
    options = parser.parse_args()
    device = init("gloo" if options.preset == "laptop" else None)
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if ranks < 2:
        parser.error(f"{ranks} process: start at least 2 with torchrun")
    base = PRESETS[options.preset]
    mesh = build_mesh({"dp": ranks}, device_type=device.type)
    group = mesh.group("dp")
    passes = [
        prefetching.measure(name, group, device, mesh.ledger, unit_s=options.unit_ms / 1e3)
        for name in prefetching.ORDERS
    ]
    job, plans, rejected = ranked(base, measured_hardware(group, device))
    batches = Batches(
        Corpus([], vocab=job.model.vocab),
        seq=job.model.seq,
        global_batch=job.train.global_batch,
        seed=job.train.seed,
    )
    one = replace(job, {"train.micro_batch": 1, "train.zero_stage": 0})
    alone = small_run.alone(one, batches, group, device, steps=STEPS)
    runs = []
    for name, chosen in zip(CHOSEN, (plans[0], plans[1], plans[-1]), strict=True):
        rows, seconds = train_rows(name, chosen.job, alone, batches, device)
        runs.append(
            {
                "name": name,
                "plan": plan_words(chosen),
                "seconds": {"predicted": chosen.time.step_s, "measured": seconds},
                "rows": rows,
            }
        )
    rows = [row for report in (*passes, *runs) for row in report["rows"]]
    off = ranks_off(rows, group)
    shutdown()
    if group.rank:
        return 1 if off else 0
    print(f"{ranks} processes on {device.type}")
    print(*lines(rows), sep="\n")
    print(*show_times([*passes, *runs]), sep="\n")
    print(f"seconds of {len(plans)} layouts that fit were predicted; {sum(rejected.values())} left out")
    if options.json:
        report = {
            "lab": "07",
            "preset": options.preset,
            "device": device.type,
            "world_size": ranks,
            "unit_s": options.unit_ms / 1e3,
            "num_plans": len(plans),
            "rejected": rejected,
            "passes": [_plain(each) for each in passes],
            "plans": [_plain(each) for each in runs],
            "ranks_off": off,
        }
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print()
    print(f"NOT as predicted on ranks {off}" if off else f"as predicted on all {ranks} ranks")
    return 1 if off else 0


def _plain(report: dict[str, Any]) -> dict[str, Any]:
    return {**report, "rows": [row.report() for row in report["rows"]]}


if __name__ == "__main__":
    sys.exit(main())
