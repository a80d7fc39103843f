"""Ring attention and Ulysses equal dense attention, and training with them one process."""

import contextlib
import math
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import test_tensor_parallel
import torch
from test_tensor_parallel import CLIP, LR, MICRO_BATCHES, STEPS, batch, model

from pdtlib.engine.context_parallel import ContextSplit, context_parallel, ring, ulysses
from pdtlib.engine.context_parallel.ring import part_of, ring_attention
from pdtlib.engine.context_parallel.split import KINDS
from pdtlib.engine.context_parallel.ulysses import ulysses_attention
from pdtlib.engine.data_parallel import data_parallel
from pdtlib.engine.dist import spawn
from pdtlib.engine.loss import IGNORED, TokenMean, token_loss_sum
from pdtlib.engine.mesh import Group, build_mesh
from pdtlib.engine.models import Transformer
from pdtlib.engine.models.attention import softmax_attention
from pdtlib.engine.optimizer import ShardedAdamW
from pdtlib.engine.pending import Pending
from pdtlib.engine.tensor_parallel import tensor_parallel, transformer_table
from pdtlib.engine.tensor_parallel.loss import vocab_parallel_loss_sum
from pdtlib.engine.transfers import start_ring_shift
from pdtlib.plan.job import from_dict
from pdtlib.plan.ledger import messages
from pdtlib.plan.spec import Job

ATTENTION = {"ring": ring_attention, "ulysses": ulysses_attention}


def attention_differences(scale: float) -> dict[str, list[float]]:
    """Largest differences of the output and of three gradients to dense attention, for two head layouts."""
    group = build_mesh({"cp": torch.distributed.get_world_size()}).group("cp")
    size = group.size
    found = {}
    for kind, attention in ATTENTION.items():
        split = ContextSplit(group, kind)
        for heads, key_heads in ((size, size), (2 * size, size)) if kind == "ulysses" else ((2, 2), (4, 1)):
            generator = torch.Generator().manual_seed(1)
            shapes = [(2, count, 12 * size, 5) for count in (heads, key_heads, key_heads, heads)]
            q, k, v, weight = (
                torch.randn(shape, generator=generator, dtype=torch.float64) * scale for shape in shapes
            )
            whole = [x.clone().requires_grad_() for x in (q, k, v)]
            part = [split.take(x, dim=2).clone().requires_grad_() for x in (q, k, v)]
            expected = softmax_attention(*whole, dropout=0.0)
            (expected * weight).sum().backward()
            got = attention(*part, dropout=0.0, group=group)
            (got * split.take(weight, dim=2)).sum().backward()
            pairs = [(got, expected), *((p.grad, w.grad) for p, w in zip(part, whole, strict=True))]
            found[f"{kind} {heads}/{key_heads}"] = [
                float((a - split.take(b, dim=2)).abs().max().detach() / b.abs().max().detach())
                for a, b in pairs
            ]
    return found


@pytest.mark.parametrize(("size", "scale"), [(1, 1.0), (2, 1.0), (3, 1.0), (4, 30.0)])
def test_equals_dense_attention(size: int, scale: float) -> None:
    """Also with scores in the thousands, where a softmax that is not stable gives NaN."""
    for rank, found in enumerate(spawn(attention_differences, size, scale)):
        wrong = {name: values for name, values in found.items() if not max(values) < 1e-11}
        assert not wrong, f"rank {rank}: {wrong}"


test_tensor_parallel.MODELS["wide"] = model(
    ffn=20, kv_heads=4, activation="swiglu", norm="rmsnorm", qk_norm=True, vocab=30
)


def train(name: str, kind: str, stage: int, sequence: bool, recompute: str, **degrees: int) -> float:
    """Largest difference to one process's results, on this rank's part."""
    mesh = build_mesh(degrees)
    tp_group, data = mesh.group("tp"), mesh.data
    spec = test_tensor_parallel.MODELS[name]
    part = test_tensor_parallel.build(name, recompute=recompute)
    split = context_parallel(part, mesh.group("cp"), kind=kind)
    cut = tensor_parallel(part, tp_group, table=transformer_table(spec), sequence=sequence)
    replica = data_parallel(part, data, stage=stage, blocks=part.layers, bucket_bytes=4000, cut=cut)
    optimizer = ShardedAdamW(replica, lr=LR, weight_decay=0.1)
    losses, norms = [], []
    for step in range(STEPS):
        rows = (x.chunk(mesh.group("dp").size)[mesh.group("dp").rank] for x in batch(name, step))
        tokens, targets = (split.take(x) for x in rows)
        mean = TokenMean(data, num_valid=int((targets != IGNORED).sum()))
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
    found = {"losses": losses, "norms": norms, "state": optimizer.full_state()}
    return test_tensor_parallel.difference(name, found, tp_group)


Case = tuple[str, str, int, bool, str, dict[str, int]]
CASES: dict[int, list[Case]] = {
    2: [
        ("wide", "ring", 0, False, "none", {"cp": 2}),
        ("gpt", "ulysses", 0, False, "none", {"cp": 2}),
        ("gpt", "ring", 3, False, "full", {"cp": 2}),
        ("wide", "ulysses", 2, False, "selective", {"cp": 2}),
    ],
    4: [
        ("wide", "ring", 1, True, "none", {"cp": 2, "tp": 2}),
        ("wide", "ulysses", 0, True, "full", {"cp": 2, "tp": 2}),
        ("gpt", "ring", 3, False, "none", {"cp": 2, "dp": 2}),
        ("gpt", "ring", 0, False, "none", {"cp": 4}),
    ],
}


def trained(cases: list[Case]) -> list[float]:
    return [train(*case[:5], **case[5]) for case in cases]


@pytest.mark.parametrize("size", CASES)
def test_training_equals_one_process(size: int) -> None:
    for rank, found in enumerate(spawn(trained, size, CASES[size], timeout_s=250)):
        wrong = [case for case, value in zip(CASES[size], found, strict=True) if not value < 1e-10]
        assert not wrong, f"rank {rank}: {wrong} {found}"


# --- messages, mutants, refusals ----------------------------------------------------------------------------


def planned() -> list[Job]:
    spec = {"layers": 2, "hidden": 16, "heads": 4, "kv_heads": 2, "ffn": 20, "vocab": 30, "seq": 8}
    spec |= {"activation": "swiglu", "norm": "rmsnorm"}
    found = []
    for kind in KINDS:
        for recompute, stage in (("none", 0), ("selective", 1), ("full", 3)):
            train = {"micro_batch": 1, "global_batch": 2, "precision": "fp32", "recompute": recompute}
            train["zero_stage"] = stage
            found.append(from_dict({"model": spec, "train": train, "parallel": {"cp": 2, "context": kind}}))
    return found


def ledger_of(job: Job) -> list[dict[str, Any]]:
    mesh = build_mesh(job.parallel)
    part = Transformer(job.model, seed=0, recompute=job.train.recompute)
    split = context_parallel(part, mesh.group("cp"), kind=job.parallel.context)
    replica = data_parallel(part, mesh.data, stage=job.train.zero_stage)
    optimizer = ShardedAdamW(replica)
    mesh.ledger.clear()
    tokens = torch.randint(job.model.vocab, (job.gradient_accumulation, 1, job.model.seq))
    mean = TokenMean(mesh.data, num_valid=tokens.numel() // mesh.data.size)
    for number, inputs in enumerate(split.take(tokens, dim=2)):
        with contextlib.nullcontext() if number == len(tokens) - 1 else replica.no_sync():
            loss = token_loss_sum(replica(inputs), inputs)
            mean.loss(loss).backward()
    replica.finish_gradients()
    mean.report(loss)
    optimizer.clip_grad_norm(1.0)
    optimizer.step()
    return mesh.ledger.rows()


def ledgers(jobs: list[Job]) -> list[list[dict[str, Any]]]:
    return [ledger_of(job) for job in jobs]


def test_sent_equals_the_plan() -> None:
    for job, rows in zip(planned(), spawn(ledgers, 2, planned())[0], strict=True):
        expected = [message.row() for message in messages(job)]
        assert sorted(rows, key=str) == sorted(expected, key=str), (job.parallel.context, job.train)


def mutants() -> dict[str, tuple[str, Any, str, Any]]:
    """Name -> (kind of attention, owner, attribute, replacement)."""

    def skip_shift(which: Callable[[str, torch.Tensor], bool]) -> Callable[..., Pending]:
        def start(out: torch.Tensor, x: torch.Tensor, group: Group, *, phase: str) -> Pending:
            if not which(phase, x):
                return start_ring_shift(out, x, group, phase=phase)
            out.copy_(x)
            return Pending(group, "skipped", [])

        return start

    calls = iter(range(10**6))
    return {
        "keys and values forwards": (
            "ring", ring, "start_ring_shift", skip_shift(lambda phase, x: phase == "forward")
        ),
        "keys and values backwards": (
            "ring", ring, "start_ring_shift",
            skip_shift(lambda phase, x: phase == "backward" and next(calls) % 2 == 0),
        ),
        "gradients of keys and values": (
            "ring", ring, "start_ring_shift",
            skip_shift(lambda phase, x: phase == "backward" and next(calls) % 2 == 1),
        ),
        "exchange of heads and positions": (
            "ulysses", ulysses, "all_to_all", lambda x, group, phase: x.clone()
        ),
        "rotary positions": (
            "ring", ContextSplit, "positions", lambda self, length: torch.arange(length // self.group.size)
        ),
    }  # fmt: skip


def train_mutants() -> dict[str, float]:
    found = {}
    for name, (kind, owner, attribute, replacement) in mutants().items():
        with mock.patch.object(owner, attribute, replacement):
            worst = train("wide", kind, 0, False, "none", cp=2)
        found[name] = math.inf if math.isnan(worst) else worst
    return found


def test_mutants_are_noticed() -> None:
    for found in spawn(train_mutants, 2, timeout_s=250):
        assert min(found.values()) > 1e-4, found


def test_zigzag_is_balanced() -> None:
    """Pairs of query and key that each rank computes in all: equal, where an unbalanced cut differs by 15 to
    1."""
    size, length = 8, 64
    work = []
    for rank in range(size):
        pairs = 0
        for owner in range(size):
            queries, keys, masked = part_of(rank, owner, length // size)
            span = range(length // size)
            product = len(span[queries]) * len(span[keys])
            pairs += product // 2 if masked else product
        work.append(pairs)
    assert len(set(work)) == 1
    chunks = [ContextSplit(_at(rank, size), "ring").positions(length).tolist() for rank in range(size)]
    assert sorted(position for chunk in chunks for position in chunk) == list(range(length))
    assert chunks[1] == [4, 5, 6, 7, 56, 57, 58, 59]


def _at(rank: int, size: int) -> Group:
    group = Group.alone("cp")
    group.rank, group.size, group.ranks = rank, size, tuple(range(size))
    return group


def test_what_cannot_be_split_is_refused() -> None:
    with pytest.raises(ValueError, match="a sequence of 12 positions: ring on cp=4 needs a multiple of 8"):
        ContextSplit(_at(0, 4), "ring").positions(12)
    with pytest.raises(ValueError, match="a sequence of 10 positions: ulysses on cp=4 needs a multiple of 4"):
        ContextSplit(_at(0, 4), "ulysses").positions(10)
    with pytest.raises(ValueError, match="6 heads: Ulysses on cp=4 needs a multiple of 4"):
        ulysses.heads_for_positions(torch.zeros(1, 6, 2, 2), _at(0, 4))
    with pytest.raises(ValueError, match="kind='star': valid are ring, ulysses"):
        context_parallel(test_tensor_parallel.build("gpt"), _at(0, 4), kind="star")
    dropping = Transformer(model(ffn=20, dropout=0.1))
    with pytest.raises(ValueError, match=r"model.dropout=0.1: attention over cp=4 has none \(valid: 0\)"):
        context_parallel(dropping, _at(0, 4))
    for attention in ATTENTION.values():
        with pytest.raises(ValueError, match=r"dropout=0.5: .* none .*\(valid: 0\)"):
            attention(*torch.zeros(3, 1, 4, 4, 2), dropout=0.5, group=_at(0, 4))
