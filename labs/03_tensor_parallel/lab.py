"""Lab 03: one layer on several ranks equals one process, and holds and sends what the plan says.

Four parts. The article's linear layer, as printed and with what it lacks. An MLP cut by columns, then by
rows, against the same with a gather after every layer. A whole model. The cross-entropy of logits that nobody
has whole. The lab exits with 1 if a byte is off on any rank or a value differs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from snippet import TensorParallelLinear
from torch import Tensor, nn

from pdtlib.book.lab_parser import LabParser
from pdtlib.book.measured import Row, conclude, random, relative_difference
from pdtlib.engine.collectives import all_gather
from pdtlib.engine.dist import init
from pdtlib.engine.loss import token_loss_sum
from pdtlib.engine.mesh import Mesh, build_mesh
from pdtlib.engine.models import Transformer
from pdtlib.engine.tensor_parallel import tensor_parallel, transformer_table
from pdtlib.engine.tensor_parallel.loss import vocab_parallel_loss_sum
from pdtlib.engine.tensor_parallel.table import ColumnCut, RowCut
from pdtlib.plan.comm import sent_bytes
from pdtlib.plan.job import Job, from_dict
from pdtlib.plan.ledger import messages
from pdtlib.plan.placement import rank_tensors

LAUNCH = "torchrun --standalone --nproc-per-node 4 labs/03_tensor_parallel/lab.py"
ASSIGNED = ("snippet_rows", "mlp_rows")

LAPTOP = {
    "layers": 3,
    "hidden": 64,
    "heads": 8,
    "kv_heads": 4,
    "ffn": 176,
    "vocab": 512,
    "seq": 64,
    "activation": "swiglu",
}
GPU = {
    **LAPTOP,
    "layers": 8,
    "hidden": 2048,
    "heads": 16,
    "kv_heads": 8,
    "ffn": 5632,
    "vocab": 32000,
    "seq": 2048,
}
GPU_LARGE = {**GPU, "layers": 16, "hidden": 4096, "heads": 32, "ffn": 11264, "seq": 4096}
PRESETS = {"laptop": LAPTOP, "gpu": GPU, "gpu-large": GPU_LARGE}
MICRO_BATCH, SEED = 2, 0
FP64, FP32 = 1e-12, 1e-4  # tolerances of a relative difference


def snippet_rows(mesh: Mesh, hidden: int) -> Iterator[Row]:
    """The article's layer: the output, the gradient of the input, and the rank of the weight."""
    group, part = mesh.group("tp"), "the article's linear layer"
    x = random(16, hidden, seed=1, device=mesh.device)
    upstream = random(16, hidden, seed=2, device=mesh.device)
    for name, complete in (("as printed", False), ("with the all-reduce", True)):
        layer = TensorParallelLinear(hidden, hidden, group, seed=10 + group.rank, complete=complete)
        layer.to(mesh.device)
        whole = layer.whole_weight()
        own = x.clone().requires_grad_()
        y = layer(own)
        y.backward(upstream)
        expected = upstream @ whole
        assert own.grad is not None
        error = float((own.grad - expected).norm() / expected.norm())
        if not complete:
            yield Row(part, "difference of the output", 0, relative_difference(y, x @ whole.T), FP64)
            # One of t independent parts of a sum is off by sqrt(1 - 1/t) of the sum.
            off = (1 - 1 / group.size) ** 0.5
            yield Row(part, f"error of the input's gradient, {name}", off, error, 0.2)
        else:
            yield Row(part, f"error of the input's gradient, {name}", 0, error, FP64)
    alike = TensorParallelLinear(hidden, hidden, group, seed=10)
    rank = torch.linalg.matrix_rank(alike.to(mesh.device).whole_weight())
    yield Row(part, "rank of the weight if all ranks draw alike", hidden // group.size, int(rank))


class Mlp(nn.Module):
    """``down(gelu(up(x)))``. x: [B, S, h] -> [B, S, h]."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.up = nn.Linear(hidden, 4 * hidden)
        self.down = nn.Linear(4 * hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


def mlp_rows(mesh: Mesh, hidden: int, seq: int) -> Iterator[Row]:
    """Column cut, then row cut, against one process and against a gather after every layer."""
    group, part = mesh.group("tp"), "an MLP of h, 4h, h in float64"
    torch.manual_seed(SEED)
    whole = Mlp(hidden).double().to(mesh.device)
    torch.manual_seed(SEED)
    cut = Mlp(hidden).double().to(mesh.device)
    tensor_parallel(cut, group, table={"": ColumnCut(("up",)), "down": RowCut()})
    x = random(MICRO_BATCH, seq, hidden, seed=3, device=mesh.device)
    upstream = random(MICRO_BATCH, seq, hidden, seed=4, device=mesh.device)
    alone, split = x.clone().requires_grad_(), x.clone().requires_grad_()
    expected = whole(alone)
    expected.backward(upstream)
    mesh.ledger.clear()
    y = cut(split)
    forward = mesh.ledger.sent_bytes_per_rank()
    y.backward(upstream)
    sent = mesh.ledger.sent_bytes_per_rank()
    assert split.grad is not None
    assert alone.grad is not None
    rows = slice(group.rank * whole.up.out_features // group.size, None)
    pairs = {
        "output": (y, expected),
        "the input's gradient": (split.grad, alone.grad),
        "the rank's columns' gradient": (
            cut.up.weight.grad,
            whole.up.weight.grad[rows][: cut.up.weight.shape[0]],
        ),
        "the rank's rows' gradient": (
            cut.down.weight.grad,
            whole.down.weight.grad[:, rows][:, : cut.down.weight.shape[1]],
        ),
    }
    for name, (got, wanted) in pairs.items():
        yield Row(part, f"difference of {name}", 0, relative_difference(got, wanted), FP64)
    block = x.numel() * x.element_size()
    once = sent_bytes("all_reduce", block, group.size)
    yield Row(part, "bytes sent forward: one all-reduce", round(once), round(forward))
    yield Row(part, "bytes sent backward: one all-reduce", round(once), round(sent - forward))
    layers = [
        TensorParallelLinear(size, 5 * hidden - size, group, seed=20 + group.rank, complete=True)
        for size in (hidden, 4 * hidden)
    ]
    up, down = (layer.to(mesh.device) for layer in layers)
    mesh.ledger.clear()
    down(F.gelu(up(x.clone().requires_grad_()))).backward(upstream)
    gathers = sent_bytes("all_gather", 5 * block, group.size)
    sums = sent_bytes("all_reduce", 5 * block, group.size)
    yield Row(
        part,
        "bytes sent, a gather after every layer",
        round(gathers + sums),
        round(mesh.ledger.sent_bytes_per_rank()),
    )


def model_rows(mesh: Mesh, job: Job) -> Iterator[Row]:
    """A Transformer: loss and gradients, bytes held, and every message of the forward and backward pass."""
    group, part = mesh.group("tp"), f"a Transformer of {job.model.layers} layers in fp32"
    tokens, targets = _batch(job, mesh.device)
    whole = Transformer(job.model, seed=SEED, device=mesh.device)
    expected = token_loss_sum(whole(tokens), targets)
    expected.backward()
    cut = Transformer(job.model, seed=SEED, device=mesh.device)
    tensor_parallel(cut, group, table=transformer_table(job.model))
    mesh.ledger.clear()
    loss = vocab_parallel_loss_sum(cut(tokens), targets, group, vocab=job.model.vocab)
    loss.backward()
    rows = mesh.ledger.rows()
    yield Row(part, "difference of the loss", 0, relative_difference(loss, expected), FP32)
    with torch.no_grad():  # cut the whole gradients as the parameters are cut
        for param in whole.parameters():
            param.copy_(param.grad)
    tensor_parallel(whole, group, table=transformer_table(job.model))
    parts = dict(whole.named_parameters())
    worst = max(relative_difference(p.grad, parts[name]) for name, p in cut.named_parameters())
    yield Row(part, "largest difference of a gradient", 0, worst, FP32)
    held = sum(param.numel() * param.element_size() for param in cut.parameters())
    yield Row(part, "bytes of parameters held", 4 * sum(spec.numel for spec in rank_tensors(job, 0)), held)
    planned = [message.row() for message in messages(job) if message.axis == "tp"]
    for phase in ("forward", "backward", "loss"):
        counts, sent = (
            [_total(found, phase, key) for found in (planned, rows)]
            for key in ("count", "sent_bytes_per_rank")
        )
        yield Row(part, f"all-reduces, {phase}", *counts)
        yield Row(part, f"bytes sent, {phase}", *sent)


def _total(rows: list[dict[str, Any]], phase: str, key: str) -> int:
    return round(sum(row[key] for row in rows if row["phase"] == phase))


def _batch(job: Job, device: torch.device) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(SEED)
    both = torch.randint(job.model.vocab, (2, MICRO_BATCH, job.model.seq), generator=generator)
    return both[0].to(device), both[1].to(device)


def loss_rows(mesh: Mesh, job: Job) -> Iterator[Row]:
    """The loss from each rank's own columns of the logits, against gathering the logits."""
    group, part, vocab = mesh.group("tp"), "cross-entropy of cut logits, fp32", job.model.vocab
    tokens = MICRO_BATCH * job.model.seq
    logits = 8 * random(MICRO_BATCH, job.model.seq, vocab, seed=5, device=mesh.device).float()
    _, targets = _batch(job, mesh.device)
    whole = logits.clone().requires_grad_()
    expected = token_loss_sum(whole, targets)
    expected.backward()
    assert whole.grad is not None
    columns = logits.chunk(group.size, dim=-1)[group.rank].clone().requires_grad_()
    mesh.ledger.clear()
    loss = vocab_parallel_loss_sum(columns, targets, group, vocab=vocab)
    loss.backward()
    sent = mesh.ledger.sent_bytes_per_rank()
    mine = whole.grad.chunk(group.size, dim=-1)[group.rank]
    assert columns.grad is not None
    yield Row(part, "difference of the loss", 0, relative_difference(loss, expected), FP32)
    yield Row(part, "difference of the logits' gradient", 0, relative_difference(columns.grad, mine), FP32)
    three = 3 * sent_bytes("all_reduce", 4 * tokens, group.size)
    yield Row(part, "bytes sent: three numbers a token", round(three), round(sent))
    mesh.ledger.clear()
    all_gather(columns.detach().movedim(-1, 0).contiguous(), group)
    gathered = sent_bytes("all_gather", 4 * tokens * vocab, group.size)
    yield Row(
        part, "bytes sent to gather the logits", round(gathered), round(mesh.ledger.sent_bytes_per_rank())
    )


def main() -> int:
    parser = LabParser(__doc__, PRESETS)
    options = parser.parse_args()
    device = init("gloo" if options.preset == "laptop" else None)
    tp = int(os.environ.get("WORLD_SIZE", "1"))
    mesh = build_mesh({"tp": tp}, device_type=device.type)
    job = from_dict(
        {
            "model": PRESETS[options.preset],
            "train": {"micro_batch": MICRO_BATCH, "precision": "fp32"},
            "parallel": {"tp": tp},
        }
    )
    model = job.model
    rows = [
        *snippet_rows(mesh, model.hidden),
        *mlp_rows(mesh, model.hidden, model.seq),
        *model_rows(mesh, job),
        *loss_rows(mesh, job),
    ]
    return conclude(
        rows,
        mesh.group("tp"),
        heading=f"{tp} processes on {device.type}: h={model.hidden} heads={model.heads} "
        f"kv_heads={model.kv_heads} V={model.vocab}, {MICRO_BATCH} sequences of {model.seq} tokens",
        report={
            "lab": "03",
            "preset": options.preset,
            "device": device.type,
            "world_size": tp,
            "vocab": model.vocab,
        },
        path=options.json,
    )


if __name__ == "__main__":
    sys.exit(main())
