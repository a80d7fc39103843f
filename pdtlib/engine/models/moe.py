"""A mixture of experts in place of the MLP: a router sends each token to ``top_k`` of many small MLPs.

Routing is Mixtral's (Jiang 2024, arXiv:2401.04088, section 2.1): softmax over all experts in fp32, the
``top_k`` largest probabilities, divided by their sum. No token is dropped, unless a capacity factor is given.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pdtlib.engine.models.balance import Balance
from pdtlib.engine.models.mlp import Mlp
from pdtlib.plan.spec import Model


class AtHome:
    """Where the rows of tokens go when this rank has all experts: nowhere.

    :class:`pdtlib.engine.expert_parallel.Exchange` takes its place where ``size`` ranks share the experts.
    """

    rank, size = 0, 1

    def counts(self, counts: Tensor) -> Tensor:
        """Rows that arrive here, by source rank and expert [size, E/size], of rows sent by expert [E]."""
        return counts

    def rows(self, rows: Tensor, *, send: Sequence[int], receive: Sequence[int]) -> Tensor:
        """What arrives when ``send[i]`` of the rows [.., h] go to rank i and ``receive[i]`` come from it."""
        return rows


def route(logits: Tensor, top_k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Probabilities [N, E] in fp32 (fp64 stays), and weights and numbers [N, k] of the chosen experts."""
    logits = logits if logits.element_size() > 4 else logits.float()
    probabilities = logits.softmax(dim=-1)
    largest, chosen = probabilities.topk(top_k, dim=-1)
    return probabilities, largest / largest.sum(dim=-1, keepdim=True), chosen


class MoE(nn.Module):
    """Router and experts. x: [B, S, h] -> [B, S, h].

    With a capacity factor c an expert takes at most ``ceil(c N top_k / E)`` of a micro-batch's N tokens on
    each rank that has tokens of its own, in the order of the tokens (GShard, Lepikhin 2020, arXiv:2006.16668,
    section 2.2). What is dropped adds nothing: the token passes by in the residual stream. The weights of
    its other experts stay as they are.
    """

    def __init__(self, model: Model, balance: Balance | None) -> None:
        super().__init__()
        moe = model.moe
        assert moe is not None
        self.num_experts, self.top_k, self.capacity_factor = moe.experts, moe.top_k, moe.capacity_factor
        self.router = nn.Linear(model.hidden, moe.experts, bias=False)
        self.experts = nn.ModuleDict({str(j): Mlp(model, bias=False) for j in range(moe.experts)})
        self.balance = balance
        self.exchange: Any = AtHome()  # replaced where ranks share the experts
        self.begin: Callable[[Tensor], Tensor] = _same  # replaced where the experts are cut
        self.end: Callable[[Tensor], Tensor] = _same
        self.numbers: Callable[[Tensor, int], list[list[int]]] = numbers_of

    def forward(self, x: Tensor) -> Tensor:
        x = self.begin(x)
        tokens = x.flatten(0, 1)  # [N, h]
        probabilities, weights, chosen = route(self.router(tokens), self.top_k)
        copies = chosen.flatten()  # [N k]: the expert of every copy of a token
        counts = copies.new_zeros(self.num_experts).index_add(0, copies, torch.ones_like(copies))
        if self.balance is not None:
            weights = self.balance.attach(weights, probabilities, counts)
        kept = counts.clamp(max=self.capacity(len(tokens)))
        arriving = self.exchange.counts(kept).flatten()
        counts_, kept_, arriving_ = self.numbers(torch.stack((counts, kept, arriving)), len(copies))

        by_expert = copies.argsort(stable=True).split(counts_)
        order = torch.cat([run[:number] for run, number in zip(by_expert, kept_, strict=True)])
        source = order // self.top_k  # the token of every copy that is kept
        there, back = self._per_rank(kept_), self._per_rank(arriving_)
        rows = self.exchange.rows(tokens[source], send=there, receive=back)
        rows = self.exchange.rows(self._compute(rows, arriving_), send=back, receive=there)
        rows = rows * weights.flatten()[order].unsqueeze(-1).to(rows.dtype)
        mixed = torch.zeros_like(tokens).index_put((source,), rows, accumulate=True)  # [N, h]
        return self.end(mixed.view_as(x))

    def capacity(self, num_tokens: int) -> int:
        """The most of ``num_tokens`` tokens that one expert takes."""
        even = num_tokens * self.top_k / self.num_experts
        return math.ceil(self.capacity_factor * even) if self.capacity_factor else num_tokens

    def _per_rank(self, counts: Sequence[int]) -> list[int]:
        local = len(counts) // self.exchange.size
        return [sum(counts[at : at + local]) for at in range(0, len(counts), local)]

    def _compute(self, rows: Tensor, counts: Sequence[int]) -> Tensor:
        """Run each expert on its rows. They come, and leave, by source rank and expert."""
        pieces, local = rows.split(counts), len(self.experts)
        done: list[Tensor] = [rows] * len(pieces)
        for j, expert in enumerate(self.experts.values()):
            out = expert(torch.cat(pieces[j::local]))
            done[j::local] = out.split(counts[j::local])
        return torch.cat(done)


def _same(x: Tensor) -> Tensor:
    return x


def numbers_of(counts: Tensor, copies: int) -> list[list[int]]:
    """The counts on the host, where the sizes of messages are decided; a GPU is waited for here.

    ``copies`` of tokens are sent out.
    """
    return counts.tolist()
