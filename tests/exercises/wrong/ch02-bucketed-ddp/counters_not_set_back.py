# says: set back for the next backward
import torch
import torch.distributed as dist


class BucketedDDP:

    def __init__(self, params, bucket_bytes):
        self.buckets = [[]]
        filled = 0
        for param in reversed([param for param in params if param.requires_grad]):
            size = param.numel() * param.element_size()
            if self.buckets[-1] and filled + size > bucket_bytes:
                self.buckets.append([])
                filled = 0
            self.buckets[-1].append(param)
            filled += size
            param.register_post_accumulate_grad_hook(self._ready)
        self.bucket_of = {id(param): index for index, bucket in enumerate(self.buckets) for param in bucket}
        self._reset()

    def _reset(self):
        self.missing = [len(bucket) for bucket in self.buckets]
        self.started = []

    def _ready(self, param):
        self.missing[self.bucket_of[id(param)]] -= 1
        while len(self.started) < len(self.buckets) and self.missing[len(self.started)] == 0:
            self._start_next()

    def _start_next(self):
        bucket = self.buckets[len(self.started)]
        grads = [torch.zeros_like(param) if param.grad is None else param.grad for param in bucket]
        flat = torch.cat([grad.flatten() for grad in grads])
        self.started.append((flat, dist.all_reduce(flat, async_op=True)))

    def finish(self):
        while len(self.started) < len(self.buckets):
            self._start_next()
        for bucket, (flat, handle) in zip(self.buckets, self.started, strict=True):
            handle.wait()
            flat /= dist.get_world_size()
            pieces = flat.split([param.numel() for param in bucket])
            for param, piece in zip(bucket, pieces, strict=True):
                param.grad = piece.view_as(param)
