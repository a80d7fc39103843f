"""pdtlib in every row: the step that :mod:`pdtlib.engine.training.loop` runs, from the same job."""

from __future__ import annotations

from typing import Any

import torch
from peers_task import ADAMW, GLOBAL_BATCH, MAX_NORM, SEED, Contender, Task

from pdtlib.engine.data import Batches, Corpus
from pdtlib.engine.mesh import build_mesh
from pdtlib.engine.optimizer import ShardedAdamW
from pdtlib.engine.parallelize import parallelize
from pdtlib.engine.training.step import compute_gradients, micro_batches
from pdtlib.plan.job import from_dict, to_dict
from pdtlib.plan.spec import Job, Model, Parallel, Train


def job_of(model: Model, options: dict[str, Any], *, world: int, precision: str = "fp32") -> Job:
    """The job of a task; the options are fields of its ``train`` and ``parallel`` tables."""
    table = to_dict(Job(model=model, train=Train(), parallel=Parallel()))
    del table["hardware"]
    table["parallel"] = options.get("parallel", {"dp": world})
    table["train"] |= {
        "precision": precision,
        "global_batch": GLOBAL_BATCH,
        "micro_batch": GLOBAL_BATCH // table["parallel"].get("dp", 1),
        "seed": SEED,
        **options.get("train", {}),
    }
    return from_dict(table)


def run(task: Task) -> Contender:
    """Any layout."""
    job = job_of(task.model, task.options, world=task.world, precision=task.precision)
    mesh = build_mesh(job.parallel, device_type=task.device.type)
    parts = parallelize(job, mesh, device=task.device)
    optimizer = ShardedAdamW(parts.replica, **ADAMW)
    corpus = Corpus(vocab=job.model.vocab)
    batches = Batches(corpus, seq=job.model.seq, global_batch=GLOBAL_BATCH, seed=SEED)
    done = 0

    def step() -> float:
        nonlocal done
        optimizer.zero_grad()
        batch = micro_batches(parts, batches, done)
        found = compute_gradients(parts, optimizer, batch, step=done, max_norm=MAX_NORM)
        optimizer.step()
        done += 1
        return found.loss

    def states() -> list[torch.Tensor]:
        held = parts.replica.held()
        return [*held["params"], *held["grads"], *optimizer.held()["optimizer"]]

    return Contender(step=step, states=states)
