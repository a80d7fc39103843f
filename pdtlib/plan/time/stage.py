"""What one micro-batch costs on a part of the model: its layers, the embedding, the head and the loss."""

from dataclasses import dataclass, replace
from functools import reduce

from pdtlib.plan.chunks import Chunk, chunks_of, layout_of
from pdtlib.plan.ledger import block_bytes, element_bytes
from pdtlib.plan.spec import Job
from pdtlib.plan.time.kernels import matmul_s, moved_s
from pdtlib.plan.time.layer import Work, layer_time
from pdtlib.plan.time.machine import System
from pdtlib.plan.time.pipeline import Times

Ends = tuple[int, int]
"""Layers that the first and the last chunk have fewer than the job says."""
NO_ENDS: Ends = (0, 0)


@dataclass(frozen=True)
class StageWork:
    """One micro-batch. ``backward`` includes recomputation and the weights' part, ``weight``."""

    forward: Work
    backward: Work
    weight: Work

    @property
    def total(self) -> float:
        return self.forward.total + self.backward.total

    def __add__(self, other: "StageWork") -> "StageWork":
        return StageWork(
            self.forward + other.forward, self.backward + other.backward, self.weight + other.weight
        )

    def __mul__(self, times: float) -> "StageWork":
        return StageWork(self.forward * times, self.backward * times, self.weight * times)

    def times(self, *, blocked_s: float = 0.0) -> Times:
        """Of the three actions; each pass is ``blocked_s`` longer, which a send keeps the rank waiting."""
        weight = self.weight.total
        return self.forward.total + blocked_s, self.backward.total - weight + blocked_s, weight


def chunk_work(job: Job, chunk: Chunk, *, system: System) -> StageWork:
    """What a micro-batch costs on this chunk."""
    layers = len(chunk.layers)
    times = layer_time(job, system=system)
    forward, weight = times.forward * layers, times.weight * layers
    backward = times.backward * layers + times.again * chunk.recomputed
    if chunk.last:
        head_forward, head_backward, head_weight = _head(job, system)
        forward, backward, weight = forward + head_forward, backward + head_backward, weight + head_weight
    if chunk.first:
        touched = Work(moved_s(3 * block_bytes(job), chip=system.chip, passes=system.software.passes))
        forward, backward = forward + touched, backward + touched
    if job.parallel.schedule == "dualpipe" and job.parallel.pp > 1:
        forward, backward = _beside(forward), _beside(backward)
    return StageWork(forward, backward, weight)


def _beside(work: Work) -> Work:
    """DualPipe runs a forward beside a backward, so that each pass's all-to-alls hide behind the other's
    computation (DeepSeek-V3, arXiv:2412.19437, section 3.2.1)."""
    return replace(work, ep_s=max(0.0, work.ep_s - work.compute_s))


def places_work(job: Job, *, system: System, fewer_at_ends: Ends = NO_ENDS) -> list[list[StageWork]]:
    """:func:`chunk_work` of every chunk, [stage][chunk]; chunks alike are worked out once.

    As many layers as ``fewer_at_ends`` says are taken from the first and the last of several chunks, which
    have the embedding and the head to carry.
    """
    alike: dict[tuple[int, int, bool, bool], StageWork] = {}
    several = layout_of(job).length > 1

    def work(chunk: Chunk) -> StageWork:
        kind = (len(chunk.layers), chunk.recomputed, chunk.first, chunk.last)
        if kind not in alike:
            lighter = chunk
            if several and (chunk.first or chunk.last):
                lighter = replace(chunk, layers=chunk.layers[fewer_at_ends[0 if chunk.first else 1] :])
            alike[kind] = chunk_work(job, lighter, system=system)
        return alike[kind]

    return [[work(chunk) for chunk in chunks_of(job, stage)] for stage in range(job.parallel.pp)]


def stages_work(job: Job, *, system: System, fewer_at_ends: Ends = NO_ENDS) -> list[StageWork]:
    """What a micro-batch costs on every stage: the mean over micro-batches, where some pass other chunks."""
    return stages_of(job, places_work(job, system=system, fewer_at_ends=fewer_at_ends))


def stages_of(job: Job, places: list[list[StageWork]]) -> list[StageWork]:
    """:func:`stages_work` from what :func:`places_work` found."""
    copies = layout_of(job).copies
    return [reduce(StageWork.__add__, works) * (1 / copies) for works in places]


def _head(job: Job, system: System) -> tuple[Work, Work, Work]:
    """The product with the output embedding and the loss: forwards, backwards, and its weights' part."""
    model, tp, chip = job.model, job.parallel.tp, system.chip
    tokens = max(1, job.train.micro_batch * model.seq // job.parallel.cp)
    share = chip.fp32_share if job.train.precision == "fp32" else 1.0
    peak = chip.matmul_flops * share * system.software.matmul_share
    columns = -(-model.vocab // tp)
    out = matmul_s(tokens, columns, model.hidden, chip=chip, flops=peak)
    back = matmul_s(tokens, model.hidden, columns, chip=chip, flops=peak)
    weight = matmul_s(model.hidden, columns, tokens, chip=chip, flops=peak)
    logits = tokens * columns
    # Forwards: written in 16 bit, read, written and read in fp32; backwards: read and written in fp32, then
    # 16 bit.
    loss_forward = moved_s(logits * (2 * element_bytes(job) + 8), chip=chip, passes=system.software.passes)
    loss_backward = moved_s(logits * (8 + 2 * element_bytes(job)), chip=chip, passes=system.software.passes)
    return Work(out + loss_forward), Work(back + weight + loss_backward), Work(weight)
