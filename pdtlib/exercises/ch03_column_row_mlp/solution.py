import torch
import torch.distributed as dist


def summed(tensor):
    """The sum over the ranks, in a new tensor."""
    total = tensor.clone()
    dist.all_reduce(total)
    return total


class CopyTo(torch.autograd.Function):
    """f: the beginning of a region."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return summed(grad)


class ReduceFrom(torch.autograd.Function):
    """g: the end of a region."""

    @staticmethod
    def forward(ctx, x):
        return summed(x)

    @staticmethod
    def backward(ctx, grad):
        return grad


def parallel_mlp(x, a, b):
    """tanh(x A) B, where this rank has columns of A and rows of B."""
    return ReduceFrom.apply(torch.tanh(CopyTo.apply(x) @ a) @ b)
