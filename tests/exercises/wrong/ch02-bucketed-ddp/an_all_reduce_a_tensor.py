# says: Collect gradients in buckets
import torch.distributed as dist


class BucketedDDP:
    def __init__(self, params, bucket_bytes):
        self.params = [param for param in params if param.requires_grad]
        self.bucket_bytes = bucket_bytes

    def finish(self):
        for param in self.params:
            dist.all_reduce(param.grad)
            param.grad /= dist.get_world_size()
