"""The two all-to-alls of a mixture of experts: rows of tokens to the ranks of their experts, and back.

How many rows go where is the router's choice and another in every pass, so the counts travel first (one
number an expert), and the messages have uneven parts. Backwards every gradient takes its row's way in
reverse.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pdtlib.engine.mesh import Group
from pdtlib.engine.tensor_parallel.regions import forward_phase
from pdtlib.engine.transfers import start_all_to_all

Splits = tuple[Sequence[int], Sequence[int]]
"""Rows that this rank sends to, and receives from, every rank."""


class _Rows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, group: Group, splits: Splits) -> Tensor:
        ctx.group, ctx.splits = group, splits
        return _exchange(rows, group, splits, phase=forward_phase())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        send, receive = ctx.splits
        return _exchange(grads[0], ctx.group, (receive, send), phase="backward"), None, None


def _exchange(rows: Tensor, group: Group, splits: Splits, *, phase: str) -> Tensor:
    send, receive = splits
    out = rows.new_empty(sum(receive), *rows.shape[1:])
    start_all_to_all(out, rows.contiguous(), group, phase=phase, send=send, receive=receive).wait()
    return out


class Exchange:
    """Sends rows between the ranks of ``group``, of which rank r has experts ``r E/size`` to ``(r+1)
    E/size``.

    Takes the place of :class:`pdtlib.engine.models.moe.AtHome`.
    """

    def __init__(self, group: Group) -> None:
        self.group, self.rank, self.size = group, group.rank, group.size

    def counts(self, counts: Tensor) -> Tensor:
        """Rows that arrive here, by source rank and expert [size, E/size], of rows sent by expert [E]."""
        arriving = torch.empty_like(counts)
        start_all_to_all(arriving, counts.contiguous(), self.group, phase="routing").wait()
        return arriving.view(self.size, -1)

    def rows(self, rows: Tensor, *, send: Sequence[int], receive: Sequence[int]) -> Tensor:
        """What arrives when ``send[i]`` of the rows [.., h] go to rank i and ``receive[i]`` come from it."""
        return _Rows.apply(rows, self.group, (send, receive))
