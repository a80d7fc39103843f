"""What a person sees: a progress bar on a terminal, plain lines in a pipe, nothing that needs cleaning up."""

import os
import pty
import select
import subprocess
import time
from pathlib import Path

import pytest
from launching import PDT, environment, write_job

from pdtlib.engine.training.terminal import Terminal

pytestmark = pytest.mark.timeout(900)


def on_a_terminal(arguments: list[str], *, folder: Path, **env: str) -> tuple[int, str]:
    """Run with a pseudo-terminal as stdout and stderr; returns the exit code and all that it showed."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        arguments,
        stdout=theirs,
        stderr=theirs,
        env=environment(**env),
        cwd=folder,
        start_new_session=True,
    )
    os.close(theirs)
    shown = b""
    stop = time.monotonic() + 600
    while time.monotonic() < stop:
        if not select.select([ours], [], [], 1.0)[0]:
            continue
        try:
            piece = os.read(ours, 65536)
        except OSError:  # the last writer is gone
            break
        if not piece:
            break
        shown += piece
    os.close(ours)
    return process.wait(timeout=60), shown.decode()


def test_a_terminal_gets_a_bar_and_keeps_its_cursor(tmp_path: Path) -> None:
    """Also with spaces in every path, and relative ones."""
    folder = tmp_path / "a folder"
    folder.mkdir()
    (folder / "my text.txt").write_text("To be, or not to be. " * 200)
    write_job(folder)
    words = ["run", "job.toml", "--out", "my runs/first", "--steps", "3", "--data", "my text.txt"]
    code, shown = on_a_terminal([*PDT, *words], folder=folder, TERM="xterm", COLUMNS="80")
    assert code == 0, shown
    assert "3/3" in shown
    assert "━" in shown
    assert "\x1b[?25l" not in shown  # the cursor is never hidden
    assert "done: 3 steps" in shown
    assert (folder / "my runs" / "first" / "metrics.jsonl").read_text().count("\n") == 3


def test_a_pipe_gets_a_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    terminal = Terminal(first=0, steps=100)
    for step in range(100):
        terminal.step(step, loss=1.23456, tokens_per_s=1234.5, comm_share=0.25)
    terminal.close()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "step 1/100  loss 1.2346  1,234 tokens/s  25% waiting for messages"
    assert lines[-1].startswith("step 100/100")
    assert len(lines) == 21


def test_a_dumb_terminal_gets_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("FORCE_COLOR", "1")
    Terminal(first=0, steps=2).step(0, loss=1.0, tokens_per_s=1.0, comm_share=0.0)
    assert capsys.readouterr().out.startswith("step 1/2")
