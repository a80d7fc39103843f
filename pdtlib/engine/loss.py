"""The loss that does not depend on how a batch is cut: a sum over tokens, divided by their number in the
batch.

A mean over micro-batches, or over ranks, of means over tokens weighs a token by how many neighbours it
happens to have. Here every rank sums the losses of its own tokens and divides once, by the number of valid
tokens in the whole global batch. Data parallelism then averages gradients over its ranks, so the sum is
multiplied by their number first.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

IGNORED = -100
"""Target of a position that has no next token (padding). It adds neither loss nor weight."""


def token_loss_sum(logits: Tensor, targets: Tensor) -> Tensor:
    """Sum of the cross-entropy over the valid targets, in nats, computed in fp32 (fp64 stays fp64).

    logits: [B, S, V]; targets: [B, S] with :data:`IGNORED` where there is nothing to predict.
    """
    logits = logits if logits.element_size() > 4 else logits.float()
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum")


def share_of_mean(loss_sum: Tensor, *, global_tokens: int, replicas: int) -> Tensor:
    """What a rank differentiates, so that gradients *averaged* over ``replicas`` are those of the global
    mean.

    >>> import torch
    >>> rank0 = share_of_mean(torch.tensor(10.0), global_tokens=8, replicas=2)
    >>> rank1 = share_of_mean(torch.tensor(13.0), global_tokens=8, replicas=2)
    >>> float((rank0 + rank1) / 2)  # 23 / 8
    2.875
    """
    return loss_sum * (replicas / max(1, global_tokens))
