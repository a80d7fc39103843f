"""A backward pass in two halves gives the gradients of a whole one, and keeps little in between."""

import gc
import weakref

import pytest
import torch
from pipeline_zoo import LENGTH, TRANSFORMERS, VOCAB, Block
from torch import Tensor, nn

from pdtlib.engine.data_parallel import data_parallel
from pdtlib.engine.dist import spawn
from pdtlib.engine.loss import token_loss_sum
from pdtlib.engine.mesh import Group, build_mesh
from pdtlib.engine.models import Transformer
from pdtlib.engine.split_backward import Work, deferring, finish, make_splittable
from pdtlib.engine.tensor_parallel import tensor_parallel, transformer_table
from pdtlib.plan.spec import Model

TOKENS = torch.randint(VOCAB, (2, LENGTH), generator=torch.Generator().manual_seed(0))


class Own(nn.Module):
    """A user's module: one matrix used twice, an embedding with padding, a convolution, a bare parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, 8, padding_idx=0)
        self.block = Block(5)
        self.twice = nn.Linear(8, 8)
        self.conv = nn.Conv1d(8, 8, 3, padding=1)
        self.scale = nn.Parameter(torch.full((8,), 1.5))
        self.head = nn.Linear(8, VOCAB)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.twice(torch.tanh(self.twice(self.block(self.embed(tokens)))))
        return self.head(self.conv(x.transpose(1, 2)).transpose(1, 2) * self.scale)


def build(kind: str) -> nn.Module:
    torch.manual_seed(1)
    if kind == "own":
        return Own().double()
    return Transformer(TRANSFORMERS[kind], seed=1, recompute="full" if kind == "llama" else "none").double()


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: param.grad for name, param in model.named_parameters() if param.grad is not None}


@pytest.mark.parametrize("kind", ["gpt", "llama", "own"])
def test_two_halves_are_a_whole(kind: str) -> None:
    """Also of weights that are used twice, tied, or in a layer that is recomputed."""
    whole, split = build(kind), build(kind)
    make_splittable(split)
    works: list[Work] = []
    torch.manual_seed(5)
    token_loss_sum(whole(TOKENS), TOKENS).backward()
    torch.manual_seed(5)
    loss = token_loss_sum(split(TOKENS), TOKENS)
    with deferring(works):
        loss.backward()
    early = set(gradients(split))
    linears = {f"{n}.weight" for n, m in split.named_modules() if isinstance(m, nn.Linear)}
    frozen = {name for name, param in split.named_parameters() if not param.requires_grad}
    assert not early & linears, "no matrix has a gradient yet"
    assert {id(param) for param, *_ in works} >= {id(split.get_parameter(name)) for name in linears - frozen}
    finish(works)
    assert not works
    expected, found = gradients(whole), gradients(split)
    assert found.keys() == expected.keys()
    for name, grad in expected.items():
        torch.testing.assert_close(found[name], grad, rtol=0, atol=1e-12)
    if kind == "own":
        assert {"embed.weight", "conv.weight", "scale", "block.norm.weight"} <= early


def test_outside_nothing_is_left() -> None:
    whole, split = build("own"), build("own")
    make_splittable(split)
    for model in (whole, split):
        token_loss_sum(model(TOKENS), TOKENS).backward()
    for name, grad in gradients(whole).items():
        torch.testing.assert_close(gradients(split)[name], grad, rtol=0, atol=1e-12)


def test_halves_keep_inputs_and_gradients_alone() -> None:
    """What else the graph held is freed with the first half, and a work with its own end."""
    layer = nn.Linear(6, 4, bias=False)
    make_splittable(layer)
    x = torch.randn(3, 6, requires_grad=True)
    between = torch.tanh(layer(x))
    middle = weakref.ref(between)
    works: list[Work] = []
    with deferring(works):
        between.sum().backward()
    del between
    gc.collect()
    assert middle() is None
    kept = {cell.cell_contents for cell in works[0][1].__closure__ if torch.is_tensor(cell.cell_contents)}
    assert sorted(tuple(tensor.shape) for tensor in kept) == [(3, 4), (3, 6)]
    given: list[torch.Tensor] = []
    finish(works, lambda param, grad: given.append(grad))
    assert [grad.requires_grad for grad in given] == [False], "a second half builds no graph of its own"
    assert given[0].shape == layer.weight.shape


def cut_gradients(sequence: bool) -> list[float]:
    """Differences of a tensor-parallel model's gradients between a split and a whole backward pass."""
    group = build_mesh({"tp": 2}).group("tp")
    model = Model(layers=2, hidden=8, heads=2, vocab=12, seq=LENGTH, activation="gelu", biases="all")
    found = []
    for split in (False, True):
        net = Transformer(model, seed=1).double()
        cut = tensor_parallel(net, group, table=transformer_table(model), sequence=sequence)
        if split:
            make_splittable(net)
        replica = data_parallel(net, Group.alone(), stage=2, cut=cut)
        group.ledger.clear()
        works: list[Work] = []
        with replica.forward_of(0):
            loss = net(TOKENS).square().sum()
        if split:
            with replica.backward_of(0, weights=False, last=False), deferring(works):
                loss.backward()
            assert len(works) > 20
            with replica.backward_of(0, inputs=False):
                finish(works)
        else:
            with replica.backward_of(0):
                loss.backward()
        replica.finish_gradients()
        found.append((replica.full_gradients(), group.ledger.rows()))
    (whole, rows), (halves, rows_of_halves) = found
    by_size = [sorted(map(str, each)) for each in (rows, rows_of_halves)]
    assert by_size[0] == by_size[1], "the same messages"
    return [float((halves[name] - grad).abs().max()) for name, grad in whole.items()]


def both_cuts() -> list[float]:
    return cut_gradients(False) + cut_gradients(True)


def test_tensor_parallel_layers_split() -> None:
    for differences in spawn(both_cuts, 2):
        assert max(differences) < 1e-12
