"""A disk that fills up while a run goes on: one clear error, and the last checkpoint stays whole."""

import contextlib
import errno
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from launching import finish, start, wait_for, write_job
from tensorboard.summary.writer.record_writer import RecordWriter
from torch.utils.tensorboard import SummaryWriter

from pdtlib.engine.training.checkpoint_index import read_index
from pdtlib.engine.training.failures import leave_writers_failure_to_the_loop
from pdtlib.engine.training.run_dir import last_checkpoint

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 48 MB, 14 MB above what a run demands at its start."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = shutil.which("mount") and os.geteuid() == 0
    if not mounted or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", disk]).returncode:
        pytest.skip("mounting a small file system needs root")
    yield disk
    subprocess.run(["umount", disk], check=True)


def fill(disk: Path) -> None:
    with (disk / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(b"0" * 4096):
            pass


def test_a_full_disk_ends_the_run_and_spares_the_last_checkpoint(small_disk: Path, tmp_path: Path) -> None:
    job, out = write_job(tmp_path), small_disk / "out"
    process = start("run", job, "--out", out, "--steps", 40, "--checkpoint-every", 1)
    wait_for(lambda: last_checkpoint(out) is not None)
    fill(small_disk)
    code, _, err = finish(process)
    assert code == 1
    first, *rest = err.splitlines()
    assert first.startswith("rank ")
    assert "No space left on device" in first
    last = last_checkpoint(out)
    assert last is not None
    assert f"the last complete checkpoint is {last}" in first
    assert rest == ["pdt run: rank 0 failed with exit code 1 (its message is above); the run was stopped"]
    read_index(last)
    assert [path.name for path in (out / "checkpoints").glob(".*")] == []
    (small_disk / "filler").unlink()
    code, text, err = finish(start("run", job, "--out", out, "--steps", 40, "--resume"))
    assert code == 0, err
    assert f"from {last}" in text


def test_tensorboards_thread_leaves_its_failure_to_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(_: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(threading, "excepthook", threading.__excepthook__)
    leave_writers_failure_to_the_loop()
    writer = SummaryWriter(str(tmp_path))
    writer.flush()
    monkeypatch.setattr(RecordWriter, "write", staticmethod(full))

    def write_on() -> None:
        for step in range(1000):
            writer.add_scalar("loss", 1.0, step)
            time.sleep(0.001)

    with pytest.raises(OSError, match="No space left"):
        write_on()
    assert capsys.readouterr().err == ""
    other = threading.Thread(target=full, args=(b"",))
    other.start()
    other.join()
    assert "No space left" in capsys.readouterr().err
