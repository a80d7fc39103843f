"""Every check of the project, in the order of ``make test``: ``python -m pdtlib.book.suites [NAME...]``.

All suites run, also after one has failed. The summary at the end has each one's time, the processor
time of its processes and its closing line; the exit status is 1 when any failed. Tests that start processes
of their own wait for them most of the time, so two files of them run side by side; those that cut links, kill
nodes and measure how long it takes to notice run alone.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pdtlib.book import normalise

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
MULTIPROCESS = ("engine", "train", "observe", "exercises", "cli", "labs")
ALONE = ("testbed", "resilience")
LAB_ALONE = "tests/labs/test_async_lab.py"  # it kills a node too
BROWSER = ("site",)
ELSEWHERE = ("targets", "slurm")  # in a Python environment of its own; with the system's Slurm
CELL_TIMEOUT_S = 300
# What runs inside Pyodide would change this interpreter if it were looked through for examples.
DOCTESTS = ("--doctest-modules", "--ignore=tests/plan_pyodide/suite.py")


@dataclass(frozen=True, kw_only=True)
class Suite:
    """Commands that are run one after another; each is a list of arguments."""

    name: str
    commands: list[list[str]]


def suites(jobs: int, root: Path = ROOT) -> Iterator[Suite]:
    """All suites, in order. ``jobs`` is the number of worker processes of the light tests."""
    python = [sys.executable, "-m"]
    pytest = [*python, "pytest", "-q", "-p", "no:cacheprovider", "--durations=15", "--durations-min=5"]
    yield Suite(
        name="check",
        commands=[
            [str(BIN / "ruff"), "check", "."],
            [str(BIN / "ruff"), "format", "--check", "--quiet", "."],
            [*python, "mypy"],
            [str(BIN / "lint-imports"), "--no-cache"],
            [str(BIN / "codespell")],
            [*python, "pdtlib.book.normalise", "--check"],
            [*python, "pdtlib.book.address", "--check"],
        ],
    )
    folders = sorted(path.name for path in (root / "tests").iterdir() if list(path.rglob("test_*.py")))
    light = [f"tests/{name}" for name in folders if name not in MULTIPROCESS + ALONE + BROWSER + ELSEWHERE]
    several = [f"tests/{name}" for name in folders if name in MULTIPROCESS]
    alone = [*(f"tests/{name}" for name in folders if name in ALONE), LAB_ALONE]
    parallel = ["-n", str(jobs)]
    yield Suite(
        name="light",
        commands=[[*pytest, *parallel, *DOCTESTS, "pdtlib/plan", "pdtlib/figures", *light]],
    )
    yield Suite(
        name="processes",
        commands=[[*pytest, *parallel, "--dist", "loadfile", f"--ignore={LAB_ALONE}", *several]],
    )
    yield Suite(name="alone", commands=[[*pytest, *alone]])
    yield Suite(name="targets", commands=[["make", "--no-print-directory", "test-targets"]])
    nbval = ["--nbval", "--nbval-current-env", f"--nbval-cell-timeout={CELL_TIMEOUT_S}"]
    nbval += ["--nbval-sanitize-with", "tests/nbval_sanitize.cfg", *parallel, "--dist", "loadscope"]
    books = [str(path.relative_to(root)) for path in normalise.notebooks(root)]
    yield Suite(name="notebooks", commands=[[*pytest, *nbval, *books]])
    yield Suite(name="site", commands=[[*pytest, *parallel, *(f"tests/{name}" for name in BROWSER)]])


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a suite; ``closing`` is the last line of its first failed command, or of the last."""

    passed: bool
    wall_s: float
    cpu_s: float
    closing: str


def run(suite: Suite) -> Outcome:
    """Run a suite's commands, also after one has failed."""
    began, used = time.monotonic(), _cpu_s()
    failed, closing = "", ""
    for command in suite.commands:
        shown = " ".join(Path(part).name if part.startswith(str(BIN)) else part for part in command)
        print(f"$ {shown}", flush=True)
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        )
        with process:
            assert process.stdout is not None
            for line in process.stdout:
                print(line, end="", flush=True)
                closing = line.strip() or closing
        if process.returncode and not failed:
            failed = f"{shown.split(' -')[0]}: {closing}"
    return Outcome(
        passed=not failed,
        wall_s=time.monotonic() - began,
        cpu_s=_cpu_s() - used,
        closing=failed or closing,
    )


def _cpu_s() -> float:
    """Processor seconds of all children that have ended, and of theirs."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main(arguments: list[str] | None = None) -> int:
    """Run the suites named (default: all), print the summary, return 1 when one failed."""
    every = [suite.name for suite in suites(1)]
    parser = argparse.ArgumentParser(
        prog="python -m pdtlib.book.suites", description="Every check of the project"
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"suites (default all): {' '.join(every)}")
    parser.add_argument("--jobs", type=int, default=2, help="worker processes of the light tests")
    options = parser.parse_args(arguments)
    if unknown := set(options.names) - set(every):
        parser.error(f"suite {sorted(unknown)}; valid: {', '.join(every)}")
    chosen = [suite for suite in suites(options.jobs) if not options.names or suite.name in options.names]
    outcomes = {}
    for suite in chosen:
        print(f"\n=== {suite.name}", flush=True)
        outcomes[suite.name] = run(suite)
    print("\n=== summary")
    for name, one in outcomes.items():
        verdict = "passed" if one.passed else "FAILED"
        print(f"{name:<10} {verdict} {one.wall_s:5.0f} s, {one.cpu_s:5.0f} s of processors   {one.closing}")
    return 0 if all(one.passed for one in outcomes.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
