"""Ring attention (Liu 2023, arXiv:2310.01889) with a causal mask and zigzag positions.

Each rank keeps its queries; keys and values travel round the ring, and every rank adds each visitor's part to
its result. A part is a softmax over some of the keys; two parts are put together by their log-sum-exp, which
is stable whatever the scores (Milakov 2018, arXiv:1805.02867). In the backward pass keys and values go round
again, and the gradients that they collect follow them home.
"""

from typing import Any

import torch

from pdtlib.engine.mesh import Group
from pdtlib.engine.pending import Pending
from pdtlib.engine.tensor_parallel.regions import forward_phase
from pdtlib.engine.transfers import start_ring_shift

Part = tuple[slice, slice, bool]
WHOLE = slice(None)


def part_of(rank: int, owner: int, length: int) -> Part:
    """Which local queries meet which of the owner's keys: (queries, keys, with a mask).

    A rank's first half lies before all middles, its second half after them. Keys of a lower rank are seen by
    all queries, but only their first half; keys of a higher rank by the second half of the queries, all of
    them.
    """
    half = length // 2
    if owner == rank:
        return WHOLE, WHOLE, True
    if owner < rank:
        return WHOLE, slice(0, half), False
    return slice(half, length), WHOLE, False


def scores_of(q: torch.Tensor, k: torch.Tensor, *, masked: bool) -> torch.Tensor:
    """QK^T / sqrt(D) in at least fp32. q: [B, G, R, S, D], k: [B, G, 1, T, D] -> [B, G, R, S, T]."""
    scores = (q @ k.transpose(-1, -2)).to(torch.promote_types(q.dtype, torch.float32)) * q.shape[-1] ** -0.5
    if masked:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(mask, float("-inf"))
    return scores


class _RingAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, kv: torch.Tensor, group: Group) -> torch.Tensor:
        """q: [B, G, R, S, D] (R queries a key head); kv: [2, B, G, 1, S, D] -> like q."""
        length = q.shape[-2]
        exact = torch.promote_types(q.dtype, torch.float32)
        out = torch.zeros_like(q, dtype=exact)
        log_sum = q.new_full(q.shape[:-1], float("-inf"), dtype=exact)
        for owner, visitor in _visits(kv, group, phase=forward_phase()):
            queries, keys, masked = part_of(group.rank, owner, length)
            k, v = visitor[..., keys, :]
            scores = scores_of(q[..., queries, :], k, masked=masked)
            part_log_sum = scores.logsumexp(dim=-1)
            part = (scores - part_log_sum.unsqueeze(-1)).exp().to(v.dtype) @ v
            total = torch.logaddexp(log_sum[..., queries], part_log_sum)
            old = (log_sum[..., queries] - total).exp().unsqueeze(-1)
            new = (part_log_sum - total).exp().unsqueeze(-1)
            out[..., queries, :] = out[..., queries, :] * old + part * new
            log_sum[..., queries] = total
        out = out.to(q.dtype)
        ctx.group = group
        ctx.save_for_backward(q, kv, out, log_sum)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        q, kv, out, log_sum = ctx.saved_tensors
        group, length = ctx.group, q.shape[-2]
        grad_q = torch.zeros_like(q)
        own = torch.zeros_like(kv)
        travelling: torch.Tensor | None = None  # gradients of the visitor, from the ranks that it has seen
        arriving: tuple[torch.Tensor, Pending] | None = None
        of_out = (grads[0] * out).sum(dim=-1, keepdim=True)
        for owner, visitor in _visits(kv, group, phase="backward"):
            queries, keys, masked = part_of(group.rank, owner, length)
            k, v = visitor[..., keys, :]
            local_q, grad = q[..., queries, :], grads[0][..., queries, :]
            weights = (
                (scores_of(local_q, k, masked=masked) - log_sum[..., queries].unsqueeze(-1)).exp().to(q.dtype)
            )
            grad_scores = (
                weights * (grad @ v.transpose(-1, -2) - of_out[..., queries, :]) * q.shape[-1] ** -0.5
            )
            grad_q[..., queries, :] += grad_scores @ k
            if arriving is not None:
                arriving[1].wait()
                travelling = arriving[0]
            mine = own if owner == group.rank else travelling
            if mine is None:
                mine = travelling = torch.zeros_like(kv)
            mine[0][..., keys, :] += (grad_scores.transpose(-1, -2) @ local_q).sum(dim=2, keepdim=True)
            mine[1][..., keys, :] += (weights.transpose(-1, -2) @ grad).sum(dim=2, keepdim=True)
            if owner != group.rank:
                received = torch.empty_like(kv)
                arriving = received, start_ring_shift(received, mine, group, phase="backward")
        if arriving is not None:
            arriving[1].wait()
            own += arriving[0]
        return grad_q, own, None


def _visits(kv: torch.Tensor, group: Group, *, phase: str) -> Any:
    """(owner, its keys and values), this rank's own first; the next visitor travels while one is looked
    at."""
    visitor = kv.contiguous()
    for step in range(group.size):
        coming: tuple[torch.Tensor, Pending] | None = None
        if step < group.size - 1:
            received = torch.empty_like(visitor)
            coming = received, start_ring_shift(received, visitor, group, phase=phase)
        yield (group.rank - step) % group.size, visitor
        if coming is not None:
            coming[1].wait()
            visitor = coming[0]


def ring_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, dropout: float, group: Group
) -> torch.Tensor:
    """Causal attention over all ranks' positions.

    q: [B, H, S/c, D]; k, v: [B, G, S/c, D] with H a multiple of G; positions as
    :class:`pdtlib.engine.context_parallel.ContextSplit` deals them out. Sends keys and values c-1 times
    forwards; backwards them and their gradients. Raises ValueError for dropout.
    """
    if dropout > 0:
        raise ValueError(f"dropout={dropout}: ring attention has none (valid: 0)")
    grouped = q.unflatten(1, (k.shape[1], -1))  # [B, G, R, S, D]
    return _RingAttention.apply(grouped, torch.stack((k, v)).unsqueeze(3), group).flatten(1, 2)
