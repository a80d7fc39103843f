"""One GPU in under 8 minutes: how fast it trains, what that takes of its memory, and whether it is right.

    python benchmarks/gpu.py [--minutes 8] [--device cpu] [--out DIR]

Four parts. **Speed**: models of 125 M and 1.3 B parameters in bf16, with and without ``torch.compile`` and
recomputation: step time, tokens a second and MFU of the data sheet's peak. **Memory**: of the same runs the
bytes that the allocator held at most, and what the plan says. **Equality**: layouts on CUDA tensors beside
one process on the CPU, NCCL for one rank and gloo for two that share the GPU. **Kernels**: the rates that the
plan's model of a machine consists of, as ``pdt calibrate`` measures them, and their share of the peak. Writes
``gpu-<name>.json``; ends with 1 when a layout's losses differ or a part failed.

With ``--device cpu`` the same is done by small models, which shows that the script works and nothing else.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from pdtlib.engine.calibration import calibrate, describe, gpu_name
from pdtlib.engine.data import Batches, Corpus
from pdtlib.engine.dist import spawn
from pdtlib.engine.mesh import build_mesh
from pdtlib.engine.optimizer import ShardedAdamW
from pdtlib.engine.parallelize import parallelize
from pdtlib.engine.training.step import compute_gradients, micro_batches
from pdtlib.observe.meters import peak
from pdtlib.plan.job import from_dict
from pdtlib.plan.predict import predict

MODELS = {
    "125M": {"layers": 12, "hidden": 768, "heads": 12, "vocab": 50304, "seq": 2048},
    "1.3B": {"layers": 24, "hidden": 2048, "heads": 16, "vocab": 50304, "seq": 2048},
}
MICRO_BATCHES = {"125M": 16, "1.3B": 4}
SMALL = {"small": {"layers": 2, "hidden": 64, "heads": 2, "vocab": 512, "seq": 64}}
COMPILERS = {"cuda": "inductor", "cpu": "aot_eager"}
WARM_UP, TIMED = 3, 8
EQUAL_MODEL = {"layers": 4, "hidden": 64, "heads": 4, "ffn": 128, "vocab": 256, "seq": 32}
EQUAL_LAYOUTS: tuple[tuple[int, dict[str, int], dict[str, Any]], ...] = (
    # ranks, parallel, train: what gloo can send from a GPU, so no pipeline
    (1, {}, {}),
    (1, {}, {"zero_stage": 3, "recompute": "full"}),
    (2, {"dp": 2}, {}),
    (2, {"dp": 2}, {"zero_stage": 2}),
    (2, {"dp": 2}, {"zero_stage": 3}),
    (2, {"tp": 2}, {"sequence_parallel": True}),
)
EQUAL_STEPS = 5
TOLERANCE = 1e-4
"""Of losses in fp32, five steps on, between a CPU's and a GPU's order of summation."""


def variants(device: str) -> Iterator[dict[str, Any]]:
    """What :func:`speed` is asked for, the most telling first."""
    sizes = MODELS if device == "cuda" else SMALL
    for compiler in (COMPILERS[device], None):
        for name in sizes:
            for recompute in ("none", "full"):
                yield {"model": name, "compiler": compiler, "recompute": recompute}


def speed(variant: dict[str, Any], device: str) -> dict[str, Any]:
    """Train some steps and compare time with the peak, memory with the plan."""
    table = MODELS.get(variant["model"]) or SMALL[variant["model"]]
    micro_batch = MICRO_BATCHES.get(variant["model"], 2)
    train = {"global_batch": micro_batch, "micro_batch": micro_batch, "precision": "bf16"}
    job = from_dict({"model": table, "train": {**train, "recompute": variant["recompute"], "seed": 1}})
    mesh = build_mesh(device_type=device)
    on_gpu = mesh.device.type == "cuda"
    if on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    parts = parallelize(job, mesh, device=mesh.device, compiler=variant["compiler"])
    optimizer = ShardedAdamW(parts.replica)
    batches = Batches(Corpus(vocab=job.model.vocab), seq=job.model.seq, global_batch=micro_batch, seed=1)
    times, loss = [], float("nan")
    for step in range(WARM_UP + TIMED):
        batch = micro_batches(parts, batches, step)
        start = time.perf_counter()
        optimizer.zero_grad()
        loss = compute_gradients(parts, optimizer, batch, step=step, max_norm=1.0).loss
        optimizer.step()
        if on_gpu:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    step_s = statistics.median(times[WARM_UP:])
    expected = predict(job)
    best = peak(mesh.device, dtype=torch.bfloat16)
    tokens = micro_batch * job.model.seq
    return {
        **variant,
        "micro_batch": micro_batch,
        "first_step_s": times[0],
        "step_s": step_s,
        "tokens_per_s": tokens / step_s,
        "mfu": expected["flops"]["model_per_step"] / step_s / best.flops_per_s,
        "peak": best.source,
        "last_loss": loss,
        "peak_bytes": torch.cuda.max_memory_allocated() if on_gpu else None,
        "planned_bytes": expected["memory"]["max_total"],
    }


def losses(parallel: dict[str, int], train: dict[str, Any], device: str) -> list[float]:
    """The losses of a few steps in fp32, on this rank's part."""
    table = {"global_batch": 4, "micro_batch": 4 // parallel.get("dp", 1), "precision": "fp32", "seed": 1}
    job = from_dict({"model": EQUAL_MODEL, "train": {**table, **train}, "parallel": parallel})
    mesh = build_mesh(job.parallel, device_type=device)
    parts = parallelize(job, mesh, device=mesh.device)
    optimizer = ShardedAdamW(parts.replica)
    batches = Batches(Corpus(vocab=job.model.vocab), seq=job.model.seq, global_batch=4, seed=1)
    found = []
    for step in range(EQUAL_STEPS):
        optimizer.zero_grad()
        batch = micro_batches(parts, batches, step)
        found.append(compute_gradients(parts, optimizer, batch, step=step, max_norm=1.0).loss)
        optimizer.step()
    return found


def equality(device: str) -> list[dict[str, Any]]:
    """Every layout's largest difference from one process on the CPU."""
    reference = losses({}, {}, "cpu")
    rows = []
    for ranks, parallel, train in EQUAL_LAYOUTS:
        backend = "nccl" if device == "cuda" and ranks == 1 else "gloo"
        row: dict[str, Any] = {"ranks": ranks, "parallel": parallel, "train": train, "backend": backend}
        try:
            found = spawn(losses, ranks, parallel, train, device, backend=backend, timeout_s=120)[0]
            row["difference"] = max(abs(ours - one) for ours, one in zip(found, reference, strict=True))
            row["equal"] = row["difference"] <= TOLERANCE
        except (RuntimeError, ValueError, TimeoutError) as error:
            row |= {"equal": False, "error": str(error)}
        rows.append(row)
    return rows


def kernels(device: str) -> dict[str, Any]:
    """What ``pdt calibrate`` measures here, and each precision's best product as a share of the peak."""
    hardware = calibrate(ranks=1, short=True, device=device)
    assert hardware.measured is not None
    best = peak(torch.device(device), dtype=torch.bfloat16)
    rows = [
        {
            "precision": rate.precision,
            "matmul_flops_per_s": rate.matmul,
            "share_of_bf16_peak": max(reached for _, reached in rate.matmul) / best.flops_per_s,
            "attention_flops_per_s": rate.attention_flops_per_s,
            "memory_bytes_per_s": rate.memory_bytes_per_s,
            "optimizer_bytes_per_s": rate.optimizer_bytes_per_s,
        }
        for rate in hardware.measured.compute
    ]
    return {"peak": best.source, "rates": rows}


def measure(device: str, *, minutes: float) -> dict[str, Any]:
    """The whole report. What there was no time for, and what failed, is named in it."""
    began = time.monotonic()
    report: dict[str, Any] = {
        "about": {"date": datetime.date.today().isoformat(), "machine": describe(device)},
        "speed": [], "left_out_for_time": [], "errors": [],
    }  # fmt: skip
    for part in (equality, kernels):
        try:
            report[part.__name__] = part(device)
        except Exception:
            report["errors"].append(f"{part.__name__}: {traceback.format_exc()}")
        print(f"{part.__name__}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    longest = 0.0
    for variant in variants(device):
        at = time.monotonic()
        if at - began + longest > 60 * minutes:
            report["left_out_for_time"].append(variant)
            continue
        try:
            report["speed"].append(speed(variant, device))
            print(json.dumps(report["speed"][-1]), file=sys.stderr, flush=True)
        except Exception:
            report["errors"].append(f"{variant}: {traceback.format_exc()}")
        longest = max(longest, time.monotonic() - at)
    report["about"]["seconds"] = time.monotonic() - began
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description="One GPU: speed, memory, equality, kernels")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--minutes", type=float, default=8.0, help="no variant begins that would end later")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: there is no GPU here; --device cpu shows that the script works")
    report = measure(options.device, minutes=options.minutes)
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / f"gpu-{gpu_name(options.device)}.json"
    path.write_text(json.dumps(report, indent=1) + "\n")
    print(path)
    wrong = [row for row in report.get("equality", []) if not row["equal"]]
    for problem in [*report["errors"], *map(str, wrong)]:
        print(problem, file=sys.stderr)
    raise SystemExit(bool(wrong or report["errors"]))


if __name__ == "__main__":
    main()
