"""The article's attention over a cut sequence, as it is printed, and two right ones.

It gathers the sequence, attends, and returns to slices by a reduce-scatter. That is right for parts of a sum,
and wrong for whole results that all ranks have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from pdtlib.book.measured import Row, random, relative_difference
from pdtlib.engine.mesh import Group
from pdtlib.engine.models.attention import softmax_attention
from pdtlib.engine.tensor_parallel.regions import gather_sequence, own_positions, scatter_sequence

FP64 = 1e-11  # tolerance of a relative difference


class TinyAttention:
    """Causal attention of some heads. x: [B, S, h] -> [B, S, h]; ``heads`` chooses whose part to compute."""

    def __init__(self, hidden: int, heads: int, device: torch.device) -> None:
        self.size = hidden // heads
        self.matrices = [random(hidden, hidden, seed=seed, device=device) / hidden**0.5 for seed in range(4)]

    def __call__(self, x: Tensor, heads: slice) -> Tensor:
        columns = slice(heads.start * self.size, heads.stop * self.size)
        q, k, v = (
            (x @ matrix[:, columns]).unflatten(-1, (-1, self.size)).transpose(1, 2)
            for matrix in self.matrices[:3]
        )
        core = softmax_attention(q, k, v, dropout=0.0).transpose(1, 2).flatten(2)
        return core @ self.matrices[3][columns]


def article_rows(group: Group, hidden: int, heads: int, seq: int, *, device: torch.device) -> Iterator[Row]:
    """Gather, attend, return to slices: as printed, with a slice at the end, and with heads dealt out."""
    part = "the article's attention, in float64"
    attention = TinyAttention(hidden, heads, device)
    everything = slice(0, heads)
    mine = slice(group.rank * heads // group.size, (group.rank + 1) * heads // group.size)
    whole = random(1, seq, hidden, seed=5, device=device)
    upstream = random(1, seq, hidden, seed=6, device=device)
    alone = whole.clone().requires_grad_()
    expected = attention(alone, everything)
    (expected * upstream).sum().backward()
    assert alone.grad is not None

    def run(way: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """This rank's output and its gradient of the input, over the right ones."""
        x = own_positions(whole, group, dim=1).clone().requires_grad_()
        y = way(gather_sequence(x, group))
        (y * own_positions(upstream, group, dim=1)).sum().backward()
        assert x.grad is not None
        return y.detach(), x.grad

    right = [own_positions(tensor, group, dim=1) for tensor in (expected.detach(), alone.grad)]
    printed = run(lambda x: scatter_sequence(attention(x, everything), group))
    for name, got, wanted in zip(("output", "the input's gradient"), printed, right, strict=True):
        ratio = float((got * wanted).sum() / (wanted * wanted).sum())
        yield Row(part, f"{name} over the right one, as printed", group.size, round(ratio, 9))
    for name, way in (
        ("a slice at the end", lambda x: own_positions(attention(x, everything), group, dim=1)),
        ("heads dealt out", lambda x: scatter_sequence(attention(x, mine), group)),
    ):
        worst = max(map(relative_difference, run(way), right))
        yield Row(part, f"difference, {name}", 0, worst, FP64)
