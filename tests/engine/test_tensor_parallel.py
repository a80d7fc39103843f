"""Tensor and sequence parallelism equal one process in float64, alone and with DDP and ZeRO."""

import contextlib
from functools import cache
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from pdtlib.engine.collectives import all_gather
from pdtlib.engine.data_parallel import data_parallel
from pdtlib.engine.dist import spawn
from pdtlib.engine.loss import IGNORED, TokenMean, token_loss_sum
from pdtlib.engine.mesh import Group, build_mesh
from pdtlib.engine.models import Transformer
from pdtlib.engine.optimizer import ShardedAdamW
from pdtlib.engine.pending import Pending
from pdtlib.engine.tensor_parallel import tensor_parallel, transformer_table
from pdtlib.engine.tensor_parallel.loss import vocab_parallel_loss_sum
from pdtlib.engine.tensor_parallel.table import ColumnCut, OutputCut, RowCut, VocabCut
from pdtlib.plan.job import from_dict
from pdtlib.plan.ledger import messages
from pdtlib.plan.predict import predict
from pdtlib.plan.spec import Job, Model

BATCH, MICRO_BATCHES, STEPS, CLIP, LR = 8, 2, 3, 0.5, 1e-2


def model(**fields: Any) -> Model:
    return from_dict(
        {"model": {"layers": 2, "hidden": 16, "heads": 4, "vocab": 30, "seq": 8, **fields}}
    ).model


MODELS = {
    "llama": model(ffn=20, kv_heads=2, activation="swiglu", norm="rmsnorm", qk_norm=True, vocab=31),
    "gpt": model(ffn=24, activation="gelu", norm="layernorm", biases="all", tied_embeddings=True),
    "one key": model(ffn=20, kv_heads=1, activation="swiglu", biases="qkv"),
}


def build(name: str, *, recompute: str = "none") -> Transformer:
    return Transformer(MODELS[name], seed=3, recompute=recompute, dtype=torch.float64)


def batch(name: str, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    vocab = MODELS[name].vocab
    tokens, targets = torch.randint(vocab, (2, BATCH, 8), generator=generator)
    targets[torch.rand(BATCH, 8, generator=generator) < 0.4] = IGNORED
    return tokens, targets


@cache
def one_process(name: str) -> dict[str, Any]:
    whole = build(name)
    optimizer = torch.optim.AdamW(whole.parameters(), lr=LR, weight_decay=0.1)
    losses, norms = [], []
    for step in range(STEPS):
        tokens, targets = batch(name, step)
        loss = token_loss_sum(whole(tokens), targets) / (targets != IGNORED).sum()
        loss.backward()
        norms.append(float(nn.utils.clip_grad_norm_(whole.parameters(), CLIP)))
        losses.append(float(loss.detach()))
        optimizer.step()
        optimizer.zero_grad()
    named = dict(whole.named_parameters())
    return {
        "losses": losses,
        "norms": norms,
        "master": {n: p.detach().clone() for n, p in named.items()},
        **{key: {n: optimizer.state[p][key] for n, p in named.items()} for key in ("exp_avg", "exp_avg_sq")},
    }


def train(name: str, *, stage: int, tp: int, dp: int, sequence: bool, recompute: str) -> dict[str, Any]:
    mesh = build_mesh({"dp": dp, "tp": tp})
    dp_group, tp_group = mesh.group("dp"), mesh.group("tp")
    spec = MODELS[name]
    part = build(name, recompute=recompute)
    cut = tensor_parallel(part, tp_group, table=transformer_table(spec), sequence=sequence)
    replica = data_parallel(part, dp_group, stage=stage, blocks=part.layers, bucket_bytes=4000, cut=cut)
    optimizer = ShardedAdamW(replica, lr=LR, weight_decay=0.1)
    losses, norms = [], []
    for step in range(STEPS):
        tokens, targets = (x.chunk(dp)[dp_group.rank] for x in batch(name, step))
        mean = TokenMean(dp_group, num_valid=int((targets != IGNORED).sum()))
        total = torch.zeros((), dtype=torch.float64)
        for number, (inputs, wanted) in enumerate(
            zip(tokens.chunk(MICRO_BATCHES), targets.chunk(MICRO_BATCHES), strict=True)
        ):
            with contextlib.nullcontext() if number == MICRO_BATCHES - 1 else replica.no_sync():
                loss = vocab_parallel_loss_sum(replica(inputs), wanted, tp_group, vocab=spec.vocab)
                mean.loss(loss).backward()
            total += loss.detach()
        replica.finish_gradients()
        losses.append(mean.report(total))
        norms.append(optimizer.clip_grad_norm(CLIP))
        optimizer.step()
        optimizer.zero_grad()
    return {"losses": losses, "norms": norms, "state": optimizer.full_state()}


def difference(name: str, found: dict[str, Any], group: Group) -> float:
    """Largest difference to the same part of one process's results."""
    expected = one_process(name)
    worst = max(
        abs(a - b) for key in ("losses", "norms") for a, b in zip(found[key], expected[key], strict=True)
    )
    for key in ("master", "exp_avg", "exp_avg_sq"):
        whole = build(name)
        with torch.no_grad():
            for n, param in whole.named_parameters():
                param.copy_(expected[key][n])
        tensor_parallel(whole, group, table=transformer_table(MODELS[name]))
        parts = dict(whole.named_parameters())
        assert parts.keys() == found["state"].keys()
        for n, part in parts.items():
            worst = max(worst, float((found["state"][n][key] - part.detach()).abs().max()))
    return worst


Layout = tuple[str, int, bool, str]


def layouts(tp: int, dp: int) -> list[Layout]:
    found: list[Layout] = [("gpt", 0, False, "none"), ("gpt", 3, True, "full")]
    found += [("llama", 0, False, "none"), ("llama", 0, True, "none"), ("llama", 3, True, "selective")]
    if dp == 1:  # fewer key/value heads than ranks; so has llama on 4
        found += [("one key", 0, False, "none"), ("one key", 1, True, "full")]
    if dp > 1:
        found += [("gpt", 1, True, "full"), ("llama", 2, False, "none"), ("gpt", 2, True, "none")]
    return found


def differences(tp: int, dp: int) -> dict[Layout, float]:
    group = build_mesh({"dp": dp, "tp": tp}).group("tp")
    return {
        (name, stage, sequence, recompute): difference(
            name,
            train(name, stage=stage, tp=tp, dp=dp, sequence=sequence, recompute=recompute),
            group,
        )
        for name, stage, sequence, recompute in layouts(tp, dp)
    }


@pytest.mark.parametrize(("tp", "dp"), [(2, 1), (4, 1), (2, 2)])
def test_equals_one_process(tp: int, dp: int) -> None:
    for rank, found in enumerate(spawn(differences, tp * dp, tp, dp, timeout_s=250)):
        wrong = {layout: value for layout, value in found.items() if not value < 1e-10}
        assert not wrong, f"rank {rank}: {wrong}"


# --- a user's own model -------------------------------------------------------------------------------------


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(6, 8)
        self.down = nn.Linear(8, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.tanh(self.up(x)))


class Own(nn.Module):
    """A tagger with an embedding that it shares with its output, a module of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(13, 6)
        self.parts = nn.Sequential(Mlp(), Mlp())
        self.out = nn.Linear(6, 13, bias=False)
        self.out.weight = self.words.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.out(self.parts(self.words(words)))


OWN = {
    "words": VocabCut(),
    "parts.[01]": ColumnCut(("up",)),
    "parts.*.down": RowCut(),
    "out": VocabCut(),
}


def own_model() -> list[float]:
    group = build_mesh({"tp": 2}).group("tp")
    torch.manual_seed(5)
    whole = Own().double()
    torch.manual_seed(5 + group.rank)  # a rank that starts elsewhere must not matter
    part = Own().double()
    cut = tensor_parallel(part, group, table=OWN)
    words = torch.arange(12).view(2, 6)
    targets = words.flip(1)
    replica = data_parallel(part, Group.alone(), cut=cut)
    expected = token_loss_sum(whole(words), targets)
    found = vocab_parallel_loss_sum(replica(words), targets, group, vocab=13)
    expected.backward()
    found.backward()
    replica.finish_gradients()
    grads = replica.full_gradients()
    assert part.out.weight is part.words.weight
    first, last = 7 * group.rank, min(13, 7 * group.rank + 7)
    return [
        float((found - expected).abs().detach()),
        float((grads["words.weight"][: last - first] - whole.words.weight.grad[first:last]).abs().max()),
        float((grads["parts.0.down.bias"] - whole.parts[0].down.bias.grad).abs().max()),
        float((grads["parts.1.up.bias"] - whole.parts[1].up.bias.grad.chunk(2)[group.rank]).abs().max()),
    ]


def test_a_table_for_a_users_own_model() -> None:
    for found in spawn(own_model, 2):
        assert max(found) < 1e-12


class Fused(nn.Module):
    """Gate and up in one matrix, of which each is cut by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_up = nn.Linear(6, 2 * 8)
        self.down = nn.Linear(8, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(nn.functional.silu(gate) * up)


def fused_layout() -> list[float]:
    group = build_mesh({"tp": 2}).group("tp")
    torch.manual_seed(5)
    whole, part = nn.Sequential(Fused()).double(), nn.Sequential(Fused()).double()
    part.load_state_dict(whole.state_dict())
    table = {"0": ColumnCut(("gate_up",), sections=(8, 8)), "0.down": RowCut()}
    tensor_parallel(part, group, table=table)
    xs = [torch.linspace(-1, 1, 24).double().view(2, 2, 6).requires_grad_() for _ in range(2)]
    outs = [net(x) for net, x in zip((whole, part), xs, strict=True)]
    for out in outs:
        out.square().sum().backward()
    of_whole = torch.cat([half.chunk(2)[group.rank] for half in whole[0].gate_up.weight.grad.chunk(2)])
    pairs = [outs, [x.grad for x in xs], [of_whole, part[0].gate_up.weight.grad]]
    return [float((a - b).abs().max().detach()) for a, b in pairs]


def test_fused_layouts() -> None:
    for found in spawn(fused_layout, 2):
        assert max(found) < 1e-12


class FusedHeads(nn.Module):
    """Queries, keys and values in one matrix, with 4, 2 and 2 heads of 3: parts of unequal sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(6, 24)
        self.o = nn.Linear(12, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.qkv(x).unflatten(-1, (-1, 3)).transpose(1, 2)  # [B, 8/t, S, 3]
        num = heads.shape[1] // 4
        q, k, v = heads.split((2 * num, num, num), dim=1)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)
        return self.o(mixed.transpose(1, 2).flatten(2))


def fused_heads() -> list[float]:
    group = build_mesh({"tp": 2}).group("tp")
    torch.manual_seed(6)
    whole, part = nn.Sequential(FusedHeads()).double(), nn.Sequential(FusedHeads()).double()
    part.load_state_dict(whole.state_dict())
    table = {"0": ColumnCut(("qkv",), unit=3, sections=(12, 6, 6)), "0.o": RowCut()}
    tensor_parallel(part, group, table=table)
    xs = [torch.linspace(-1, 1, 48).double().view(2, 4, 6).requires_grad_() for _ in range(2)]
    outs = [net(x) for net, x in zip((whole, part), xs, strict=True)]
    for out in outs:
        out.square().sum().backward()
    rows = [[0, 1, 2, 3, 4, 5, 12, 13, 14, 18, 19, 20], [6, 7, 8, 9, 10, 11, 15, 16, 17, 21, 22, 23]]
    mine = rows[group.rank]
    pairs = [
        outs,
        [x.grad for x in xs],
        [whole[0].qkv.weight.grad[mine], part[0].qkv.weight.grad],
        [whole[0].qkv.bias.grad[mine], part[0].qkv.bias.grad],
    ]
    return [float((a - b).abs().max().detach()) for a, b in pairs]


def test_fused_parts_of_unequal_sizes() -> None:
    for found in spawn(fused_heads, 2):
        assert max(found) < 1e-12


# --- messages, randomness, refusals -------------------------------------------------------------------------


def ledger_of(job: Job) -> list[dict[str, Any]]:
    mesh = build_mesh(job.parallel)
    train, spec = job.train, job.model
    part = Transformer(spec, seed=0, recompute=train.recompute)
    cut = tensor_parallel(
        part, mesh.group("tp"), table=transformer_table(spec), sequence=train.sequence_parallel
    )
    replica = data_parallel(part, mesh.group("dp"), stage=train.zero_stage, cut=cut)
    optimizer = ShardedAdamW(replica)
    mesh.ledger.clear()
    tokens = torch.randint(spec.vocab, (job.gradient_accumulation, train.micro_batch, spec.seq))
    for number, inputs in enumerate(tokens):
        with contextlib.nullcontext() if number == len(tokens) - 1 else replica.no_sync():
            vocab_parallel_loss_sum(replica(inputs), inputs, mesh.group("tp"), vocab=spec.vocab).backward()
    replica.finish_gradients()
    held = {**replica.held(), **optimizer.held()}
    optimizer.clip_grad_norm(1.0)
    optimizer.step()
    sizes = {kind: sum(t.untyped_storage().nbytes() for t in tensors) for kind, tensors in held.items()}
    return [*mesh.ledger.rows(), sizes]


def planned() -> list[Job]:
    llama = {"layers": 2, "hidden": 16, "heads": 4, "kv_heads": 2, "ffn": 20, "vocab": 30, "seq": 8}
    llama |= {"activation": "swiglu", "norm": "rmsnorm"}
    found = []
    for sequence in (False, True):
        for recompute, dropout in (("none", 0.0), ("full", 0.0), ("full", 0.1)):
            train = {
                "micro_batch": 2, "global_batch": 4, "precision": "fp32", "recompute": recompute,
                "sequence_parallel": sequence,
            }  # fmt: skip
            tables = {"model": {**llama, "dropout": dropout}, "train": train, "parallel": {"tp": 2}}
            found.append(from_dict(tables))
    return found


def ledgers(jobs: list[Job]) -> list[list[dict[str, Any]]]:
    return [ledger_of(job) for job in jobs]


def test_held_and_sent_equal_the_plan() -> None:
    for job, (*rows, held) in zip(planned(), spawn(ledgers, 2, planned())[0], strict=True):
        expected = [message.row() for message in messages(job) if message.axis == "tp"]
        found = [row for row in rows if row["axis"] == "tp"]
        assert sorted(found, key=str) == sorted(expected, key=str), job.train
        stage = predict(job)["memory"]["stages"][0]
        assert {kind: held[kind] for kind in ("params", "grads", "optimizer")} == {
            kind: stage[kind] for kind in ("params", "grads", "optimizer")
        }


class Dropping(nn.Module):
    """Dropout on what all ranks have, then on a rank's own columns, inside a checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        shared = nn.functional.dropout(x, 0.5)
        return shared, checkpoint(self.inner, shared, use_reentrant=False)


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(32, 64, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(self.up(x), 0.5).square()


def dropped(sequence: bool) -> dict[str, Any]:
    group = build_mesh({"tp": 2}).group("tp")
    torch.manual_seed(0)
    model = Dropping().double()
    tensor_parallel(model, group, table={"inner": ColumnCut(("up",), own_randomness=True)}, sequence=sequence)
    x = torch.ones(2, 4, 32, dtype=torch.float64, requires_grad=True)
    shared, own = model(x)
    numbers = torch.rand(3)
    own.sum().backward()
    # d(own)/d(weight) needs the very mask of the forward pass: (mask y)^2 -> 2 mask^2 y x.
    kept = (own != 0).double() * 2
    whole = torch.cat(list(all_gather(shared.detach()[None], group)), dim=1) if sequence else shared.detach()
    y = whole @ model.inner.up.weight.detach().t()
    expected = (2 * kept**2 * y).flatten(0, 1).t() @ whole.flatten(0, 1)
    return {
        "shared": (shared != 0).detach(),
        "own": (own != 0).detach(),
        "recomputed": float((model.inner.up.weight.grad - expected).abs().max()),
        "numbers": numbers,
    }


@pytest.mark.parametrize("sequence", [False, True])
def test_random_streams(sequence: bool) -> None:
    """Shared where activations are, each rank's own on its part; recomputation finds the same numbers."""
    one, two = spawn(dropped, 2, sequence)
    assert torch.equal(one["shared"], two["shared"]) is not sequence
    assert not torch.equal(one["own"], two["own"])
    assert torch.equal(one["numbers"], two["numbers"]), "the shared stream goes on alike"
    assert one["recomputed"] < 1e-12
    assert two["recomputed"] < 1e-12


def refusals() -> list[str]:
    group = build_mesh({"tp": 2}).group("tp")
    gqa = Transformer(MODELS["llama"], seed=0)
    gqa.layers[1].attn.k = nn.Linear(16, 12, bias=False)
    cases = [
        (Own(), {"nothing.*": RowCut()}),
        (Own(), {"words": RowCut()}),
        (Own(), {"parts": VocabCut()}),
        (Own(), {"": OutputCut()}),
        (nn.Sequential(nn.Linear(3, 2)), {"0": RowCut()}),
        (gqa, transformer_table(MODELS["llama"])),
    ]
    texts = []
    for module, table in cases:
        with pytest.raises(ValueError) as error:  # noqa: PT011 - the texts are compared below
            tensor_parallel(module, group, table=table)
        texts.append(str(error.value))
    model = build("gpt")
    tensor_parallel(model, group, table=transformer_table(MODELS["gpt"]), sequence=True)
    with pytest.raises(
        ValueError, match="a sequence of 5 positions: sequence parallelism needs a multiple of tp=2"
    ):
        model(torch.zeros(1, 5, dtype=torch.long))
    return texts


def test_what_cannot_be_cut_is_refused() -> None:
    assert spawn(refusals, 2)[0] == [
        "table: 'nothing.*' matches no module of Own",
        "table: words is a Embedding; this style needs an nn.Linear",
        "table: parts must be an nn.Embedding or an nn.Linear without bias",
        "table: Own '' has no function named output",
        "a parameter of shape (2, 3): dim 1 must be a multiple of tp=2",
        "layers.1.attn.k: 3 parts of 4 columns do not divide by tp=2",
    ]


def events_of_backward() -> list[str]:
    """Which comes first in the backward pass of a column cut: the weights' gradients, or the end of the
    sum."""
    group = build_mesh({"tp": 2}).group("tp")
    model = nn.Sequential(Mlp())
    tensor_parallel(model, group, table={"0": ColumnCut(("up",)), "0.down": RowCut()})
    x = torch.ones(1, 2, 6, requires_grad=True)
    loss = model(x).sum()
    events = []
    wait = Pending.wait

    def noted(pending: Pending) -> None:
        events.append("wait")
        wait(pending)

    class Products(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function is torch.ops.aten.mm.default:
                events.append("product")
            return function(*args, **(kwargs or {}))

    with mock.patch.object(Pending, "wait", noted), Products():
        loss.backward()
    return events


def test_the_sum_travels_while_weight_gradients_are_computed() -> None:
    events = spawn(events_of_backward, 2)[0]
    assert events.count("wait") == 1
    assert events[-1] == "wait", "after the last product"
    assert events.count("product") >= 4
