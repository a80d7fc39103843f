"""Lab 04: every pipeline schedule, first on stages that sleep, then on a real model.

Part one runs each schedule on stages whose computation is a sleep, and compares what happened with the
simulator: the order of actions and the activations alive exactly, times with their error. Part two trains one
model under each schedule that a job can name and compares losses, gradient norms and parameters with one
process, and every message with the plan. The lab exits with 1 if something that must be exact is not.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import sleeping

from pdtlib.book import small_run
from pdtlib.book.lab_parser import LabParser
from pdtlib.book.measured import Row, lines, ranks_off, relative_difference
from pdtlib.engine.data import Batches, Corpus
from pdtlib.engine.dist import init, shutdown
from pdtlib.engine.mesh import Group, Mesh, build_mesh
from pdtlib.plan.job import Job, from_dict
from pdtlib.plan.ledger import messages
from pdtlib.plan.params import count
from pdtlib.plan.schedule import FAMILIES, NAMES, schedule_problems
from pdtlib.plan.spec import SCHEDULES
from pdtlib.plan.units import percent_text

LAUNCH = "torchrun --standalone --nproc-per-node 4 labs/04_pipeline/lab.py"
ASSIGNED = ("train_rows",)

LAPTOP = {
    "model": {
        "layers": 16,
        "hidden": 48,
        "heads": 3,
        "kv_heads": 1,
        "ffn": 131,
        "vocab": 256,
        "seq": 64,
        "activation": "swiglu",
        "tied_embeddings": True,
    },
    "train": {"micro_batch": 1, "precision": "fp32", "learning_rate": 1e-3, "clip_grad_norm": 0.5},
}
GPU = {
    "model": {
        **LAPTOP["model"],
        "layers": 32,
        "hidden": 1024,
        "heads": 16,
        "kv_heads": 4,
        "ffn": 2731,
        "seq": 1024,
    },
    "train": {**LAPTOP["train"], "learning_rate": 3e-4},
}
GPU_LARGE = {
    "model": {**GPU["model"], "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 11008, "seq": 2048},
    "train": {**GPU["train"], "precision": "bf16"},
}
PRESETS = {"laptop": LAPTOP, "gpu": GPU, "gpu-large": GPU_LARGE}
STEPS = 3
TOLERANCE = {"fp32": 1e-4, "bf16": 5e-2}
UNIT_MS = 40


def sleep_report(name: str, group: Group, *, microbatches: int, unit_s: float) -> dict[str, Any] | None:
    """One schedule on sleeping stages: exact rows, and times beside the simulator's; None but on rank 0."""
    measured = sleeping.run(name, group, microbatches=microbatches, unit_s=unit_s)
    if measured is None:
        return None
    plan = sleeping.planned(name, stages=group.size, microbatches=microbatches, unit_s=unit_s)
    orders = [[str(act) for act in program] for program in plan.schedule.programs]
    alive = [sleeping.planned_alive(plan, rank) for rank in range(group.size)]
    came_back = [
        [
            float(len(plan.schedule.layout.micro_batches(chunk, microbatches)))
            for chunk in range(plan.schedule.chunks)
        ]
        for _ in range(group.size)
    ]
    title = FAMILIES[name].title
    ran = measured.timeline
    rows = [
        Row(title, "ranks whose order is the table's", group.size, _equal(orders, measured.orders)),
        Row(title, "ranks that hold what they should", group.size, _equal(alive, measured.most_alive)),
        Row(title, "ranks with every gradient", group.size, _equal(came_back, measured.passed)),
    ]
    return {
        "name": name,
        "title": title,
        "rows": [row.report() for row in rows],
        "alive": measured.most_alive,
        "step_s": {"predicted": plan.makespan, "measured": ran.makespan},
        "idle": {"predicted": plan.bubble_fraction, "measured": ran.bubble_fraction},
        "start": [list(times) for times in ran.start],
        "end": [list(times) for times in ran.end],
    }


def _equal(planned: list[Any], measured: list[Any]) -> int:
    """On how many ranks the two agree."""
    return sum(ours == theirs for ours, theirs in zip(planned, measured, strict=True))


def train_rows(job: Job, mesh: Mesh, batches: Batches, alone: small_run.Trained) -> list[Row]:
    """One schedule on the model, against one process and the plan: the rows of this rank."""
    result = small_run.train(job, mesh, batches, steps=STEPS)
    tolerance = TOLERANCE[job.train.precision]
    planned = [row.row() for row in messages(job, mesh.group("pp").rank)]
    title = FAMILIES[job.parallel.schedule].title
    losses = small_run.largest_difference(result.losses, alone.losses)
    norms = small_run.largest_difference(result.norms, alone.norms)
    parameters = max(
        relative_difference(tensor.cpu(), alone.parameters[name])
        for name, tensor in result.parameters.items()
    )
    sent = [small_run.sent_bytes(rows) for rows in (planned, result.sent)]
    off = small_run.differing(planned, result.sent)
    return [
        Row(title, "bytes sent by this rank in a step", *sent),
        Row(title, "messages that differ from the plan", 0, off),
        Row(title, "losses, against one process", 0, losses, tolerance),
        Row(title, "gradient norms", 0, norms, tolerance),
        Row(title, "parameters after the last step", 0, parameters, 10 * tolerance),
    ]


def jobs(preset: dict[str, Any], stages: int, microbatches: int) -> list[Job]:
    """A job for each schedule that this number of stages can run."""
    tables = {
        **preset,
        "train": {**preset["train"], "global_batch": microbatches * preset["train"]["micro_batch"]},
    }
    found = []
    for name in SCHEDULES:
        if not schedule_problems(name, stages=stages, microbatches=microbatches):
            parallel = {"pp": stages, "schedule": name}
            if name == "interleaved":
                parallel["vpp"] = 2
            found.append(from_dict({**tables, "parallel": parallel}))
    return found


def show_sleeping(reports: list[dict[str, Any]]) -> None:
    print("\nsleeping stages: seconds of a step, and the share of the stages' time that is idle")
    print(f"  {'':34s} {'predicted':>9s} {'measured':>9s} {'error':>7s}   {'predicted':>9s} {'measured':>9s}")
    for report in reports:
        seconds, idle = report["step_s"], report["idle"]
        error = seconds["measured"] / seconds["predicted"] - 1
        times = f"{seconds['predicted']:9.2f} {seconds['measured']:9.2f} {100 * error:5.1f} %"
        print(
            f"  {report['title']:34s} {times}   {percent_text(idle['predicted']):>9s} "
            f"{percent_text(idle['measured']):>9s}"
        )
    for row in (Row(**_fields(row)) for report in reports for row in report["rows"]):
        if not row.right:
            print(f"  {row.part}: {row.quantity}: {row.measured:g} of {row.predicted:g}  NOT as predicted")


def _fields(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in ("error", "right")}


def main() -> int:
    parser = LabParser(__doc__, PRESETS)
    parser.add_argument(
        "--unit-ms", type=int, default=UNIT_MS, help="a stage's forward, and each half backward"
    )
    parser.add_argument("--data", type=Path, nargs="*", default=[], help="text files or .bin token files")
    options = parser.parse_args()
    if options.unit_ms < 1:
        parser.error(f"--unit-ms {options.unit_ms}: valid: 1 or more")
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if world_size < 2:
        parser.error(f"{world_size} process: a pipeline needs 2 or more; start it with torchrun")
    device = init("gloo" if options.preset == "laptop" else None)
    mesh = build_mesh({"pp": world_size}, device_type=device.type)
    group = mesh.group("pp")
    microbatches = 2 * world_size
    sleeps = []
    if device.type == "cpu":
        for name in NAMES:
            if schedule_problems(name, stages=world_size, microbatches=microbatches):
                continue
            unit_s = options.unit_ms / 1000
            report = sleep_report(name, group, microbatches=microbatches, unit_s=unit_s)
            sleeps += [] if report is None else [report]
    todo = jobs(PRESETS[options.preset], world_size, microbatches)
    model = todo[0].model
    batches = Batches(
        Corpus(options.data, vocab=model.vocab),
        seq=model.seq,
        global_batch=todo[0].train.global_batch,
        seed=todo[0].train.seed,
    )
    alone = small_run.alone(todo[0], batches, group, device, steps=STEPS)
    trained = []
    for job in todo:
        rows = train_rows(job, mesh, batches, alone)
        off = ranks_off(rows, group)
        trained.append({"schedule": job.parallel.schedule, "rows": rows, "ranks_off": off})
    shutdown()
    if group.rank:
        return 0
    print(f"{world_size} processes on {device.type}, {microbatches} micro-batches a step")
    if sleeps:
        show_sleeping(sleeps)
    else:
        print("sleeping stages: left out, since they sleep on CPUs")
    size = f"{count(model).total:,d} parameters in {model.layers} layers"
    print(f"\na model of {size}, {STEPS} steps; rows of rank 0")
    for line in lines([row for report in trained for row in report["rows"]]):
        print(line)
    off_anywhere = [report["schedule"] for report in trained if report["ranks_off"]]
    if off_anywhere:
        print(f"NOT as predicted on some rank: {', '.join(off_anywhere)}")
    right = not off_anywhere and all(row["right"] for report in sleeps for row in report["rows"])
    if options.json:
        text = json.dumps(
            {
                "lab": "04",
                "preset": options.preset,
                "device": device.type,
                "world_size": world_size,
                "microbatches": microbatches,
                "unit_s": options.unit_ms / 1000,
                "params": count(model).total,
                "one_process": {"losses": alone.losses, "norms": alone.norms},
                "sleeping": sleeps,
                "trained": [
                    {**report, "rows": [row.report() for row in report["rows"]]} for report in trained
                ],
            },
            indent=1,
        )
        options.json.write_text(text + "\n", encoding="utf-8")
    print("every order, message and gradient as predicted" if right else "NOT as predicted: see above")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
