"""A few steps of a job in any layout, as labs run them, and the same in one process to compare with."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from pdtlib.engine.data import Batches
from pdtlib.engine.mesh import Group, Mesh
from pdtlib.engine.optimizer import ShardedAdamW
from pdtlib.engine.parallelize import parallelize
from pdtlib.engine.training.step import compute_gradients, micro_batches
from pdtlib.observe.memory import held_bytes
from pdtlib.plan.job import Job, replace


@dataclass
class Trained:
    """A loss and a gradient norm a step; this rank's parameters, messages of the last step, bytes held.

    ``metered`` is how far a counter went in each step, if one was given.
    """

    losses: list[float]
    norms: list[float]
    parameters: dict[str, torch.Tensor]
    sent: list[dict[str, Any]]
    held: int
    step_s: list[float]
    metered: list[int]


def train(
    job: Job, mesh: Mesh, batches: Batches, *, steps: int, meter: Callable[[], int] | None = None
) -> Trained:
    """Train this rank's part of the job; every rank of the mesh calls it.

    ``meter`` is read before and after each step, while all ranks stand still.
    """
    parts = parallelize(job, mesh, device=mesh.device)
    optimizer = ShardedAdamW(parts.replica, lr=job.train.learning_rate, weight_decay=job.train.weight_decay)
    losses, norms, seconds, metered = [], [], [], []
    held = 0
    for step in range(steps):
        mesh.ledger.clear()
        before = 0 if meter is None else _standing_still(meter)
        started = time.perf_counter()
        found = compute_gradients(
            parts,
            optimizer,
            micro_batches(parts, batches, step),
            step=step,
            max_norm=job.train.clip_grad_norm or math.inf,
        )
        states = (parts.replica.held(), optimizer.held())
        held = sum(held_bytes(tensors) for state in states for tensors in state.values())
        optimizer.step()
        optimizer.zero_grad()
        losses.append(found.loss)
        norms.append(found.grad_norm)
        seconds.append(time.perf_counter() - started)
        if meter is not None:
            metered.append(_standing_still(meter) - before)
    sent = mesh.ledger.rows()
    return Trained(losses, norms, parts.replica.full_parameters(), sent, held, seconds, metered)


def _standing_still(meter: Callable[[], int]) -> int:
    dist.barrier()
    value = meter()
    dist.barrier()
    return value


def alone(job: Job, batches: Batches, group: Group, device: torch.device, *, steps: int) -> Trained:
    """The same training in one process: done by rank 0 of ``group``, told to all, tensors on the CPU."""
    found: list[Any] = [None]
    if group.rank == 0:
        layout: dict[str, Any] = {f"parallel.{axis}": 1 for axis in ("dp", "tp", "pp", "cp", "ep", "vpp")}
        layout |= {"parallel.schedule": "1f1b", "hardware.n_gpus": 1}
        layout |= {"train.sequence_parallel": False, "train.zero_stage": 0}
        result = train(replace(job, layout), Mesh(None, device), batches, steps=steps)
        result.parameters = {name: value.cpu() for name, value in result.parameters.items()}
        found = [result]
    if group.size > 1:
        dist.broadcast_object_list(found, src=group.ranks[0], group=group.process_group)
    return found[0]


def largest_difference(ours: Iterable[float], theirs: Iterable[float]) -> float:
    """Of losses or norms, relative to ``theirs``."""
    return max(abs(a - b) / max(abs(b), 1e-30) for a, b in zip(ours, theirs, strict=True))


def differing(planned: list[dict[str, Any]], sent: list[dict[str, Any]]) -> int:
    """Kinds of messages that are not as often in both ledgers."""
    ours, theirs = map(_counts, (planned, sent))
    return sum(ours[kind] != theirs[kind] for kind in ours | theirs)


def _counts(rows: Iterable[Mapping[str, Any]]) -> Counter[tuple[Any, ...]]:
    kinds: Counter[tuple[Any, ...]] = Counter()
    for row in rows:
        kinds[row["axis"], row["collective"], row["phase"], row["message_bytes"]] += row["count"]
    return kinds


def sent_bytes(rows: Iterable[Mapping[str, Any]], *axes: str) -> int:
    """Bytes that a rank sends, along these axes or along all."""
    return round(sum(row["sent_bytes_per_rank"] for row in rows if not axes or row["axis"] in axes))
