"""Collectives with a derivative: they take their group, write the ledger and never change an input.

:func:`all_reduce`, :func:`reduce_scatter`, :func:`all_gather`, :func:`all_to_all` and :func:`broadcast`
return a new tensor, and their derivative is the exact adjoint: the loss is the sum of all ranks' losses.
Those that write where they are told and overlap with computation are :mod:`pdtlib.engine.transfers`.
"""

from typing import Any

import torch

from pdtlib.engine.mesh import Group
from pdtlib.engine.transfers import (
    start_all_gather,
    start_all_reduce,
    start_all_to_all,
    start_broadcast,
    start_reduce_scatter,
)


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
