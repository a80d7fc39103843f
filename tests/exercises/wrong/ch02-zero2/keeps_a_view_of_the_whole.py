# says: storage of its own
import torch
import torch.distributed as dist


class Zero2Adam:

    def __init__(self, params, lr, betas, eps):
        self.params, self.lr, self.betas, self.eps = list(params), lr, betas, eps
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        pieces = [-(-param.numel() // self.world_size) for param in self.params]
        self.grads = [torch.zeros(size, dtype=self.params[0].dtype) for size in pieces]
        self.exp_avg = [torch.zeros_like(grad) for grad in self.grads]
        self.exp_avg_sq = [torch.zeros_like(grad) for grad in self.grads]
        self.steps = 0

    def _padded(self, index, tensor):
        padded = tensor.new_zeros(self.grads[index].numel() * self.world_size)
        padded[: tensor.numel()] = tensor.flatten()
        return padded

    @torch.no_grad()
    def reduce(self, index, grad):
        padded = self._padded(index, grad)
        n = self.grads[index].numel()
        piece = padded[self.rank * n : (self.rank + 1) * n]
        dist.all_reduce(padded)
        piece /= self.world_size
        piece += self.grads[index]
        self.grads[index] = piece

    @torch.no_grad()
    def step(self):
        self.steps += 1
        beta1, beta2 = self.betas
        for index, param in enumerate(self.params):
            grad, m, v = self.grads[index], self.exp_avg[index], self.exp_avg_sq[index]
            m.lerp_(grad, 1 - beta1)
            v.lerp_(grad * grad, 1 - beta2)
            grad.zero_()
            mean, square = m / (1 - beta1**self.steps), v / (1 - beta2**self.steps)

            padded = self._padded(index, param)
            piece = padded[self.rank * m.numel() : (self.rank + 1) * m.numel()].clone()
            piece -= self.lr * mean / (square.sqrt() + self.eps)
            dist.all_gather_into_tensor(padded, piece)
            param.copy_(padded[: param.numel()].view_as(param))
