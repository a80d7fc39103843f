"""A step is few calls of Python functions, for which a small model on a fast device waits."""

import sys
from collections.abc import Callable
from typing import Any

from pipeline_zoo import Case, Run

from pdtlib.engine.data import Batches, Corpus
from pdtlib.engine.dist import spawn
from pdtlib.engine.mesh import build_mesh
from pdtlib.engine.optimizer import ShardedAdamW
from pdtlib.engine.parallelize import parallelize
from pdtlib.engine.training.step import compute_gradients, micro_batches
from pdtlib.plan.job import from_dict

MODEL = {"layers": 8, "hidden": 32, "heads": 4, "vocab": 256, "seq": 16}
LAYOUTS = {
    "DDP": ({"dp": 2}, {}),
    "ZeRO-3": ({"dp": 2}, {"zero_stage": 3}),
    "TP": ({"tp": 2}, {}),
    "TP + SP": ({"tp": 2}, {"sequence_parallel": True}),
}


def num_calls(action: Callable[[], Any]) -> int:
    """Python functions that ``action`` calls."""
    calls = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        action()
    finally:
        sys.setprofile(None)
    return calls


def calls_of_schedule(name: str) -> int:
    """A step on 4 ranks with 8 micro-batches."""
    run = Run(Case(name, "llama", 8, 4))
    run.step(0)
    return num_calls(lambda: run.step(1))


def calls_of_schedules() -> dict[str, int]:
    return {name: calls_of_schedule(name) for name in ("1f1b", "zb-v", "dualpipe")}


def calls_of_layout(parallel: dict[str, Any], train: dict[str, Any]) -> int:
    """A step of 8 layers on 2 ranks."""
    table = {"global_batch": 2, "micro_batch": 2 // parallel.get("dp", 1), "precision": "fp32", **train}
    job = from_dict({"model": MODEL, "parallel": parallel, "train": table})
    parts = parallelize(job, build_mesh(job.parallel))
    optimizer = ShardedAdamW(parts.replica)
    batches = Batches(Corpus(vocab=256), seq=16, global_batch=2, seed=0)

    def step(number: int) -> None:
        batch = micro_batches(parts, batches, number)
        compute_gradients(parts, optimizer, batch, step=number, max_norm=1.0)
        optimizer.step()
        optimizer.zero_grad()

    step(0)
    return num_calls(lambda: step(1))


def calls_of_layouts() -> dict[str, int]:
    return {name: calls_of_layout(*layout) for name, layout in LAYOUTS.items()}


def test_a_pipeline_step_is_under_15_000_calls() -> None:
    for found in spawn(calls_of_schedules, 4):
        assert max(found.values()) < 15_000, found


def test_a_step_of_any_other_layout_is_under_5_000() -> None:
    """FSDP2 has 18,000 in such a step, DTensor's tensor parallelism 77,000."""
    for found in spawn(calls_of_layouts, 2):
        assert max(found.values()) < 5_000, found
