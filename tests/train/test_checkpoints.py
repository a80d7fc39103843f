"""A checkpoint is free of the layout that wrote it, complete or absent, and reading one runs no code."""

import math
import os
import pickle
import shutil
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from hypothesis import given, settings
from hypothesis import strategies as st
from launching import train_on, write_job
from torch import nn

from pdtlib.engine.data_parallel import data_parallel
from pdtlib.engine.dist import spawn
from pdtlib.engine.mesh import build_mesh
from pdtlib.engine.optimizer import ShardedAdamW
from pdtlib.engine.training.checkpoint import Part, boxes, load, save
from pdtlib.engine.training.checkpoint_index import CheckpointError, read_index
from pdtlib.engine.training.checks import newest_intact
from pdtlib.engine.training.run_dir import checkpoint_path, last_checkpoint
from pdtlib.engine.training.saver import load_checkpoint, save_checkpoint

pytestmark = pytest.mark.timeout(900)


@given(shape=st.lists(st.integers(1, 5), min_size=1, max_size=4), data=st.data())
@settings(max_examples=200, deadline=None)
def test_boxes_cover_a_range_once_and_in_order(shape: list[int], data: st.DataObject) -> None:
    numel = math.prod(shape)
    start = data.draw(st.integers(0, numel))
    stop = data.draw(st.integers(start, numel))
    tensor = torch.arange(numel).view(shape)
    covered: list[int] = []
    for offsets, sizes, at in boxes(shape, start, stop):
        box = tensor[tuple(slice(o, o + size) for o, size in zip(offsets, sizes, strict=True))]
        assert at == len(covered)
        covered += box.flatten().tolist()
    assert covered == list(range(start, stop))


class Odd(nn.Module):
    """57 parameters: no ZeRO group of 2 or 3 divides its buffers (field report B16)."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 7)
        self.second = nn.Linear(7, 2, bias=False)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale * self.second(self.first(x).tanh())


def odd_steps(stage: int, folder: Path, first: int, stop: int, resume: bool, keep: bool) -> dict[str, object]:
    """Train steps [first, stop) on batches of 12 rows that depend on the step alone."""
    torch.manual_seed(0)
    module = Odd()
    assert sum(parameter.numel() for parameter in module.parameters()) == 57
    group = build_mesh().group("dp")
    replica = data_parallel(module, group, stage=stage, blocks=[module.first, module.second])
    optimizer = ShardedAdamW(replica, lr=0.01, weight_decay=0.1)
    if resume:
        load_checkpoint(checkpoint_path(folder, first), optimizer)
    for step in range(first, stop):
        rows = torch.randn(12, 5, generator=torch.Generator().manual_seed(step))
        mine = rows.chunk(group.size)[group.rank]
        replica(mine).square().mean().backward()
        replica.finish_gradients()
        optimizer.clip_grad_norm(0.5)
        optimizer.step()
        optimizer.zero_grad()
    if keep:
        save_checkpoint(folder, optimizer, step=stop)
    return {
        "state": optimizer.full_state(),
        "steps": optimizer.num_steps,
        "params": replica.full_parameters(),
    }


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    return spawn(odd_steps, 1, 0, tmp_path_factory.mktemp("alone"), 0, 6, False, False)[0]


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_field_report_b16(stage: int, uninterrupted: dict[str, object], tmp_path: Path) -> None:
    """Three steps on 2 ranks, three more on 3 and on 1: as if never interrupted."""
    spawn(odd_steps, 2, stage, tmp_path, 0, 3, False, True)
    for ranks, next_stage in ((3, stage), (1, 0)):
        for result in spawn(odd_steps, ranks, next_stage, tmp_path, 3, 6, True, False):
            assert result["steps"] == 6
            for name, states in uninterrupted["state"].items():
                for kind, expected in states.items():
                    torch.testing.assert_close(result["state"][name][kind], expected, rtol=0, atol=1e-6)
            torch.testing.assert_close(result["params"], uninterrupted["params"], rtol=0, atol=1e-6)
    # torch's own loader reads whole tensors from it, knowing nothing of our layout.
    whole = {"model.first.weight": torch.zeros(7, 5), "model.scale": torch.zeros(1)}
    dcp.load(whole, checkpoint_id=checkpoint_path(tmp_path, 3), no_dist=True)
    assert whole["model.first.weight"].abs().sum() > 0


JOB = """
[model]
layers = 2
hidden = 24
heads = 4
vocab = 256
seq = 16
dropout = 0.1
[train]
global_batch = 12
micro_batch = 2
precision = "bf16"
learning_rate = 3e-3
steps = 4
[parallel]
dp = 1
"""


def test_a_run_goes_on_with_other_ranks_and_another_stage(tmp_path: Path) -> None:
    """With bf16, dropout and accumulation: the same losses as a run that was never interrupted."""
    job = write_job(tmp_path, JOB)
    whole = train_on(2, job, tmp_path / "whole", changes=("train.zero_stage=2",))
    out = tmp_path / "out"
    train_on(2, job, out, steps=2, changes=("train.zero_stage=3",))
    again = train_on(3, job, out, resume=True, changes=("train.zero_stage=1",))
    assert [line["step"] for line in again] == [0, 1, 2, 3]
    assert [line["loss"] for line in again] == pytest.approx([line["loss"] for line in whole], abs=2e-3)
    assert sorted(path.name for path in (out / "checkpoints").iterdir()) == ["step-00000002", "step-00000004"]
    # Resuming when nothing is left to do changes nothing.
    assert train_on(1, job, out, resume=True) == again


def saved(tmp_path: Path) -> Path:
    path = tmp_path / "checkpoints" / "step-00000001"
    path.parent.mkdir(parents=True)
    values = torch.arange(24.0)
    save(path, parts={"w": [Part((4, 6), 0, values[:10]), Part((4, 6), 10, values[10:])]})
    return path


def test_any_part_can_be_read_from_any_parts(tmp_path: Path) -> None:
    path = saved(tmp_path)
    part = torch.zeros(9)
    load(path, parts={"w": [Part((4, 6), 5, part)]})
    assert part.tolist() == list(range(5, 14))


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch evil-was-here",)


def test_a_hostile_index_runs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path)
    monkeypatch.chdir(tmp_path)
    (path / ".metadata").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(CheckpointError, match=r"asks for posix\.system; it will not be read"):
        load(path, parts={})
    assert not (tmp_path / "evil-was-here").exists()


def test_hostile_content_runs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = saved(tmp_path)
    monkeypatch.chdir(tmp_path)
    for file in path.glob("*.distcp"):
        torch.save(Evil(), file)
    with pytest.raises(CheckpointError):
        load(path, parts={"w": [Part((4, 6), 0, torch.zeros(24))]})
    assert not (tmp_path / "evil-was-here").exists()


@pytest.mark.parametrize("damage", ["empty", "half", "noise", "missing"])
def test_damage_is_named(tmp_path: Path, damage: str) -> None:
    path = saved(tmp_path)
    index = path / ".metadata"
    whole = index.read_bytes()
    if damage == "missing":
        index.unlink()
    else:
        index.write_bytes({"empty": b"", "half": whole[: len(whole) // 2], "noise": b"\x80\x04]q"}[damage])
    with pytest.raises(CheckpointError, match=r"damaged|not a complete checkpoint"):
        read_index(path)


def test_the_newest_intact_checkpoint_is_found(tmp_path: Path) -> None:
    first = saved(tmp_path)
    second, third = (first.with_name(f"step-0000000{n}") for n in (2, 3))
    shutil.copytree(first, second)
    shutil.copytree(first, third)
    assert newest_intact(tmp_path) == (third, ())
    (third / ".metadata").write_bytes(b"")
    data = next(second.glob("*.distcp"))
    data.write_bytes(data.read_bytes()[:-1])
    found, skipped = newest_intact(tmp_path)
    assert found == first
    assert [f"{third}/.metadata is damaged" in skipped[0], f"{data} is damaged" in skipped[1]] == [True, True]
    assert newest_intact(tmp_path / "none") == (None, ())


def test_what_does_not_fit_is_named(tmp_path: Path) -> None:
    path = saved(tmp_path)
    with pytest.raises(CheckpointError, match=r"w has shape \(4, 6\) in the checkpoint, here \(4, 7\)"):
        load(path, parts={"w": [Part((4, 7), 0, torch.zeros(28))]})
    with pytest.raises(CheckpointError, match="no tensor v"):
        load(path, parts={"v": [Part((4, 6), 0, torch.zeros(24))]})


def full_disk_on_rank_1(folder: Path) -> str:
    """Rank 1 cannot write; every rank must learn of it and nothing half-written may stay."""
    rank = dist.get_rank()
    if rank == 1:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
    values = torch.ones(50_000)
    try:
        save(folder / "step-00000002", parts={f"rank{rank}": [Part((50_000,), 0, values)]})
    except CheckpointError as error:
        dist.barrier()
        return str(error)
    return "saved"


def test_a_rank_that_cannot_write_leaves_the_last_checkpoint(tmp_path: Path) -> None:
    path = saved(tmp_path)
    found = spawn(full_disk_on_rank_1, 2, path.parent)
    assert all(text.startswith("rank 1: ") and "File too large" in text for text in found), found
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    assert last_checkpoint(tmp_path) == path
    test_any_part_can_be_read_from_any_parts(tmp_path / "again")
