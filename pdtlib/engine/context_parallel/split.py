"""Which positions a rank has.

Under causal attention a late position looks at many keys and an early one at few. Ring attention deals the
sequence out in 2c chunks, rank r having chunks r and 2c-1-r (zigzag), so that in each of its steps every rank
has the same work. Ulysses computes whole sequences for some of the heads, so it needs no balance and keeps
chunks in order.
"""

from dataclasses import dataclass
from functools import partial

import torch

from pdtlib.engine.context_parallel.ring import ring_attention
from pdtlib.engine.context_parallel.ulysses import ulysses_attention
from pdtlib.engine.mesh import Group
from pdtlib.engine.models import Transformer
from pdtlib.engine.models.attention import Attention

KINDS = ("ring", "ulysses")


@dataclass(frozen=True)
class ContextSplit:
    """The positions of this rank, in the order in which its activations have them."""

    group: Group
    kind: str

    def positions(self, length: int) -> torch.Tensor:
        """This rank's positions ``[S/c]`` of a sequence of ``length``. Raises ValueError if it does not
        divide."""
        size, rank = self.group.size, self.group.rank
        num_chunks = 2 * size if self.kind == "ring" and size > 1 else size
        if length % num_chunks:
            raise ValueError(
                f"a sequence of {length} positions: {self.kind} on cp={size} needs a multiple of {num_chunks}"
            )
        chunks = torch.arange(length).chunk(num_chunks)
        return torch.cat([chunks[rank], chunks[-1 - rank]]) if num_chunks > size else chunks[rank]

    def take(self, x: torch.Tensor, *, dim: int = 1) -> torch.Tensor:
        """This rank's positions of tokens, targets or activations, along ``dim``."""
        return x.index_select(dim, self.positions(x.shape[dim]).to(x.device))


def context_parallel(model: Transformer, group: Group, *, kind: str = "ring") -> ContextSplit:
    """Let ``model`` work on this rank's positions; give it ``split.take(tokens)`` and compare with taken
    targets.

    Every rank has all parameters and sees other tokens, so gradients are averaged over dp × cp
    (:attr:`pdtlib.engine.mesh.Mesh.data`). Raises ValueError for another kind, for dropout in attention, and
    where Ulysses finds fewer heads than ranks.
    """
    if kind not in KINDS:
        raise ValueError(f"kind={kind!r}: valid are {', '.join(KINDS)}")
    split = ContextSplit(group, kind)
    if group.size == 1:
        return split
    if model.model.dropout > 0:
        raise ValueError(
            f"model.dropout={model.model.dropout}: attention over cp={group.size} has none (valid: 0)"
        )
    attention = ring_attention if kind == "ring" else ulysses_attention
    for module in model.modules():
        if isinstance(module, Attention):
            module.core = partial(attention, group=group)
    vars(model)["positions_of"] = lambda seq: split.positions(seq * group.size)
    return split
