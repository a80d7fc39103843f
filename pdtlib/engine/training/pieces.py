"""What of a model and its optimizer lies on this rank, as pieces of whole tensors that any layout reads."""

from collections.abc import Callable, Mapping

import torch

from pdtlib.engine.optimizer import Shard, ShardedAdamW
from pdtlib.engine.training.checkpoint import Part
from pdtlib.plan import params
from pdtlib.plan.sharding import shard_range
from pdtlib.plan.spec import Job

Shape = tuple[int, ...]
Place = Callable[[str, Shape], tuple[Shape, Shape]]
"""A parameter's name and its shape on this rank -> the whole tensor's shape, and where this box begins."""


def whole(name: str, shape: Shape) -> tuple[Shape, Shape]:
    """The place of every parameter where none is cut."""
    return shape, (0,) * len(shape)


def place_in(job: Job, *, tp_rank: int) -> Place:
    """The places of the job's parameters on a tensor-parallel rank.

    A dim in which a rank has less than the whole is cut into equal boxes in the order of ranks; the last ones
    may reach past the end (an uneven vocabulary's padding). Key and value heads of which there are fewer than
    ranks lie on several neighbours.
    """
    shapes = {spec.name: spec.shape for spec in params.tensors(job.model)}
    tp = job.parallel.tp

    def place(name: str, shape: Shape) -> tuple[Shape, Shape]:
        all_of_it, owner = shapes[name], name.split(".")[-2]
        ranks_a_box = tp // min(tp, job.model.kv_heads) if owner in ("k", "v") else 1
        index = tp_rank // ranks_a_box
        cut = zip(all_of_it, shape, strict=True)
        return all_of_it, tuple(0 if size == part else index * part for size, part in cut)

    return place


def parts_to_read(optimizer: ShardedAdamW, *, place: Place = whole) -> dict[str, list[Part]]:
    """Everything that this rank owns, as views that :func:`pdtlib.engine.training.checkpoint.load` fills."""
    return _parts(optimizer, place, lambda shard: (shard.start, shard.stop))


def parts_to_write(optimizer: ShardedAdamW, *, place: Place = whole) -> dict[str, list[Part]]:
    """This rank's share, such that every element of the model is in one rank's share.

    Ranks that all own the whole of a parameter (stage 0) deal it out; of copies that several tensor-parallel
    ranks or pipeline stages hold, one is written.
    """
    cut = optimizer.replica.cut

    def share(shard: Shard) -> tuple[int, int]:
        if cut is not None and not cut.counts(shard.param):
            return 0, 0
        if shard.shared_out:
            return shard.start, shard.stop
        return shard_range(shard.stop, shard.group.size, shard.group.rank)

    return _parts(optimizer, place, share)


def _parts(
    optimizer: ShardedAdamW, place: Place, share: Callable[[Shard], tuple[int, int]]
) -> dict[str, list[Part]]:
    found: dict[str, list[Part]] = {}
    for shard in optimizer.shards():
        shape, offsets = place(shard.name, tuple(shard.shape))
        ends = zip(shape, offsets, shard.shape, strict=True)
        sizes = tuple(min(part, max(0, end - offset)) for end, offset, part in ends)  # without padding
        start, stop = share(shard)
        stop = min(stop, torch.Size(sizes).numel())
        if start >= stop:
            continue
        piece = slice(start - shard.start, stop - shard.start)
        for state, values in shard.states.items():
            key = f"model.{shard.name}" if state == "master" else f"optimizer.{state}.{shard.name}"
            found.setdefault(key, []).append(Part(shape, start, values[piece], offsets, sizes))
    return found


def scalar_parts(scalars: Mapping[str, float]) -> dict[str, list[Part]]:
    """Numbers that every rank has."""
    return {
        f"run.{name}": [Part((), 0, torch.tensor([value], dtype=torch.float64))]
        for name, value in scalars.items()
    }
