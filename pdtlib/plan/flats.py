"""The flat buffers of our engine: which parameters share one, what of it a rank holds, what it sends.

Up to stage 2 a flat buffer is a bucket: tensors in reverse order of the forward pass, up to 25 MiB of
gradients. In stage 3 it is a unit: a layer, or the root with everything else. From stage 1 on every buffer is
padded to a multiple of the group and cut into equal shards. The engine builds its buffers with the same
functions of :mod:`pdtlib.plan.sharding`, so bytes held and sent are equal exactly.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

from pdtlib.plan.chunks import chunk_runs, chunks_of
from pdtlib.plan.comm import Message
from pdtlib.plan.params import TensorSpec
from pdtlib.plan.placement import TIED, chunk_ends, is_expert, layer_parts
from pdtlib.plan.sharding import buckets, padded_numel, shard_numel, shard_range
from pdtlib.plan.spec import Job
from pdtlib.plan.states import StateBytes, engine_accounting

BUCKET_BYTES = 25 * 2**20
TINY_BYTES = 8  # one int64 or float64: the counts of tokens, the loss, the squared gradient norm


@dataclass(frozen=True)
class Flat:
    """A flat buffer of one rank.

    ``members`` are the tensors in it, as this rank holds them, under the names of layer 0; ``numel`` are
    their elements, without padding. ``group_size`` ranks share the buffer; the gradients of ``passes``
    micro-batches of a step go into it. A unit of stage 3 is a ``layer``, or ``root`` outside all layers;
    of the rank's chunk number ``chunk``; ``tied`` is a tied embedding, which a pipeline gives a buffer of its
    own.
    """

    members: tuple[TensorSpec, ...]
    numel: int
    group_size: int
    passes: int
    chunk: int = 0
    layer: int | None = None
    root: bool = False
    tied: bool = False

    @property
    def padded(self) -> int:
        return padded_numel(self.numel, self.group_size)

    @property
    def shard(self) -> int:
        return shard_numel(self.numel, self.group_size)

    def held(self, wanted: Callable[[TensorSpec], bool], rank: int | None) -> int:
        """Elements of the wanted members in a rank's shard, or in all of the buffer for rank None."""
        start, stop = (0, self.padded) if rank is None else shard_range(self.numel, self.group_size, rank)
        found = at = 0
        for spec in self.members:
            if wanted(spec):
                found += max(0, min(stop, at + spec.numel) - max(start, at))
            at += spec.numel
        return found


def flats(job: Job, stage: int = 0) -> tuple[Flat, ...]:
    """The flat buffers of a rank of this pipeline stage, in the order in which the engine makes them.

    No buffer holds tensors of two chunks. Experts have buffers of their own, since fewer ranks share them:
    dp x cp / ep; and so has a tied embedding in a pipeline, whose two copies are then cut alike.
    """
    return _flats(job, _first_alike(job, stage))


def _first_alike(job: Job, stage: int) -> int:
    """The first stage between the ends with as many layers in its chunks: its buffers are the same."""
    if not 0 < stage < job.parallel.pp - 1:
        return stage
    sizes = [[len(chunk.layers) for chunk in chunks_of(job, index)] for index in range(1, stage + 1)]
    return 1 + sizes.index(sizes[-1])


@lru_cache(maxsize=512)
def _flats(job: Job, stage: int) -> tuple[Flat, ...]:
    parallel, runs = job.parallel, chunk_runs(job, stage)
    everyone = parallel.dp * parallel.cp
    apart = job.model.tied_embeddings and parallel.pp > 1
    parts = layer_parts(job.model, parallel.tp, parallel.ep)
    dense = tuple(spec for spec in parts if not is_expert(spec))
    experts = tuple(spec for spec in parts if is_expert(spec))
    cut = _units if job.train.zero_stage == 3 else _buckets
    found: list[Flat] = []
    tied: TensorSpec | None = None
    for index, (chunk, passes) in enumerate(runs):
        before, after = chunk_ends(job, chunk)
        tied = next((spec for spec in (*before, *after) if apart and spec.name == TIED), tied)
        ends = [tuple(spec for spec in end if spec is not tied) for end in (before, after)]
        made = cut(job, ends[0], dense, ends[1], chunk.layers, everyone, passes)
        if experts:
            made += cut(job, (), experts, (), chunk.layers, everyone // parallel.ep, passes)
        found += [replace(flat, chunk=index) for flat in made]
    if tied is not None:
        passes = sum(times for chunk, times in runs if chunk.first or chunk.last)
        found.append(Flat((tied,), tied.numel, everyone, passes, root=True, tied=True))
    return tuple(found)


_Specs = tuple[TensorSpec, ...]


def _units(
    job: Job, before: _Specs, each: _Specs, after: _Specs, layers: range, group_size: int, passes: int
) -> list[Flat]:
    """A unit for what lies outside the layers, if anything does, and one a layer."""
    root, numel = (*before, *after), sum(spec.numel for spec in each)
    found = [Flat(each, numel, group_size, passes, layer=layer) for layer in layers]
    if root:
        found.insert(0, Flat(root, sum(spec.numel for spec in root), group_size, passes, root=True))
    return found


def _buckets(
    job: Job, before: _Specs, each: _Specs, after: _Specs, layers: range, group_size: int, passes: int
) -> list[Flat]:
    """Buckets of tensors in reverse order of the forward pass."""
    width = engine_accounting(job.train.precision, job.train.grad_precision).grads
    specs = (*before, *(each * len(layers)), *after)
    inner = [spec.numel for spec in each]
    sizes = [*(spec.numel for spec in before), *(inner * len(layers)), *(spec.numel for spec in after)]
    return [
        Flat(tuple(specs[i] for i in members), sum(sizes[i] for i in members), group_size, passes)
        for members in buckets([size * width for size in sizes], BUCKET_BYTES)
    ]


def held_bytes(job: Job, stage: int = 0) -> StateBytes:
    """Bytes of parameters, gradients and optimizer state on a rank of this pipeline stage, between steps.

    Whole numbers: shards of padded buffers. In fp32 a rank's shard of the parameters is its own master copy.
    """
    accounting, zero = engine_accounting(job.train.precision, job.train.grad_precision), job.train.zero_stage
    found = flats(job, stage)
    whole = sum(flat.padded if zero else flat.numel for flat in found)
    shard = sum(flat.shard if zero else flat.numel for flat in found)
    return StateBytes(
        params=(shard if zero == 3 else whole) * accounting.params,
        grads=(shard if zero >= 2 else whole) * accounting.grads,
        optimizer=shard * accounting.optimizer,
    )


def gradient_bytes(job: Job, flat: Flat) -> int:
    """Bytes of a rank's reduced gradients of a buffer: its shard, or all of it without ZeRO."""
    width = engine_accounting(job.train.precision, job.train.grad_precision).grads
    return width * (flat.shard if job.train.zero_stage else flat.numel)


def data_parallel_messages(job: Job, stage: int = 0) -> tuple[Message, ...]:
    """Everything that a rank of this pipeline stage sends over dp in one step, the tiny messages included.

    Stages 0 and 1 reduce gradients once a step, 2 and 3 after every micro-batch. Stage 3 gathers every layer
    for the forward pass and, if it was freed since, again for the backward pass; the root once for both. In a
    pipeline, where micro-batches in flight lie between the two passes, the root is freed like a layer; and
    what is not freed is gathered once a step.
    """
    train, pipelined = job.train, job.parallel.pp > 1
    accounting = engine_accounting(train.precision, train.grad_precision)
    sent: Counter[tuple[str, str, int, int]] = Counter()
    for flat in flats(job, stage):
        grads, params = flat.padded * accounting.grads, flat.padded * accounting.params
        size = flat.group_size
        if train.zero_stage == 0:
            sent["all_reduce", "grads", flat.numel * accounting.grads, size] += 1
        elif train.zero_stage == 1:
            sent["reduce_scatter", "grads", grads, size] += 1
            sent["all_gather", "params", params, size] += 1
        elif train.zero_stage == 2:
            sent["reduce_scatter", "grads", grads, size] += flat.passes
            sent["all_gather", "params", params, size] += 1
        else:
            kept = not train.reshard_after_forward
            sent["all_gather", "forward", params, size] += (
                min(1, flat.passes) if kept and pipelined else flat.passes
            )
            if not kept and (pipelined or not flat.root):
                sent["all_gather", "backward", params, size] += flat.passes
            sent["reduce_scatter", "grads", grads, size] += flat.passes
    everyone = job.parallel.dp * job.parallel.cp
    sent["all_reduce", "tokens", TINY_BYTES, everyone] += 1
    if train.zero_stage > 0:
        sent["all_reduce", "grad_norm", TINY_BYTES, everyone] += 1
    sent["all_reduce", "loss", TINY_BYTES, everyone] += 1
    return tuple(
        Message("dp", collective, phase, count, message_bytes, size)
        for (collective, phase, message_bytes, size), count in sent.items()
        if size > 1 and count
    )
