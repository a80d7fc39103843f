"""What the graders stand on: simulated ranks, live bytes, counted traffic, the reference Adam."""

import random

import pytest
import torch

from pdtlib.engine.dist import spawn
from pdtlib.exercises import get, ranks
from pdtlib.exercises.memory import LiveBytes
from pdtlib.exercises.sharded_adam import EPS, STEPS, cases
from pdtlib.exercises.simulator import Comm, CountComm, run
from pdtlib.exercises.source import ReaderError
from pdtlib.exercises.traffic import Traffic, counted


def simulate(program, world_size=3):
    return run(lambda rank: program, world_size, lambda rank, fabric: (Comm(rank, fabric),))


def test_messages_between_two_ranks_keep_their_order():
    def program(comm):
        if comm.rank == 0:
            comm.send([1.0], to=1)
            comm.send([2.0, 3.0], to=1)
            return None
        if comm.rank == 1:
            first = yield comm.recv(source=0)
            second = yield comm.recv(source=0)
            return first + second
        return None

    outcome = simulate(program)
    assert outcome.results == [None, [1.0, 2.0, 3.0], None]
    assert outcome.sent_bytes() == [24, 0, 0]


def test_what_was_sent_does_not_change_with_the_senders_list():
    def program(comm):
        values = [1.0]
        if comm.rank == 0:
            comm.send(values, to=1)
            values[0] = 9.0
            return None
        return (yield comm.recv(source=0))

    assert simulate(program, 2).results[1] == [1.0]


def test_a_deadlock_names_who_waits_for_whom():
    def program(comm):
        yield comm.recv(source=(comm.rank + 1) % 3)

    with pytest.raises(ReaderError) as told:
        simulate(program)
    for rank in range(3):
        assert f"Rank {rank}" in str(told.value)
        assert f"from rank {(rank + 1) % 3}" in str(told.value)


def test_waiting_for_a_rank_that_has_returned_is_told():
    def program(comm):
        if comm.rank == 0:
            yield comm.recv(source=1)

    with pytest.raises(ReaderError, match="already returned"):
        simulate(program, 2)


def test_a_message_that_nobody_receives_is_told():
    def program(comm):
        if comm.rank == 0:
            comm.send([1.0], to=1)
        return
        yield

    with pytest.raises(ReaderError, match="never received"):
        simulate(program, 2)


def test_a_subprogram_waits_too():
    def fetch(comm, source):
        return (yield comm.recv(source=source))

    def program(comm):
        comm.send([float(comm.rank)], to=1 - comm.rank)
        return (yield from fetch(comm, 1 - comm.rank))

    assert simulate(program, 2).results == [[1.0], [0.0]]


def test_counts_are_summed_over_all_ranks():
    def program(comm):
        return (yield comm.all_reduce(comm.rank + 1))

    outcome = run(lambda rank: program, 4, lambda rank, fabric: (CountComm(rank, fabric),))
    assert outcome.results == [10] * 4
    assert outcome.all_reduces == 1


def test_live_bytes_follow_storages():
    known = torch.zeros(10, dtype=torch.float64)
    with LiveBytes([known]) as memory:
        assert memory.live() == 0
        a = torch.zeros(100, dtype=torch.float64)
        view = a[10:20]
        assert memory.live() == 800
        del a
        assert memory.live() == 800, "a view keeps its whole storage"
        b = known + 1
        assert memory.live() == 880
        del view
        assert memory.live() == 80
        assert memory.peak >= 880
        memory.restart_peak()
        assert memory.peak == 80
        memory.ignore([b])
        assert memory.live() == 0


def test_live_bytes_see_what_autograd_keeps():
    weight = torch.zeros(8, 8, dtype=torch.float64, requires_grad=True)
    with LiveBytes([weight]) as memory:
        y = (weight * 2).exp()
        assert memory.live() == 2 * 512 or memory.live() == 512  # exp keeps its output
        y.sum().backward()
        del y
        weight.grad = None
        assert memory.live() == 0


@pytest.mark.parametrize("world_size", [2, 3])
def test_the_reference_adam_is_torchs(world_size):
    for case in cases(random.Random(3), world_size):
        params = case.params()
        optimizer = torch.optim.Adam(params, lr=case.lr, betas=case.betas, eps=EPS)
        expected = case.expected(world_size, num_micro_batches=2)
        for step in range(STEPS):
            for index, param in enumerate(params):
                parts = [case.grad(index, rank, step, m) for rank in range(world_size) for m in range(2)]
                param.grad = sum(parts) / world_size
            optimizer.step()
            for want, got in zip(expected[step], params, strict=True):
                torch.testing.assert_close(want, got.detach(), rtol=0, atol=1e-14)


def _some_calls(log):
    import torch.distributed as dist

    found = {}
    traffic = Traffic(allowed=("all_reduce", "all_gather", "reduce_scatter"), log=log / f"{dist.get_rank()}")
    before = dist.all_reduce
    with counted(traffic):
        whole = torch.ones(9, dtype=torch.float64)
        handle = dist.all_reduce(whole, async_op=True)
        found["waited before"] = traffic.calls[0].waited
        handle.wait()
        found["waited after"] = traffic.calls[0].waited
        piece = torch.empty(3, dtype=torch.float64)
        dist.reduce_scatter_tensor(piece, whole)
        dist.all_gather_into_tensor(whole, piece)
        dist.all_gather([torch.empty_like(piece) for _ in range(3)], piece)
        try:
            dist.send(piece, 0)
        except RuntimeError as error:
            found["refused"] = str(error)
    found["restored"] = dist.all_reduce is before
    found["calls"] = [(call.kind, call.message_bytes, call.sent_bytes) for call in traffic.calls]
    found["fault"] = traffic.fault
    return found


def test_traffic_is_counted_waited_for_and_refused(tmp_path):
    for found in spawn(_some_calls, 3, tmp_path):
        assert found["calls"] == [
            ("all_reduce", 72, 96.0),
            ("reduce_scatter", 72, 48.0),
            ("all_gather", 72, 48.0),
            ("all_gather", 72, 48.0),
        ]
        assert (found["waited before"], found["waited after"]) == (False, True)
        assert "dist.send is not allowed" in found["refused"]
        assert found["fault"] == found["refused"]
        assert found["restored"]


def test_a_rank_that_computes_for_ever_is_stopped_with_its_line(monkeypatch):
    monkeypatch.setattr(ranks, "TIMEOUT_S", 8.0)
    source = (
        "import torch.distributed as dist\ndef ring_all_reduce(tensor):\n    if dist.get_rank() == 0:\n"
        "        dist.recv(tensor, 1)\n    while True:\n        pass\n"
    )
    report = get("ch02-ring-all-reduce-torch").grade(source, seed=1)
    assert len(report.checks) == 1
    assert "Rank 0: in dist.recv with rank 1, line 4" in report.text()
    assert "Rank 1: busy at line" in report.text()
    assert "in ring_all_reduce" in report.text()


def test_a_rank_that_dies_is_told_and_hides_no_other_case():
    source = "import os\ndef ring_all_reduce(tensor):\n    os._exit(3)\n"
    report = get("ch02-ring-all-reduce-torch").grade(source, seed=1)
    assert len(report.checks) == 9
    assert not any(check.passed for check in report.checks)
    assert "exit code 3" in report.text()
