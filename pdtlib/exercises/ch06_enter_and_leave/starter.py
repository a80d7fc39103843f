import torch
import torch.distributed as dist


def enter(x):
    """All positions, from every rank's own."""
    slices = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(slices, x.detach().contiguous())
    slices[dist.get_rank()] = x  # right in forward; but whose gradient arrives here?
    return torch.cat(slices)


def leave(y):
    """This rank's positions of the sum over the ranks."""
    total = y.detach().clone()
    dist.all_reduce(total)
    total = y + (total - y.detach())
    return total.chunk(dist.get_world_size())[dist.get_rank()]
