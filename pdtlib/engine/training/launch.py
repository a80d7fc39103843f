"""Start the ranks of a run on this machine, under torchrun's own agent, and report how they ended."""

from __future__ import annotations

import logging
import os
import signal
import sys
import uuid
from collections.abc import Sequence

from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from pdtlib.engine.training.failures import REFUSED


def launch(arguments: Sequence[str], *, num_processes: int, max_restarts: int = 0) -> int:
    """Run ``python -m pdtlib.train ARGUMENTS`` on ``num_processes`` ranks; returns the exit code.

    After a failure all ranks are started again, ``max_restarts`` times at the most.
    The code is 0 when every rank ended well, that of the first rank that failed, 128 + the signal that killed
    it, or 128 + the signal that stopped the launcher. No rank outlives the call.
    """
    loopback = "lo0" if sys.platform == "darwin" else "lo"
    os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // num_processes)))
    logging.disable(logging.ERROR)  # the agent tells the same story in its own words
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=num_processes,
        run_id=str(uuid.uuid4()),
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="localhost",
        max_restarts=max_restarts,
        monitor_interval=0.1,
    )
    try:
        elastic_launch(config, sys.executable)("-m", "pdtlib.train", *arguments)
    except ChildFailedError as error:
        return _report(error.failures)
    except SignalException as stop:
        return _stopped(stop.sigval)
    except KeyboardInterrupt:
        return _stopped(signal.SIGINT)
    finally:
        logging.disable(logging.NOTSET)
        if sys.stdout.isatty():
            sys.stdout.write("\x1b[?25h")  # a killed rank 0 may have left the cursor hidden
            sys.stdout.flush()
    return 0


def root_cause(failures: dict[int, ProcessFailure]) -> tuple[int, ProcessFailure]:
    """The rank that failed first.

    A rank that a signal killed could not tell the others, who failed because of it, so it comes first; only
    torchrun's own SIGTERM to the survivors is no cause.
    """

    def order(item: tuple[int, ProcessFailure]) -> tuple[bool, bool, float]:
        failure = item[1]
        ended = failure.exitcode == -signal.SIGTERM
        return ended, failure.exitcode >= 0, failure.timestamp

    return min(failures.items(), key=order)


def _report(failures: dict[int, ProcessFailure]) -> int:
    rank, failure = root_cause(failures)
    if failure.exitcode == REFUSED:
        return REFUSED
    if failure.exitcode < 0:
        name = signal.Signals(-failure.exitcode).name
        hint = "; the system does that when memory runs out" if name == "SIGKILL" else ""
        _say(f"rank {rank} was killed by {name} (process {failure.pid}{hint}); the run was stopped")
        return 128 - failure.exitcode
    _say(f"rank {rank} failed with exit code {failure.exitcode} (its message is above); the run was stopped")
    return failure.exitcode


def _stopped(number: signal.Signals) -> int:
    _say(f"stopped by {signal.Signals(number).name}; no rank is left")
    return 128 + number


def _say(message: str) -> None:
    print(f"pdt run: {message}", file=sys.stderr, flush=True)
