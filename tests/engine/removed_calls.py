"""What a mutant calls in place of a message: nothing leaves the rank, which goes on with what it has.

``make mutants`` puts this file into its copy of the tree as ``pdtlib/engine/removed.py``. Each function has
the arguments of the one that it stands for.
"""

from typing import Any

import torch

from pdtlib.engine.pending import Pending


class _Done:
    """The handle of a message that was never sent."""

    def wait(self, *_: Any) -> None:
        pass

    def is_completed(self) -> bool:
        return True


def start_all_reduce(buffer: torch.Tensor, group: Any, **_: Any) -> Pending:
    return Pending(group, "removed", [])


start_broadcast = start_all_reduce


def start_reduce_scatter(out: torch.Tensor, buffer: torch.Tensor, group: Any, **_: Any) -> Pending:
    """This rank's own slice, without the others' part."""
    own = buffer.reshape(group.size, -1)[group.rank].clone()
    return Pending(group, "removed", []).then(lambda: out.view(-1).copy_(own))


def start_all_gather(out: torch.Tensor, shard: torch.Tensor, group: Any, **_: Any) -> Pending:
    """The other ranks' slices stay as they were."""
    own = shard.reshape(-1).clone()
    return Pending(group, "removed", []).then(lambda: out.view(group.size, -1)[group.rank].copy_(own))


def start_all_to_all(out: torch.Tensor, buffer: torch.Tensor, group: Any, **_: Any) -> Pending:
    """As many rows as should come are this rank's own, as far as it has any."""
    rows = min(len(out), len(buffer))
    out.zero_()
    out[:rows] = buffer[:rows]
    return Pending(group, "removed", [])


def start_ring_shift(out: torch.Tensor, x: torch.Tensor, group: Any, **_: Any) -> Pending:
    return Pending(group, "removed", []).then(lambda: out.copy_(x))


def start_sum(x: torch.Tensor, group: Any, *, partner: int | None = None, **_: Any) -> Any:
    """Both functions of this name: of a pipeline's copies, and of a tensor-parallel region."""
    pending = Pending(group, "removed", [])
    return pending if partner is not None else (x, pending)


def start_gather_sequence(x: torch.Tensor, group: Any, **_: Any) -> tuple[torch.Tensor, Pending]:
    return gather_sequence(x, group), Pending(group, "removed", [])


def start_scatter_sum(x: torch.Tensor, group: Any, **_: Any) -> tuple[torch.Tensor, Pending]:
    return scatter_sequence(x, group), Pending(group, "removed", [])


def all_reduce(x: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return x


broadcast = all_to_all = copy_to = reduce_from = all_reduce


def reduce_scatter(x: torch.Tensor, group: Any, **_: Any) -> torch.Tensor:
    return x.chunk(group.size)[group.rank]


def all_gather(x: torch.Tensor, group: Any, **_: Any) -> torch.Tensor:
    return torch.cat([x] * group.size)


def gather_sequence(x: torch.Tensor, group: Any) -> torch.Tensor:
    return torch.cat([x] * group.size, dim=1)


def scatter_sequence(x: torch.Tensor, group: Any) -> torch.Tensor:
    return x.chunk(group.size, dim=1)[group.rank]


def take_over(*_: Any, **__: Any) -> None:
    pass


def of_torch(*_: Any, **__: Any) -> _Done:
    """Any message of torch.distributed's own."""
    return _Done()
