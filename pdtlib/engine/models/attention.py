"""Causal self-attention with grouped key/value heads, rotary positions and query/key norms."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pdtlib.plan.spec import Model, RopeScaling


def rotary_tables(
    seq: int, head_dim: int, *, device: torch.device, theta: float = 10_000.0
) -> tuple[Tensor, Tensor]:
    """Cosines and sines [S, D/2] in fp32 of the first ``seq`` rotary positions."""
    return rotary_tables_at(torch.arange(seq, device=device), head_dim, theta=theta)


def rotary_tables_at(
    positions: Tensor, head_dim: int, *, theta: float, scaling: RopeScaling | None = None
) -> tuple[Tensor, Tensor]:
    """Cosines and sines [S, D/2] in fp32 of rotary positions (Su 2021, arXiv:2104.09864, eq. 15)."""
    steps = torch.arange(0, head_dim, 2, device=positions.device, dtype=torch.float32)
    rates = theta ** (-steps / head_dim)  # radians a position
    if scaling is not None:
        rates = scaled(rates, scaling)
    angles = torch.outer(positions.to(torch.float32), rates)
    return angles.cos(), angles.sin()


def scaled(rates: Tensor, scaling: RopeScaling) -> Tensor:
    """Rotary rates [D/2] as Llama 3.1 stretches them, by how many turns they make in the original length.

    Rates of many turns stay, those of few are divided by the factor, between the limits the share that stays
    grows linearly.
    """
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    turns = scaling.original_seq * rates / (2 * math.pi)
    stays = ((turns - low) / (high - low)).clamp(0, 1)
    return rates * (stays + (1 - stays) / scaling.factor)


def rotate(x: Tensor, tables: tuple[Tensor, Tensor]) -> Tensor:
    """Turn each pair (x[i], x[i + D/2]) of every head by its position's angle. x: [B, H, S, D]."""
    cos, sin = (table.to(x.dtype) for table in tables)
    low, high = x.chunk(2, dim=-1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)


def softmax_attention(q: Tensor, k: Tensor, v: Tensor, *, dropout: float) -> Tensor:
    """softmax(QK^T / sqrt(D)) V with a causal mask, every S x S matrix written out.

    q: [B, H, S, D]; k, v: [B, G, S, D] with H a multiple of G. This is what flash attention avoids keeping:
    two S x S matrices a head for the backward pass, three with dropout.
    """
    groups = q.shape[1] // k.shape[1]
    if groups > 1:
        k, v = (x.repeat_interleave(groups, dim=1) for x in (k, v))  # [B, H, S, D]
    scores = (q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5  # [B, H, S, S]
    mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
    weights = scores.masked_fill(mask, float("-inf")).softmax(dim=-1)
    if dropout > 0:
        weights = F.dropout(weights, dropout)
    return weights @ v


def flash_attention(q: Tensor, k: Tensor, v: Tensor, *, dropout: float) -> Tensor:
    """The same through PyTorch's fused kernels, which recompute the S x S matrices in the backward pass."""
    return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True, enable_gqa=True)


class Attention(nn.Module):
    """One attention layer. x: [B, S, h] -> [B, S, h].

    ``recompute`` drops what the core (scores, softmax, weighted sum) would keep and computes it again in the
    backward pass: Korthikanti's selective recomputation (arXiv:2205.05198, section 5).
    """

    def __init__(self, model: Model, *, flash: bool, recompute: bool) -> None:
        super().__init__()
        self.head_dim = model.head_dim
        self.dropout = model.dropout
        self.core = flash_attention if flash else softmax_attention
        self.recompute = recompute
        q_size, kv_size = model.heads * model.head_dim, model.kv_heads * model.head_dim
        with_bias = model.biases != "none"
        self.q = nn.Linear(model.hidden, q_size, bias=with_bias)
        self.k = nn.Linear(model.hidden, kv_size, bias=with_bias)
        self.v = nn.Linear(model.hidden, kv_size, bias=with_bias)
        self.q_norm = nn.RMSNorm(model.head_dim, eps=model.norm_eps) if model.qk_norm else None
        self.k_norm = nn.RMSNorm(model.head_dim, eps=model.norm_eps) if model.qk_norm else None
        self.o = nn.Linear(q_size, model.hidden, bias=model.biases == "all")

    def forward(self, x: Tensor, tables: tuple[Tensor, Tensor] | None) -> Tensor:
        q, k, v = (  # [B, H or G, S, D]; under sequence parallelism x has fewer positions than these
            project(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for project in (self.q, self.k, self.v)
        )
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        if tables is not None:
            q, k = rotate(q, tables), rotate(k, tables)
        dropout = self.dropout if self.training else 0.0
        if self.recompute and torch.is_grad_enabled():
            mixed = checkpoint(self.core, q, k, v, dropout=dropout, use_reentrant=False)
        else:
            mixed = self.core(q, k, v, dropout=dropout)
        return self.o(mixed.transpose(1, 2).flatten(2))
