"""How a rank ends when something goes wrong: at once, its number and its reason first, and not with code 0.

When one rank dies, the others soon fail too, with messages about closed connections that hide the reason.
So a rank whose own code failed reports immediately, and a rank that only lost its peers waits a moment
first: torchrun ends it as soon as it sees the rank that was the cause, and its message is printed only if
nobody else had one.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import NoReturn

from pdtlib.plan.spec import JobError

REFUSED = 2
"""Exit code of a run that was not started because something about it cannot work."""

PATIENCE_S = 5.0
"""How long a rank that lost its peers leaves the word to the rank that was the cause."""

LOST_PEER = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "Connection refused",
    "Socket closed",
    "gloo/transport",
    "Timed out waiting",
    "NCCL",
    "Failed to recv",
    "heartbeat",
)


class Refused(JobError):
    """A run that cannot start; ``problems`` are all of its reasons. Nothing on disk has been touched."""


class RunFailed(Exception):
    """A failure while training that its message explains fully: printed without a traceback."""


class ToldToEnd(Exception):
    """The run has saved and ended before its last step because it was told to (SIGTERM)."""


def rank() -> int:
    """This process's rank, as torchrun tells it."""
    return int(os.environ.get("RANK", "0"))


def die_with_parent() -> None:
    """End this process when the one that started it is gone, even if that was killed with SIGKILL."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, name="watch the launcher", daemon=True).start()


def leave_writers_failure_to_the_loop() -> None:
    """Let TensorBoard's thread fail without a word: its next caller raises the same error, and reports it.

    Its traceback would otherwise stand before the rank's own line, for example when the disk is full.
    """

    def hook(failure: threading.ExceptHookArgs) -> None:
        if not type(failure.thread).__module__.startswith("tensorboard."):
            threading.__excepthook__(failure)

    threading.excepthook = hook


def run_rank(work: Callable[[], None]) -> int:
    """Run ``work`` as this rank's whole life and return the exit code, 0.

    A failure ends the process here and now: threads of a dead peer's connections must not delay it.
    """
    try:
        work()
    except Refused as refusal:
        if int(os.environ.get("LOCAL_RANK", "0")) != 0:
            time.sleep(PATIENCE_S)
        _end(f"{describe(refusal)}\n", REFUSED)
    except ToldToEnd as end:
        _end(f"{end}\n" if rank() == 0 else "", 128 + signal.SIGTERM)
    except RunFailed as failure:
        if rank() != 0:
            time.sleep(PATIENCE_S)  # rank 0 mostly has the same to say
        _end(f"rank {rank()} failed{_where(failure)}: {failure}\n", 1)
    except Exception as error:
        if lost_peer(error):
            time.sleep(PATIENCE_S)
            header = f"rank {rank()} lost contact with another rank{_where(error)}: {_first_line(error)}"
        else:
            header = f"rank {rank()} failed{_where(error)}: {type(error).__name__}: {_first_line(error)}"
        _end(f"{header}\n{''.join(traceback.format_exception(error))}", 1)
    return 0


def describe(refusal: Refused) -> str:
    """The refusal as text for a terminal."""
    if len(refusal.problems) == 1:
        return f"error: {refusal.problems[0]}"
    lines = "\n".join(f"  {problem}" for problem in refusal.problems)
    return f"error: the run cannot start, for {len(refusal.problems)} reasons:\n{lines}"


def lost_peer(error: BaseException) -> bool:
    """Is this the failure of a message, whose reason lies on another rank?"""
    import torch.distributed as dist

    if isinstance(error, dist.DistError | ConnectionError | TimeoutError):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in LOST_PEER)


def _where(error: BaseException) -> str:
    notes = getattr(error, "__notes__", [])
    return f" {notes[0]}" if notes else ""


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [""])[0]


def _end(message: str, code: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.write(message)
    sys.stderr.flush()
    leave(code)


def leave(code: int) -> NoReturn:
    """End the process at once."""
    os._exit(code)
