"""Ulysses (Jacobs 2023, arXiv:2309.14509): exchange heads for positions, attend, exchange back.

Four all-to-alls a layer, of queries, keys, values and the result, each sending (c-1)/c of a rank's
activations.
"""

import torch

from pdtlib.engine.collectives import all_to_all
from pdtlib.engine.mesh import Group
from pdtlib.engine.models.attention import flash_attention
from pdtlib.engine.tensor_parallel.regions import forward_phase


def heads_for_positions(x: torch.Tensor, group: Group) -> torch.Tensor:
    """``[B, H, S/c, D]`` -> ``[B, H/c, S, D]``: this rank's heads at all positions."""
    if x.shape[1] % group.size:
        raise ValueError(f"{x.shape[1]} heads: Ulysses on cp={group.size} needs a multiple of {group.size}")
    parts = x.unflatten(1, (group.size, -1)).movedim(1, 0)  # [c, B, H/c, S/c, D], by receiver
    return all_to_all(parts, group, phase=forward_phase()).movedim(0, 2).flatten(2, 3)


def positions_for_heads(x: torch.Tensor, group: Group) -> torch.Tensor:
    """``[B, H/c, S, D]`` -> ``[B, H, S/c, D]``, the way back."""
    parts = x.unflatten(2, (group.size, -1)).movedim(2, 0)  # [c, B, H/c, S/c, D], by receiver
    return all_to_all(parts, group, phase=forward_phase()).movedim(0, 1).flatten(1, 2)


def ulysses_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, dropout: float, group: Group
) -> torch.Tensor:
    """Causal attention over all ranks' positions, which lie in the order of ranks.

    q: [B, H, S/c, D]; k, v: [B, G, S/c, D]; H and G must be multiples of the group. Raises ValueError
    otherwise, and for dropout.
    """
    if dropout > 0:
        raise ValueError(f"dropout={dropout}: Ulysses has none here (valid: 0)")
    q, k, v = (heads_for_positions(x, group) for x in (q, k, v))
    return positions_for_heads(flash_attention(q, k, v, dropout=0.0), group)
