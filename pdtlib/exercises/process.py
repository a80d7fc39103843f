"""Grading in a process of its own, so that an answer that never ends, or crashes, is stopped and told.

``python -m pdtlib.exercises.process ID SEED RESULT_FILE LIMIT_S`` reads the source from stdin.
"""

import faulthandler
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from pdtlib.exercises.catalog import get
from pdtlib.exercises.exercise import Exercise, draw_seed
from pdtlib.exercises.report import Check, Report
from pdtlib.exercises.source import MAX_OUTPUT_CHARS, traced_line

# The child says where it hangs this long before it is ended.
TRACE_BEFORE_S = 1.0
# An answer that writes past Python's streams is bounded, too.
MOST_FILE_BYTES = 64_000_000


def grade(
    exercise: Exercise, source: str, *, seed: int | None = None, time_limit_s: float | None = None
) -> Report:
    """Grade in a child process and end it, with every process that it started, after the time limit."""
    seed = draw_seed() if seed is None else seed
    limit_s = exercise.time_limit_s if time_limit_s is None else time_limit_s
    with tempfile.TemporaryDirectory(prefix="pdt-grade-") as folder:
        result, printed, trace = (Path(folder, name) for name in ("result.json", "printed", "trace"))
        command = [sys.executable, "-m", "pdtlib.exercises.process", exercise.id]
        command += [str(seed), str(result), str(limit_s)]
        with printed.open("w") as out, trace.open("w") as err:
            child = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=out, stderr=err, text=True, start_new_session=True
            )
            try:
                child.communicate(source, timeout=limit_s)
                timed_out = False
            except subprocess.TimeoutExpired:
                timed_out = True
            finally:
                _end(child)
        if result.exists():
            return Report.from_dict(json.loads(result.read_text(encoding="utf-8")))
        check = (
            _never_ended(exercise, limit_s, trace)
            if timed_out
            else _crashed(exercise, child.returncode, trace)
        )
        with printed.open(encoding="utf-8", errors="replace") as file:
            output = file.read(MAX_OUTPUT_CHARS)
        return Report(id=exercise.id, seed=seed, checks=(check,), output=output)


def _end(child: subprocess.Popen) -> None:
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _never_ended(exercise: Exercise, limit_s: float, trace: Path) -> Check:
    line = traced_line(trace.read_text(errors="replace"))
    where = f" When it was stopped it was at {line}." if line else ""
    return Check(
        name=f"{exercise.entry} ends within {limit_s:g} s",
        passed=False,
        message=f"Stopped after {limit_s:g} s: does a loop never end?{where}",
    )


def _crashed(exercise: Exercise, code: int, trace: Path) -> Check:
    tail = "\n".join(trace.read_text(errors="replace").splitlines()[-15:])
    return Check(
        name=f"{exercise.entry} runs to its end",
        passed=False,
        message=f"The process that ran your code ended with exit code {code} before the checks were done.\n"
        f"{tail}",
    )


def main() -> None:
    """Grade stdin and write the report as JSON."""
    id, seed, result, limit_s = sys.argv[1:]
    faulthandler.dump_traceback_later(max(float(limit_s) - TRACE_BEFORE_S, 0.1))
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    bound = MOST_FILE_BYTES if most == resource.RLIM_INFINITY else min(MOST_FILE_BYTES, most)
    resource.setrlimit(resource.RLIMIT_FSIZE, (bound, most))
    echo = os.fdopen(os.dup(1), "w")
    report = get(id).grade(sys.stdin.read(), seed=int(seed), echo=echo)
    Path(result).write_text(json.dumps(report.to_dict(), ensure_ascii=False), encoding="utf-8")


if __name__ == "__main__":
    main()
