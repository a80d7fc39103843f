"""Which rank has which experts, and which ranks have the same."""

from functools import partial

import torch
from torch import Tensor, nn

from pdtlib.engine.data_parallel.experts import Experts
from pdtlib.engine.expert_parallel.exchange import Exchange
from pdtlib.engine.mesh import Group, Mesh
from pdtlib.engine.models.moe import MoE
from pdtlib.engine.transfers import start_all_reduce


def expert_parallel(module: nn.Module, mesh: Mesh) -> None:
    """Leave this rank its experts of every :class:`pdtlib.engine.models.MoE` in ``module``.

    Rank r of ``mesh.group("ep")`` keeps experts ``r E/ep`` to ``(r+1) E/ep - 1`` under their names. Call it
    before tensor parallelism cuts what is left. Raises ValueError for experts that do not divide by ep.
    """
    for block in module.modules():
        if isinstance(block, MoE):
            _keep_own(block, mesh.group("ep"))
            if block.balance is not None and mesh.group("cp").size > 1:
                block.balance.sum_counts = partial(_sum, group=mesh.group("cp"))


def experts_of(module: nn.Module, mesh: Mesh) -> Experts | None:
    """What data parallelism must know of the experts that this rank has now; None without any."""
    blocks = [block for block in module.modules() if isinstance(block, MoE)]
    params = frozenset(id(param) for block in blocks for param in block.experts.parameters())
    return Experts(mesh.expert_data, params, shared_by=mesh.group("ep")) if params else None


def _keep_own(block: MoE, group: Group) -> None:
    if block.num_experts % group.size:
        raise ValueError(f"{block.num_experts} experts are not shared out evenly over ep={group.size}")
    local = block.num_experts // group.size
    for j in range(block.num_experts):
        if j // local != group.rank:
            del block.experts[str(j)]
    if group.size > 1:
        block.exchange = Exchange(group)


def _sum(counts: Tensor, *, group: Group) -> Tensor:
    total = counts.clone(memory_format=torch.contiguous_format)
    start_all_reduce(total, group, phase="routing").wait()
    return total
