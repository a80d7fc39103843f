"""Start and stop torch.distributed, and run a function on several processes of this machine.

Launching real runs is torchrun's work; :func:`init` reads its environment. :func:`spawn` is for tests, labs
and notebooks: it meets through a file instead of a port, ends every process it started, and raises the error
of the rank that failed first.
"""

import gc
import multiprocessing
import os
import pickle
import random
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # has the group of all as default arguments: see shutdown()

from pdtlib.engine.fresh_store import fresh_store

GRACE_S = 2.0
"""How long the other ranks may still report after the first failure, so that the first cause is found."""


def init(backend: str | None = None, *, timeout_s: float = 600.0) -> torch.device:
    """Join the process group that torchrun's environment describes and return this rank's device.

    ``backend`` is ``nccl`` or ``gloo``; by default nccl where there is a GPU for every local rank, else gloo.
    Without torchrun's environment this is a run of one process and no group is made. Calling it twice is
    harmless. Raises ValueError for another backend or for nccl without enough GPUs.
    """
    if backend not in (None, "nccl", "gloo"):
        raise ValueError(f"backend={backend!r}: valid are nccl, gloo")
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    local_world = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    num_gpus = torch.cuda.device_count()
    if backend == "nccl" and num_gpus < local_world:
        raise ValueError(f"backend='nccl': {local_world} ranks on {num_gpus} GPUs; use backend='gloo'")
    use_gpu = backend != "gloo" and num_gpus >= local_world and num_gpus > 0
    device = torch.device("cuda", local_rank) if use_gpu else torch.device("cpu")
    if use_gpu:
        torch.cuda.set_device(device)
    if "RANK" in os.environ and not dist.is_initialized():
        dist.init_process_group(
            "nccl" if use_gpu else "gloo",
            timeout=timedelta(seconds=timeout_s),
            device_id=device if use_gpu else None,
            **_meeting_place(timeout_s),
        )
    return device


def common_store() -> dist.TCPStore | None:
    """A connection of its own to the store that all ranks share; None for ranks that no agent has started.

    The agent keeps the store, or rank 0 where TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 tells the agent not to.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return None
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return dist.TCPStore(address, port, is_master=False, wait_for_workers=False)


def _meeting_place(timeout_s: float) -> dict[str, Any]:
    """Where ranks meet whose agent keeps one store while it starts them again; else torch's own choice."""
    keeps = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if not keeps or os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") == "0":
        return {}
    store = common_store()
    assert store is not None
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    fresh = fresh_store(store, rank=rank, world_size=world_size, timeout_s=timeout_s)
    return {"store": fresh, "rank": rank, "world_size": world_size}


def shutdown() -> None:
    """Leave the process group, if there is one, and end its threads.

    A thread of gloo may still hold a collective's tensors after the collective is done. If it lets go of them
    while the interpreter ends, the process aborts: "terminate called without an active exception", exit code
    -6 after good work. A group joins its threads when its last reference goes: torch.distributed's goes here,
    a :class:`pdtlib.engine.mesh.Group` has none, modules that would take one are imported before there is a
    group, and cycles of what is over are collected.
    """
    if dist.is_initialized():
        dist.destroy_process_group()
        gc.collect()


def seed_all(seed: int) -> None:
    """Seed Python's, numpy's (where it is loaded) and torch's generators on every device."""
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)
    torch.manual_seed(seed)


class RankError(RuntimeError):
    """A rank of :func:`spawn` failed; ``rank`` says which one failed first."""

    def __init__(self, message: str, *, rank: int) -> None:
        super().__init__(message)
        self.rank = rank


def spawn(
    fn: Callable[..., Any],
    world_size: int,
    *args: Any,
    timeout_s: float = 120.0,
    group_timeout_s: float = 30.0,
    num_threads: int = 1,
    backend: str = "gloo",
) -> list[Any]:
    """Run ``fn(*args)`` on ``world_size`` processes that form a group; return their results in rank order.

    ``fn`` must be importable (a module's function). Arguments and results travel by value. A collective that
    waits longer than ``group_timeout_s`` fails instead of hanging. Raises :class:`RankError` with the first
    failing rank's traceback at the top, and :class:`TimeoutError` after ``timeout_s``; no process is left.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.distributed", "pdtlib.engine.dist"])
    call = pickle.dumps((fn, args))
    processes: list[Any] = []
    connections: list[Connection] = []
    with tempfile.TemporaryDirectory(prefix="pdt-spawn-") as folder:
        setup = {
            "backend": backend,
            "init_method": (Path(folder) / "rendezvous").as_uri(),
            "world_size": world_size,
            "timeout": timedelta(seconds=group_timeout_s),
        }
        try:
            for rank in range(world_size):
                ours, theirs = context.Pipe(duplex=False)
                process = context.Process(
                    target=_worker, args=(theirs, call, {**setup, "rank": rank}, num_threads), daemon=True
                )
                process.start()
                theirs.close()
                processes.append(process)
                connections.append(ours)
            results = _collect(processes, connections, timeout_s)
            for process in processes:
                process.join(timeout=GRACE_S)
            return results
        finally:
            for process in processes:
                if process.is_alive():
                    process.kill()
                process.join()
            for connection in connections:
                connection.close()


def _worker(connection: Connection, call: bytes, setup: dict[str, Any], num_threads: int) -> None:
    """The body of one rank: report ("done", result) or ("failed", time, traceback)."""
    _end_with_parent()
    rank = setup["rank"]
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(setup["world_size"]),
        LOCAL_WORLD_SIZE=str(setup["world_size"]),
    )
    torch.set_num_threads(num_threads)
    try:
        if setup["backend"] == "nccl":
            torch.cuda.set_device(rank)
        dist.init_process_group(**setup)
        fn, args = pickle.loads(call)
        connection.send_bytes(pickle.dumps(("done", fn(*args))))
    except BaseException:
        connection.send_bytes(pickle.dumps(("failed", time.monotonic(), traceback.format_exc())))
        return
    if dist.is_initialized():  # else ``fn`` has left the group itself
        with suppress(RuntimeError):  # another rank failed, which is its own report
            dist.barrier()  # nobody leaves while another still waits for its messages
            dist.destroy_process_group()


def _end_with_parent() -> None:
    """Leave at once when the process that called :func:`spawn` is gone, whatever ended it."""
    parent = multiprocessing.parent_process()
    if parent is not None:

        def watch(sentinel: int = parent.sentinel) -> None:
            wait([sentinel])
            os._exit(1)

        threading.Thread(target=watch, daemon=True).start()


def _collect(processes: list[Any], connections: list[Connection], timeout_s: float) -> list[Any]:
    results: dict[int, Any] = {}
    failures: list[tuple[float, int, str]] = []
    open_ranks = dict(enumerate(connections))
    deadline = time.monotonic() + timeout_s
    while open_ranks:
        remaining = deadline - time.monotonic()
        ready = wait(list(open_ranks.values()), timeout=max(0.0, remaining))
        if not ready:
            if failures:
                break
            raise TimeoutError(f"ranks {sorted(open_ranks)} did not finish within {timeout_s:g} s")
        for rank in [rank for rank, connection in open_ranks.items() if connection in ready]:
            try:
                kind, *content = pickle.loads(open_ranks.pop(rank).recv_bytes())
            except EOFError:  # ended without a word, so no error of another rank can be the cause
                processes[rank].join()
                failures.append((0.0, rank, f"the process ended with exit code {processes[rank].exitcode}"))
                kind = "died"
            if kind == "done":
                results[rank] = content[0]
            elif kind == "failed":
                failures.append((content[0], rank, content[1]))
        if failures:
            deadline = min(deadline, time.monotonic() + GRACE_S)
    if failures:
        raise _first_failure(failures, len(processes))
    return [results[rank] for rank in range(len(processes))]


def _first_failure(failures: list[tuple[float, int, str]], world_size: int) -> RankError:
    (_, rank, text), *others = sorted(failures)
    message = f"rank {rank} of {world_size} failed first:\n{text}"
    if others:
        message += f"\nAfterwards failed: rank {', '.join(str(other) for _, other, _ in others)}"
    return RankError(message, rank=rank)
