"""Grading what was handed in: a score for every task, and for every zero its reason.

Answers run in processes of their own, with a limit on their time and on what they print, and are read as
text: nothing of a submission is imported or unpickled by the grader. That guards against mistakes, not
against an attacker: answers run with the rights of whoever grades them.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from pdtlib import exercises
from pdtlib.book import lab as labs
from pdtlib.book.assign.handout import Task
from pdtlib.book.assign.starter import NotAnAnswer, assigned, grafted
from pdtlib.exercises import process

MOST_SOURCE_BYTES = 1_000_000
MOST_PRINTED_BYTES = 64_000_000
READ_CHARS = 1_000_000
MOST_REASON_CHARS = 300
LAB_LIMIT_S = 600.0
_NUMBER = re.compile(r"(< )?[-+]?\d[\d,]*(\.\d+)?(e[-+]?\d+)?")


@dataclass(frozen=True, kw_only=True)
class Graded:
    """One task of one student. ``score`` is 0 to 1; ``reason`` says what is missing to 1."""

    id: str
    score: float
    points: float
    reason: str = ""
    checks: list[dict[str, Any]] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return dict(vars(self))


def students(submissions: Path) -> list[str]:
    """Names of the folders in which submissions lie, sorted. Raises ``ValueError`` where there are none."""
    found = (
        sorted(p.name for p in submissions.iterdir() if p.is_dir() and p.name[0] != ".")
        if (submissions.is_dir())
        else []
    )
    if not found:
        raise ValueError(f"submissions={submissions}: valid: a folder with a folder for each student")
    return found


def grade_folder(
    folder: Path, tasks: Iterable[Task], *, seed: int, limit_s: float | None = None
) -> dict[str, Any]:
    """What one student gets; the same ``seed`` draws the same hidden sizes for everybody.

    ``limit_s`` replaces the tasks' own time limits. Raises ``RuntimeError`` only where a lab itself does not
    run on this machine, so that nobody gets a zero for that.
    """
    graded = [grade_file(task, folder / task.file, seed=seed, limit_s=limit_s) for task in tasks]
    return {
        "student": folder.name,
        "seed": seed,
        "score": sum(one.score * one.points for one in graded),
        "points": sum(one.points for one in graded),
        "tasks": [one.to_dict() for one in graded],
    }


def grade_file(task: Task, path: Path, *, seed: int, limit_s: float | None = None) -> Graded:
    """What one file gets."""
    try:
        source = _read(path)
        if task.lab is None:
            return _exercise(task, source, seed, limit_s)
        return _lab(task, source, limit_s)
    except NotAnAnswer as problem:
        return Graded(id=task.id, score=0.0, points=task.points, reason=str(problem))


def _read(path: Path) -> str:
    if path.is_symlink():
        raise NotAnAnswer(f"{path.name} is a link, not a file")
    if not path.is_file():
        raise NotAnAnswer(f"{path.name} is missing")
    size = path.stat().st_size
    if size > MOST_SOURCE_BYTES:
        raise NotAnAnswer(f"{path.name} has {size:,} bytes; at most {MOST_SOURCE_BYTES:,} are graded")
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise NotAnAnswer(f"{path.name} cannot be read: {error}") from None


def _exercise(task: Task, source: str, seed: int, limit_s: float | None) -> Graded:
    try:
        report = process.grade(exercises.get(task.id), source, seed=seed, time_limit_s=limit_s)
    except (OSError, ValueError, KeyError, TypeError) as error:  # the answer has damaged its own report
        raise NotAnAnswer(f"no report came back: {error}") from None
    failed = next((check for check in report.checks if not check.passed), None)
    reason = " ".join(f"{failed.name}: {failed.message}".split())[:MOST_REASON_CHARS] if failed else ""
    checks = [{"name": check.name, "passed": check.passed} for check in report.checks]
    return Graded(id=task.id, score=report.score, points=task.points, reason=reason, checks=checks)


def _lab(task: Task, source: str, limit_s: float | None) -> Graded:
    assert task.lab is not None
    lab = labs.find(task.lab)
    own = lab.read_text(encoding="utf-8")
    answer = grafted(own, source, assigned(own))
    ran = _run_lab(lab, answer, LAB_LIMIT_S if limit_s is None else limit_s)
    if not ran.ended:
        raise NotAnAnswer(ran.reason)
    wanted = _labels(lab.parent.joinpath("expected.txt").read_text(encoding="utf-8"))
    got = _labels(ran.printed)
    if ran.code == 0 and wanted - got:  # a lab may say less on a machine that cannot make a testbed
        wanted = _labels_here(lab)
    met = (wanted & got).total()
    absent = sorted((wanted - got).elements())
    whole = ran.code == 0 and not absent
    reason = "" if whole else f"{met} of {wanted.total()} lines are as expected"
    if absent:
        reason += f"; the first that is not: {absent[0]}"
    score = 1.0 if whole else min(met / wanted.total(), 0.99)
    return Graded(id=task.id, score=score, points=task.points, reason=reason)


@dataclass(frozen=True, kw_only=True)
class _Ran:
    code: int
    printed: str
    ended: bool  # it has written its report, so it came to its end
    reason: str


def _run_lab(lab: Path, source: str, limit_s: float) -> _Ran:
    with tempfile.TemporaryDirectory(prefix="pdt-assign-") as scratch:
        folder = Path(scratch)
        script, report = folder / "lab.py", folder / "report.json"
        script.write_text(source, encoding="utf-8")
        launched = labs.command(lab, ("--json", str(report)))
        place = str(lab.relative_to(labs.ROOT))
        command = [str(script) if word == place else word for word in launched]
        # The lab's own modules lie beside it.
        path = os.pathsep.join(filter(None, (str(lab.parent), os.environ.get("PYTHONPATH"))))
        printed, said = folder / "printed", folder / "said"
        with printed.open("w") as out, said.open("w") as err:
            child = subprocess.Popen(
                command,
                cwd=labs.ROOT,
                env={**os.environ, "PYTHONPATH": path},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
                preexec_fn=_bound_files,
            )
            try:
                code = child.wait(limit_s)
            except subprocess.TimeoutExpired:
                code = -1
            finally:
                labs.end(child)
        words = _beginning(said).strip().splitlines()
        own = [line for line in words if re.match(r"(\[rank\d+\]: *)?\w+(Error|Exception|Interrupt)\b", line)]
        last = (own or words or ["it said nothing"])[-1]
        reason = f"stopped after {limit_s:g} s" if code == -1 else f"the lab failed (exit {code}): {last}"
        return _Ran(code=code, printed=_beginning(printed), ended=report.exists(), reason=reason)


@lru_cache(maxsize=16)
def _labels_here(lab: Path) -> Counter[str]:
    """What the lab itself prints on this machine. Raises ``RuntimeError`` if it does not run here."""
    ran = _run_lab(lab, lab.read_text(encoding="utf-8"), LAB_LIMIT_S)
    if ran.code:
        raise RuntimeError(f"{lab} itself does not pass on this machine: {ran.reason}")
    return _labels(ran.printed)


def _bound_files() -> None:
    with contextlib.suppress(ValueError):  # the machine's own limit is lower
        resource.setrlimit(resource.RLIMIT_FSIZE, (MOST_PRINTED_BYTES, MOST_PRINTED_BYTES))


def _beginning(path: Path) -> str:
    with path.open(encoding="utf-8", errors="replace") as file:
        return file.read(READ_CHARS)


def _labels(text: str) -> Counter[str]:
    """The lines of a lab without their numbers, which :class:`~pdtlib.book.measured.Row` has judged."""
    lines = (" ".join(_NUMBER.sub("#", line).split()) for line in text.splitlines())
    return Counter(line for line in lines if line.strip("# "))
