"""Lab 02: data parallelism and ZeRO-1, 2, 3 are one training, and hold and send what the plan says.

Every stage trains the same small Llama-style model on the same text, over all processes that torchrun
started. Losses, gradient norms and final parameters are compared with one process, bytes held and sent with
`pdtlib.plan`. The lab exits with 1 if a byte is off on any rank or a loss differs.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from pdtlib.book.lab_parser import LabParser
from pdtlib.engine.data import Batches, Corpus
from pdtlib.engine.data_parallel import data_parallel
from pdtlib.engine.dist import init, shutdown
from pdtlib.engine.loss import IGNORED, TokenMean, token_loss_sum
from pdtlib.engine.mesh import Group, build_mesh
from pdtlib.engine.models import Transformer
from pdtlib.engine.optimizer import ShardedAdamW
from pdtlib.observe.memory import held_bytes
from pdtlib.plan import flats
from pdtlib.plan.job import Job, from_dict, replace
from pdtlib.plan.params import count

LAUNCH = "torchrun --standalone --nproc-per-node 4 labs/02_zero/lab.py"
ASSIGNED = ("train",)

# ffn is odd so that a layer's parameters can't be cut into four equal shards: padding is part of the lesson.
LAPTOP = {
    "model": {
        "layers": 4,
        "hidden": 126,
        "heads": 3,
        "kv_heads": 1,
        "ffn": 337,
        "vocab": 256,
        "seq": 128,
        "activation": "swiglu",
    },
    "train": {"micro_batch": 2, "precision": "fp32", "learning_rate": 1e-3, "clip_grad_norm": 0.5},
}
GPU = {
    "model": {
        "layers": 24,
        "hidden": 1024,
        "heads": 16,
        "ffn": 2731,
        "vocab": 256,
        "seq": 1024,
        "activation": "swiglu",
    },
    "train": {"micro_batch": 2, "precision": "fp32", "learning_rate": 3e-4, "clip_grad_norm": 0.5},
}
GPU_LARGE = {
    "model": {**GPU["model"], "hidden": 2048, "ffn": 5461, "seq": 2048},
    "train": {**GPU["train"], "precision": "bf16"},
}
PRESETS = {"laptop": LAPTOP, "gpu": GPU, "gpu-large": GPU_LARGE}
STEPS, ACCUMULATION = 6, 2
TOLERANCE = {"fp32": 1e-5, "bf16": 2e-2}


@dataclass
class Result:
    """What one training left: a loss and a gradient norm a step, parameters, bytes held, ledger of a step."""

    losses: list[float]
    norms: list[float]
    parameters: dict[str, Tensor]
    held: dict[str, int]
    sent: list[dict[str, Any]]
    step_s: float


def train(job: Job, group: Group, batches: Batches, *, device: torch.device) -> Result:
    """Train for a few steps. Nothing in here knows which stage it runs."""
    model = Transformer(job.model, seed=job.train.seed, device=device)
    replica = data_parallel(
        model, group, stage=job.train.zero_stage, blocks=list(model.layers), precision=job.train.precision
    )
    optimizer = ShardedAdamW(replica, lr=job.train.learning_rate, weight_decay=job.train.weight_decay)
    share = job.train.global_batch // group.size
    losses, norms, held, sent, started = [], [], {}, [], 0.0
    for step in range(STEPS):
        started = time.perf_counter()
        group.ledger.clear()
        inputs, targets = (
            part.to(device) for part in batches.take(step, first=group.rank * share, count=share)
        )
        mean = TokenMean(group, num_valid=int((targets != IGNORED).sum()), device=device)
        loss_sum = torch.zeros((), dtype=torch.float64, device=device)
        pieces = list(
            zip(inputs.split(job.train.micro_batch), targets.split(job.train.micro_batch), strict=True)
        )
        for number, (tokens, following) in enumerate(pieces):
            last = number == len(pieces) - 1
            with nullcontext() if last else replica.no_sync():
                part = token_loss_sum(replica(tokens), following)
                optimizer.scale(mean.loss(part)).backward()
            loss_sum += part.detach()
        replica.finish_gradients()
        norms.append(optimizer.clip_grad_norm(job.train.clip_grad_norm))
        losses.append(mean.report(loss_sum))
        held = {
            "params": held_bytes(replica.held()["params"]),
            "grads": held_bytes(replica.held()["grads"]),
            "optimizer": held_bytes(optimizer.held()["optimizer"]),
        }
        optimizer.step()
        optimizer.zero_grad()
        sent = group.ledger.rows()
    step_s = time.perf_counter() - started
    return Result(losses, norms, replica.full_parameters(), held, sent, step_s)


def compare(job: Job, result: Result, reference: Result | None, group: Group) -> dict[str, Any] | None:
    """Predicted, measured and error of one stage: bytes of rank 0, and whether all ranks agree with the plan.

    Call it on every rank; only the one with a reference gets a report.
    """
    plan = flats.held_bytes(job)
    messages = [message.row() for message in flats.data_parallel_messages(job)]
    predicted = {"params": int(plan.params), "grads": int(plan.grads), "optimizer": int(plan.optimizer)}
    rows = [
        {"quantity": f"{name} held", "predicted": predicted[name], "measured": result.held[name]}
        for name in predicted
    ]
    rows.append(
        {
            "quantity": "states held",
            "predicted": sum(predicted.values()),
            "measured": sum(result.held.values()),
        }
    )
    for name, phases in SENT.items():
        rows.append(
            {
                "quantity": name,
                "predicted": _sent(messages, phases),
                "measured": _sent(result.sent, phases),
            }
        )
    for row in rows:
        row["error"] = row["measured"] - row["predicted"]
    as_planned = not any(row["error"] for row in rows) and _sorted(messages) == _sorted(result.sent)
    ranks_off = _ranks_where(not as_planned, group)
    if reference is None:
        return None
    return {
        "stage": job.train.zero_stage,
        "rows": rows,
        "messages": result.sent,
        "ranks_off_plan": ranks_off,
        "losses": result.losses,
        "max_loss_difference": max(map(_difference, result.losses, reference.losses)),
        "max_norm_difference": max(map(_difference, result.norms, reference.norms)),
        "max_parameter_difference": max(
            (result.parameters[name].float() - value.float()).abs().max().item()
            for name, value in reference.parameters.items()
        ),
        "step_s": result.step_s,
    }


SENT = {
    "gradients sent": ("grads",),
    "parameters sent": ("params", "forward", "backward"),
    "counts sent": ("tokens", "loss", "grad_norm"),
}


def _ranks_where(condition: bool, group: Group) -> list[int]:
    """The ranks on which ``condition`` holds."""
    if group.size == 1:
        return [0] if condition else []
    found: list[bool] = [False] * group.size
    dist.all_gather_object(found, condition, group=group.process_group)
    return [rank for rank, holds in enumerate(found) if holds]


def _difference(a: float, b: float) -> float:
    return abs(a - b) / max(1.0, abs(b))


def _sent(rows: list[dict[str, Any]], phases: tuple[str, ...]) -> int:
    return round(sum(row["sent_bytes_per_rank"] for row in rows if row["phase"] in phases))


def _sorted(rows: list[dict[str, Any]]) -> list[list[tuple[str, Any]]]:
    return sorted(sorted(row.items()) for row in rows)


def show(reports: list[dict[str, Any]], reference: Result, *, ranks: int, tolerance: float) -> None:
    """Print what was predicted and measured of every stage."""
    for report in reports:
        print(f"\n{_name(report['stage'])}")
        print(f"  {'bytes on rank 0':20s} {'predicted':>12s} {'measured':>12s} {'error':>6s}")
        for row in report["rows"]:
            numbers = f"{row['predicted']:>12,d} {row['measured']:>12,d} {row['error']:>6,d}"
            print(f"  {row['quantity']:20s} {numbers}")
        off = report["ranks_off_plan"]
        where = f"NOT on ranks {off}" if off else f"on all {ranks} ranks"
        print(f"  every message and byte as planned: {where}")
        close = report["max_loss_difference"] <= tolerance
        print(f"  losses equal one process's to {tolerance:g}: {'yes' if close else 'NO'}")
    print("\nloss after each step")
    print(f"  {'one process':24s} {'  '.join(f'{loss:.5f}' for loss in reference.losses)}")
    for report in reports:
        print(f"  {_name(report['stage']):24s} {'  '.join(f'{loss:.5f}' for loss in report['losses'])}")
    times = ", ".join(f"stage {report['stage']} {report['step_s']:.2f}" for report in reports)
    print(f"seconds for the last step: {times}")


def _name(stage: int) -> str:
    return f"ZeRO-{stage}" if stage else "plain data parallelism"


def main() -> int:
    parser = LabParser(__doc__, PRESETS)
    parser.add_argument("--stages", type=int, nargs="+", choices=range(4), default=[0, 1, 2, 3])
    parser.add_argument("--data", type=Path, nargs="*", default=[], help="text files or .bin token files")
    options = parser.parse_args()
    device = init("gloo" if options.preset == "laptop" else None)
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    mesh = build_mesh({"dp": world_size}, device_type=device.type)
    group = mesh.group("dp")
    base = PRESETS[options.preset]
    batch = base["train"]["micro_batch"] * ACCUMULATION * world_size
    job = from_dict(
        {**base, "train": {**base["train"], "global_batch": batch}, "parallel": {"dp": world_size}}
    )
    batches = Batches(
        Corpus(options.data, vocab=job.model.vocab),
        seq=job.model.seq,
        global_batch=batch,
        seed=job.train.seed,
    )
    tolerance = TOLERANCE[job.train.precision]
    # Rank 0 does the whole batch alone. The others wait for it at their first message.
    reference = None
    if group.rank == 0:
        alone = replace(job, {"parallel.dp": 1, "hardware.n_gpus": 1})
        reference = train(alone, Group.alone(), batches, device=device)
    reports = []
    for stage in options.stages:
        staged = replace(job, {"train.zero_stage": stage})
        result = train(staged, group, batches, device=device)
        report = compare(staged, result, reference, group)
        if report is not None:
            reports.append(report)
    shutdown()
    if reference is None:
        return 0
    params = count(job.model).total
    print(
        f"{world_size} processes on {device.type}, {job.train.precision}: {params:,d} parameters, "
        f"{batch} sequences of {job.model.seq} tokens a step in {ACCUMULATION} micro-batches, {STEPS} steps"
    )
    show(reports, reference, ranks=world_size, tolerance=tolerance)
    right = all(
        not report["ranks_off_plan"] and report["max_loss_difference"] <= tolerance for report in reports
    )
    if options.json:
        text = json.dumps(
            {
                "lab": "02",
                "preset": options.preset,
                "device": device.type,
                "world_size": world_size,
                "params": params,
                "tolerance": tolerance,
                "one_process": {"losses": reference.losses, "norms": reference.norms},
                "stages": reports,
            },
            indent=1,
        )
        options.json.write_text(text + "\n", encoding="utf-8")
    print("every byte as planned, every loss equal" if right else "NOT as planned: see above")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
