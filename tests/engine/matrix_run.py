"""One case of the matrix against one plain torch process in float64, and its bytes against the plan."""

from typing import Any

import torch
from matrix_cases import Case, job_of
from torch import Tensor, nn

from pdtlib.engine.dropout import DropoutSeeds
from pdtlib.engine.loss import IGNORED, token_loss_sum
from pdtlib.engine.mesh import Mesh, build_mesh
from pdtlib.engine.models import Transformer
from pdtlib.engine.optimizer import ShardedAdamW
from pdtlib.engine.parallelize import Parallelized, parallelize
from pdtlib.engine.training.loop import decay_groups
from pdtlib.engine.training.options import RANK_ORDERS
from pdtlib.engine.training.pieces import parts_to_read, parts_to_write, place_in
from pdtlib.engine.training.step import compute_gradients
from pdtlib.observe.memory import held_bytes
from pdtlib.plan.flats import held_bytes as planned_bytes
from pdtlib.plan.ledger import messages
from pdtlib.plan.params import count
from pdtlib.plan.spec import Job

STEPS, CLIP, LR, DECAY = 3, 0.5, 1e-2, 0.1
WIDER = 2
"""A float64 is twice the fp32 that the plan counts."""
NUMBERS = ("tokens", "grad_norm", "routing")
"""Phases whose messages have 8-byte numbers in every precision."""

Reference = dict[str, Tensor]
"""Losses and norms, and under their checkpoint's keys all weights and moments."""


def batch(job: Job, step: int) -> tuple[Tensor, Tensor]:
    """Tokens and targets [B, S]; how many targets are valid differs widely by row."""
    generator = torch.Generator().manual_seed(step)
    shape = (job.train.global_batch, job.model.seq)
    tokens, targets = torch.randint(job.model.vocab, (2, *shape), generator=generator)
    lengths = torch.randint(1, job.model.seq + 1, (shape[0], 1), generator=generator)
    targets[torch.arange(job.model.seq) >= lengths] = IGNORED
    return tokens, targets


def reference_key(job: Job) -> str:
    """What one process's run depends on. Dropout masks are drawn by the micro-batch."""
    return f"{job.model}" + (f" by {job.train.micro_batch}" if job.model.dropout else "")


def one_process(job: Job) -> Reference:
    """Train the whole model with torch alone."""
    model = Transformer(job.model, seed=job.train.seed, dtype=torch.float64)
    masks = DropoutSeeds(model, seed=job.train.seed, first_micro_batch=0)
    optimizer = torch.optim.AdamW(decay_groups(model, weight_decay=DECAY), lr=LR)
    losses, norms = [], []
    for step in range(STEPS):
        tokens, targets = batch(job, step)
        total = torch.zeros((), dtype=torch.float64)
        for index, rows in enumerate(torch.arange(len(tokens)).split(job.train.micro_batch)):
            masks.begin(step, index)
            loss = token_loss_sum(model(tokens[rows]), targets[rows]) / (targets != IGNORED).sum()
            loss.backward()
            total += loss.detach()
        losses.append(float(total))
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), CLIP)))
        optimizer.step()
        optimizer.zero_grad()
    found = {"losses": torch.tensor(losses), "norms": torch.tensor(norms)}
    for name, param in model.named_parameters():
        found[f"model.{name}"] = param.detach()
        for moment in ("exp_avg", "exp_avg_sq"):
            found[f"optimizer.{moment}.{name}"] = optimizer.state[param][moment]
    return found


def run(case: Case, expected: Reference) -> list[str]:
    """Train the case as one of its ranks; returns what is wrong."""
    job = job_of(case)
    mesh = build_mesh(job.parallel, order=RANK_ORDERS[case["order"]])
    parts = parallelize(job, mesh, dtype=torch.float64)
    optimizer = ShardedAdamW(
        parts.replica, groups=decay_groups(parts.replica.module, weight_decay=DECAY), lr=LR
    )
    losses, norms, problems = [], [], []
    for step in range(STEPS):
        mesh.ledger.clear()
        found = compute_gradients(parts, optimizer, micro_batches(parts, step), step=step, max_norm=CLIP)
        if step == 0:
            problems += wrong_states(job, mesh, optimizer)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(found.loss)
        norms.append(found.grad_norm)
        problems += wrong_messages(job, mesh)
    place = place_in(job, tp_rank=mesh.group("tp").rank)
    problems += far("loss", torch.tensor(losses), expected["losses"])
    problems += far("gradient norm", torch.tensor(norms), expected["norms"])
    for key, boxes in parts_to_read(optimizer, place=place).items():
        for box in boxes:
            problems += within(key, expected[key], box.boxes())
    problems += wrong_parameters(parts, expected, place)
    shares = parts_to_write(optimizer, place=place)
    written = sum(box.values.numel() for key, boxes in shares.items() if key[:6] == "model." for box in boxes)
    total = torch.tensor(written)
    if torch.distributed.is_initialized():
        torch.distributed.all_reduce(total)
    if int(total) != count(job.model).total:
        problems.append(f"a checkpoint would hold {int(total)} of {count(job.model).total} parameters")
    return problems


def micro_batches(parts: Parallelized, step: int) -> list[tuple[Tensor, Tensor]]:
    """This rank's part of :func:`batch`."""
    dp, size = parts.mesh.group("dp"), parts.job.train.micro_batch
    rows = [part.chunk(dp.size)[dp.rank].split(size) for part in batch(parts.job, step)]
    return [(parts.take(tokens), parts.take(targets)) for tokens, targets in zip(*rows, strict=True)]


def far(what: str, found: Tensor, expected: Tensor) -> list[str]:
    """A line where the difference is 1e-9 or more, or no number."""
    worst = float((found.double() - expected).abs().max())
    return [] if worst < 1e-9 else [f"{what} differs by {worst:.1e}"]


def within(key: str, expected: Tensor, boxes) -> list[str]:
    """Compare boxes (offsets, values) with the same places of a whole tensor."""
    problems = []
    for offsets, values in boxes:
        there = tuple(slice(at, at + size) for at, size in zip(offsets, values.shape, strict=True))
        problems += far(f"{key} at {offsets}", values, expected[there])
    return problems


def wrong_parameters(parts: Parallelized, expected: Reference, place) -> list[str]:
    """Whole parameters after the last update, which ranks without the states got from others."""
    problems = []
    for name, value in parts.replica.full_parameters().items():
        shape, offsets = place(name, tuple(value.shape))
        ends = [min(size, part + at) - at for size, part, at in zip(shape, value.shape, offsets, strict=True)]
        if min(ends) > 0:
            box = value[tuple(map(slice, ends))]
            problems += within(f"parameter {name}", expected[f"model.{name}"], [(offsets, box)])
    return problems


def wrong_states(job: Job, mesh: Mesh, optimizer: ShardedAdamW) -> list[str]:
    """Bytes held between the gradients and the update that are not the planned ones."""
    held = {**optimizer.replica.held(), **optimizer.held()}
    planned = planned_bytes(job, mesh.group("pp").rank)
    problems = []
    for kind in ("params", "grads", "optimizer"):
        found, expected = held_bytes(held[kind]), WIDER * getattr(planned, kind)
        if found != expected:
            problems.append(f"{kind} hold {found} bytes, planned are {expected}")
    return problems


def wrong_messages(job: Job, mesh: Mesh) -> list[str]:
    """Rows of the ledger that are not the planned ones, in number, size or bytes sent.

    How many tokens a rank sends to experts is the router's choice, so of those messages the number counts.
    """
    place = mesh.place
    data_rank = place["dp"] * job.parallel.cp + place["cp"]
    planned = by_kind([message.row() for message in messages(job, place["pp"], data_rank)], wider=WIDER)
    found = by_kind([row for row in mesh.ledger.rows() if row["phase"] != "init"])
    return [
        f"{' '.join(map(str, key))}: {found.get(key)} sent, {planned.get(key)} planned (count, bytes)"
        for key in sorted(planned.keys() | found.keys(), key=str)
        if planned.get(key) != found.get(key)
    ]


def by_kind(rows: list[dict[str, Any]], *, wider: int = 1) -> dict[tuple[Any, ...], tuple[int, float]]:
    """Axis, collective, phase and size -> calls and bytes; ``wider`` multiplies what is no 8-byte number."""
    found: dict[tuple[Any, ...], tuple[int, float]] = {}
    for row in rows:
        tiny = row["phase"] in NUMBERS or (row["phase"] == "loss" and row["axis"] != "tp")
        times = 1 if tiny else wider
        size, sent = times * row["message_bytes"], times * row["sent_bytes_per_rank"]
        if row["axis"] == "ep" and row["phase"] in ("forward", "recompute", "backward"):
            size, sent = "routed", 0.0
        key = (row["axis"], row["collective"], row["phase"], size)
        calls, before = found.get(key, (0, 0.0))
        found[key] = calls + row["count"], before + sent
    return found
