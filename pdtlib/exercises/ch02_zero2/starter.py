import torch
import torch.distributed as dist


class Zero2Adam:
    def __init__(self, params, lr, betas, eps):
        self.params, self.lr, self.betas, self.eps = list(params), lr, betas, eps
        self.grads = {}
        self.steps = 0

    @torch.no_grad()
    def reduce(self, index, grad):
        # This reduces early, but keeps every gradient whole. Keep this rank's piece.
        dist.all_reduce(grad)
        self.grads[index] = grad / dist.get_world_size()

    @torch.no_grad()
    def step(self):
        raise NotImplementedError
