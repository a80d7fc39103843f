# says: hand out what the ranks do not keep
import torch
import torch.distributed as dist


def gather(shard, shape):
    padded = shard.new_empty(shard.numel() * dist.get_world_size())
    dist.all_gather_into_tensor(padded, shard)
    return padded[: shape[0] * shape[1]].view(shape)


class Zero3Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, shard, shape):
        ctx.save_for_backward(x, shard)
        ctx.shape = shape
        return x @ gather(shard, shape).T

    @staticmethod
    def backward(ctx, grad):
        x, shard = ctx.saved_tensors
        grad_x = grad @ gather(shard, ctx.shape)
        padded = shard.new_zeros(shard.numel() * dist.get_world_size())
        padded[: ctx.shape[0] * ctx.shape[1]] = (grad.T @ x).flatten()
        grad_shard = torch.empty_like(shard)
        dist.all_reduce(padded)
        n, r = shard.numel(), dist.get_rank()
        grad_shard.copy_(padded[r * n : (r + 1) * n])
        return grad_x, grad_shard / dist.get_world_size(), None


def zero3_linear(x, shard, shape):
    return Zero3Linear.apply(x, shard, shape)
