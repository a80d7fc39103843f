"""Run labs as their readers do, and import their modules to break them on purpose."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType

import pytest

from pdtlib.book import lab as labs

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 480.0  # several times what a loaded machine needs


def run(command: Sequence[str], *, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command from the root of the repository; it and all it started end with the test."""
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            pytest.fail(f"{' '.join(command)} took longer than {TIMEOUT_S} s:\n{(out + err)[-3000:]}")
    return subprocess.CompletedProcess(list(command), process.returncode, out, err)


def command(folder: Path, *arguments: str, processes: int | None = None) -> list[str]:
    """The launch line of a lab in this environment, with another number of processes if asked."""
    words = labs.command(folder / "lab.py", arguments)
    if processes is not None:
        at = words.index("--nproc-per-node") + 1
        words[at] = str(processes)
    return words


def comparable(text: str) -> list[str]:
    """A lab's lines without what differs between machines: losses (other texts) and times."""
    lines = [re.sub(r"\b\d+\.\d{5}\b", "<loss>", line.rstrip()) for line in text.splitlines()]
    return [line for line in lines if line and not line.startswith("seconds")]


def load(path: Path, name: str) -> ModuleType:
    """Import a lab's file as a module, with its folder on the path as when it is started."""
    sys.path.insert(0, str(path.parent))
    try:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
    return module
