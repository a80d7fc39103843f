"""Asynchronous and local-update training beside synchronous training on the real corpus: held-out loss.

    python benchmarks/asynchronous.py        a few minutes, into benchmarks/results/async.json

Four workers train synchronously, with local SGD, and with DiLoCo; three workers and a server, whose last
worker sleeps before each gradient, without a bound on staleness, with one of 2, and in step. Every loss is
that of a training of its own with so many steps, so the rows are curves. Under a server a step is a gradient
of a whole batch, as it is in synchronous training; they come in another order each time.
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

from pdtlib.engine.dist import spawn
from pdtlib.plan.job import from_dict
from pdtlib.plan.params import count
from pdtlib.resilience.asynchronous import local, server
from pdtlib.resilience.asynchronous.task import Task

JOB = {
    "model": {"layers": 2, "hidden": 64, "heads": 4, "vocab": 256, "seq": 64},
    "train": {
        "global_batch": 8,
        "micro_batch": 1,
        "precision": "fp32",
        "learning_rate": 3e-3,
        "clip_grad_norm": 1.0,
    },
}
WORKERS, SERVED, SLOW_S = 4, 3, 0.05
STEPS = (50, 100, 200)
METHODS = (("synchronous", 1), ("local-sgd", 10), ("diloco", 10))
BOUNDS = (None, 2, 0)


def untrained() -> float:
    return Task(from_dict(JOB)).held_out_loss()


def apart(method: str, every: int) -> tuple[list[dict[str, float]], float]:
    """On each worker: the method's curve, and the bytes that it sends in a step."""
    job = from_dict({**JOB, "parallel": {"dp": WORKERS}})
    found = []
    for steps in STEPS:
        met = local.train(job, method=method, steps=steps, every=every)
        found.append({"steps": steps, "held_out_loss": met.held_out_loss, "drift": met.drift})
    return found, met.sent_bytes_per_step


def served(bound: int | None) -> list[dict[str, float]]:
    """On each rank: the curve under a server; rank 0's word counts."""
    found = []
    for updates in STEPS:
        result = server.train(from_dict(JOB), updates=updates, bound=bound, slow_s=(0.0, 0.0, SLOW_S))
        dist.barrier()
        if result is not None:
            staleness = sorted(result.staleness)
            found.append(
                {
                    "steps": updates,
                    "held_out_loss": result.held_out_loss,
                    "staleness_mean": statistics.mean(staleness),
                    "staleness_max": staleness[-1],
                }
            )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/async.json"))
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for method, every in METHODS:
        curve, sent = spawn(apart, WORKERS, method, every, timeout_s=1200)[0]
        rows.append({"method": method, "every": every, "sent_bytes_per_step": sent, "curve": curve})
        print(rows[-1], flush=True)
    for bound in BOUNDS:
        curve = spawn(served, SERVED + 1, bound, timeout_s=1200)[0]
        rows.append({"method": "server", "bound": bound, "curve": curve})
        print(rows[-1], flush=True)
    setting = {
        "workers": WORKERS,
        "served": SERVED,
        "slow_s": SLOW_S,
        "params": count(from_dict(JOB).model).total,
        "untrained": untrained(),
        "job": JOB,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    options.out.write_text(json.dumps({"setting": setting, "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
