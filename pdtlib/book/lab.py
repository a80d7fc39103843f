"""Run a lab as its own launch line says: ``python -m pdtlib.book 02 [arguments of the lab]``.

A lab is ``labs/NN_slug/lab.py``; its module-level literal ``LAUNCH`` is the command that a reader
types. ``make lab``, the chapters and the tests all go through here, so they can't run a lab in
another way than the reader does.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def find(number: str, *, root: Path = ROOT) -> Path:
    """The ``lab.py`` of a lab (``"2"``, ``"02"`` or ``"02_zero"``); ``ValueError`` if there is none."""
    labs = sorted(path.parent for path in root.glob("labs/[0-9]*_*/lab.py"))
    wanted = number.split("_")[0].zfill(2)
    for lab in labs:
        if lab.name.split("_")[0] == wanted:
            return lab / "lab.py"
    valid = ", ".join(lab.name for lab in labs) or "none: this clone has no labs"
    raise ValueError(f"lab={number!r}; valid: {valid}")


def launch_line(lab: Path) -> str:
    """The literal ``LAUNCH`` of a lab, read without importing it."""
    for node in ast.parse(lab.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and any(getattr(t, "id", None) == "LAUNCH" for t in node.targets):
            return str(ast.literal_eval(node.value))
    raise ValueError(f"{lab}: no LAUNCH; valid: a module-level string, the command that starts the lab")


def command(lab: Path, arguments: tuple[str, ...]) -> list[str]:
    """The launch line of a lab as a command of this environment."""
    return [*_words(launch_line(lab)), *arguments]


def _words(line: str) -> list[str]:
    """A line's words, with ``torchrun`` and ``python`` of the running Python."""
    program, *rest = shlex.split(line)
    programs = {
        "torchrun": [sys.executable, "-m", "torch.distributed.run"],
        "python": [sys.executable],
        "python3": [sys.executable],
    }
    return [*programs.get(program, [program]), *rest]


def run_lab(number: str, *arguments: str, timeout_s: float = 300) -> Any:
    """Run a lab, print its launch line and what it prints, and return the JSON that it wrote.

    Raises ``RuntimeError`` with the end of the lab's output when it fails or takes longer than
    ``timeout_s``; its processes are ended with it.
    """
    lab = find(number)
    print("$", " ".join([launch_line(lab), *arguments]), flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.json"
        _run(command(lab, (*arguments, "--json", str(report))), f"lab {lab.parent.name}", timeout_s)
        return json.loads(report.read_text(encoding="utf-8"))


def run_program(line: str, *, timeout_s: float = 120) -> None:
    """Run a program as a reader types it, and print the line and what it prints; errors as for a lab."""
    print("$", line, flush=True)
    _run(_words(line), line, timeout_s)


def _run(program: list[str], name: str, timeout_s: float) -> None:
    process = subprocess.Popen(
        program,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=timeout_s)
    except BaseException as reason:
        end(process)
        if isinstance(reason, subprocess.TimeoutExpired):
            raise RuntimeError(f"{name} took longer than {timeout_s:g} s") from None
        raise
    print(out, end="")
    if process.returncode:
        raise RuntimeError(f"{name} failed (exit {process.returncode}):\n{(out + err)[-4000:]}")


def end(process: subprocess.Popen[Any]) -> None:
    """End torchrun and, through its own handler, its workers; then whatever is left of its session."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=15)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def main(arguments: list[str]) -> int:
    """Print the launch line, run it with the terminal's own input and output, return its exit status."""
    try:
        lab = find(arguments[0] if arguments else "")
        line = launch_line(lab)
    except ValueError as problem:
        print(problem, file=sys.stderr)
        return 2
    print("$", " ".join([line, *arguments[1:]]), flush=True)
    return subprocess.call(command(lab, tuple(arguments[1:])), cwd=ROOT)
