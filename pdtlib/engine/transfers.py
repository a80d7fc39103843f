"""Collectives between flat buffers that the caller owns: they start now, and end when they are waited for.

Every function writes its result where it is told, returns at once and is waited for through
:class:`pdtlib.engine.pending.Pending`, so that messages overlap with computation. Each takes its group and
writes the ledger. :mod:`pdtlib.engine.collectives` builds the ones with a derivative on these.

Which primitive serves which backend is decided here and nowhere else, by measurement
(``benchmarks/NOTES.md``): the ledger counts the algorithm's bytes, whatever moves them.

Sums are sums: a mean is a sum that the caller divides. No backend is asked for AVG, which some of them have
answered with a sum. Phases (see :mod:`pdtlib.plan.comm`) say what a message was for.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from pdtlib.engine.mesh import Group
from pdtlib.engine.pending import Pending

SUMMABLE = (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32)
# torch 2.13 renamed these two and warns about the old names; 2.11 knows only the old ones.
_all_gather_flat = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter_flat = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def start_all_reduce(buffer: torch.Tensor, group: Group, *, phase: str, maximum: bool = False) -> Pending:
    """Replace ``buffer`` on every rank by the sum over the group, or by the maximum."""
    name = _begin("all_reduce", buffer, group, phase, summed=True)
    works = []
    if group.size > 1:
        operation = dist.ReduceOp.MAX if maximum else dist.ReduceOp.SUM
        works = [dist.all_reduce(buffer, operation, group=group.process_group, async_op=True)]
    return Pending(group, name, works)


def start_reduce_scatter(out: torch.Tensor, buffer: torch.Tensor, group: Group, *, phase: str) -> Pending:
    """Put the sum over the group of everyone's slice ``rank`` of ``buffer`` into ``out`` (``[numel /
    size]``).

    ``out`` may be that very slice of ``buffer``.
    """
    name = _begin("reduce_scatter", buffer, group, phase, summed=True)
    _demand_contiguous("reduce_scatter", out)
    _demand_shares("reduce_scatter", shard=out, whole=buffer, group=group)
    if group.size == 1:
        return Pending(group, name, []).then(lambda: _place(out, buffer))
    if group.backend == "gloo" and not out.is_cuda:
        return _reduce_scatter_by_messages(out, buffer, group, name)
    return Pending(group, name, [_reduce_scatter_flat(out, buffer, group=group.process_group, async_op=True)])


def start_all_gather(out: torch.Tensor, shard: torch.Tensor, group: Group, *, phase: str) -> Pending:
    """Put every rank's ``shard`` into its slice of ``out`` (``[size * numel]``).

    ``shard`` may be this rank's own slice of ``out``.
    """
    name = _begin("all_gather", out, group, phase)
    _demand_contiguous("all_gather", shard)
    _demand_shares("all_gather", shard=shard, whole=out, group=group)
    if group.size == 1:
        return Pending(group, name, []).then(lambda: _place(out, shard))
    if group.backend == "gloo" and not out.is_cuda:  # which sends no messages from a GPU
        return _all_gather_by_messages(out, shard, group, name)
    return Pending(group, name, [_all_gather_flat(out, shard, group=group.process_group, async_op=True)])


def start_all_to_all(
    out: torch.Tensor,
    buffer: torch.Tensor,
    group: Group,
    *,
    phase: str,
    send: Sequence[int] | None = None,
    receive: Sequence[int] | None = None,
) -> Pending:
    """Put slice ``rank`` of everyone's ``buffer`` into the slice of ``out`` that belongs to its sender.

    Slices are equal, or the ``send[i]`` rows of dim 0 for rank i, of whom ``receive[i]`` come.
    """
    sent = None
    if send is not None:
        rows = sum(send) - send[group.rank]
        sent = float(rows * buffer[:1].numel() * buffer.element_size())
    name = _begin("all_to_all", buffer, group, phase, sent=sent)
    _demand_contiguous("all_to_all", out)
    if group.size == 1:
        return Pending(group, name, []).then(lambda: _place(out, buffer))
    work = dist.all_to_all_single(
        out,
        buffer,
        None if receive is None else list(receive),
        None if send is None else list(send),
        group=group.process_group,
        async_op=True,
    )
    return Pending(group, name, [work])


def start_ring_shift(out: torch.Tensor, x: torch.Tensor, group: Group, *, phase: str) -> Pending:
    """Send ``x`` to the next rank of the ring and receive into ``out`` what the one before sends."""
    name = _begin("send", x, group, phase)
    _demand_contiguous("send", out)
    if group.size == 1:
        return Pending(group, name, []).then(lambda: _place(out, x))
    tag = next(group.tags) % 2**20
    following, before = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    if group.backend == "gloo":  # which has no batches
        receive = group.irecv(out, before, tag)
        return Pending(group, name, [receive, group.isend(x, following, tag)])
    operations = [
        dist.P2POp(dist.isend, x, group.ranks[following], group.process_group),
        dist.P2POp(dist.irecv, out, group.ranks[before], group.process_group),
    ]
    return Pending(group, name, dist.batch_isend_irecv(operations))


def start_broadcast(buffer: torch.Tensor, group: Group, *, source: int = 0, phase: str) -> Pending:
    """Replace ``buffer`` on every rank by that of the group's rank ``source``."""
    name = _begin("broadcast", buffer, group, phase)
    works = []
    if group.size > 1:
        works = [dist.broadcast(buffer, group.ranks[source], group=group.process_group, async_op=True)]
    return Pending(group, name, works)


def _begin(
    collective: str,
    message: torch.Tensor,
    group: Group,
    phase: str,
    *,
    summed: bool = False,
    sent: float | None = None,
) -> str:
    _demand_contiguous(collective, message)
    if summed and message.dtype not in SUMMABLE:
        valid = ", ".join(str(dtype).removeprefix("torch.") for dtype in SUMMABLE)
        raise ValueError(f"{collective}: dtype={message.dtype} cannot be summed; valid: {valid}")
    group.ledger.record(
        axis=group.axis,
        collective=collective,
        phase=phase,
        message_bytes=message.numel() * message.element_size(),
        group_size=group.size,
        sent=sent,
    )
    group.calls, group.call = group.calls + 1, f"{phase} {collective}"
    return group.call


def _demand_contiguous(collective: str, tensor: torch.Tensor) -> None:
    if not tensor.is_contiguous():  # gloo would read or write the wrong elements and not say so
        raise ValueError(f"{collective}: a tensor with strides {tensor.stride()}; it must be contiguous")


def _demand_shares(collective: str, *, shard: torch.Tensor, whole: torch.Tensor, group: Group) -> None:
    if shard.numel() * group.size != whole.numel():
        raise ValueError(
            f"{collective}: a shard of {shard.numel()} elements on {group.size} ranks needs a whole of "
            f"{shard.numel() * group.size}, not {whole.numel()}"
        )


def _place(out: torch.Tensor, x: torch.Tensor) -> None:
    same = out.untyped_storage()._cdata == x.untyped_storage()._cdata
    if not (same and out.storage_offset() == x.storage_offset()):
        out.view(-1).copy_(x.view(-1))


def _reduce_scatter_by_messages(out: torch.Tensor, buffer: torch.Tensor, group: Group, name: str) -> Pending:
    """Every pair exchanges slices and each rank sums its own; gloo's reduce-scatter is an all-reduce inside.

    The ranks' parts are added in the order of ranks.
    """
    slices = buffer.view(group.size, -1)
    own = slices[group.rank]
    rows = group.size if group.size > 2 else 1
    parts = buffer.new_empty(rows, own.numel())
    if group.size == 2:
        places = {1 - group.rank: parts[0]}
    else:
        parts[group.rank].copy_(own)
        places = dict(enumerate(parts))

    def add_up() -> None:
        if group.size == 2:
            torch.add(own, parts[0], out=out.view(-1))
        else:
            torch.sum(parts, dim=0, out=out.view(-1))

    return Pending(group, name, _exchange(slices, places, group)).then(add_up)


def _all_gather_by_messages(out: torch.Tensor, shard: torch.Tensor, group: Group, name: str) -> Pending:
    """Every pair exchanges shards straight into place; gloo's all-gather copies through buffers of its
    own."""
    slices = out.view(group.size, -1)
    flat = shard.view(-1)
    works = _exchange([flat] * group.size, slices, group)
    _place(slices[group.rank], shard)
    return Pending(group, name, works)


def _exchange(outgoing: Any, places: Any, group: Group) -> list[Any]:
    """Send ``outgoing[i]`` to every other rank i and receive what it sends into ``places[i]``.

    Every receive is posted before the send of its turn, neighbours first.
    """
    tag = next(group.tags) % 2**20
    works: list[Any] = []
    for distance in range(1, group.size):
        source, target = (group.rank - distance) % group.size, (group.rank + distance) % group.size
        works.append(group.irecv(places[source], source, tag))
        works.append(group.isend(outgoing[target], target, tag))
    return works
