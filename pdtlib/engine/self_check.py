"""Ask the backend for answers that are known, before a run depends on them.

Backends have been seen to answer a mean with a sum, or a strided tensor with wrong numbers, without an error.
"""

import torch

from pdtlib.engine.collectives import all_gather, all_reduce, all_to_all, broadcast, reduce_scatter
from pdtlib.engine.mesh import Group


def check_backend(group: Group, *, device: torch.device) -> None:
    """Run each collective once on known numbers. Raises RuntimeError when the backend answers wrongly.

    Torch's ``fake`` backend, which sends nothing, is not asked.
    """
    if group.backend == "fake":
        return
    size, rank = group.size, group.rank
    quiet = Group(group.axis, group.process_group, group.ranks, rank)
    mine = torch.full((4 * size,), rank + 1.0, device=device)
    total = size * (size + 1) / 2
    ranks = torch.arange(1.0, size + 1, device=device).repeat_interleave(4)
    found = {
        "all_reduce": (all_reduce(mine, quiet), torch.full_like(mine, total)),
        "reduce_scatter": (reduce_scatter(mine, quiet), torch.full_like(mine[:4], total)),
        "all_gather": (all_gather(mine[:4], quiet), ranks),
        "all_to_all": (all_to_all(mine, quiet), ranks),
        "broadcast": (broadcast(mine, quiet), torch.ones_like(mine)),
    }
    wrong = [name for name, (got, expected) in found.items() if not torch.equal(got, expected)]
    if wrong:
        raise RuntimeError(f"backend {group.backend} computes {', '.join(wrong)} wrongly on {size} ranks")
