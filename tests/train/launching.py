"""Start real runs from tests, and see that nothing of them is left."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

FAULTS = Path(__file__).parent / "faults"
PDT = [sys.executable, "-c", "from pdtlib.cli import main; main()"]

JOB = """
[model]
layers = 2
hidden = 32
heads = 4
vocab = 256
seq = 32
activation = "swiglu"
kv_heads = 2
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


def start(*arguments: object, command: list[str] | None = None, **env: str) -> subprocess.Popen[str]:
    """Start ``pdt`` with ``arguments`` in a session of its own, as a terminal would."""
    return subprocess.Popen(
        [*(command or PDT), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(**env),
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str], *, timeout_s: float = 90.0) -> tuple[int, str, str]:
    """Wait for the end; returns exit code, stdout and stderr. Fails if a process of the session is left."""
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        raise AssertionError(f"no end after {timeout_s} s\n{out}\n{err}") from None
    left = session_members(process.pid)
    assert not left, f"left running: {left}\n{err}"
    return process.returncode, out, err


def run(*arguments: object, timeout_s: float = 90.0, **env: str) -> tuple[int, str, str]:
    """Run ``pdt`` to its end."""
    return finish(start(*arguments, **env), timeout_s=timeout_s)


def session_members(session: int) -> list[int]:
    """Processes of a session that still live, from /proc (zombies do not count)."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, of_session = stat.read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue
        if int(of_session) == session and state != "Z":
            found.append(int(stat.parent.name))
    return found


def wait_for(condition, *, timeout_s: float = 60.0) -> None:
    """Poll until ``condition()`` is true."""
    stop = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < stop, "waited too long"
        time.sleep(0.05)
