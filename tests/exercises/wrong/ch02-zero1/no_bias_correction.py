# says: bias correction is missing
import torch
import torch.distributed as dist


class Zero1Adam:

    def __init__(self, params, lr, betas, eps):
        self.params, self.lr, self.betas, self.eps = list(params), lr, betas, eps
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.numel = sum(param.numel() for param in self.params)
        self.share = -(-self.numel // self.world_size)
        self.exp_avg = self.params[0].new_zeros(self.share, requires_grad=False)
        self.exp_avg_sq = torch.zeros_like(self.exp_avg)
        self.steps = 0

    def _flat(self, tensors):
        flat = self.exp_avg.new_zeros(self.share * self.world_size)
        flat[: self.numel] = torch.cat([tensor.flatten() for tensor in tensors])
        return flat

    @torch.no_grad()
    def step(self):
        self.steps += 1
        grad = torch.empty_like(self.exp_avg)
        dist.reduce_scatter_tensor(grad, self._flat([param.grad for param in self.params]))
        grad /= self.world_size

        beta1, beta2 = self.betas
        self.exp_avg.lerp_(grad, 1 - beta1)
        self.exp_avg_sq.lerp_(grad * grad, 1 - beta2)
        mean = self.exp_avg
        square = self.exp_avg_sq

        flat = self._flat(self.params)
        piece = flat[self.rank * self.share : (self.rank + 1) * self.share].clone()
        piece -= self.lr * mean / (square.sqrt() + self.eps)
        dist.all_gather_into_tensor(flat, piece)
        sizes = [param.numel() for param in self.params]
        for param, values in zip(self.params, flat[: self.numel].split(sizes), strict=True):
            param.copy_(values.view_as(param))
