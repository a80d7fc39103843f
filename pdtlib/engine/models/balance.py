"""The load-balancing loss of a mixture of experts, which reaches the router by its gradient alone.

For a micro-batch of N tokens it is ``E * sum_i f_i P_i`` with f_i the share of the ``N top_k`` copies that
expert i gets and P_i its mean probability (Switch Transformer, Fedus 2021, arXiv:2101.03961, equations 4 to
6): 1 when all experts get as much. It is averaged over the micro-batches of a step, and summed over layers.

A mean over the whole batch would be a product of means that are only known when all micro-batches are
through, so each micro-batch has a loss of its own, as in Megatron-LM; it is the same in every layout that
makes the same micro-batches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class _WithLoss(torch.autograd.Function):
    """Hand on ``x``; backwards, give ``loss`` the gradient ``scale``, as if it were added to the total."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, loss: Tensor, scale: float) -> Tensor:
        ctx.scale, ctx.like = scale, torch.empty_like(loss)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        return grads[0], torch.full_like(ctx.like, ctx.scale), None


class Balance:
    """The balancing loss of all layers of a model; ``coefficient`` is its weight in the whole loss.

    ``scale`` is set by the training loop: one over the micro-batches of a rank's step, times the loss scale
    of fp16. Data parallelism then takes the mean over its ranks.
    """

    def __init__(self, coefficient: float) -> None:
        self.coefficient = coefficient
        self.scale = 1.0
        self.copies = 1  # ranks that compute the same, and whose gradients are summed
        self.sum_counts: Callable[[Tensor], Tensor] = lambda counts: (
            counts
        )  # replaced where positions are cut

    def attach(self, weights: Tensor, probabilities: Tensor, counts: Tensor) -> Tensor:
        """``weights`` [N, k] with the loss behind it; probabilities: [N, E], counts: [E]."""
        loss = balance_loss(probabilities, self.sum_counts(counts))
        scale = self.coefficient * self.scale / self.copies
        return _WithLoss.apply(weights, loss, scale)


def balance_loss(probabilities: Tensor, counts: Tensor) -> Tensor:
    """``E * sum_i f_i P_i``; where ranks share the positions, the mean of theirs is that of the micro-batch.

    probabilities: [N, E] of this rank's tokens; counts: [E], of the whole micro-batch.
    """
    shares = counts.to(probabilities.dtype) / counts.sum()
    return len(counts) * (shares * probabilities.mean(dim=0)).sum()
