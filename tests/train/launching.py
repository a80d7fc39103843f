"""Start real runs from tests, and see that nothing of them is left."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from multiprocessing import forkserver
from pathlib import Path
from typing import ClassVar

from pdtlib.engine.dist import spawn
from pdtlib.engine.training.checks import check
from pdtlib.engine.training.loop import train
from pdtlib.engine.training.options import Options
from pdtlib.engine.training.run_dir import read_metrics

# Ranks of `train_on` are forked from a server that has everything imported already.
multiprocessing.set_forkserver_preload(["pdtlib.engine.training.loop"])
forkserver.ensure_running()

FAULTS = Path(__file__).parent / "faults"
PDT = [sys.executable, "-c", "from pdtlib.cli import main; main()"]

JOB = """
[model]
layers = 2
hidden = 33
heads = 3
kv_heads = 1
head_dim = 10
ffn = 53
vocab = 257
seq = 32
activation = "swiglu"
[train]
global_batch = 8
micro_batch = 1
precision = "fp32"
learning_rate = 3e-3
steps = 20
[parallel]
dp = 2
"""


def write_job(folder: Path, text: str = JOB) -> Path:
    path = folder / "job.toml"
    path.write_text(text)
    return path


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(FAULTS), **more}


def train_on(ranks: int, job: Path, out: Path, **options: object) -> list[dict[str, object]]:
    """The loop itself on ``ranks`` processes, without launcher and start-up; returns the metrics."""
    changes = (*options.pop("changes", ()), f"hardware.n_gpus={ranks}")
    spawn(_train, ranks, Options(job=job, out=out, changes=changes, **options), timeout_s=240)
    return read_metrics(out)


def _train(options: Options) -> None:
    ranks = int(os.environ["WORLD_SIZE"])
    train(check(options, world_size=ranks, local_world_size=ranks))


class Process(subprocess.Popen):
    """A process whose descendants can be found, in whatever session they are: all carry its mark."""

    started: ClassVar[list["Process"]] = []

    def __init__(self, arguments: list[str], **env: str) -> None:
        self.mark = uuid.uuid4().hex
        self.started.append(self)
        super().__init__(
            arguments,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(PDT_TEST_MARK=self.mark, **env),
            start_new_session=True,
        )

    def alive(self) -> dict[int, str]:
        """Living processes of this run, as process id -> rank ("" for those that are no rank)."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                variables = (folder / "environ").read_bytes().split(b"\0")
                zombie = (folder / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
            except OSError:
                continue
            if f"PDT_TEST_MARK={self.mark}".encode() in variables and not zombie:
                ranks = [item[5:].decode() for item in variables if item.startswith(b"RANK=")]
                found[int(folder.name)] = ranks[0] if ranks else ""
        return found

    def kill_all(self) -> None:
        """End whatever of the run still lives."""
        for pid in self.alive():
            os.kill(pid, signal.SIGKILL)


def start(*arguments: object, command: list[str] | None = None, **env: str) -> Process:
    """Start ``pdt`` with ``arguments`` in a session of its own, as a terminal would."""
    return Process([*(command or PDT), *map(str, arguments)], **env)


def finish(process: Process, *, timeout_s: float = 300.0) -> tuple[int, str, str]:
    """Wait for the end; returns exit code, stdout and stderr. Fails if anything of the run is left."""
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill_all()
        out, err = process.communicate()
        raise AssertionError(f"no end after {timeout_s} s\n{out}\n{err}") from None
    left = process.alive()
    assert not left, f"left running: {left}\n{err}"
    return process.returncode, out, err


def run(*arguments: object, timeout_s: float = 300.0, **env: str) -> tuple[int, str, str]:
    """Run ``pdt`` to its end."""
    return finish(start(*arguments, **env), timeout_s=timeout_s)


def wait_for(condition: Callable[[], bool], *, timeout_s: float = 300.0) -> None:
    """Poll until ``condition()`` is true."""
    stop = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < stop, "waited too long"
        time.sleep(0.05)
