"""The mean over all valid tokens of a global batch, however it is cut into micro-batches and ranks."""

from typing import Any

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from pdtlib.engine.collectives import all_reduce
from pdtlib.engine.mesh import Group

IGNORED = -100
"""Target of a position that has no next token (padding). It adds neither loss nor weight."""


class _LossSum(torch.autograd.Function):
    """Cross-entropy whose gradient takes the place of the log-probabilities.

    torch's own fills two more tensors of their size in the backward pass, which is where memory is scarcest.
    A second backward pass of one loss is refused, as what it needs has been overwritten.
    """

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        wide = logits if logits.element_size() > 4 else logits.float()
        log_probs = F.log_softmax(wide, dim=-1)  # [B S, V]
        ctx.save_for_backward(log_probs, targets)
        ctx.dtype = logits.dtype
        return F.nll_loss(log_probs, targets, ignore_index=IGNORED, reduction="sum")

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        log_probs, targets = ctx.saved_tensors
        valid = (targets != IGNORED).unsqueeze(-1)
        scale = grads[0] * valid  # [B S, 1]
        grad = log_probs.exp_().mul_(scale)
        grad.scatter_add_(-1, targets.unsqueeze(-1) * valid, -scale)
        return grad.to(ctx.dtype), None


def token_loss_sum(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Sum of the cross-entropy over the valid targets, in nats, computed in fp32 (fp64 stays fp64).

    logits: [B, S, V]; targets: [B, S] with :data:`IGNORED` where there is nothing to predict.
    """
    return _LossSum.apply(logits.flatten(0, 1), targets.flatten())


class TokenMean:
    """Turns sums of token losses into losses whose averaged gradient is that of sum / global valid tokens.

    A mean of means weighs the tokens of short sequences more. Here the denominator is known before the first
    backward pass: the valid tokens of all micro-batches of all ranks. Data parallelism divides gradients by
    the number of ranks, which :meth:`loss` undoes.
    """

    def __init__(self, group: Group, *, num_valid: int, device: torch.device | str = "cpu") -> None:
        """``num_valid`` counts this rank's valid tokens in all micro-batches of the step. Sends one int64."""
        count = torch.tensor(num_valid, dtype=torch.int64, device=device)
        self.group = group
        self.num_valid = int(all_reduce(count, group, phase="tokens"))
        if self.num_valid == 0:
            raise ValueError("num_valid=0 on every rank: a step needs at least one valid token")

    def loss(self, token_loss_sum: torch.Tensor) -> torch.Tensor:
        """What to call ``backward()`` on for a micro-batch, from the sum of its valid tokens' losses."""
        return token_loss_sum * (self.group.size / self.num_valid)

    def report(self, token_loss_sum: torch.Tensor, *, stages: Group | None = None) -> float:
        """The global mean loss, from the sum over this rank's micro-batches. Sends one float64.

        With ``stages``, the group of a pipeline, one more: only stages that compute the loss have a sum that
        is not 0, and all of them learn it.
        """
        total = all_reduce(token_loss_sum.detach().double(), self.group, phase="loss")
        if stages is not None:
            total = all_reduce(total, stages, phase="loss")
        return float(total) / self.num_valid
