"""Saving while training goes on: what is written, when it is complete, and how a failure is learnt of."""

import threading
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from pdtlib.engine.data_parallel import data_parallel
from pdtlib.engine.dist import spawn
from pdtlib.engine.mesh import Group, build_mesh
from pdtlib.engine.optimizer import ShardedAdamW
from pdtlib.engine.training import checkpoint
from pdtlib.engine.training import saver as saving
from pdtlib.engine.training.checkpoint import Part, load
from pdtlib.engine.training.checkpoint_index import CheckpointError
from pdtlib.engine.training.pieces import parts_to_write
from pdtlib.engine.training.run_dir import checkpoint_path, checkpoints
from pdtlib.engine.training.saver import Saver, save_checkpoint


class Gate:
    """Holds every write back until it is opened, and notes their order."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.events: list[str] = []
        self.save = checkpoint.save
        checkpoint.save = self  # in this process alone

    def __call__(self, path: Path, **options: object) -> None:
        self.events.append(f"begin {path.name[-1]}")
        assert self.open.wait(timeout=60)
        self.save(path, **options)
        self.events.append(f"end {path.name[-1]}")


def optimizer_of(group: Group, stage: int = 0) -> ShardedAdamW:
    torch.manual_seed(0)
    return ShardedAdamW(data_parallel(nn.Linear(5, 3), group, stage=stage))


def saving_while_training(folder: Path) -> dict[str, object]:
    optimizer = optimizer_of(build_mesh().group("dp"), stage=1)
    gate, saver = Gate(), Saver(folder)
    before = optimizer.replica.full_parameters()["weight"]
    saver.save(optimizer, step=1)
    for shard in optimizer.shards():  # training goes on
        shard.states["master"].zero_()
    saver.check()
    in_flight = list(checkpoints(folder))
    opener = threading.Timer(0.2, gate.open.set)
    opener.start()
    saver.save(optimizer, step=2)  # waits for the first
    saver.finish()
    read = []
    for step in (1, 2):
        found = torch.full((3, 5), torch.nan)
        load(checkpoint_path(folder, step), parts={"model.weight": [Part((3, 5), 0, found.view(-1))]})
        read.append(found)
    return {
        "before": before,
        "in flight": in_flight,
        "events": gate.events,
        "read": read,
        "saved": saver.saved,
    }


def test_what_is_saved_is_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    for found in spawn(saving_while_training, 2, tmp_path):
        assert found["in flight"] == []
        assert found["events"] == ["begin 1", "end 1", "begin 2", "end 2"]
        first, second = found["read"]
        assert torch.equal(first, found["before"])
        assert torch.equal(second, torch.zeros(3, 5))
        assert found["saved"] == checkpoint_path(tmp_path, 2)


def failing_on_rank_1(folder: Path) -> tuple[int, str]:
    """How many checks a rank passes before it learns of the failure, and what it is told."""
    optimizer = optimizer_of(build_mesh().group("dp"))
    gate, saver, saving.PATIENCE_S = Gate(), Saver(folder), 0.1
    if dist.get_rank() == 1:
        saver._write = lambda path, parts: setattr(saver, "_error", CheckpointError("no room"))
    saver.save(optimizer, step=1)
    if dist.get_rank() == 1:
        saver._thread.join()
    for number in range(100):
        try:
            saver.check()
        except CheckpointError as error:
            return number, str(error)
        time.sleep(0.01)
    gate.open.set()
    return 100, "nothing"


def test_all_ranks_learn_of_a_failure_in_the_same_step(tmp_path: Path) -> None:
    first, second = spawn(failing_on_rank_1, 2, tmp_path)
    assert first[0] == second[0] < 100
    assert second[1] == "no room"
    assert first[1] == "another rank could not write its part of the checkpoint"


def share_of(stage: int) -> dict[str, list[int]]:
    shares = parts_to_write(optimizer_of(build_mesh().group("dp"), stage=stage))
    return {key: [number for part in parts for number in _numbers(part)] for key, parts in shares.items()}


def _numbers(part: Part) -> range:
    return range(part.start, part.start + part.values.numel())


@pytest.mark.parametrize("stage", [0, 1])
def test_ranks_deal_out_what_all_of_them_hold(stage: int) -> None:
    """A matrix of 15 and a bias of 3 numbers on three ranks: each writes a third, every number once."""
    shares = spawn(share_of, 3, stage)
    for key, size in (("model.weight", 15), ("model.bias", 3), ("optimizer.exp_avg.weight", 15)):
        assert sorted(number for share in shares for number in share.get(key, [])) == list(range(size))
    sizes = [sum(len(share.get(f"model.{name}", [])) for name in ("weight", "bias")) for share in shares]
    assert sizes == [6, 6, 6]


def test_one_process_needs_no_groups(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    optimizer = optimizer_of(Group.alone())
    saver = Saver(tmp_path)
    saver.save(optimizer, step=1)
    saver.finish()
    assert saver.saved == checkpoint_path(tmp_path, 1)
    assert save_checkpoint(tmp_path, optimizer, step=2) == checkpoint_path(tmp_path, 2)
