"""The plan's FLOPs are those that PyTorch counts while a model really runs forward and backward."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from pdtlib.engine.models import Transformer
from pdtlib.plan import flops
from pdtlib.plan.spec import Model

SHAPE = {"layers": 3, "hidden": 64, "heads": 4, "vocab": 190, "seq": 48}
MODELS = {
    "gpt": Model(**SHAPE),
    "gpt-tied": Model(**SHAPE, tied_embeddings=True),
    "llama": Model(**SHAPE, activation="swiglu", ffn=170),
    "odd head size": Model(**SHAPE, head_dim=10, ffn=100),
}


def counted(model: Model, *, batch: int) -> int:
    """FLOPs of a forward and a backward pass over ``batch`` full sequences."""
    tokens = torch.zeros(batch, model.seq, dtype=torch.long)
    counter = FlopCounterMode(display=False)
    with counter:
        Transformer(model, flash_attention=False)(tokens).sum().backward()
    return counter.get_total_flops()


@pytest.mark.parametrize("name", MODELS)
def test_torch_counts_what_the_plan_does(name: str) -> None:
    model = MODELS[name]
    assert counted(model, batch=2) == 2 * model.seq * flops.model_flops_per_token(model)


def test_grouped_query_attention_does_as_much_as_if_its_heads_were_copied() -> None:
    """The scores of a query need a key, whether that key is shared or not; only the projections shrink."""
    model = Model(**SHAPE, activation="swiglu", ffn=170, kv_heads=2)
    assert counted(model, batch=1) == model.seq * flops.model_flops_per_token(model)


def test_chapter_1_s_example() -> None:
    """6 N + 12 L h s = 21,983,232 for 4 layers of 256, a vocabulary of 1,000 and 128 tokens."""
    model = Model(layers=4, hidden=256, heads=4, vocab=1000, seq=128)
    assert counted(model, batch=1) == 128 * 21_983_232
