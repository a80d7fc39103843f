"""The flat buffers of our engine: which parameters share one, what of it a rank holds, what it sends.

Up to stage 2 a flat buffer is a bucket: tensors in reverse order of the forward pass, up to 25 MiB of
gradients. In stage 3 it is a unit: a layer, or the root with everything else. From stage 1 on every buffer is
padded to a multiple of the group and cut into equal shards. The engine builds its buffers with the same
functions of :mod:`pdtlib.plan.sharding`, so bytes held and sent are equal exactly.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from pdtlib.plan.chunks import chunks_of
from pdtlib.plan.comm import Message
from pdtlib.plan.params import TensorSpec
from pdtlib.plan.placement import is_expert, rank_tensors
from pdtlib.plan.sharding import ROOT, buckets, group_units, padded_numel, shard_numel
from pdtlib.plan.spec import Job
from pdtlib.plan.states import StateBytes, engine_accounting

BUCKET_BYTES = 25 * 2**20
TINY_BYTES = 8  # one int64 or float64: the counts of tokens, the loss, the squared gradient norm


@dataclass(frozen=True)
class Flat:
    """Elements of a flat buffer before padding, the ranks that share it, and whether it is the root unit."""

    numel: int
    group_size: int
    root: bool = False

    @property
    def padded(self) -> int:
        return padded_numel(self.numel, self.group_size)

    @property
    def shard(self) -> int:
        return shard_numel(self.numel, self.group_size)


def flats(job: Job, stage: int = 0) -> tuple[Flat, ...]:
    """The flat buffers of a rank of this pipeline stage, in the order in which the engine makes them.

    Experts have buffers of their own, since fewer ranks share them: dp x cp / ep.
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
    parallel = job.parallel
    everyone = parallel.dp * parallel.cp
    held = rank_tensors(job, stage)
    dense = [spec for spec in held if not is_expert(spec)]
    experts = [spec for spec in held if is_expert(spec)]
    return (*_cut(job, dense, everyone), *_cut(job, experts, everyone // parallel.ep))


def _cut(job: Job, specs: Sequence[TensorSpec], group_size: int) -> list[Flat]:
    if job.train.zero_stage == 3:
        numel = {spec.name: spec.numel for spec in specs}
        blocks = dict.fromkeys(f"layers.{spec.layer}" for spec in specs if spec.layer is not None)
        return [
            Flat(sum(numel[name] for name in unit.members), group_size, unit.name == ROOT)
            for unit in group_units(numel, tuple(blocks))
        ]
    grad_bytes = engine_accounting(job.train.precision, job.train.grad_precision).grads
    found = buckets([spec.numel * grad_bytes for spec in specs], BUCKET_BYTES)
    return [Flat(sum(specs[index].numel for index in members), group_size) for members in found]


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


def gathered_bytes(job: Job, stage: int = 0) -> int:
    """Most bytes that ZeRO holds for a moment beside :func:`held_bytes`.

    Stage 3: the root unit, the layer at work and the one fetched ahead, whole; and the whole gradients of the
    root and of two layers, one being reduced while the next is filled. Stage 2: two buckets of gradients.
    """
    accounting, zero = engine_accounting(job.train.precision, job.train.grad_precision), job.train.zero_stage
    found = [flat for flat in flats(job, stage) if flat.group_size > 1]
    if zero < 2 or not found:
        return 0
    largest = sorted((flat.padded for flat in found if not flat.root), reverse=True)[:2]
    if zero == 2:
        return sum(largest) * accounting.grads
    root = sum(flat.padded for flat in found if flat.root)
    return (root + sum(largest)) * (accounting.params + accounting.grads)


def data_parallel_messages(job: Job, stage: int = 0) -> tuple[Message, ...]:
    """Everything that a rank of this pipeline stage sends over dp in one step, the tiny messages included.

    Stages 0 and 1 reduce gradients once a step, 2 and 3 after every micro-batch. Stage 3 gathers every layer
    for the forward pass and, if it was freed since, again for the backward pass; the root once for both.
    """
    train, micro_batches = job.train, job.gradient_accumulation
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
            sent["reduce_scatter", "grads", grads, size] += micro_batches
            sent["all_gather", "params", params, size] += 1
        else:
            sent["all_gather", "forward", params, size] += micro_batches
            if train.reshard_after_forward and not flat.root:
                sent["all_gather", "backward", params, size] += micro_batches
            sent["reduce_scatter", "grads", grads, size] += micro_batches
    everyone = job.parallel.dp * job.parallel.cp
    sent["all_reduce", "tokens", TINY_BYTES, everyone] += 1
    if train.zero_stage > 0:
        sent["all_reduce", "grad_norm", TINY_BYTES, everyone] += 1
    sent["all_reduce", "loss", TINY_BYTES, everyone] += 1
    return tuple(
        Message("dp", collective, phase, count, message_bytes, size)
        for (collective, phase, message_bytes, size), count in sent.items()
        if size > 1
    )
