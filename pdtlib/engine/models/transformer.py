"""The Transformer that every lab trains: one decoder-only model, GPT style or Llama style by configuration.

Its parameters carry exactly the names and shapes of :func:`pdtlib.plan.params.tensors`, so that what the
plan counts is what the engine holds. Initial weights are drawn tensor by tensor from (name, seed): a rank
that holds any slice of any tensor starts from the same model as a single process does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pdtlib.engine.models.attention import Attention, rotary_tables_at
from pdtlib.engine.models.balance import Balance
from pdtlib.engine.models.mlp import Mlp
from pdtlib.engine.models.moe import MoE
from pdtlib.plan.spec import Model

INIT_STD = 0.02


def draw(name: str, shape: tuple[int, ...], *, seed: int, layers: int) -> Tensor:
    """The initial value of a tensor, in fp32 on the CPU; it depends on its name, its shape and the seed
    alone.

    Norm weights are 1, biases 0, the rest normal with standard deviation 0.02; projections that write into
    the residual stream are scaled by 1/sqrt(2 x layers) (GPT-2, Radford 2019, section 2.3).
    """
    if name.endswith(".bias"):
        return torch.zeros(shape)
    if name.endswith("norm.weight"):
        return torch.ones(shape)
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    residual = name.endswith((".attn.o.weight", ".down.weight"))
    std = INIT_STD * (2 * layers) ** -0.5 if residual else INIT_STD
    return torch.empty(shape).normal_(0.0, std, generator=generator)


def _norm(model: Model) -> nn.Module:
    if model.norm == "layernorm":
        return nn.LayerNorm(model.hidden, eps=model.norm_eps)
    return nn.RMSNorm(model.hidden, eps=model.norm_eps)


class Layer(nn.Module):
    """Attention and MLP (or experts), each behind a norm and added to the residual stream. x: [B, S, h].

    ``recompute``: none keeps every activation, selective drops the attention core's, full keeps the layer's
    input alone and runs the layer again in the backward pass.
    """

    def __init__(self, model: Model, *, flash: bool, recompute: str, balance: Balance | None = None) -> None:
        super().__init__()
        self.recompute_all = recompute == "full"
        self.attn_norm = _norm(model)
        self.attn = Attention(model, flash=flash, recompute=recompute == "selective")
        self.mlp_norm = _norm(model)
        self.mlp = Mlp(model, bias=model.biases == "all") if model.moe is None else None
        self.moe = None if model.moe is None else MoE(model, balance)
        self.dropout = nn.Dropout(model.dropout) if model.dropout > 0 else nn.Identity()

    def forward(self, x: Tensor, tables: tuple[Tensor, Tensor] | None) -> Tensor:
        if self.recompute_all and torch.is_grad_enabled():
            return checkpoint(self._forward, x, tables, use_reentrant=False)
        return self._forward(x, tables)

    def _forward(self, x: Tensor, tables: tuple[Tensor, Tensor] | None) -> Tensor:
        x = x + self.dropout(self.attn(self.attn_norm(x), tables))
        network = self.mlp if self.moe is None else self.moe
        assert network is not None
        return x + self.dropout(network(self.mlp_norm(x)))


class Layers(nn.ModuleList):
    """Layers under the numbers that they have in the whole model, so that parameters keep their names."""

    def __init__(self, numbers: range, layers: Iterable[nn.Module]) -> None:
        super().__init__()
        for number, layer in zip(numbers, layers, strict=True):
            self.add_module(str(number), layer)


class Transformer(nn.Module):
    """A decoder-only Transformer, or a part of one. tokens: [B, S] integers -> logits [B, S, V].

    A part has the layers whose numbers are ``layers``, under the names that they have in the whole model.
    Without ``first`` it takes hidden states [B, S, h] instead of tokens, without ``last`` it returns them.
    The last part has a copy of a tied embedding. Only the first ``recompute_layers`` of the layers recompute;
    None means all.

    Raises ``ValueError`` in ``forward`` for more tokens than learned positions.
    """

    def __init__(
        self,
        model: Model,
        *,
        layers: range | None = None,
        first: bool = True,
        last: bool = True,
        seed: int = 0,
        flash_attention: bool = True,
        recompute: str = "none",
        recompute_layers: int | None = None,
        device: torch.device | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.model = model
        self.balance = Balance(model.moe.aux_loss) if model.moe and model.moe.aux_loss else None
        numbers = range(model.layers) if layers is None else layers
        tied = last and model.tied_embeddings
        learned = first and model.positions == "learned"
        again = len(numbers) if recompute_layers is None else recompute_layers
        modes = [recompute if index < again else "none" for index in range(len(numbers))]
        with torch.device("meta"):  # in the order of pdtlib.plan.placement.rank_tensors
            self.embed = nn.Embedding(model.vocab, model.hidden) if first else None
            self.positions = nn.Embedding(model.seq, model.hidden) if learned else None
            self.layers = Layers(
                numbers,
                (Layer(model, flash=flash_attention, recompute=m, balance=self.balance) for m in modes),
            )
            self.norm = _norm(model) if last else None
            self.head = nn.Linear(model.hidden, model.vocab, bias=False) if last and not tied else None
            if tied and not first:
                self.embed = nn.Embedding(model.vocab, model.hidden)
        self.dropout = nn.Dropout(model.dropout) if model.dropout > 0 else nn.Identity()
        self.first, self.last = first, last
        self.output = F.linear  # replaced where the vocabulary is cut
        self.positions_of = torch.arange  # replaced where the sequence is cut
        self.sequence_parts = 1  # ranks that share the positions of hidden states
        self._draw_weights(seed, device or torch.device("cpu"), dtype)

    def _draw_weights(self, seed: int, device: torch.device, dtype: torch.dtype) -> None:
        for name, parameter in list(self.named_parameters()):
            owner, _, leaf = name.rpartition(".")
            value = draw(name, tuple(parameter.shape), seed=seed, layers=self.model.layers)
            setattr(self.get_submodule(owner), leaf, nn.Parameter(value.to(device, dtype)))

    @property
    def tied_weight(self) -> nn.Parameter | None:
        """What the first and the last part of a model with a tied embedding both have."""
        if not self.model.tied_embeddings or self.embed is None:
            return None
        assert isinstance(self.embed.weight, nn.Parameter)
        return self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        seq = x.shape[1] if self.first else x.shape[1] * self.sequence_parts
        if seq > self.model.seq:
            raise ValueError(f"tokens: {seq} positions; the model was made for at most {self.model.seq}")
        where = self.positions_of(seq).to(x.device)
        if self.first:
            x = self._embedded(x, where)
        tables = None
        if self.model.positions == "rotary":
            theta, scaling = self.model.rope_theta, self.model.rope_scaling
            cos, sin = rotary_tables_at(where, self.model.head_dim, theta=theta, scaling=scaling)
            tables = cos.to(x.dtype), sin.to(x.dtype)
        for layer in self.layers:
            x = layer(x, tables)
        if self.norm is None:
            return x
        head = self.embed if self.head is None else self.head
        assert head is not None
        return self.output(self.norm(x), head.weight)  # [B, S, V]

    def _embedded(self, tokens: Tensor, where: Tensor) -> Tensor:
        assert self.embed is not None
        x = self.embed(tokens)  # [B, S, h]
        if self.positions is not None:
            x = x + self.positions(where)
        return self.dropout(x)
