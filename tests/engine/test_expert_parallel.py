"""Mixtures of experts in many layouts equal one process in float64, and send what the plan says."""

from collections import Counter
from functools import cache
from typing import Any

import pytest
import torch
from torch import nn

from pdtlib.engine.dist import spawn
from pdtlib.engine.expert_parallel import Exchange, expert_parallel
from pdtlib.engine.loss import IGNORED, token_loss_sum
from pdtlib.engine.mesh import Mesh, build_mesh
from pdtlib.engine.models import MoE, Transformer
from pdtlib.engine.models.balance import balance_loss
from pdtlib.engine.models.moe import route
from pdtlib.engine.optimizer import ShardedAdamW
from pdtlib.engine.parallelize import parallelize
from pdtlib.engine.tensor_parallel import tensor_parallel, transformer_table
from pdtlib.engine.training.step import compute_gradients
from pdtlib.plan.job import from_dict
from pdtlib.plan.ledger import messages
from pdtlib.plan.spec import Job, JobError

BATCH, MICRO_BATCH, STEPS, CLIP, LR = 8, 2, 3, 0.5, 1e-2
MODEL = {
    "layers": 2, "hidden": 16, "heads": 4, "kv_heads": 2, "vocab": 30, "seq": 8, "activation": "swiglu",
    "moe": {"experts": 4, "top_k": 2, "ffn": 12, "aux_loss": 0.1},
}  # fmt: skip
DROPPING = {**MODEL, "moe": {**MODEL["moe"], "capacity_factor": 0.8}}

Layout = tuple[dict[str, Any], dict[str, Any], dict[str, Any]]
LAYOUTS: dict[int, dict[str, Layout]] = {
    2: {
        "dp2": (MODEL, {"dp": 2}, {"zero_stage": 2}),
        "ep2": (MODEL, {"dp": 2, "ep": 2}, {}),
        "ep2 zero3": (MODEL, {"dp": 2, "ep": 2}, {"zero_stage": 3, "recompute": "full"}),
        "ep2 dropping": (DROPPING, {"dp": 2, "ep": 2}, {"zero_stage": 1}),
        "tp2": (MODEL, {"tp": 2}, {"recompute": "full"}),
        "tp2 sp": (DROPPING, {"tp": 2}, {"sequence_parallel": True}),
        "cp2 ep2": (MODEL, {"cp": 2, "ep": 2}, {"zero_stage": 1}),
        "pp2": (MODEL, {"pp": 2}, {}),
    },
    4: {
        "ep4": (MODEL, {"dp": 4, "ep": 4}, {}),
        "ep4 zero2": (MODEL, {"dp": 4, "ep": 4}, {"zero_stage": 2}),
        "dp4 ep2": (MODEL, {"dp": 4, "ep": 2}, {"recompute": "full"}),
        "dp4 ep2 zero1": (MODEL, {"dp": 4, "ep": 2}, {"zero_stage": 1}),
        "dp4 ep2 zero3": (MODEL, {"dp": 4, "ep": 2}, {"zero_stage": 3}),
        "dp2 tp2 ep2": (DROPPING, {"dp": 2, "tp": 2, "ep": 2}, {}),
        "dp2 tp2 ep2 sp": (MODEL, {"dp": 2, "tp": 2, "ep": 2}, {"zero_stage": 2, "sequence_parallel": True}),
        "dp2 cp2 ep2": (MODEL, {"dp": 2, "cp": 2, "ep": 2}, {}),
        "dp2 pp2 ep2": (MODEL, {"dp": 2, "pp": 2, "ep": 2}, {"zero_stage": 1}),
    },
}


def job_of(layout: Layout) -> Job:
    model, parallel, train = layout
    train = {"global_batch": BATCH, "micro_batch": MICRO_BATCH, "precision": "fp32", "seed": 3, **train}
    return from_dict({"model": model, "train": train, "parallel": parallel})


def build(job: Job) -> Transformer:
    """The whole model, whose routers are sure of themselves."""
    return sharpened(Transformer(job.model, seed=3, dtype=torch.float64))


def sharpened(model: nn.Module) -> Any:
    with torch.no_grad():
        for block in model.modules():
            if isinstance(block, MoE):
                block.router.weight.mul_(40)
    return model


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    tokens, targets = torch.randint(30, (2, BATCH, 8), generator=generator)
    targets[torch.rand(BATCH, 8, generator=generator) < 0.4] = IGNORED
    return tokens, targets


@cache
def one_process(dropping: bool) -> dict[str, Any]:
    """Plain torch: the balancing loss is added to the loss, from what the routers were seen to compute."""
    fields = DROPPING if dropping else MODEL
    moe = {**fields["moe"], "aux_loss": 0.0}
    whole = build(job_of(({**fields, "moe": moe}, {}, {})))
    seen: list[torch.Tensor] = []
    for layer in whole.layers:
        layer.moe.router.register_forward_hook(lambda module, args, logits: seen.append(logits))
    optimizer = torch.optim.AdamW(whole.parameters(), lr=LR, weight_decay=0.1)
    losses, norms = [], []
    for step in range(STEPS):
        tokens, targets = batch(step)
        num_valid, total = (targets != IGNORED).sum(), 0.0
        for inputs, wanted in zip(tokens.split(MICRO_BATCH), targets.split(MICRO_BATCH), strict=True):
            loss = token_loss_sum(whole(inputs), wanted) / num_valid
            total += float(loss.detach())
            for logits in seen:
                probabilities, _, chosen = route(logits, 2)
                counts = torch.bincount(chosen.flatten(), minlength=4)
                loss = loss + 0.1 * balance_loss(probabilities, counts) * MICRO_BATCH / BATCH
            seen.clear()
            loss.backward()
        losses.append(total)
        norms.append(float(nn.utils.clip_grad_norm_(whole.parameters(), CLIP)))
        optimizer.step()
        optimizer.zero_grad()
    named = dict(whole.named_parameters())
    return {
        "losses": losses,
        "norms": norms,
        "master": {n: p.detach().clone() for n, p in named.items()},
        **{key: {n: optimizer.state[p][key] for n, p in named.items()} for key in ("exp_avg", "exp_avg_sq")},
    }


def train(job: Job, mesh: Mesh) -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pdtlib.engine.parallelize.Transformer", Sharp)
        parts = parallelize(job, mesh, dtype=torch.float64)
    optimizer = ShardedAdamW(parts.replica, lr=LR, weight_decay=0.1)
    dp, found = mesh.group("dp"), []
    for step in range(STEPS):
        rows = [parts.take(x.chunk(dp.size)[dp.rank]) for x in batch(step)]
        micro_batches = list(zip(*(x.split(MICRO_BATCH) for x in rows), strict=True))
        mesh.ledger.clear()
        found.append(compute_gradients(parts, optimizer, micro_batches, step=step, max_norm=CLIP))
        optimizer.step()
        rows_sent = mesh.ledger.rows()
        optimizer.zero_grad()
    return {
        "losses": [step.loss for step in found],
        "norms": [step.grad_norm for step in found],
        "state": optimizer.full_state(),
        "sent": rows_sent,
    }


class Sharp(Transformer):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        sharpened(self)


def difference(job: Job, mesh: Mesh, found: dict[str, Any]) -> float:
    """Largest difference to the same part of one process's results."""
    expected = one_process(job.model.moe.capacity_factor > 0)
    worst = max(
        abs(a - b) for key in ("losses", "norms") for a, b in zip(found[key], expected[key], strict=True)
    )
    for key in ("master", "exp_avg", "exp_avg_sq"):
        whole = build(job)
        with torch.no_grad():
            for name, param in whole.named_parameters():
                param.copy_(expected[key][name])
        expert_parallel(whole, mesh)
        tensor_parallel(whole, mesh.group("tp"), table=transformer_table(job.model))
        parts = dict(whole.named_parameters())
        if job.parallel.pp == 1:
            assert parts.keys() == found["state"].keys()
        for name, state in found["state"].items():
            worst = max(worst, float((state[key] - parts[name].detach()).abs().max()))
    return worst


def differences(layouts: dict[str, Layout]) -> dict[str, float]:
    found = {}
    for name, layout in layouts.items():
        job = job_of(layout)
        mesh = build_mesh(job.parallel)
        found[name] = difference(job, mesh, train(job, mesh))
    return found


@pytest.mark.parametrize("world_size", LAYOUTS)
def test_equals_one_process(world_size: int) -> None:
    """Losses, gradient norms, parameters and both moments after 3 clipped steps, on every rank."""
    for rank, found in enumerate(spawn(differences, world_size, LAYOUTS[world_size], timeout_s=280)):
        wrong = {layout: value for layout, value in found.items() if not value < 1e-9}
        assert not wrong, f"rank {rank}: {wrong}"


# --- bytes --------------------------------------------------------------------------------------------------


def uneven_exchange() -> tuple[list[list[float]], list[list[float]], list[dict[str, Any]]]:
    """Rank r sends r + 1 rows to rank 0 and 3 to rank 1; rows say whence they come."""
    mesh = build_mesh({"dp": 2, "ep": 2})
    group = mesh.group("ep")
    exchange, send = Exchange(group), [group.rank + 1, 3]
    arriving = exchange.counts(torch.tensor([group.rank, 1, 2, 1])).tolist()
    assert [sum(counts) for counts in arriving] == ([1, 2] if group.rank == 0 else [3, 3])
    rows = torch.arange(sum(send), dtype=torch.float64).add(10 * group.rank).view(-1, 1).requires_grad_()
    got = exchange.rows(rows, send=send, receive=[sum(counts) for counts in arriving])
    got.square().sum().backward()
    return got.tolist(), rows.grad.tolist(), mesh.ledger.rows()


def test_uneven_messages_arrive_and_what_leaves_a_rank_is_counted() -> None:
    (zero, grad_zero, sent_zero), (one, grad_one, sent_one) = spawn(uneven_exchange, 2)
    assert zero == [[0.0], [10.0], [11.0]]
    assert one == [[1.0], [2.0], [3.0], [12.0], [13.0], [14.0]]
    assert grad_zero == [[0.0], [2.0], [4.0], [6.0]]
    assert grad_one == [[20.0], [22.0], [24.0], [26.0], [28.0]]
    for rows, forward, backward in ((sent_zero, 3, 2), (sent_one, 2, 3)):
        sent = {row["phase"]: row["sent_bytes_per_rank"] for row in rows}
        assert sent == {"routing": 16, "forward": 8 * forward, "backward": 8 * backward}


def even_ledgers(jobs: list[Job]) -> list[list[dict[str, Any]]]:
    """With a router that deals tokens out in turn."""

    def in_turn(logits: torch.Tensor, top_k: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        probabilities = logits.softmax(dim=-1)
        chosen = torch.arange(len(logits) * top_k).view(-1, top_k) % logits.shape[-1]
        return probabilities, probabilities.gather(-1, chosen), chosen

    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pdtlib.engine.models.moe.route", in_turn)
        for job in jobs:
            mesh = build_mesh(job.parallel)
            parts = parallelize(job, mesh)
            optimizer = ShardedAdamW(parts.replica)
            mesh.ledger.clear()
            tokens = parts.take(torch.zeros(MICRO_BATCH, 8, dtype=torch.int64))
            compute_gradients(parts, optimizer, [(tokens, tokens)] * job.gradient_accumulation)
            optimizer.step()
            found.append(mesh.ledger.rows())
    return found


def test_even_messages_are_the_plans() -> None:
    layouts: list[Layout] = [
        (MODEL, {"dp": 2, "ep": 2}, {}),
        (MODEL, {"dp": 2, "ep": 2}, {"zero_stage": 3, "recompute": "full"}),
        (DROPPING, {"tp": 2}, {"sequence_parallel": True, "recompute": "full"}),
        (MODEL, {"tp": 2}, {}),
        (MODEL, {"cp": 2, "ep": 2}, {"zero_stage": 2}),
    ]
    jobs = [job_of(layout) for layout in layouts]
    for rank, ledgers in enumerate(spawn(even_ledgers, 2, jobs)):
        for layout, job, rows in zip(layouts, jobs, ledgers, strict=True):
            data_rank = rank if job.parallel.tp == 1 else 0
            planned = [message.row() for message in messages(job, data_rank=data_rank)]
            assert merged(rows) == merged(planned), layout


def merged(rows: list[dict[str, Any]]) -> Counter[tuple[Any, ...]]:
    """Calls, and bytes sent in them, by axis, collective, phase and size."""
    found: Counter[tuple[Any, ...]] = Counter()
    for row in rows:
        kind = (row["axis"], row["collective"], row["phase"], row["message_bytes"])
        found[*kind, "calls"] += row["count"]
        found[*kind, "sent"] += row["sent_bytes_per_rank"]
    return found


def test_capacity_under_context_parallelism_is_refused() -> None:
    with pytest.raises(JobError, match=r"moe\.capacity_factor: a rank of cp would drop"):
        parallelize(job_of((DROPPING, {"cp": 2}, {})), build_mesh())
