"""Collectives that take their group, write the ledger and never change an input that they do not own.

Two families:

* :func:`all_reduce`, :func:`reduce_scatter`, :func:`all_gather`, :func:`all_to_all`, :func:`broadcast`
  return a new tensor and have a derivative, the exact adjoint: the loss is the sum of all ranks' losses.
* the ``start_*`` functions work on flat buffers that the caller owns, write their result where they are told,
  return at once and are waited for through :class:`Pending`, so that they overlap with computation.

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
    if group.backend == "gloo":
        return _reduce_scatter_by_all_to_all(out, buffer, group, name)
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
    if group.backend == "gloo":
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
    following, before = (group.ranks[(group.rank + step) % group.size] for step in (1, -1))
    if group.backend == "gloo":  # which has no batches
        receive = dist.irecv(out, before, group=group.process_group, tag=tag)
        return Pending(group, name, [receive, dist.isend(x, following, group=group.process_group, tag=tag)])
    operations = [
        dist.P2POp(dist.isend, x, following, group.process_group),
        dist.P2POp(dist.irecv, out, before, group.process_group),
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


def _reduce_scatter_by_all_to_all(
    out: torch.Tensor, buffer: torch.Tensor, group: Group, name: str
) -> Pending:
    """gloo's own reduce-scatter is an all-reduce inside, which moves twice the bytes."""
    received = torch.empty_like(buffer)
    work = dist.all_to_all_single(received, buffer, group=group.process_group, async_op=True)
    slices = received.view(group.size, -1)
    return Pending(group, name, [work]).then(lambda: torch.sum(slices, dim=0, out=out.view(-1)))


def _all_gather_by_messages(out: torch.Tensor, shard: torch.Tensor, group: Group, name: str) -> Pending:
    """Every pair exchanges shards straight into place; gloo's all-gather copies through buffers of its
    own."""
    slices = out.view(group.size, -1)
    tag = next(group.tags) % 2**20
    works: list[Any] = []
    for distance in range(1, group.size):
        source, target = (group.rank - distance) % group.size, (group.rank + distance) % group.size
        works.append(dist.irecv(slices[source], group=group.process_group, tag=tag, group_src=source))
        works.append(dist.isend(shard.view(-1), group=group.process_group, tag=tag, group_dst=target))
    _place(slices[group.rank], shard)
    return Pending(group, name, works)


def _new_all_reduce(x: torch.Tensor, group: Group, phase: str) -> torch.Tensor:
    out = x.clone(memory_format=torch.contiguous_format)
    start_all_reduce(out, group, phase=phase).wait()
    return out


def _new_reduce_scatter(x: torch.Tensor, group: Group, phase: str) -> torch.Tensor:
    _demand_rows("reduce_scatter", x, group)
    out = x.new_empty(x.shape[0] // group.size, *x.shape[1:])
    start_reduce_scatter(out, x.contiguous(), group, phase=phase).wait()
    return out


def _new_all_gather(x: torch.Tensor, group: Group, phase: str) -> torch.Tensor:
    if x.dim() == 0:
        raise ValueError("all_gather: a tensor without dims cannot be concatenated; give it one, x[None]")
    out = x.new_empty(x.shape[0] * group.size, *x.shape[1:])
    start_all_gather(out, x.contiguous(), group, phase=phase).wait()
    return out


def _new_all_to_all(x: torch.Tensor, group: Group, phase: str) -> torch.Tensor:
    _demand_rows("all_to_all", x, group)
    x = x.contiguous()
    out = torch.empty_like(x)
    start_all_to_all(out, x, group, phase=phase).wait()
    return out


def _demand_rows(collective: str, x: torch.Tensor, group: Group) -> None:
    if x.dim() == 0 or x.shape[0] % group.size:
        raise ValueError(f"{collective}: shape={tuple(x.shape)}; dim 0 must be a multiple of {group.size}")


_NEW = {
    "all_reduce": _new_all_reduce,
    "reduce_scatter": _new_reduce_scatter,
    "all_gather": _new_all_gather,
    "all_to_all": _new_all_to_all,
}
_ADJOINT = {
    "all_reduce": "all_reduce",  # every input reaches every rank's output
    "reduce_scatter": "all_gather",
    "all_gather": "reduce_scatter",
    "all_to_all": "all_to_all",  # a transposition of ranks and slices
}


class _Collective(torch.autograd.Function):
    """A collective is linear, so its derivative is its adjoint, another collective."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Group, name: str, phases: tuple[str, str]) -> torch.Tensor:
        ctx.group, ctx.name, ctx.phases = group, name, phases
        return _NEW[name](x, group, phases[0])

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        phases = (ctx.phases[1], ctx.phases[1])
        return _Collective.apply(grads[0], ctx.group, _ADJOINT[ctx.name], phases), None, None, None


class _Broadcast(torch.autograd.Function):
    """Its adjoint sums all ranks' gradients on the source; the other inputs were not used."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, group: Group, source: int, phases: tuple[str, str]
    ) -> torch.Tensor:
        ctx.group, ctx.source, ctx.phases = group, source, phases
        out = x.clone(memory_format=torch.contiguous_format)
        start_broadcast(out, group, source=source, phase=phases[0]).wait()
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        total = all_reduce(grads[0], ctx.group, phase=ctx.phases[1], backward_phase=ctx.phases[1])
        mine = total if ctx.group.rank == ctx.source else torch.zeros_like(total)
        return mine, None, None, None


def all_reduce(
    x: torch.Tensor, group: Group, *, phase: str = "forward", backward_phase: str = "backward"
) -> torch.Tensor:
    """The sum of ``x`` over the group, on every rank."""
    return _Collective.apply(x, group, "all_reduce", (phase, backward_phase))


def reduce_scatter(
    x: torch.Tensor, group: Group, *, phase: str = "forward", backward_phase: str = "backward"
) -> torch.Tensor:
    """Slice ``rank`` along dim 0 of the sum of ``x`` over the group."""
    return _Collective.apply(x, group, "reduce_scatter", (phase, backward_phase))


def all_gather(
    x: torch.Tensor, group: Group, *, phase: str = "forward", backward_phase: str = "backward"
) -> torch.Tensor:
    """All ranks' ``x``, concatenated along dim 0 in the order of ranks."""
    return _Collective.apply(x, group, "all_gather", (phase, backward_phase))


def all_to_all(
    x: torch.Tensor, group: Group, *, phase: str = "forward", backward_phase: str = "backward"
) -> torch.Tensor:
    """Send slice i along dim 0 to rank i; slice i of the result came from rank i."""
    return _Collective.apply(x, group, "all_to_all", (phase, backward_phase))


def broadcast(
    x: torch.Tensor,
    group: Group,
    *,
    source: int = 0,
    phase: str = "forward",
    backward_phase: str = "backward",
) -> torch.Tensor:
    """The ``x`` of the group's rank ``source``, on every rank."""
    return _Broadcast.apply(x, group, source, (phase, backward_phase))
