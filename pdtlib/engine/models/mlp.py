"""The MLP of a layer, and each expert of a mixture."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from pdtlib.plan.spec import Model


class Mlp(nn.Module):
    """down(gelu(up(x))), or down(silu(gate(x)) * up(x)) where the activation is swiglu. x: [.., h]."""

    def __init__(self, model: Model, *, bias: bool) -> None:
        super().__init__()
        gated = model.activation == "swiglu"
        self.gate = nn.Linear(model.hidden, model.ffn, bias=bias) if gated else None
        self.up = nn.Linear(model.hidden, model.ffn, bias=bias)
        self.down = nn.Linear(model.ffn, model.hidden, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        if self.gate is None:
            return self.down(F.gelu(self.up(x), approximate="tanh"))
        return self.down(F.silu(self.gate(x)) * self.up(x))  # inside: [.., F]
