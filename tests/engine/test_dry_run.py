"""A dry run of one rank equals a real run of it, and the plan, to the byte."""

import json
import resource
import sys
from collections import Counter
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from pdtlib.cli.app import main
from pdtlib.engine.dist import spawn
from pdtlib.engine.dry_run import dry_run, step
from pdtlib.engine.mesh import build_mesh
from pdtlib.plan.flats import held_bytes
from pdtlib.plan.job import from_dict
from pdtlib.plan.ledger import messages
from pdtlib.plan.ranks import ARTICLE_ORDER as ORDER
from pdtlib.plan.ranks import rank_at
from pdtlib.plan.spec import Job

SMALL = {"layers": 2, "hidden": 32, "heads": 4, "kv_heads": 4, "ffn": 48, "vocab": 44, "seq": 16}
LLAMA, GPT = {**SMALL, "activation": "swiglu", "qk_norm": True}, {**SMALL, "dropout": 0.1}
MIXTURE = {
    **LLAMA,
    "ffn": 24,
    "moe": {"experts": 4, "top_k": 2, "ffn": 24, "aux_loss": 0.1},
}
JOBS: dict[str, dict[str, Any]] = {
    "dp4": {"model": LLAMA, "parallel": {"dp": 4}},
    "dp4 zero2": {"model": GPT, "parallel": {"dp": 4}, "train": {"zero_stage": 2, "global_batch": 8}},
    "tp4 sp": {"model": GPT, "parallel": {"tp": 4}, "train": {"sequence_parallel": True}},
    "dp2 tp2 zero3": {"model": GPT, "parallel": {"dp": 2, "tp": 2}, "train": {"zero_stage": 3}},
    "tp4 uneven vocabulary": {
        "model": {**LLAMA, "kv_heads": 2, "vocab": 45},
        "parallel": {"tp": 4},
        "train": {"zero_stage": 1},
    },
    "pp2 tp2 zb-v": {
        "model": {**LLAMA, "layers": 4, "tied_embeddings": True},
        "parallel": {"pp": 2, "tp": 2, "schedule": "zb-v"},
        "train": {"global_batch": 3, "sequence_parallel": True},
    },
    "dp2 pp2 zero3": {
        "model": GPT,
        "parallel": {"dp": 2, "pp": 2},
        "train": {"global_batch": 4, "zero_stage": 3},
    },
    "dp2 tp2 ep2": {
        "model": MIXTURE,
        "parallel": {"dp": 2, "tp": 2, "ep": 2},
        "train": {"sequence_parallel": True, "recompute": "full", "zero_stage": 1},
    },
    "tp2 cp2 full": {"model": LLAMA, "parallel": {"tp": 2, "cp": 2}, "train": {"recompute": "full"}},
    "cp2 dp2 ulysses zero1": {
        "model": LLAMA,
        "parallel": {"dp": 2, "cp": 2, "context": "ulysses"},
        "train": {"zero_stage": 1, "recompute": "selective"},
    },
}


def counted(rows: list[dict[str, Any]]) -> Counter[tuple[Any, ...]]:
    """Calls by axis, collective, phase and size."""
    found: Counter[tuple[Any, ...]] = Counter()
    for row in rows:
        found[row["axis"], row["collective"], row["phase"], row["message_bytes"]] += row["count"]
    return found


def real_steps(jobs: list[Job]) -> list[tuple[dict[str, int], list[dict[str, Any]]]]:
    found = []
    for job in jobs:
        mesh = build_mesh(job.parallel)
        with mock.patch("pdtlib.engine.models.moe.route", evenly):
            memory = step(job, mesh)
        found.append((memory, [row for row in mesh.ledger.rows() if row["phase"] != "init"]))
    return found


def evenly(logits: torch.Tensor, top_k: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A router that deals tokens out in turn, whatever its weights say of them."""
    probabilities = logits.softmax(dim=-1)
    chosen = torch.arange(len(logits) * top_k).view(-1, top_k) % logits.shape[-1]
    return probabilities, probabilities.gather(-1, chosen), chosen


def test_fake_ranks_hold_and_send_what_real_ones_do() -> None:
    jobs = [from_dict(tables) for tables in JOBS.values()]
    for rank, real in enumerate(spawn(real_steps, 4, jobs)):
        for name, job, (memory, rows) in zip(JOBS, jobs, real, strict=True):
            fake = dry_run(job, rank=rank)
            assert fake["memory"] == {**memory, "total": sum(memory.values())}, (name, rank)
            assert counted(fake["comm"]) == counted(rows), (name, rank)


def assert_as_planned(job: Job, rank: int) -> None:
    found = dry_run(job, rank=rank)
    place, memory = found["place"], found["memory"]
    held, planned = held_bytes(job, place["pp"]), found["planned"]
    assert (memory["params"], memory["grads"], memory["optimizer"]) == (
        held.params,
        held.grads,
        held.optimizer,
    )
    assert memory["activations"] == pytest.approx(planned["activations"], rel=0.02)
    assert {**memory, "activations": 0, "total": 0} == {**planned, "activations": 0, "total": 0}
    data_rank = place["dp"] * job.parallel.cp + place["cp"]
    expected = [message.row() for message in messages(job, place["pp"], data_rank=data_rank)]
    assert counted(found["comm"]) == counted(expected)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v", "dualpipe"])
def test_what_pipelines_keep_is_as_planned(schedule: str) -> None:
    """Of the first and the last rank, by the table: exactly, but for moments within a split backward pass."""
    vpp = 2 if schedule in ("interleaved", "zb-v") else 1
    job = from_dict(
        {
            "model": {**LLAMA, "layers": 8},
            "parallel": {"pp": 4, "schedule": schedule, "vpp": vpp},
            "train": {"global_batch": 6},
        }
    )
    for rank in (0, 3):
        found = dry_run(job, rank=rank)
        kept, planned = found["memory"]["activations"], found["planned"]["activations"]
        splits = schedule.startswith("zb")
        assert kept == pytest.approx(planned, rel=0.02 if splits else 0)
        assert kept >= planned


@pytest.mark.parametrize("name", JOBS)
def test_small_jobs_are_as_planned(name: str) -> None:
    job = from_dict(JOBS[name])
    for rank in (0, job.parallel.world_size - 1):
        assert_as_planned(job, rank)


@pytest.mark.parametrize(
    ("preset", "layout", "pp"),
    [
        ("article-70b", {"tp": 8, "pp": 4, "dp": 4}, 0),
        ("gpt3-175b", {"tp": 8, "pp": 8, "dp": 8}, 7),
        ("mt-nlg-530b", {"tp": 8, "pp": 16, "dp": 8}, 9),
    ],
)
def test_large_layouts_are_as_planned(preset: str, layout: dict[str, int], pp: int) -> None:
    """A rank of the first, the last and a middle stage, with ZeRO-3, on 128, 512 and 1,024 GPUs.

    Its states, up to 16 GB, take no memory here. ``make dryruns`` takes three ranks of each layout, and more
    micro-batches.
    """
    train = {"zero_stage": 3, "sequence_parallel": True, "recompute": "selective"}
    job = from_dict({"model": {"preset": preset}, "parallel": layout, "train": train})
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert_as_planned(job, rank_at({"dp": 3, "pp": pp, "cp": 0, "tp": 5}, parallel=job.parallel, order=ORDER))
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown * (1 if sys.platform == "darwin" else 1024) < 5e8


def test_what_cannot_be_built_is_refused() -> None:
    job = from_dict(JOBS["dp4"])
    with pytest.raises(ValueError, match="rank=4: the job has ranks 0 to 3"):
        dry_run(job, rank=4)
    assert not dist.is_initialized()


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "job.json"
    path.write_text(json.dumps(JOBS["dp2 tp2 zero3"]))
    with pytest.raises(SystemExit) as done:
        main(["dryrun", str(path), "--rank", "3", "--json"])
    assert done.value.code == 0
    found = json.loads(capsys.readouterr().out)
    assert found.pop("problems") == []
    assert found == dry_run(from_dict(JOBS["dp2 tp2 zero3"]), rank=3)
    with pytest.raises(SystemExit) as done:
        main(["dryrun", str(path), "--rank", "1"])
    assert done.value.code == 0
    assert "rank 1 of 4 (dp 0, pp 0, cp 0, tp 1)" in capsys.readouterr().out
    path.write_text(json.dumps(JOBS["dp2 pp2 zero3"]))
    for order, place in (("article", "dp 0, pp 1"), ("megatron", "dp 1, pp 0")):
        with pytest.raises(SystemExit):
            main(["dryrun", str(path), "--rank", "1", "--rank-order", order])
        assert place in capsys.readouterr().out
    for words, message in (
        ([str(path), "--rank", "4"], "the job has ranks 0 to 3"),
        ([str(tmp_path / "none.toml")], "cannot read"),
        ([str(path), "--rank-order", "slurm"], "--rank-order: 'slurm' is not one of its values"),
    ):
        with pytest.raises(SystemExit) as done:
            main(["dryrun", *words])
        assert done.value.code == 2
        assert message in capsys.readouterr().err
