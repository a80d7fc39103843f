# says: torch.float32
import torch
import torch.distributed as dist


def ring_all_reduce(tensor):
    rank, world_size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    flat = tensor.flatten().float()
    chunks = flat.tensor_split(world_size)  # views: lengths differ by at most one

    def exchange(ours, received):
        request = dist.isend(ours, right)
        dist.recv(received, left)
        request.wait()

    for step in range(world_size - 1):
        theirs = chunks[(rank - step - 1) % world_size]
        received = torch.empty_like(theirs)
        exchange(chunks[(rank - step) % world_size], received)
        theirs += received

    # Rank r now holds the finished chunk r + 1.
    for step in range(world_size - 1):
        exchange(chunks[(rank + 1 - step) % world_size], chunks[(rank - step) % world_size])

    return flat.view_as(tensor)
