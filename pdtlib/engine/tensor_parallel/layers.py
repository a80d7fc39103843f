"""Linear layers cut by columns and by rows, and the embedding cut by the vocabulary.

``y = act(x A) B`` needs no message in the middle when A is cut by columns and B by rows: every rank has whole
columns of ``x A`` and the rows of B that belong to them, and the parts of y are summed once at the end.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from pdtlib.engine.mesh import Group
from pdtlib.engine.pending import Pending
from pdtlib.engine.split_backward import is_deferring, later
from pdtlib.engine.tensor_parallel.regions import (
    forward_phase,
    reduce_from,
    scatter_sequence,
    start_gather_sequence,
    start_scatter_sum,
    start_sum,
)
from pdtlib.plan.sharding import shard_range


class _Columns(torch.autograd.Function):
    """Several column-cut products of one input, as one beginning of a region: one message each way.

    Backwards the gradient of the input is summed over the group while the gradients of the weights are
    computed. Under sequence parallelism the input is a slice; only the slice is kept, and gathered again
    backwards.
    """

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, group: Group, sequence: bool, *params: Any
    ) -> tuple[torch.Tensor, ...]:
        weights, biases = params[: len(params) // 2], params[len(params) // 2 :]
        whole = x
        if sequence:
            whole, pending = start_gather_sequence(x, group, phase=forward_phase())
            pending.wait()
        ctx.group, ctx.sequence = group, sequence
        ctx.weights, ctx.biases = weights, biases
        ctx.save_for_backward(x)
        return tuple(F.linear(whole, weight, bias) for weight, bias in zip(weights, biases, strict=True))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        group, weights, (x,) = ctx.group, ctx.weights, ctx.saved_tensors
        inputs = _Inputs(x, group, sequence=ctx.sequence)
        if not is_deferring():
            inputs.start()
        grad_x, reduce = None, None
        if ctx.needs_input_grad[0]:
            total = grads[0] @ weights[0]
            for grad, weight in zip(grads[1:], weights[1:], strict=True):
                total += grad @ weight
            start = start_scatter_sum if ctx.sequence else start_sum
            grad_x, reduce = start(total, group, phase="backward")
        grad_weights, grad_biases = [], []
        for grad, weight, bias in zip(grads, weights, ctx.biases, strict=True):
            grad_weights.append(later(weight, partial(inputs.weight_gradient, grad), x, grad))
            rows = grad.flatten(0, -2)
            grad_biases.append(None if bias is None else later(bias, partial(torch.sum, rows, dim=0), rows))
        if reduce is not None:
            reduce.wait()
        return grad_x, None, None, *grad_weights, *grad_biases


class _Inputs:
    """What the products of a region have read, for the gradients of their weights: gathered at most once."""

    def __init__(self, x: torch.Tensor, group: Group, *, sequence: bool) -> None:
        self._x, self._group = x, group
        self._gathered: tuple[torch.Tensor, Pending | None] | None = None if sequence else (x, None)

    def start(self) -> None:
        """Begin to gather the slices of the sequence, if that has not been done."""
        if self._gathered is None:
            self._gathered = start_gather_sequence(self._x, self._group, phase="backward")

    def weight_gradient(self, grad: torch.Tensor) -> torch.Tensor:
        """[out/t, in], from the gradient ``[B, S, out/t]`` of the product."""
        self.start()
        assert self._gathered is not None
        whole, pending = self._gathered
        if pending is not None:
            pending.wait()
        return grad.flatten(0, -2).t() @ whole.flatten(0, -2)


class Columns:
    """Column-cut layers of one input. The first that is called computes for all, the others pick up."""

    def __init__(self, group: Group, *, sequence: bool) -> None:
        self.group, self.sequence = group, sequence
        self.layers: list[ColumnLinear] = []
        self._input: torch.Tensor | None = None
        self._outputs: dict[int, torch.Tensor] = {}

    def output(self, layer: "ColumnLinear", x: torch.Tensor) -> torch.Tensor:
        """The layer's product; ``x`` must be one and the same tensor for all layers."""
        if self._input is not x or id(layer) not in self._outputs:
            weights = [each.weight for each in self.layers]
            biases = [each.bias for each in self.layers]
            outputs = _Columns.apply(x, self.group, self.sequence, *weights, *biases)
            self._input, self._outputs = (
                x,
                {id(each): y for each, y in zip(self.layers, outputs, strict=True)},
            )
        output = self._outputs.pop(id(layer))
        if not self._outputs:
            self._input = None
        return output


class ColumnLinear(nn.Module):
    """``[.., in] -> [.., out/t]``: this rank's columns (rows of torch's weight ``[out, in]``) of a linear
    layer."""

    def __init__(
        self, linear: nn.Linear, columns: Columns, *, sections: Sequence[int] = (), repeats: int = 1
    ) -> None:
        super().__init__()
        group, bias = columns.group, linear.bias
        how: dict[str, Any] = {"dim": 0, "sections": sections, "repeats": repeats}
        self.weight = cut_parameter(linear.weight, group, **how)
        self.bias = None if bias is None else cut_parameter(bias, group, **how)
        self.columns = columns
        columns.layers.append(self)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.columns.output(self, x)


class RowLinear(nn.Module):
    """``[.., in/t] -> [.., out]``: the end of a region. The bias is added once, after the sum."""

    def __init__(self, linear: nn.Linear, group: Group, *, sequence: bool) -> None:
        super().__init__()
        self.weight = cut_parameter(linear.weight, group, dim=1)
        self.bias = linear.bias
        self.group, self.end = group, scatter_sequence if sequence else reduce_from
        self.product = F.linear  # replaced where the backward pass is split

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.end(self.product(x, self.weight), self.group)
        return y if self.bias is None else y + self.bias


class VocabEmbedding(nn.Module):
    """Tokens ``[B, S]`` -> ``[B, S, h]``: every rank looks up the tokens of its rows, the others are zero."""

    def __init__(self, weight: nn.Parameter, group: Group, *, vocab: int, sequence: bool) -> None:
        super().__init__()
        self.weight = weight
        self.group, self.end = group, scatter_sequence if sequence else reduce_from
        self.first, self.last = shard_range(vocab, group.size, group.rank)
        self.look_up = F.embedding  # replaced where the backward pass is split

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        mine = (tokens >= self.first) & (tokens < self.last)
        rows = self.look_up((tokens - self.first) * mine, self.weight)
        return self.end(rows * mine.unsqueeze(-1), self.group)


class VocabLinear(nn.Module):
    """``[B, S, h] -> [B, S, V/t]``: this rank's logits; the weight may be that of a
    :class:`VocabEmbedding`."""

    def __init__(self, weight: nn.Parameter, group: Group, *, sequence: bool) -> None:
        super().__init__()
        self.weight = weight
        self.output = vocab_output(group, sequence=sequence)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.output(x, self.weight)


def vocab_output(group: Group, *, sequence: bool) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """A function of (x, weight) like ``F.linear``, for a weight whose rows, the vocabulary, are cut."""
    return lambda x, weight: _Columns.apply(x, group, sequence, weight, None)[0]


def cut_parameter(
    param: torch.Tensor, group: Group, *, dim: int, sections: Sequence[int] = (), repeats: int = 1
) -> nn.Parameter:
    """This rank's equal part along ``dim``, of each of the ``sections`` if the parameter is made of several.

    ``repeats`` neighbours have the same part. Raises ValueError where a size is no multiple of the parts.
    """
    parts, num_parts = [], group.size // repeats
    for section in param.detach().split(list(sections) or param.shape[dim], dim=dim):
        if section.shape[dim] % num_parts:
            shape = tuple(section.shape)
            raise ValueError(f"a parameter of shape {shape}: dim {dim} must be a multiple of tp={num_parts}")
        parts.append(section.chunk(num_parts, dim=dim)[group.rank // repeats])
    return nn.Parameter(torch.cat(parts, dim=dim), requires_grad=param.requires_grad)


def cut_vocabulary(weight: torch.Tensor, group: Group) -> nn.Parameter:
    """This rank's rows; the last ranks' may be padding of zeros, which no token and no loss ever reaches."""
    first, last = shard_range(weight.shape[0], group.size, group.rank)
    rows = weight.detach()[first:last]
    padding = last - first - rows.shape[0]
    return nn.Parameter(F.pad(rows, (0, 0, 0, padding)).clone(), requires_grad=weight.requires_grad)
