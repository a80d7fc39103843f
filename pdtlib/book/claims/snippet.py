"""The operations of the article's ZeRO-3 layer, run and looked at.

The article sketches a layer with a forward and a backward method of its own. Each function here performs one
of its operations on small tensors in float64 and returns what happened. No process group is needed: what a
reduce-scatter does to the ranks' tensors, a sum does here. Lab 02 runs the real ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BATCH, IN, OUT, RANKS = 5, 8, 6, 4


def _random(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def _fails(operation: object) -> bool:
    """Whether calling ``operation`` raises a RuntimeError (torch's answer to shapes that do not fit)."""
    assert callable(operation)
    try:
        operation()
    except RuntimeError:
        return True
    return False


def gathered_by_rows_is_right() -> bool:
    """Gathering shards that are rows of the weight, then F.linear: is it the whole layer's output?"""
    x, weight = _random(BATCH, IN), _random(OUT, IN, seed=1)
    shards = weight.chunk(2, dim=0)
    return torch.equal(F.linear(x, torch.cat(shards)), F.linear(x, weight))


def gathered_by_columns_is_right() -> bool:
    """The same with shards that are columns: an all-gather stacks them on top of each other."""
    x, weight = _random(BATCH, IN), _random(OUT, IN, seed=1)
    shards = weight.chunk(2, dim=1)
    return not _fails(lambda: F.linear(x, torch.cat(shards)))


def share_kept_after_del() -> float:
    """Delete the gathered weight after F.linear: which share of its bytes does autograd still hold?"""
    x = _random(BATCH, IN).requires_grad_()
    shards = [shard.clone().requires_grad_() for shard in _random(OUT, IN, seed=1).chunk(2)]
    full = torch.cat(shards)
    address, size = full.untyped_storage().data_ptr(), full.untyped_storage().nbytes()
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = F.linear(x, full)
    del full
    share = kept.get(address, 0) / size
    output.sum().backward()
    return share


def module_backward_is_called() -> bool:
    """Does autograd call a method named ``backward`` of an nn.Module?"""
    called = []

    class Layer(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * x

        def backward(self, grad: Tensor) -> Tensor:
            called.append(True)
            return grad

    Layer()(_random(BATCH, IN).requires_grad_()).sum().backward()
    return bool(called)


@dataclass(frozen=True)
class GradInput:
    """The gradient of a linear layer's input computed with the transposed weight, beside the right one."""

    fails_if_rectangular: bool
    error_if_square: float
    size_if_square: float
    error_of_right_form: float


def grad_input() -> GradInput:
    """Weight is [out, in], so the gradient of the input is ``grad @ weight``; the article transposes it."""
    wide, grad = _random(OUT, IN, seed=1), _random(BATCH, OUT, seed=2)
    square, square_grad = _random(IN, IN, seed=1) / IN**0.5, _random(BATCH, IN, seed=2)
    x = _random(BATCH, IN).requires_grad_()
    (right,) = torch.autograd.grad(F.linear(x, square), x, square_grad)
    return GradInput(
        fails_if_rectangular=_fails(lambda: grad @ wide.T),
        error_if_square=(square_grad @ square.T - right).abs().max().item(),
        size_if_square=right.abs().max().item(),
        error_of_right_form=(square_grad @ square - right).abs().max().item(),
    )


def grad_weight_of_matrices_is_right() -> bool:
    """``grad.T @ x`` for a batch of vectors."""
    x, weight, grad = (
        _random(BATCH, IN),
        _random(OUT, IN, seed=1).requires_grad_(),
        _random(BATCH, OUT, seed=2),
    )
    (right,) = torch.autograd.grad(F.linear(x, weight), weight, grad)
    return torch.allclose(grad.T @ x, right)


def grad_weight_of_sequences_fails() -> bool:
    """The same for [batch, sequence, features], the shape that a Transformer has."""
    x, grad = _random(2, BATCH, IN), _random(2, BATCH, OUT, seed=2)
    return _fails(lambda: grad.transpose(0, 2) @ x)


def summed_over_mean() -> float:
    """Sum over ranks of the gradients of their mean losses, over the gradient of the global mean."""
    x, weight = _random(RANKS * BATCH, IN), _random(OUT, IN, seed=1).requires_grad_()

    def gradient(part: Tensor) -> Tensor:
        return torch.autograd.grad(F.linear(part, weight).square().mean(), weight)[0]

    summed = torch.stack([gradient(part) for part in x.chunk(RANKS)]).sum(0)
    return (summed / gradient(x)).mean().item()


def share_left_by_assignment(micro_batches: int) -> float:
    """Assign each micro-batch's gradient instead of adding it: the share of micro-batches that count.

    All micro-batches are equal here, so the last gradient over their sum is that share.
    """
    total, assigned = torch.zeros(OUT, IN, dtype=torch.float64), torch.zeros(OUT, IN, dtype=torch.float64)
    for _ in range(micro_batches):
        gradient = _random(OUT, IN, seed=3)
        total += gradient
        assigned = gradient
    return (assigned / total).mean().item()
