"""`pdt run` starts killed ranks again, and nothing is left when it is killed itself."""

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from pdtlib.engine.training.run_dir import TOLD_TO_END, last_checkpoint, read_metrics, step_of
from pdtlib.resilience.samples import trained

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc to find processes"),
]
PDT = [sys.executable, "-c", "from pdtlib.cli import main; main()", "run"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
JOB = """
[model]
layers = 2
hidden = 32
heads = 2
vocab = 256
seq = 32
[train]
global_batch = 8
micro_batch = 2
precision = "fp32"
steps = 8
[parallel]
dp = 2
"""


def alive(mark: str) -> list[int]:
    """Processes whose environment has the mark."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            zombie = (folder / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
            if f"PDT_TEST_MARK={mark}".encode() in (folder / "environ").read_bytes() and not zombie:
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def wait_for(condition: Callable[[], bool], timeout_s: float = 120.0) -> None:
    stop = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < stop, "waited too long"
        time.sleep(0.05)


def start(folder: Path, *words: str, program: Sequence[str] = PDT) -> tuple[subprocess.Popen[str], str]:
    (folder / "job.toml").write_text(JOB)
    mark = uuid.uuid4().hex
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PDT_TEST_MARK": mark}
    command = [*program, str(folder / "job.toml"), "--out", str(folder / "out"), *words]
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return process, mark


def test_killed_ranks_are_started_again(tmp_path: Path) -> None:
    """A process that a signal kills from outside, in the middle of a run with copies in memory."""
    words = ("--max-restarts", "3", "--memory-every", "1", "--watchdog", "20", "--set", "train.steps=60")
    process, mark = start(tmp_path, *words)
    out = tmp_path / "out"
    try:
        wait_for(lambda: len(read_metrics(out)) >= 5)
        ranks = [
            pid for pid in alive(mark) if b"\0RANK=1\0" in b"\0" + Path(f"/proc/{pid}/environ").read_bytes()
        ]
        os.kill(ranks[0], signal.SIGKILL)
        said, _ = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 0, said
    assert "from memory" in said
    assert [line["step"] for line in read_metrics(out)] == list(range(60))
    log = trained(out)
    assert list(log) == list(range(60))
    windows = [window for step in log.values() for window in step]
    assert len(windows) == len(set(windows)) == 60 * 8, "each sample once"
    assert alive(mark) == []


def test_an_elastic_launcher_that_is_killed_leaves_nothing(tmp_path: Path) -> None:
    process, mark = start(tmp_path, "--max-restarts", "3", "--set", "train.steps=100000")
    try:
        wait_for(lambda: len(read_metrics(tmp_path / "out")) >= 2)
        process.kill()
        wait_for(lambda: alive(mark) == [], timeout_s=20)
    finally:
        for pid in alive(mark):
            os.kill(pid, signal.SIGKILL)


def test_a_run_that_is_told_to_end_saves_and_goes_on(tmp_path: Path) -> None:
    """SIGTERM to torchrun alone: its ranks hear of it, agree on a step, save, and the run resumes there."""
    train = [*TORCHRUN, "-m", "pdtlib.train"]
    out = tmp_path / "out"
    process, mark = start(tmp_path, "--preemptible", "--steps", "100000", program=train)
    try:
        wait_for(lambda: len(read_metrics(out)) >= 3)
        process.terminate()
        said, _ = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode != 0
    done = int((out / TOLD_TO_END).read_text())
    assert f"told to end: saved after step {done} of 100000" in said
    assert step_of(last_checkpoint(out)) == done == len(read_metrics(out))
    assert alive(mark) == []
    process, _ = start(tmp_path, "--preemptible", "--resume", "--steps", str(done + 2), program=train)
    said, _ = process.communicate(timeout=300)
    assert process.returncode == 0, said
    assert [line["step"] for line in read_metrics(out)] == list(range(done + 2))
    assert not (out / TOLD_TO_END).exists()


def test_wrong_options_are_refused(tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(JOB)
    (tmp_path / "faults.json").write_text("[1]")
    command = [sys.executable, "-m", "pdtlib.train", str(tmp_path / "job.toml"), "--out", str(tmp_path / "o")]
    wrong = ("--watchdog", "-1", "--stage-ms", "5")
    done = subprocess.run(
        [*command, "--set", "parallel.dp=1", *wrong, "--faults", str(tmp_path / "faults.json")],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2
    assert "--watchdog: must be 0 (off) or more, not -1.0" in done.stderr
    assert "--stage-ms: the job has no pipeline stages (parallel.pp is 1)" in done.stderr
