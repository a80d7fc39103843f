"""The moves between replicated activations, partial sums and slices of the sequence.

A tensor-parallel region begins where every rank has the same activations and ends where every rank has a part
of a sum. Megatron's f and g (Shoeybi 2019, section 3) stand at its two ends: f does nothing forwards and sums
gradients backwards, g sums forwards and does nothing backwards. With sequence parallelism (Korthikanti 2022,
section 4.2.2) each rank has a slice of the positions outside the region, and both become a gather on one side
and a reduce-scatter on the other: the same bytes, since an all-reduce is both.

Activations are ``[B, S, h]``; what is sliced is dim 1.
"""

from typing import Any

import torch

from pdtlib.engine.mesh import Group
from pdtlib.engine.pending import Pending
from pdtlib.engine.transfers import start_all_gather, start_all_reduce, start_reduce_scatter


def forward_phase() -> str:
    """``forward``, or ``recompute`` where a backward pass runs a checkpointed forward pass again."""
    return "forward" if torch._C._current_graph_task_id() == -1 else "recompute"


def start_sum(x: torch.Tensor, group: Group, *, phase: str) -> tuple[torch.Tensor, Pending]:
    """Start to sum a tensor over the group; the result replaces a copy, and the copy is returned."""
    total = x.clone(memory_format=torch.contiguous_format)
    return total, start_all_reduce(total, group, phase=phase)


def start_gather_sequence(x: torch.Tensor, group: Group, *, phase: str) -> tuple[torch.Tensor, Pending]:
    """Start to gather slices of the sequence: ``[B, S/t, h]`` -> ``[B, S, h]``, filled when waited for."""
    slices = x.new_empty(group.size, *x.shape)  # [t, B, S/t, h]
    pending = start_all_gather(slices, x.contiguous(), group, phase=phase)
    whole = x.new_empty(x.shape[0], group.size * x.shape[1], *x.shape[2:])
    target = whole.unflatten(1, (group.size, -1)).transpose(0, 1)
    return whole, pending.then(lambda: target.copy_(slices))


def start_scatter_sum(x: torch.Tensor, group: Group, *, phase: str) -> tuple[torch.Tensor, Pending]:
    """Start to sum over the group and keep this rank's positions: ``[B, S, h]`` -> ``[B, S/t, h]``."""
    if x.shape[1] % group.size:
        raise ValueError(
            f"a sequence of {x.shape[1]} positions: sequence parallelism needs a multiple of tp={group.size}"
        )
    slices = x.unflatten(1, (group.size, -1)).transpose(0, 1).contiguous()  # [t, B, S/t, h]
    out = torch.empty_like(slices[0])
    return out, start_reduce_scatter(out, slices, group, phase=phase)


def _finish(started: tuple[torch.Tensor, Pending]) -> torch.Tensor:
    result, pending = started
    pending.wait()
    return result


class _CopyTo(torch.autograd.Function):
    """f: the beginning of a region, identity forwards, sum backwards."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Group) -> torch.Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        return _finish(start_sum(grads[0], ctx.group, phase="backward")), None


class _ReduceFrom(torch.autograd.Function):
    """g: the end of a region, sum forwards, identity backwards."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Group) -> torch.Tensor:
        return _finish(start_sum(x, group, phase=forward_phase()))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        return grads[0], None


class _GatherSequence(torch.autograd.Function):
    """The beginning of a region under sequence parallelism."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Group) -> torch.Tensor:
        ctx.group = group
        return _finish(start_gather_sequence(x, group, phase=forward_phase()))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        return _finish(start_scatter_sum(grads[0], ctx.group, phase="backward")), None


class _ScatterSequence(torch.autograd.Function):
    """The end of a region under sequence parallelism."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Group) -> torch.Tensor:
        ctx.group = group
        return _finish(start_scatter_sum(x, group, phase=forward_phase()))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        return _finish(start_gather_sequence(grads[0], ctx.group, phase="backward")), None


def copy_to(x: torch.Tensor, group: Group) -> torch.Tensor:
    """Begin a region: ``x`` is the same on every rank, its gradient is summed over the group."""
    return _CopyTo.apply(x, group)


def reduce_from(x: torch.Tensor, group: Group) -> torch.Tensor:
    """End a region: the sum of every rank's ``x``, on every rank."""
    return _ReduceFrom.apply(x, group)


def gather_sequence(x: torch.Tensor, group: Group) -> torch.Tensor:
    """Begin a region with slices: ``[B, S/t, h]`` -> ``[B, S, h]``."""
    return _GatherSequence.apply(x, group)


def scatter_sequence(x: torch.Tensor, group: Group) -> torch.Tensor:
    """End a region with slices: the sum of every rank's ``[B, S, h]``, of which this rank gets ``[B, S/t,
    h]``."""
    return _ScatterSequence.apply(x, group)


def own_positions(x: torch.Tensor, group: Group, *, dim: int) -> torch.Tensor:
    """This rank's slice along ``dim`` of a tensor that all ranks have, without a message.

    Its gradient stays this rank's part: who owns a parameter behind it sums over the group.
    """
    return x.chunk(group.size, dim=dim)[group.rank]
