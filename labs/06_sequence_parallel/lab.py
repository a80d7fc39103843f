"""Lab 06: four ways to cut a long sequence are one training, and keep and send what the plan says.

First the article's attention, whose reduce-scatter multiplies by the number of ranks, and two right ones.
Then ring attention and Ulysses against dense attention. Then the gradient of a norm that has seen only some
of the positions. Last a model trained with tensor parallelism, with sequence parallelism on top, with Ulysses
and with the ring: losses, bytes kept for the backward pass and every message. Exits with 1 when anything is
off.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

import torch
from article import FP64, article_rows
from torch import Tensor

from pdtlib.book.lab_parser import LabParser
from pdtlib.book.measured import Row, conclude, random, relative_difference
from pdtlib.engine.context_parallel import ContextSplit
from pdtlib.engine.context_parallel.ring import ring_attention
from pdtlib.engine.context_parallel.ulysses import ulysses_attention
from pdtlib.engine.dist import init
from pdtlib.engine.loss import token_loss_sum
from pdtlib.engine.mesh import Mesh, build_mesh
from pdtlib.engine.models import Transformer
from pdtlib.engine.models.attention import softmax_attention
from pdtlib.engine.optimizer import ShardedAdamW
from pdtlib.engine.parallelize import parallelize
from pdtlib.engine.tensor_parallel import tensor_parallel, transformer_table
from pdtlib.engine.tensor_parallel.loss import vocab_parallel_loss_sum
from pdtlib.engine.tensor_parallel.regions import start_sum
from pdtlib.engine.training.step import compute_gradients
from pdtlib.observe.memory import ActivationMeter, held_bytes
from pdtlib.plan.job import Job, from_dict
from pdtlib.plan.ledger import messages
from pdtlib.plan.memory import stage_memory
from pdtlib.plan.placement import rank_tensors

LAUNCH = "torchrun --standalone --nproc-per-node 4 labs/06_sequence_parallel/lab.py"
ASSIGNED = ("attention_rows", "norm_rows")

LAPTOP = {
    "layers": 2,
    "hidden": 64,
    "heads": 8,
    "kv_heads": 4,
    "ffn": 176,
    "vocab": 256,
    "seq": 256,
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
    "seq": 8192,
}
GPU_LARGE = {**GPU, "layers": 16, "hidden": 4096, "heads": 32, "ffn": 11264, "seq": 16384}
PRESETS = {"laptop": LAPTOP, "gpu": GPU, "gpu-large": GPU_LARGE}
SEED, STEPS = 0, 3
FP32 = 1e-4  # tolerance of a relative difference
WAYS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    # axis of the mesh, more of [parallel], more of [train]
    "TP alone": ("tp", {}, {}),
    "TP with SP": ("tp", {}, {"sequence_parallel": True}),
    "Ulysses": ("cp", {"context": "ulysses"}, {}),
    "ring attention": ("cp", {"context": "ring"}, {}),
}


def attention_rows(mesh: Mesh, heads: int, kv_heads: int, seq: int) -> Iterator[Row]:
    """Ring attention and Ulysses against dense attention: output and three gradients."""
    group, part = mesh.group("cp"), "attention over a cut sequence, in float64"
    for kind, attention in (("ring", ring_attention), ("ulysses", ulysses_attention)):
        split = ContextSplit(group, kind)
        shapes = [(1, count, seq, 8) for count in (heads, kv_heads, kv_heads, heads)]
        *inputs, upstream = (
            random(*shape, seed=seed, device=mesh.device) for seed, shape in enumerate(shapes)
        )
        whole = [x.clone().requires_grad_() for x in inputs]
        own = [split.take(x, dim=2).clone().requires_grad_() for x in inputs]
        expected = softmax_attention(*whole, dropout=0.0)
        (expected * upstream).sum().backward()
        got = attention(*own, dropout=0.0, group=group)
        (got * split.take(upstream, dim=2)).sum().backward()
        yield Row(
            part,
            f"difference of the output, {kind}",
            0,
            relative_difference(got, split.take(expected, dim=2)),
            FP64,
        )
        worst = max(
            relative_difference(mine.grad, split.take(theirs.grad, dim=2))
            for mine, theirs in zip(own, whole, strict=True)
        )
        yield Row(part, f"difference of the gradients of q, k, v, {kind}", 0, worst, FP64)


def norm_rows(mesh: Mesh, job: Job) -> Iterator[Row]:
    """A norm's gradient under sequence parallelism, before and after its sum over the ranks."""
    group, part = mesh.group("tp"), "the gradient of a norm under SP, in float64"
    tokens, targets = _batch(job, mesh.device)
    whole, cut = (
        Transformer(job.model, seed=SEED, device=mesh.device, dtype=torch.float64) for _ in range(2)
    )
    tensor_parallel(cut, group, table=transformer_table(job.model), sequence=True)
    token_loss_sum(whole(tokens), targets).backward()
    vocab_parallel_loss_sum(cut(tokens), targets, group, vocab=job.model.vocab).backward()
    right, own = (model.layers[0].mlp_norm.weight.grad for model in (whole, cut))
    # One of t independent parts of a sum is off by sqrt(1 - 1/t) of the sum.
    off = (1 - 1 / group.size) ** 0.5
    error = float((own - right).norm() / right.norm())
    yield Row(part, "error on this rank, from its positions alone", off, error, 0.3)
    total, pending = start_sum(own, group, phase="grads")
    pending.wait()
    yield Row(part, "difference after the sum over the ranks", 0, relative_difference(total, right), FP64)


def _batch(job: Job, device: torch.device) -> tuple[Tensor, Tensor]:
    """Tokens and the tokens that follow."""
    generator = torch.Generator().manual_seed(SEED)
    shape = (job.train.micro_batch, job.model.seq + 1)
    both = torch.randint(job.model.vocab, shape, generator=generator).to(device)
    return both[:, :-1], both[:, 1:]


def train(job: Job, mesh: Mesh) -> dict[str, Any]:
    """Train for a few steps on one batch: losses and norms, then what one forward pass keeps."""
    parts = parallelize(job, mesh, device=mesh.device)
    optimizer = ShardedAdamW(parts.replica, lr=1e-3)
    tokens, targets = (parts.take(part).contiguous() for part in _batch(job, mesh.device))
    steps, sent = [], []
    for step in range(STEPS):
        mesh.ledger.clear()
        steps.append(compute_gradients(parts, optimizer, [(tokens, targets)], step=step, max_norm=1.0))
        sent = mesh.ledger.rows()
        optimizer.step()
        optimizer.zero_grad()
    params = parts.replica.held()["params"]
    inputs, wanted = tokens.clone(), targets.clone()
    with parts.replica.no_sync():
        with ActivationMeter(excluded=[*parts.replica.parameters(), *params]) as meter:
            loss = parts.loss_sum(parts.replica(inputs), wanted)
        kept = meter.held_bytes
        loss.backward()
    return {
        "losses": [step.loss for step in steps],
        "norms": [step.grad_norm for step in steps],
        "kept": kept,
        "held": held_bytes(params),
        "sent": sent,
    }


def way_rows(mesh: Mesh, name: str, job: Job, alone: dict[str, Any]) -> Iterator[Row]:
    """One way to cut: losses and norms of one process, bytes held and kept, and every message of a pass."""
    found, part = train(job, mesh), f"{name}: a model in fp32"
    for key in ("losses", "norms"):
        pairs = zip(found[key], alone[key], strict=True)
        worst = max(abs(got - wanted) / abs(wanted) for got, wanted in pairs)
        yield Row(part, f"largest difference of the {key}", 0, worst, FP32)
    held = 4 * sum(spec.numel for spec in rank_tensors(job, 0))
    yield Row(part, "bytes of parameters held", held, found["held"])
    if mesh.device.type == "cpu":  # the plan knows what each tensor's kernel keeps; on GPUs see lab 01
        plan = stage_memory(job, 0)
        yield Row(part, "bytes kept for the backward pass", plan.activations + plan.logits, found["kept"])
    planned = [message.row() for message in messages(job) if message.axis in ("tp", "cp")]
    measured = [row for row in found["sent"] if row["axis"] in ("tp", "cp")]
    for phase in ("forward", "backward"):
        counts = [sum(row["count"] for row in rows if row["phase"] == phase) for rows in (planned, measured)]
        yield Row(part, f"messages {phase}", *counts)
        sent = [
            round(sum(row["sent_bytes_per_rank"] for row in rows if row["phase"] == phase))
            for rows in (planned, measured)
        ]
        yield Row(part, f"bytes sent {phase}", *sent)


def main() -> int:
    parser = LabParser(__doc__, PRESETS)
    options = parser.parse_args()
    device = init("gloo" if options.preset == "laptop" else None)
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    over = {axis: build_mesh({axis: ranks}, device_type=device.type) for axis in ("tp", "cp")}
    base = {"model": PRESETS[options.preset], "train": {"micro_batch": 1, "precision": "fp32"}}
    one = from_dict(base)
    jobs = {
        name: from_dict({**base, "train": {**base["train"], **more}, "parallel": {axis: ranks, **parallel}})
        for name, (axis, parallel, more) in WAYS.items()
    }
    model = one.model
    rows = [
        *article_rows(over["tp"].group("tp"), 64, 8, 64, device=device),
        *attention_rows(over["cp"], 8, 4, 64),
        *norm_rows(over["tp"], from_dict({**base, "model": {**LAPTOP, "layers": 1}})),
    ]
    alone = train(one, Mesh(None, device))
    for name, (axis, _, _) in WAYS.items():
        rows += way_rows(over[axis], name, jobs[name], alone)
    return conclude(
        rows,
        over["tp"].group("tp"),
        heading=f"{ranks} processes on {device.type}: {model.layers} layers, h={model.hidden} "
        f"heads={model.heads} kv_heads={model.kv_heads}, one sequence of {model.seq} tokens, {STEPS} steps",
        report={
            "lab": "06",
            "preset": options.preset,
            "device": device.type,
            "world_size": ranks,
            "kept_alone": alone["kept"],
        },
        path=options.json,
    )


if __name__ == "__main__":
    sys.exit(main())
