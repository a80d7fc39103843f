"""The Transformer has the plan's tensors, and computes what its definition says."""

import pytest
import torch
from torch import nn

from pdtlib.engine.loss import IGNORED, TokenMean, token_loss_sum
from pdtlib.engine.mesh import Group
from pdtlib.engine.models import Transformer, draw
from pdtlib.engine.models.attention import rotary_tables, rotate
from pdtlib.observe.memory import ActivationMeter
from pdtlib.plan.params import count, tensors
from pdtlib.plan.spec import Model

TINY = {"layers": 2, "hidden": 24, "heads": 4, "vocab": 61, "seq": 12}
LLAMA = Model(**TINY, activation="swiglu", kv_heads=2, ffn=40)
MODELS = {
    "gpt": Model(**TINY),
    "gpt-tied": Model(**TINY, tied_embeddings=True),
    "llama": LLAMA,
    "qwen": Model(**TINY, activation="swiglu", kv_heads=1, biases="qkv", tied_embeddings=True),
    "qk-norm": Model(**TINY, activation="swiglu", qk_norm=True, head_dim=10, biases="all"),
    "mixed": Model(**TINY, activation="gelu", norm="rmsnorm", positions="learned", biases="none"),
}


@pytest.mark.parametrize("name", MODELS)
def test_parameters_are_exactly_the_plan_s(name: str) -> None:
    model = MODELS[name]
    built = {n: tuple(p.shape) for n, p in Transformer(model).named_parameters()}
    assert built == {spec.name: spec.shape for spec in tensors(model)}
    assert sum(p.numel() for p in Transformer(model).parameters()) == count(model).total


def test_weights_depend_on_name_and_seed_alone() -> None:
    weights = dict(Transformer(LLAMA, seed=3).named_parameters())
    torch.manual_seed(99)
    again = dict(Transformer(LLAMA, seed=3).named_parameters())
    assert all(torch.equal(weights[name], again[name]) for name in weights)
    other = dict(Transformer(LLAMA, seed=4).named_parameters())
    assert not torch.equal(weights["layers.0.attn.q.weight"], other["layers.0.attn.q.weight"])
    assert not torch.equal(weights["layers.0.attn.q.weight"], weights["layers.1.attn.q.weight"])
    name = "layers.1.mlp.down.weight"
    assert torch.equal(weights[name], draw(name, (24, 40), seed=3, layers=2))


def test_what_writes_into_the_residual_stream_starts_smaller() -> None:
    """By the root of the number of such matrices, two a layer (GPT-2, section 2.3)."""
    for name, expected in (("attn.q", 0.02), ("attn.o", 0.01), ("mlp.up", 0.02), ("mlp.down", 0.01)):
        weight = draw(f"layers.0.{name}.weight", (200, 200), seed=0, layers=2)
        assert float(weight.std()) == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("name", MODELS)
def test_flash_and_written_out_attention_agree(name: str) -> None:
    tokens = torch.randint(61, (2, 12), generator=torch.Generator().manual_seed(0))
    grads = []
    for flash in (True, False):
        net = Transformer(MODELS[name], flash_attention=flash, dtype=torch.float64)
        token_loss_sum(net(tokens), tokens).backward()
        grads.append([p.grad for p in net.parameters()])
    torch.testing.assert_close(grads[0], grads[1], rtol=1e-9, atol=1e-10)


def test_a_position_sees_the_past_alone() -> None:
    tokens = torch.randint(61, (1, 12), generator=torch.Generator().manual_seed(0))
    changed = tokens.clone()
    changed[0, 7:] = (changed[0, 7:] + 1) % 61
    for model in MODELS.values():
        net = Transformer(model, dtype=torch.float64)
        torch.testing.assert_close(net(tokens)[:, :7], net(changed)[:, :7])
        assert not torch.allclose(net(tokens)[:, 7:], net(changed)[:, 7:])


def test_rotary_attention_depends_on_relative_positions() -> None:
    """Scores of equal tokens at equal distances are equal, wherever they stand (RoFormer, eq. 16)."""

    tables = rotary_tables(16, 8, device=torch.device("cpu"))
    q, k = torch.randn(2, 1, 1, 1, 8, generator=torch.Generator().manual_seed(1)).expand(2, 1, 1, 16, 8)
    scores = rotate(q, tables) @ rotate(k, tables).transpose(-1, -2)
    for distance in range(-15, 16):
        diagonal = scores[0, 0].diagonal(distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_recomputation_changes_memory_and_nothing_else(dropout: float) -> None:
    model = Model(**{**TINY, "seq": 48}, dropout=dropout)
    tokens = torch.randint(61, (2, 48), generator=torch.Generator().manual_seed(0))
    grads, peaks = {}, {}
    for recompute in ("none", "selective", "full"):
        net = Transformer(model, recompute=recompute, flash_attention=False, dtype=torch.float64)
        torch.manual_seed(5)
        with ActivationMeter(excluded=net.parameters()) as meter:
            token_loss_sum(net(tokens), tokens).backward()
        grads[recompute] = [p.grad for p in net.parameters()]
        peaks[recompute] = meter.peak_bytes
        assert meter.held_bytes == 0
    assert peaks["none"] > peaks["selective"] > peaks["full"]
    torch.testing.assert_close(grads["selective"], grads["none"])
    torch.testing.assert_close(grads["full"], grads["none"])


def test_activation_meter_counts_a_linear_layer() -> None:
    x = torch.randn(7, 5, requires_grad=True)
    layer = nn.Linear(5, 3, bias=False)
    with ActivationMeter(excluded=layer.parameters()) as meter:
        y = layer(x).relu()  # keeps x (7 x 5) for the weight and the result (7 x 3) for relu
        assert meter.held_bytes == 4 * (7 * 5 + 7 * 3)
        y.sum().backward()
    del y
    assert meter.held_bytes == 0


def test_token_loss_does_not_depend_on_the_cut() -> None:
    """Micro-batches with padding: the gradient is that of the whole batch (field report B01)."""
    tokens = torch.randint(61, (4, 12), generator=torch.Generator().manual_seed(0))
    targets = tokens.roll(-1, dims=1)
    targets[0, 3:] = IGNORED
    targets[3, 1:] = IGNORED
    mean = TokenMean(Group.alone(), num_valid=int((targets != IGNORED).sum()))
    whole = Transformer(LLAMA, dtype=torch.float64)
    mean.loss(token_loss_sum(whole(tokens), targets)).backward()
    cut = Transformer(LLAMA, dtype=torch.float64)
    for row in range(4):
        part = slice(row, row + 1)
        mean.loss(token_loss_sum(cut(tokens[part]), targets[part])).backward()
    for a, b in zip(whole.parameters(), cut.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)


def test_too_many_tokens_are_refused() -> None:
    with pytest.raises(ValueError, match="13 positions"):
        Transformer(MODELS["gpt"])(torch.zeros(1, 13, dtype=torch.long))
