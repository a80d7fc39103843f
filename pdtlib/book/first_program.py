"""The first program on several processes: what each rank has after each of four collectives.

torchrun --standalone --nproc-per-node 2 -m pdtlib.book.first_program
"""

from __future__ import annotations

import torch
import torch.distributed as dist


def main() -> None:
    """Give each rank a vector of its own, call the collectives, let rank 0 print what all have."""
    dist.init_process_group("gloo")  # on GPUs: "nccl"
    rank, world_size = dist.get_rank(), dist.get_world_size()
    mine = (rank + 1) * torch.tensor([10**piece for piece in range(world_size)])

    broadcast = mine.clone()
    dist.broadcast(broadcast, src=0)

    total = mine.clone()
    dist.all_reduce(total)

    piece = torch.empty_like(mine[:1])
    dist.reduce_scatter(piece, list(mine.split(1)))

    pieces = [torch.empty_like(piece) for _ in range(world_size)]
    dist.all_gather(pieces, piece)

    results = [mine, broadcast, total, piece, torch.cat(pieces)]
    everyone: list[list[torch.Tensor]] = [[] for _ in range(world_size)]
    dist.all_gather_object(everyone, results)
    if rank == 0:
        names = ("at first", "broadcast", "all-reduce", "reduce-scatter", "all-gather")
        for name, tensors in zip(names, zip(*everyone, strict=True), strict=True):
            columns = (f"rank {r}: {tensor.tolist()!s:12}" for r, tensor in enumerate(tensors))
            print(f"{name:16}{''.join(columns)}".rstrip())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
