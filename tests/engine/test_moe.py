"""A mixture of experts on one process: routing, capacity, balancing loss, names."""

from typing import Any

import pytest
import torch
from torch import Tensor

from pdtlib.engine.models import MoE, Transformer
from pdtlib.engine.models.balance import balance_loss
from pdtlib.engine.models.moe import route
from pdtlib.plan import params
from pdtlib.plan.job import from_dict
from pdtlib.plan.spec import Model


def model(*, moe: dict[str, Any] | None = None, **fields: Any) -> Model:
    shape = {"layers": 2, "hidden": 16, "heads": 4, "vocab": 30, "seq": 8, "activation": "swiglu"}
    mixture = {"experts": 4, "top_k": 2, "ffn": 12, **(moe or {})}
    return from_dict({"model": {**shape, "moe": mixture, **fields}}).model


def one_layer(spec: Model, *, spread: float = 1.0) -> MoE:
    """An MoE block whose router is sure of itself."""
    block = Transformer(spec, seed=5, dtype=torch.float64).layers[0].moe
    with torch.no_grad():
        block.router.weight.mul_(50 * spread)
    return block


def by_hand(block: MoE, tokens: Tensor, *, capacity: int) -> Tensor:
    """Token by token and expert by expert: the definition, with a queue of ``capacity`` at every expert."""
    taken = [0] * block.num_experts
    out = torch.zeros_like(tokens)
    for n, token in enumerate(tokens):
        shares = (block.router.weight @ token).exp()
        shares = shares / shares.sum()
        best = sorted(range(block.num_experts), key=lambda j: -float(shares[j].detach()))[: block.top_k]
        for j in best:
            if taken[j] < capacity:
                taken[j] += 1
                out[n] += shares[j] / shares[best].sum() * block.experts[str(j)](token)
    return out


@pytest.mark.parametrize(("top_k", "capacity_factor"), [(1, 0.0), (2, 0.0), (4, 0.0), (2, 0.75), (1, 1.0)])
def test_block_is_its_definition(top_k: int, capacity_factor: float) -> None:
    """Output and all gradients; with a capacity some tokens are dropped, without none is."""
    block = one_layer(model(moe={"top_k": top_k, "capacity_factor": capacity_factor}))
    x = torch.randn(2, 8, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    weight = torch.randn(16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    found = []
    for forward in (
        lambda x: block(x).flatten(0, 1),
        lambda x: by_hand(block, x.flatten(0, 1), capacity=block.capacity(16)),
    ):
        inputs = x.clone().requires_grad_()
        out = forward(inputs)
        (out * weight).sum().backward()
        grads = [inputs.grad, *(p.grad for p in block.parameters())]
        found.append([out.detach(), *(torch.zeros(()) if grad is None else grad.clone() for grad in grads)])
        block.zero_grad()
    for mine, expected in zip(*found, strict=True):
        torch.testing.assert_close(mine, expected, rtol=0, atol=1e-12)
    dropped = (found[0][0] == 0).all(dim=-1).any()
    assert bool(dropped) == (capacity_factor > 0)


def test_capacity_is_a_share_of_the_micro_batch() -> None:
    block = one_layer(model(moe={"capacity_factor": 1.25}))
    assert block.capacity(16) == 10  # 1.25 x 16 x 2 / 4
    assert block.capacity(5) == 4  # rounded up
    assert one_layer(model()).capacity(16) == 16


def test_an_expert_without_tokens_has_gradient_zero() -> None:
    block = one_layer(model(moe={"top_k": 1}))
    with torch.no_grad():
        block.router.weight.zero_()[0] = 1.0
    block(torch.rand(1, 4, 16, dtype=torch.float64)).sum().backward()
    for j, expert in block.experts.items():
        sizes = [float(p.grad.abs().sum()) for p in expert.parameters()]
        assert all(sizes) if j == "0" else sizes == [0.0, 0.0, 0.0]


def test_routing_is_in_full_precision_and_sums_to_one() -> None:
    logits = torch.tensor([[1.0, 2.0, 3.0]], dtype=torch.bfloat16)
    probabilities, weights, chosen = route(logits, 2)
    assert probabilities.dtype == weights.dtype == torch.float32
    assert chosen.tolist() == [[2, 1]]
    e = torch.tensor(1.0).exp()
    torch.testing.assert_close(weights, torch.stack((e / (1 + e), 1 / (1 + e)))[None])


def test_balance_loss() -> None:
    """1 for even experts, E for one that gets everything (Switch Transformer, equation 4)."""
    even = torch.full((8, 4), 0.25)
    assert float(balance_loss(even, torch.tensor([4, 4, 4, 4]))) == pytest.approx(1.0)
    one = torch.eye(4)[[2] * 8]
    assert float(balance_loss(one, torch.tensor([0, 0, 8, 0]))) == pytest.approx(4.0)


def test_balance_reaches_the_router_alone_with_its_coefficient() -> None:
    """The gradient is that of ``coefficient * scale * loss`` added to the loss; values stay."""
    x = torch.randn(2, 8, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    grads = []
    for aux_loss in (0.0, 0.3):
        block = one_layer(model(moe={"aux_loss": aux_loss}), spread=0.1)
        if block.balance is not None:
            block.balance.scale = 0.5
        out = block(x)
        out.sum().backward()
        grads.append((out.detach(), {name: p.grad for name, p in block.named_parameters()}))
    assert torch.equal(grads[0][0], grads[1][0])
    probabilities, _, chosen = route(x.flatten(0, 1) @ block.router.weight.t(), 2)
    loss = balance_loss(probabilities, torch.bincount(chosen.flatten(), minlength=4))
    (expected,) = torch.autograd.grad(0.3 * 0.5 * loss, block.router.weight)
    for name, grad in grads[1][1].items():
        difference = grad - grads[0][1][name]
        torch.testing.assert_close(difference, expected if "router" in name else torch.zeros_like(grad))


@pytest.mark.parametrize("fields", [{}, {"activation": "gelu", "tied_embeddings": True}])
def test_names_and_shapes_are_the_plans(fields: dict[str, Any]) -> None:
    spec = model(**fields)
    found = {name: tuple(p.shape) for name, p in Transformer(spec).named_parameters()}
    assert list(found.items()) == [(tensor.name, tensor.shape) for tensor in params.tensors(spec)]


def test_recomputed_layers_have_the_same_gradients() -> None:
    spec = model(moe={"aux_loss": 0.1})
    tokens = torch.randint(30, (2, 8), generator=torch.Generator().manual_seed(0))
    found = []
    for recompute in ("none", "full"):
        whole = Transformer(spec, seed=2, dtype=torch.float64, recompute=recompute)
        whole(tokens).square().sum().backward()
        found.append([p.grad for p in whole.parameters()])
    for a, b in zip(*found, strict=True):
        assert torch.equal(a, b)
