"""spawn: results in order, the first failing rank first, nothing left behind; init and seeds."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

from pdtlib.engine.collectives import all_reduce
from pdtlib.engine.dist import RankError, init, seed_all, shutdown, spawn
from pdtlib.engine.mesh import build_mesh
from pdtlib.engine.training import loop
from pdtlib.resilience.companions import accompany

JOB = """
[model]
layers = 1
hidden = 16
heads = 1
vocab = 256
seq = 8
[train]
global_batch = 2
steps = 2
precision = "fp32"
[parallel]
dp = 2
"""


def rank_and_sum(offset: int) -> tuple[int, float, int]:
    total = torch.tensor(float(dist.get_rank() + offset))
    dist.all_reduce(total)
    return dist.get_rank(), float(total), torch.get_num_threads()


def boom_at_step_2() -> None:
    for step in range(5):
        dist.all_reduce(torch.ones(()))
        if step == 2 and dist.get_rank() == 1:
            raise RuntimeError("boom")


def one_dies() -> None:
    if dist.get_rank() == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


def leave_without_the_others() -> None:
    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(()))


def sleep_forever() -> None:
    time.sleep(1000)


def threads_of_gloo() -> int:
    """Threads of this process that gloo has started; they have names on Linux alone."""
    return sum("gloo" in name.read_text() for name in Path("/proc/self/task").glob("*/comm"))


def meet_and_shut_down() -> tuple[int, int]:
    """Threads before and after; the mesh and its groups still live, as in a program's main function."""
    mesh = build_mesh({"dp": 2, "cp": 2, "ep": 2})
    for group in mesh.groups():
        all_reduce(torch.ones(3), group, phase="test")
    before = threads_of_gloo()
    shutdown()
    return before, threads_of_gloo()


def train_and_shut_down(job: Path) -> tuple[int, int]:
    """A run with everything that makes a group of its own: saver, copies in memory, notice of its end."""
    before = threads_of_gloo()
    options = ["--checkpoint-every", "1", "--memory-every", "1", "--preemptible", "--device", "cpu"]
    loop.main([str(job), "--out", str(job.parent / "out"), *options], accompany=accompany)
    return before, threads_of_gloo()


def living() -> dict[int, int]:
    """Process -> parent, of all processes that have not ended."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, parent = (folder / "stat").read_text().rsplit(")", 1)[1].split()[:2]
            if state != "Z":
                found[int(folder.name)] = int(parent)
    return found


def below(pid: int) -> set[int]:
    """Living processes that descend from ``pid``, also those that its fork server started."""
    parent_of, found = living(), {pid}
    for _ in range(4):
        found |= {child for child, parent in parent_of.items() if parent in found}
    return found - {pid}


def test_results_come_in_rank_order() -> None:
    assert spawn(rank_and_sum, 3, 10) == [(0, 33.0, 1), (1, 33.0, 1), (2, 33.0, 1)]


def test_first_failure_is_named_first_and_nobody_is_left() -> None:
    spawn(rank_and_sum, 1, 0)  # the fork server is up before processes are counted
    before = below(os.getpid())
    start = time.monotonic()
    with pytest.raises(RankError) as failure:
        spawn(boom_at_step_2, 2)
    assert time.monotonic() - start < 15
    assert failure.value.rank == 1
    first_line, *rest = str(failure.value).splitlines()
    assert first_line == "rank 1 of 2 failed first:"
    assert "RuntimeError: boom" in "\n".join(rest)
    assert "Connection closed" not in "\n".join(rest)
    assert below(os.getpid()) <= before, "workers are left"


def test_a_killed_rank_is_the_cause() -> None:
    start = time.monotonic()
    with pytest.raises(RankError, match=r"rank 2 of 3 failed first:\nthe process ended with exit code -9"):
        spawn(one_dies, 3)
    assert time.monotonic() - start < 15


def test_a_collective_without_its_peer_fails_instead_of_hanging() -> None:
    with pytest.raises(RankError, match="rank 0 of 2 failed first"):
        spawn(leave_without_the_others, 2, group_timeout_s=2.0)


def test_time_limit() -> None:
    with pytest.raises(TimeoutError, match=r"ranks \[0, 1\] did not finish within 2 s"):
        spawn(sleep_forever, 2, timeout_s=2.0)


def test_workers_end_with_their_caller() -> None:
    code = "from test_dist import spawn, sleep_forever; spawn(sleep_forever, 2, timeout_s=1000)"
    caller = subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parent)
    deadline = time.monotonic() + 60
    while len(below(caller.pid)) < 4 and time.monotonic() < deadline:  # fork server, tracker, two workers
        time.sleep(0.2)
    workers = below(caller.pid)
    assert len(workers) >= 4
    caller.kill()
    caller.wait()
    deadline = time.monotonic() + 10
    while workers & living().keys() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not workers & living().keys()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="threads have names on Linux alone")
def test_after_shutdown_no_thread_is_left_that_could_meet_the_interpreters_end() -> None:
    for before, after in spawn(meet_and_shut_down, 4):
        assert before >= 10
        assert after == 0


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="threads have names on Linux alone")
def test_after_a_run_no_thread_is_left_that_could_meet_the_interpreters_end(tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    job.write_text(JOB, encoding="utf-8")
    for before, after in spawn(train_and_shut_down, 2, job):
        assert before > 0
        assert after == 0


def test_init_without_torchrun_is_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    assert init("gloo") == torch.device("cpu")
    assert not dist.is_initialized()


def test_init_refuses_what_cannot_work(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="backend='mpi': valid are nccl, gloo"):
        init("mpi")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "99")
    with pytest.raises(ValueError, match=r"99 ranks on .* GPUs; use backend='gloo'"):
        init("nccl")


def test_seed_all_seeds_every_generator() -> None:
    draws = []
    for _ in range(2):
        seed_all(7)
        draws.append((random.random(), float(np.random.rand()), float(torch.rand(()))))
    assert draws[0] == draws[1]
