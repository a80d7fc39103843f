"""However a run ends, it ends soon, says which rank was the cause and why first, and leaves nothing running.

Field report C07 and its kind: an exception, SIGKILL on a rank, Ctrl-C, SIGTERM and SIGKILL on the launcher.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from launching import (
    PDT,
    environment,
    finish,
    run,
    start,
    wait_for,
    write_job,
)

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc to find processes"),
]
LIMIT_S = 15.0


def lines_of(metrics: Path) -> int:
    return metrics.read_text().count("\n") if metrics.exists() else 0


def last_step_to_end_s(out: Path) -> float:
    """Seconds since the last step was written."""
    return time.time() - (out / "metrics.jsonl").stat().st_mtime


def test_an_exception_is_reported_first_with_its_rank(tmp_path: Path) -> None:
    """Through ``pdt run ... | tee log`` under pipefail, the command line that the help documents."""
    job, out, log = write_job(tmp_path), tmp_path / "out", tmp_path / "log"
    command = f"set -o pipefail; {{ \"$@\" 2>&1 1>&3 | tee '{log}'; }} 3>/dev/null"
    process = start(
        "bash", "-c", command, "bash", *PDT, "run", job, "--out", out, command=["env"], PDT_FAULT="1:2:raise"
    )
    code, text, _ = finish(process)
    assert code == 1
    assert last_step_to_end_s(out) < LIMIT_S
    assert text.splitlines()[0] == "rank 1 failed in step 2: RuntimeError: boom"
    assert text == log.read_text()
    assert "Traceback" in text
    assert "rank 0" not in text
    assert lines_of(out / "metrics.jsonl") == 2
    assert "pdt run: rank 1 failed with exit code 1" in text


def test_a_killed_rank_is_named(tmp_path: Path) -> None:
    job, out = write_job(tmp_path), tmp_path / "out"
    code, _, err = run("run", job, "--out", out, "--nproc", 4, PDT_FAULT="2:2:kill")
    assert code == 128 + signal.SIGKILL
    assert last_step_to_end_s(out) < LIMIT_S
    assert err.splitlines()[0].startswith("pdt run: rank 2 was killed by SIGKILL")
    assert "Traceback" not in err


def test_torchrun_alone_ends_and_names_the_cause(tmp_path: Path) -> None:
    job, out = write_job(tmp_path), tmp_path / "out"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    process = start("-m", "pdtlib.train", job, "--out", out, command=torchrun, PDT_FAULT="1:1:raise")
    code, _, err = finish(process)
    assert code == 1
    told = [line for line in err.splitlines() if line.startswith("rank ")]
    assert told == ["rank 1 failed in step 1: RuntimeError: boom"]


@pytest.mark.parametrize(
    ("number", "whole_group", "code"),
    [
        (signal.SIGINT, True, 130),  # Ctrl-C in a terminal reaches every process
        (signal.SIGTERM, False, 143),
        (signal.SIGKILL, False, -9),
    ],
)
def test_stopping_the_launcher_stops_all(
    tmp_path: Path, number: signal.Signals, whole_group: bool, code: int
) -> None:
    job, out = write_job(tmp_path), tmp_path / "out"
    process = start("run", job, "--out", out, "--steps", 1_000_000)
    wait_for(lambda: lines_of(out / "metrics.jsonl") > 2)
    stopped = time.monotonic()
    assert set(process.alive().values()) == {"", "0", "1"}
    if whole_group:
        os.killpg(process.pid, number)
    else:
        os.kill(process.pid, number)
    wait_for(lambda: not process.alive(), timeout_s=LIMIT_S)
    assert time.monotonic() - stopped < LIMIT_S
    got, _, err = finish(process)
    assert got == code
    assert "Traceback" not in err
    if code > 0:
        assert err.splitlines() == [f"pdt run: stopped by {number.name}; no rank is left"]


def test_without_torch_the_extra_is_named(tmp_path: Path) -> None:
    """As on a machine with the base install only."""
    hide = tmp_path / "hide"
    hide.mkdir()
    (hide / "sitecustomize.py").write_text(
        "import importlib.util as u\nfind = u.find_spec\n"
        "u.find_spec = lambda name, *more: None if name == 'torch' else find(name, *more)\n"
    )
    job = write_job(tmp_path)
    for command in ([*PDT, "run"], [sys.executable, "-m", "pdtlib.train"]):
        done = subprocess.run(
            [*command, str(job), "--out", str(tmp_path / "out")],
            env={**environment(), "PYTHONPATH": str(hide)},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 2
        assert "pip install 'pdtlib[engine]'" in done.stderr
        assert not (tmp_path / "out").exists()
