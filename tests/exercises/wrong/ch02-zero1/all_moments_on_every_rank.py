# says: plain data parallelism
import torch
import torch.distributed as dist


class Zero1Adam:
    def __init__(self, params, lr, betas, eps):
        self.params, self.lr, self.betas, self.eps = list(params), lr, betas, eps
        self.exp_avg = [torch.zeros_like(param) for param in self.params]
        self.exp_avg_sq = [torch.zeros_like(param) for param in self.params]
        self.steps = 0

    @torch.no_grad()
    def step(self):
        self.steps += 1
        beta1, beta2 = self.betas
        for param, m, v in zip(self.params, self.exp_avg, self.exp_avg_sq, strict=True):
            grad = param.grad.clone()
            dist.all_reduce(grad)
            grad /= dist.get_world_size()
            m.lerp_(grad, 1 - beta1)
            v.lerp_(grad * grad, 1 - beta2)
            m_hat, v_hat = m / (1 - beta1**self.steps), v / (1 - beta2**self.steps)
            param -= self.lr * m_hat / (v_hat.sqrt() + self.eps)
