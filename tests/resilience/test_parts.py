"""The parts of resilience, each by itself: what is drawn, summed, kept and said."""

import json
import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from pdtlib.engine.dist import spawn
from pdtlib.engine.fresh_store import fresh_store
from pdtlib.engine.training.checkpoint import Part
from pdtlib.engine.training.elastic import usable
from pdtlib.engine.training.failures import Refused
from pdtlib.plan.job import JobError, from_dict
from pdtlib.resilience import faults
from pdtlib.resilience.memory import fill, newest_complete
from pdtlib.resilience.replicas import checksum, odd_ones
from pdtlib.resilience.samples import cut_back, trained
from pdtlib.resilience.watchdog import Beat, verdict

MODEL = {"layers": 2, "hidden": 32, "heads": 2, "vocab": 256, "seq": 32}


def job(batch: int, **parallel: int):  # type: ignore[no-untyped-def]
    train = {"global_batch": batch, "micro_batch": 1, "precision": "fp32"}
    return from_dict({"model": MODEL, "train": train, "parallel": {"dp": 1, **parallel}})


@pytest.mark.parametrize(
    ("batch", "parallel", "ranks", "takes_part"),
    [
        (8, {}, 4, 4),
        (8, {}, 3, 2),  # 8 sequences cannot be dealt out to 3 ranks
        (6, {}, 3, 3),
        (12, {}, 11, 6),
        (8, {"tp": 2}, 7, 4),  # tp stays, so does its multiple
        (8, {"tp": 2}, 2, 2),
    ],
)
def test_ranks_that_take_part(batch: int, parallel: dict[str, int], ranks: int, takes_part: int) -> None:
    assert usable(job(batch, **parallel), ranks) == takes_part


def test_too_few_ranks_are_refused() -> None:
    with pytest.raises(JobError, match="n_gpus"):
        usable(job(8, tp=2), 1)


def test_faults_follow_from_the_seed() -> None:
    seeds = range(300)
    drawn = [faults.draw(seed, ranks=3, steps=12, save_every=4) for seed in seeds]
    assert drawn == [faults.draw(seed, ranks=3, steps=12, save_every=4) for seed in seeds]
    assert {fault.kind for fault in drawn} == set(faults.KINDS)
    assert {fault.rank for fault in drawn} == {0, 1, 2}
    for fault in drawn:
        assert 1 <= fault.step < 12
        if fault.kind in ("damage", "index"):
            assert fault.step > 4, "there must be a checkpoint to damage"
        if fault.kind == "saving":
            assert fault.step in (4, 8)


def test_a_list_of_faults_is_written_and_read(tmp_path: Path) -> None:
    listed = [faults.Fault(kind="kill", rank=1, step=3), faults.Fault(kind="flip", rank=0, step=5)]
    faults.write(tmp_path / "f.json", listed)
    assert faults.read(tmp_path / "f.json") == listed
    (tmp_path / "f.json").write_text(json.dumps([{"kind": "flood", "rank": 0, "step": 1}]))
    with pytest.raises(Refused, match=r"kind='flood': valid are kill, stop"):
        faults.read(tmp_path / "f.json")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_any_flipped_bit_changes_the_checksum(dtype: torch.dtype) -> None:
    values = torch.randn(50).to(dtype)
    before = checksum(values)
    for seed in range(200):
        copy = values.clone()
        faults.flip_bit(copy, seed=seed)
        assert not torch.equal(copy.view(torch.int16), values.view(torch.int16))
        assert checksum(copy) != before
    assert checksum(values.clone()) == before


def test_the_odd_one_is_found_by_majority() -> None:
    assert odd_ones([4, 4, 4]) == []
    assert odd_ones([4, 9, 4]) == [1]
    assert odd_ones([4, 9]) == [0, 1]
    assert odd_ones([4, 4, 9, 9]) == [0, 1, 2, 3]


def test_newest_state_of_which_all_shares_are_left() -> None:
    two = [(step, rank, 2) for step in (4, 6) for rank in (0, 1)]
    assert newest_complete(two) == 6
    assert newest_complete([*two, (8, 0, 2)]) == 6, "rank 1 died before it had kept step 8"
    assert newest_complete([share for share in two if share[1] == 0]) is None
    assert newest_complete([*two, (8, 0, 3), (8, 2, 3), (8, 1, 2)]) == 6, "shares of different worlds"


def test_shares_of_any_cut_fill_any_other_cut() -> None:
    whole = torch.arange(24.0).view(4, 6)
    shares = [
        {"w": [((4, 6), 0, whole.flatten()[:10], (), ())]},
        {"w": [((4, 6), 10, whole.flatten()[10:], (), ())], "n": [((), 0, torch.tensor([7.0]), (), ())]},
    ]
    column = Part((4, 6), 2, torch.zeros(5), (0, 3), (4, 3))  # elements 2 to 6 of the right half
    number = Part((), 0, torch.zeros(1))
    fill({"w": [column], "n": [number]}, shares)
    assert column.values.tolist() == whole[:, 3:].flatten()[2:7].tolist()
    assert number.values.tolist() == [7.0]


def test_steps_that_were_undone_leave_the_log(tmp_path: Path) -> None:
    folder = tmp_path / "samples"
    folder.mkdir()
    (folder / "rank-00000.jsonl").write_text(
        '{"step": 0, "windows": [5]}\n{"step": 1, "windows": [9]}\n{"step": 2, "win'
    )
    (folder / "rank-00001.jsonl").write_text('{"step": 0, "windows": [3]}\n{"step": 1, "windows": [1]}\n')
    assert trained(tmp_path) == {0: [3, 5], 1: [1, 9]}
    cut_back(folder, 1)
    assert trained(tmp_path) == {0: [3, 5]}


def test_a_verdict_names_who_did_not_arrive() -> None:
    def beat(rank: int, calls: int, age_s: float = 0.5) -> Beat:
        return Beat(
            rank=rank, step=7, time=100 - age_s, node="n1", pid=rank, where="data.py:1", calls={"dp": calls}
        )

    told = verdict(
        beat(0, 20),
        [beat(1, 20), beat(2, 19, age_s=30), beat(3, 18)],
        group="dp",
        call="grads all_reduce",
        waited_s=10,
        now=100,
    )
    assert told.startswith("grads all_reduce over dp has waited 10 s in step 7 (call 20); did not arrive: ")
    assert "rank 2 (node n1, silent for 30 s, last in step 7 at data.py:1)" in told
    assert "rank 3 (node n1, alive in step 7 at data.py:1)" in told
    assert "rank 1" not in told


def meet_again(port_file: str) -> list[int]:
    """Two starts of the ranks through one store: the second must not see what the first has left."""
    rank, world = dist.get_rank(), dist.get_world_size()
    path = Path(port_file)
    if rank == 0:
        server = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        path.with_suffix(".partial").write_text(str(server.port))
        path.with_suffix(".partial").rename(path)
    dist.barrier()
    store = dist.TCPStore("localhost", int(path.read_text()), is_master=False, wait_for_workers=False)
    found = []
    for start in range(3):
        fresh = fresh_store(store, rank=rank, world_size=world, timeout_s=30)
        found.append(int(fresh.check(["address"])))
        dist.barrier()
        fresh.set("address", f"of start {start}")
        dist.barrier()
        assert fresh.get("address").decode() == f"of start {start}", "all ranks share the place"
    dist.barrier()
    return found


def test_a_new_start_finds_an_empty_store(tmp_path: Path) -> None:
    assert spawn(meet_again, 3, str(tmp_path / "port")) == [[0, 0, 0]] * 3


def test_a_store_that_nobody_else_comes_to_times_out() -> None:
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    for rank in (0, 1):
        with pytest.raises(TimeoutError, match="waits for"):
            fresh_store(store, rank=rank, world_size=2, timeout_s=0.2)
    assert os.environ.get("MASTER_PORT") is None
