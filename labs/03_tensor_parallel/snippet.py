"""The article's tensor-parallel linear layer, as it is printed, and with what it lacks.

Its constructor, its gather and its process group are filled in; what it computes is left as it is.
``complete`` adds the all-reduce of the input's gradient, the f of Megatron-LM.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pdtlib.engine.mesh import Group
from pdtlib.engine.tensor_parallel.regions import start_sum
from pdtlib.engine.transfers import start_all_gather


def gather_columns(part: Tensor, group: Group) -> Tensor:
    """Every rank's columns ``[.., out/t]``, side by side: ``[.., out]``."""
    slices = part.new_empty(group.size, *part.shape)
    start_all_gather(slices, part.contiguous(), group, phase="forward").wait()
    return torch.cat(list(slices), dim=-1)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, group: Group, complete: bool) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.group, ctx.complete = group, complete
        return gather_columns(F.linear(x, weight), group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        x, weight = ctx.saved_tensors
        group: Group = ctx.group
        mine = grads[0].chunk(group.size, dim=-1)[group.rank]  # right if all ranks compute the same from here
        grad_weight = mine.flatten(0, -2).T @ x.flatten(0, -2)
        grad_x = mine @ weight  # this rank's part of a sum
        if ctx.complete:
            grad_x, pending = start_sum(grad_x, group, phase="backward")
            pending.wait()
        return grad_x, grad_weight, None, None


class TensorParallelLinear(nn.Module):
    """``[.., in] -> [.., out]`` on every rank, each with ``out/t`` rows of the weight ``[out, in]``."""

    def __init__(
        self, in_features: int, out_features: int, group: Group, *, seed: int, complete: bool = False
    ) -> None:
        super().__init__()
        rows = out_features // group.size
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.randn(rows, in_features, generator=generator) / math.sqrt(in_features)
        self.weight = nn.Parameter(drawn.to(torch.float64))
        self.group, self.complete = group, complete

    def forward(self, x: Tensor) -> Tensor:
        return _Linear.apply(x, self.weight, self.group, self.complete)

    def whole_weight(self) -> Tensor:
        """The weight of all ranks, ``[out, in]``."""
        return gather_columns(self.weight.detach().T, self.group).T
