"""One rank of a run of any size, without the run: the real engine on fake tensors and a fake process group.

Fake tensors have shapes and no memory (:mod:`torch._subclasses.fake_tensor`); the fake process group says at
once that every message has arrived. So the code that trains on 1,024 GPUs builds one of its ranks here, runs
a step, and what the rank holds, keeps for its backward passes and sends is read off its live tensors, the
hooks of autograd and its ledger.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from math import inf
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from pdtlib.engine.mesh import Mesh, build_mesh
from pdtlib.engine.models import MoE
from pdtlib.engine.optimizer import ShardedAdamW
from pdtlib.engine.parallelize import Parallelized, parallelize
from pdtlib.engine.training.loop import activation_meter
from pdtlib.engine.training.step import compute_gradients
from pdtlib.observe.memory import held_bytes
from pdtlib.plan import flats
from pdtlib.plan.job import replace
from pdtlib.plan.kept import most_kept
from pdtlib.plan.ranks import ARTICLE_ORDER
from pdtlib.plan.spec import Job


class _NumbersAreOne(TorchDispatchMode):
    """Where the engine reads a number from a tensor (a norm, a count of tokens), a fake one has 1 to say."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            return 1.0 if args[0].is_floating_point() else 1
        return func(*args, **(kwargs or {}))


@contextmanager
def fake_world(world_size: int, *, rank: int) -> Iterator[None]:
    """Inside, torch.distributed believes that ``world_size`` ranks run, of which this process is one.

    Raises ValueError for a rank outside the world, RuntimeError inside a run.
    """
    if not 0 <= rank < world_size:
        raise ValueError(f"rank={rank}: the job has ranks 0 to {world_size - 1}")
    if dist.is_initialized():
        raise RuntimeError("a dry run makes its own process group; call it outside of a run")
    dist.init_process_group("fake", rank=rank, world_size=world_size, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


def dry_run(job: Job, *, rank: int = 0, order: Sequence[str] = ARTICLE_ORDER) -> dict[str, Any]:
    """What this rank of the job holds, and sends in every optimizer step.

    ``memory`` are bytes of its parameters, gradients and optimizer states after the last backward pass, and
    the most that was kept for backward passes (activations) with torch's CPU kernels; ``planned`` are the
    same as the plan has them. ``comm`` are the rows of its ledger with the keys of ``pdt predict``'s. Experts
    get as many tokens each.
    ``order`` names the axes, the one whose ranks are neighbours first. Raises
    :class:`pdtlib.plan.spec.JobError` for a job that the engine does not train and ValueError for a rank that
    it does not have.
    """
    with fake_world(job.parallel.world_size, rank=rank):
        mesh = build_mesh(job.parallel, order=order)
        with FakeTensorMode(), _NumbersAreOne():
            memory = step(job, mesh)
        return {
            "rank": rank,
            "world_size": job.parallel.world_size,
            "place": mesh.place,
            "memory": with_total(memory),
            "planned": with_total(planned_memory(job, mesh.group("pp").rank)),
            "comm": [row for row in mesh.ledger.rows() if row["phase"] != "init"],
        }


def planned_memory(job: Job, stage: int) -> dict[str, float]:
    """What a rank of this stage holds by the plan, with the kernels that a dry run has."""
    held = flats.held_bytes(job, stage)
    on_cpu = replace(job, {"hardware.gpu": "cpu"})
    return {
        "params": held.params,
        "grads": held.grads,
        "optimizer": held.optimizer,
        "activations": round(most_kept(on_cpu, stage)),
    }


def with_total(memory: Mapping[str, float]) -> dict[str, float]:
    """The same, and their sum."""
    return {**memory, "total": sum(memory.values())}


def step(job: Job, mesh: Mesh) -> dict[str, int]:
    """Build this rank and run one optimizer step; returns the bytes held before its update, and kept for
    its backward passes."""
    parts = parallelize(job, mesh)
    optimizer = ShardedAdamW(parts.replica, lr=job.train.learning_rate)
    mesh.ledger.clear()  # of what was sent to set up
    tokens = parts.take(torch.zeros(job.train.micro_batch, job.model.seq, dtype=torch.int64))
    micro_batches = [(tokens.clone(), tokens.clone()) for _ in range(job.gradient_accumulation)]
    if mesh.group("dp").backend == "fake":
        _tell_what_fake_tensors_cannot(job, parts, tokens)
    with activation_meter(parts.replica) as meter:
        compute_gradients(parts, optimizer, micro_batches, max_norm=job.train.clip_grad_norm or inf)
    tensors = {**parts.replica.held(), **optimizer.held()}
    memory = {name: held_bytes(tensors[name]) for name in ("params", "grads", "optimizer")}
    memory["activations"] = meter.peak_bytes
    optimizer.step()
    optimizer.zero_grad()
    return memory


def _tell_what_fake_tensors_cannot(job: Job, parts: Parallelized, tokens: torch.Tensor) -> None:
    """Sizes that the engine reads from messages or tensors: of what a pipeline's rank receives, and of the
    rows that go to each expert, here as many to all."""
    if parts.pipeline is not None:  # hidden states [b, S/cp, h], of which sequence parallelism has a slice
        positions = tokens.shape[1] // (job.parallel.tp if job.train.sequence_parallel else 1)
        shape = (len(tokens), positions, job.model.hidden)
        parts.pipeline.executor.expect(torch.empty(shape, dtype=parts.replica.dtype))
    for block in parts.replica.modules():
        if isinstance(block, MoE):
            block.numbers = partial(_even_numbers, block)


def _even_numbers(block: MoE, counts: torch.Tensor, copies: int) -> list[list[int]]:
    """What :func:`pdtlib.engine.models.moe.numbers_of` gives where all experts get as many copies."""
    total, local = block.num_experts, len(block.experts)
    even = [copies // total + (j < copies % total) for j in range(total)]
    kept = [min(number, block.capacity(copies // block.top_k)) for number in even]
    first = block.exchange.rank * local
    return [even, kept, kept[first : first + local] * block.exchange.size]
