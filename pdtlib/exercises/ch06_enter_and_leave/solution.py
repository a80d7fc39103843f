import torch
import torch.distributed as dist


def gathered(x):
    """Every rank's x, one after the other."""
    whole = x.new_empty(dist.get_world_size() * x.shape[0], *x.shape[1:])
    dist.all_gather_into_tensor(whole, x.contiguous())
    return whole


def scattered(y):
    """This rank's run of the sum of every rank's y."""
    own = y.new_empty(y.shape[0] // dist.get_world_size(), *y.shape[1:])
    dist.reduce_scatter_tensor(own, y.contiguous())
    return own


class Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return gathered(x)

    @staticmethod
    def backward(ctx, grad):
        return scattered(grad)


class Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx, y):
        return scattered(y)

    @staticmethod
    def backward(ctx, grad):
        return gathered(grad)


def enter(x):
    """All positions, from every rank's own."""
    return Enter.apply(x)


def leave(y):
    """This rank's positions of the sum over the ranks."""
    return Leave.apply(y)
