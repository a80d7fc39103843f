"""The operations of the article's tensor-parallel layer, run on simulated ranks and looked at.

No process group is needed: what an all-reduce does to the ranks' tensors, a sum does here, and what an
all-gather does, a concatenation. Lab 03 runs the real ones.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

RANKS, BATCH, IN, OUT = 4, 16, 64, 64


def drawn(*shape: int, seed: int) -> Tensor:
    """Normal numbers in float64."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def off(a: Tensor, b: Tensor) -> float:
    """Norm of the difference over the norm of the second."""
    return float((a - b).norm() / b.norm())


def _whole() -> tuple[Tensor, Tensor, Tensor]:
    """Input, weight [out, in] and the output's gradient."""
    return drawn(BATCH, IN, seed=0), drawn(OUT, IN, seed=1) / math.sqrt(IN), drawn(BATCH, OUT, seed=2)


def output_error(dim: int) -> float | None:
    """Cut torch's [out, in] weight along ``dim``, multiply, gather; None if the shapes do not fit."""
    x, weight, _ = _whole()
    try:
        parts = [F.linear(x, shard) for shard in weight.chunk(RANKS, dim=dim)]
    except RuntimeError:
        return None
    return off(torch.cat(parts, dim=-1), x @ weight.T)


def part_shapes() -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes of a rank's shard and of its part of the output."""
    x, weight, _ = _whole()
    shard = weight.chunk(RANKS)[0]
    return tuple(shard.shape), tuple(F.linear(x, shard).shape)


def outputs_built(out_features: int, ranks: int) -> int:
    """How many outputs there are when every rank has ``out_features // ranks``."""
    return ranks * (out_features // ranks)


@lru_cache(maxsize=1)
def weight_ranks() -> tuple[int, int]:
    """Rank of the gathered weight when the ranks draw their own numbers, and when all draw the same."""
    rows = OUT // RANKS
    own = torch.cat([drawn(rows, IN, seed=rank) for rank in range(RANKS)])
    alike = torch.cat([drawn(rows, IN, seed=0)] * RANKS)
    return int(torch.linalg.matrix_rank(own)), int(torch.linalg.matrix_rank(alike))


def initial_deviations(in_features: int = 256) -> tuple[float, float]:
    """Standard deviation of the article's initial weights, and of torch's own linear layer."""
    torch.manual_seed(0)
    article = torch.randn(1024, in_features) / math.sqrt(in_features)
    return float(article.std()), float(nn.Linear(in_features, 1024).weight.detach().std())


def slice_error(*, alike: bool) -> float:
    """Take the own slice of the gathered output's gradient: error of the shards' gradients.

    After the gather all ranks compute the same (``alike``), or each has a loss of its own and the total loss
    is their sum.
    """
    x, weight, _ = _whole()
    weight = weight.requires_grad_()
    weights_of_loss = [drawn(BATCH, OUT, seed=10 if alike else 10 + rank) for rank in range(RANKS)]
    y = F.linear(x, weight)
    weighted = weights_of_loss[:1] if alike else weights_of_loss
    total = torch.stack([(y * w).sum() for w in weighted]).sum()
    (right,) = torch.autograd.grad(total, weight)
    parts = [
        w.chunk(RANKS, dim=-1)[rank].T @ x for rank, w in enumerate(weights_of_loss)
    ]  # d loss / d y is w itself
    return off(torch.cat(parts), right)


def weight_gradient_error() -> float:
    """``local_grad.T @ x`` of a batch of vectors, every rank's, against one process."""
    x, weight, grad = _whole()
    weight = weight.requires_grad_()
    (right,) = torch.autograd.grad(F.linear(x, weight), weight, grad)
    return off(torch.cat([part.T @ x for part in grad.chunk(RANKS, dim=-1)]), right)


def weight_gradient_of_sequences_fails() -> bool:
    """The same for [batch, sequence, features]: does it raise an error?"""
    x, grad = drawn(2, BATCH, IN, seed=0), drawn(2, BATCH, OUT // RANKS, seed=2)
    try:
        return (grad.transpose(0, 2) @ x).shape != (OUT // RANKS, IN)
    except RuntimeError:
        return True


@lru_cache(maxsize=1)
def input_gradient_errors() -> tuple[tuple[float, ...], float]:
    """Errors of each rank's ``local_grad @ shard`` as the gradient of the input, and of their sum."""
    _, weight, grad = _whole()
    right = grad @ weight
    parts = [part @ shard for part, shard in zip(grad.chunk(RANKS, dim=-1), weight.chunk(RANKS), strict=True)]
    return tuple(off(part, right) for part in parts), off(torch.stack(parts).sum(0), right)


@lru_cache(maxsize=1)
def head_errors() -> dict[str, float]:
    """Attention with heads dealt out to ranks, against one process.

    ``own heads``: each rank's heads alone; ``through W_O``: heads times the rank's rows of W_O, summed;
    ``heads summed``: the heads' outputs themselves added up over the ranks, then W_O.
    """
    heads, size, tokens = 8, 8, 12
    x = drawn(1, tokens, heads * size, seed=0)
    q, k, v, o = (drawn(heads * size, heads * size, seed=seed) / 8 for seed in (1, 2, 3, 4))

    def attend(columns: slice) -> Tensor:
        """Heads side by side, [tokens, columns]."""
        own_q, own_k, own_v = (
            (x @ matrix[:, columns]).unflatten(-1, (-1, size)).transpose(1, 2) for matrix in (q, k, v)
        )
        core = F.scaled_dot_product_attention(own_q, own_k, own_v, is_causal=True)
        return core.transpose(1, 2).flatten(2)

    whole = attend(slice(None))
    width = heads * size // RANKS
    columns = [slice(rank * width, (rank + 1) * width) for rank in range(RANKS)]
    parts = [attend(column) for column in columns]
    summed = torch.stack(parts).sum(0)
    return {
        "own heads": off(torch.cat(parts, dim=-1), whole),
        "through W_O": off(
            torch.stack([p @ o[c] for p, c in zip(parts, columns, strict=True)]).sum(0), whole @ o
        ),
        "heads summed": off(torch.cat([summed] * RANKS, dim=-1) @ o, whole @ o),
    }
