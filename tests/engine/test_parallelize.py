"""One job in many layouts: the same losses, step by step, and messages as planned."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from pdtlib.engine.dist import spawn
from pdtlib.engine.mesh import build_mesh
from pdtlib.engine.optimizer import ShardedAdamW
from pdtlib.engine.parallelize import parallelize
from pdtlib.engine.training.step import compute_gradients
from pdtlib.plan.job import from_dict
from pdtlib.plan.spec import Job, JobError

MODEL = {
    "layers": 4, "hidden": 32, "heads": 4, "kv_heads": 4, "ffn": 48, "vocab": 44, "seq": 16,
    "activation": "swiglu", "norm": "rmsnorm",
}  # fmt: skip
STEPS = 8

Layout = tuple[dict[str, Any], dict[str, Any]]
LAYOUTS: dict[str, Layout] = {
    "dp4": ({"dp": 4}, {}),
    "tp4": ({"tp": 4}, {}),
    "tp4 sp": ({"tp": 4}, {"sequence_parallel": True, "recompute": "full"}),
    "cp4 ring": ({"cp": 4}, {}),
    "cp4 ulysses": ({"cp": 4, "context": "ulysses"}, {"zero_stage": 1}),
    "dp2 tp2 zero3": ({"dp": 2, "tp": 2}, {"zero_stage": 3}),
    "dp2 tp2 zero1 sp": ({"dp": 2, "tp": 2}, {"zero_stage": 1, "sequence_parallel": True}),
    "tp2 cp2 zero2 sp": ({"tp": 2, "cp": 2}, {"zero_stage": 2, "sequence_parallel": True}),
    "pp4 gpipe": ({"pp": 4, "schedule": "gpipe"}, {}),
    "pp2 tp2 sp": ({"pp": 2, "tp": 2}, {"sequence_parallel": True}),
    "pp2 cp2 zb-h1": ({"pp": 2, "cp": 2, "schedule": "zb-h1"}, {}),
    "dp2 pp2 interleaved zero1": ({"dp": 2, "pp": 2, "vpp": 2}, {"zero_stage": 1}),
    "dp2 pp2 zb-v zero2": ({"dp": 2, "pp": 2, "schedule": "zb-v"}, {"zero_stage": 2}),
    "dp2 pp2 dualpipe": ({"dp": 2, "pp": 2, "schedule": "dualpipe"}, {}),
    "dp2 cp2 zero3": ({"dp": 2, "cp": 2}, {"zero_stage": 3, "reshard_after_forward": False}),
}


def job_of(layout: Layout) -> Job:
    parallel, train = layout
    train = {"global_batch": 4, "micro_batch": 1, "precision": "fp32", "seed": 1, **train}
    return from_dict({"model": MODEL, "train": train, "parallel": parallel})


def losses(job: Job) -> list[float]:
    """The loss of every step, training on one fixed set of sequences."""
    mesh = build_mesh(job.parallel)
    parts = parallelize(job, mesh)
    optimizer = ShardedAdamW(parts.replica, lr=3e-3)
    generator = torch.Generator().manual_seed(0)
    data = torch.randint(job.model.vocab, (job.train.global_batch, job.model.seq + 1), generator=generator)
    rows = data.chunk(mesh.group("dp").size)[mesh.group("dp").rank]
    tokens, targets = parts.take(rows[:, :-1]), parts.take(rows[:, 1:])
    micro_batches = list(zip(tokens.split(1), targets.split(1), strict=True))
    found = []
    for step in range(STEPS):
        found.append(compute_gradients(parts, optimizer, micro_batches, step=step, max_norm=1.0).loss)
        optimizer.step()
        optimizer.zero_grad()
    return found


def all_losses(layouts: list[Layout]) -> list[list[float]]:
    return [losses(job_of(layout)) for layout in layouts]


def test_every_layout_has_the_same_loss_curve() -> None:
    """To 1e-5 over 8 steps in fp32, on every rank."""
    (alone,) = spawn(all_losses, 1, [({}, {})])[0]
    assert alone[-1] < 0.95 * alone[0], "it learns"
    ranks = spawn(all_losses, 4, list(LAYOUTS.values()), timeout_s=280)
    for found in ranks:
        for name, curve in zip(LAYOUTS, found, strict=True):
            assert curve == pytest.approx(alone, abs=1e-5), name


def test_what_the_engine_does_not_train_is_refused() -> None:
    job = job_of(({}, {}))
    wrong = replace(job, model=replace(job.model, dropout=0.1), parallel=replace(job.parallel, cp=2, tp=3))
    eight = replace(job, train=replace(job.train, precision="fp8"))
    for bad, told in (
        (wrong, ["hardware.n_gpus", "parallel.tp", "model.dropout"]),
        (eight, ["train.precision", "train.precision"]),
    ):
        with pytest.raises(JobError) as error:
            parallelize(bad, build_mesh())
        assert [problem.field for problem in error.value.problems] == told
