"""Cross-entropy of logits that are cut along the vocabulary, without gathering them.

With V = 128,256 and 8,192 tokens the whole fp32 logits are 4.2 GB; here a rank keeps its V/t columns, and
three numbers a token are exchanged: the largest logit, the target's logit and the sum of exponentials.
"""

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from pdtlib.engine.loss import IGNORED
from pdtlib.engine.mesh import Group
from pdtlib.engine.transfers import start_all_reduce
from pdtlib.plan.sharding import shard_range


class _LossSum(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: torch.Tensor, targets: torch.Tensor, group: Group, vocab: int
    ) -> torch.Tensor:
        first, last = shard_range(vocab, group.size, group.rank)
        valid = targets != IGNORED
        mine = valid & (targets >= first) & (targets < last)
        column = (targets - first) * mine
        dtype = logits.dtype if logits.element_size() > 4 else torch.float32
        real = min(logits.shape[-1], max(0, vocab - first))  # columns that are no padding of the vocabulary
        largest = logits.new_full(logits.shape[:1], float("-inf"))
        if real:
            largest = logits[:, :real].amax(dim=-1)
        largest = largest.to(dtype)
        start_all_reduce(largest, group, phase="loss", maximum=True).wait()
        shifted = logits.to(dtype) - largest.unsqueeze(-1)  # [B S, V/t]
        shifted[:, real:] = float("-inf")
        of_target = shifted.gather(-1, column.unsqueeze(-1)).squeeze(-1).masked_fill(~mine, 0.0)
        start_all_reduce(of_target, group, phase="loss").wait()
        softmax = shifted.exp_()
        total = softmax.sum(dim=-1)
        start_all_reduce(total, group, phase="loss").wait()
        softmax /= total.unsqueeze(-1)
        ctx.save_for_backward(softmax, column, mine, valid)
        ctx.dtype = logits.dtype
        return ((total.log() - of_target) * valid).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        softmax, column, mine, valid = ctx.saved_tensors
        scale = grads[0] * valid.unsqueeze(-1)  # [B S, 1]
        grad = softmax.mul_(scale)  # in its place: a second backward pass is refused
        grad.scatter_add_(-1, column.unsqueeze(-1), -scale * mine.unsqueeze(-1))
        return grad.to(ctx.dtype), None, None, None


def vocab_parallel_loss_sum(
    logits: torch.Tensor, targets: torch.Tensor, group: Group, *, vocab: int
) -> torch.Tensor:
    """Sum of the cross-entropy over the valid targets, the same on every rank.

    logits: [B, S, V/t], this rank's columns; targets: [B, S] with ``IGNORED`` where there is nothing to
    predict. ``vocab`` is V without padding. Computed in fp32 (fp64 stays fp64).
    """
    return _LossSum.apply(logits.flatten(0, 1), targets.flatten(), group, vocab)
