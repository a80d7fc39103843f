"""The norm of the whole gradient, when each rank holds a part of it."""

from collections.abc import Sequence

import torch

from pdtlib.engine.data_parallel.cut import ModelCut
from pdtlib.engine.data_parallel.flat import Flat
from pdtlib.engine.mesh import Group
from pdtlib.engine.transfers import start_all_reduce


def grad_norm(flats: Sequence[Flat], group: Group, *, cut: ModelCut | None = None) -> float:
    """The 2-norm over all parameters, each element counted once, the same on every rank.

    Where gradients are sharded, every rank squares its own shard and one number a rank is summed over the
    group; where they are whole, every rank knows them all and nothing is sent, but for experts, which every
    rank has others of. Of a model that is ``cut`` each rank of that group adds its part, and the first one
    alone what all of them have; then each stage of a pipeline adds its layers, without what it holds as a
    copy. Padding is zero and adds nothing. Not finite when some gradient is not.
    """
    if not flats:
        return 0.0
    dealt_out = None if cut is None else cut.experts
    experts = [flat for flat in flats if cut is not None and cut.is_expert(flat.slots[0].param)]
    total = _total([flat for flat in flats if flat not in experts], cut, like=flats[0])
    of_experts = _total(experts, cut, like=flats[0])
    sharded = any(flat.parts > 1 for flat in flats)
    if dealt_out is not None and experts and not sharded:
        start_all_reduce(of_experts, dealt_out.shared_by, phase="grad_norm").wait()
    total += of_experts
    if sharded:
        start_all_reduce(total, group, phase="grad_norm").wait()
    if cut is not None:
        start_all_reduce(total, cut.group, phase="grad_norm").wait()
        if cut.stages is not None:
            start_all_reduce(total, cut.stages, phase="grad_norm").wait()
    return float(total.sqrt())


def _total(flats: Sequence[Flat], cut: ModelCut | None, *, like: Flat) -> torch.Tensor:
    """The sum of the squares that this rank counts, in fp64 on the device of ``like``."""
    squares = [_square_sum(part) for flat in flats for part in _counted(flat, cut)]
    return torch.stack(squares).sum() if squares else like.shard.new_zeros((), dtype=torch.float64)


def _counted(flat: Flat, cut: ModelCut | None) -> list[torch.Tensor]:
    """The parts of this rank's gradients that it counts: all, but for what another rank counts."""
    assert flat.grad_shard is not None, "call finish_gradients() first"
    if cut is None or all(cut.counts(slot.param) for slot in flat.slots):
        return [flat.grad_shard]
    spans = [flat.span(slot) for slot in flat.slots if cut.counts(slot.param)]
    return [flat.grad_shard[first:last] for first, last in spans if first < last]


def _square_sum(grad: torch.Tensor) -> torch.Tensor:
    dtype = torch.float32 if grad.element_size() < 4 else grad.dtype
    return torch.linalg.vector_norm(grad, dtype=dtype).double().square()
