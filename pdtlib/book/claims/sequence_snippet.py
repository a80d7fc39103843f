"""The operations of the article's attention over a cut sequence, run on simulated ranks and looked at.

What an all-gather does to the ranks' tensors, a concatenation does here, and what a reduce-scatter does, a
sum and a slice. Lab 06 runs the real ones.
"""

from __future__ import annotations

from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from pdtlib.book.claims.tensor_snippet import drawn, off

RANKS, SEQ, HEADS, SIZE = 4, 16, 8, 4
HIDDEN = HEADS * SIZE


def _matrices() -> list[Tensor]:
    return [drawn(HIDDEN, HIDDEN, seed=seed) / HIDDEN**0.5 for seed in range(1, 5)]


def attend(queries: Tensor, keys: Tensor, *, heads: slice = slice(0, HEADS), first: int = 0) -> Tensor:
    """Causal attention of some heads through their rows of W_O.

    ``queries`` and ``keys`` are the activations ``[S', h]`` and ``[S, h]`` from which q, and k and v, are
    made; the queries' positions begin at ``first``.
    """
    columns = slice(heads.start * SIZE, heads.stop * SIZE)
    w_q, w_k, w_v, w_o = _matrices()
    q, k, v = (
        (x @ matrix[:, columns]).unflatten(-1, (-1, SIZE)).transpose(0, 1)
        for x, matrix in ((queries, w_q), (keys, w_k), (keys, w_v))
    )
    seen = torch.arange(first, first + len(queries)).unsqueeze(1) >= torch.arange(len(keys))
    core = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
    return core.transpose(0, 1).flatten(1) @ w_o[columns]


def _reduce_scatter(parts: list[Tensor]) -> list[Tensor]:
    return list(torch.stack(parts).sum(0).chunk(RANKS))


@lru_cache(maxsize=1)
def printed_ratios() -> tuple[float, float]:
    """Output and input's gradient of the article's attention, over the right ones."""
    whole, upstream = drawn(SEQ, HIDDEN, seed=5).requires_grad_(), drawn(SEQ, HIDDEN, seed=6)
    right = attend(whole, whole)
    (right_grad,) = torch.autograd.grad((right * upstream).sum(), whole)
    copies = [attend(whole, whole) for _ in range(RANKS)]  # every rank has gathered everything
    got = torch.cat(_reduce_scatter(copies))
    (got_grad,) = torch.autograd.grad((got * upstream).sum(), whole)
    pairs = ((got.detach(), right.detach()), (got_grad, right_grad))
    output, gradient = (float((a * b).sum() / (b * b).sum()) for a, b in pairs)
    return output, gradient


@lru_cache(maxsize=1)
def errors() -> dict[str, float]:
    """Error of the output: ``slice`` of the replicated attention, ``heads`` dealt out and reduce-scattered,
    ``local`` queries with gathered keys and values."""
    whole = drawn(SEQ, HIDDEN, seed=5)
    right = attend(whole, whole)
    each, run = HEADS // RANKS, SEQ // RANKS
    slices = [attend(whole, whole).chunk(RANKS)[rank] for rank in range(RANKS)]
    parts = [attend(whole, whole, heads=slice(r * each, (r + 1) * each)) for r in range(RANKS)]
    local = [attend(x, whole, first=rank * run) for rank, x in enumerate(whole.chunk(RANKS))]
    return {
        "slice": off(torch.cat(slices), right),
        "heads": off(torch.cat(_reduce_scatter(parts)), right),
        "local": off(torch.cat(local), right),
    }


def share_kept_of_gathered() -> float:
    """Gather and multiply: which share of the gathered activations does autograd keep on each rank?"""
    slices = [part.clone().requires_grad_() for part in drawn(SEQ, HIDDEN, seed=5).chunk(RANKS)]
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    gathered = torch.cat(slices)
    weight = _matrices()[0].requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        gathered @ weight
    return kept.get(gathered.untyped_storage().data_ptr(), 0) / gathered.untyped_storage().nbytes()


@lru_cache(maxsize=1)
def work_shares() -> dict[str, float]:
    """FLOPs of a rank over those of one process: all ``gathered`` on every rank, or ``heads`` dealt out."""
    whole = drawn(SEQ, HIDDEN, seed=5)
    counted = {}
    for name, heads in (("gathered", HEADS), ("heads", HEADS // RANKS)):
        with FlopCounterMode(display=False) as counter:
            attend(whole, whole, heads=slice(0, heads))
        counted[name] = counter.get_total_flops()
    with FlopCounterMode(display=False) as counter:
        attend(whole, whole)
    return {name: flops / counter.get_total_flops() for name, flops in counted.items()}
