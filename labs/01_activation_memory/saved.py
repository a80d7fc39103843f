"""Watch autograd: which tensors does one layer keep for its backward pass, and how many bytes are they?

Every tensor that autograd saves passes through a hook. The hook notes the storage under it once, with the
module that was running, and skips parameters: they are saved too, but they are there anyway.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pdtlib.engine.models import Layer
from pdtlib.engine.models.attention import rotary_tables
from pdtlib.plan.activations import Setting
from pdtlib.plan.spec import Model


@dataclass(frozen=True)
class Saved:
    """One storage that the layer keeps: in which module it was saved, shape of the first view, bytes."""

    module: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    bytes: int


def run_layer(model: Model, setting: Setting, *, device: torch.device) -> list[Saved]:
    """Run one layer forward in bf16 and return what autograd saved, in order. x: [B, S, h]."""
    torch.manual_seed(0)
    layer = Layer(model, flash=setting.flash_attention, recompute=setting.recompute).to(
        device, torch.bfloat16
    )
    x = torch.randn(
        setting.micro_batch,
        setting.seq,
        model.hidden,
        device=device,
        dtype=torch.bfloat16,
        requires_grad=True,
    )
    tables = (
        rotary_tables(setting.seq, model.head_dim, device=device) if model.positions == "rotary" else None
    )
    running = _track_modules(layer)
    seen = {parameter.untyped_storage().data_ptr() for parameter in layer.parameters()}
    found: list[Saved] = []

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.nbytes() and storage.data_ptr() not in seen:
            seen.add(storage.data_ptr())
            found.append(Saved(running[-1], tuple(tensor.shape), tensor.dtype, storage.nbytes()))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = layer(x, tables)
    output.sum().backward()  # what was watched is a layer that really trains
    assert x.grad is not None
    return found


def _track_modules(layer: nn.Module) -> list[str]:
    """A stack whose last entry is the name of the module that is running; the layer itself is ""."""
    running = [""]

    def leave(_module: nn.Module, _inputs: object, _output: object) -> None:
        running.pop()

    for name, module in layer.named_modules():
        module.register_forward_pre_hook(lambda _module, _inputs, name=name: running.append(name))
        module.register_forward_hook(leave)
    return running


def name_tensors(saved: list[Saved], model: Model, setting: Setting) -> dict[str, int]:
    """Bytes by the plan's tensor names; what the plan has no name for keeps one that says what it is."""
    bytes_by_name: dict[str, int] = defaultdict(int)
    times: dict[str, int] = defaultdict(int)
    for item in saved:
        for name in _candidates(item, model, setting):
            # The first free name: q, then k, then v, where all three have one size.
            if times[name] == 0 or name in REPEATED:
                times[name] += 1
                bytes_by_name[name] += item.bytes
                break
        else:
            raise AssertionError(f"{item} has no name")
    return dict(bytes_by_name)


ROTARY_TABLES = "rotary tables"
REPEATED = {ROTARY_TABLES, "attn_norm statistics", "mlp_norm statistics"}
"""Names under which several storages are added up: cosines and sines, mean and deviation."""


def _candidates(item: Saved, model: Model, setting: Setting) -> list[str]:
    """Names that a saved storage may have, from the module that saved it and its size."""
    tokens = setting.micro_batch * setting.seq
    numel = 1
    for size in item.shape:
        numel *= size
    module = item.module
    if module == "":
        return ["layer input"]
    if module in ("attn_norm", "mlp_norm"):
        return [f"{module} statistics"] if numel == tokens else [f"{module} input", f"{module} normalised"]
    if module == "attn":
        return _attention_candidates(item, numel, model, setting)
    if module == "dropout":
        return ["attention dropout mask", "mlp dropout mask"]
    if module == "mlp":
        return ["gelu input"] if model.activation == "gelu" else ["gate output", "silu(gate)", "up output"]
    names = {"attn.q": "q, k, v input", "attn.o": "o input", "mlp.down": "down input"}
    return [names.get(module, "mlp input")]


def _attention_candidates(item: Saved, numel: int, model: Model, setting: Setting) -> list[str]:
    tokens = setting.micro_batch * setting.seq
    if item.dtype == torch.bool:
        return ["causal mask"]
    if item.dtype == torch.float32 and numel == tokens * model.heads:
        return ["log-sum-exp"]
    if numel == setting.seq * model.head_dim // 2:
        return [ROTARY_TABLES]
    if numel == tokens * model.heads * setting.seq:
        return ["softmax output", "softmax dropout mask", "softmax dropout output"]
    # The fused kernel keeps its output. Where that is also the projection's input, the two share a storage.
    output = "attention output" if model.positions == "rotary" else "o input"
    if model.kv_heads == model.heads:
        return ["q", "k", "v", output]
    return ["k", "v"] if numel == tokens * model.kv_heads * model.head_dim else ["q", output]
