"""The backward pass in two halves: gradients of inputs now, gradients of weights when there is time.

For ``y = x W^T`` the backward pass is two products of equal size: ``g W``, for which the stage before is
waiting, and ``g^T x``, for which nobody is until the optimizer's step (Qi et al. 2023, "Zero Bubble Pipeline
Parallelism", section 2). Inside :func:`deferring` the linear layers compute the first and leave the second
in a list; :func:`finish` works the list off. A work holds the layer's input and its output's gradient and
nothing else of the graph.

What is no matrix product of a parameter (norms, a user's own parameters) is computed with the first half.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from pdtlib.observe.memory import kept

Work = tuple[torch.Tensor, Callable[[], torch.Tensor], Any]
"""A parameter, how to compute its gradient, and what meters know of the memory that this needs."""

_open: list[Work] | None = None  # where works go; a backward pass may run in a thread of its own


@contextmanager
def deferring(works: list[Work]) -> Iterator[None]:
    """Let backward passes in here append their weight-gradient halves to ``works``."""
    global _open
    before, _open = _open, works
    try:
        yield
    finally:
        _open = before


def is_deferring() -> bool:
    """Whether a backward pass that runs now computes the gradients of inputs alone."""
    return _open is not None


def later(
    param: torch.Tensor, compute: Callable[[], torch.Tensor], *needed: torch.Tensor
) -> torch.Tensor | None:
    """The gradient of ``param``; or None, if its computation, from ``needed``, was left for later."""
    if _open is None or not param.is_leaf:
        return compute()
    _open.append((param, compute, kept(*needed)))
    return None


def left_for_later(param: torch.Tensor) -> bool:
    """Whether the gradient that autograd just left in ``param`` was taken back, to come with the others."""
    if _open is None:
        return False
    grad, param.grad = param.grad, None
    if grad is not None:
        _open.append((param, lambda: grad, None))
    return True


def accumulate(param: torch.Tensor, grad: torch.Tensor) -> None:
    """Add ``grad`` to ``param.grad`` as a backward pass does, hooks and all."""
    param.backward(grad)


@torch.no_grad()
def finish(works: list[Work], give: Callable[[Any, torch.Tensor], None] = accumulate) -> None:
    """Compute what was left, in order, and give every parameter its gradient once.

    A work is forgotten as soon as it is done.
    """
    to_come = Counter(id(param) for param, *_ in works)
    sums: dict[int, torch.Tensor] = {}
    works.reverse()
    while works:
        param, compute, _ = works.pop()
        grad, key = compute(), id(param)
        if key in sums:
            grad = grad + sums.pop(key)
        to_come[key] -= 1
        if to_come[key]:
            sums[key] = grad
        else:
            give(param, grad)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.weight, ctx.bias = weight, bias
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (x,), (grad,), weight = ctx.saved_tensors, grads, ctx.weight
        grad_x = grad @ weight if ctx.needs_input_grad[0] else None
        rows = grad.reshape(-1, grad.shape[-1])  # [B S, out]
        grad_weight = grad_bias = None
        if ctx.needs_input_grad[1]:
            grad_weight = later(weight, lambda: rows.t() @ x.reshape(-1, x.shape[-1]), x, rows)
        if ctx.needs_input_grad[2]:
            grad_bias = later(ctx.bias, lambda: rows.sum(0), rows)
        return grad_x, grad_weight, grad_bias


class _Embedding(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tokens: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(tokens)
        ctx.weight = weight
        return F.embedding(tokens, weight)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (tokens,), (grad,), weight = ctx.saved_tensors, grads, ctx.weight
        rows = weight.shape[0]
        backward = torch.ops.aten.embedding_dense_backward
        return None, later(weight, lambda: backward(grad, tokens, rows, -1, False), grad, tokens)


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """``F.linear``, whose backward pass can be split."""
    return _Linear.apply(x, weight, bias)


def embedding(tokens: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """``F.embedding``, whose backward pass can be split: the gradient of its rows is the second half."""
    return _Embedding.apply(tokens, weight)


def make_splittable(module: nn.Module) -> None:
    """Let plain nn.Linear and nn.Embedding layers in ``module`` use the functions above.

    So do modules that have ``F.linear`` or ``F.embedding`` as an attribute and call it through that.
    Layers whose class has a forward of its own, and embeddings with padding, norms or sparse gradients, stay
    as they are: their weights' gradients are computed with those of the inputs.
    """
    for child in module.modules():
        for name, value in list(vars(child).items()):
            if value is F.linear:
                vars(child)[name] = linear
            elif value is F.embedding:
                vars(child)[name] = embedding
        if "forward" in vars(child):
            continue
        if isinstance(child, nn.Linear) and type(child).forward is nn.Linear.forward:
            vars(child)["forward"] = partial(_call_linear, child)
        elif isinstance(child, nn.Embedding) and _is_plain(child):
            vars(child)["forward"] = partial(_call_embedding, child)


def _is_plain(layer: nn.Embedding) -> bool:
    special = layer.max_norm is not None or layer.scale_grad_by_freq or layer.sparse
    return type(layer).forward is nn.Embedding.forward and layer.padding_idx is None and not special


def _call_linear(layer: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    return linear(x, layer.weight, layer.bias)


def _call_embedding(layer: nn.Embedding, tokens: torch.Tensor) -> torch.Tensor:
    return embedding(tokens, layer.weight)
