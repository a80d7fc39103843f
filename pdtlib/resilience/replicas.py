"""A check that finds silent damage: ranks that must have the same gradient compare checksums of its bits.

After the reduction every data-parallel replica holds the same mean gradient. A bit that flips afterwards, in
one rank's memory or arithmetic, makes its weights drift from the others' without any error. Here such a step
is refused before the optimizer has used it. Where ZeRO has dealt a gradient out, only one rank has it, and
there is nothing to compare with.
"""

from __future__ import annotations

from collections import Counter

import torch

from pdtlib.engine.mesh import Mesh
from pdtlib.engine.optimizer import ShardedAdamW
from pdtlib.engine.parallelize import Parallelized
from pdtlib.engine.training.companion import Companion
from pdtlib.engine.training.failures import RunFailed
from pdtlib.engine.training.pieces import Place
from pdtlib.engine.transfers import start_all_gather


class ReplicasDiffer(RunFailed):
    """Ranks that should hold the same numbers do not."""


def checksum(tensor: torch.Tensor) -> int:
    """A sum over the bits of a flat tensor, as 16-bit words weighted by their place; any one flip changes it.

    >>> x = torch.arange(8.0)
    >>> y = x.clone(); y.view(torch.int32)[3] ^= 1 << 17
    >>> checksum(x) == checksum(x.clone()), checksum(x) == checksum(y)
    (True, False)
    """
    words = tensor.detach().contiguous().view(torch.int16).to(torch.int64)
    weights = torch.arange(1, words.numel() + 1, device=words.device) % 65_521 + 1
    return int((words * weights).sum())


def odd_ones(sums: list[int]) -> list[int]:
    """Positions that differ from the majority; all of them where there is none.

    >>> odd_ones([5, 5, 7]), odd_ones([5, 7]), odd_ones([5, 5])
    ([2], [0, 1], [])
    """
    (most, count), *_ = Counter(sums).most_common(1)
    if count * 2 <= len(sums) and count != len(sums):
        return list(range(len(sums)))
    return [position for position, found in enumerate(sums) if found != most]


class ReplicaCheck(Companion):
    """Compares the gradients of every step among the replicas; raises :class:`ReplicasDiffer`."""

    def join(self, mesh: Mesh, *, on_disk: int) -> int:
        self._group = mesh.data
        return on_disk

    def begin(self, parts: Parallelized, optimizer: ShardedAdamW, *, place: Place, first: int) -> None:
        self._flats = [
            flat for flat in parts.replica.trainable if flat.parts == 1 and flat.group is self._group
        ]

    def before_update(self, step: int) -> None:
        if self._group.size == 1 or not self._flats:
            return
        grads = [flat.grad_shard for flat in self._flats if flat.grad_shard is not None]
        mine = torch.tensor([sum(map(checksum, grads)) % 2**62], dtype=torch.int64)
        device = grads[0].device
        everyone = torch.empty(self._group.size, dtype=torch.int64, device=device)
        start_all_gather(everyone, mine.to(device), self._group, phase="check").wait()
        odd = [self._group.ranks[position] for position in odd_ones(everyone.tolist())]
        if odd:
            ranks = " or ".join(map(str, odd))
            raise ReplicasDiffer(f"the replicas' gradients differ after the reduction; rank {ranks} is wrong")
