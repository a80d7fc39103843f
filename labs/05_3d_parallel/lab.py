"""Lab 05: two replicas of two stages of two tensor-parallel ranks are one training.

Three parts. The groups that the mesh makes, against the closed form, in both orders of ranks. A small model
on 2 x 2 x 2 processes with plain data parallelism and ZeRO-1, against one process and the plan. And, where
this machine can make a testbed, tensor parallelism inside a node against across two. The lab exits with 1 if
something that must be exact is not.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nodes

from pdtlib.book import small_run
from pdtlib.book.lab_parser import LabParser
from pdtlib.book.measured import Row, lines, ranks_off
from pdtlib.engine.data import Batches, Corpus
from pdtlib.engine.dist import init, shutdown
from pdtlib.engine.mesh import Group, Mesh, build_mesh
from pdtlib.plan import flats
from pdtlib.plan.job import Job, from_dict, replace
from pdtlib.plan.ledger import messages
from pdtlib.plan.params import count
from pdtlib.plan.ranks import ARTICLE_ORDER, MEGATRON_ORDER, group_of

LAUNCH = "torchrun --standalone --nproc-per-node 8 labs/05_3d_parallel/lab.py"
ASSIGNED = ("group_rows", "train_rows")

LAPTOP = {
    "model": {
        "layers": 4,
        "hidden": 64,
        "heads": 4,
        "kv_heads": 2,
        "ffn": 176,
        "vocab": 256,
        "seq": 64,
        "activation": "swiglu",
        "tied_embeddings": True,
    },
    "train": {
        "global_batch": 16,
        "micro_batch": 2,
        "precision": "fp32",
        "learning_rate": 1e-3,
        "clip_grad_norm": 0.5,
        "sequence_parallel": True,
    },
}
GPU = {
    "model": {
        **LAPTOP["model"],
        "layers": 16,
        "hidden": 1024,
        "heads": 16,
        "kv_heads": 8,
        "ffn": 2816,
        "seq": 1024,
    },
    "train": {**LAPTOP["train"], "learning_rate": 3e-4},
}
PRESETS = {"laptop": LAPTOP, "gpu": GPU}
DEGREES = {"dp": 2, "pp": 2, "tp": 2}
ORDERS = {"the article's order: tp, pp, dp": ARTICLE_ORDER, "Megatron's order: tp, dp, pp": MEGATRON_ORDER}
STEPS, TOLERANCE = 4, 1e-4


def group_rows(title: str, mesh: Mesh, job: Job, order: tuple[str, ...], rank: int) -> Iterator[Row]:
    """This rank's groups, from the mesh and by arithmetic."""
    right = sum(
        mesh.group(axis).ranks == group_of(rank, axis, parallel=job.parallel, order=order) for axis in DEGREES
    )
    yield Row(title, "groups that are the closed form's", len(DEGREES), right)


def train_rows(title: str, job: Job, mesh: Mesh, batches: Batches, alone: small_run.Trained) -> Iterator[Row]:
    """The training on this mesh, against one process and the plan: the rows of this rank."""
    result = small_run.train(job, mesh, batches, steps=STEPS)
    stage = mesh.group("pp").rank
    planned = [row.row() for row in messages(job, stage, mesh.data.rank)]
    yield Row(title, "bytes of model states held", flats.held_bytes(job, stage).total, result.held)
    for axis in DEGREES:
        sent = [small_run.sent_bytes(rows, axis) for rows in (planned, result.sent)]
        yield Row(title, f"bytes sent over {axis} in a step", *sent)
    off = small_run.differing(planned, result.sent)
    yield Row(title, "messages that differ from the plan", 0, off)
    losses = small_run.largest_difference(result.losses, alone.losses)
    norms = small_run.largest_difference(result.norms, alone.norms)
    yield Row(title, "losses, against one process", 0, losses, TOLERANCE)
    yield Row(title, "gradient norms", 0, norms, TOLERANCE)


def show_testbed(report: dict[str, Any]) -> None:
    print("\ntensor parallelism inside a node and across two")
    if not report["possible"]:
        print(f"left out: this machine can't make a testbed: {report['reason']}")
        return
    print(f"2 nodes of 2 ranks, {report['rate']} between them; what one node sends to the other:")
    print(f"  {'':28s} {'predicted':>12s} {'measured':>12s}")
    for run in report["runs"]:
        title = f"tp {run['where']}, bytes a step"
        print(f"  {title:28s} {run['planned']['between']:12,d} {run['between']:12,d}")
        print(f"seconds of a step, tp {run['where']}: {run['step_s']:.2f}")


def main() -> int:
    parser = LabParser(__doc__, PRESETS)
    parser.add_argument("--no-testbed", action="store_true", help="leave the third part out")
    parser.add_argument("--data", type=Path, nargs="*", default=[], help="text files or .bin token files")
    options = parser.parse_args()
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if world_size != 8:
        parser.error(f"{world_size} process(es): 2 x 2 x 2 needs 8; start it with torchrun")
    device = init("gloo" if options.preset == "laptop" else None)
    rank = int(os.environ["RANK"])
    base = from_dict({**PRESETS[options.preset], "parallel": DEGREES})
    batches = Batches(
        Corpus(options.data, vocab=base.model.vocab),
        seq=base.model.seq,
        global_batch=base.train.global_batch,
        seed=base.train.seed,
    )
    everyone: Group = build_mesh({"dp": world_size}, device_type=device.type).group("dp")
    alone = small_run.alone(base, batches, everyone, device, steps=STEPS)
    reports = []
    for title, order in ORDERS.items():
        mesh = build_mesh(base.parallel, device_type=device.type, order=order)
        for stage in (0, 1):
            job = replace(base, {"train.zero_stage": stage})
            part = f"{title}; {'ZeRO-1' if stage else 'plain data parallelism'}"
            rows = [
                *group_rows(part, mesh, job, order, rank),
                *train_rows(part, job, mesh, batches, alone),
            ]
            off = ranks_off(rows, everyone)
            reports.append({"order": title, "zero_stage": stage, "rows": rows, "ranks_off": off})
    shutdown()
    if rank:
        return 0
    print(f"2 x 2 x 2 processes on {device.type}: {count(base.model).total:,d} parameters, {STEPS} steps")
    for line in lines([row for report in reports for row in report["rows"]]):
        print(line)
    for report in reports:
        if report["ranks_off"]:
            print(f"NOT as predicted on ranks {report['ranks_off']}: {report['rows'][0].part}")
    on_nodes = {"possible": False, "reason": "--no-testbed", "runs": []}
    if not options.no_testbed:
        on_nodes = nodes.report()
    show_testbed(on_nodes)
    right = not any(report["ranks_off"] for report in reports) and not any(
        run["messages_off"] for run in on_nodes["runs"]
    )
    if options.json:
        found = {
            "lab": "05",
            "preset": options.preset,
            "device": device.type,
            "world_size": world_size,
            "params": count(base.model).total,
            "one_process": {"losses": alone.losses, "norms": alone.norms},
            "runs": [{**report, "rows": [row.report() for row in report["rows"]]} for report in reports],
            "testbed": on_nodes,
        }
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print("every group, byte and loss as predicted" if right else "NOT as predicted: see above")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
