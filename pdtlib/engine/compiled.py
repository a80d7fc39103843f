"""torch.compile for every layout: the arithmetic of each layer is compiled, messages stay outside of it.

A compiled region cannot hold what a layout puts into a layer: collectives in flight, a list of works left
for later, tokens sorted by expert. Those modules are marked, so the compiler ends one graph before them
and begins another behind. Without them, as under DDP and ZeRO, a layer is one graph, and since all layers
have the same form they share one compilation.
"""

from __future__ import annotations

import torch
from torch import nn

from pdtlib.engine.models.attention import Attention, flash_attention, softmax_attention
from pdtlib.engine.models.moe import MoE
from pdtlib.engine.models.transformer import Layer

FLOORS = (
    "pdtlib.engine.tensor_parallel.",
    "pdtlib.engine.expert_parallel.",
    "pdtlib.engine.context_parallel.",
)
"""Where modules come from that send messages."""


def compile_layers(module: nn.Module, *, backend: str = "inductor") -> int:
    """Compile every :class:`Layer` in ``module`` in place and return how many there are.

    Call it when the layout is complete: what is cut or replaced later is not seen. ``backend`` is one of
    ``torch.compile``'s. Compilation happens in the first step. Dropout's masks are drawn by compiled code in
    another order than without it. Raises ValueError for a backend that torch does not have.
    """
    valid = torch.compiler.list_backends(exclude_tags=())
    if backend not in valid:
        raise ValueError(f"backend={backend!r}; valid: {', '.join(valid)}")
    layers = [child for child in module.modules() if isinstance(child, Layer)]
    for layer in layers:
        for child in layer.modules():
            _keep_out(child)
        vars(layer)["_forward"] = torch.compile(layer._forward, backend=backend, dynamic=False)
    return len(layers)


def _keep_out(module: nn.Module) -> None:
    """Let the compiler leave the module alone if there are messages or deferred works in it."""
    replaced = "forward" in vars(module) or any(_is_deferrable(value) for value in vars(module).values())
    if replaced or isinstance(module, MoE) or type(module).__module__.startswith(FLOORS):
        vars(module)["forward"] = torch.compiler.disable(module.forward)
    elif isinstance(module, Attention) and module.core not in (flash_attention, softmax_attention):
        vars(module)["core"] = torch.compiler.disable(module.core)


def _is_deferrable(value: object) -> bool:
    return getattr(value, "__module__", None) == "pdtlib.engine.split_backward"
