"""What autograd saves in a whole model on a CPU is what the plan predicts, byte for byte."""

import pytest
import torch

from pdtlib.engine.loss import token_loss_sum
from pdtlib.engine.models import Transformer
from pdtlib.observe.memory import ActivationMeter
from pdtlib.plan.job import from_dict
from pdtlib.plan.memory import recomputed_layer_bytes, stage_memory

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
MODELS = {
    "llama": {"activation": "swiglu", "kv_heads": 2},
    "llama without groups": {"activation": "swiglu"},
    "llama with query and key norms": {"activation": "swiglu", "kv_heads": 2, "qk_norm": True},
    "gpt": {"activation": "gelu"},
    "gpt with dropout": {"activation": "gelu", "dropout": 0.1},
}


@pytest.mark.parametrize("precision", DTYPES)
@pytest.mark.parametrize("flash", [True, False], ids=["fused", "explicit"])
@pytest.mark.parametrize("kind", MODELS)
def test_saved_bytes(kind, flash, precision):
    model = {"layers": 3, "hidden": 64, "heads": 4, "vocab": 100, "seq": 48, **MODELS[kind]}
    train = {"micro_batch": 2, "precision": precision, "flash_attention": flash}
    job = from_dict({"model": model, "train": train})
    predicted = stage_memory(job, 0)
    net = Transformer(job.model, flash_attention=flash).to(DTYPES[precision])
    tokens = torch.randint(100, (2, 48))
    with ActivationMeter(excluded=net.parameters()) as meter:
        loss = token_loss_sum(net(tokens), tokens)
    scalar = 4  # the loss's own total weight
    assert meter.held_bytes == predicted.activations + predicted.logits + scalar
    loss.backward()


@pytest.mark.parametrize("recompute", ["selective", "full"])
@pytest.mark.parametrize("kind", ["llama", "gpt"])
def test_saved_bytes_with_recomputation(kind, recompute):
    """What is kept between the passes; the layer that is computed again comes on top of it later."""
    model = {"layers": 3, "hidden": 64, "heads": 4, "vocab": 100, "seq": 48, **MODELS[kind]}
    train = {"micro_batch": 2, "precision": "fp32", "flash_attention": False, "recompute": recompute}
    job = from_dict({"model": model, "train": train})
    predicted = stage_memory(job, 0)
    again = recomputed_layer_bytes(job) if recompute == "full" else 0
    net = Transformer(job.model, flash_attention=False, recompute=recompute)
    tokens = torch.randint(100, (2, 48))
    with ActivationMeter(excluded=net.parameters()) as meter:
        loss = token_loss_sum(net(tokens), tokens)
    assert meter.held_bytes == predicted.activations - again + predicted.logits + 4
    loss.backward()
