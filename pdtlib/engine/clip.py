"""The norm of the whole gradient, when each rank holds a part of it."""

from collections.abc import Sequence

import torch

from pdtlib.engine.collectives import start_all_reduce
from pdtlib.engine.data_parallel.flat import Flat
from pdtlib.engine.mesh import Group


def grad_norm(flats: Sequence[Flat], group: Group) -> float:
    """The 2-norm over all parameters, each element counted once, the same on every rank.

    Where gradients are sharded, every rank squares its own shard and one number a rank is summed over the
    group; where they are whole, every rank knows them all and nothing is sent. Padding is zero and adds
    nothing. Not finite when some gradient is not.
    """
    squares = [_square_sum(flat.grad_shard) for flat in flats if flat.grad_shard is not None]
    if not squares:
        return 0.0
    total = torch.stack(squares).sum()
    if any(flat.parts > 1 for flat in flats):
        start_all_reduce(total, group, phase="grad_norm").wait()
    return float(total.sqrt())


def _square_sum(grad: torch.Tensor) -> torch.Tensor:
    dtype = torch.float32 if grad.element_size() < 4 else grad.dtype
    return torch.linalg.vector_norm(grad, dtype=dtype).double().square()
