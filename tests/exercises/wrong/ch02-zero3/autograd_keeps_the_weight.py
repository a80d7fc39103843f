# says: alive after forward
import torch
import torch.distributed as dist


def zero3_linear(x, shard, shape):
    pieces = [torch.empty_like(shard) for _ in range(dist.get_world_size())]
    dist.all_gather(pieces, shard.detach())
    weight = torch.cat(pieces)[: shape[0] * shape[1]].view(shape)
    return x @ weight.T
