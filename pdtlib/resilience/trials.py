"""Trials: a real run under torchrun's agent meets a fault, and must end as the run that met none.

A trial is recovered when the agent ended well in time, the last checkpoint holds the uninterrupted run's
weights and moments, every sample of every step was trained on once, and no process is left. With the same
number of ranks afterwards the weights must be equal bit for bit; with another one (a node was lost) sums are
formed in another order, and they must agree to a few units in the last place.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import forkserver
from pathlib import Path
from types import FrameType
from typing import NoReturn

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from pdtlib.engine.training import failures
from pdtlib.engine.training.checkpoint_index import read_index
from pdtlib.engine.training.run_dir import last_checkpoint, read_metrics
from pdtlib.resilience.samples import trained
from pdtlib.testbed import launch as testbed_launch
from pdtlib.train import main as train_main

TOLERANCE = 1e-6
"""Largest difference of weights after a change of the number of ranks; learning rates are around 1e-3."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a trial. ``difference`` is the largest of any weight or moment; None without a run."""

    recovered: bool
    code: int
    difference: float | None
    samples_once: bool
    processes_left: int
    seconds: float
    words: tuple[str, ...] = ()


def run_local(
    job: Path, out: Path, *options: str, ranks: int, max_restarts: int = 0, timeout_s: float = 120.0
) -> tuple[int, tuple[str, ...]]:
    """Train under an elastic agent in this process; returns the exit code and what the ranks said on stderr.

    The ranks are forked from a server that has everything imported, so a start takes a moment only. The code
    is 124 when the run did not end within ``timeout_s``.
    """
    prepare()
    logs = out.with_name(f"{out.name}-logs")
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=ranks,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="localhost",
        max_restarts=max_restarts,
        monitor_interval=0.1,
        start_method="forkserver",
        logs_specs=DefaultLogsSpecs(log_dir=str(logs), redirects=Std.ALL),
    )
    arguments = [str(job), "--out", str(out), *options]
    code = 0
    logging.disable(logging.ERROR)
    try:
        with _alarm(timeout_s):
            elastic_launch(config, _rank)(arguments)
    except ChildFailedError as error:
        code = abs(next(iter(error.failures.values())).exitcode) or 1
    except TimeoutError:
        code = 124
    finally:
        logging.disable(logging.NOTSET)
    said = [line for path in sorted(logs.rglob("stderr.log")) for line in path.read_text().splitlines()]
    return code, tuple(line for line in said if line.startswith("rank "))


def run_testbed(
    job: Path,
    out: Path,
    *options: str,
    name: str,
    strike: Callable[[], None],
    at_step: int,
    min_nodes: int = 1,
    max_restarts: int = 5,
    timeout_s: float = 180.0,
) -> tuple[int, tuple[str, ...]]:
    """Train on ``min_nodes`` or more nodes of a testbed; call ``strike`` once ``at_step`` steps are done."""
    said: list[str] = []
    codes: list[int] = []
    words = ["-m", "pdtlib.train", str(job), "--out", str(out), *options]

    def train() -> None:
        codes.append(
            testbed_launch.run(
                words, name=name, min_nodes=min_nodes, max_restarts=max_restarts, say=said.append
            )
        )

    thread = threading.Thread(target=train, daemon=True)
    thread.start()
    stop = time.monotonic() + timeout_s
    struck = False
    while thread.is_alive() and time.monotonic() < stop:
        if not struck and len(read_metrics(out)) >= at_step:
            strike()
            struck = True
        time.sleep(0.05)
    code = codes[0] if codes else 124
    return (code if struck else 1), tuple(said)


def judge(
    out: Path, reference: Path, *, code: int, words: tuple[str, ...], seconds: float, left: int, exact: bool
) -> Outcome:
    """Compare what a run has left with the uninterrupted run."""
    found, expected = last_checkpoint(out), last_checkpoint(reference)
    difference = None
    if found is not None and expected is not None and found.name == expected.name:
        difference = largest_difference(found, expected)
    once = trained(out) == trained(reference)
    near = difference is not None and difference <= (0.0 if exact else TOLERANCE)
    return Outcome(
        recovered=code == 0 and near and once and left == 0,
        code=code,
        difference=difference,
        samples_once=once,
        processes_left=left,
        seconds=round(seconds, 1),
        words=words,
    )


def largest_difference(first: Path, second: Path) -> float:
    """The largest absolute difference of any element of two checkpoints; infinite if they differ in kind."""
    one, two = whole(first), whole(second)
    if {key: value.shape for key, value in one.items()} != {key: value.shape for key, value in two.items()}:
        return float("inf")
    return max(float((one[key].double() - two[key].double()).abs().max()) for key in one)


def whole(checkpoint: Path) -> dict[str, torch.Tensor]:
    """Every tensor of a checkpoint, whole."""
    entries = read_index(checkpoint).state_dict_metadata
    state = {
        key: torch.zeros(entry.size, dtype=entry.properties.dtype)
        for key, entry in entries.items()
        if isinstance(entry, TensorStorageMetadata)
    }
    dcp.load(state, checkpoint_id=checkpoint, no_dist=True)
    return state


def prepare() -> None:
    """Start the server from which ranks are forked, with what they need imported."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    multiprocessing.set_forkserver_preload(["pdtlib.engine.training.loop", "pdtlib.resilience.companions"])
    forkserver.ensure_running()


def ranks_left(within_s: float = 5.0) -> int:
    """Processes that the server has started and that still live; those on their way out get a moment."""
    server = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    stop = time.monotonic() + within_s
    while True:
        try:
            left = len(Path(f"/proc/{server}/task/{server}/children").read_text().split())
        except OSError:
            return 0
        if left == 0 or time.monotonic() > stop:
            return left
        time.sleep(0.05)


def _rank(arguments: Sequence[str]) -> None:
    failures.leave = _leave
    train_main(arguments)


def _leave(code: int) -> NoReturn:
    """Of a rank that ends with a code torch's agent expects a pickled exception; of a signal it does not."""
    while True:
        os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in the main thread when the body takes too long."""

    def ring(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"no end after {seconds:g} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
