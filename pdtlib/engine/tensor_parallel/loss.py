"""Cross-entropy of logits that are cut along the vocabulary, without gathering them.

With V = 128,256 and 8,192 tokens the whole fp32 logits are 4.2 GB; here a rank keeps its V/t columns, and
three numbers a token are exchanged: the largest logit, the target's logit and the sum of exponentials.
"""

from typing import Any

import torch

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
        shifted = logits.clone() if logits.element_size() > 4 else logits.to(torch.float32, copy=True)
        shifted[:, max(0, vocab - first) :] = float("-inf")  # padding of the vocabulary
        largest = shifted.amax(dim=-1)
        start_all_reduce(largest, group, phase="loss", maximum=True).wait()
        shifted -= largest.unsqueeze(-1)
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
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        softmax, column, mine, valid = ctx.saved_tensors
        grad = softmax * valid.unsqueeze(-1)
        grad.scatter_add_(-1, column.unsqueeze(-1), -mine.to(grad.dtype).unsqueeze(-1))
        return (grad * grads[0]).to(ctx.dtype), None, None, None


def vocab_parallel_loss_sum(
    logits: torch.Tensor, targets: torch.Tensor, group: Group, *, vocab: int
) -> torch.Tensor:
    """Sum of the cross-entropy over the valid targets, the same on every rank.

    logits: [B, S, V/t], this rank's columns; targets: [B, S] with ``IGNORED`` where there is nothing to
    predict. ``vocab`` is V without padding. Computed in fp32 (fp64 stays fp64).
    """
    return _LossSum.apply(logits.flatten(0, 1), targets.flatten(), group, vocab)
